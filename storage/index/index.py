"""The offset index and the time index of a segment (`AbstractIndex.java`).

A file has entries of one size back to back, no header, no checksum. An entry is a pair of
big-endian numbers (`Layout`), which never fall from one entry to the next.

The index of the active segment is pre-sized, sparsely, with zeros; `trim` cuts it to its entries.
Appends use a descriptor that stays open until the entries are on the disk, because Linux reports a
failed write only to an open file or to the next opener. Other accesses use it, too, or open the
file by its present name, and close it.

A search reads the last page first (Kafka's "warm section"), then bisects the entries before it.
Once the last steps of bisections have read a quarter of the bytes before the last page, the next
search there loads all entries.
The last page and loaded entries stay in memory, within one budget for all indexes. No file is
mapped: if another process truncated it, SIGBUS would end this process.

Entries below `count` lie within the file, unless another process has truncated or removed it. Then
`rebuild` loads the entries again from the log. If it cannot, searches use the entries that are
left, and return an earlier place than necessary. The same holds for an index of another process
that cannot be read (EACCES, EIO), and if an append after a truncation leaves a hole, which reads as
entries of zeros.

One thread changes an index; others may search it meanwhile.

Not here: when an entry is made (`segment.writer`), whether it fits the log (`recovery`).
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from storage import paths
from storage.byte_budget import ByteBudget
from storage.descriptors import Descriptor
from storage.errors import SegmentGone, UnusableFile
from storage.files import Files
from storage.index._search import entries_up_to
from storage.waiting import before_waiting

Entry = tuple[int, int]

# Bytes that a search reads at once.
_PAGE_BYTES = 16384
# A search loads all entries once bisections have read 1/_LOAD_AFTER of the bytes before the last
# page.
_LOAD_AFTER = 4
# One budget for the indexes of all segments.
_budget = ByteBudget(64 << 20)


class Layout(NamedTuple):
    """One kind of index. `fields`: (place in the entry, bytes) of its two numbers.

    `offset_field`: which of the two fields is the offset. `spare`: the number of entries that
    sealing the segment may add.
    """

    suffix: str
    entry: Struct
    fields: tuple[tuple[int, int], tuple[int, int]]
    offset_field: int
    spare: int


# Offset → position of a batch (`OffsetIndex.java`). Both rise strictly. Sparse: most batches have
# no entry, the first of a segment never. An entry maps the *last* offset of a batch to that batch's
# start. Older brokers mapped the last offset of a whole append to its start, so a reader goes on
# from the position, and never assumes that the offset is in the batch there.
OFFSET = Layout(paths.INDEX, Struct(">ii"), ((0, 4), (4, 4)), offset_field=0, spare=0)
# Timestamp in ms → offset (`TimeIndex.java`): no record up to and including that offset has a
# larger timestamp. Timestamps rise strictly. The offset is the last one of the first batch whose
# largest timestamp is the largest so far. The last entry of a sealed segment has its largest
# timestamp, which retention uses.
TIME = Layout(paths.TIMEINDEX, Struct(">qi"), ((0, 8), (8, 4)), offset_field=1, spare=1)


class _Memory:
    """The entries of one index in memory: a cache of the `ByteBudget`.

    `held`: the number of the first entry, and the bytes of all from there on. `bytes_read`: the
    bytes that bisections have read from the file since the last eviction. `used`: see
    `byte_budget.Cache`.
    """

    __slots__ = ("bytes_read", "held", "used")

    def __init__(self) -> None:
        self.evict()
        self.used = False

    def evict(self) -> None:
        # One assignment, because another thread may be searching.
        self.held: tuple[int, bytes | bytearray] = (0, b"")
        self.bytes_read = 0

    def hold(self, first: int, entries: bytes) -> None:
        self.held = first, entries
        _budget.admit(self, len(entries))


class Index:
    """One index of the segment that starts at `base_offset`.

    `open_file`: opens the file of a suffix by the flags of `open(2)`; the descriptor closes itself
    after its last use. `max_bytes`: the size of the file while it is written. `is_active`: the
    file may be pre-sized: entries of zeros at its end do not count. `rebuild`: called if the file
    has lost entries. It loads them again and returns True, or False if that cannot be done now.
    None: the file is another process's.

    `is_sound`: whether the file could be a sound index when it was opened. The checks are those of
    Kafka's `sanityCheck`: of the length, and of the last entry. If an offset index has several
    entries, the last one must also be above the first one; in an untrimmed index it is not.
    """

    __slots__ = (
        *("layout", "count", "capacity", "fd", "_files", "_base_offset", "_open_file", "_rebuild"),
        *("is_sound", "_last", "_memory", "_length"),
    )

    def __init__(
        self,
        files: Files,
        layout: Layout,
        base_offset: int,
        open_file: Callable[[str, int], Descriptor],
        *,
        max_bytes: int = 0,
        is_active: bool = False,
        rebuild: Callable[[], bool] | None = None,
    ) -> None:
        """Create the file if it is missing and belongs to this process's active segment. Errors:
        OSError.
        """
        self.layout = layout
        self.capacity = max_bytes // layout.entry.size
        # The open file while it has entries that may not be on the disk, else -1.
        self.fd = -1
        self._files = files
        self._base_offset = base_offset
        self._open_file = open_file
        self._rebuild = rebuild
        self._last: Entry | None = None
        self._memory = _Memory()
        # The length that the file must have. If it is shorter, another process has truncated it.
        self._length = self.count = 0
        self.is_sound = False
        with contextlib.suppress(SegmentGone):
            fd = self.open_to_write() if is_active and rebuild is not None else self._file()
            self._length = files.size(fd)
            self.count = self._length // layout.entry.size
            if is_active:
                self.count = self._nonzero_count(fd)
            self.is_sound = self._has_sound_ends(fd)

    @classmethod
    def of_file(
        cls, files: Files, layout: Layout, path: str, base_offset: int, *, is_active: bool = False
    ) -> Index:
        """Return the index in a file that is only read."""

        def open_file(_: str, flags: int) -> Descriptor:
            return Descriptor(files, path, flags)

        return cls(files, layout, base_offset, open_file, is_active=is_active)

    # -- the file ------------------------------------------------------------------------------

    def _file(self) -> int:
        """Return a descriptor for reading. Errors: BlockingIOError if the file is not open and the
        caller may not wait; SegmentGone, OSError.
        """
        fd = self.fd
        if fd >= 0:
            return fd
        before_waiting()
        try:
            return self._open_file(self.layout.suffix, os.O_RDONLY)
        except (FileNotFoundError, UnusableFile) as error:
            reason = "another process has removed the index"
            raise SegmentGone(reason, path=error.filename) from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _pread(self, fd: int, size: int, position: int) -> bytes:
        """Read the file. Errors: SegmentGone, OSError."""
        try:
            return self._files.pread(fd, size, position)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> Exception:
        """Return the error of a failed access: of another process's index, it is as if removed."""
        if self._rebuild is None and error.errno in (errno.EACCES, errno.EIO):
            return SegmentGone(f"an index cannot be read: {error}")
        return error

    def open_to_write(self) -> int:
        """Open the file, which stays open until `release`. Thread-safe. Errors: OSError."""
        fd = self.fd
        if fd < 0:
            self.fd = fd = self._open_file(self.layout.suffix, os.O_RDWR | os.O_CREAT)
        return fd

    def release(self) -> None:
        """Close the file after its last use. The entries stay in memory. Thread-safe."""
        self.fd = -1

    def _nonzero_count(self, fd: int) -> int:
        """Return the number of entries before the zeros at the end of a pre-sized file.

        If the last entry is not zero, all entries count. Otherwise the result may end at a hole.
        """
        size = self.layout.entry.size

        def is_zero(number: int) -> bool:
            # A file that was truncated meanwhile ends there.
            return not any(self._pread(fd, size, number * size))

        if self.count and not is_zero(self.count - 1):
            return self.count
        return bisect.bisect_left(range(self.count), True, key=is_zero)

    def _has_sound_ends(self, fd: int) -> bool:
        """Return `is_sound`, and set `_last`. Errors: SegmentGone, OSError."""
        if self._length % self.layout.entry.size:
            return False
        if not self.count:
            return True
        first, last = (
            self._decoded(self._read(fd, number, 1), 0) for number in (0, self.count - 1)
        )
        self._last = last
        rises = last[0] >= first[0]
        if self.layout is OFFSET and self.count > 1:
            rises = last[0] > first[0] and last[1] > first[1]
        return rises and last[self.layout.offset_field] >= self._base_offset

    def sync(self) -> None:
        """Make the entries survive a power cut."""
        self._files.fdatasync(self.open_to_write())

    def close(self) -> None:
        """Close the file, and drop the entries from memory."""
        self.release()
        self._forget()

    def _forget(self) -> None:
        """Drop the entries from memory. A running search still uses its own reference to them."""
        self._last = None
        memory, self._memory = self._memory, _Memory()
        _budget.dropped(memory)

    def pin(self) -> None:
        """Keep the loaded entries in memory, because the file is about to be deleted."""
        # The budget evicts only caches that it counts.
        _budget.dropped(self._memory)

    def load(self, entries: bytes) -> None:
        """Load all entries, which were rebuilt from the log."""
        self._forget()
        self.count = len(entries) // self.layout.entry.size
        self._memory.hold(0, entries)

    def _stored_count(self) -> int:
        """Return the number of whole entries in the file; 0 if the file is missing."""
        with contextlib.suppress(SegmentGone):
            return self._files.size(self._file()) // self.layout.entry.size
        return 0

    # -- reading -------------------------------------------------------------------------------

    @property
    def last_entry(self) -> Entry | None:
        """The last entry; None: there is none, or another process has truncated the file."""
        last, count = self._last, self.count
        if last is None and count:
            # It is not kept: another thread may append meanwhile.
            with contextlib.suppress(SegmentGone):
                return self.entry(count - 1)
        return last

    def entry(self, number: int) -> Entry:
        """Return entry `number` (< `count`). Errors: SegmentGone, OSError."""
        assert 0 <= number < self.count
        first, data = self._memory.held
        at = (number - first) * self.layout.entry.size
        if 0 <= at < len(data):
            return self._decoded(data, at)
        return self._decoded(self._read(self._file(), number, 1), 0)

    def data(self, count: int | None = None) -> bytes:
        """Return the first `count` entries, or all, packed. Errors: SegmentGone, OSError."""
        count = self.count if count is None else count
        return self._read(self._file(), 0, count) if count else b""

    def _decoded(self, data: bytes | bytearray, at: int) -> Entry:
        first, second = self.layout.entry.unpack_from(data, at)
        if self.layout.offset_field:
            return first, second + self._base_offset
        return first + self._base_offset, second

    def _read(self, fd: int, number: int, count: int) -> bytes:
        size = self.layout.entry.size
        data = self._pread(fd, count * size, number * size)
        if len(data) < count * size:
            path = fd.path if isinstance(fd, Descriptor) else None
            raise SegmentGone("another process has truncated the index", path=path)
        return data

    # -- changing ------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the segment should roll before its next append."""
        return self.count >= self.capacity - self.layout.spare

    def presize(self) -> None:
        """Extend the file to `capacity` entries, sparsely. No entry is cut off. Errors: OSError."""
        size = self.layout.entry.size
        length = max(self.capacity, self.count) * size
        if self._files.size(self.open_to_write()) < self.count * size:
            # Another process has truncated the file. Without capacity, the index is full, and the
            # segment rolls. `trim` compares the file with `_length`.
            self.capacity = 0
            self._length = length
        else:
            self._set_length(length)

    def trim(self) -> None:
        """Cut the file to its entries. Errors: OSError.

        If another process has truncated the file, make it one byte long: no sound index has this
        length. The next search or the next start then rebuilds the index.
        """
        length = self.count * self.layout.entry.size
        if self._files.size(self.open_to_write()) < self._length:
            self._set_length(1)
        else:
            self._set_length(length)
        # Not 1: the next `trim` must notice, too, that entries are missing.
        self._length = length

    def _set_length(self, length: int) -> None:
        if length != self._length:
            self._files.ftruncate(self.open_to_write(), length)
            self._length = length

    def append(self, first: int, second: int) -> None:
        """Add an entry. A time index ignores a timestamp below 0, or not above the last one.

        A full index takes the entry, too: the batches of an append that began before the index was
        full are all indexed. Errors: OSError from the disk; nothing has changed.
        """
        base, last = self._base_offset, self.last_entry
        if self.layout is OFFSET:
            assert last is None or (first > last[0] and second > last[1]), (first, second, last)
            self._write(self.layout.entry.pack(first - base, second))
        else:
            assert last is None or (first >= last[0] and second >= last[1]), (first, second, last)
            if first <= (-1 if last is None else last[0]):
                return
            self._write(self.layout.entry.pack(first, second - base))
        self._last = first, second

    def extend(self, entries: bytes | bytearray) -> None:
        """Write packed ascending entries after the last one.

        More than `capacity` is no error. Errors: OSError; the count has not changed.
        """
        last = self.last_entry
        assert len(entries) % self.layout.entry.size == 0
        assert not entries or last is None or self._decoded(entries, 0)[0] > last[0]
        self._write(entries)

    def _write(self, entries: bytes | bytearray) -> None:
        size = self.layout.entry.size
        position = self.count * size
        fd = self.open_to_write()
        self._files.pwrite(fd, entries, position)
        # Another thread may have released the file meanwhile. It has to stay open until the next
        # sync: Linux reports a failed write to this descriptor.
        self.fd = fd
        self._length = max(self._length, position + len(entries))
        low, held = self._memory.held
        if held and low * size + len(held) == position:
            if isinstance(held, bytes):
                held = bytearray(held)
                self._memory.held = low, held
            try:
                held += entries
            except BufferError:  # another thread is reading them
                self._forget()
            else:
                # Once a page, because `admit` takes a lock.
                if len(held) % _PAGE_BYTES < len(entries):
                    _budget.admit(self._memory, len(held))
        self._last = None
        self.count += len(entries) // size

    def truncate_to_offset(self, offset: int) -> None:
        """Drop the entries with an offset ≥ `offset`.

        If `offset` is the base offset or below it, drop all entries without reading the file.
        """
        self.truncate_to(self.count_to(offset - 1))

    def truncate_to(self, count: int) -> None:
        """Drop the entries from number `count` on.

        In a pre-sized file they become zeros, so that a start does not find them after a crash; the
        length stays, because another thread may be reading. Another file is cut.
        """
        assert 0 <= count <= self.count
        size = self.layout.entry.size
        dropped, self.count = (self.count - count) * size, count
        self._forget()
        if self._length <= count * size + dropped:
            # No zeros follow the entries: the file is not pre-sized.
            self._set_length(count * size)
        elif dropped:
            self._files.pwrite(self.open_to_write(), bytes(dropped), count * size)

    # -- looking up ----------------------------------------------------------------------------

    def lookup(self, first: int) -> Entry:
        """Return the last entry whose first field is ≤ `first`.

        Without one: (base offset, 0) in an offset index, (-1, base offset) in a time index.
        """
        base = self._base_offset
        if self.layout is OFFSET:
            return self._find(0, first - base) or (base, 0)
        return self._find(0, first) or (-1, base)

    def at_or_before(self, position: int) -> Entry | None:
        """Return the last (offset, position) at or before `position`, if there is one."""
        return self._find(1, position)

    def after(self, position: int) -> Entry | None:
        """Return the first (offset, position) after `position`, if there is one."""
        return self._find(1, position, 1)

    def position_after(self, position: int) -> int | None:
        """Return the position of the entry `after`, if there is one."""
        entry = self.after(position)
        return None if entry is None else entry[1]

    def count_to(self, offset: int) -> int:
        """Return the number of whole entries with an offset ≤ `offset`. Errors: SegmentGone,
        OSError.

        An entry of a time index may lie across two pages. If the machine stopped while it was
        written, its offset may be zero in the file, which reads as the base offset. Such an entry
        is not whole.
        """
        if offset < self._base_offset:
            return 0
        number, _, _ = self._search(self.layout.offset_field, offset - self._base_offset)
        while number > 0 and self.layout is TIME:
            (first, second), before = self.entry(number), self.entry(number - 1)
            if first > before[0] and second >= before[1]:
                break
            number -= 1
        return number + 1

    def _find(self, field: int, target: int, step: int = 0) -> Entry | None:
        """Return the entry `step` entries after the last one whose field `field` is ≤ `target`.

        Return None if there is no such entry, or if another process has truncated the file.
        """
        number, first, data = self._search(field, target)
        number += step
        at = (number - first) * self.layout.entry.size
        if 0 <= at < len(data):
            return self._decoded(data, at)
        with contextlib.suppress(SegmentGone):
            return self.entry(number) if 0 <= number < self.count else None
        return None

    def _search(self, field: int, target: int) -> tuple[int, int, bytes | bytearray]:
        """Find the last entry whose field `field`, as stored in the file, is ≤ `target`.

        Return its number, or -1. Also return the entries that were searched last: the number of the
        first of them, and their bytes. Errors: OSError.
        """
        # The memory before the count: `_forget` replaces `_memory`, and a search that still reads
        # dropped entries stores them in the old one.
        memory, count, rebuild = self._memory, self.count, self._rebuild
        while count:
            try:
                return self._search_in(memory, count, field, target)
            except SegmentGone:
                if rebuild is not None and rebuild():
                    memory, count = self._memory, self.count
                else:
                    stored = self._stored_count()
                    if stored >= count:
                        break  # the file has the entries, and cannot be read
                    count = stored
                # At most once: `rebuild` may have loaded another `Index` of this segment.
                rebuild = None
        return -1, 0, b""

    def _search_in(
        self, memory: _Memory, count: int, field: int, target: int
    ) -> tuple[int, int, bytes | bytearray]:
        """Search the first `count` entries; return as `_search`. Errors: SegmentGone, OSError."""
        size, (place, width) = self.layout.entry.size, self.layout.fields[field]
        per_page = _PAGE_BYTES // size
        memory.used = True
        fd = -1
        data: bytes | bytearray
        low, data = memory.held
        if low >= count or len(data) < (count - low) * size:
            # The memory lacks the last entries: read the last page.
            fd, low = self._file(), (count - 1) // per_page * per_page
            data = self._read(fd, low, count - low)
            memory.hold(low, data)
        found = entries_up_to(data, size, place, width, count - low, target)
        if found or not low:
            return low + found - 1, low, data
        if fd < 0:
            fd = self._file()
        low, high = 0, low
        if memory.bytes_read * _LOAD_AFTER >= high * size:
            data = self._read(fd, 0, count)
            memory.hold(0, data)
        else:
            # The first steps read single fields, the last step reads the rest at once.
            while high - low > per_page:
                middle = (low + high) // 2
                key = self._pread(fd, width, middle * size + place)
                if int.from_bytes(key, "big", signed=True) <= target:
                    low = middle + 1
                else:
                    high = middle
            data = self._read(fd, low, high - low)
            memory.bytes_read += len(data)
        return low + entries_up_to(data, size, place, width, high - low, target) - 1, low, data
