"""Cuts a range of a log's offsets into pieces that others read, in other processes.

Whoever plans has the log open (``plan_splits``); whoever reads has the directory and a ``Split``
(``SplitReader``), nothing else.  A piece begins at a batch and is found again by its offsets where
the segment's file is another one by then.

Not here: which range is wanted, how Spark is told.
"""

from __future__ import annotations

from typing import NamedTuple


class AbortedSpan(NamedTuple):
    """Between these offsets, both included, a producer's transactional records are aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


class Split(NamedTuple):
    """A piece of a partition: the offsets from ``from_offset`` to before ``to_offset``.

    ``directory`` is the partition's; ``base_offset`` of the segment and ``position`` in its log are
    where the batch with ``from_offset`` lay at planning; ``size``: bytes of log, about.
    ``aborted``: what of it is not to be read; empty where uncommitted records are wanted.
    """

    topic: str
    partition: int
    directory: str
    base_offset: int
    position: int
    size: int
    from_offset: int
    to_offset: int
    aborted: tuple[AbortedSpan, ...] = ()
