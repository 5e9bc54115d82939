"""What is kept beside a log's segments, in small files that are replaced as a whole.

`checkpoint_file` are Kafka's text files: offsets of many partitions, leader epochs, a topic's id.
`producer_state` is what is known of producers and their open transactions, with its snapshots.
`history` (`history_file`) lets a reader who comes back find what it was shown; `book_file` says
which sealed segments must be there; `owner_file` says who has the data directory open.

A file that cannot be read is an error here; who opens the log decides what becomes of it.
"""
