"""Divides a range of offsets into splits that other processes read.

`split` plans, `split_reader` reads a split, `split_finder` finds its segments while their owner
rolls, deletes and cleans.
"""
