"""Bytes to records and back: pure, with no file, clock or thread.

`batch` is the v2 record batch in plain Python; `scan` finds batches in a source of bytes and
says which formats are not built yet; `_batch` and `_columns` are the hot loops.
"""
