"""A condition reads at most a fixed number of ranges of a log."""

from __future__ import annotations

from storage.split.narrow import _MOST_RANGES, _fewer


def test_the_ranges_with_the_smallest_gaps_are_joined() -> None:
    offsets = [0]
    for gap in range(_MOST_RANGES + 1, 0, -1):
        offsets.append(offsets[-1] + 1 + gap)
    ranges = tuple((offset, offset) for offset in offsets)
    assert _fewer(ranges[2:]) == ranges[2:]
    assert _fewer(ranges) == (*ranges[:-3], (offsets[-3], offsets[-1]))
