"""A file of fixed-width entries in rising order: what the indexes of a segment have in common.

Layout: entries back to back from byte 0, no header, no checksum.  The file of a segment that is
being written is pre-sized to ``max_bytes`` rounded down to whole entries: a sparse tail of zeros
(``AbstractIndex.java``).  ``trim`` cuts it to what is used.  The count of entries is kept in
memory; on open it is the file's length divided by the entry size, so an index that was never
trimmed looks full of zeros.

Reading goes through a read-only memory map where ``mapped``, else through ``pread``: the owner of
a foreign directory may cut a file under a map, which would be SIGBUS.  Writing is always
``pwrite``: a store into a mapped hole of a full disk would be SIGBUS too, and not ENOSPC.

Invariants: entries below ``count`` lie within the file, and only they are read, so a map never
faults; whatever shortens the file lets go of the map first.

One thread changes a file; others may read meanwhile.  Not here: what an entry says.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Iterator
from struct import Struct
from typing import Any

from storage.errors import SegmentGone, UnusableFile
from storage.files import Files
from storage.index._search import entries_up_to

# Searches look at the last entries first: most go there, and those pages are in memory
# (``AbstractIndex.java``, "warm section").
_WARM_BYTES = 8192
# Entries that are read at once by an iterator: a multiple of every entry size, in bytes.
_CHUNK_ENTRIES = 8192


class EntryFile:
    """An open index file.

    ``max_bytes``: the size of the file while it is written.  ``ignore_zero_tail``: entries that
    are all zero at the end do not count (the index of a writer that lives, or died).

    A file that is missing is created where ``writable``, else it counts as empty.
    """

    __slots__ = (
        "_entry_size",
        "_fd",
        "_files",
        "_ignore_zero_tail",
        "_length",
        "_map",
        "_mapped",
        "_presized",
        "_writable",
        "capacity",
        "count",
        "path",
    )

    def __init__(
        self,
        files: Files,
        path: str,
        entry_size: int,
        max_bytes: int,
        *,
        writable: bool,
        mapped: bool,
        ignore_zero_tail: bool = False,
    ) -> None:
        self._files = files
        self.path = path
        self._entry_size = entry_size
        self._writable = writable
        self._mapped = mapped
        self._ignore_zero_tail = ignore_zero_tail
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._presized = False
        self._length = 0
        self.capacity = max_bytes // entry_size
        self.count = 0
        self.refresh()

    # -- the file ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look at the file anew: another process may have made it, extended it or cut it."""
        self._map = None
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
        """Close map and descriptor; the object is of no use afterwards."""
        self._map = None
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

    def add(self, entries: bytes | bytearray) -> None:
        """Write one or more packed entries at the end; more than ``capacity`` is no error.

        OSError where the disk refuses; the count has not changed then.
        """
        assert len(entries) % self._entry_size == 0
        assert self._writable
        position = self.count * self._entry_size
        self._files.pwrite(self._fd, entries, position)
        end = position + len(entries)
        if end > self._length:
            self._length = end
        self.count = end // self._entry_size

    def truncate_to(self, count: int) -> None:
        """Forget the entries from number ``count`` on.

        Of a pre-sized file they become zeros, so that nobody finds them after a crash; the length
        stays, because another thread may be reading.  A file that is not is cut.
        """
        assert 0 <= count <= self.count
        dropped, self.count = self.count - count, count
        if not self._presized:
            self._set_length(count * self._entry_size)
        elif dropped:
            zeros = bytes(dropped * self._entry_size)
            self._files.pwrite(self._fd, zeros, count * self._entry_size)

    # -- reading -------------------------------------------------------------------------------

    def unpack(self, fields: Struct, number: int) -> tuple[Any, ...]:
        """The fields of entry ``number``, which starts with them."""
        assert 0 <= number < self.count
        if self._mapped:
            return fields.unpack_from(self._view(), number * self._entry_size)
        return fields.unpack(self._pread(number * self._entry_size, fields.size))

    def data(self) -> bytes:
        """All entries, packed."""
        size = self.count * self._entry_size
        if not size:
            return b""
        return self._view()[:size] if self._mapped else self._pread(0, size)

    def unpack_all(self, fields: Struct) -> Iterator[tuple[Any, ...]]:
        """The fields of every entry that there is when its turn comes."""
        assert fields.size == self._entry_size
        number = 0
        while number < self.count:
            chunk = min(self.count - number, _CHUNK_ENTRIES) * self._entry_size
            start = number * self._entry_size
            data = (
                self._view()[start : start + chunk] if self._mapped else self._pread(start, chunk)
            )
            yield from fields.iter_unpack(data)
            number += chunk // self._entry_size

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
            # Whoever asks again asks for what is left.
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
