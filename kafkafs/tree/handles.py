"""Handles, which stand for open files.

`Node.open` makes a handle; its caller adds it to the `OpenTable` (`open_files.py`). The kernel
releases it once, when the last descriptor in any process is closed.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kafkafs.metrics import Traffic
from kafkafs.tree.jobs import Job
from kafkafs.tree.notices import Waiter
from storage.log.append_queue import AppendQueue
from storage.log.flush import FlushPlan

READY = select.POLLIN | select.POLLRDNORM | select.POLLOUT | select.POLLWRNORM
"""The events of poll(2) that each file has at any time, as the kernel says of plain files: reading
and writing answer at once, be it with the end of the file or an error.
"""


class Opener(NamedTuple):
    """The user of an open file. `groups`: the supplementary ones, where the handle `asks_groups`;
    `thread`: 0 where it is not known.
    """

    uid: int
    gid: int
    groups: Collection[int]
    thread: int


class NotExamined(Exception):  # noqa: N818 - no error: the caller examines, and writes again
    """A write takes long to parse: call `examine`, in a worker thread, and then `write` again.

    `is_large`: it takes a multiple of what earlier writes have left. Call both for only one such
    write at a time.
    """

    def __init__(self, *, is_large: bool = False) -> None:
        super().__init__()
        self.is_large = is_large


class Handle:
    """An open file. The methods here refuse; a subclass overrides those that its file supports."""

    __slots__ = ()

    direct_io = False
    """Reads and writes bypass the page cache."""
    keep_cache = False
    """The kernel may use pages from before this open."""
    structural = False
    """Writing and releasing change the tree or its settings, and wait for the disk: they run in a
    worker thread, one at a time."""
    traffic: Traffic | None = None
    """Where its reads count: that of a partition in a view."""
    sync_due = False
    """Set by a write: answer it only after an fsync (O_SYNC, flush.messages)."""
    asks_groups = False
    """`opened_by` needs the supplementary groups."""
    reader: Handle | None = None
    """Answers reads and poll(2) of a file that is open for both reading and writing."""
    awaited: Sequence[Job] = ()
    """Set by a write: answer it when these jobs have ended, or after a while, by `awaited_over`."""

    @property
    def text_bytes(self) -> int:
        """The bytes of text that it has in memory until it is released; they stay the same."""
        return 0 if self.reader is None else self.reader.text_bytes

    @property
    def append_queue(self) -> AppendQueue | None:
        """As `Node.append_queue`."""
        return None if self.reader is None else self.reader.append_queue

    def opened_by(self, opener: Opener) -> None:
        """Note the user of the open file; called once, before all others."""

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        """`size` bytes from `position` on, fewer only at the end of the file.

        Called first on the owner's thread, `at_once`, then in a worker thread, where other reads of
        this handle may run.
        """
        if self.reader is None:
            raise OSError(errno.EBADF, "not open for reading")
        return self.reader.read(position, size)

    def poll(self, waiter: Waiter | None) -> int:
        """The events of poll(2) that are there now. On the owner's thread; never waits.

        `waiter` is woken once, when there may be others, and replaces the one before. None: the
        process only asks.
        """
        return READY if self.reader is None else self.reader.poll(waiter)

    def write(self, position: int, data: bytes) -> int:
        """Take all of `data`, or raise; returns its length. `position` is only the kernel's guess.

        With nothing changed: NotExamined where `data` takes long to parse, MustQueue.
        """
        raise OSError(errno.EBADF, "not open for writing")

    def examine(self, data: bytes) -> None:
        """Parse what `write` takes next, in a worker thread. Only reads may run meanwhile. `write`
        raises the errors in `data`.
        """
        raise AssertionError("nothing is examined")

    def awaited_over(self) -> None:
        """Raise the error of a job in `awaited` that has failed."""

    def flush(self) -> None:
        """close(2) of one descriptor of perhaps many; it gets the errno. MustQueue."""

    def release(self) -> None:
        """The last descriptor is closed. Only the event log gets the errors. MustQueue."""
        if self.reader is not None:
            self.reader.release()

    def sync_plans(self) -> Sequence[FlushPlan]:
        """The flushes that fsync has to run. MustQueue."""
        return ()
