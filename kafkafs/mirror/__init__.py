"""Copies topics of a Kafka cluster into a data directory, batch by batch, and keeps the copy up to
date.

`mirror` has the topics and the loop on one thread. `copier` copies the records of partitions: it
reads from the leaders and appends. `rules` decide by facts of an answer and of our log, and touch
nothing. `facts` are what a run knows. `topics` chooses the topics, and begins or renames copies.
`groups` copies the committed offsets of groups if their topic may not be read. `compaction`
compacts the topic of these offsets. `line_indexes` indexes the segments that are rolled.

The log end is the position: after a kill the copy continues there. No offset is left out silently:
a gap is named durably before the records after it are appended. Nothing that was copied is deleted,
except by the retention of the data directory's own settings.

Not here: the file `kafkafs.mirror`, which makes a directory a mirror (`storage.directory.mirror`),
and the gaps of a log (`storage.state.gaps_file`).
"""
