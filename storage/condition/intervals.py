"""Sets of whole numbers, as intervals: ascending, not adjacent, both ends included.

No set exceeds signed 64 bits: `EVERYTHING` is all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

LOWEST = -(1 << 63)
HIGHEST = (1 << 63) - 1

Intervals: TypeAlias = tuple[tuple[int, int], ...]

NOTHING: Intervals = ()
EVERYTHING: Intervals = ((LOWEST, HIGHEST),)


def interval(low: int, high: int) -> Intervals:
    """Return the numbers from `low` to `high`, both included; they may lie outside of 64 bits."""
    low, high = max(low, LOWEST), min(high, HIGHEST)
    return ((low, high),) if low <= high else NOTHING


def union(several: Iterable[Intervals]) -> Intervals:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(pair for each in several for pair in each):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return tuple(joined)


def complement(intervals: Intervals) -> Intervals:
    found: list[tuple[int, int]] = []
    low = LOWEST
    for start, end in intervals:
        if low < start:
            found.append((low, start - 1))
        low = end + 1
    if low <= HIGHEST:
        found.append((low, HIGHEST))
    return tuple(found)


def intersection(several: Iterable[Intervals]) -> Intervals:
    return complement(union(complement(each) for each in several))


def meet(intervals: Intervals, low: int, high: int) -> bool:
    """Return whether any of the numbers lies from `low` to `high`, both included."""
    return any(start <= high and low <= end for start, end in intervals)
