"""A round of cleaning that several processes share, none of which owns the log.

`plan` deals the round out, `round` is the work of each process, and `swap_request` asks the log's
owner to put the outcome in, which `swap_in` does after it has checked it.
"""
