"""Counts appends, flushes, deletions and cleanings since a data directory was opened.

The counters are plain integers that the log thread increases, at some ten nanoseconds each. Another
thread that reads them sees each one as it was at some moment.

Not here: the present state of a log (`Log`), and the display of the numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

_MS = 1_000_000


class Durations:
    """A histogram of durations, with their number and sum."""

    __slots__ = ("counts", "total_ns")

    BOUNDS_NS = tuple(
        bound * _MS // 10 for bound in (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000)
    )

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS_NS) + 1)
        """Durations between the previous bound and this one; the last is above all bounds."""
        self.total_ns = 0

    def add(self, took_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.BOUNDS_NS, took_ns)] += 1
        self.total_ns += took_ns

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)


@dataclass(slots=True)
class LogCounters:
    """Totals over all logs of a data directory, including deleted ones."""

    records_appended: int = 0
    """Offsets that appends assigned, including those of transaction markers."""
    batches_appended: int = 0
    bytes_appended: int = 0
    damages: int = 0
    """Damaged ranges that the checker found."""
    rolls: int = 0
    retentions: int = 0
    """Times that retention, or a higher log start, removed segments from a log."""
    segments_deleted: int = 0
    """Segments that retention removed, of `bytes_deleted` together."""
    bytes_deleted: int = 0
    segments_repacked: int = 0
    """Segments that repacking replaced, of `repacked_bytes_before` bytes, now `…_after`."""
    repacked_bytes_before: int = 0
    repacked_bytes_after: int = 0
    flushes: Durations = field(default_factory=Durations)
    """Flushes that succeeded."""
    flush_failures: int = 0
    truncations: int = 0
    """Times that a log was truncated, also by another process that writes it."""


@dataclass(slots=True)
class CleanerCounters:
    """Totals over all finished rounds of the cleaner; sizes in bytes, offsets as records."""

    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    elapsed_ms: int = 0
    map_fill: float = 0.0
    """The used part of the offset map in the last round, from 0 to 1."""
