"""Compaction: of the records of each key, only the latest one need stay.

`log_cleaner` chooses the next log of a directory, `cleanable` says which part of a log is due, and
`cleaner` cleans that part: it reads its `sources`, groups of segments, in two `passes`
(`_offset_map` remembers keys, `_keep` decides), writes what stays (`group_writer`) and swaps the
new segments in (`replacing`). `transactions` says which markers may go. In a `staged_round`,
another process than the owner cleans a log. Its `swap_request` goes to the owner, whose `swap_in`
checks the new segments and swaps them in.
"""
