"""Long work: how far it is, whether it is cancelled, and the steps that only the owner may take.

Work that waits for the disk or computes for long (compaction, retention, verification) runs in a
worker thread. It gets a `Task`: what touches a log's state goes through `on_log_thread`, which runs
it on the thread that owns the logs; between two steps the work calls `check`, which raises if it
was cancelled. Any thread may read a task, as a control file or a progress bar does.

Where the worker's thread owns the logs, as on the command line, `on_log_thread` is a plain call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from storage.errors import TaskCancelled

T = TypeVar("T")

_PAUSE_S = 0.002
"""Shorter pauses of a throttled task are put off until they add up."""


class OnLogThread(Protocol):
    """Calls a function on the thread that owns the logs and returns its result."""

    def __call__(self, function: Callable[[], T], /) -> T: ...


def directly(function: Callable[[], T]) -> T:
    """`OnLogThread` where this thread owns the logs."""
    return function()


class Task:
    """See the module. `done` and `total` count bytes (0: not known yet); `phase` names, for people,
    what is being done. `bytes_per_second`: its limit; None: none.
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
        """Figures of the work so far, by name, for people."""
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
        """Count `size` bytes as done; wait where that was too fast. Errors: TaskCancelled."""
        self.done += size
        self.pace(size)

    def pace(self, size: int) -> None:
        """Wait as `advance`, for bytes that are no progress: written ones. Errors:
        TaskCancelled.
        """
        if self._rate is not None:
            self._throttle(size, self._rate)
        self.check()

    def _throttle(self, size: int, rate: float) -> None:
        """Pause until the bytes since the last pause have taken as long as they should."""
        self._passed += size
        now = self._clock()
        pause = self._throttled_from + self._passed / rate - now
        if pause > _PAUSE_S:
            self._cancelled.wait(min(pause, threading.TIMEOUT_MAX))
            self._throttled_from, self._passed = self._clock(), 0
        elif pause < -1:
            # Being too slow for a while allows no more bytes later.
            self._throttled_from, self._passed = now, 0

    def cancel(self) -> None:
        """Stop the work at its next step, as if it had not begun."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Errors: TaskCancelled if the work is cancelled."""
        if self._cancelled.is_set():
            raise TaskCancelled("cancelled")
