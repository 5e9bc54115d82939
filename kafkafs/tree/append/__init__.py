"""Handles for appending: they turn written bytes into records.

An `append_handle` collects bytes until they are whole: `lines_handle` lines, `batches_handle`
stored batches. Its target appends them: `append_target` to one partition, `topic_append` (the file
`.append`) to the partitions that the partitioner chooses.

Everything here runs on the owner's thread, but for `read` and `examine`.
"""
