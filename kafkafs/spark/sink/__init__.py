"""The sink: tasks stage rows in files (`staging`); the driver's commit makes records of them.

`sink` has the writers, `sink_options` their options, `sink_columns` their columns.
"""
