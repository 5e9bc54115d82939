"""The descriptors that segments hold open, and a budget for them.

The process may have a limited number of descriptors (RLIMIT_NOFILE). Segments may hold all but a
*reserve*, which is for what the process opens and closes again: new partitions, checkpoints,
flushes, cleaned files. Where a segment wants one more, the one that was not used for longest lets
go of its own, and opens its files again when it needs them.

A segment keeps what it could not get back: descriptors of a file whose bytes may not be on the disk
yet (Linux reports a failed write once to each open file, and to nobody where none is open), and of
one whose name is gone. Where all others keep theirs, one of them is synced first.

A descriptor is closed when its last user lets go of it, so that any thread may take one away from a
segment that another thread is reading.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from storage.errors import StorageError
from storage.files import Files
from storage.waiting import before_waiting

# One lock for all segments: it guards counters for a few instructions, and the disk accesses that
# must not mix, an open and a rename. Reentrant: who opens a file may look at another one.
lock = threading.RLock()

_RESERVE = 48, 1024
# The part of the limit that the reserve takes between these two; at least as much is not reserved.
_RESERVED = 4
# The part of the reserve that segments take while others have unsynced bytes.
_OVERDRAFT = 4
# How many are looked at for one that can let go: it may not hold the lock for long.
_LOOKED_AT = 500
# Segments that are synced until one lets go: another thread may be appending to it.
_TRIES = 8
# The numbers of the open ones.
_open: set[int] = set()
_opened = 0
_evictions = 0


class Holder(Protocol):
    """Who holds descriptors."""

    recently_used: bool
    """Set when they are used; unset when their turn to go is passed over."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_unsynced(self) -> bool:
        """Whether bytes were written that may not be on the disk."""
        ...

    def evict(self) -> bool:
        """Let go of the descriptors; False where it keeps them. Under the lock."""
        ...

    def sync_early(self) -> None:
        """Bring to the disk what was written. Errors: OSError."""
        ...


# Those that may hold some; the one that was asked longest ago is asked next.
_holders: OrderedDict[Holder, None] = OrderedDict()


class Descriptor(int):
    """An open file of a segment: closed when nobody has it any longer."""

    _files: Files

    def __new__(cls, files: Files, fd: int) -> Descriptor:
        global _opened
        self = super().__new__(cls, fd)
        self._files = files
        _open.add(fd)
        _opened += 1
        return self

    def __del__(self) -> None:
        # The number may be another file's from the close on.
        _open.discard(int(self))
        with contextlib.suppress(OSError):
            self._files.close(int(self))


def limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def reserve() -> int:
    """Return how many of them segments leave alone."""
    return _reserve_of(limit())


def _reserve_of(may_have: int) -> int:
    least, most = _RESERVE
    return min(max(may_have // _RESERVED, least), most, may_have - may_have // _RESERVED)


def budget() -> int:
    """Return how many descriptors segments may hold."""
    may_have = limit()
    return may_have - _reserve_of(may_have)


def count() -> int:
    """Return how many descriptors segments hold."""
    return len(_open)


def opened() -> int:
    """Return how often any segment of this process has opened a file."""
    return _opened


def evictions() -> int:
    """Return how often a segment has let go of its descriptors for another one."""
    return _evictions


def over_budget() -> bool:
    """Return whether segments hold more than they may: what they have written should be synced."""
    return count() > budget()


def open_for(holder: Holder, files: Files, open_it: Callable[[], int]) -> Descriptor:
    """Open a file for a holder; others let go of theirs for it. `open_it` runs under the lock.

    Errors: OSError; BlockingIOError where one of them has to be synced and the caller may not wait.
    """
    may_have = limit()
    kept = _reserve_of(may_have)
    most = may_have - kept
    with_lent = most + kept // _OVERDRAFT
    while True:
        with lock:
            while len(_open) >= most and _evict_one(holder):
                pass
            if len(_open) < with_lent:
                try:
                    fd = Descriptor(files, open_it())
                    _holders.setdefault(holder)
                    return fd
                except OSError as error:
                    # Others in this process, or in the system, have more than the reserve.
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    failure = error
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


def _sync_and_evict_one(wanting: Holder) -> bool:
    """Have one let go whose bytes have to be synced first; False where none did."""
    global _evictions
    with lock:
        found = next((each for each in _holders if each is not wanting and each.is_unsynced), None)
    if found is None:
        return False
    before_waiting()
    with contextlib.suppress(OSError, StorageError):
        found.sync_early()
    with lock:
        # Last, or it would be asked again and again where its sync fails.
        _holders.pop(found, None)
        if found.is_open and not found.evict():
            _holders[found] = None
            return False
        _evictions += 1
        return True


def forget(holder: Holder) -> None:
    """Note that a holder has let go of its descriptors by itself. Under the lock."""
    _holders.pop(holder, None)


def _evict_one(wanting: Holder) -> bool:
    """Have the one that was not used for longest let go; False where none that was asked did."""
    global _evictions
    for _ in range(min(2 * len(_holders), _LOOKED_AT)):
        holder, _ = _holders.popitem(last=False)
        if not holder.is_open:
            continue
        if holder is not wanting and not holder.recently_used and holder.evict():
            _evictions += 1
            return True
        holder.recently_used = False
        _holders[holder] = None
    return False
