"""What DumpLogSegments of Apache Kafka 4.3.1 prints of a log's files, from the files alone.

`files.dump` is the entry. The lines of logs come from `_dump`, those of all other files from
`events`, which also knows them as JSON objects. Nothing is written, created or locked, so a
directory in use by a broker or a daemon can be looked at; what is being appended meanwhile may
show as a partial batch.

Where DumpLogSegments ends in a stack trace, `DumpError` is raised with one line that says why.
"""
