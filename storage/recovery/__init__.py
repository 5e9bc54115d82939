"""Loads a partition's directory, after any stop, into trusted segments and producers.

`partition` makes Kafka's numbered passes: `swap` finishes an interrupted cleaning, `segment` loads
each segment and rebuilds its indexes if necessary, `producers` rebuilds the producers' state. They
obey the `promises`, a value that says which part of the log was on the disk. `swap` also has the
steps of a swap that the cleaner takes.

A sealed segment is not cut if its records were flushed before the stop, or acknowledged before a
clean one.
"""
