"""Shows how far the opening or the reading of a data directory is, or long work.

Without a terminal only long work prints lines (`kafkafs.progress`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafkafs.progress import Bar, on_stderr

if TYPE_CHECKING:
    from storage.directory.manager import Progress


@contextmanager
def opening_shown() -> Iterator[Callable[[Progress], None] | None]:
    """The `progress` for `LogManager.open`."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = Bar()

    def show(progress: Progress) -> None:
        done, total = progress.partitions, progress.partitions_total
        if done == total:
            bar.end()
        else:
            bar.show("reading partitions", done, total, f"{progress.bytes_read >> 20:,} MiB")

    try:
        yield show
    finally:
        bar.end()


@contextmanager
def reading_shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with each count of bytes read, of `total`; `what` names the work."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    bar = Bar()
    done = 0

    def show(size: int) -> None:
        nonlocal done
        done += size
        bar.show(what, done, total, "bytes")

    try:
        yield show
    finally:
        bar.end()


@contextmanager
def work_shown() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with the work's phase, its bytes done, and its total bytes or 0."""
    progress = on_stderr()
    try:
        yield lambda phase, done, total: progress.show(phase, done, total, "bytes")
    finally:
        progress.end()
