"""The position where a segment's text continues after a damaged place of its log.

A damaged batch no longer shows how much text it had; the entries of the line index on either side
do. The text between them, less the text of the sound batches there, is the *gap*. Damaged places
without an entry between them share one gap.

A log that is measured after it was damaged: a damaged batch whose records can be parsed counts with
their text, which mostly is the right length. Any other counts as one empty record, so that a reader
who comes from before it meets the damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkafs.line_index.lines import Gap, Lines, MeasuredSegment
from kafkafs.line_index.records import shown_between, start_of_batch, text_before_batch
from storage.errors import CorruptRecord
from storage.record.batch import Record, encode
from storage.record.header import (
    CODEC_BITS,
    CONTROL_BIT,
    FLAGS_POSITION,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    size_at,
)
from storage.segment.damage import Damage, Damages
from storage.waiting import before_waiting

if TYPE_CHECKING:
    from kafkafs.views._measure import Measure

_STAND_IN = encode([Record(0, 0, 0, b"", b"")])


class Gaps:
    """The gaps of one segment in one view, ascending, found at first use."""

    __slots__ = ("_found", "_of")

    def __init__(self) -> None:
        self._of: Damages = ()
        self._found: tuple[Gap, ...] = ()

    def get(self, lines: Lines) -> tuple[Gap, ...]:
        """The gaps; all that the view shows must be measured.

        BlockingIOError where it would wait and may not; CorruptRecord, SegmentGone, OSError.
        """
        # Looking for them may find more damage.
        while self._of is not (damages := lines.segment.damages):
            before_waiting()
            self._found, self._of = _find(lines, damages), damages
        return self._found

    def before(self, lines: Lines, text: int) -> Gap | None:
        """The last gap that ends at or before `text`. CorruptRecord where `text` is inside of one;
        other errors as `get`.
        """
        last: Gap | None = None
        for gap in self.get(lines):
            if gap.end <= text:
                last = gap
            elif gap.start <= text:
                raise gap.place.error(lines.segment.log_path)
        return last


def measure_damaged(lines: MeasuredSegment, state: Measure, place: Damage, end: int) -> None:
    """Measure a damaged place from the state's position on to file position `end`."""
    position = lines.covered
    if place.is_empty:
        state.step_over(end - position)
        return
    while position < end and not lines.segment.files.is_missing:
        head = bytearray(HEADER_SIZE)
        read = lines.segment.read_stored(head, position)
        size = size_at(head, 0) if read == HEADER_SIZE and head[MAGIC_POSITION] == MAGIC else 0
        attributes = head[FLAGS_POSITION] if size else CODEC_BITS
        if not attributes & CODEC_BITS and HEADER_SIZE <= size <= end - position:
            try:
                if attributes & CONTROL_BIT:
                    state.step_over(size)
                else:
                    data = bytearray(size)
                    lines.segment.read_stored(data, position)
                    state.add(lines.view.measure, data, size)
                position += size
                continue
            except CorruptRecord:
                pass
        break
    if position < end:
        state.add(lines.view.measure, _STAND_IN, end - position)
        lines.is_guessed = True


def _find(lines: Lines, damages: Damages) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    places = [place for place in damages if place.start < lines.end]
    while places:
        place = places.pop(0)
        following = lines.entry_from(place.end)
        while places and (following is None or following[1] >= places[0].start):
            last = places.pop(0)
            place = place._replace(end=last.end, next_offset=last.next_offset)
            following = lines.entry_from(place.end)
        start, first = text_before_batch(lines, _is_at(place.start), place.start)
        if following is None:
            end, until, after = lines.text_length, lines.end, lines.records
        else:
            end, until, after = start_of_batch(lines, following)
        text, records = shown_between(lines, place.end, until)
        gaps.append(Gap(start, end - text, first, after - records, place))
    return tuple(gaps)


def _is_at(start: int) -> Callable[[int, int], bool]:
    return lambda position, _: position >= start
