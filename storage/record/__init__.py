"""Bytes to records and back: pure, with no file, clock or thread.

`header` has the layouts of the formats; `batch` decodes any batch and encodes v2; `plain` brings
batches of any format and codec into the one form that everything else works on, by `compression`;
`control` is about transactions' markers; `scan` finds batches in a source of bytes. The hot loops
are `_batch`, `_plain` and `_codec`; `_seek` finds a record in a batch, `_route` is the
partitioner's, `_stamp` makes batches a producer's, `_crc` is CRC-32C, `_write` writes records.
`columns` has the loops from batches to columns and back.
"""
