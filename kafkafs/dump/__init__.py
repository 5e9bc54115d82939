"""Prints a log's files as DumpLogSegments of Apache Kafka 4.3.1 does.

`files.dump` is the entry. `_dump` makes the lines of logs, `events` those of all other files, and
their JSON objects. It writes, creates and locks nothing, so a broker or a daemon may use the files;
an append in progress may show as a partial batch.

Where DumpLogSegments ends in a stack trace, `dump` raises `DumpError` with one line that says why.
"""
