"""Long work on a data directory that is not mounted: with progress, and ended by Ctrl-C.

SIGINT and SIGTERM stop it at its next step, which leaves all as it was: the work raises
TaskCancelled.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafkafs.cli.progress import work_shown
from storage.task import Task

#: The exit status of a command that a signal has ended, as of a shell's.
CANCELLED = 130


class ShownTask(Task):
    """A task that says how far it is."""

    def __init__(self, show: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._show = show

    def begin(self, phase: str, total: int) -> None:
        super().begin(phase, total)
        self._show(phase, 0, total)

    def advance(self, size: int) -> None:
        super().advance(size)
        self._show(self.phase, self.done, self.total)


@contextmanager
def long_work() -> Iterator[Task]:
    """The task to be handed to the work, in the main thread."""
    signals = (signal.SIGINT, signal.SIGTERM)
    with work_shown() as show:
        task = ShownTask(show)
        before = [signal.signal(each, lambda number, frame: task.cancel()) for each in signals]
        try:
            yield task
        finally:
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)
