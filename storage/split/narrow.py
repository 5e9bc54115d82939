"""Excludes the offsets of a range for which a condition cannot be true, by indexes and words.

A segment is excluded if its largest timestamp is too small, and so is the start of a segment by its
time index. No index has the smallest timestamp of later records: timestamps need not rise, so the
rest of a log is read. The header of a batch may exclude more (`storage.record.columns._columns`).

The `.words` of a segment exclude the blocks without the words of the condition (`word_query`). They
answer offsets. So if a cleaner replaces the segment before it is read, the answer is right for the
records that are left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise

from storage.condition.condition import Condition
from storage.condition.intervals import (
    EVERYTHING,
    LOWEST,
    Intervals,
    intersection,
    interval,
    union,
)
from storage.directory.word_files import path_of
from storage.errors import CorruptRecord, SegmentGone
from storage.log.log import Log
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.split.word_query import query_of
from storage.words import query
from storage.words.query import Query
from storage.words.words import Words

#: The most ranges of a plan: each becomes a split at least. Also the most ranges of the offsets in
#: a condition: each costs a look-up.
MOST_RANGES = 100


def narrowed(
    log: Log, from_offset: int, to_offset: int, condition: Condition, cache: str | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the ranges (first offset, next offset) for which the condition may be true, in order.

    A segment is looked at when its ranges are needed. If it has none, its range is empty, and lies
    at its end. `condition` is a result of `of_partition`. `cache`: a directory that may have
    `.words`, too. Errors: OSError.
    """
    times, words = condition.times(), query_of(condition.part)
    if condition.is_impossible or not times:
        return
    offsets = _few(intersection((condition.offsets(), interval(from_offset, to_offset - 1))))
    if times[0][0] == LOWEST and words == query.EVERYTHING:
        for low, high in offsets:
            yield low, high + 1
        return
    for segment, start, end, _ in segment_ranges(log.segments, from_offset, to_offset):
        wanted = intersection((offsets, ((start, end - 1),)))
        if segment.holds_batches and wanted and times[0][0] > LOWEST:
            first = _first_since(segment, times[0][0])
            wanted = intersection((wanted, interval(first, end - 1)))
        if wanted and words != query.EVERYTHING:
            wanted = intersection((wanted, _with_words(segment, words, cache)))
        yield from ((low, high + 1) for low, high in wanted or ((end, end - 1),))


def few(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return at most MOST_RANGES ranges that are not empty, which include all of these. Those with
    the smallest gaps are joined.
    """
    left = _few(union(interval(first, behind - 1) for first, behind in ranges))
    return [(low, high + 1) for low, high in left]


def _few(left: Intervals) -> Intervals:
    gaps = range(1, len(left))
    widest = sorted(gaps, key=lambda at: left[at - 1][1] - left[at][0])[: MOST_RANGES - 1]
    cuts = [0, *sorted(widest), len(left)] if left else []
    return tuple((left[low][0], left[high - 1][1]) for low, high in pairwise(cuts))


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
    first = bisect_right(segments, from_offset, key=lambda segment: segment.base_offset) - 1
    for number in range(max(first, 0), len(segments)):
        segment = segments[number]
        if segment.base_offset >= to_offset:
            return
        last = number + 1 == len(segments)
        following = segment.next_offset if last else segments[number + 1].base_offset
        start, end = max(from_offset, segment.base_offset), min(to_offset, following)
        if start < end:
            yield segment, start, end, end == following


def _first_since(segment: Segment, timestamp_ms: int) -> int:
    """Return an offset of the segment before which no record has that timestamp or a later one."""
    if segment.is_lost:
        return segment.base_offset
    try:
        with segment.leased():
            if segment.max_timestamp < timestamp_ms:
                largest, offset = segment.max_timestamp, segment.max_timestamp_offset
                following = segment.next_offset
            else:
                largest, offset = segment.time_index.lookup(timestamp_ms - 1)
                following = offset + 1
            if largest <= 0:
                # Records without timestamps are in no index. An entry of zeros is a hole.
                return segment.base_offset
            # The entries have no checksum: one counts only if its batch exists.
            found = SegmentReader(segment).locate(offset)
            if found is None or found[1].max_timestamp != largest:
                return segment.base_offset
            return following
    except (CorruptRecord, SegmentGone):
        # The reader reports missing records, or finds a cleaner's output.
        return segment.base_offset


def _with_words(segment: Segment, wanted: Query, cache: str | None) -> Intervals:
    """Return the offsets of a segment whose blocks may have these words."""
    if not segment.sealed or segment.is_lost:
        return EVERYTHING
    places = [path_of(segment), *([] if cache is None else [path_of(segment, cache)])]
    places = [path for path in places if segment.disk.exists(path)]
    if not places:
        return EVERYTHING
    try:
        with segment.leased():
            for path in places:
                words = Words.open(segment, path)
                if words is not None:
                    with closing(words):
                        found = words.offsets(wanted)
                    return union(interval(first, behind - 1) for first, behind in found)
    except SegmentGone:
        pass  # the reader finds a cleaner's output
    return EVERYTHING
