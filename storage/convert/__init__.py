"""Converts records from one format into another.

`convert` rewrites logs of the message formats before v2, and of Kafka 0.7, as v2. `fetch` writes
the messages of a log as a fetch response of the 0.7 protocol.
"""
