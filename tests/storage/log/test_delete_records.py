"""``retain.delete_records``: how far, when it is durable, open transactions."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from storage import Log, LogListener, LogManager
from storage.directory.retain import HIGH_WATERMARK, delete_records
from storage.errors import (
    LogClosed,
    OffsetOutOfRange,
    ReadOnlyLog,
)
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, append, opened, values
from tests.storage.segmented import (
    DAY_MS,
    Turns,
    bases,
    crashing,
    log_starts,
    run,
    segmented,
)

T = TypeVar("T")


class Watcher(LogListener[Log]):
    """Records the log starts and removals that the log reports."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def log_start_moved(self, log: Log) -> None:
        self.told.append(log.log_start_offset)

    def removing(self, log: Log, segments: object) -> None:
        assert isinstance(segments, tuple)
        self.told.append([segment.base_offset for segment in segments])


@pytest.mark.parametrize(
    ("offset", "start", "left"),
    [
        (1, 1, [b"b0", b"a1", b"b1"]),
        (2, 2, [b"a1", b"b1"]),
        (3, 3, [b"b1"]),
        (4, 4, []),
        (HIGH_WATERMARK, 4, []),
    ],
)
def test_delete_records(tmp_path: Path, offset: int, start: int, left: list[bytes]) -> None:
    watcher = Watcher()
    with crashing(tmp_path) as manager:
        manager.log_group.listeners.append(watcher)
        log = segmented(manager, count=2)
        assert delete_records(manager, log, offset, Task()) == start
        assert (log.log_start_offset, values(log)) == (start, left)
        assert log.durability.recovery_point >= start
        assert bases(log) == [0, 2, 4][: 3 if start == 4 else 2], "they go with the next retention"
        assert log_starts(manager) == {("t", 0): start}
        assert watcher.told == [start]
        for already in (0, start):
            assert delete_records(manager, log, already, Task()) == start
        assert watcher.told == [start]
        with pytest.raises(OffsetOutOfRange):
            log.read(start - 1, 100)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (log.log_start_offset, values(log)) == (start, left)
        assert run(manager, NOW_MS).offsets == 0
        assert bases(log) == {1: [0, 2], 4: [4]}.get(start, [2])
        assert append(log, b"next") == 4
        assert values(log) == [*left, b"next"]


def test_a_time_below_the_log_start_leads_to_what_is_left(tmp_path: Path) -> None:
    """Also while segments that hold nothing else wait for the next retention."""
    with opened(tmp_path) as manager:
        log = segmented(manager, count=3)
        delete_records(manager, log, 4, Task())
        assert bases(log) == [0, 2, 4]
        last_ms = NOW_MS + 2 * DAY_MS
        for time_ms in (NOW_MS - 1, NOW_MS, NOW_MS + DAY_MS, last_ms):
            assert log.reader.offset_for_timestamp(time_ms) == (last_ms, 4)


def test_a_deleted_record_with_a_later_time_does_not_end_the_search(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"deleted", timestamp_ms=NOW_MS + 7)
        append(log, b"a", timestamp_ms=NOW_MS)
        log.roll(NOW_MS)
        append(log, b"b", timestamp_ms=NOW_MS + 9)
        delete_records(manager, log, 1, Task())
        found = [log.reader.offset_for_timestamp(NOW_MS + n) for n in (0, 1, 7, 9, 10)]
        assert found == [(NOW_MS, 1), *[(NOW_MS + 9, 2)] * 3, None]


def test_offsets_that_cannot_be_deleted_to(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        delete_records(manager, log, 5, Task())
        for offset in (9, -2, 2**63):
            with pytest.raises(OffsetOutOfRange) as raised:
                delete_records(manager, log, offset, Task())
            assert (raised.value.offset, raised.value.log_start) == (offset, 5)
        assert log.log_start_offset == 5


def test_delete_records_of_a_log_that_takes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        with (
            LogManager.open(str(tmp_path), read_only=True) as reader,
            pytest.raises(ReadOnlyLog),
        ):
            delete_records(reader, reader.log("t", 0), 3, Task())
        with pytest.raises(LogClosed):
            delete_records(manager, log, 3, Task(Turns(1, lambda: manager.delete_topic("t"))))
        with pytest.raises(LogClosed):
            delete_records(manager, log, 3, Task())


def test_a_log_start_is_written_although_other_states_are_noted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)

        def on_log_thread(function: Callable[[], T], /) -> T:
            manager.note(manager.logs())
            value = function()
            manager.note(manager.logs())
            return value

        assert delete_records(manager, log, 3, Task(on_log_thread)) == 3
        assert log_starts(manager) == {("t", 0): 3}
        manager.write_checkpoints()
        assert log_starts(manager) == {("t", 0): 3}


def test_a_log_start_that_could_not_be_written_is_given_up(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = segmented(manager)
        disk.fail_next("pwrite", errno.EIO, suffix="log-start-offset-checkpoint.tmp")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            delete_records(manager, log, 3, Task())
        assert log.log_start_offset == 0
        assert log_starts(manager) == {}
