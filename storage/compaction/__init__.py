"""Compaction: of the records of each key, only the latest one need stay.

`log_cleaner` chooses the next log of a directory, `cleanable` says which part of a log is due, and
`cleaner` cleans that part: it reads its `sources` in two `passes` (`_offset_map` remembers keys,
`_keep` decides), puts segments into groups (`grouping`), writes what stays (`rewrite`, `_rewrite`)
and puts the new segments into the log (`replacing`).  `transactions` says which markers may go.
`shared` and `_superseded` are the same by several processes together.
"""
