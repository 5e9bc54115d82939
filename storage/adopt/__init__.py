"""Turns staged batches into one Kafka transaction, exactly once.

`staged` names the waiting files, `adopt` appends them to their logs, `adoptions` records the
adopted batches. `owner` has the file in which another process sends its request.
"""
