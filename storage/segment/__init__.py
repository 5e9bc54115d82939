"""One segment: a `.log` file of record batches with its indexes.

`segment` reads and appends, `segment_files` holds names and descriptors, `first_read` remembers
which bytes have been checked against their CRC, `batch_check` checks a range, `damage` keeps what
is damaged, `cut` what was taken out of a log, `walk` reads a log file through, `direct_io` past the
page cache.

A segment knows nothing of its neighbours: gaps between segments are `recovery`'s and `log`'s.
"""
