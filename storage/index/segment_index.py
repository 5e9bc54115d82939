"""The common base of a segment's offset index and time index (`AbstractIndex.java`).

Layout: entries of one size back to back from byte 0, no header, no checksum. An entry is a pair of
numbers, one of them an offset relative to the segment's base offset. Both rise from one entry to
the next, or one of them stays.

The file of a segment that is being written is pre-sized to `max_bytes` rounded down to whole
entries: a sparse tail of zeros. `trim` cuts it to the used part. The count of entries is kept in
memory; on open it is the file's length divided by the entry size, so an index that was never
trimmed seems to be full of zeros.

Reading is `pread` and writing is `pwrite`. Nothing is mapped: if another process truncated the
file, or the disk were full at a store into a hole, SIGBUS would end this process. Bytes read by
lookups stay in memory, within a budget of all indexes, until the file is made shorter.

Invariant: entries below `count` lie within the file. Another process may break it. In a directory
of another process, the rest of the file counts then. For an index of ours, `mend` rebuilds the
file; until then lookups search the rest. They then lead to an earlier place than necessary, and so
do entries of zeros, where appends have left a hole.

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

# Bytes that a search reads at once. It begins with the last ones: most searches end there, and
# those pages are in memory (`AbstractIndex.java`, "warm section").
_SEARCHED_BYTES = 4096
# Entries that an iterator reads at once.
_CHUNK_ENTRIES = 8192
# Entries are read into memory once searches have read this part of their bytes from the file.
_WORTH = 4
# Of the indexes of all segments.
_budget = ByteBudget(64 << 20)


class _Memory:
    """Entries of one index in memory.

    `first`: those from the file's start on. `last`: the position of the last ones, and their bytes,
    up to the end. `read`: the bytes that searches have read besides `first`.
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
    """One open index of the segment that starts at `base_offset`.

    `max_bytes`: the size of the file while it is written. `ignore_zero_tail`: entries that are all
    zero at the end do not count (the index of a living or dead writer). `mend`: called if a file of
    ours was truncated; it rebuilds the file and returns True, or returns False if that cannot be
    done now. BlockingIOError if it may not wait.

    A missing file is created if `writable`, else it counts as empty.

    `opener`: opens the file by the flags of `open(2)`, at every access after `let_go`, and closes
    it after the last use of the descriptor. Else `close` closes it.
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
        # Whether another process has truncated the file since it was made.
        self.is_cut = False
        self.capacity = max_bytes // self._entry_size
        self.count = 0
        self.refresh()

    @abstractmethod
    def _decoded(self, fields: Sequence[int]) -> Entry:
        """Return an entry from its fields in the file."""

    @abstractmethod
    def _fault_of_ends(self, first: Entry, last: Entry) -> str | None:
        """Return why a sound index cannot have these as its first and last entry, or None."""

    @abstractmethod
    def _last_up_to(self, offset: int) -> int:
        """Return the number of the last entry with an offset ≤ `offset`, or -1."""

    # -- the file ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Stat the file again: another process may have made it, extended it or truncated it."""
        self._forget()
        self._presized = False
        if self.fd < 0 and not self._open():
            return
        self._length = self._files.size(self._file())
        count = self._length // self._entry_size
        # One assignment, because another thread may be searching.
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
        """Return the open file; another thread may call `let_go` meanwhile."""
        fd = self.fd
        if fd < 0 and self._open():
            fd = self.fd
            self._look(fd)
        return fd

    def let_go(self) -> None:
        """Drop the descriptor. A running call keeps it; the next one opens the file."""
        self.fd = -1

    def close(self) -> None:
        """Close the file for good; detect a truncation."""
        self.count = 0
        self._forget()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._look(fd)
            if self._opener is None:
                self._files.close(fd)

    def sync(self) -> None:
        """Make the entries survive a power cut; detect a truncation."""
        fd = self.fd
        if fd >= 0:
            self._files.fdatasync(fd)
            self._look(fd)

    def _look(self, fd: int) -> None:
        if self._mend is not None and self._files.size(fd) < self._length:
            self.is_cut = True

    @property
    def odd_bytes(self) -> int:
        """Bytes after the last whole entry: 0 in a sound file."""
        return self._length % self._entry_size

    def presize(self) -> None:
        """Extend the file to `capacity` entries, sparsely; entries are never cut off."""
        self._set_length(max(self.capacity, self.count) * self._entry_size)
        self._presized = True

    def trim(self) -> None:
        """Cut the file to the used entries.

        If another process has truncated it, it gets a length that no sound index has: then a start
        rebuilds it, if `mend` has not done so before.
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
        """Rewrite a truncated file, in place, durably; `fd`: a descriptor for writing.

        Thread-safe: several threads write the same bytes. Errors: OSError.
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
            # Another thread must not mistake the file for a truncated one.
            self._length = min(length, before)
            try:
                self._files.ftruncate(self._file(), length)
            except BaseException:
                self._length = before
                raise
            self._length = length

    # -- changing ------------------------------------------------------------------------------

    def extend(self, entries: bytes | bytearray) -> None:
        """Write packed ascending entries, all above the last one, after it.

        More than `capacity` is no error. Errors: OSError; the count has not changed.
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
        # A file with unsynced bytes stays open: `let_go` may have come before they were written.
        self.fd = fd
        end = position + len(entries)
        if end > self._length:
            self._length = end
        self.count = end // self._entry_size

    def truncate_to_offset(self, offset: int) -> None:
        """Drop the entries with that offset or a higher one; all of them, whatever the file has, if
        `offset` is the base offset or lower.
        """
        self.truncate_to(self._last_up_to(offset - 1) + 1 if offset > self._base_offset else 0)

    def truncate_to(self, count: int) -> None:
        """Drop the entries from number `count` on.

        In a pre-sized file they become zeros, so that a start does not find them after a crash; the
        length stays, because another thread may be reading. Another file is cut.
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
        """Return entry `number` (< `count`)."""
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
        """The last entry; None: there is none, or the file of ours was truncated before it."""
        if self._last is None and self.count:
            try:
                self._last = self.entry(self.count - 1)
            except SegmentGone:
                if self._mend is None:
                    raise
        return self._last

    def sanity(self) -> str | None:
        """Return why this cannot be a sound index, or None; checks only its ends.

        Kafka's `sanityCheck` of the index, and that the last entry is above the first, which fails
        for an untrimmed index.
        """
        if self.odd_bytes:
            return f"its length is not a multiple of {self._entry_size}"
        last = self.last_entry
        return None if last is None else self._fault_of_ends(self.entry(0), last)

    def data(self) -> bytes:
        """Return all entries, packed."""
        return self._part(0, self.count)

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, ascending, as it is when it is read."""
        number = 0
        while number < self.count:
            count = min(self.count - number, _CHUNK_ENTRIES)
            yield from map(self._decoded, self.layout.iter_unpack(self._part(number, count)))
            number += count

    def _part(self, number: int, count: int) -> bytes:
        """Return `count` packed entries from `number` on."""
        start, size = number * self._entry_size, count * self._entry_size
        if not size:
            return b""
        return self._pread(start, size)

    def search(self, key: Struct, at: int, target: int) -> int:
        """Return the number of the last entry whose key is ≤ `target`, or -1.

        `key` reads one number of 4 or 8 bytes at byte `at` of an entry; it never falls from one to
        the next. If another process has truncated the file, the rest is searched.
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
        """Search the first `count` entries."""
        size, most = self._entry_size, _SEARCHED_BYTES // self._entry_size
        low, data = memory.last
        if not 0 < count - low <= most or len(data) != (count - low) * size:
            # A search by another thread, with an older count, may come in between.
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
            # The first steps read single entries, the last step reads the rest at once.
            while high - low > most:
                middle = (low + high) // 2
                (number,) = key.unpack(self._pread(middle * size + at, key.size))
                low, high = (middle + 1, high) if number <= target else (low, middle)
            data = self._part(low, high - low)
            memory.read += len(data)
        return low + entries_up_to(data, size, at, key.size, high - low, target) - 1

    def _fill(self, memory: _Memory, end: int) -> bytes:
        """Read all bytes before `end` into memory; return b"" if that does not pay yet."""
        data = memory.first
        if not data and memory.read * _WORTH < end:
            return data
        data += self._pread(len(data), end - len(data))
        memory.first = data
        _budget.admit(memory, end)
        return data

    def _forget(self) -> None:
        """Drop the bytes in memory, after `count` has changed; a running search keeps them."""
        self._last = None
        memory, self._memory = self._memory, _Memory()
        memory.evict()
        _budget.dropped(memory)

    def _left(self) -> int:
        """Return the number of whole entries that the file has room for."""
        return self._files.size(self._file()) // self._entry_size

    def _pread(self, position: int, size: int) -> bytes:
        data = self._files.pread(self._file(), size, position)
        if len(data) == size:
            return data
        if self._mend is None:
            # The next search uses the rest.
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
        """Return the number of entries, of `count`, before those that are all zero."""
        zero = bytes(self._entry_size)

        def is_zero(number: int) -> bool:
            entry = self._files.pread(self._file(), self._entry_size, number * self._entry_size)
            # A file that was truncated meanwhile ends there.
            return len(entry) < self._entry_size or entry == zero

        if count and not is_zero(count - 1):
            return count
        return bisect.bisect_left(range(count), True, key=is_zero)
