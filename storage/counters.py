"""What the logs of a data directory have done since it was opened, counted.

Plain numbers, which the thread that owns the logs adds to as things happen; that costs some ten
nanoseconds. Another thread that reads them gets each one as it was at some moment.

Not here: what a log is like now (`Log`), and where the numbers are shown.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

_MS = 1_000_000


class Durations:
    """How long something took each time: how often, in all, and how often up to each of some
    bounds.
    """

    __slots__ = ("counts", "total_ns")

    BOUNDS_NS = tuple(
        bound * _MS // 10 for bound in (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000)
    )

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS_NS) + 1)
        """Each between the bound before it and its own; the last one is above all bounds."""
        self.total_ns = 0

    def add(self, took_ns: int) -> None:
        """Count one that took so long."""
        self.counts[bisect_left(self.BOUNDS_NS, took_ns)] += 1
        self.total_ns += took_ns

    @property
    def count(self) -> int:
        """How often."""
        return sum(self.counts)


@dataclass(slots=True)
class LogCounters:
    """Of all logs of a data directory together, also of those that were deleted since."""

    records_appended: int = 0
    """Offsets that appends have taken: transactions' markers count too."""
    batches_appended: int = 0
    bytes_appended: int = 0
    damages: int = 0
    """Damaged places that the checker has found."""
    rolls: int = 0
    retentions: int = 0
    """How often segments have left a log by retention or because its start was moved."""
    segments_deleted: int = 0
    """Those that retention has taken out of a log, of `bytes_deleted` together."""
    bytes_deleted: int = 0
    flushes: Durations = field(default_factory=Durations)
    """Those that succeeded."""
    flush_failures: int = 0
    truncations: int = 0
    """How often the process that owns a log was seen to cut it."""


@dataclass(slots=True)
class CleanerCounters:
    """Of all rounds of the cleaner that came to their end; sizes in bytes, offsets as records."""

    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    elapsed_ms: int = 0
    map_fill: float = 0.0
    """Of the last round: how much of its map it has used, from 0 to 1."""
