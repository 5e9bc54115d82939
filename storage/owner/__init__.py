"""Requests of other processes to the owner of a data directory.

`request_kinds` has the requests and their outcomes as lines of text: to adopt staged batches
(`adopt`), to swap in compacted segments (`compaction.swap_in`), to commit a group's positions
(`group_positions`). `staged_orphans` removes staged files that no request names. Which process is
the owner says `state.owner_file`.
"""
