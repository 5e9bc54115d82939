"""One partition: appends, reads, transactions, flushes.

`log` is the partition's log; its parts use the interface `core.LogCore`: `assign` checks batches
and assigns their offsets (with `validator`), `read` finds and returns them, `transactions` tracks
stable and aborted ones, `snapshots` writes the producers, `epochs` has the leader epochs, `flush`
syncs the log, `manifest` lists its sealed segments, `append_queue` detects a slow disk and queues
the changes of the log. `append` appends batches from elsewhere to a log.

`group` has the state that all logs share, `listener` the calls to listeners, `rescue` the repair
after a failed fsync. `staged_batches` brings batches in, `partitioner` chooses partitions,
`salvage` takes cut batches back.

Not here: which records are deleted (`retention`, `compaction`).
"""
