"""Limits the file descriptors that segments keep open.

RLIMIT_NOFILE may limit the descriptors of the process. Segments may use all but a *reserve* for
files that are opened and closed again: new partitions, checkpoints, flushes, cleaned files. If a
segment needs one more, the segment that was not used for longest closes its own. It opens its files
again when it needs them.

A segment does not close a descriptor that it could not replace: of a file with unsynced bytes
(Linux reports a failed write once to each open descriptor, and to nobody if none is open), or of a
deleted file. If all segments have such descriptors, one of them is synced first.

A descriptor is closed when its last reference is dropped. So a thread that has it in a local
variable can read, also after its segment has closed its files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from storage.errors import StorageError
from storage.files import Files
from storage.waiting import before_waiting

# One lock for all segments. It guards the counters, and keeps an open and a rename apart. It is
# reentrant, because opening a file may evict another segment.
lock = threading.RLock()

_RESERVE = 48, 1024
# The part of the limit that is reserved, within these bounds; at least that much is not reserved.
_RESERVED = 4
# The part of the reserve that segments may use while other segments have unsynced bytes.
_OVERDRAFT = 4
# Holders that are asked to close at most: the lock must not be held for long.
_ASKED = 500
# Segments that are synced at most until one can close: another thread may be appending to it.
_TRIES = 8
# Numbers of the open descriptors of `open_for`: the others are soon closed.
_open: set[int] = set()
_opened = 0
_evictions = 0


class Holder(Protocol):
    """A segment that keeps descriptors open."""

    recently_used: bool
    """Set at each use; unset when eviction passes the holder over."""

    @property
    def is_unsynced(self) -> bool:
        """Whether written bytes may not be on the disk."""
        ...

    def evict(self) -> bool:
        """Close the descriptors; return False if they have to stay open."""
        ...

    def sync_early(self) -> None:
        """Sync the written bytes. Errors: OSError."""
        ...


# In the order of eviction: the holder that was asked longest ago comes first.
_holders: OrderedDict[Holder, None] = OrderedDict()


class Descriptor(int):
    """The descriptor of a segment's open file, closed when nothing refers to it."""

    path: str
    may_write: bool
    _files: Files

    def __new__(cls, files: Files, path: str, flags: int) -> Descriptor:
        """Open a file. Errors: OSError."""
        self = super().__new__(cls, files.open(path, flags))
        self.path = path
        self.may_write = flags & os.O_ACCMODE != os.O_RDONLY
        self._files = files
        return self

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the process, the globals of this module may be cleared already.
        if is_ending():
            return
        # As soon as it is closed, the number may be another file's.
        _open.discard(int(self))
        with contextlib.suppress(OSError):
            self._files.close(int(self))


def limit() -> int:
    """Return the limit of open descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def budget() -> int:
    """Return the number of descriptors that segments may keep open."""
    may_have = limit()
    least, most = _RESERVE
    part = may_have // _RESERVED
    return may_have - min(max(part, least), most, may_have - part)


def count() -> int:
    """Return the number of descriptors that segments have open."""
    return len(_open)


def opened() -> int:
    """Return the number of files that segments of this process have opened."""
    return _opened


def evictions() -> int:
    """Return how often a segment closed its descriptors for another segment."""
    return _evictions


def over_budget() -> bool:
    """Return whether segments exceed the budget, so that their written bytes should be synced."""
    return count() > budget()


def open_for(holder: Holder, open_it: Callable[[], Descriptor]) -> Descriptor:
    """Open a file for a holder; evict other holders if necessary. `open_it` runs under the lock.
    Errors: OSError; BlockingIOError if a segment has to be synced and the caller may not wait.
    """
    global _opened
    while True:
        with lock:
            most = budget()
            while len(_open) >= most and _evict_one(holder):
                pass
            if len(_open) < most + (limit() - most) // _OVERDRAFT:
                try:
                    fd = open_it()
                except OSError as error:
                    # The rest of this process, or of the system, uses more than the reserve.
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    failure = error
                else:
                    _open.add(int(fd))
                    _opened += 1
                    _holders.setdefault(holder)
                    return fd
                if _evict_one(holder):
                    continue
            else:
                reason = (
                    f"{os.strerror(errno.EMFILE)}: segments use {len(_open)} of {limit()} file "
                    "descriptors (RLIMIT_NOFILE), and appended data cannot be synced"
                )
                failure = OSError(errno.EMFILE, reason)
        if not any(_sync_and_evict_one(holder) for _ in range(_TRIES)):
            raise failure


def forget(holder: Holder) -> None:
    """Remove a holder that has closed its descriptors. Under the lock."""
    _holders.pop(holder, None)


def _evict_one(wanting: Holder) -> bool:
    """Evict the holder that was not used for longest; return False if none could be evicted."""
    for _ in range(min(2 * len(_holders), _ASKED)):
        holder, _ = _holders.popitem(last=False)
        if holder is not wanting and not holder.recently_used and _evicts(holder):
            return True
        holder.recently_used = False
        _holders[holder] = None
    return False


def _sync_and_evict_one(wanting: Holder) -> bool:
    """Sync a holder and evict it; return False if none could be evicted."""
    with lock:
        found = next((each for each in _holders if each is not wanting and each.is_unsynced), None)
    if found is None:
        return False
    before_waiting()
    with contextlib.suppress(OSError, StorageError):
        found.sync_early()
    with lock:
        if _evicts(found):
            return True
        if found in _holders:  # its sync may fail each time
            _holders.move_to_end(found)
        return False


def _evicts(holder: Holder) -> bool:
    global _evictions
    before = len(_open)
    if not holder.evict():
        return False
    # It may have had files open only while it read them.
    _evictions += len(_open) < before
    return True
