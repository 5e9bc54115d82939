"""Loads a partition's directory, after any stop, into trusted segments and producers.

`partition` makes Kafka's numbered passes: `swap` finishes an interrupted cleaning, `segment` loads
each segment and rebuilds its indexes if necessary, `producers` rebuilds the producers' state. Each
of them obeys the `promises`, a value that says what is on the disk for certain.

Records that were appended and acknowledged before a clean stop, or flushed before any, are never
cut.
"""
