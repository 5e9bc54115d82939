"""A partition as the tree sees it: a log, its views, and the inodes of it that the kernel knows.

`partitions` has them all, with what periodic work does for them. A `partition` passes its log's
events on to its views and tells the kernel. A view of one partition is a `partition_view`: the
generations that are open; it has a `layout`, which measures where text lies; `text` renders it.
`rewrite` writes down a change of the past before it is carried out; `offline` has that done for
a command. `unsaved` counts view indexes that are in memory only, `flush_plans` is one fsync of
several partitions.

Nodes and handles, through which the kernel comes to a partition, are in `files` and `append`.
"""
