"""The sparse indexes beside a segment's log: derived data, rebuilt from the log when in doubt.

`offset_index` and `time_index` are kinds of `segment_index` (Kafka's AbstractIndex): a file of
entries of fixed size, which `_search` searches. `txn_index` has the aborted transactions.
"""
