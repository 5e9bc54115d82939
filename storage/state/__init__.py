"""Small files beside a log's segments, each replaced as a whole.

`checkpoint_file` has Kafka's text files: offsets of many partitions, leader epochs, a topic's id.
`producer_state` has the rules for producers and their transactions, and the format of snapshots.
`history` lets a returning reader find the bytes that it was shown (`history_file` parses its file);
`manifest_file` lists the expected sealed segments; `owner_file` names the process that has the data
directory open. Of a mirror, `mirror_file` has the state, `point_file` the restore points, and
`gaps_file` the offsets that it could not copy.

A file that cannot be read is an error here; the caller, which opens the log, handles it.
"""
