"""One partition: appends, reads, transactions, flushes.

`log` is the partition's log, and `state` the part of it that its other parts use: `assign` checks
batches and assigns their offsets (with `validator`), `read` finds and returns them, `transactions`
tracks stable and aborted ones, `snapshots` writes the producers, `epochs` has the leader epochs,
`flush` syncs the log, `manifest` lists its sealed segments, `append_queue` detects a slow disk and
makes callers queue for changes of the log. `append` appends batches of producers, batches that keep
their offsets, and markers.

`group` has the state that the logs of a data directory share, `listener` the calls to listeners,
`rescue` the repair after a failed fsync, `truncate` the removal of records that a leader does not
have. `staged_batches` reads and checks the batches of a staged file, `partitioner` chooses
partitions, `salvage` takes cut batches back.

Not here: which records are deleted (`retention`, `compaction`).
"""
