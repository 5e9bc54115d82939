"""What is kept beside a log's segments, in small files that are replaced as a whole.

`checkpoint_file` are Kafka's text files: offsets of many partitions, leader epochs, a topic's id.
`producer_state` has the rules for producers and their transactions, and the format of snapshots.
`history` lets a reader who comes back find what it was shown (`history_file` parses its file);
`book_file` says which sealed segments must be there; `owner_file` says who has the data directory
open.

A file that cannot be read is an error here; the caller, which opens the log, decides what to do.
"""
