"""The state of a log's producers and transactions, by all batches ever appended to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from storage import Log, LogManager, Record, encode
from storage.files import Files
from storage.log.append import append_batches
from storage.record.control import ABORT, encode_marker
from storage.record.header import TRANSACTIONAL_BIT
from storage.record.plain import recompress
from tests.compaction_model import ModelBatch
from tests.crash.moments import Life
from tests.observed import batches_of
from tests.storage.logs import NOW_MS

StageT = TypeVar("StageT", bound=Any)


class LogLife(Life, Generic[StageT]):
    """A run that appends to the log t-0, and enters stages: the facts that a start must find.

    A stage has at least the fields `acknowledged` and `flushed`: how far the log goes.
    """

    def __init__(self, data: Path, first: StageT) -> None:
        super().__init__(data)
        self.now_ms = NOW_MS
        self.history: list[ModelBatch] = []
        self.stages = [first]
        self.sequences = dict.fromkeys((7, 8, 9), 0)
        self.manager: LogManager

    @property
    def log(self) -> Log:
        return self.manager.log("t", 0)

    def expected(self) -> tuple[object, ...]:
        return (len(self.stages) - 1,)

    def enter(self, **changes: object) -> None:
        self.stages.append(self.stages[-1]._replace(**changes))

    def open(self, files: Files) -> None:
        self.manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: self.now_ms)

    def put(self, batch: bytes | bytearray) -> None:
        append_batches(self.log, batch, now_ns=self.now_ms * 1_000_000)
        self.history.append(batches_of(self.log.active)[-1])
        self.enter_appended()

    def enter_appended(self) -> None:
        self.enter(acknowledged=self.log.log_end_offset)

    def put_records(
        self,
        records: Sequence[Record],
        producer: int = -1,
        *,
        transactional: bool = False,
        codec: int = 0,
    ) -> None:
        batch = encode(
            records,
            attributes=TRANSACTIONAL_BIT if transactional else 0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=self.sequences.get(producer, -1),
        )
        if producer >= 0:
            self.sequences[producer] += len(records)
        self.put(recompress(batch, codec))

    def end(self, producer: int, kind: int) -> None:
        self.put(encode_marker(kind, producer, 0, 0, 0, self.now_ms, 0))

    def flush(self) -> None:
        self.log.flush()
        self.enter(flushed=self.log.log_end_offset)

    def close(self) -> None:
        self.manager.close()
        self.enter(flushed=self.stages[-1].acknowledged)
        self.enter()

    def sweep(self) -> None:
        remove = self.manager.sweep(self.now_ms)
        assert remove is not None
        remove()


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
