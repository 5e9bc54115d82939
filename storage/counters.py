"""What the logs of a data directory have done since it was opened, counted.

Plain numbers, which the thread that owns the logs adds to as things happen; that costs some ten
nanoseconds.  Another thread that reads them gets each one as it was at some moment.

Not here: what a log is like now (``Log``), and where the numbers are shown.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """Those that retention has taken out of a log, of ``bytes_deleted`` together."""
    bytes_deleted: int = 0
    flushes: int = 0
    """Those that succeeded, which took ``flush_ns`` together."""
    flush_ns: int = 0
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
