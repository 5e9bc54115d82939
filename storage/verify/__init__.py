"""Whether what is on the disk is right: checks that change nothing.

`verify` checks a data directory that nobody need have open: each segment by `verify_segment`, its
indexes by `verify_index`, in pieces that other processes can take (`verify_piece`); what of
transactions reaches over segments `transactions` judges, in order. `verify_log` checks a log in
use by the same; `log_checker` reads what is in use back all the time, in the background. `reindex`
makes indexes anew.
"""
