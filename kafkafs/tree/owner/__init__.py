"""What others ask the daemon for, as the owner of the data directory.

`adopt_file` (`.kafkafs/adopt`) takes requests and tells their outcomes; `owner_requests` carries
them out as jobs, and removes staged files that no request names.

What a request says, and what it does to a log, is `storage.owner`.
"""
