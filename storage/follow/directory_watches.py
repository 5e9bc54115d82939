"""Watches directories for changes by another process: inotify(7), by the C library.

A directory is watched as a whole: a watch of its newest file alone would not report the next file.
Writes through a memory map are not reported; brokers write their logs by write(2).

The instances of inotify per user are limited (`fs.inotify.max_user_instances`, 128 by default), and
so are the watches (`fs.inotify.max_user_watches`). So the instance is made for the first directory.
A directory without a watch is reported in one line, and `try_again` retries it.
"""

from __future__ import annotations

import ctypes
import os
import select
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
# Watch, mask, cookie, bytes of the following name.
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10

_libc = ctypes.CDLL(None, use_errno=True)

K = TypeVar("K", bound=Hashable)


class DirectoryWatches(Generic[K]):
    """The watches of one mount, each by a key. `fd` is readable after any change.

    Not thread-safe.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        # Waitable from the beginning; inotify's descriptor is added once it exists.
        self._ready = select.epoll()
        self.fd = self._ready.fileno()
        self._inotify: int | None = None
        self._keys: dict[int, K] = {}
        self._numbers: dict[K, int] = {}
        self._unwatched: dict[K, str] = {}

    def watch(self, key: K, directory: str) -> None:
        """Watch a directory."""
        if self._ready.closed:
            return
        try:
            number = self._add(directory)
        except OSError as error:
            if not self._unwatched:
                self._say(
                    f"{directory}: cannot watch the directory, so readers may see appends one "
                    f"second later: {error.strerror}"
                )
            self._unwatched[key] = directory
            return
        self._unwatched.pop(key, None)
        self._keys[number], self._numbers[key] = key, number

    def forget(self, key: K) -> None:
        """Stop watching a directory."""
        self._unwatched.pop(key, None)
        number = self._numbers.pop(key, None)
        if number is not None and self._inotify is not None:
            del self._keys[number]
            _libc.inotify_rm_watch(self._inotify, number)

    def try_again(self) -> None:
        """Watch directories that failed before, as far as the system has watches again."""
        for key, directory in list(self._unwatched.items()):
            self.watch(key, directory)

    def _add(self, directory: str) -> int:
        """Add a watch and return its number. Errors: OSError if the system has no more."""
        if self._inotify is None:
            self._inotify = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            self._ready.register(self._inotify, select.EPOLLIN)
        return _checked(_libc.inotify_add_watch(self._inotify, os.fsencode(directory), _MASK))

    def changed(self) -> dict[K, bool]:
        """Return the keys with changes since the last call, and whether the directory itself was
        removed or renamed.
        """
        found: dict[K, bool] = {}
        while self._inotify is not None:
            try:
                events = os.read(self._inotify, _READ_BYTES)
            except BlockingIOError:
                break
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
        return found

    def close(self) -> None:
        self._ready.close()
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            os.close(inotify)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
