"""Divides a range of a log's offsets into splits that other processes read.

The planning process has the log open; a reading one (`split_reader`) has only the directory and a
`Split`. Planning reads only indexes, a few entries for each split. A part of a segment ends with a
batch that has an entry in the offset index. The next part begins at the end of that batch, and its
`position` is the batch's start, some bytes before. A segment is not divided if its index is missing
or impossible, or if its file does not hold batches. A split may include the next segments if those
are small.

Not here: reading (`split_reader`), the choice of the range, Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from storage.errors import OffsetOutOfRange
from storage.index.txn_index import TxnEntry, aborted_within
from storage.log.log import Log
from storage.log.read import Isolation
from storage.segment.damage import Damage
from storage.segment.segment import Segment
from storage.split.narrow import segment_ranges
from storage.split.split_finder import AbortedSpan, Split

_GROWTH = 8


class _Part(NamedTuple):
    """A segment's bytes from `position` on, with the offsets from `start` to before `end`.

    `goes_on`: the next part begins in the same segment.
    """

    segment: Segment
    position: int
    size: int
    start: int
    end: int
    goes_on: bool = False


class _Room:
    """The bytes of log in a split: `size`, and the free part of it, `left`.

    The first split has `first_bytes`, and each one `_GROWTH` times as much as the previous one, up
    to `target_bytes`.
    """

    def __init__(self, first_bytes: int, target_bytes: int) -> None:
        self.size = self.left = min(first_bytes, target_bytes)
        self._target_bytes = target_bytes

    def renew(self) -> None:
        self.size = self.left = min(self.size * _GROWTH, self._target_bytes)


def plan_splits(
    log: Log,
    from_offset: int,
    to_offset: int,
    *,
    target_bytes: int,
    isolation: Isolation,
    first_bytes: int | None = None,
) -> list[Split]:
    """Return splits of about `target_bytes` of log, which together are the range; in order.

    `first_bytes`: of the first split, so that its records arrive soon; the next ones grow up to
    `target_bytes`. Errors: OffsetOutOfRange if the range is not within log start and the end for
    `isolation`; OSError.
    """
    bound = log.last_stable_offset if isolation == "read_committed" else log.high_watermark
    for offset in (from_offset, to_offset):
        if not log.log_start_offset <= offset <= bound:
            raise OffsetOutOfRange(offset, log.log_start_offset, bound, path=log.directory)
    if from_offset >= to_offset:
        return []
    aborted = log.transactions.aborted() if isolation == "read_committed" else []
    aborted.sort(key=lambda entry: entry.last_offset)
    splits: list[Split] = []
    parts: list[_Part] = []
    room = _Room(first_bytes or target_bytes, target_bytes)
    for segment, start, end, is_whole in segment_ranges(log.segments, from_offset, to_offset):
        for part in _parts(segment, start, end, is_whole, room):
            parts.append(part)
            room.left -= part.size
            if part.goes_on or room.left <= 0:
                splits += _split(log, parts, aborted)
                parts = []
                room.renew()
    return splits + _split(log, parts, aborted)


def _split(log: Log, parts: Sequence[_Part], aborted: Sequence[TxnEntry]) -> list[Split]:
    """Return the split of these parts; none if they have no bytes."""
    size = sum(part.size for part in parts)
    if not size:
        return []
    first, start, end = parts[0], parts[0].start, parts[-1].end
    lost = (_lost(part.segment, start, end) for part in parts)
    split = Split(
        topic=log.topic,
        partition=log.partition,
        directory=log.directory,
        base_offset=first.segment.base_offset,
        position=first.position,
        size=size,
        from_offset=start,
        to_offset=end,
        aborted=tuple(
            AbortedSpan(entry.producer_id, entry.first_offset, entry.last_offset)
            for entry in aborted_within(aborted, start, end)
        ),
        topic_id=log.topic_id,
        segments=() if log.may_have_gaps else tuple(part.segment.base_offset for part in parts),
        lost=next(filter(None, lost), None),
    )
    return [split]


def _lost(segment: Segment, start: int, end: int) -> tuple[str, Damage] | None:
    """Return a segment's path and lost range, if any of these offsets are in that."""
    lost = segment.lost
    if lost is None or lost.next_offset <= start or lost.first_offset >= end:
        return None
    return segment.log_path, lost


def _parts(segment: Segment, start: int, end: int, is_whole: bool, room: _Room) -> Iterator[_Part]:
    """Divide a segment's range into parts that fit the room, which the caller renews after each
    part that `goes_on`.

    `is_whole`: the range extends to the segment's end.
    """
    if not segment.holds_batches:
        # Its offsets are positions.
        yield _Part(segment, 0, end - start, start, end)
    elif start == segment.base_offset and is_whole and segment.size <= room.left + room.size // 4:
        yield _Part(segment, 0, segment.size, start, end)
    else:
        was_open = segment.is_open
        try:
            yield from _by_index(segment, start, end, room)
        finally:
            # A log may have thousands of segments.
            if segment.sealed and not was_open:
                segment.evict()


def _by_index(segment: Segment, start: int, end: int, room: _Room) -> Iterator[_Part]:
    index = segment.offset_index
    if not index.count or not index.is_sound:
        yield _Part(segment, 0, segment.size, start, end)
        return
    position = index.lookup(start)[1]
    stop = segment.size
    after = index.position_after(index.lookup(end - 1)[1])
    if after is not None:
        stop = min(stop, after)
    while stop - position > room.left + room.size // 4:
        # `OffsetIndex.fetchUpperBoundOffset`
        found = index.after(position + max(room.left, 1) - 1)
        if found is None:
            break
        last, at = found
        if not (start <= last < end - 1 and position < at < stop):
            break
        yield _Part(segment, position, at - position, start, last + 1, goes_on=True)
        position, start = at, last + 1
    yield _Part(segment, position, max(stop - position, 0), start, end)
