"""A partition as the tree sees it: a log, its views, and the inodes of it that the kernel knows.

`generations` says what an inode shows of the past, pure. Around it: `partitions` has all of them,
does their periodic work, and makes one fsync of several. A `partition` passes its log's events to
its views and sends notices to the kernel. A `partition_view` makes the generations of one view, and
renders their text; its `layout` measures the text and gives it positions. `rewrite` writes a change
of the past down before the log carries it out; `partitions.keeping_history` has that done for a
command that changes logs without a mount.
"""
