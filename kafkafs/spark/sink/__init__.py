"""The sink: tasks stage rows in files (`staging`), and the driver's commit appends these.

`sink` has the writers, `sink_options` their options, `sink_columns` their columns.
"""
