"""What a round of cleaning works on, as it was when the round began."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import islice

from storage import paths
from storage.compaction.grouping import SegmentSize, group
from storage.compaction.passes import Pass, ProducerRecord, walk
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.task import Task

# Segments that are read until their descriptors are closed: a log may have thousands.
_CLOSED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Sources:
    """``segments`` are sealed ones that follow each other, and leased by who has this.

    ``following``: the base offset of the segment behind them.
    """

    segments: tuple[Segment, ...]
    following: int
    config: LogConfig
    producers: dict[int, ProducerRecord]
    aborted: list[TxnEntry]
    _read: list[Segment] = field(default_factory=list)

    def walk(self, number: int, position: int, taker: Pass, task: Task) -> None:
        """Have a pass take segment ``number`` from ``position`` on, and close it soon."""
        walk(self.segments[number], position, taker, task)
        self._read.append(self.segments[number])
        if len(self._read) == _CLOSED_AT_ONCE:
            task.by_owner(self.close_read)

    def close_read(self) -> None:
        """Close what was read; the owner may read it again, as may others who have a lease."""
        for segment in self._read:
            segment.files.close_descriptors(own_leases=1)
        self._read.clear()

    def aborted_within(self, start: int, end: int) -> list[TxnEntry]:
        """The aborted transactions that have any part of theirs in this range of offsets.

        (``UnifiedLog.collectAbortedTransactions``); those that ended before are over.
        """
        first = bisect_left(self.aborted, start, key=lambda entry: entry.last_offset)
        found = []
        for entry in islice(self.aborted, first, None):
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                break
        return found

    def next_offset(self, number: int) -> int:
        """Where segment ``number`` ends and the next one begins."""
        if number + 1 < len(self.segments):
            return self.segments[number + 1].base_offset
        return self.following

    def legacy_horizon_ms(self, first_dirty_offset: int, count: int) -> int:
        """Tombstones of v0 and v1 stay in segments that were written later than that.

        ``count``: of so many segments from the first on the round is.
        """
        segments = self.segments[:count]
        clean_ones = [each for each in segments if each.base_offset < first_dirty_offset]
        if not clean_ones:
            return 0
        return mtime_ms(clean_ones[-1]) - self.config.delete_retention_ms

    def groups(self, count: int) -> list[int]:
        """How many of the first ``count`` segments each of the new ones takes the place of."""
        sizes = [
            SegmentSize(
                segment.base_offset,
                segment.size,
                segment.files.file_size(paths.INDEX),
                segment.files.file_size(paths.TIMEINDEX),
            )
            for segment in self.segments[:count]
        ]
        return group(
            sizes,
            most=self.config.segment_bytes,
            most_index=self.config.segment_index_bytes,
            first_uncleanable=self.following,
        )


def aborted_of(log: Log) -> list[TxnEntry]:
    """The aborted transactions that a cleaner goes by, in the order of their markers.

    Of one that ended below the log start a cleaner knows nothing: its records are like others'
    (``LocalLog.collectAbortedTransactions`` begins at the log start).  Reads the indexes.
    """
    log_start = log.log_start_offset
    return [entry for entry in log.transactions.aborted() if entry.last_offset >= log_start]


def mtime_ms(segment: Segment) -> int:
    return segment.mtime_ns // 1_000_000
