"""A range of offsets, cut into pieces that other processes read.

`split` plans, `split_reader` reads a piece, `split_finder` finds its segments while their owner
rolls, deletes and cleans.
"""
