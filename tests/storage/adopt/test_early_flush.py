from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import storage.adopt.early_flush
import storage.log.staged_batches
from storage import LogManager
from storage.errors import NoThread, TaskCancelled
from storage.task import Task
from storage.threads import submit
from tests.storage.logs import NOW_NS, opened, values
from tests.storage.staging import adopted, staged

A, B = ("a", 0), ("b", 0)
ROWS = {A: [[b"%d" % n for n in range(60)], [b"x" * 900]], B: [[b"b%d" % n for n in range(60)]]}
A_VALUES = [value for task in ROWS[A] for value in task]


class Watched(Task):
    """How much of the logs was on the disk when all was appended, and was flushed once more."""

    def __init__(self, manager: LogManager) -> None:
        super().__init__()
        self._manager = manager
        self.durable: list[int] = []

    def begin(self, phase: str, total: int) -> None:
        if phase == "flushing":
            logs = [self._manager.log(*each) for each in (A, B)]
            self.durable = [log.durability.recovery_point for log in logs]
            # The last flush is still to come.
            assert all(log.durability.recovery_point <= log.log_end_offset for log in logs)
        super().begin(phase, total)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with opened(tmp_path) as manager:
        for name in "ab":
            manager.create_topic(name, 1)
    monkeypatch.setattr(storage.log.staged_batches, "_CHUNK_BYTES", 300)
    monkeypatch.setattr(storage.adopt.early_flush, "EARLY_BYTES", 1000)
    return tmp_path


def no_thread(*_: object) -> None:
    raise NoThread


def and_wait(pool: ThreadPoolExecutor, run: Callable[[], None]) -> Future[None]:
    """Run it in the pool, to its end: while a flush runs no other is begun."""
    future = submit(pool, run)
    future.exception()
    return future


@pytest.mark.parametrize("threads", [True, False])
def test_much_is_on_the_disk_before_all_is_appended(
    data: Path, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(storage.adopt.early_flush, "submit", and_wait if threads else no_thread)
    with opened(data) as manager:
        task = Watched(manager)
        manager.adopter.adopt(staged(manager.files, str(data), "q", 0, ROWS), task, lambda: NOW_NS)
        assert all(task.durable)
        assert all(manager.log(*each).counters.flush_failures == 0 for each in (A, B))
    with opened(data) as manager:
        assert values(manager.log(*A)) == A_VALUES


def test_little_is_flushed_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.adopt.early_flush, "EARLY_BYTES", 1 << 20)
    with opened(data) as manager:
        task = Watched(manager)
        manager.adopter.adopt(staged(manager.files, str(data), "q", 0, ROWS), task, lambda: NOW_NS)
        assert task.durable == [0, 0]


def test_whoever_is_cancelled_leaves_no_flush_behind(data: Path) -> None:
    """The flush has ended, and its log knows that: a close finds no thread in the files."""

    class Stopped(Task):
        appended = 0

        def advance(self, size: int) -> None:
            if self.phase == "adopting":
                self.appended += 1
                if self.appended == 8:
                    self.cancel()
            super().advance(size)

    with opened(data) as manager:
        request = staged(manager.files, str(data), "q", 0, ROWS)
        with pytest.raises(TaskCancelled):
            manager.adopter.adopt(request, Stopped(), lambda: NOW_NS)
        logs = [manager.log(*each) for each in (A, B)]
        begun = sum(log.durability.plans_started for log in logs)
        assert logs[0].counters.flushes.count == begun > 0
        assert not adopted(manager, request).duplicate
        assert values(manager.log(*A)) == A_VALUES
