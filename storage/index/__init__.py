"""The indexes beside a segment's log.

`index` has the offset index and the time index (Kafka's AbstractIndex): sparse entries of one size,
derived data that is rebuilt from the log when in doubt. `_search` bisects those that are in memory.
`txn_index` has the aborted transactions. It may have facts that compaction or retention has removed
from the log, so a sound one is not rebuilt.
"""
