"""Handles for appending: they turn written bytes into records.

An `append_handle` collects bytes until they are whole: `lines_handle` lines, `batches_handle`
stored batches. Its `append_target` appends them to one partition, or to those that the partitioner
chooses for the file `topic_append` (`.append`).

Everything here runs on the loop thread, except `read` and `examine`.
"""
