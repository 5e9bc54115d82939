"""Shows how far work is, on standard error: a bar on a terminal, elsewhere a line now and then.

Work that is soon done shows nothing. rich is imported for the first bar.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from kafkafs.printable import one_line
from storage.errors import NoThread
from storage.threads import start

if TYPE_CHECKING:
    from rich.progress import Progress

#: Work that takes longer than this shows how far it is, in seconds.
PATIENCE_S = 0.5
#: How often a line says how far work is, where there is no terminal, in seconds.
LINE_S = 10.0


class Bar:
    """A bar, from when the work begins to be slow until `close`. Any thread."""

    def __init__(self) -> None:
        self._show_at = time.monotonic() + PATIENCE_S
        self._lock = threading.Lock()
        self._bar: Progress | None = None

    def show(self, what: str, done: int, total: int, unit: str) -> None:
        """Show that `done` of `total` (0: not known) of the work `what` is done.

        The `unit` "bytes" gets a speed and the time that is left.
        """
        with self._lock:
            if self._bar is None and time.monotonic() >= self._show_at:
                self._bar = _begin(in_bytes=unit == "bytes")
            if self._bar is not None:
                task = self._bar.task_ids[0]
                self._bar.update(
                    task, description=what, completed=done, total=total or None, unit=unit
                )

    def close(self) -> None:
        """Take the bar away, until the work has been slow again."""
        with self._lock:
            self._show_at = time.monotonic() + PATIENCE_S
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


class Lines:
    """A line now and then, for a log."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_S

    def show(self, what: str, done: int, total: int, unit: str) -> None:
        """As a `Bar` does."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_S
            of = f" of {total}" if total else ""
            print(one_line(f"kafkafs: {what}: {done}{of} {unit}"), file=sys.stderr, flush=True)

    def close(self) -> None:
        """There is nothing to take away."""


def on_stderr() -> Bar | Lines:
    """Shows the progress of work that begins now."""
    return Bar() if sys.stderr.isatty() else Lines()


def _begin(*, in_bytes: bool) -> Progress | None:
    """None where the system has no thread to draw it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    try:
        start(threading.Thread(target=lambda: None))
    except NoThread:
        return None
    figures = (
        (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
        if in_bytes
        else (MofNCompleteColumn(), TextColumn("{task.fields[unit]}"), TimeElapsedColumn())
    )
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *figures,
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=None, unit="")
    bar.start()
    return bar
