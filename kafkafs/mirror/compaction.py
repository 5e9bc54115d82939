"""Compacts the copy of `__consumer_offsets`, and no other log, on a worker thread.

The worker changes logs only by calls that the mirror's thread makes for it between two rounds of
answers (`Compaction.run`). So records are copied meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

from storage import paths
from storage.compaction.log_cleaner import LogCleaner
from storage.log.log import Log
from storage.manager import LogManager
from storage.task import Task

# The longest time that calls may take in a round, and the pause between two calls of a series.
_ROUND_S: Final = 0.3
_SOON_S: Final = 0.005

T = TypeVar("T")


class Compaction:
    """Cleans one log after the other.

    A log whose cleaning fails waits for the next start. If an error has interrupted its swap of
    segments, it waits for log.cleaner.backoff.ms only: until the swap is finished, the log cannot
    be truncated.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._cleaner = LogCleaner(manager)
        self._calls = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]()
        self._task = Task(self._on_log_thread)
        self._worker: Thread | None = None
        # When the cleaning of logs has failed.
        self._failed_ms: dict[Log, int] = {}
        self._next_ms = 0

    def run(self) -> None:
        """Make the calls of the worker. Every log.cleaner.backoff.ms, look for work."""
        end = time.monotonic() + _ROUND_S
        is_asked = not self._calls.empty()
        while is_asked and time.monotonic() < end:
            is_asked = self._call(_SOON_S)
        now_ms = self._manager.monotonic_ms()
        if now_ms >= self._next_ms and not self.begin():
            self._next_ms = now_ms + self._backoff_ms

    def begin(self) -> bool:
        """Begin to clean a log, unless one is being cleaned. Return False if none is due."""
        if self._worker is not None and self._worker.is_alive():
            return True
        self._worker = None
        compacted = self._manager.topics.compacted
        others = {log for log in compacted if log.topic != paths.CONSUMER_OFFSETS}
        now_ms = self._manager.clock_ms()
        log = None
        if self._manager.settings.broker.log_cleaner_enable:
            log = self._cleaner.filthiest(now_ms, others | self._waiting())
        if log is not None:
            self._worker = Thread(target=self._clean, args=(log,), name=f"cleaner of {log.name}")
            self._worker.start()
        return log is not None

    @property
    def _backoff_ms(self) -> int:
        return self._manager.settings.broker.log_cleaner_backoff_ms

    def _waiting(self) -> set[Log]:
        """Return the logs whose cleaning has failed, and does not begin again yet."""
        end_ms = self._manager.monotonic_ms() - self._backoff_ms
        return {
            log
            for log, failed_ms in self._failed_ms.items()
            if log.replacement is None or failed_ms > end_ms
        }

    def close(self) -> None:
        """Cancel the cleaning of a log, which leaves no change, and wait for the worker."""
        self._task.cancel()
        while self._worker is not None and self._worker.is_alive():
            self._call(_SOON_S)

    def _clean(self, log: Log) -> None:
        with self._manager.duties.attempt("compaction", log.name):
            try:
                self._cleaner.clean_all(log, self._task)
            except Exception:
                self._failed_ms[log] = self._manager.monotonic_ms()
                raise
            self._failed_ms.pop(log, None)

    def _on_log_thread(self, function: Callable[[], T]) -> T:
        """Have the mirror's thread call a function. Runs on the worker."""
        result = Future[T]()
        self._calls.put((function, result))
        return result.result()

    def _call(self, wait_s: float) -> bool:
        """Make the next call, if the worker asks for one within `wait_s`."""
        try:
            function, result = self._calls.get(timeout=wait_s)
        except Empty:
            return False
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return True
