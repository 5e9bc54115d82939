"""Checks whether what is on the disk is right; all but `reindex` change nothing.

`verify` checks a data directory, open or not: each segment by `verify_segment`, perhaps in another
process, its indexes by `verify_index`, and transactions, which reach over segments, by
`transactions`, in order. `verify_log` checks a log in use in the same way.
`log_checker` reads logs in use back all the time, in the background. `reindex` makes indexes anew.
"""
