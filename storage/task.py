"""Long work: its progress, its cancellation, and its steps on the log thread.

Work that waits for the disk or computes for long (compaction, retention, verification) runs in a
worker thread and gets a `Task`. It reads or changes a log's state through `on_log_thread`, which
runs a function on the thread that owns the logs. Between two steps it calls `check`, which raises
if the work was cancelled. Any thread may read a task, for a control file or a progress bar.

If the worker's thread owns the logs, as on the command line, `on_log_thread` is a plain call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from storage.errors import TaskCancelled

T = TypeVar("T")

RENAMED_PER_CALL = 32
"""Segments whose files are renamed per call on the log thread, some 50 µs each."""
_PAUSE_S = 0.002
"""Shorter pauses of a throttled task are postponed until they add up."""


class OnLogThread(Protocol):
    """Calls a function on the thread that owns the logs and returns its result."""

    def __call__(self, function: Callable[[], T], /) -> T: ...


def directly(function: Callable[[], T]) -> T:
    """Call a function on this thread, which owns the logs."""
    return function()


def in_chunks(segments: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield `segments` in parts whose files can be renamed in one call on the log thread."""
    for at in range(0, len(segments), RENAMED_PER_CALL):
        yield segments[at : at + RENAMED_PER_CALL]


class Task:
    """Progress and limits of long work.

    `done` and `total` count bytes (0: not known yet); `phase` names the present phase for users.
    `bytes_per_second`: the limit; None: no limit.
    """

    def __init__(
        self,
        on_log_thread: OnLogThread = directly,
        *,
        bytes_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_log_thread = on_log_thread
        self.phase = ""
        self.done = 0
        self.total = 0
        self.counts: dict[str, int] = {}
        """Results so far, by name, for users."""
        self._rate = bytes_per_second
        self._clock = clock
        self._cancelled = threading.Event()
        self._throttled_from = clock()
        self._passed = 0

    def begin(self, phase: str, total: int) -> None:
        """Begin a phase of `total` bytes. Errors: TaskCancelled."""
        self.check()
        self.phase = phase
        self.done = 0
        self.total = total

    def advance(self, size: int) -> None:
        """Count `size` bytes as done, and wait if that was too fast. Errors: TaskCancelled."""
        self.done += size
        self.pace(size)

    def pace(self, size: int) -> None:
        """Wait if these bytes were too fast; they are no progress. Errors: TaskCancelled."""
        if self._rate is not None:
            self._throttle(size, self._rate)
        self.check()

    def _throttle(self, size: int, rate: float) -> None:
        """Pause until the bytes since the last pause have taken their share of time."""
        self._passed += size
        now = self._clock()
        pause = self._throttled_from + self._passed / rate - now
        if pause > _PAUSE_S:
            self._cancelled.wait(min(pause, threading.TIMEOUT_MAX))
            self._throttled_from, self._passed = self._clock(), 0
        elif pause < -1:
            # Slow work does not earn a faster rate later.
            self._throttled_from, self._passed = now, 0

    def cancel(self) -> None:
        """Stop the work at its next step; it leaves no change."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Check for a cancellation. Errors: TaskCancelled."""
        if self._cancelled.is_set():
            raise TaskCancelled("cancelled")
