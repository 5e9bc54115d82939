"""The sink: rows become staged files in tasks (`staging`), and records when the driver commits.

`sink` are the writers, `sink_options` and `sink_columns` say what they take.
"""
