"""A disk that fails, or is full, at each operation of an adoption.

Earlier batches are there, the batch is there whole or not at all, and no answer is a wrong yes.
After the next request, at once or after a restart, the batch is there once.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

import storage.adopt.early_flush
import storage.log.staged_batches
from storage import LogManager
from storage.adopt.staged import AdoptRequest
from storage.errors import StorageError
from storage.task import Task
from tests.crash.failing_disk import FailingDisk, each_failure
from tests.crash.moments import Unsynced
from tests.storage.logs import NOW_MS, append, clock_ms, opened, values, write_settings
from tests.storage.staging import staged

A, B = ("a", 0), ("b", 0)
ROWS = {A: [[b"1", b"2", b"3"]], B: [[b"4" * 60, b"5"]]}


def build(data: Path) -> Path:
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240)
    manager = LogManager.open(str(data), files=Unsynced(), clock_ms=clock_ms)
    for name in "ab":
        manager.create_topic(name, 1)
        manager.change_topic_settings(name, {"internal.segment.bytes": "300"})
    request = staged(Unsynced(), str(data), "q", 0, {A: [[b"0"]], B: [[b"0"]]})
    manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)
    append(manager.log("a", 0), b"other")
    manager.close()
    return data


def outcome_of(manager: LogManager) -> bool:
    """Whether the batch is there, in all of its partitions; none of it else."""
    found = [[v for v in values(manager.log(*each)) if v not in (b"0", b"other")] for each in ROWS]
    expected = [[value for task in tasks for value in task] for tasks in ROWS.values()]
    assert found in ([[], []], expected)
    return found == expected


def ask_after_restart(data: Path, answered: bool, failed: str) -> None:
    """The query is started again and asks for its batch, which is then there once."""
    with opened(data, Unsynced()) as manager:
        before = outcome_of(manager)
        last = staged(Unsynced(), str(data), "q", 1, ROWS, run="next")
        outcome = manager.adopter.adopt(last, Task(), lambda: NOW_MS * 1_000_000)
        assert outcome.duplicate == before, failed
        assert before or not answered, failed
        assert outcome_of(manager), failed
        assert values(manager.log("a", 0))[:2] == [b"0", b"other"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is read in several pieces, and flushed before all of it is there."""
    monkeypatch.setattr(storage.log.staged_batches, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(storage.adopt.early_flush, "EARLY_BYTES", 200)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_nobody_asks_before_the_restart(tmp_path: Path, error: int) -> None:
    """The next request would repair the files that a failure has left, but the process ends."""
    data = tmp_path / "data"
    for at, disk in each_failure(build(tmp_path / "built"), data):
        _, _, answered = ask(data, disk, error, at)
        disk.kill()
        ask_after_restart(data, answered, disk.failed)
    assert at > 10


def ask(
    data: Path, disk: FailingDisk, error: int, at: int
) -> tuple[LogManager, AdoptRequest, bool]:
    """Ask for a batch, and fail there; return whether the answer was yes."""
    manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
    request = staged(disk, str(data), "q", 1, ROWS)
    disk.fail_from_now(error, at)
    answered = False
    with contextlib.suppress(OSError):
        manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)
        answered = True
    disk.fail_at = 0
    return manager, request, answered


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_all_or_nothing_and_once_when_asked_again(tmp_path: Path, error: int) -> None:
    data = tmp_path / "data"
    outcomes: set[tuple[bool, bool]] = set()
    unsettled_after: set[str] = set()
    for at, disk in each_failure(build(tmp_path / "built"), data):
        manager, request, answered = ask(data, disk, error, at)
        if manager.adopter.has_unwritten_markers():
            unsettled_after.add(disk.failed.split()[0])
            with contextlib.suppress(OSError):
                manager.adopter.settle(Task(), lambda: NOW_MS * 1_000_000)
        there = outcome_of(manager)
        # After a yes, a marker may still be missing. A no may come before the outcome is known.
        if not answered:
            assert not there, disk.failed
        outcomes.add((answered, there))
        try:
            again = manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)
            assert again.duplicate == answered, disk.failed
            assert outcome_of(manager), disk.failed
        except (OSError, StorageError):
            # After a failed fsync a log takes nothing more; and so it is when it is not known
            # what the memory on the disk says.
            assert error == errno.EIO, disk.failed
        manager.abandon()
        ask_after_restart(data, answered, disk.failed)
    assert {(False, False), (True, True)} <= outcomes
    assert at > 10
    assert "pwrite" in unsettled_after
