"""The state of a log's producers and transactions, by all batches ever appended to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage import Log
from storage.record.control import ABORT
from tests.compaction_model import ModelBatch
from tests.observed import batches_of


def content(log: Log) -> tuple[ModelBatch, ...]:
    return tuple(batch for segment in log.segments for batch in batches_of(segment))


class Known(NamedTuple):
    """The state of producers and transactions at an offset, by all batches before it."""

    producers: dict[int, tuple[int, int, int]]
    stable: int
    aborted: set[int]


def known(history: Sequence[ModelBatch], end: int) -> Known:
    """(last offset, last sequence, first offset of the open transaction) of each producer."""
    last: dict[int, tuple[int, int]] = {}
    open_at: dict[int, list[ModelBatch]] = {}
    aborted: set[int] = set()
    for batch in history:
        if batch.base_offset >= end or batch.producer_id < 0:
            continue
        if batch.control:
            ended = open_at.pop(batch.producer_id, [])
            if batch.marker == ABORT:
                aborted |= {record.offset for each in ended for record in each.records}
            last.setdefault(batch.producer_id, (-1, -1))
            continue
        count = batch.last_offset - batch.base_offset
        last[batch.producer_id] = batch.last_offset, batch.base_sequence + count
        if batch.transactional:
            open_at.setdefault(batch.producer_id, []).append(batch)
    firsts = {producer: batches[0].base_offset for producer, batches in open_at.items()}
    return Known(
        {p: (*place, firsts.get(p, -1)) for p, place in last.items()},
        min(firsts.values(), default=end),
        aborted,
    )


def check_producers(facts: Known, log: Log) -> None:
    """The log knows its producers, and up to where it is stable."""
    assert log.last_stable_offset == max(facts.stable, log.log_start_offset)
    assert {
        each.producer_id: (each.last_offset, each.last_sequence, each.transaction_first_offset)
        for each in log.producers
    } == facts.producers
