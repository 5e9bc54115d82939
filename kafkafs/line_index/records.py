"""Finds the position of one record in a segment's text, by its offset or its number.

The line index leads to a batch nearby; from there these functions read the log batch by batch, and
measure each record. They keep nothing, and wait for the disk.

A number counts the records that the view shows of the segment, from 0. All that the view shows of
the segment must be measured. Damage between an entry and the record is skipped (`damaged.py`).
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from kafkafs.line_index.encoded import show_batch
from kafkafs.line_index.lines import Gap, Lines
from kafkafs.views._measure import ENTRY_SIZE, Measure
from storage.errors import CorruptRecord
from storage.record._seek import find_record
from storage.record.header import HEADER_SIZE, BatchHeader, Buffer

if TYPE_CHECKING:
    from storage.segment.segment import Segment

T = TypeVar("T")

_ENTRY = struct.Struct("<QII")


def text_before(lines: Lines, offset: int) -> tuple[int, int]:
    """(bytes of text, records shown) before the first record with an offset ≥ `offset`."""
    return _settled(lines.segment, lambda: _text_before(lines, offset))


def _text_before(lines: Lines, offset: int) -> tuple[int, int]:
    with _leased(lines.segment):
        text, position, records = _batch_before(
            lines, _after(lines, offset), lambda gap: gap.place.next_offset <= offset
        )
        for at, header in _headers(lines, position):
            if header.base_offset >= offset and not header.is_wrapper:
                break
            data, batch = _measure(lines, at, header)
            if batch.records and header.last_offset >= offset:
                found = find_record(data, offset=offset)
                if found is not None:
                    return text + _entry(batch, found[0])[0], records + found[0]
            text += batch.text_length
            records += batch.records
            if header.last_offset >= offset:
                break
        return text, records


def offset_of(lines: Lines, number: int) -> int:
    """The offset of record `number`, which must exist."""
    return _settled(lines.segment, lambda: _offset_of(lines, number))


def _offset_of(lines: Lines, number: int) -> int:
    with _leased(lines.segment):
        for gap in lines.gaps():
            if gap.first <= number < gap.last:
                raise gap.place.error(lines.segment.log_path)
        _, position, records = _batch_before(
            lines, lambda _, before: before > number, lambda gap: gap.last <= number
        )
        for at, header in _headers(lines, position):
            data, batch = _measure(lines, at, header)
            if number - records < batch.records:
                found = find_record(data, number=number - records)
                assert found is not None, "a batch shows fewer records than were measured"
                return found[1]
            records += batch.records
    raise CorruptRecord("shows fewer records than were counted", path=lines.segment.log_path)


def offset_at(lines: Lines, text: int) -> int:
    """The offset of the record that shows byte `text` (< `text_length`) of the segment's text."""
    return _settled(lines.segment, lambda: _offset_at(lines, text))


def _offset_at(lines: Lines, text: int) -> int:
    with _leased(lines.segment):
        before, position, record, _ = lines.find(text)
        inside = record - position
        gap = lines.gap_before(text)
        if gap is not None and position < gap.place.end:
            before, position = gap.end, gap.place.end
        elif inside not in (0, HEADER_SIZE):
            before -= _before(lines, position, inside)[0]
        for at, header in _headers(lines, position):
            data, batch = _measure(lines, at, header)
            if text < before + batch.text_length:
                texts = range(batch.records)
                left = text - before
                number = bisect_right(texts, left, key=lambda record: _entry(batch, record)[0]) - 1
                found = find_record(data, number=number)
                assert found is not None, "a batch shows fewer records than were measured"
                return found[1]
            before += batch.text_length
    raise CorruptRecord("shows less than was measured", path=lines.segment.log_path)


def count_back(lines: Lines, count: int) -> tuple[int, int | None]:
    """(records shown, the first one's offset) of the last `count` records, measured or not.

    (fewer, None) where the segment has not so many. It reads the batches' headers, backwards from
    one entry of the offset index to the one before; without entries, all headers.
    """
    return _settled(lines.segment, lambda: _count_back(lines, count))


def _count_back(lines: Lines, count: int) -> tuple[int, int | None]:
    segment = lines.segment
    with _leased(segment):
        counted, end, before = 0, lines.end, segment.next_offset
        while end:
            start = segment.position_before(before)
            if start >= end:
                start = 0
            block = [(at, header) for at, header in _headers(lines, start) if at < end]
            if not block:
                raise CorruptRecord("shorter than it was", path=segment.log_path, position=start)
            for at, header in reversed(block):
                records = _count(lines, at, header)
                if counted + records >= count:
                    data, _ = _measure(lines, at, header)
                    found = find_record(data, number=counted + records - count)
                    assert found is not None, "a batch shows fewer records than it says"
                    return count, found[1]
                counted += records
            end, before = start, block[0][1].base_offset - 1
        return counted, None


def _count(lines: Lines, at: int, header: BatchHeader) -> int:
    """Records that the view shows of a batch."""
    if header.records_count < 0:
        return _measure(lines, at, header)[1].records
    is_aborted = lines.is_aborted
    if header.is_control or (
        header.is_transactional
        and is_aborted is not None
        and is_aborted(header.producer_id, header.base_offset)
    ):
        return 0
    return header.records_count


def _settled(segment: Segment, look: Callable[[], T]) -> T:
    """Repeat `look` until it finds no new damage; its result."""
    while True:
        damages = segment.damages
        try:
            found = look()
        except CorruptRecord:
            if segment.damages is damages:
                raise
        else:
            if segment.damages is damages:
                return found


@contextlib.contextmanager
def _leased(segment: Segment) -> Iterator[None]:
    segment.files.lease()
    try:
        yield
    finally:
        segment.files.release()


def _after(lines: Lines, offset: int) -> Callable[[int, int], bool]:
    """A function that says whether the batch at a position is after the batch nearby `offset`.

    It asks the offset index; where that has no entries, the batch itself.
    """
    segment = lines.segment
    if not segment.holds_batches:
        return lambda position, _: position > offset - segment.base_offset
    near = segment.position_before(offset)
    if near:
        return lambda position, _: position > near

    def is_after(position: int, _: int) -> bool:
        if position >= segment.size:
            return True
        segment.verify(position, position + 1)
        for place in segment.damages:
            if place.start <= position < place.end:
                return place.first_offset > offset
        buffer = memoryview(bytearray(8))
        segment.read_into(buffer, position)
        return int.from_bytes(buffer, "big") > offset

    return is_after


def _batch_before(
    lines: Lines,
    is_after: Callable[[int, int], bool],
    is_past: Callable[[Gap], bool],
) -> tuple[int, int, int]:
    """(text, position, records) at the start of the last indexed batch that is not after something.

    `is_past(gap)`: whether that is not before the gap's end.
    """
    entry = lines.entry_before(is_after)
    found: tuple[int, int, int] | None = None
    for gap in lines.gaps():
        if entry[1] < gap.place.end:
            if is_past(gap):
                found = gap.end, gap.place.end, gap.last
            elif gap.place.start <= entry[1]:
                return gap.start, gap.place.start, gap.first
    return start_of_batch(lines, entry) if found is None else found


def start_of_batch(lines: Lines, entry: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """(text, position, records) at the start of the batch of an entry of `entry_before`."""
    text, position, record, number = entry
    inside = record - position
    if inside not in (0, HEADER_SIZE):
        # The entry counts what comes before its record in the batch, too.
        before, records = _before(lines, position, inside)
        text -= before
        number -= records
    return text, position, number


def text_before_batch(
    lines: Lines, is_after: Callable[[int, int], bool], at: int
) -> tuple[int, int]:
    """(text, records) before file position `at`, the start of a batch. No damage may lie between
    it and the last entry that is not after it.
    """
    text, position, number = start_of_batch(lines, lines.entry_before(is_after))
    more, records = shown_between(lines, position, at)
    return text + more, number + records


def shown_between(lines: Lines, position: int, end: int) -> tuple[int, int]:
    """(text, records) of the batches from file position `position` to `end`. Waits."""
    text = records = 0
    for at, header in _headers(lines, position):
        if at >= end:
            break
        _, batch = _measure(lines, at, header)
        text += batch.text_length
        records += batch.records
    return text, records


def _before(lines: Lines, position: int, inside: int) -> tuple[int, int]:
    """(text, records) that a batch shows before its record at byte `inside` of the batch."""
    _, batch = _measure(lines, position, next(lines.segment.batches(position))[1])
    records = bisect_left(range(batch.records), inside, key=lambda record: _entry(batch, record)[2])
    return _entry(batch, records)[0], records


def _headers(lines: Lines, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch that the view shows from `position` on."""
    for at, header in lines.segment.batches(position):
        if at >= lines.end:
            return
        yield at, header


def _measure(lines: Lines, at: int, header: BatchHeader) -> tuple[Buffer, Measure]:
    """(a batch's plain form, its measure with an entry for each record)"""
    segment, measure = lines.segment, lines.view.measure
    data: Buffer = segment.read_at(at, header.size)
    batch = Measure(1)
    if segment.holds_batches:
        measure(data, 0, header.size, batch)
    if batch.encoded or not segment.holds_batches:
        shown = show_batch(segment, lines.is_aborted, data, 0, header.size, at)
        if not shown.hidden:
            data = data if shown.plain is None else shown.plain
            batch.step_into(len(data), data)
            measure(data, 0, len(data), batch)
    return data, batch


def _entry(batch: Measure, number: int) -> tuple[int, int, int]:
    """(text before record `number`, its batch's position, its own)"""
    text, position, record = _ENTRY.unpack_from(batch.entries, number * ENTRY_SIZE)
    return text, position, record
