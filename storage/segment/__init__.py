"""One segment: a `.log` file of record batches with its indexes.

`segment` has the class: names, descriptors, indexes and appends. `reader` reads its batches, and
checks them at the first read. `summary` has the values that recovery finds out about a segment.
`checked_ranges` remembers the checked bytes, `batch_check` checks a range, `damage` lists damaged
ranges. `cut` keeps the bytes that recovery takes out of a log. `walk` reads a log file through,
`direct_io` bypasses the page cache.

A segment knows nothing of its neighbours: `recovery` and `log` handle gaps between segments.
"""
