"""Divides a range of offsets into splits that other processes read.

`split` plans; before, `narrow` excludes offsets by the indexes, and by the words that a condition
needs (`word_query`). `split_reader` reads a split, and `split_finder` finds its segments while
their owner rolls, deletes and cleans.
"""
