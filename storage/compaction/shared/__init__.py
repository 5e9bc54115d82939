"""A round of cleaning that several processes share, none of which owns the log.

`plan` deals the round out, `round` is the work of each process.  A `swap_request` goes to the log's
owner, whose `swap_in` checks the outcome and swaps it in.
"""
