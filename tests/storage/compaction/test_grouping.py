"""Which segments are cleaned into one."""

from __future__ import annotations

from storage.compaction.sources import SegmentSize, group
from storage.segment.segment import MAX_OFFSET_SPAN

MIB = 1 << 20


def counts(*segments: tuple[int, int, int, int], end: int = 10**12, **most: int) -> list[int]:
    limits = {"most": 1000, "most_index": 100, **most}
    return group(
        [SegmentSize(*each) for each in segments],
        most=limits["most"],
        most_index=limits["most_index"],
        first_uncleanable=min(end, segments[-1][0] + 10 if segments else 0),
    )


def test_by_size_of_each_index() -> None:
    assert counts((0, 1, 50, 0), (10, 1, 50, 0), (20, 1, 1, 0)) == [2, 1]
    assert counts((0, 1, 0, 50), (10, 1, 0, 50), (20, 1, 0, 1)) == [2, 1]


def test_by_the_span_of_offsets() -> None:
    span = MAX_OFFSET_SPAN
    # The last offset of a segment is taken to be the one before the next one's base.
    assert counts((0, 1, 0, 0), (5, 1, 0, 0), (span + 1, 1, 0, 0)) == [2, 1]
    assert counts((0, 1, 0, 0), (99, 1, 0, 0), (span + 2, 1, 0, 0)) == [1, 2]
    # An empty one fits always.
    assert counts((0, 1, 0, 0), (5, 0, 0, 0), (span + 2, 0, 0, 0)) == [3]
