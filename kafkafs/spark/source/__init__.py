"""The source: `reader` for batch queries, `stream_reader` for streaming ones.

`options` parses options; `subscription` finds partitions and their `offsets`; `planning` and
`stream_plan` make tasks of them; `rows` are what tasks give to Spark. `data_loss` handles records
that are gone, `group_commits` says how far a query is as a consumer group's positions.
"""
