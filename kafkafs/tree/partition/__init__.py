"""A partition as the tree sees it: a log, its views, and the inodes of it that the kernel knows.

`generations` says what an inode shows of the past, pure. Around it: `partitions` has all of them,
does their periodic work, and makes one fsync of several. A `partition` passes its log's events to
its texts and sends notices to the kernel. A `partition_text` is the text of one view: it measures
the text, gives it positions, makes its generations and renders them. `rewrite` writes a change of
the past down before the log carries it out; `partitions.keeping_history` does that for a command
that changes logs without a mount.
"""
