"""Handles for appending: how written bytes become records.

An `append_handle` collects what is written until it is whole: `lines_handle` takes lines,
`batches_handle` stored batches. Its target appends them: `append_target` to one partition,
`topic_append` to those that the partitioner chooses; that is also the file `.append`.

Everything here runs on the owner's thread.
"""
