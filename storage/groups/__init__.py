"""Consumer groups: their committed offsets, stored in Kafka's format.

A committed offset is a record of the topic `__consumer_offsets`. `offset_records` encodes its
records, and computes the partition of a group. `offsets_log` reads one partition, with its
transactions, and keeps the newest record of each key; `group` decodes them, and decides which
committed offsets are too old. `groups` is the table of all groups in a directory: it commits,
deletes, and resets offsets beyond the end of a log after a crash.

A commit is an append to a log like any other, durable when that log is flushed. That flush waits
for the partitions of the committed offsets (`Durability.after`): on the disk no committed offset is
ahead of its records.

Not here: who may commit, the names of groups in the file system, and the members of groups beyond
whether a broker has written any.
"""
