"""Whether what is on the disk is right: checks that change nothing.

`verify` checks a data directory that nobody need have open: each segment by `verify_segment`, its
indexes by `verify_index`, in pieces that other processes can take (`verify_piece`). `verify_log`
checks a log in use; `log_checker` does so all the time, in the background. `reindex` makes
indexes anew.
"""
