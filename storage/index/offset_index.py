"""``.index``: offset → position of a batch in the segment's log (``OffsetIndex.java``).

Entry, 8 bytes big-endian: relative offset i32 (offset - base offset of the segment), position i32
(where a batch starts, in bytes).  Offsets and positions strictly rise.  Sparse: most batches have
no entry, the first of a segment never.  An entry maps the *last* offset of a batch to that batch's
start; older brokers mapped the last offset of a whole append to its start, so a reader scans on
from the position and never assumes that the offset is in the batch there.

Not here: when an entry is made (``segment``), whether it fits the log (``recovery``).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from storage.files import Files
from storage.index.entry_file import EntryFile

ENTRY_SIZE = 8
_ENTRY = Struct(">ii")
_NUMBER = Struct(">i")


class OffsetIndex:
    """The offset index of the segment that starts at ``base_offset``.

    ``writable`` creates a missing file, ``mapped`` is false for directories of others,
    ``ignore_zero_tail`` true where a writer may live or have died.
    """

    __slots__ = ("_base_offset", "_file", "_last")

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
        self._base_offset = base_offset
        self._file = EntryFile(
            files,
            path,
            ENTRY_SIZE,
            max_bytes,
            writable=writable,
            mapped=mapped,
            ignore_zero_tail=ignore_zero_tail,
        )
        self._last: tuple[int, int] | None = None

    # -- facts ---------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def count(self) -> int:
        """Entries in use."""
        return self._file.count

    @property
    def is_full(self) -> bool:
        """Whether the segment should roll before its next append."""
        return self._file.count >= self._file.capacity

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """(offset, position) of the last entry, or None where there is none."""
        if self._last is None and self._file.count:
            self._last = self._entry(self._file.count - 1)
        return self._last

    def entries(self) -> Iterator[tuple[int, int]]:
        """Every (offset, position), rising."""
        base = self._base_offset
        for relative, position in self._file.entries(_ENTRY):
            yield base + relative, position

    def data(self) -> bytes:
        """All entries as they are in the file."""
        return self._file.data()

    def entries_before(self, offset: int) -> bytes:
        """The entries with a lower offset, packed."""
        if offset <= self._base_offset:
            return b""
        number = self._file.search(_NUMBER, 0, offset - 1 - self._base_offset)
        return self._file.data()[: (number + 1) * ENTRY_SIZE]

    def sanity(self) -> str | None:
        """Why this cannot be a sound index, or None; looks at its ends only.

        ``OffsetIndex.sanityCheck``, and that the last entry lies beyond the first, which an index
        that was not trimmed fails.
        """
        if self._file.odd_bytes:
            return f"its length is no multiple of {ENTRY_SIZE}"
        last = self.last_entry
        if last is None:
            return None
        if last[0] < self._base_offset:
            return f"its last offset {last[0]} is below the base offset {self._base_offset}"
        first = self._entry(0)
        if self.count > 1 and (last[0] <= first[0] or last[1] <= first[1]):
            return f"its last entry {last} is not beyond its first {first}"
        return None

    # -- looking up ----------------------------------------------------------------------------

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last (offset, position) with offset ≤ the one asked for, else (base offset, 0)."""
        number = self._file.search(_NUMBER, 0, offset - self._base_offset)
        return self._entry(number) if number >= 0 else (self._base_offset, 0)

    def upper_bound(self, position: int, fetch_size: int) -> int | None:
        """The offset of the first entry that lies ``fetch_size`` bytes or more behind ``position``.

        None where no entry does (``OffsetIndex.fetchUpperBoundOffset``).
        """
        number = self._file.search(_NUMBER, 4, position + fetch_size - 1) + 1
        return self._entry(number)[0] if number < self._file.count else None

    def at_or_before(self, position: int) -> tuple[int, int] | None:
        """The last (offset, position) that does not lie behind ``position``, if there is one."""
        number = self._file.search(_NUMBER, 4, position)
        return self._entry(number) if number >= 0 else None

    def behind(self, position: int) -> int | None:
        """The position of the first entry that lies behind ``position``; None: none does."""
        number = self._file.search(_NUMBER, 4, position) + 1
        return self._entry(number)[1] if number < self._file.count else None

    def _entry(self, number: int) -> tuple[int, int]:
        relative, position = self._file.unpack(_ENTRY, number)
        return self._base_offset + relative, position

    # -- changing ------------------------------------------------------------------------------

    def append(self, offset: int, position: int) -> None:
        """Add an entry; its offset is above the last one's.

        An append that was begun before the index was full is indexed whole, so a full index takes
        more.  OSError where the disk refuses; nothing has changed then.
        """
        last = self.last_entry
        assert last is None or (offset > last[0] and position > last[1]), (offset, position, last)
        self._file.append(_ENTRY.pack(offset - self._base_offset, position))
        self._last = (offset, position)

    def extend(self, entries: bytes | bytearray) -> None:
        """Add packed entries, which rise among themselves, above the last one's."""
        last = self.last_entry
        assert (
            not entries
            or last is None
            or _NUMBER.unpack_from(entries)[0] > (last[0] - self._base_offset)
        )
        self._file.append(entries)
        self._last = None

    def truncate_to_offset(self, offset: int) -> None:
        """Drop the entries with that offset or a higher one; of whatever the file holds, with
        the base offset or a lower one, all.
        """
        self._last = None
        number = -1
        if offset > self._base_offset:
            number = self._file.search(_NUMBER, 0, offset - 1 - self._base_offset)
        self._file.truncate_to(number + 1)

    # -- the file ------------------------------------------------------------------------------

    def presize(self) -> None:
        """Make the file as long as ``max_bytes`` allows, sparsely, before appending to it."""
        self._file.presize()

    def trim(self) -> None:
        """Cut the file to its entries, when the segment is sealed or closed."""
        self._file.trim()

    def refresh(self) -> None:
        """Look at the file of another process again: it grows and shrinks as that one likes."""
        self._last = None
        self._file.refresh()

    def sync(self) -> None:
        """Make the entries survive a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Close the file; the index is of no use afterwards."""
        self._last = None
        self._file.close()
