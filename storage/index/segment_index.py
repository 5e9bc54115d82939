"""What the offset index and the time index of a segment have in common (``AbstractIndex.java``).

Layout: entries of one size back to back from byte 0, no header, no checksum.  An entry is a pair of
numbers, one of them an offset, which the file has relative to the segment's base offset.  Both rise
from one entry to the next, or one of them stays.

The file of a segment that is being written is pre-sized to ``max_bytes`` rounded down to whole
entries: a sparse tail of zeros.  ``trim`` cuts it to what is used.  The count of entries is kept in
memory; on open it is the file's length divided by the entry size, so an index that was never
trimmed looks full of zeros.

Reading is ``pread`` and writing is ``pwrite``.  Nothing is mapped: whoever cut the file would end
the process (SIGBUS), and so would a full disk under a store into a hole.  What look-ups have read
stays in memory, within a budget of all indexes, until the file is made shorter.

Invariant: entries below ``count`` lie within the file.  Another process may break it.  In a
directory of others, what is left of the file counts then.  Of an index of ours, ``mend`` makes the
file anew; until it has done so, look-ups search what is left.  They then lead to a place further
ahead of what they look for, and so do entries of zeros, where appends have left a hole.

One thread changes a file; others may read meanwhile.
"""

from __future__ import annotations

import bisect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import ClassVar

from storage.byte_budget import ByteBudget
from storage.errors import SegmentGone, UnusableFile
from storage.files import Files
from storage.index._search import entries_up_to

Entry = tuple[int, int]

# Bytes that a search reads at once.  It begins with the last ones: most go there, and those pages
# are in memory (``AbstractIndex.java``, "warm section").
_SEARCHED_BYTES = 4096
# Entries that an iterator reads at once.
_CHUNK_ENTRIES = 8192
# Entries are read into memory once searches have read this part of their bytes from the file.
_WORTH = 4
# Of the indexes of all segments.
_budget = ByteBudget(64 << 20)


class _Memory:
    """Entries in memory, of one index.

    ``first``: those from the file's start on.  ``last``: where the ones behind begin, and they, up
    to the end.  ``read``: how many bytes searches have read of what is not in ``first``.
    """

    __slots__ = ("first", "last", "read", "used")

    def __init__(self) -> None:
        self.first = b""
        self.last = (0, b"")
        self.read = 0
        self.used = False

    def evict(self) -> None:
        self.first = b""
        self.read = 0


class SegmentIndex(ABC):
    """One open index of the segment that starts at ``base_offset``.

    ``max_bytes``: the size of the file while it is written.  ``ignore_zero_tail``: entries that are
    all zero at the end do not count (the index of a writer that lives, or died).  ``mend``: called
    where a file of ours was cut; it makes the file anew and returns True, or returns False where
    that cannot be done now.  BlockingIOError where it would wait and may not.

    A file that is missing is created where ``writable``, else it counts as empty.

    ``opener``: opens the file by the flags of ``open(2)``, at every access after ``let_go``, and
    closes it when nobody has the descriptor any longer.  Else ``close`` closes it.
    """

    layout: ClassVar[Struct]
    """The fields of an entry in the file."""

    def __init__(
        self,
        files: Files,
        path: str,
        base_offset: int,
        max_bytes: int,
        *,
        writable: bool,
        ignore_zero_tail: bool = False,
        mend: Callable[[], bool] | None = None,
        opener: Callable[[int], int] | None = None,
    ) -> None:
        self._files = files
        self._opener = opener
        self.path = path
        self._base_offset = base_offset
        self._entry_size = self.layout.size
        self._writable = writable
        self._ignore_zero_tail = ignore_zero_tail
        self._mend = mend
        self.fd = -1
        self._last: Entry | None = None
        self._memory = _Memory()
        self._presized = False
        self._length = 0
        # Whether another process has cut the file since it was made.
        self.is_cut = False
        self.capacity = max_bytes // self._entry_size
        self.count = 0
        self.refresh()

    @abstractmethod
    def _decoded(self, fields: Sequence[int]) -> Entry:
        """An entry, from its fields in the file."""

    @abstractmethod
    def _fault_of_ends(self, first: Entry, last: Entry) -> str | None:
        """Why a sound index cannot have these as its first and last entry, or None."""

    @abstractmethod
    def _last_up_to(self, offset: int) -> int:
        """The number of the last entry with an offset ≤ ``offset``, or -1."""

    # -- the file ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look at the file again: another process may have made it, extended it or cut it."""
        self._forget()
        self._presized = False
        if self.fd < 0 and not self._open():
            return
        self._length = self._files.size(self._file())
        count = self._length // self._entry_size
        # Once, because another thread may be searching.
        self.count = self._used(count) if self._ignore_zero_tail else count

    def _open(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT if self._writable else os.O_RDONLY
        try:
            if self._opener is None:
                self.fd = self._files.open(self.path, flags)
            else:
                self.fd = self._opener(flags)
        except (FileNotFoundError, UnusableFile):
            if self._writable:
                raise
            return False
        return True

    def _file(self) -> int:
        """The open file, which another thread may ``let_go`` of meanwhile."""
        fd = self.fd
        if fd < 0 and self._open():
            fd = self.fd
            self._look(fd)
        return fd

    def let_go(self) -> None:
        """Drop the descriptor.  A call that is running keeps it; the next one opens the file."""
        self.fd = -1

    def close(self) -> None:
        """Close the file, of no use afterwards; notice where it was cut."""
        self.count = 0
        self._forget()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._look(fd)
            if self._opener is None:
                self._files.close(fd)

    def sync(self) -> None:
        """Make the entries survive a power cut; notice where the file was cut."""
        fd = self.fd
        if fd >= 0:
            self._files.fdatasync(fd)
            self._look(fd)

    def _look(self, fd: int) -> None:
        if self._mend is not None and self._files.size(fd) < self._length:
            self.is_cut = True

    @property
    def odd_bytes(self) -> int:
        """Bytes behind the last whole entry: 0 in a sound file."""
        return self._length % self._entry_size

    def presize(self) -> None:
        """Extend the file to ``capacity`` entries, sparsely; entries are never cut off."""
        self._set_length(max(self.capacity, self.count) * self._entry_size)
        self._presized = True

    def trim(self) -> None:
        """Cut the file to the entries that are used.

        Where another process has cut it, it gets a length that no sound index has: then a start
        makes it anew, if ``mend`` has not done so before.
        """
        fd = self._file()
        self._look(fd)
        if self.is_cut:
            self.count = 0
            self._forget()
            self._files.ftruncate(fd, 1)
            self._length = 1
        else:
            self._set_length(self.count * self._entry_size)
        self._presized = False

    def rewrite(self, fd: int, entries: bytes) -> None:
        """Write the file that was cut anew, in place, durably; ``fd``: a descriptor for writing.

        OSError.  Any thread: others that do it at the same time write the same.
        """
        self._files.pwrite(fd, entries, 0)
        self._files.ftruncate(fd, len(entries))
        self._files.fdatasync(fd)
        self.refresh()
        self.is_cut = False

    def _set_length(self, length: int) -> None:
        assert self._writable
        before = self._length
        if length != before:
            # Another thread that looks at the file now shall not take it for cut.
            self._length = min(length, before)
            try:
                self._files.ftruncate(self._file(), length)
            except BaseException:
                self._length = before
                raise
            self._length = length

    # -- changing ------------------------------------------------------------------------------

    def extend(self, entries: bytes | bytearray) -> None:
        """Write packed entries, which rise, behind the last one, which is below them.

        More than ``capacity`` is no error.  OSError where the disk refuses; the count has not
        changed then.
        """
        last = self.last_entry
        assert (
            not entries
            or last is None
            or self._decoded(self.layout.unpack_from(entries))[0] > last[0]
        )
        self._write(entries)
        self._last = None

    def _append(self, entry: Entry, *fields: int) -> None:
        self._write(self.layout.pack(*fields))
        self._last = entry

    def _write(self, entries: bytes | bytearray) -> None:
        assert len(entries) % self._entry_size == 0
        assert self._writable
        position = self.count * self._entry_size
        fd = self._file()
        self._files.pwrite(fd, entries, position)
        # What has unsynced bytes stays open: ``let_go`` may have come before they were written.
        self.fd = fd
        end = position + len(entries)
        if end > self._length:
            self._length = end
        self.count = end // self._entry_size

    def truncate_to_offset(self, offset: int) -> None:
        """Drop the entries with that offset or a higher one; all, whatever the file holds, where
        ``offset`` is the base offset or lower.
        """
        self.truncate_to(self._last_up_to(offset - 1) + 1 if offset > self._base_offset else 0)

    def truncate_to(self, count: int) -> None:
        """Drop the entries from number ``count`` on.

        Of a pre-sized file they become zeros, so that nobody finds them after a crash; the length
        stays, because another thread may be reading.  A file that is not is cut.
        """
        assert 0 <= count <= self.count
        dropped, self.count = self.count - count, count
        self._forget()
        if not self._presized:
            self._set_length(count * self._entry_size)
        elif dropped:
            zeros = bytes(dropped * self._entry_size)
            self._files.pwrite(self._file(), zeros, count * self._entry_size)

    # -- reading -------------------------------------------------------------------------------

    def entry(self, number: int) -> Entry:
        """Entry ``number`` (< ``count``)."""
        assert 0 <= number < self.count
        at, memory = number * self._entry_size, self._memory
        low, data = memory.last
        at_last = at - low * self._entry_size
        if 0 <= at_last < len(data):
            return self._decoded(self.layout.unpack_from(data, at_last))
        data = memory.first
        if at < len(data):
            return self._decoded(self.layout.unpack_from(data, at))
        return self._decoded(self.layout.unpack(self._pread(at, self._entry_size)))

    @property
    def last_entry(self) -> Entry | None:
        """The last entry; None where there is none, or the file of ours was cut before it."""
        if self._last is None and self.count:
            try:
                self._last = self.entry(self.count - 1)
            except SegmentGone:
                if self._mend is None:
                    raise
        return self._last

    def sanity(self) -> str | None:
        """Why this cannot be a sound index, or None; looks at its ends only.

        The index's ``sanityCheck`` in Kafka, and that the last entry lies beyond the first, which
        an index that was not trimmed fails.
        """
        if self.odd_bytes:
            return f"its length is not a multiple of {self._entry_size}"
        last = self.last_entry
        return None if last is None else self._fault_of_ends(self.entry(0), last)

    def data(self) -> bytes:
        """All entries, packed."""
        return self._part(0, self.count)

    def entries(self) -> Iterator[Entry]:
        """Every entry that there is when its turn comes, rising."""
        number = 0
        while number < self.count:
            count = min(self.count - number, _CHUNK_ENTRIES)
            yield from map(self._decoded, self.layout.iter_unpack(self._part(number, count)))
            number += count

    def _part(self, number: int, count: int) -> bytes:
        """``count`` packed entries from ``number`` on."""
        start, size = number * self._entry_size, count * self._entry_size
        if not size:
            return b""
        return self._pread(start, size)

    def search(self, key: Struct, at: int, target: int) -> int:
        """The number of the last entry whose key is ≤ ``target``, or -1.

        ``key`` reads one number of 4 or 8 bytes at byte ``at`` of an entry; it never falls from one
        to the next.  Of a file that another process has cut, what is left is searched.
        """
        if self.is_cut and self._mend is not None:
            self._mend()
        # The memory first: no entries that are dropped now may get into the next one.
        memory, count = self._memory, self.count
        while count:
            try:
                return self._search(memory, key, at, target, count)
            except SegmentGone:
                memory, before = self._memory, count
                count = min(self._left(), self.count)
                if count >= before:
                    raise
        return -1

    def _search(self, memory: _Memory, key: Struct, at: int, target: int, count: int) -> int:
        """``search`` in the first ``count`` entries."""
        size, most = self._entry_size, _SEARCHED_BYTES // self._entry_size
        low, data = memory.last
        if not 0 < count - low <= most or len(data) != (count - low) * size:
            # A search by another thread, of an older count, may come in between.
            low = (count - 1) // most * most
            data = self._part(low, count - low)
            memory.last = low, data
        found = entries_up_to(data, size, at, key.size, count - low, target)
        if found or not low:
            return low + found - 1
        data, low, high = memory.first, 0, low
        memory.used = True
        if len(data) < high * size:
            data = self._fill(memory, high * size)
        if not data:
            # A few of them one by one, and the rest at once.
            while high - low > most:
                middle = (low + high) // 2
                (number,) = key.unpack(self._pread(middle * size + at, key.size))
                low, high = (middle + 1, high) if number <= target else (low, middle)
            data = self._part(low, high - low)
            memory.read += len(data)
        return low + entries_up_to(data, size, at, key.size, high - low, target) - 1

    def _fill(self, memory: _Memory, end: int) -> bytes:
        """Have all bytes before ``end`` in memory; b"" where that is not worth it yet."""
        data = memory.first
        if not data and memory.read * _WORTH < end:
            return data
        data += self._pread(len(data), end - len(data))
        memory.first = data
        _budget.admit(memory, end)
        return data

    def _forget(self) -> None:
        """Drop what is in memory, after ``count`` has changed; a search that has begun keeps it."""
        self._last = None
        memory, self._memory = self._memory, _Memory()
        memory.evict()
        _budget.dropped(memory)

    def _left(self) -> int:
        """How many whole entries the file has room for."""
        return self._files.size(self._file()) // self._entry_size

    def _pread(self, position: int, size: int) -> bytes:
        data = self._files.pread(self._file(), size, position)
        if len(data) == size:
            return data
        if self._mend is None:
            # The next search looks at what is left.
            self.refresh()
        elif position + size <= self._length:
            self.is_cut = True
            if self._mend():
                data = self._files.pread(self._file(), size, position)
        if len(data) != size:
            raise SegmentGone(
                "another process has truncated an index", path=self.path, position=position
            )
        return data

    def _used(self, count: int) -> int:
        """How many of ``count`` entries come before those that are all zero."""
        zero = bytes(self._entry_size)

        def is_zero(number: int) -> bool:
            entry = self._files.pread(self._file(), self._entry_size, number * self._entry_size)
            # A file that was cut meanwhile ends there.
            return len(entry) < self._entry_size or entry == zero

        if count and not is_zero(count - 1):
            return count
        return bisect.bisect_left(range(count), True, key=is_zero)
