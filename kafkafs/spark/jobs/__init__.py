"""Maintenance of logs as Spark jobs: a module each, with a function `run` that takes a session.

`compact`, `export`, `import_`, `stats` and `verify` are the jobs. `export_state`, `import_records`,
`range_stats`, `stats_report` and `chart` each belong to one of them. The others are shared:
`selection` of topics, `splits`, `session`, `progress`, `report`.

Importing a job imports neither pyspark nor pyarrow: plans and dry runs work without them.
"""
