"""Figures of a range of a partition: counted column by column, and added up over ranges.

Buckets count sizes, exactly up to 255 bytes and within 1 % above. So the driver computes a topic's
quantiles from the figures of its tasks. Bins count records and bytes over time; they grow wider
with the time that they cover. Times are in ms.

A *time gap* is the time between a record and the newest record before it. A task does not have the
newest record before its range. So `add` computes the gaps where two ranges meet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from storage.record.columns._columns import Columns

_Longs = npt.NDArray[np.int64]

#: Widths of bins in ms; each is a multiple of the one before.
WIDTHS_MS = tuple(
    seconds * 1000 for seconds in (1, 10, 60, 300, 1800, 3600, 21_600, 86_400, 604_800)
)
_MOST_BINS = 1000
# The number of time gaps that a range keeps: the longest ones.
_MOST_GAPS = 1000
_EXACT_BITS = 8


@dataclass(slots=True)
class RangeStats:
    """The figures of the visible records from `from_offset` to before `to_offset`; -1: none."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    records: int = 0
    tombstones: int = 0
    without_key: int = 0
    without_time: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    largest: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    """The number of records, by the bucket of their size."""
    first_offset: int = -1
    last_offset: int = -1
    offset_gaps: int = 0
    missing_offsets: int = 0
    gone: int = 0
    """The number of offsets that retention deleted between planning and reading."""
    first_ms: int = -1
    """The time of the first record that has one, and its offset."""
    first_ms_offset: int = -1
    oldest_ms: int = -1
    newest_ms: int = -1
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    """(the newest time before, the record's time, its offset)"""
    more_gaps: int = 0
    width_ms: int = WIDTHS_MS[0]
    bins: dict[int, list[int]] = field(default_factory=dict)
    """(records, bytes), by the time in ms at which a bin begins."""
    keys: int = 0
    """The number of different keys in one task's range; a sum of ranges has none."""
    batches: list[int] = field(default_factory=lambda: [0] * 8)
    """By the codec's number."""

    def encode(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> RangeStats:
        values = json.loads(text)
        values["sizes"] = Counter({int(size): count for size, count in values["sizes"].items()})
        values["bins"] = {int(start): counts for start, counts in values["bins"].items()}
        values["gaps"] = [tuple(gap) for gap in values["gaps"]]
        return cls(**values)

    # -- counting ------------------------------------------------------------------------------

    def count(self, columns: Columns, gap_ms: int) -> None:
        """Add the next columns of the range. Their times are in µs."""
        rows = columns.rows
        assert columns.keys is not None
        assert columns.values is not None
        keys = np.diff(np.frombuffer(columns.keys.positions, "<i4", rows + 1))
        values = np.diff(np.frombuffer(columns.values.positions, "<i4", rows + 1))
        sizes = (keys + values).astype(np.int64)
        self.records += rows
        self.tombstones += columns.values.nulls
        self.without_key += columns.keys.nulls
        self.key_bytes += int(keys.sum(dtype=np.int64))
        self.value_bytes += int(values.sum(dtype=np.int64))
        self.largest = max(self.largest, int(sizes.max()))
        counts = np.bincount(_buckets(sizes))
        for bucket in np.flatnonzero(counts).tolist():
            self.sizes[bucket] += int(counts[bucket])
        offsets = np.frombuffer(columns.offsets, "<i8", rows)
        self._count_offsets(offsets)
        times = np.frombuffer(columns.timestamps, "<i8", rows) // 1000
        has_time = times >= 0
        if not has_time.all():
            self.without_time += rows - int(has_time.sum())
            times, offsets, sizes = times[has_time], offsets[has_time], sizes[has_time]
        if len(times):
            self._count_times(times, offsets, gap_ms)
            self._count_bins(times, sizes)

    def _count_offsets(self, offsets: _Longs) -> None:
        first, last = int(offsets[0]), int(offsets[-1])
        self.offset_gaps += int((np.diff(offsets) > 1).sum())
        self.missing_offsets += last - first + 1 - len(offsets)
        self._join_offsets(first, last)

    def _join_offsets(self, first: int, last: int) -> None:
        """Add the gap before `first`, and extend the range to `last`."""
        if self.first_offset < 0:
            self.first_offset = first
        elif first > self.last_offset + 1:
            self.offset_gaps += 1
            self.missing_offsets += first - self.last_offset - 1
        self.last_offset = last

    def _count_times(self, times: _Longs, offsets: _Longs, gap_ms: int) -> None:
        if self.first_ms < 0:
            self.first_ms = self.oldest_ms = self.newest_ms = int(times[0])
            self.first_ms_offset = int(offsets[0])
        newest = np.maximum.accumulate(np.concatenate(([self.newest_ms], times)))
        before = newest[:-1]
        for at in np.flatnonzero(times - before > gap_ms).tolist():
            self.gaps.append((int(before[at]), int(times[at]), int(offsets[at])))
        self.oldest_ms = min(self.oldest_ms, int(times.min()))
        self.newest_ms = int(newest[-1])
        if len(self.gaps) > _MOST_GAPS:
            kept = sorted(self.gaps, key=lambda gap: gap[0] - gap[1])[:_MOST_GAPS]
            self.more_gaps += len(self.gaps) - len(kept)
            self.gaps = sorted(kept, key=lambda gap: gap[2])

    def _count_bins(self, times: _Longs, sizes: _Longs) -> None:
        width_ms = self.width_ms
        starts, bins = np.unique(times // width_ms, return_inverse=True)
        records = np.bincount(bins)
        total = np.bincount(bins, weights=sizes)
        for number, count, size in zip(starts.tolist(), records, total, strict=True):
            self._add_bin(number * width_ms, int(count), int(size))
        self._bound_bins()

    def _add_bin(self, start: int, records: int, size: int) -> None:
        held = self.bins.setdefault(start - start % self.width_ms, [0, 0])
        held[0] += records
        held[1] += size

    def _bound_bins(self) -> None:
        while len(self.bins) > _MOST_BINS and self.width_ms != WIDTHS_MS[-1]:
            self.widen(WIDTHS_MS[WIDTHS_MS.index(self.width_ms) + 1])

    def widen(self, width_ms: int) -> None:
        """Merge bins until they have this width."""
        self.width_ms = width_ms
        bins, self.bins = self.bins, {}
        for start, (records, size) in bins.items():
            self._add_bin(start, records, size)

    # -- adding up -----------------------------------------------------------------------------

    def add(self, other: RangeStats, gap_ms: int) -> None:
        """Add the range that follows in the same partition."""
        if other.first_offset >= 0:
            self._join_offsets(other.first_offset, other.last_offset)
        self.to_offset = other.to_offset
        self._join_times(other, gap_ms)
        self.add_counts(other)
        self.offset_gaps += other.offset_gaps
        self.missing_offsets += other.missing_offsets
        self.more_gaps += other.more_gaps

    def _join_times(self, other: RangeStats, gap_ms: int) -> None:
        if other.first_ms < 0:
            return
        if self.first_ms < 0:
            self.first_ms, self.first_ms_offset = other.first_ms, other.first_ms_offset
            self.newest_ms = other.newest_ms
            self.gaps = list(other.gaps)
            return
        known = self.newest_ms
        if other.first_ms - known > gap_ms:
            self.gaps.append((known, other.first_ms, other.first_ms_offset))
        for before, after, offset in other.gaps:
            if after - max(known, before) > gap_ms:
                self.gaps.append((max(known, before), after, offset))
        self.newest_ms = max(known, other.newest_ms)

    def add_counts(self, other: RangeStats) -> None:
        """Add the figures that need no order, from any range of any partition."""
        for name in (
            *("records", "tombstones", "without_key", "without_time", "key_bytes", "value_bytes"),
            "gone",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        self.sizes.update(other.sizes)
        self.batches = [a + b for a, b in zip(self.batches, other.batches, strict=True)]
        if other.oldest_ms >= 0:
            is_first = self.oldest_ms < 0
            self.oldest_ms = other.oldest_ms if is_first else min(self.oldest_ms, other.oldest_ms)
            self.newest_ms = max(self.newest_ms, other.newest_ms)
        self.widen(max(self.width_ms, other.width_ms))
        for start, (records, size) in other.bins.items():
            self._add_bin(start, records, size)
        self._bound_bins()

    # -- results -------------------------------------------------------------------------------

    def quantile(self, part: float) -> int:
        """Return the size in bytes that this share of the records does not exceed, within 1 %."""
        rank = part * self.records
        for bucket in sorted(self.sizes):
            rank -= self.sizes[bucket]
            if rank <= 0:
                return min(_size_of(bucket), self.largest)
        return self.largest

    @property
    def peak(self) -> tuple[float, int]:
        """Return the records a second in the fullest bin, and the time in ms at its start."""
        if not self.bins:
            return 0.0, -1
        start = max(self.bins, key=lambda start: self.bins[start][0])
        return self.bins[start][0] * 1000 / self.width_ms, start


def total_of(name: str, parts: Iterable[RangeStats]) -> RangeStats:
    """Return the sum of the counts of any ranges as the figures of a topic `name`."""
    total = RangeStats(name, -1, 0, 0)
    for stats in parts:
        total.add_counts(stats)
    return total


def _buckets(sizes: _Longs) -> _Longs:
    """Return the bucket of each size.

    It is the size itself, or its eight highest bits and the number of lower bits.
    """
    bits = np.frexp(sizes.astype(np.float64))[1].astype(np.int64)
    below: _Longs = np.maximum(bits - _EXACT_BITS, 0)
    buckets: _Longs = (below << _EXACT_BITS) + (sizes >> below)
    return buckets


def _size_of(bucket: int) -> int:
    """Return the size in the middle of a bucket."""
    below, high = bucket >> _EXACT_BITS, bucket & ((1 << _EXACT_BITS) - 1)
    return (high << below) + ((1 << below) >> 1)
