"""`.timeindex`: timestamp → offset (`TimeIndex.java`).

Entry, 12 bytes big-endian: timestamp i64 in ms, relative offset i32 (offset - base offset of the
segment). It says that no record up to and including that offset has a larger timestamp. Timestamps
strictly rise, offsets never fall. The offset is the last one of the first batch whose largest
timestamp is the largest so far, not the exact record's.

The last entry of a sealed segment holds the segment's largest timestamp, which retention uses.

Not here: when an entry is made (`segment`), whether it fits the log (`recovery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from storage.index.segment_index import Entry, SegmentIndex

_TIMESTAMP = Struct(">q")
_OFFSET = Struct(">i")
_OFFSET_AT = 8


class TimeIndex(SegmentIndex):
    """An entry is (timestamp in ms, offset)."""

    layout = Struct(">qi")

    def _decoded(self, fields: Sequence[int]) -> Entry:
        return fields[0], self._base_offset + fields[1]

    @property
    def is_full(self) -> bool:
        """Whether the segment should roll before its next append; one slot is the roll's own."""
        return self.is_cut or self.count >= self.capacity - 1

    def _fault_of_ends(self, first: Entry, last: Entry) -> str | None:
        if last[0] < first[0]:
            return f"its last timestamp {last[0]} is below its first {first[0]}"
        if last[1] < self._base_offset:
            return f"its last offset {last[1]} is below the base offset {self._base_offset}"
        return None

    # -- looking up ----------------------------------------------------------------------------

    def lookup(self, timestamp_ms: int) -> tuple[int, int]:
        """Return the last (timestamp, offset) up to `timestamp_ms`, else (-1, base)."""
        return self._entry_or_none(self.search(_TIMESTAMP, 0, timestamp_ms))

    def last_entry_at_or_before_offset(self, offset: int) -> tuple[int, int]:
        """Return the last (timestamp, offset) with offset ≤ the one asked for, else (-1, base)."""
        return self._entry_or_none(self._last_up_to(offset))

    def _entry_or_none(self, number: int) -> tuple[int, int]:
        return self.entry(number) if number >= 0 else (-1, self._base_offset)

    def _last_up_to(self, offset: int) -> int:
        """Return the number of the last whole entry with offset ≤ the one asked for, or -1.

        Entries lie across pages: of one that was being written when the machine stopped the offset
        may be missing, so that it seems to be the base offset.
        """
        number = self.search(_OFFSET, _OFFSET_AT, offset - self._base_offset)
        while number > 0:
            (timestamp, at), (before, at_before) = self.entry(number), self.entry(number - 1)
            if timestamp > before and at >= at_before:
                break
            number -= 1
        return number

    # -- changing ------------------------------------------------------------------------------

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry where the timestamp is above the last one's (above -1 in an empty index).

        Neither may be below the last one's. A full index takes more, as `OffsetIndex.append` says.
        Errors: OSError where the disk refuses; nothing has changed then.
        """
        last = self.last_entry
        if last is not None:
            assert timestamp_ms >= last[0], (timestamp_ms, last)
            assert offset >= last[1], (offset, last)
            if timestamp_ms == last[0]:
                return
        elif timestamp_ms <= -1:
            return
        self._append((timestamp_ms, offset), timestamp_ms, offset - self._base_offset)
