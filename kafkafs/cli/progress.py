"""How far the opening or the reading of a data directory is, or long work, on the terminal.

Only where standard error is a terminal and it takes its time; rich is imported then. Of long work
there are plain lines elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from storage.directory.manager import Progress

#: An opening that takes longer than this shows how far it is, in seconds.
PATIENCE_S = 0.5
#: How often a line says how far long work is, where there is no terminal, in seconds.
LINE_S = 10.0


@contextmanager
def opening_shown() -> Iterator[Callable[[Progress], None] | None]:
    """What to give to `LogManager.open` as `progress`."""
    if not sys.stderr.isatty():
        yield None
        return
    opening = Opening()
    try:
        yield opening
    finally:
        opening.end()


class Opening:
    """A bar, from when the opening begins to be slow until the last partition is there.

    Called by the threads that recover.
    """

    def __init__(self) -> None:
        self._show_at = time.monotonic() + PATIENCE_S
        self._lock = threading.Lock()
        self._bar: Bar | None = None

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if progress.partitions == progress.partitions_total:
                self.end()
                return
            if self._bar is None:
                if time.monotonic() < self._show_at:
                    return
                self._bar = _begin(progress.partitions_total)
                if self._bar is None:
                    return
            mib = progress.bytes_read >> 20
            self._bar.update(self._bar.task_ids[0], completed=progress.partitions, mib=mib)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _begin(partitions: int) -> Bar | None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("reading partitions"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[mib]:,} MiB"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=partitions, mib=0)
    return _started(bar)


def _started(bar: Bar) -> Bar | None:
    """None where the system has no thread for who draws it."""
    from storage.errors import NoThread
    from storage.threads import start

    try:
        start(threading.Thread(target=lambda: None))
    except NoThread:
        return None
    bar.start()
    return bar


@contextmanager
def reading_shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """What to call with the count of bytes that were read, of ``total``; ``what`` is being done."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    reading = Reading(what, total)
    try:
        yield reading
    finally:
        reading.end()


class Reading:
    """A bar, from when reading begins to be slow until it ends."""

    def __init__(self, what: str, total: int) -> None:
        self._show_at = time.monotonic() + PATIENCE_S
        self._what = what
        self._total = total
        self._done = 0
        self._bar: Bar | None = None

    def __call__(self, size: int) -> None:
        self._done += size
        if self._bar is None:
            if time.monotonic() < self._show_at:
                return
            self._bar = _begin_reading(self._what, self._total)
            if self._bar is None:
                return
        self._bar.update(self._bar.task_ids[0], completed=self._done)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def work_shown() -> Iterator[Callable[[str, int, int], None]]:
    """What to call with: what is being done, how many bytes are done, and of how many (or 0)."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    work = Work()
    try:
        yield work
    finally:
        work.end()


class Work:
    """A bar for work of several phases, from when it begins to be slow until it ends."""

    def __init__(self) -> None:
        self._show_at = time.monotonic() + PATIENCE_S
        self._bar: Bar | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self._bar is None:
            if time.monotonic() < self._show_at:
                return
            self._bar = _begin_reading("{task.description}", None)
            if self._bar is None:
                return
        task = self._bar.task_ids[0]
        self._bar.update(task, description=phase, completed=done, total=total or None)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Lines:
    """A line now and then, for who reads them later."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_S

    def __call__(self, phase: str, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_S
            of = f" of {total}" if total else ""
            print(f"kafkafs: {phase}: {done}{of} bytes", file=sys.stderr, flush=True)


def _begin_reading(what: str, total: int | None) -> Bar | None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=total)
    return _started(bar)
