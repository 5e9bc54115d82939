"""Prints a log's files as DumpLogSegments of Apache Kafka 4.3.1 does.

`by_suffix.dump` is the entry; each kind of file has a module. `_dump` makes the lines of logs,
`output` those of all other files, and the JSON objects. A dump writes, creates and locks nothing,
so a broker or a daemon may use the files; an append in progress may show as a partial batch.

Where DumpLogSegments ends in a stack trace, `dump` raises `DumpError` with one line that says why.
"""
