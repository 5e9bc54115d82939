"""What the logs of a data directory have done since it was opened, counted.

Plain numbers, added to where the thing happens, by the thread that owns the log: counting costs
some ten nanoseconds.  Whoever reads them in another thread gets each one as it was at some moment.

Not here: what a log is like now (``Log``), and who shows the numbers.
"""

from __future__ import annotations


class LogCounters:
    """Of all logs of a data directory together, also of those that were deleted since."""

    __slots__ = (
        "batches_appended",
        "bytes_appended",
        "bytes_deleted",
        "damages",
        "flush_failures",
        "flush_ns",
        "flushes",
        "records_appended",
        "retentions",
        "rolls",
        "segments_deleted",
        "truncations",
    )

    def __init__(self) -> None:
        self.records_appended = 0
        """Offsets that appends have taken: transactions' markers count too."""
        self.batches_appended = 0
        self.bytes_appended = 0
        self.damages = 0
        """Damaged places that the checker has found."""
        self.rolls = 0
        self.retentions = 0
        """How often segments have left a log by retention or because its start was moved."""
        self.segments_deleted = 0
        """Those that retention has taken out of a log, of ``bytes_deleted`` together."""
        self.bytes_deleted = 0
        self.flushes = 0
        """Those that succeeded, which took ``flush_ns`` together."""
        self.flush_ns = 0
        self.flush_failures = 0
        self.truncations = 0
        """How often the process whose log it is was seen to cut one."""


class CleanerCounters:
    """Of all rounds of the cleaner that came to their end; sizes in bytes, offsets as records."""

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "elapsed_ms",
        "map_fill",
        "records_kept",
        "records_read",
        "rounds",
    )

    def __init__(self) -> None:
        self.rounds = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_read = 0
        self.records_kept = 0
        self.elapsed_ms = 0
        self.map_fill = 0.0
        """Of the last round: how much of its map it has used, from 0 to 1."""
