"""Verifying logs that are in use: every fault is named, and what changes meanwhile is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from storage import Log, LogManager
from storage.errors import TaskCancelled
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.task import Task
from storage.verify.verify_log import verify_logs
from tests.storage.compaction.cleaned import clean, compacted, put, roll
from tests.storage.logs import NOW_MS, append, flip, remove_head

T = TypeVar("T")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    opened = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    yield opened
    opened.abandon()


@pytest.fixture
def log(manager: LogManager) -> Log:
    """Two segments, of four and two batches of a record each."""
    log = manager.create_topic("orders", 1).partitions[0]
    manager.change_topic_settings("orders", {"index.interval.bytes": "100"})
    for number in range(6):
        if number == 4:
            log.roll(NOW_MS)
        append(log, b"value %d" % number)
    return log


def faults(log: Log) -> list[str]:
    told = verify_logs([log], Task())
    found = [str(value) for name, value in told if name == "fault"]
    assert dict(told)["faults"] == len(found)
    return found


def position(segment: Segment, number: int) -> int:
    return list(SegmentReader(segment).batches())[number][0]


def test_a_whole_log(log: Log) -> None:
    task = Task()
    told = verify_logs([log], task)
    assert told == [("segments", 2), ("records", 6), ("bytes", log.size), ("faults", 0)]
    assert (task.done, task.total) == (log.size, log.size)


def test_every_damaged_batch(log: Log) -> None:
    first, active = log.segments
    places = [(first, 1), (first, 3), (active, 0)]
    for segment, number in places:
        flip(segment.log_path, position(segment, number) + 70)
    batches = [fault for fault in faults(log) if ".log: " in fault]
    assert len(batches) == len(places)
    for fault, (segment, number) in zip(batches, places, strict=True):
        assert fault.startswith(f"{segment.log_path}: position {position(segment, number)}: ")


def test_every_index_entry(log: Log) -> None:
    index = log.segments[0].log_path.replace(".log", ".index")
    flip(index, 7)
    (fault,) = faults(log)
    assert fault.startswith(index)
    flip(index, 7)
    assert faults(log) == []
    os.unlink(index)
    assert faults(log) == [f"{index}: the file is missing"]


def test_what_is_appended_and_deleted_meanwhile(manager: LogManager, log: Log) -> None:
    """Between one segment and the next the first ones leave, and the active one is closed."""

    class Meddling(Task):
        def advance(self, size: int) -> None:
            super().advance(size)
            append(log, b"more")
            log.roll(NOW_MS)
            if len(log.segments) > 3:
                remove_head(log, 1, NOW_MS)

    told = dict(verify_logs([log], Meddling()))
    assert told["faults"] == 0


def test_a_topic_that_is_deleted(manager: LogManager, log: Log) -> None:
    manager.delete_topic("orders")
    assert faults(log) == []


def test_it_can_be_cancelled(log: Log) -> None:
    class Impatient(Task):
        def advance(self, size: int) -> None:
            self.cancel()
            super().advance(size)

    with pytest.raises(TaskCancelled):
        verify_logs([log], Impatient())


def test_segments_that_a_cleaner_is_about_to_name(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        for value in (b"1", b"2"):
            put(log, (b"a", value))
            roll(log)

        seen = []

        def on_log_thread(function: Callable[[], T]) -> T:
            """In every turn of the owner, before and after it, all is in order."""
            seen.append(faults(log))
            outcome = function()
            seen.append(faults(log))
            return outcome

        clean(manager, log, Task(on_log_thread))
        assert [segment.base_offset for segment in log.segments] == [0, 2]
        assert seen
        assert not any(seen)


def test_a_file_that_is_gone_is_a_fault_beside_others(log: Log) -> None:
    gone, rest = log.segments
    gone.close_descriptors()
    os.unlink(gone.log_path)
    flip(rest.log_path, position(rest, 1) + 70)
    said, other = faults(log)
    reason = f"the file is missing, its size was {gone.size} bytes"
    assert said == f"{gone.log_path}: position 0: offset 0: {reason}"
    assert other.startswith(rest.log_path)
    assert log.lost_ranges == [(0, 3)]
    assert dict(verify_logs([log], Task()))["segments"] == 2
