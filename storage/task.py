"""Long work: how far it is, whether it shall stop, and what of it only the owner may do.

Work that waits for the disk or computes for long (compaction, retention, verification) runs in a
worker thread.  It is handed a ``Task``: what touches a log's state goes through ``by_owner``, which
carries it out on the thread that owns the logs; between two of its steps it asks ``check`` whether
it has been cancelled.  Who only reads (a control file, a progress bar) may do so from any thread.

Without an owner elsewhere, as on the command line, ``by_owner`` is a plain call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from storage.errors import TaskCancelled

T = TypeVar("T")

_PAUSE_S = 0.002
"""Shorter pauses of a throttled task are left until they have added up."""


class ByOwner(Protocol):
    """Calls a function on the thread that owns the logs, and returns what it returns."""

    def __call__(self, function: Callable[[], T], /) -> T: ...


def call(function: Callable[[], T]) -> T:
    """``ByOwner`` where the worker is the owner."""
    return function()


class Task:
    """See the module.  ``done`` and ``total`` count bytes (0: not known yet); ``phase`` is what is
    being done now, for people.  ``bytes_per_second``: not faster than that; None as fast as it can.
    """

    def __init__(
        self,
        by_owner: ByOwner = call,
        *,
        bytes_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.by_owner = by_owner
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
        """What follows is ``phase``, of ``total`` bytes.  TaskCancelled."""
        self.check()
        self.phase = phase
        self.done = 0
        self.total = total

    def advance(self, size: int) -> None:
        """``size`` bytes more are done; waits where that was too fast.  TaskCancelled."""
        self.done += size
        self.pace(size)

    def pace(self, size: int) -> None:
        """The same of bytes that do not count as progress: written ones."""
        if self._rate is not None:
            self._throttle(size, self._rate)
        self.check()

    def _throttle(self, size: int, rate: float) -> None:
        """Pause until the bytes since the last pause have taken as long as they may."""
        self._passed += size
        now = self._clock()
        pause = self._throttled_from + self._passed / rate - now
        if pause > _PAUSE_S:
            self._cancelled.wait(min(pause, threading.TIMEOUT_MAX))
            self._throttled_from, self._passed = self._clock(), 0
        elif pause < -1:
            # What it was too slow by does not entitle it to more later.
            self._throttled_from, self._passed = now, 0

    def cancel(self) -> None:
        """Have it stop at its next step, which leaves everything as if it had not begun."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """TaskCancelled if it shall stop."""
        if self._cancelled.is_set():
            raise TaskCancelled("cancelled")
