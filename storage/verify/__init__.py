"""Checks whether what is on the disk is right; all but `reindex` change nothing.

`verify` checks a data directory, open or not: each segment by `verify_segment`, its indexes by
`verify_index`, in pieces that other processes can take (`verify_piece`), and transactions, which
reach over segments, by `transactions`, in order. `verify_log` checks a log in use in the same way.
`log_checker` reads logs in use back all the time, in the background. `reindex` makes indexes anew.
"""
