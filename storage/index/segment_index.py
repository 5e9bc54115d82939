"""What the offset index and the time index of a segment have in common (``AbstractIndex.java``).

Layout: entries of one size back to back from byte 0, no header, no checksum.  An entry is a pair of
numbers, one of them an offset, which the file has relative to the segment's base offset.  Both rise
from one entry to the next, or one of them stays.

The file of a segment that is being written is pre-sized to ``max_bytes`` rounded down to whole
entries: a sparse tail of zeros.  ``trim`` cuts it to what is used.  The count of entries is kept in
memory; on open it is the file's length divided by the entry size, so an index that was never
trimmed looks full of zeros.

Reading goes through a read-only memory map where ``mapped``, else through ``pread``: the owner of
a foreign directory may cut a file under a map, which would be SIGBUS.  Writing is always
``pwrite``: a store into a mapped hole of a full disk would be SIGBUS too, and not ENOSPC.

Invariants: entries below ``count`` lie within the file, and only they are read, so a map never
faults; whatever shortens the file lets go of the map first.

One thread changes a file; others may read meanwhile.
"""

from __future__ import annotations

import bisect
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import ClassVar

from storage.errors import SegmentGone, UnusableFile
from storage.files import Files
from storage.index._search import entries_up_to

Entry = tuple[int, int]

# Searches look at the last entries first: most go there, and those pages are in memory
# (``AbstractIndex.java``, "warm section").
_WARM_BYTES = 8192
# Entries that an iterator reads at once.
_CHUNK_ENTRIES = 8192


class SegmentIndex(ABC):
    """One open index of the segment that starts at ``base_offset``.

    ``max_bytes``: the size of the file while it is written.  ``mapped`` is false for directories of
    others.  ``ignore_zero_tail``: entries that are all zero at the end do not count (the index of a
    writer that lives, or died).

    A file that is missing is created where ``writable``, else it counts as empty.
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
        mapped: bool,
        ignore_zero_tail: bool = False,
    ) -> None:
        self._files = files
        self.path = path
        self._base_offset = base_offset
        self._entry_size = self.layout.size
        self._writable = writable
        self._mapped = mapped
        self._ignore_zero_tail = ignore_zero_tail
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._last: Entry | None = None
        self._presized = False
        self._length = 0
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
        self._map = self._last = None
        self._presized = False
        if self._fd < 0 and not self._open():
            return
        self._length = self._files.size(self._fd)
        count = self._length // self._entry_size
        # Once, because another thread may be searching.
        self.count = self._used(count) if self._ignore_zero_tail else count

    def _open(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT if self._writable else os.O_RDONLY
        try:
            self._fd = self._files.open(self.path, flags)
        except (FileNotFoundError, UnusableFile):
            if self._writable:
                raise
            return False
        return True

    def close(self) -> None:
        """Close map and descriptor; the index is of no use afterwards."""
        self._map = self._last = None
        self.count = 0
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._files.close(fd)

    def sync(self) -> None:
        """Make the entries survive a power cut."""
        if self._fd >= 0:
            self._files.fdatasync(self._fd)

    @property
    def odd_bytes(self) -> int:
        """Bytes behind the last whole entry: 0 in a sound file."""
        return self._length % self._entry_size

    def presize(self) -> None:
        """Extend the file to ``capacity`` entries, sparsely; entries are never cut off."""
        self._set_length(max(self.capacity, self.count) * self._entry_size)
        self._presized = True

    def trim(self) -> None:
        """Cut the file to the entries that are used."""
        self._set_length(self.count * self._entry_size)
        self._presized = False

    def _set_length(self, length: int) -> None:
        assert self._writable
        before = self._length
        if length != before:
            self._map = None
            # Another thread that maps the file now shall not take it for longer than it is.
            self._length = min(length, before)
            try:
                self._files.ftruncate(self._fd, length)
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
        self._files.pwrite(self._fd, entries, position)
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
        self._last = None
        dropped, self.count = self.count - count, count
        if not self._presized:
            self._set_length(count * self._entry_size)
        elif dropped:
            zeros = bytes(dropped * self._entry_size)
            self._files.pwrite(self._fd, zeros, count * self._entry_size)

    # -- reading -------------------------------------------------------------------------------

    def entry(self, number: int) -> Entry:
        """Entry ``number`` (< ``count``)."""
        assert 0 <= number < self.count
        at = number * self._entry_size
        if self._mapped:
            return self._decoded(self.layout.unpack_from(self._view(), at))
        return self._decoded(self.layout.unpack(self._pread(at, self._entry_size)))

    @property
    def last_entry(self) -> Entry | None:
        """The last entry, or None where there is none."""
        if self._last is None and self.count:
            self._last = self.entry(self.count - 1)
        return self._last

    def sanity(self) -> str | None:
        """Why this cannot be a sound index, or None; looks at its ends only.

        The index's ``sanityCheck`` in Kafka, and that the last entry lies beyond the first, which
        an index that was not trimmed fails.
        """
        if self.odd_bytes:
            return f"its length is no multiple of {self._entry_size}"
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
        return self._view()[start : start + size] if self._mapped else self._pread(start, size)

    def search(self, key: Struct, at: int, target: int) -> int:
        """The number of the last entry whose key is ≤ ``target``, or -1.

        ``key`` reads one number of 4 or 8 bytes at byte ``at`` of an entry; it never falls from one
        to the next.  Of a file that another process has cut, what is left is searched.
        """
        size, count = self._entry_size, self.count
        if not count:
            return -1
        if self._mapped:
            warm = _WARM_BYTES // size
            return entries_up_to(self._view(), size, at, key.size, count, warm, target) - 1
        while True:
            try:
                return self._search_file(key, at, target, count)
            except SegmentGone:
                before, count = count, self.count
                if count >= before:
                    raise

    def _search_file(self, key: Struct, at: int, target: int, count: int) -> int:
        size, warm = self._entry_size, _WARM_BYTES // self._entry_size

        def probe(number: int) -> int:
            return int(key.unpack(self._pread(number * size + at, key.size))[0])

        low, high = 0, count
        if count > warm:
            if probe(count - warm) <= target:
                low = count - warm
            else:
                high = count - warm
        return bisect.bisect_right(range(high), target, low, key=probe) - 1

    def _view(self) -> mmap.mmap:
        """A map that covers all entries; the whole file is mapped, so seldom made."""
        view = self._map
        while view is None or len(view) < self.count * self._entry_size:
            length = self._length
            try:
                view = self._map = self._files.map(self._fd, length)
            except ValueError:
                # Longer than the file: another thread may have just cut it to what is used.
                if length == self._length:
                    raise
        return view

    def _pread(self, position: int, size: int) -> bytes:
        data = self._files.pread(self._fd, size, position)
        if len(data) != size:
            # The next search looks at what is left.
            self.refresh()
            raise SegmentGone(
                "an index was cut by another process", path=self.path, position=position
            )
        return data

    def _used(self, count: int) -> int:
        """How many of ``count`` entries come before those that are all zero."""
        zero = bytes(self._entry_size)

        def is_zero(number: int) -> bool:
            entry = self._files.pread(self._fd, self._entry_size, number * self._entry_size)
            # A file that was cut meanwhile ends there.
            return len(entry) < self._entry_size or entry == zero

        if count and not is_zero(count - 1):
            return count
        return bisect.bisect_left(range(count), True, key=is_zero)
