"""`.index`: offset → position of a batch in the segment's log (`OffsetIndex.java`).

Entry, 8 bytes big-endian: relative offset i32 (offset - base offset of the segment), position i32
(where a batch starts, in bytes). Offsets and positions strictly rise. Sparse: most batches have no
entry, the first of a segment never. An entry maps the *last* offset of a batch to that batch's
start; older brokers mapped the last offset of a whole append to its start, so a reader scans on
from the position and never assumes that the offset is in the batch there.

Not here: when an entry is made (`segment`), whether it fits the log (`recovery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from storage.index.segment_index import Entry, SegmentIndex

_NUMBER = Struct(">i")


class OffsetIndex(SegmentIndex):
    """An entry is (offset, position)."""

    layout = Struct(">ii")

    def _decoded(self, fields: Sequence[int]) -> Entry:
        return self._base_offset + fields[0], fields[1]

    @property
    def is_full(self) -> bool:
        """Whether the segment should roll before its next append."""
        return self.is_cut or self.count >= self.capacity

    def _fault_of_ends(self, first: Entry, last: Entry) -> str | None:
        if last[0] < self._base_offset:
            return f"its last offset {last[0]} is below the base offset {self._base_offset}"
        if self.count > 1 and (last[0] <= first[0] or last[1] <= first[1]):
            return f"its last entry {last} is not beyond its first {first}"
        return None

    # -- looking up ----------------------------------------------------------------------------

    def _last_up_to(self, offset: int) -> int:
        return self.search(_NUMBER, 0, offset - self._base_offset)

    def entries_before(self, offset: int) -> bytes:
        """Return the entries with a lower offset, packed."""
        if offset <= self._base_offset:
            return b""
        return self.data()[: (self._last_up_to(offset - 1) + 1) * self._entry_size]

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return the last (offset, position) with an offset ≤ `offset`, else (base offset, 0)."""
        number = self._last_up_to(offset)
        return self.entry(number) if number >= 0 else (self._base_offset, 0)

    def upper_bound(self, position: int, fetch_size: int) -> int | None:
        """Return the offset of the first entry that lies `fetch_size` bytes or more after
        `position`.

        None: no entry does (`OffsetIndex.fetchUpperBoundOffset`).
        """
        number = self.search(_NUMBER, 4, position + fetch_size - 1) + 1
        return self.entry(number)[0] if number < self.count else None

    def at_or_before(self, position: int) -> tuple[int, int] | None:
        """Return the last (offset, position) at or before `position`, if there is one."""
        number = self.search(_NUMBER, 4, position)
        return self.entry(number) if number >= 0 else None

    def behind(self, position: int) -> int | None:
        """Return the position of the first entry that lies behind `position`; None: none does."""
        number = self.search(_NUMBER, 4, position) + 1
        return self.entry(number)[1] if number < self.count else None

    # -- changing ------------------------------------------------------------------------------

    def append(self, offset: int, position: int) -> None:
        """Add an entry; its offset is above the last one's.

        An append that was begun before the index was full is indexed whole, so a full index takes
        more. Errors: OSError where the disk refuses; nothing has changed then.
        """
        last = self.last_entry
        assert last is None or (offset > last[0] and position > last[1]), (offset, position, last)
        self._append((offset, position), offset - self._base_offset, position)
