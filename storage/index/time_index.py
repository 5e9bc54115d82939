"""``.timeindex``: timestamp → offset (``TimeIndex.java``).

Entry, 12 bytes big-endian: timestamp i64 in ms, relative offset i32 (offset - base offset of the
segment).  It says that no record up to and including that offset has a larger timestamp.
Timestamps strictly rise, offsets never fall.  The offset is the last one of the first batch whose
largest timestamp is the largest so far, not the exact record's.

The last entry of a sealed segment holds the segment's largest timestamp, which retention uses.

Not here: when an entry is made (``segment``), whether it fits the log (``recovery``).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from storage.files import Files
from storage.index.entry_file import EntryFile

ENTRY_SIZE = 12
_ENTRY = Struct(">qi")
_TIMESTAMP = Struct(">q")
_OFFSET = Struct(">i")
_OFFSET_AT = 8


class TimeIndex:
    """The time index of the segment that starts at ``base_offset``.

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
        """Whether the segment should roll before its next append; one slot is the roll's own."""
        return self._file.count >= self._file.capacity - 1

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the last entry, or None where there is none."""
        if self._last is None and self._file.count:
            self._last = self._entry(self._file.count - 1)
        return self._last

    def entries(self) -> Iterator[tuple[int, int]]:
        """Every (timestamp in ms, offset), rising."""
        base = self._base_offset
        for timestamp, relative in self._file.entries(_ENTRY):
            yield timestamp, base + relative

    def data(self) -> bytes:
        """All entries as they are in the file."""
        return self._file.data()

    def sanity(self) -> str | None:
        """Why this cannot be a sound index, or None; looks at its ends only.

        ``TimeIndex.sanityCheck``, which an index that was not trimmed fails.
        """
        if self._file.odd_bytes:
            return f"its length is no multiple of {ENTRY_SIZE}"
        last = self.last_entry
        if last is None:
            return None
        first = self._entry(0)
        if last[0] < first[0]:
            return f"its last timestamp {last[0]} is below its first {first[0]}"
        if last[1] < self._base_offset:
            return f"its last offset {last[1]} is below the base offset {self._base_offset}"
        return None

    # -- looking up ----------------------------------------------------------------------------

    def lookup(self, timestamp_ms: int) -> tuple[int, int]:
        """The last (timestamp, offset) with timestamp ≤ the one asked for, else (-1, base)."""
        return self._entry(self._file.search(_TIMESTAMP, 0, timestamp_ms))

    def last_entry_at_or_before_offset(self, offset: int) -> tuple[int, int]:
        """The last (timestamp, offset) with offset ≤ the one asked for, else (-1, base)."""
        return self._entry(self._last_up_to(offset))

    def _last_up_to(self, offset: int) -> int:
        """The number of the last whole entry with offset ≤ the one asked for, or -1.

        Entries lie across pages: of one that was being written when the machine stopped the offset
        may be missing, so that it seems to be the base offset.
        """
        number = self._file.search(_OFFSET, _OFFSET_AT, offset - self._base_offset)
        while number > 0:
            (timestamp, at), (before, at_before) = self._entry(number), self._entry(number - 1)
            if timestamp > before and at >= at_before:
                break
            number -= 1
        return number

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return -1, self._base_offset
        timestamp, relative = self._file.unpack(_ENTRY, number)
        return timestamp, self._base_offset + relative

    # -- changing ------------------------------------------------------------------------------

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry where the timestamp is above the last one's (above -1 in an empty index).

        Neither may be below the last one's.  A full index takes more, as ``OffsetIndex.append``
        says.  OSError where the disk refuses; nothing has changed then.
        """
        last = self.last_entry
        if last is not None:
            assert timestamp_ms >= last[0], (timestamp_ms, last)
            assert offset >= last[1], (offset, last)
            if timestamp_ms == last[0]:
                return
        elif timestamp_ms <= -1:
            return
        self._file.append(_ENTRY.pack(timestamp_ms, offset - self._base_offset))
        self._last = (timestamp_ms, offset)

    def extend(self, entries: bytes | bytearray) -> None:
        """Add packed entries, which rise among themselves, above the last one's."""
        last = self.last_entry
        assert not entries or last is None or _TIMESTAMP.unpack_from(entries)[0] > last[0]
        self._file.append(entries)
        self._last = None

    def truncate_to_offset(self, offset: int) -> None:
        """Drop the entries with that offset or a higher one; of whatever the file holds, with
        the base offset or a lower one, all.
        """
        self._last = None
        number = -1
        if offset > self._base_offset:
            number = self._last_up_to(offset - 1)
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
