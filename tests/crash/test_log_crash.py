"""A crash at every single file operation of a log's life; then what a restart finds.

The life: create, append, roll, flush, checkpoint, remove a head, close, reopen, append, close; all
the while transactions begin, are committed and aborted.
After a kill everything acknowledged is there.  After a power cut, with any subset of what was not
synced lost, everything acknowledged as *flushed* is there, and what follows it is a prefix of what
was appended: offsets dense, CRCs right, every index equal to a rebuilt one, producers and aborted
transactions known, and nothing of an open or aborted transaction shown.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import Log, LogManager
from storage.files import Files
from storage.log.append import abort_transaction, append_batches
from storage.record.control import ABORT, COMMIT
from storage.verify.verify import verify
from tests.crash import moments
from tests.crash.moments import Found, Unsynced, during_opening
from tests.storage.logs import NOW_MS, NOW_NS, append, clock_ms, opened, remove_head
from tests.storage.transactions import Client, marker, produced


class Issued(NamedTuple):
    """A record or a marker at an offset, and its producer, if any. A marker has a kind."""

    value: bytes | None
    producer_id: int = -1
    sequence: int = -1
    marker: int = -1


class Life(moments.Life):
    """Runs the life on a disk, and notes which appends and flushes have returned."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.issued: list[Issued] = []
        self.acknowledged = 0
        self.flushed = 0
        self.starts = frozenset({0})
        self.sequences = {7: 0, 8: 0}

    def expected(self) -> tuple[object, ...]:
        return (self.acknowledged, self.flushed, self.starts)

    def send(self, log: Log, producer_id: int, size: int = 40) -> None:
        """A batch of two records within a transaction."""
        sequence = self.sequences[producer_id]
        values = [b"%d " % (len(self.issued) + n) + b"t" * size for n in range(2)]
        self.issued += [Issued(v, producer_id, sequence + n) for n, v in enumerate(values)]
        self.sequences[producer_id] += 2
        client = Client(log, producer_id)
        client.sequence = sequence
        client.send(*values, timestamp_ms=NOW_MS + len(self.issued))
        self.acknowledged += 2

    def end(self, log: Log, producer_id: int, kind: int) -> None:
        """A marker."""
        self.issued.append(Issued(None, producer_id, marker=kind))
        append_batches(log, marker(producer_id, kind), now_ns=NOW_NS)
        self.acknowledged += 1

    def append(self, log: Log, count: int, size: int = 40) -> None:
        for _ in range(count):
            values = [b"%d " % (len(self.issued) + n) + b"x" * size for n in range(2)]
            self.issued += map(Issued, values)
            append(log, *values, timestamp_ms=NOW_MS + len(self.issued))
            self.acknowledged += 2

    def flush(self, log: Log) -> None:
        end = self.acknowledged
        log.flush()
        self.flushed = end

    def open(self, files: Files) -> LogManager:
        return LogManager.open(str(self.data), files=files, clock_ms=clock_ms)

    def close(self, manager: LogManager) -> None:
        manager.close()
        self.flushed = self.acknowledged

    def run(self, files: Files) -> None:
        manager = self.open(files)
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"internal.segment.bytes": "700"})
        manager.change_topic_settings("t", {"index.interval.bytes": "150"})
        manager.change_topic_settings("t", {"file.delete.delay.ms": "0"})
        self.append(log, 4)
        self.send(log, 7)
        self.send(log, 8)
        self.flush(log)
        manager.checkpoint()
        self.append(log, 2, size=2500)
        self.end(log, 8, COMMIT)
        log.roll(NOW_MS)
        self.end(log, 7, ABORT)
        self.send(log, 8)
        _ = log.history
        self.close(manager)
        manager = self.open(files)
        log = manager.log("t", 0)
        self.append(log, 3)
        self.send(log, 7)
        log.age_descriptors()
        log.age_descriptors()
        self.end(log, 8, ABORT)
        self.append(log, 2)
        self.end(log, 7, COMMIT)
        self.flush(log)
        # Head segments go one by one: a crash may leave the second.
        self.starts = frozenset(segment.base_offset for segment in log.segments[:3])
        remove_head(log, 2, NOW_MS)
        self.send(log, 7)
        remove = manager.sweep(NOW_MS)
        assert remove is not None
        remove()
        manager.checkpoint()
        self.end(log, 7, ABORT)
        self.send(log, 8)
        self.close(manager)


def check(life: Life, data: Path, found: Found) -> None:
    acknowledged, flushed, starts = found.expected
    at_least = flushed if found.lost else acknowledged
    if not found.lost:
        # Also before a start, nothing is damaged.
        assert verify(str(data)).faults == []
    with opened(data, Unsynced()) as manager:
        topic = manager.topics.get("t")
        if topic is None:
            assert at_least == 0
            return
        log = topic.partitions[0]
        start, end = log.log_start_offset, log.log_end_offset
        assert start in starts
        assert end >= at_least
        issued = dict(list(enumerate(life.issued))[start:end])
        assert {r.offset: r.value for r in log.records(isolation="read_uncommitted")} == {
            offset: each.value for offset, each in issued.items() if each.marker < 0
        }
        stable, hidden, unfinished = transactions(life.issued[:end])
        assert log.last_stable_offset == max(stable, start)
        assert {record.offset: record.value for record in log.records()} == {
            offset: each.value
            for offset, each in issued.items()
            if each.marker < 0 and offset < stable and offset not in hidden
        }
        check_producers(life, log)
        append(log, b"goes on")
        for producer_id in unfinished:
            abort_transaction(log, producer_id, NOW_NS)
    with opened(data, Unsynced()) as manager:
        assert list(manager.log("t", 0).records())[-1].value == b"goes on"


def transactions(issued: list[Issued]) -> tuple[int, set[int], set[int]]:
    """The last stable offset, the offsets that were aborted, and whose transactions are open."""
    open_at: dict[int, list[int]] = {}
    hidden: set[int] = set()
    for offset, each in enumerate(issued):
        if each.marker >= 0:
            offsets = open_at.pop(each.producer_id, [])
            hidden |= set(offsets) if each.marker == ABORT else set()
        elif each.producer_id >= 0:
            open_at.setdefault(each.producer_id, []).append(offset)
    stable = min((offsets[0] for offsets in open_at.values()), default=len(issued))
    return stable, hidden, set(open_at)


def check_producers(life: Life, log: Log) -> None:
    """The last batch of each producer, sent again, is known."""
    before = log.log_end_offset
    for producer_id in (7, 8):
        mine = [
            (offset, each)
            for offset, each in enumerate(life.issued[:before])
            if each.producer_id == producer_id and each.marker < 0
        ]
        if mine:
            (offset, first), (_, last) = mine[-2:]
            assert first.value is not None
            assert last.value is not None
            again = produced(
                [first.value, last.value], producer_id, first.sequence, transactional=True
            )
            (appended,) = append_batches(log, again, now_ns=NOW_NS)
            assert appended == (offset, offset + 1, True)
    assert log.log_end_offset == before


def test_a_kill_and_a_power_cut_at_every_operation(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    life.stops((0,)).judge(functools.partial(check, life), tmp_path / "found")


@pytest.mark.parametrize("seed", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_crash_during_recovery(tmp_path: Path, seed: int) -> None:
    """Recovery itself is interrupted at each of its operations, and then runs once more."""
    life = Life(tmp_path / "data")
    stops = life.stops((seed,))
    stops.found = stops.power_cuts
    again = during_opening(functools.partial(check, life), seeds=(seed + 2,), clock_ms=clock_ms)
    stops.judge(again, tmp_path / "found", one_of=10)
