"""Consumer groups: the positions that they have committed, kept as Kafka keeps them.

A position is a record of the topic `__consumer_offsets`: `offset_records` has the bytes of its
records, and which partition of the topic has a group. `offsets_log` reads one partition of it, with
its transactions, and remembers the newest record of each key; `group` says what these mean;
`groups` is the directory's table of all groups, which also commits, takes back, and pulls back what
lies beyond what a crash has left of a log; `expiry` decides which positions are too old.

A commit is an append to a log like any other, durable when that log is flushed. A flush of it waits
for the partitions whose positions it has (`Durability.after`): on the disk no position is ahead of
its records.

Not here: who may commit, the names of groups in the file system, and the members of groups beyond
whether a broker has written any.
"""
