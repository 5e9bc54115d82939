"""The files of `.control`: what can be done with a topic, a module for each.

Most of them begin jobs (`kafkafs.tree.jobs`): `job_file` has what those share, `commands` the words
that they take.
"""
