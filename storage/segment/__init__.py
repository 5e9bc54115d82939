"""One segment: a `.log` file of record batches with its indexes.

`segment` has the class: names, descriptors, indexes and damage. `writer` appends to the active
segment. `reader` reads batches, checks them at the first read, and adds the damage that it finds to
the segment. `summary` has the facts that loading finds in a segment's files. `checked_ranges`
remembers the checked bytes, `batch_check` checks a range batch by batch and finds where damage
ends, `damage` describes damaged bytes and the offsets lost in them. `cut` truncates logs, and saves
the bytes that recovery takes out of them. `walk` reads a log file through, `direct_io` bypasses the
page cache.

A segment knows nothing of its neighbours: `recovery` and `log` handle gaps between segments.
"""
