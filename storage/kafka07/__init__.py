"""Kafka 0.7: its segments and the entries in them, read and never written.

`segment` recognises and loads a partition's `.kafka` files; a segment shows its entries as batches
in the plain form that everything else reads. `entries` has the layout of an entry and decodes it,
with the hot loops of `_entries`.

Not here: converting such a log (`convert`).
"""
