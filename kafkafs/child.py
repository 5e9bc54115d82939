"""Runs a function that may never return in a child process, and waits for it with a time limit.

A process that waits for a file system which does not answer can often not be killed before the
file system ends. So the child waits in place of its parent. After the time limit, the parent goes
on without the child. The child holds no file or terminal of its parent, and exits when the
function returns.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class NoAnswer(Exception):  # noqa: N818 - as the storage names its errors
    """The function has not ended in time; or its process was killed."""


class Child(Generic[T]):
    """A process that calls `function`, which returns or raises what can be pickled.

    Only for a process without other threads. OSError if no process can start.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        reader, writer = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if self._pid == 0:
            _run(function, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        self._pipe: int | None = reader
        self._said = bytearray()

    def result(self, patience_s: float) -> T:
        """Return what the function returns, or raise what it raises. Errors: NoAnswer if that takes
        longer than `patience_s`; then this can be called again.
        """
        until = time.monotonic() + patience_s
        while self._pipe is not None:
            left = max(until - time.monotonic(), 0)
            if not select.select([self._pipe], [], [], left)[0]:
                raise NoAnswer
            some = os.read(self._pipe, 1 << 20)
            self._said += some
            if not some:
                self._close()
                os.waitpid(self._pid, 0)
        if not self._said:
            raise NoAnswer
        has_returned, value = pickle.loads(self._said)
        if has_returned:
            answer: T = value
            return answer
        raise value

    @property
    def has_ended(self) -> bool:
        """Whether the process has; `result` then always says the same."""
        return self._pipe is None

    def leave(self) -> None:
        """Leave it to its end, which may be far away. Nothing happens where it has ended."""
        if self._pipe is not None:
            self._close()
            os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)

    def _close(self) -> None:
        assert self._pipe is not None
        os.close(self._pipe)
        self._pipe = None


def _run(function: Callable[[], T], writer: int) -> None:
    """Call the function, write what comes of it, and end this process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        try:
            said = pickle.dumps((True, function()))
        except Exception as error:
            said = pickle.dumps((False, error))
        with open(writer, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(0)
