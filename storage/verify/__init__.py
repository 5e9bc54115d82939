"""Checks data on the disk; only `reindex` repairs anything.

`verify` checks a data directory, open or not: each segment by `verify_segment`, perhaps in another
process, its indexes by `verify_index`, and transactions, which span segments, by `transactions`, in
order. `verify_log` checks a log in use in the same way, once, on demand. `log_checker` repeatedly
reads the logs in use in the background; a log with damage in its active segment rolls. `reindex`
rebuilds indexes.
"""
