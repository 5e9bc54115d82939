"""Planned splits of any log are read, whatever happens between planning and reading."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.retain import HIGH_WATERMARK, delete_records, retain
from storage.errors import OffsetOutOfRange
from storage.log.append import append_batches
from storage.record.control import ABORT, COMMIT
from storage.record.plain import recompress
from storage.task import Task
from tests.in_memory import PLACE
from tests.storage.compaction.cleaned import Clock
from tests.storage.logs import sweep, write_settings
from tests.storage.old_logs import write_legacy
from tests.storage.splitting import (
    COMMITTED,
    EVERYTHING,
    UNCOMMITTED,
    check_splits,
    plan,
    read,
    read_all,
    records,
)
from tests.storage.transactions import marker

values = st.none() | st.binary(max_size=20) | st.just(b"much the same " * 8)
pairs = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), values), min_size=1, max_size=4
)


class History:
    """Things that happen to a log."""

    def __init__(self, manager: LogManager, log: Log, clock: Clock) -> None:
        self.manager = manager
        self.log = log
        self.clock = clock
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def write(self, data: st.DataObject) -> None:
        """One batch, of a producer's transaction perhaps, in any codec."""
        some = data.draw(pairs)
        codec = data.draw(st.integers(0, 4))
        producer = data.draw(st.sampled_from([7, 8, -1, -1, -1]))
        made = [
            Record(n, self.clock.now_ms + n, 0, key, value, (("h", value),) * (n % 3))
            for n, (key, value) in enumerate(some)
        ]
        if producer < 0:
            batch = encode(made)
        else:
            self.open.add(producer)
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(made)
            batch = encode(
                made,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=0x10,
            )
        append_batches(
            self.log, bytearray(recompress(batch, codec)), now_ns=self.clock.now_ms * 1_000_000
        )

    def end(self, producer: int, kind: int) -> None:
        append_batches(self.log, marker(producer, kind), now_ns=self.clock.now_ms * 1_000_000)

    def roll(self) -> None:
        self.log.roll(self.clock.now_ms)

    def clean(self) -> None:
        self.roll()
        LogCleaner(self.manager).clean(self.log, Task())

    def retain(self) -> None:
        self.clock.now_ms += 40_000
        self.roll()
        retain(self.manager, [self.log], Task(), self.clock.now_ms)

    def delete_records(self) -> None:
        if "delete" in self.log.config.cleanup_policy:
            delete_records(self.manager, self.log, HIGH_WATERMARK, Task())

    def later(self) -> None:
        """Replaced and deleted files are removed."""
        self.clock.now_ms += 100_000
        sweep(self.manager, self.clock.now_ms)

    def step(self, data: st.DataObject, kinds: list[str]) -> None:
        kind = data.draw(st.sampled_from(kinds))
        if kind == "write":
            self.write(data)
        elif kind == "end":
            for producer in sorted(self.open):
                self.end(producer, data.draw(st.sampled_from([ABORT, COMMIT])))
            self.open.clear()
        else:
            getattr(self, kind)()


BEFORE = ["write"] * 8 + ["end"] * 4 + ["roll"] * 3 + ["clean", "retain", "delete_records"]
BETWEEN = ["write", "end", "roll", "clean", "clean", "retain", "delete_records", "later"]


@given(data=st.data())
def test_what_was_planned_is_read(data: st.DataObject) -> None:
    path = Path(tempfile.mkdtemp(dir=PLACE))
    clock = Clock()
    write_settings(
        path,
        log_index_interval_bytes=data.draw(st.sampled_from([1, 200])),
        log_cleanup_policy=data.draw(st.sampled_from(["compact", "compact,delete"])),
        log_retention_ms=data.draw(st.sampled_from([30_000, 100_000])),
        log_cleaner_min_cleanable_ratio=0,
        log_cleaner_delete_retention_ms=50_000,
        log_segment_delete_delay_ms=10_000,
    )
    try:
        magic = data.draw(st.sampled_from([None, None, 0, 1]))
        if magic is not None:
            write_legacy(path, "t", magic)
        with LogManager.open(str(path), clock_ms=clock) as manager:
            if magic is None:
                manager.create_topic("t", 1)
            history = History(manager, manager.log("t", 0), clock)
            for _ in range(data.draw(st.sampled_from([10, 20, 30]))):
                history.step(data, BEFORE)
            check_range(data, history)
    finally:
        shutil.rmtree(path)


def check_range(data: st.DataObject, history: History) -> None:
    log = history.log
    isolation = data.draw(st.sampled_from([COMMITTED, UNCOMMITTED]))
    bound = log.last_stable_offset if isolation == COMMITTED else log.log_end_offset
    start = log.log_start_offset
    first = data.draw(st.just(start) | st.integers(start, bound))
    end = data.draw(st.just(bound) | st.integers(first, bound))
    target = data.draw(st.sampled_from([1, 200, 1000, EVERYTHING]))
    chunk = data.draw(st.sampled_from([1, 100, 1000, 1 << 20]))
    splits = plan(log, first, end, target, isolation)
    check_splits(splits, first, end)
    assert read_all(splits, chunk) == records(log, first, end, isolation)
    for _ in range(data.draw(st.sampled_from([2, 4, 1, 0]))):
        history.step(data, BETWEEN)
    for split in splits:
        lost = split.from_offset < log.segments[0].base_offset
        if lost:
            with pytest.raises(OffsetOutOfRange) as caught:
                read(split, chunk_bytes=chunk)
            assert caught.value.log_start == log.segments[0].base_offset
        elif split.from_offset >= log.log_start_offset:
            now = records(log, split.from_offset, split.to_offset, isolation)
            assert read(split, chunk_bytes=chunk) == now
