"""Prints a log's files as DumpLogSegments of Apache Kafka 4.4.0 does.

`by_suffix.dump` is the entry; each kind of file has a module: `log_file` (read by `log_reader`),
`offset_index`, `time_index`, `producer_state`. `_dump` makes the lines of logs, `output` those of
all other files, and the JSON objects (`json_rows`). `decoders` are for keys and values, `control`
for control records, `message_json` for the records of Kafka's own topics; `java` prints values as
Java does, `faults` collects what is wrong. A dump writes, creates and locks nothing, so a broker or
a daemon may use the files; an append in progress may show as a partial batch.

If DumpLogSegments ends in a stack trace, `dump` raises `DumpError` with the reason in one line.
"""
