"""The bytes that writers leave with their open files: lines without a newline, parts of batches.

They stay in memory until their ends come, and anybody may leave any number of them. So they count
against the user who has opened the file, and against all users together. Allocated bytes count, not
used ones. The texts of open files (`open_files`) have limits of the same kind.
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections import Counter
from typing import Final

IN_ALL: Final = 4
"""The limit of all users together, as a multiple of the limit of one."""


_SMALL: Final = 64 << 10
"""A line or batch of more bytes has memory of its own."""


class Rest:
    """The bytes of one unfinished line or batch.

    Many bytes that grow in the heap leave holes there, which the process keeps. So what is more
    than some KiB is in blocks of mapped memory, each an eighth as large as all before it, or as
    large as the limit allows.
    """

    __slots__ = ("_blocks", "_small", "capacity", "size")

    def __init__(self) -> None:
        self.size = 0
        self.capacity = 0
        """Bytes that are allocated."""
        self._small = bytearray()
        # All but the last one are full.
        self._blocks: list[mmap.mmap] = []

    def __len__(self) -> int:
        return self.size

    def capacity_with(self, more: int) -> int:
        """The least capacity after an `add` of `more` bytes."""
        lacking = more - (self.capacity - self.size)
        if lacking <= 0 or (not self._blocks and self.size + more <= _SMALL):
            return self.capacity + max(lacking, 0)
        return self.capacity + _in_pages(lacking)

    def add(self, data: memoryview) -> None:
        """Add more bytes. Errors: OSError without memory for them; nothing has changed."""
        if not self._blocks and self.size + len(data) <= _SMALL:
            self._small += data
            self.size += len(data)
            self.capacity = self._small.__alloc__()
            return
        # The part in the heap gets no more bytes.
        room = self.capacity - self.size if self._blocks else 0
        if len(data) <= room:
            self._fill(data)
            return
        ahead = min(self.size // 8, self._most_ahead()) // mmap.PAGESIZE * mmap.PAGESIZE
        block = mmap.mmap(-1, max(ahead, _in_pages(len(data) - room)))
        if room:
            self._fill(data[:room])
        self._blocks.append(block)
        self.capacity = self.size + len(block)
        self._fill(data[room:])

    def _most_ahead(self) -> int:
        """Return the bytes that may be allocated although they are not needed yet."""
        return 0

    def _fill(self, data: memoryview) -> None:
        """Copy to the last block, which has room for all of it."""
        at = len(self._blocks[-1]) - (self.capacity - self.size)
        self._blocks[-1][at : at + len(data)] = data
        self.size += len(data)

    def joined(self, data: bytes = b"") -> bytes:
        """Return all of it, followed by `data`."""
        parts: list[bytearray | mmap.mmap | memoryview | bytes] = [self._small, *self._blocks]
        if self._blocks:
            last = self._blocks[-1]
            parts[-1] = memoryview(last)[: len(last) - (self.capacity - self.size)]
        return b"".join((*parts, data))


def _in_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class CountedRest(Rest):
    """The rest of one open file, which counts as its user's."""

    __slots__ = ("_budget", "uid")

    def __init__(self, budget: Unfinished) -> None:
        super().__init__()
        self.uid = 0
        self._budget = budget

    def add(self, data: memoryview) -> None:
        """Add more bytes. UnfinishedError if there is no room for them; nothing has changed."""
        before = self.capacity
        self._budget.check(self.uid, self.capacity_with(len(data)) - before)
        super().add(data)
        self._budget.add(self.uid, self.capacity - before)

    def _most_ahead(self) -> int:
        return self._budget.room(self.uid)

    def rest_of(self, data: memoryview) -> Rest:
        """Return `data` for `replace`. UnfinishedError if there is no room for it."""
        rest = Rest()
        self._budget.check(self.uid, rest.capacity_with(len(data)) - self.capacity)
        rest.add(data)
        return rest

    def replace(self, rest: Rest) -> None:
        """Take the bytes of `rest` instead of its own."""
        self._budget.add(self.uid, rest.capacity - self.capacity)
        self.size, self.capacity = rest.size, rest.capacity
        self._small, self._blocks = rest._small, rest._blocks

    def clear(self) -> None:
        self.replace(Rest())


class UnfinishedError(OSError):
    """No room for what is unfinished (ENOMEM): what there was of the line or batch is dropped."""


class Unfinished:
    """See the module. `limit`: the most bytes of one user. Any thread."""

    what = "unfinished lines"
    remedy = "end them with a newline, close files"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        """Bytes of all users."""
        self._of: Counter[int] = Counter()
        # `.config` and control files are written in worker threads.
        self._lock = threading.Lock()

    def check(self, uid: int, more: int) -> None:
        """UnfinishedError unless a user may leave `more` bytes; fewer than before are always
        allowed.
        """
        for who, held, limit in (
            (f"user {uid}", self._of[uid], self.limit),
            ("all users", self.total, self.limit * IN_ALL),
        ):
            if more > 0 and held + more > limit:
                raise UnfinishedError(
                    errno.ENOMEM,
                    f"{self.what} of {who} would take {held + more} bytes (limit {limit}): "
                    f"{self.remedy}, or mount with -o memory=SIZE",
                )

    def room(self, uid: int) -> int:
        """Return how many more bytes a user may leave; negative if there are too many already."""
        return min(self.limit - self._of[uid], self.limit * IN_ALL - self.total)

    def add(self, uid: int, more: int) -> None:
        """Count `more` bytes of a user, or fewer than before."""
        with self._lock:
            self.total += more
            self._of[uid] += more
            if not self._of[uid]:
                del self._of[uid]


class OpenTexts(Unfinished):
    """The texts of open files, with limits as for unfinished lines.

    A user without an open text may open one of any size.
    """

    what = "texts of open files"
    remedy = "close files"

    def check(self, uid: int, more: int) -> None:
        if self._of[uid]:
            super().check(uid, more)
