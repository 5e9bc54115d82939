"""Requests of other processes to the owner of a data directory.

`request_kinds` has the requests and their outcomes as lines of text: to adopt staged batches
(`adopt`), to swap in compacted segments (`compaction.swap_in`), to commit a group's offsets
(`group_positions`). `staged_orphans` removes staged files that belong to no request.
`state.owner_file` names the owner process.
"""
