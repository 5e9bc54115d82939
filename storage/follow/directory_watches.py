"""Which directories another process has changed files in: inotify(7), by the C library.

A directory is watched as a whole: a watch of its newest file alone would not tell of the next one.
What is written through a memory map is not told of; brokers write their logs by write(2).

The system has a limit of watches for each user (``fs.inotify.max_user_watches``).  A directory that
gets none is left out, with one line.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

# Of <sys/inotify.h>.
_MODIFY = 0x2
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_IGNORED = 0x8000
_OVERFLOW = 0x4000
_ONLY_DIRECTORIES = 0x1000000
_MASK = _MODIFY | _CREATE | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORIES
# Watch, mask, cookie, bytes of the name behind it.
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10

_libc = ctypes.CDLL(None, use_errno=True)

K = TypeVar("K", bound=Hashable)


class DirectoryWatches(Generic[K]):
    """The watches of one mount, each by a key.  ``fd`` is readable when anything has changed.

    For one thread.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """OSError where the system has no more."""
        self._say = say
        self.fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._keys: dict[int, K] = {}
        self._numbers: dict[K, int] = {}
        self._is_short = False

    def watch(self, key: K, directory: str, *, wanted: bool) -> None:
        """Watch a directory, or, unless it is ``wanted``, watch it no more."""
        if self.fd < 0:
            return
        if not wanted:
            number = self._numbers.pop(key, None)
            if number is not None:
                del self._keys[number]
                _libc.inotify_rm_watch(self.fd, number)
            return
        try:
            number = _checked(_libc.inotify_add_watch(self.fd, os.fsencode(directory), _MASK))
        except OSError as error:
            if not self._is_short:
                self._is_short = True
                self._say(
                    f"{directory}: cannot be watched, so who waits for appends may wait a second "
                    f"longer: {error.strerror}"
                )
            return
        self._keys[number], self._numbers[key] = key, number

    def changed(self) -> dict[K, bool]:
        """The keys of what has changed since the last call; whether the directory itself was
        removed or renamed.
        """
        found: dict[K, bool] = {}
        while True:
            try:
                events = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return found
            at = 0
            while at < len(events):
                number, mask, _, name_bytes = _EVENT.unpack_from(events, at)
                at += _EVENT.size + name_bytes
                if mask & _OVERFLOW:
                    found.update((key, True) for key in self._numbers)
                key = self._keys.get(number)
                if key is None:
                    continue
                is_moved = bool(mask & (_DELETE_SELF | _MOVE_SELF))
                found[key] = found.get(key, False) or is_moved
                if mask & _IGNORED:
                    del self._keys[number], self._numbers[key]

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
