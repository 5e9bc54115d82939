"""Checks whether what is on the disk is right; no file of it changes, but by `reindex`.

`verify` checks a data directory, open or not: each segment by `verify_segment`, perhaps in another
process, its indexes by `verify_index`, and transactions, which reach over segments, by
`transactions`, in order. `verify_log` checks a log in use in the same way, once, when somebody
wants it. `log_checker` reads the logs in use back all the time, in the background; where it finds
damage in an active segment, the log rolls. `reindex` makes indexes anew.
"""
