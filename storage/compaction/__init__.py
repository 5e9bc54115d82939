"""Compaction: deletes records that have a later record of the same key.

`log_cleaner` chooses the next log of a directory, `cleanable` decides which part of a log is due,
and `cleaner` cleans that part. It reads its `sources`, groups of segments, in two `passes`
(`_offset_map` remembers keys, `_keep` decides), writes the kept records (`group_writer`) and swaps
the new segments in (`replacing`). `transactions` decides which markers may be dropped. In a
`staged_round`, another process than the owner cleans a log. It sends a `swap_request` to the owner,
whose `swap_in` checks the new segments and swaps them in.
"""
