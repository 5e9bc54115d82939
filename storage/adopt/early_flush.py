"""Flushes a log while more is appended to it: the disk works from the beginning, not from the end.

A copy of a gibibyte takes a second, and so does a good disk; one after the other takes two. The
caller flushes the log once more at the end, which then has little left to do.

Threads: the appending thread calls everything here; the flush itself runs on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from storage.errors import NoThread, StorageError
from storage.log.flush import FlushPlan
from storage.log.log import Log
from storage.task import Task
from storage.threads import submit

EARLY_BYTES = 32 << 20
"""The appended bytes after which a log is flushed: a flush of a few costs as much."""


class EarlyFlush:
    """One flush at a time; while it runs, none is begun."""

    def __init__(self, task: Task, pool: ThreadPoolExecutor) -> None:
        self._task = task
        self._pool = pool
        self._unflushed: dict[Log, int] = {}
        self._running: tuple[FlushPlan, Future[None]] | None = None

    def appended(self, log: Log, size: int) -> None:
        """Note that `size` bytes were appended. Errors: those of a finished flush."""
        self._unflushed[log] = self._unflushed.get(log, 0) + size
        if self._unflushed[log] < EARLY_BYTES:
            return
        if self._running is not None:
            if not self._running[1].done():
                return
            self.wait()
        self._unflushed[log] = 0
        plan = self._task.on_log_thread(log.durability.start_flush)
        try:
            self._running = plan, submit(self._pool, plan.run)
        except NoThread:
            self._finish(plan, plan.run)

    def wait(self) -> None:
        """Wait until the last flush has ended. Errors: those of the flush."""
        if self._running is None:
            return
        plan, future = self._running
        self._running = None
        self._finish(plan, future.result)

    def _finish(self, plan: FlushPlan, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            self._task.on_log_thread(plan.finish)


@contextmanager
def early_flush(task: Task) -> Generator[EarlyFlush]:
    """Flush early during a block; no flush runs after it. Errors: those of the last one."""
    with ThreadPoolExecutor(1, "flushing") as pool:
        flush = EarlyFlush(task, pool)
        try:
            yield flush
        except BaseException:
            with suppress(StorageError, OSError):
                flush.wait()
            raise
        flush.wait()
