"""Handles: what an open file keeps, and the table from the kernel's number to it.

A handle is made by `Node.open`, put into the table by who answers the request, and released once,
when the last descriptor in any process is closed.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from kafkafs.tree.jobs import Job


class FlushPlan(Protocol):
    """An fsync in two parts: `run` in any thread, `finish` on the thread that owns the tree."""

    def run(self) -> Any: ...

    def finish(self) -> Any: ...


class LoggedError(OSError):
    """An error that the log has a line for already, or had one once."""


class Handle:
    """An open file. What a kind of file cannot do stays as it is here."""

    __slots__ = ()

    direct_io = False
    """Reads and writes reach us one by one, past the page cache."""
    keep_cache = False
    """The page cache from before this open is still right."""
    structural = False
    """Writing and releasing it changes the tree or its settings, and waits for the disk: in a
    worker thread, one such change at a time."""
    sync_due = False
    """After a write: it is answered only when `sync_plan()` has run (O_SYNC, flush.messages)."""
    awaited: Sequence[Job] = ()
    """After a write: it is answered when these have ended, or after a while, by `awaited_over`."""

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        """`size` bytes from `position`, fewer only at the end of the file.

        First on the owner's thread, `at_once`; then in a worker thread, also while another read of
        this handle runs.
        """
        raise OSError(errno.EBADF, "not open for reading")

    def write(self, position: int, data: bytes) -> int:
        """Takes all of `data`, or raises. `position` is the kernel's guess, not our place.

        BlockingIOError, with nothing changed, where `data` takes long to be looked at: `examine`
        does that, and then the same write goes on.
        """
        raise OSError(errno.EBADF, "not open for writing")

    def examine(self, data: bytes) -> None:
        """In a worker thread: look at what `write` shall take next. The handle is not used
        meanwhile but for reading; what is wrong is for `write` to raise.
        """
        raise AssertionError("nothing is examined")

    def awaited_over(self) -> None:
        """Raises what has become of `awaited`, as far as that is an error."""

    def flush(self) -> None:
        """close(2) of one descriptor of perhaps many; the errno goes to that close."""

    def release(self) -> None:
        """The last descriptor is closed. What goes wrong here nobody hears but the log."""

    def sync_plan(self) -> FlushPlan | None:
        """What fsync has to do; None where there is nothing."""
        return None


class WritingHandle(Handle):
    """An open file that takes what it is given in pieces, wherever a write() or the kernel cuts it.

    `_rest` is what the last write ended with and is not whole yet: the next write goes on with it.
    `_reader` answers reads where the file is open for both.
    """

    __slots__ = ("_reader", "_rest")

    direct_io = True

    def __init__(self, reader: Handle | None) -> None:
        self._reader = reader
        self._rest = bytearray()

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        if self._reader is None:
            return super().read(position, size)
        return self._reader.read(position, size)


class HandleTable:
    """The kernel's handle number -> handle."""

    __slots__ = ("_numbers", "handles")

    def __init__(self) -> None:
        self.handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)

    def add(self, handle: Handle) -> int:
        number = next(self._numbers)
        self.handles[number] = handle
        return number

    def get(self, number: int) -> Handle:
        handle = self.handles.get(number)
        if handle is None:
            raise OSError(errno.EBADF, "no such handle")
        return handle

    def remove(self, number: int) -> Handle:
        handle = self.handles.pop(number, None)
        if handle is None:
            raise OSError(errno.EBADF, "no such handle")
        return handle
