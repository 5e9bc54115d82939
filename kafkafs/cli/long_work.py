"""Long work on an unmounted data directory, with progress.

SIGINT and SIGTERM stop it at its next step: the work raises TaskCancelled, and leaves what is not
done as it was.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafkafs.cli.progress import work_shown
from storage.task import Task

#: The exit status of a command that a signal has ended, as in a shell.
CANCELLED = 130


class ShownTask(Task):
    """A task that shows its progress."""

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
    """A task for the work; signals cancel it. In the main thread."""
    signals = (signal.SIGINT, signal.SIGTERM)
    with work_shown() as show:
        task = ShownTask(show)
        before = [signal.signal(each, lambda number, frame: task.cancel()) for each in signals]
        try:
            yield task
        finally:
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)
