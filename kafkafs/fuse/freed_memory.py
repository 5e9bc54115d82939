"""Gives memory that the process has freed back to the system.

The allocator keeps freed pieces of less than some MiB, so that the next request finds them. Memory
that a user does not use any more must not stay allocated.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable

#: A resident set that changes by less than this is not looked at.
CHANGE_BYTES = 1 << 20


class FreedMemory:
    """See the module. `held`: bytes that users have the daemon hold now."""

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        # Held and resident bytes after the last call.
        self._before = held()
        self._resident = resident_bytes()

    def give_back(self) -> None:
        """Give memory back, if users hold less than before or the process has grown or shrunk.

        Runs on a worker thread.
        """
        held = self._held()
        if held < self._before or abs(resident_bytes() - self._resident) >= CHANGE_BYTES:
            with contextlib.suppress(AttributeError):  # musl has no malloc_trim
                ctypes.CDLL(None).malloc_trim(0)
            self._resident = resident_bytes()
        self._before = held


def resident_bytes() -> int:
    """The resident set of this process."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
