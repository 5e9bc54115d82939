"""Maintenance of logs as Spark jobs: a module each, with a function `run` that takes a session.

Importing a job imports neither pyspark nor pyarrow: what needs no session (a plan, a dry run) works
without.
"""
