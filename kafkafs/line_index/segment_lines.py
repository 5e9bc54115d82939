"""The line index of one segment in one view: what is looked up in it.

An entry is in the saved part or among those in memory (`measured_lines.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable

from kafkafs.line_index import records
from kafkafs.line_index.lines import Gap
from kafkafs.line_index.lines_file import Saved
from kafkafs.line_index.measured_lines import CHUNK, MeasuredLines
from kafkafs.line_index.places import TextPlace, read_whole
from kafkafs.views._measure import ENTRY_SIZE, Cursor, find_batch, find_entry
from storage.errors import CorruptRecord
from storage.record.batch import HEADER_SIZE, Buffer
from storage.waiting import before_waiting

__all__ = ["CHUNK", "SegmentLines"]

_ENTRY = struct.Struct("<QIIII")


class SegmentLines(MeasuredLines):
    """The line index of one segment in one view.

    The owner's thread appends and saves; `measure` and `find` may run in any thread.
    """

    __slots__ = ()

    def find(self, text: int) -> tuple[int, int, int, int]:
        """The last record known to begin at or before `text` (< `text_length`) bytes of text:

        (bytes of text before it, its batch's file position, its own, its batch's end). The end is 0
        where a batch begins at the record's position. BlockingIOError where the entries are not
        mapped and it may not wait.
        """
        saved, tail = self._state
        if text < saved.text_length:
            known = self._map
            if known is None:
                before_waiting()
                known = self._open_entries()
            self.used = True
            return find_entry(known[0], known[1], text)[:4]
        assert tail is not None
        entries = tail.entries
        before, batch, position, batch_end, _ = find_entry(
            entries, len(entries) // ENTRY_SIZE, text - saved.text_length
        )
        if saved.covered:
            before += saved.text_length
            batch += saved.covered
            position += saved.covered
            if batch_end:
                batch_end += saved.covered
        return before, batch, position, batch_end

    def place(self, text: int) -> TextPlace:
        """Where a rendering begins that is to begin after `text` bytes of text; as `find`."""
        before, batch, position, batch_end = self.find(text) if text else (0, 0, 0, 0)
        damages = self.segment.damages
        if damages:
            gap = self._gaps.before(self, text)
            if gap is not None and (not text or batch < gap.place.end):
                end = gap.place.end
                return TextPlace(self, Cursor(end), text - gap.end, end, damages)
        header = None
        if batch_end and self.view.whole_records:
            header = memoryview(bytearray(HEADER_SIZE))
            try:
                read_whole(self.segment, header, batch)
            except CorruptRecord:
                if self.segment.damages is damages:
                    raise
                return self.place(text)
        cursor = Cursor(position, batch_end, header)
        return TextPlace(self, cursor, text - before, batch, damages)

    def text_before(self, offset: int) -> tuple[int, int]:
        """(bytes of text, records shown) before the first record with an offset ≥ `offset`.

        All that is shown of the segment must be measured. Waits.
        """
        return records.text_before(self, offset)

    def text_until(self, offset: int) -> int:
        """Bytes of text up to the end of the last record before `offset`; as `text_before`."""
        return records.text_before(self, offset)[0]

    def offset_of(self, number: int) -> int:
        """The offset of record `number` (< `records`) of those shown; as `text_before`."""
        return records.offset_of(self, number)

    def offset_at(self, text: int) -> int:
        """The offset of the record that shows byte `text` (< `text_length`); as `text_before`."""
        return records.offset_at(self, text)

    def count_back(self, count: int) -> tuple[int, int | None]:
        """(records shown, the first one's offset) of the last `count`, measured or not. Waits."""
        return records.count_back(self, count)

    def entry_before(self, is_behind: Callable[[int, int], bool]) -> tuple[int, int, int, int]:
        """The last entry that is not behind something, or the first one:

        (bytes of text before its record, its batch's position, its record's, records before it).
        `is_behind(position, records)` says it of an entry by its batch's position and the records
        before it. Waits.
        """
        saved, tail = self._state
        entries: bytes | bytearray | memoryview
        if saved.covered and (tail is None or is_behind(saved.covered, saved.records)):
            known = self._map or self._open_entries()
            entries, count, start = known[0], known[1], Saved()
        elif tail is None:
            return 0, 0, 0, 0  # sealed, and a cleaner has left nothing of it
        else:
            entries, count, start = tail.entries, len(tail.entries) // ENTRY_SIZE, saved

        def behind(number: int) -> bool:
            _, batch, _, _, ordinal = _ENTRY.unpack_from(entries, number * ENTRY_SIZE)
            return is_behind(start.covered + batch, start.records + ordinal)

        number = bisect_left(range(1, count), True, key=behind)
        text, batch, record, _, ordinal = _ENTRY.unpack_from(entries, number * ENTRY_SIZE)
        at = start.covered
        return start.text_length + text, at + batch, at + record, start.records + ordinal

    def entry_from(self, position: int) -> tuple[int, int, int, int] | None:
        """The first entry whose batch does not begin before `position`, as `entry_before`, if any.

        Waits.
        """
        saved, tail = self._state
        if position < saved.covered:
            known = self._map or self._open_entries()
            number = find_batch(known[0], known[1], position)
            if number < known[1]:
                return _entry_at(known[0], number, Saved())
        if tail is None:
            return None
        entries, count = tail.entries, len(tail.entries) // ENTRY_SIZE
        number = find_batch(entries, count, position - saved.covered)
        return _entry_at(entries, number, saved) if number < count else None

    def gaps(self) -> tuple[Gap, ...]:
        """What damaged places make unreadable. Waits."""
        return self._gaps.get(self) if self.segment.damages else ()

    def gap_before(self, text: int) -> Gap | None:
        """As `Gaps.before`."""
        return self._gaps.before(self, text) if self.segment.damages else None


def _entry_at(entries: Buffer, number: int, start: Saved) -> tuple[int, int, int, int]:
    """Entry `number` of those that count from `start`."""
    text, batch, record, _, ordinal = _ENTRY.unpack_from(entries, number * ENTRY_SIZE)
    at = start.covered
    return start.text_length + text, at + batch, at + record, start.records + ordinal
