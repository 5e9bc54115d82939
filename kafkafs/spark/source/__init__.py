"""The source: `reader` for batch queries, `stream_reader` for streaming ones.

`options` parses options; `subscription` finds partitions and their `offsets`; `planning` and
`stream_plan` make tasks of them; tasks give `rows` to Spark. `data_loss` handles deleted records,
and `group_commits` commits the progress of a query for a consumer group.
"""
