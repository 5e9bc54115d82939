"""The sparse indexes beside a segment's log: derived data, rebuilt from the log when in doubt.

`index` has the offset index and the time index (Kafka's AbstractIndex): entries of one size, which
`_search` searches. `txn_index` has the aborted transactions.
"""
