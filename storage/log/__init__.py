"""One partition: appends, reads, transactions, flushes.

`log` is the partition's log; its parts know it as `core.LogCore`: `append` checks batches and gives
them offsets (with `validator`), `read` finds and returns them, `transactions` knows what is stable
and what was aborted, `snapshots` writes down the producers, `epochs` keeps the leader epochs,
`flush` says what is on the disk and brings it there, `book` writes down what must be there, `pace`
knows whether its disk is slow, and whose turn it is to change it.

`listener` is what a log tells others, `rescue` what happens after a failed fsync. `staged_batches`
brings batches in, `partitioner` chooses partitions, `salvage` takes cut batches back.

Which of its past a log loses is decided elsewhere (`retention`, `compaction`).
"""
