"""Staged batches become one Kafka transaction, exactly once.

`staged` names the files that wait, `adopt` makes them part of their logs, `adoptions` remembers
what was adopted. `owner` has the file in which another process sends its request.
"""
