"""Excludes the offsets of a range for which a condition cannot be true, by the indexes alone.

A segment is excluded if its largest timestamp is too small, and so is the start of a segment by its
time index. No index has the smallest timestamp of later records: timestamps need not rise, so the
rest of a log is read. The header of a batch may exclude more (`storage.record.columns._columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from storage.condition.condition import Condition
from storage.condition.intervals import LOWEST, Intervals, intersection, interval, union
from storage.errors import CorruptRecord, SegmentGone
from storage.log.log import Log
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment

# If there are more ranges, those with the smallest gaps are joined.
_MOST_RANGES = 100


def narrowed(
    log: Log, from_offset: int, to_offset: int, condition: Condition
) -> list[tuple[int, int]]:
    """Return the ranges (first offset, next offset) for which the condition may be true.

    `condition` is a result of `of_partition`. Errors: OSError.
    """
    offsets, times = condition.offsets(), condition.times()
    if condition.is_impossible or not times:
        return []
    found: list[Intervals] = []
    for segment, start, end, _ in segment_ranges(log.segments, from_offset, to_offset):
        wanted = intersection((offsets, ((start, end - 1),)))
        if segment.holds_batches and wanted and times[0][0] > LOWEST:
            first = _first_since(segment, times[0][0])
            wanted = intersection((wanted, interval(first, end - 1)))
        found.append(wanted)
    return [(low, high + 1) for low, high in _fewer(union(found))]


def bytes_of(log: Log, from_offset: int, to_offset: int) -> int:
    """Return the approximate bytes of log in a range: of a segment, its share by offsets.

    Reads nothing.
    """
    size = 0
    for segment, start, end, _ in segment_ranges(log.segments, from_offset, to_offset):
        offsets = max(segment.next_offset - segment.base_offset, end - segment.base_offset)
        size += segment.size * (end - start) // offsets
    return size


def segment_ranges(
    segments: Sequence[Segment], from_offset: int, to_offset: int
) -> Iterator[tuple[Segment, int, int, bool]]:
    """Yield each segment of the range, with the first and the next offset of the range in it, and
    whether the range extends to the segment's end.
    """
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        following = segment.next_offset if last else segments[number + 1].base_offset
        start, end = max(from_offset, segment.base_offset), min(to_offset, following)
        if start < end:
            yield segment, start, end, end == following


def _first_since(segment: Segment, timestamp_ms: int) -> int:
    """Return an offset of the segment before which no record has that timestamp or a later one."""
    if segment.is_lost:
        return segment.base_offset
    was_open = segment.is_open
    try:
        segment.lease()
    except SegmentGone:
        return segment.base_offset  # as below
    try:
        if segment.max_timestamp < timestamp_ms:
            largest, offset = segment.max_timestamp, segment.max_timestamp_offset
            following = segment.next_offset
        else:
            largest, offset = segment.time_index.lookup(timestamp_ms - 1)
            following = offset + 1
        if largest <= 0:
            # Records without timestamps are in no index. An entry of zeros is a hole.
            return segment.base_offset
        if not segment.writable:
            # The index of a read-only directory was not checked: an entry counts only if its batch
            # exists.
            found = SegmentReader(segment).locate(offset)
            if found is None or found[1].max_timestamp != largest:
                return segment.base_offset
        return following
    except (CorruptRecord, SegmentGone):
        # The reader reports missing records, or finds a cleaner's output.
        return segment.base_offset
    finally:
        segment.release()
        # A log may have thousands of segments.
        if segment.sealed and not was_open:
            segment.evict()


def _fewer(ranges: Intervals) -> Intervals:
    """Return at most `_MOST_RANGES` ranges, which include all of these."""
    if len(ranges) <= _MOST_RANGES:
        return ranges
    gaps = range(1, len(ranges))
    widest = sorted(gaps, key=lambda at: ranges[at - 1][1] - ranges[at][0])[: _MOST_RANGES - 1]
    cuts = [0, *sorted(widest), len(ranges)]
    return tuple((ranges[first][0], ranges[behind - 1][1]) for first, behind in pairwise(cuts))
