"""Does the periodic work of a mirror's directory, on the thread that appends.

Only line indexes are written on a worker thread (`line_indexes`).

A failed duty runs again at its next turn (`storage.background`).
"""

from __future__ import annotations

from typing import Final

from kafkafs.mirror.line_indexes import LineIndexes
from storage.directory.retain import retain
from storage.log.log import Log
from storage.manager import LogManager
from storage.task import Task

_SWEEP_MS: Final = 5000
_FLUSH_AGAIN_MS: Final = 5000


class Housekeeping:
    """Flushes, checkpoints, sweeps, rolls, and applies the directory's own retention."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._duties = manager.duties
        self._line_indexes = LineIndexes(manager)
        broker = manager.settings.broker
        self._checkpoint_ms = broker.log_flush_offset_checkpoint_interval_ms
        self._retention_ms = broker.log_retention_check_interval_ms
        now_ms = manager.monotonic_ms()
        self._next_sweep = now_ms + _SWEEP_MS
        self._next_checkpoint = now_ms + self._checkpoint_ms
        self._next_retention = now_ms + self._retention_ms
        # When flushes that have failed are tried again.
        self._flush_again: dict[Log, int] = {}

    def run(self) -> None:
        """Do what is due."""
        now_ms = self._manager.monotonic_ms()
        for log in self._manager.due_flushes(now_ms):
            if now_ms >= self._flush_again.get(log, 0):
                self._flush_again[log] = now_ms + _FLUSH_AGAIN_MS
                with self._duties.attempt("flush", log.name):
                    self._flush(log)
                    del self._flush_again[log]
        for log in list(self._manager.roll_due):
            with self._duties.attempt("roll", log.name):
                self._manager.roll_if_outgrown(log)
        if now_ms >= self._next_checkpoint:
            self._next_checkpoint = now_ms + self._checkpoint_ms
            with self._duties.attempt("checkpoint"):
                self._manager.checkpoint()
        if now_ms >= self._next_retention:
            self._next_retention = now_ms + self._retention_ms
            with self._duties.attempt("retention"):
                for note in retain(self._manager, self._manager.logs(), Task()).notes:
                    self._duties.say(note, "")
        if now_ms >= self._next_sweep:
            self._next_sweep = now_ms + _SWEEP_MS
            with self._duties.attempt("removal of what was deleted"):
                remove = self._manager.sweep(now_ms)
                while remove is not None:
                    remove()
                    remove = self._manager.deleted.remove(now_ms)
        self._line_indexes.run()

    def close(self) -> None:
        """Stop the worker."""
        self._line_indexes.close()

    def _flush(self, log: Log) -> None:
        if log.flush_error is not None:
            self._manager.rescue(log, Task())
        else:
            log.flush()
