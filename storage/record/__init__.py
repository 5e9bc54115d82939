"""Bytes to records and back: pure, with no file, clock or thread.

`header` has the layouts of all formats but 0.7; `batch` decodes any batch and encodes v2; `plain`
brings batches of any format and codec into the one form that everything else works on, by
`legacy` and `compression`; `control` is about transactions' markers; `scan` finds batches in a
source of bytes. `_batch`, `_plain`, `_legacy` and `_codec` are the hot loops; `columns` has those
from batches to columns and back.
"""
