"""Records brought from one form into another.

`convert` rewrites logs of the message formats before v2, and of Kafka 0.7, as v2. `fetch` writes
what a log holds as a fetch response of the 0.7 protocol.
"""
