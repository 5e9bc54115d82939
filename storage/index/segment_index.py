"""What the offset index and the time index of a segment have in common (``AbstractIndex.java``).

An entry is a pair of numbers, one of them an offset, which the file has relative to the segment's
base offset.  Both numbers rise from one entry to the next, or one of them stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import ClassVar

from storage.files import Files
from storage.index.entry_file import EntryFile

Entry = tuple[int, int]


class SegmentIndex(EntryFile, ABC):
    """One index of the segment that starts at ``base_offset``.

    ``writable`` creates a missing file, ``mapped`` is false for directories of others,
    ``ignore_zero_tail`` true where a writer may live or have died.
    """

    __slots__ = ("_base_offset", "_last")

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
        self._base_offset = base_offset
        self._last: Entry | None = None
        super().__init__(
            files,
            path,
            self.layout.size,
            max_bytes,
            writable=writable,
            mapped=mapped,
            ignore_zero_tail=ignore_zero_tail,
        )

    @abstractmethod
    def _decoded(self, fields: Sequence[int]) -> Entry:
        """An entry, from its fields in the file."""

    @abstractmethod
    def _last_up_to(self, offset: int) -> int:
        """The number of the last entry with offset ≤ the one asked for, or -1."""

    def entry(self, number: int) -> Entry:
        """Entry ``number`` (< ``count``)."""
        return self._decoded(self.unpack(self.layout, number))

    def entries(self) -> Iterator[Entry]:
        """Every entry, rising."""
        return map(self._decoded, self.unpack_all(self.layout))

    @property
    def last_entry(self) -> Entry | None:
        """The last entry, or None where there is none."""
        if self._last is None and self.count:
            self._last = self.entry(self.count - 1)
        return self._last

    def _append(self, entry: Entry, *fields: int) -> None:
        self.add(self.layout.pack(*fields))
        self._last = entry

    def extend(self, entries: bytes | bytearray) -> None:
        """Add packed entries, which rise among themselves, above the last one's."""
        last = self.last_entry
        assert (
            not entries
            or last is None
            or self._decoded(self.layout.unpack_from(entries))[0] > last[0]
        )
        self.add(entries)
        self._last = None

    def truncate_to_offset(self, offset: int) -> None:
        """Drop the entries with that offset or a higher one; of whatever the file holds, with
        the base offset or a lower one, all.
        """
        self._last = None
        self.truncate_to(self._last_up_to(offset - 1) + 1 if offset > self._base_offset else 0)

    def refresh(self) -> None:
        """Look at the file anew: another process may have made it, extended it or cut it."""
        self._last = None
        super().refresh()

    def close(self) -> None:
        """Close the file; the index is of no use afterwards."""
        self._last = None
        super().close()
