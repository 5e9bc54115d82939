"""Requests of other processes to the daemon, as the owner of the data directory.

`adopt_file` (`.kafkafs/adopt`) takes requests and shows their outcomes; `owner_requests` carries
them out as jobs, and removes staged files that no request names. `storage.owner` decodes a request
and changes the log.
"""
