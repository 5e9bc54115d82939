"""One partition: appends, reads, transactions, flushes.

`log` is the partition's log, from `append` (with `validator`), `read` and `transactions`; `flush`
makes it durable, `rescue` does after a failed fsync, `book` writes down what must be there.
`listener` is what it tells others, `rewriting` what they write down before its past changes.
`produce` and `staged_batches` bring batches in, `partitioner` chooses partitions, `salvage` takes
cut batches back.

Which of its past a log loses is decided elsewhere (`retention`, `compaction`).
"""
