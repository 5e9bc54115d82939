"""Finds where one record's text begins in a segment's text, by the record's offset or number.

The line index leads to a batch nearby; from there these functions read the log batch by batch, and
measure each record. They keep nothing but the gaps. Inside `at_once` they read only a small part of
the log, from the page cache. If they need more, or the segment has damage, they raise
BlockingIOError.

The log's bytes may have changed since they were checked and measured. So a look-up first measures
the log from that batch to the next entry. If the text or the records are not those of the index, it
checks the batches between the two entries again: what is wrong there is damage at once.

A number counts the records that the view shows of the segment, from 0. All that the view shows of
the segment must be measured.

A damaged batch no longer shows how much text it had; the entries of the line index on either side
do. The text between them, less the text of the sound batches there, is the *gap*. Damaged places
without an entry between them share one gap. What lies between an entry and a record is skipped.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TypeVar

from kafkafs.line_index.encoded import show_batch
from kafkafs.line_index.segment_batches import Extent, SegmentBatches
from kafkafs.line_index.segment_lines import NO_ENTRIES, Gap, SegmentLines, read_whole
from kafkafs.line_index.store import GRANULARITY
from kafkafs.views._measure import ENTRY_SIZE, Measure, find_entry
from storage.errors import CorruptRecord
from storage.record._seek import find_record, record_position
from storage.record.header import HEADER_SIZE, BatchHeader, Buffer
from storage.record.scan import batches as scan_batches
from storage.segment.damage import Damages
from storage.segment.reader import SegmentReader
from storage.waiting import before_waiting, may_wait

BATCHES_AT_ONCE = 256 << 10
"""Bytes of batches that one step measures inside `at_once`."""
HEADERS_AT_ONCE = 16 << 10
"""Bytes of the log in which one step looks at the batches' headers inside `at_once`."""
_PAGE = 4096

T = TypeVar("T")


def _steadily(look: Callable[[SegmentLines, int], T]) -> Callable[[SegmentLines, int], T]:
    """Call `look` under a lease of the segment; call it again if new damage was found meanwhile."""

    def looked(lines: SegmentLines, wanted: int) -> T:
        segment = lines.segment
        if segment.damages or not (segment.holds_batches and segment.writable):
            before_waiting()
        while True:
            damages = segment.damages
            segment.lease()
            try:
                found = look(lines, wanted)
            except CorruptRecord:
                if segment.damages is damages:
                    raise
                continue
            finally:
                segment.release()
            if segment.damages is damages:
                return found

    return looked


def text_before(extent: Extent, offset: int) -> tuple[int, int]:
    """(bytes of text, records shown) before the first record with an offset ≥ `offset`.

    A view of bytes counts no records, and ends before the batch that holds that record.
    """
    if isinstance(extent, SegmentBatches):
        before_waiting()
        return extent.bytes_before(offset), 0
    return _text_before(extent, offset)


@_steadily
def _text_before(lines: SegmentLines, offset: int) -> tuple[int, int]:
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
                before = _before_record(lines, data, found[0])
                return text + before, records + found[0]
        del data
        text += batch.text_length
        records += batch.records
        if header.last_offset >= offset:
            break
    return text, records


@_steadily
def offset_of(lines: SegmentLines, number: int) -> int:
    """The offset of record `number`, which must exist."""
    for gap in gaps_of(lines):
        if gap.first <= number < gap.last:
            raise gap.place.error(lines.segment.log_path)
    _, position, records = _batch_before(
        lines, lambda _, before: before > number, lambda gap: gap.last <= number
    )
    for at, header in _headers(lines, position):
        data, batch = _measure(lines, at, header)
        if number - records < batch.records:
            found = find_record(data, number=number - records)
            assert found is not None, "a batch shows fewer records than were indexed"
            return found[1]
        del data
        records += batch.records
    raise CorruptRecord("shows fewer records than were counted", path=lines.segment.log_path)


@_steadily
def offset_at(lines: SegmentLines, text: int) -> int:
    """The offset of the record that shows byte `text` (< `text_length`) of the segment's text."""
    before, position, record, _, records = lines.find(text)
    gap = gap_before(lines, text)
    if gap is not None and position < gap.place.end:
        start = gap.end, gap.place.end, gap.last
    else:
        start = _start_of_batch(lines, (before, position, record, records))
    _compare(lines, start)
    before, position, _ = start
    for at, header in _headers(lines, position):
        data, batch = _measure(lines, at, header)
        if text < before + batch.text_length:
            found = find_record(data, number=_number_at(lines, data, text - before))
            assert found is not None, "a batch shows fewer records than were indexed"
            return found[1]
        del data
        before += batch.text_length
    raise CorruptRecord("shows less than was indexed", path=lines.segment.log_path)


@_steadily
def count_back(lines: SegmentLines, count: int) -> tuple[int, int | None]:
    """(records shown, the first one's offset) of the last `count` records, measured or not.

    (fewer, None) where the segment has not so many. It reads the batches' headers, backwards from
    one entry of the offset index to the one before; without entries, all headers.
    """
    segment = lines.segment
    counted, end, before = 0, lines.end, segment.next_offset
    while end:
        start = segment.position_before(before)
        if start >= end:
            # The view shows no batch there: a transaction is open, or the batch is damaged.
            indexed = segment.offset_index.at_or_before(end - 1)
            start = 0 if indexed is None else segment.position_before(indexed[0])
            start = start if start < end else 0
        if lines.end - start > HEADERS_AT_ONCE:
            before_waiting()
        block = list(_headers(lines, start, end))
        if not block:
            raise CorruptRecord("shorter than it was", path=segment.log_path, position=start)
        for at, header in reversed(block):
            records = _count(lines, at, header)
            if counted + records >= count:
                data, _ = _measure(lines, at, header)
                found = find_record(data, number=counted + records - count)
                assert found is not None, "a batch shows fewer records than its header says"
                return count, found[1]
            counted += records
        end, before = start, block[0][1].base_offset - 1
    return counted, None


# -- gaps ----------------------------------------------------------------------------------------


def gaps_of(lines: SegmentLines) -> tuple[Gap, ...]:
    """The text that damage makes unreadable, ascending; all that the view shows must be measured.

    BlockingIOError where it would wait and may not; CorruptRecord, SegmentGone, OSError.
    """
    # Looking for them may find more damage.
    while lines.gaps[0] is not (damages := lines.segment.damages):
        before_waiting()
        lines.gaps = (damages, _find_gaps(lines, damages, known=lines.gaps[0]))
    return lines.gaps[1]


def gap_before(lines: SegmentLines, text: int) -> Gap | None:
    """The last gap that ends at or before `text`. CorruptRecord where `text` is inside of one;
    other errors as `gaps_of`.
    """
    last: Gap | None = None
    for gap in gaps_of(lines):
        if gap.end <= text:
            last = gap
        elif gap.start <= text:
            raise gap.place.error(lines.segment.log_path)
    return last


def _find_gaps(lines: SegmentLines, damages: Damages, known: Damages) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    places = [place for place in damages if place.start < lines.end]
    while places:
        place = places.pop(0)
        following = lines.entry_from(place.end)
        while places and (following is None or following[1] >= places[0].start):
            last = places.pop(0)
            place = place._replace(end=last.end, next_offset=last.next_offset)
            following = lines.entry_from(place.end)
        text, position, number = _start_of_batch(lines, lines.entry_before(_is_at(place.start)))
        more, records = _shown_between(lines, position, place.start)
        start, first = text + more, number + records
        if following is None:
            end, until, after = lines.text_length, lines.end, lines.records
        else:
            end, until, after = _start_of_batch(lines, following)
        if place not in known:
            # Only the text of sound batches tells how much the damaged ones had.
            lines.reader.check_again(position, until)
        text, records = _shown_between(lines, place.end, until)
        gaps.append(Gap(start, end - text, first, after - records, place))
    return tuple(gaps)


def _is_at(start: int) -> Callable[[int, int], bool]:
    return lambda position, _: position >= start


# -- batches -------------------------------------------------------------------------------------


def _count(lines: SegmentLines, at: int, header: BatchHeader) -> int:
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


def _after(lines: SegmentLines, offset: int) -> Callable[[int, int], bool]:
    """A function that says whether the batch at a position is after the one that holds `offset`.

    It asks the offset index, and the batches from there; where that has no entries, the batch
    itself.
    """
    segment = lines.segment
    if not segment.holds_batches:
        return lambda position, _: position > offset - segment.base_offset
    near = segment.position_before(offset)
    if near:
        near = _position_of(lines, offset, near)
        return lambda position, _: position > near

    def is_after(position: int, _: int) -> bool:
        if position >= segment.size:
            return True
        lines.reader.check(position, position + 1)
        for place in segment.damages:
            if place.start <= position < place.end:
                return place.first_offset > offset
        buffer = memoryview(bytearray(8))
        lines.reader.window(buffer, position)
        return int.from_bytes(buffer, "big") > offset

    return is_after


def _position_of(lines: SegmentLines, offset: int, start: int) -> int:
    """The position of the first batch from position `start` on with an offset ≥ `offset`, or of the
    damage that has the offset; of the last batch that can be read, where that comes first.
    """
    for place in lines.segment.damages:
        if place.first_offset <= offset < place.next_offset:
            return place.start
    found = start
    with contextlib.suppress(CorruptRecord):
        for position, header in _headers(lines, start):
            found = position
            if header.last_offset >= offset:
                break
    return found


def _batch_before(
    lines: SegmentLines,
    is_after: Callable[[int, int], bool],
    is_past: Callable[[Gap], bool],
) -> tuple[int, int, int]:
    """(text, position, records) at the start of the last indexed batch that is not after something.

    `is_past(gap)`: whether that is not before the gap's end.
    """
    entry = lines.entry_before(is_after)
    found: tuple[int, int, int] | None = None
    for gap in gaps_of(lines):
        if entry[1] < gap.place.end:
            if is_past(gap):
                found = gap.end, gap.place.end, gap.last
            elif gap.place.start <= entry[1]:
                return gap.start, gap.place.start, gap.first
    start = _start_of_batch(lines, entry) if found is None else found
    _compare(lines, start)
    return start


def _compare(lines: SegmentLines, start: tuple[int, int, int]) -> None:
    """Check the log from `start`, (text, position, records) of a batch, to the next entry or gap
    again, unless it shows as much there as it did.
    """
    text, position, records = start
    covered = lines.covered
    until = lines.text_length, covered, lines.records
    following = lines.entry_from(position + 1)
    if following is not None:
        until = following[0], following[2], following[3]
    for gap in gaps_of(lines):
        if position <= gap.place.start <= until[1]:
            until = gap.start, gap.place.start, gap.first
            break
    if until[1] - position > BATCHES_AT_ONCE:
        before_waiting()
    try:
        found = lines.measured(Measure(NO_ENTRIES, position, text, records), until[1])
        if (found.text_length, found.records) == (until[0], until[2]):
            return
    except CorruptRecord:
        pass
    if lines.covered == covered:
        before_waiting()
        lines.reader.check_again(position, until[1])


def _start_of_batch(lines: SegmentLines, entry: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """(text, position, records) at the start of the batch of an entry of `entry_before`."""
    text, position, record, number = entry
    inside = record - position
    if inside not in (0, HEADER_SIZE):
        # The entry counts what comes before its record in the batch, too.
        before, records = _before(lines, position, inside)
        text -= before
        number -= records
    return text, position, number


def _shown_between(lines: SegmentLines, position: int, end: int) -> tuple[int, int]:
    """(text, records) of the batches from file position `position` to `end`. Waits."""
    text = records = 0
    for at, header in _headers(lines, position):
        if at >= end:
            break
        batch = _measure(lines, at, header)[1]
        text += batch.text_length
        records += batch.records
    return text, records


def _before(lines: SegmentLines, position: int, inside: int) -> tuple[int, int]:
    """(text, records) that a batch shows before its record at byte `inside` of the batch."""
    _, header = next(_batches(lines.reader, position), (0, None))
    if header is None:
        raise CorruptRecord("shorter than it was", path=lines.segment.log_path, position=position)
    data, _ = _measure(lines, position, header)
    found = _prefix(lines, data, inside)
    return found.text_length, found.records


def _headers(
    lines: SegmentLines, position: int, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch that the view shows from `position` on; with `end`, those that begin before it."""
    for at, header in _batches(lines.reader, position):
        if at >= (lines.end if end is None else end):
            return
        yield at, header


def _batches(reader: SegmentReader, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `position` on; inside `at_once`, from the page
    cache.
    """
    if may_wait():
        return reader.batches(position)
    return scan_batches(_CachedHeaders(reader), position, reader.segment.size)


class _CachedHeaders:
    """A log as a byte source of batch headers: a part of `HEADERS_AT_ONCE` in the page cache."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self._left = HEADERS_AT_ONCE
        self.path = reader.segment.log_path

    def size(self) -> int:
        return self._reader.segment.size

    def read_at(self, position: int, size: int) -> memoryview:
        """Read at most a page. BlockingIOError if the part is read."""
        buffer = memoryview(bytearray(min(size, _PAGE)))
        self._left -= len(buffer)
        if self._left < 0:
            before_waiting()
        read_whole(self._reader, buffer, position)
        return buffer


def _measure(lines: SegmentLines, at: int, header: BatchHeader) -> tuple[Buffer, Measure]:
    """(a batch's plain form, its measure)

    Drop the plain form before the next call: there may be room for only one.
    """
    segment, measure = lines.segment, lines.view.measure
    data: Buffer
    if may_wait():
        data = lines.reader.read(at, header.size)
    else:
        if header.size > BATCHES_AT_ONCE:
            before_waiting()
        data = memoryview(bytearray(header.size))
        read_whole(lines.reader, data, at)
    batch = Measure(NO_ENTRIES)
    if segment.holds_batches:
        measure(data, 0, len(data), batch)
    if batch.encoded or not segment.holds_batches:
        shown = show_batch(lines.reader, lines.is_aborted, data, 0, header.size, at)
        if not shown.hidden:
            data = data if shown.plain is None else shown.plain
            batch = _prefix(lines, data, len(data))
    return data, batch


def _prefix(lines: SegmentLines, data: Buffer, end: int, granularity: int = NO_ENTRIES) -> Measure:
    """The measure of the records of a plain batch before byte `end` of it, where a record ends."""
    batch = Measure(granularity)
    batch.step_into(len(data), data)
    lines.view.measure(data, 0, end, batch)
    return batch


def _before_record(lines: SegmentLines, data: Buffer, number: int) -> int:
    """Bytes of text before record `number` of a plain batch."""
    return _prefix(lines, data, record_position(data, number)).text_length


def _number_at(lines: SegmentLines, data: Buffer, text: int) -> int:
    """The number in a plain batch of the record that shows byte `text` of the batch's text."""
    batch = _prefix(lines, data, len(data), GRANULARITY)
    entries = batch.entries
    first = find_entry(entries, len(entries) // ENTRY_SIZE, text)[4]
    # Each record has at least a newline.
    following = range(first + 1, min(first + GRANULARITY + 2, batch.records))
    return first + bisect_right(following, text, key=lambda n: _before_record(lines, data, n))
