"""Which segments are cleaned into one."""

from __future__ import annotations

import pytest

from storage.compaction.sources import SegmentSize, group
from storage.segment.segment import MAX_OFFSET_SPAN


def counts(*segments: tuple[int, int, int, int]) -> list[int]:
    sizes = [SegmentSize(*each) for each in segments]
    return group(sizes, most=1000, most_index=100, first_uncleanable=segments[-1][0] + 10)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([1000], [1]),
        ([5000], [1]),
        ([500, 500], [2]),
        ([500, 501], [1, 1]),
        ([999, 1, 0, 0], [4]),
        ([999, 2, 998, 1], [1, 2, 1]),
        ([0, 0, 0], [3]),
        ([5000, 0, 1], [1, 2]),
    ],
)
def test_by_size_of_the_log(sizes: list[int], groups: list[int]) -> None:
    assert counts(*((n * 10, size, 0, 0) for n, size in enumerate(sizes))) == groups


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
