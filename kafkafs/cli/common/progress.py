"""Shows how far the opening or the reading of a data directory, or long work, is.

Without a terminal only long work prints lines (`kafkafs.progress`).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from kafkafs.cli.common.ending import as_typed, warn
from kafkafs.progress import Bar, on_stderr
from storage.task import Task

if TYPE_CHECKING:
    from storage.directory.open import Progress
    from storage.manager import LogManager


@contextmanager
def opening_shown() -> Iterator[Callable[[Progress], None] | None]:
    """The `progress` for `LogManager.open`."""
    if not sys.stderr.isatty():
        yield None
        return
    with closing(Bar()) as bar:

        def show(progress: Progress) -> None:
            done, total = progress.partitions, progress.partitions_total
            if done == total:
                bar.close()
            else:
                bar.show("reading partitions", done, total, f"{progress.bytes_read >> 20:,} MiB")

        yield show


@contextmanager
def opened(data_dir: str, **how: Any) -> Iterator[LogManager]:
    """Open a data directory as `LogManager.open` does, and show the progress.

    If the block fails, and closing the directory then fails, too, the error of the block is raised.
    The other one is printed.
    """
    from storage.errors import StorageError, refusal_of
    from storage.manager import LogManager

    failed: Exception | None = None
    try:
        with (
            opening_shown() as progress,
            LogManager.open(data_dir, progress=progress, **how) as manager,
        ):
            try:
                yield manager
            except Exception as error:
                failed = error
                raise
    except (OSError, StorageError) as error:
        if failed is None or error is failed:
            raise
        warn(f"{as_typed(data_dir)}: closing failed: {refusal_of(error)}")
        raise failed from None


@contextmanager
def reading_shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with each count of bytes read, of `total`; `what` names the work."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    done = 0
    with closing(Bar()) as bar:

        def show(size: int) -> None:
            nonlocal done
            done += size
            bar.show(what, done, total, "bytes")

        yield show


@contextmanager
def work_shown() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with the work's phase, its bytes done, and its total bytes or 0."""
    with closing(on_stderr()) as progress:
        yield lambda phase, done, total: progress.show(phase, done, total, "bytes")


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
    """A task that shows its progress, for work in the main thread.

    SIGINT and SIGTERM stop it at its next step: the work raises TaskCancelled, and leaves what is
    not done as it was.
    """
    with work_shown() as show:
        task = ShownTask(show)
        with handling((signal.SIGINT, signal.SIGTERM), lambda number, frame: task.cancel()):
            yield task


@contextmanager
def handling(
    signals: Sequence[signal.Signals], handler: Callable[[int, object], None]
) -> Iterator[None]:
    """Handle signals by a function, and restore the former handlers at the end."""
    before = [signal.signal(each, handler) for each in signals]
    try:
        yield
    finally:
        for each, former in zip(signals, before, strict=True):
            signal.signal(each, former)
