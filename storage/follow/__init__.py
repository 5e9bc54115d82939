"""Follows a data directory while another process writes it.

`follow_directory` follows its partitions and checkpoints, `follow` the names and segments of one
partition, `follow_tail` the end of its log; `directory_watches` reports changes. Nothing is written
and no lock is taken.
"""
