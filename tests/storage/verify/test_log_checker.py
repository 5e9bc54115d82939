"""Damage behind a log's back is found, told and read around; what is whole stays whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Log, LogManager, Record, encode
from storage.errors import CorruptRecord, TaskCancelled
from storage.log.append import append_batches
from storage.log.listener import LogListener
from storage.record.control import COMMIT
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.task import Task
from storage.verify.log_checker import LogChecker, checker_facts
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, append, flip, readable, remove_head, values
from tests.storage.transactions import Client, marker


class Watcher(LogListener[Log]):
    def __init__(self) -> None:
        self.damaged_segments: list[Segment] = []

    def damaged(self, log: Log, segment: Segment) -> None:
        self.damaged_segments.append(segment)


class Checked:
    """A manager with one log, and its checker."""

    def __init__(self, data: Path) -> None:
        self.watcher = Watcher()
        self.now_ms = NOW_MS
        self.manager = LogManager.open(str(data), clock_ms=lambda: self.now_ms)
        self.manager.log_group.listeners.append(self.watcher)
        self.log = self.manager.create_topic("orders", 1).partitions[0]
        self.checker = LogChecker(self.manager.logs, lambda: self.now_ms)

    def append(self, *numbers: int) -> None:
        """A batch for each."""
        for number in numbers:
            append(self.log, b"value %d" % number)

    def check(self) -> None:
        self.checker.run_newest(Task())

    def facts(self) -> dict[str, object]:
        return dict(checker_facts(self.checker, [self.log]))


@pytest.fixture
def checked(tmp_path: Path) -> Iterator[Checked]:
    made = Checked(tmp_path)
    yield made
    made.manager.abandon()


def batch_at(segment: Segment, number: int) -> tuple[int, int]:
    """Where a batch lies: its position and size."""
    found = list(SegmentReader(segment).batches())[number]
    return found[0], found[1].size


def expected(count: int, *missing: int) -> list[bytes | None]:
    return [None if n in missing else b"value %d" % n for n in range(count)]


# Of a batch: its base offset, length, magic, CRC, record count, and what is in its record.
FIELDS = {"offset": 7, "length": 11, "long": 8, "magic": 16, "crc": 18, "count": 60, "value": 70}
# (No CRC covers an offset: one that is too high may have a gap before it.)
BITS = [
    (field, number) for field in FIELDS for number in (0, 3, 9) if (field, number) != ("offset", 0)
]


def test_what_is_whole_is_left_alone(checked: Checked) -> None:
    assert checked.facts() == {"checked": -1, "checked_bytes": 0, "damages": 0}
    checked.append(0, 1, 2)
    checked.check()
    size = checked.log.size
    assert checked.facts() == {"checked": NOW_MS, "checked_bytes": size, "damages": 0}
    assert len(checked.log.segments) == 1
    assert values(checked.log) == [b"value 0", b"value 1", b"value 2"]


def test_only_what_was_appended_since(checked: Checked) -> None:
    checked.append(0, 1)
    checked.check()
    first = checked.log.size
    flip(checked.log.active.log_path, 70)
    checked.append(2)
    checked.now_ms += 1000
    checked.check()
    assert checked.facts() == {
        "checked": NOW_MS + 1000,
        "checked_bytes": checked.log.size,
        "damages": 0,
    }
    assert checked.log.size > first


@pytest.mark.parametrize(("field", "number"), BITS)
def test_a_bit_of_the_active_segment(checked: Checked, field: str, number: int) -> None:
    """Appends roll, readers fail there only, all other records can be read."""
    log = checked.log
    checked.append(*range(10))
    damaged = log.active
    position, size = batch_at(damaged, number)
    flip(damaged.log_path, position + FIELDS[field])
    checked.check()
    assert [(place.start, place.end) for place in damaged.damages] == [(position, position + size)]
    assert (damaged.damages[0].first_offset, damaged.damages[0].next_offset) == (number, number + 1)
    assert log.segments[0] is damaged
    assert damaged.sealed
    assert log.active is not damaged
    assert checked.watcher.damaged_segments == [damaged]
    assert log.counters.damages == 1
    checked.append(*range(10, 15))
    checked.check()
    assert len(log.segments) == 2
    assert readable(log) == expected(15, number)
    with pytest.raises(CorruptRecord, match="damaged") as error:
        next(log.records(number))
    assert error.value.path == damaged.log_path
    assert (error.value.position, error.value.offset) == (position, number)
    with pytest.raises(CorruptRecord):
        log.read(number, 1000)
    if number:
        data = log.read(0, 1 << 20)
        assert len(data) == position


def test_damage_is_said_once(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    checked.append(*range(5))
    segment = checked.log.active
    position, _ = batch_at(segment, 1)
    flip(segment.log_path, position + 70)
    checked.check()
    checked.checker.run_sealed(Task())
    checked.check()
    (line,) = caplog.messages
    assert line.startswith("orders/0: damaged: offsets 1 to 1 are damaged")
    assert segment.log_path in line
    assert checked.log.counters.damages == 1
    facts = checked.facts()
    assert facts["damages"] == 1
    assert segment.log_path in str(facts["damage"])


def test_a_file_that_is_too_short(checked: Checked) -> None:
    checked.append(*range(6))
    segment = checked.log.active
    position, _ = batch_at(segment, 4)
    os.truncate(segment.log_path, position + 20)
    checked.check()
    assert [place[:4] for place in segment.damages] == [(position, segment.size, 4, 6)]
    with pytest.raises(OSError, match="another process has truncated the file"):
        checked.append(6)
    checked.manager.rescue(checked.log, Task())
    checked.append(6, 7)
    assert readable(checked.log) == expected(8, 4, 5)


def test_a_sealed_segment(checked: Checked) -> None:
    checked.append(*range(6))
    checked.log.roll(NOW_MS)
    checked.append(6, 7)
    checked.check()
    sealed = checked.log.segments[0]
    position, _ = batch_at(sealed, 5)
    flip(sealed.log_path, position + 66)
    checked.check()
    assert checked.facts()["damages"] == 0
    checked.checker.run_sealed(Task())
    assert [place[:4] for place in sealed.damages] == [(position, sealed.size, 5, 6)]
    assert len(checked.log.segments) == 2
    assert readable(checked.log) == expected(8, 5)


def test_what_was_closed_since_is_checked_to_its_end(checked: Checked) -> None:
    checked.append(0, 1)
    checked.check()
    checked.append(2, 3)
    closed = checked.log.active
    checked.log.roll(NOW_MS)
    checked.append(4, 5)
    flip(closed.log_path, batch_at(closed, 3)[0] + 70)
    checked.check()
    assert [place[2:4] for place in closed.damages] == [(3, 4)]
    assert len(checked.log.segments) == 2
    assert readable(checked.log) == expected(6, 3)


def test_large_batches_and_those_of_many_records(checked: Checked) -> None:
    """Larger than what is read at a time; what the size says is not believed where it is wrong."""
    log = checked.log
    large = [Record(0, NOW_MS, 0, None, os.urandom(900_000))]
    for _ in range(4):
        log.append(bytearray(encode(large)), now_ns=NOW_NS)
    append(log, *(b"small %d" % n for n in range(100)))
    segment = log.active
    positions = [batch_at(segment, number)[0] for number in range(5)]
    flip(segment.log_path, positions[1] + 500_000)
    flip(segment.log_path, positions[2] + 9)
    checked.check()
    assert [place[:4] for place in segment.damages] == [(positions[1], positions[3], 1, 3)]
    assert next(log.records(3)).value == large[0].value
    assert [record.value for record in log.records(50)][-1] == b"small 99"


def test_it_can_be_cancelled(checked: Checked) -> None:
    checked.append(*range(3))
    task = Task()
    task.cancel()
    with pytest.raises(TaskCancelled):
        checked.checker.run_newest(task)
    with pytest.raises(TaskCancelled):
        checked.checker.run_sealed(task)


def test_a_topic_that_is_deleted_meanwhile(checked: Checked) -> None:
    checked.append(*range(3))
    checked.check()
    checked.manager.delete_topic("orders")
    checked.check()
    assert checked.facts()["checked_bytes"] == 0


def test_the_first_batch_of_an_open_transaction(checked: Checked) -> None:
    """Where it lies is what holds back the last stable offset; its content is not asked for."""
    log = checked.log
    checked.append(0)
    client = Client(log, 7)
    client.send(b"open")
    segment = log.active
    position, size = batch_at(segment, 1)
    flip(segment.log_path, position + size - 2)
    checked.check()
    assert [place[:4] for place in segment.damages] == [(position, position + size, 1, 2)]
    checked.append(2)
    log.transactions.stabilize()
    assert (log.last_stable_offset, segment.stable_size) == (1, position)
    append_batches(log, marker(7, COMMIT), now_ns=NOW_NS)
    assert log.last_stable_offset == 4
    assert next(log.records(0)).value == b"value 0"
    assert values(log, 2) == [b"value 2"]


def test_what_is_damaged_can_be_deleted(checked: Checked) -> None:
    checked.append(*range(5))
    flip(checked.log.active.log_path, batch_at(checked.log.active, 1)[0] + 70)
    checked.check()
    checked.append(5)
    remove_head(checked.log, 1, NOW_MS)
    checked.check()
    assert checked.facts()["damages"] == 0
    assert values(checked.log) == [b"value 5"]


def test_a_disk_that_refuses_the_new_segment(tmp_path: Path) -> None:
    """It is tried again with what is appended next; reading is refused at once."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = manager.create_topic("orders", 1).partitions[0]
    for number in range(5):
        append(log, b"value %d" % number)
    checker = LogChecker(manager.logs, lambda: NOW_MS)
    flip(log.active.log_path, batch_at(log.active, 2)[0] + 70)
    disk.fail_next("open", errno.ENOSPC, suffix="5.log")
    checker.run_newest(Task())
    damaged = log.active
    assert readable(log) == expected(5, 2)
    checker.run_newest(Task())
    assert log.active is not damaged
    assert len(log.segments) == 2
    manager.abandon()


def test_an_index_that_cannot_be_opened_keeps_no_segment(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = manager.create_topic("orders", 1).partitions[0]
    append(log, b"value")
    log.roll(NOW_MS)
    append(log, b"value")
    log.flush()
    sealed = log.segments[0]
    sealed.close()
    disk.fail_next("open", errno.EIO, suffix=".index")
    checker = LogChecker(manager.logs, lambda: NOW_MS)
    checker.run_sealed(Task())
    assert checker.bytes_checked(log) == 0
    assert sealed.leases == 0
    manager.abandon()
