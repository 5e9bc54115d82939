"""Maintenance of logs as Spark jobs: a module each, with a function `run` that takes a session.

Importing a job imports neither pyspark nor pyarrow: plans and dry runs work without them.
"""
