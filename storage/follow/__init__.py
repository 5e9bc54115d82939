"""A data directory that another process writes, followed while it does.

`follow_directory` follows its partitions and checkpoints, `follow` the names and segments of one
partition, `follow_tail` the end of its log; `directory_watches` says when to look. Nothing is
written and no lock is taken.
"""
