"""A disk that fails, or is full, at each operation of retention, delete-records, topic deletion.

The log then starts where it did or where it was about to, has every record after that, can be read
and appended to; a restart finds no more than was there, and what is tried again succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.directory.retain import delete_records, retain
from storage.task import Task
from tests.crash.failing_disk import each_failure
from tests.crash.moments import Unsynced
from tests.log_check import check_log
from tests.storage.logs import NOW_MS, append, clock_ms, opened, values, write_settings

DELAY_MS = 1000
COUNT = 12
START = 5


def build(data: Path) -> Path:
    """A topic of two partitions with twelve records each in several segments, and another one."""
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240, log_index_interval_bytes=100)
    manager = LogManager.open(str(data), files=Unsynced(), clock_ms=clock_ms)
    append(manager.create_topic("other", 1).partitions[0], b"other")
    manager.create_topic("t", 2)
    manager.change_topic_settings("t", {"internal.segment.bytes": "300"})
    manager.change_topic_settings("t", {"file.delete.delay.ms": str(DELAY_MS)})
    for log in manager.topic("t").partitions.values():
        for n in range(COUNT):
            append(log, b"%d" % n * 10, timestamp_ms=NOW_MS - COUNT + n)
    manager.close()
    return data


def by_retention(manager: LogManager, log: Log) -> bool:
    """Everything that is older than five milliseconds, as far as segments go."""
    manager.change_topic_settings("t", {"retention.ms": "5"})
    outcome = retain(manager, [log], Task())
    return not outcome.notes


def by_offset(manager: LogManager, log: Log) -> bool:
    return delete_records(manager, log, START, Task()) == START


def rest_from(start: int) -> list[bytes | None]:
    return [b"%d" % n * 10 for n in range(start, COUNT)]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("delete", [by_retention, by_offset])
def test_the_start_is_the_old_one_or_the_new_one(
    tmp_path: Path, error: int, delete: Callable[[LogManager, Log], bool]
) -> None:
    data = tmp_path / "data"
    moved: set[int] = set()
    for at, disk in each_failure(build(tmp_path / "built"), data):
        manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
        log = manager.log("t", 0)
        # Not all of what goes has been flushed.
        tail = rest_from(0)[-1]
        append(log, tail)
        disk.fail_from_now(error, at)
        try:
            done = delete(manager, log)
        except OSError:
            done = False
        disk.fail_at = 0
        start = log.log_start_offset
        moved.add(start)
        assert values(log) == [*rest_from(start), tail], disk.failed
        assert check_log(log) == [], disk.failed
        assert not done or start > 0
        if log.flush_error is None:
            append(log, b"later")
        found = values(log)
        disk.kill()
        check_restart(data, start, found, delete, disk.failed)
    assert at > 8
    assert len(moved) == 2


def check_restart(
    data: Path,
    start: int,
    found: list[bytes | None],
    delete: Callable[[LogManager, Log], bool],
    failed: str,
) -> None:
    """Deleted records stay deleted. A deletion that failed can be tried again."""
    with opened(data, Unsynced()) as manager:
        log = manager.log("t", 0)
        assert log.log_start_offset >= start, failed
        assert values(log) == found[log.log_start_offset - start :], failed
        assert delete(manager, log) or log.log_start_offset > 0
        assert log.log_start_offset > 0
        remove = manager.sweep(NOW_MS + DELAY_MS)
        if remove is not None:
            remove()
        assert not list((data / "t-0").glob("*.deleted"))
        assert values(manager.log("t", 1)) == rest_from(0)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_topic_is_there_or_gone(tmp_path: Path, error: int) -> None:
    data = tmp_path / "data"
    for at, disk in each_failure(build(tmp_path / "built"), data):
        manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
        disk.fail_from_now(error, at)
        with contextlib.suppress(OSError):
            manager.delete_topic("t")
        disk.fail_at = 0
        if "t" in manager.topics:
            # A topic that was not deleted can be read, and deleted once more.
            for log in manager.topic("t").partitions.values():
                assert values(log) == rest_from(0)
            manager.delete_topic("t")
        assert "t" not in manager.topics
        assert values(manager.log("other", 0)) == [b"other"]
        append(manager.create_topic("t", 1).partitions[0], b"new")
        disk.kill()
        with opened(data, Unsynced()) as again:
            assert values(again.log("t", 0)) == [b"new"], disk.failed
            assert values(again.log("other", 0)) == [b"other"]
            remove = again.sweep(NOW_MS + DELAY_MS)
            assert remove is not None
            remove()
            assert not [name for name in os.listdir(data) if name.endswith("-delete")]
    assert at > 5
