"""The segments that a round of cleaning reads, as they were when it began, and their grouping.

A group of segments becomes one segment with the base offset of its first member, so that segments
do not become smaller and smaller. `group` limits a group (`Cleaner.groupSegmentsBySize`): no more
log than segment.bytes, no more entries of an index than segment.index.bytes, and offsets that fit
an index entry. A group may still not fit into one segment: cleaning can make v0 and v1 batches
longer, and index other batches than before. Then `group_writer` begins another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage import paths
from storage.compaction.passes import Pass, ProducerRecord, walk
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.segment.segment import MAX_OFFSET_SPAN, Segment
from storage.settings.config import LogConfig
from storage.task import Task


@dataclass(frozen=True, slots=True)
class Sources:
    """Consecutive sealed `segments`; the caller holds a lease on each.

    `end_offset`: their end, the base offset of the next segment.
    """

    segments: tuple[Segment, ...]
    end_offset: int
    config: LogConfig
    producers: dict[int, ProducerRecord]
    aborted: list[TxnEntry]

    @classmethod
    def below(cls, log: Log, end_offset: int) -> Sources:
        """Return the sealed segments that begin below `end_offset`; `aborted` is still empty."""
        segments = tuple(each for each in log.segments[:-1] if each.base_offset < end_offset)
        producers = {
            each.producer_id: ProducerRecord(each.last_offset, each.epoch) for each in log.producers
        }
        return cls(segments, end_offset, log.config, producers, [])

    def read_aborted(self, log: Log) -> None:
        """Read the aborted transactions, in the order of their markers, from the log's indexes.

        If a transaction ended below the log start, a cleaner treats its records like any others
        (`LocalLog.collectAbortedTransactions` begins at the log start).
        """
        start = log.log_start_offset
        self.aborted.extend(
            each for each in log.transactions.aborted() if each.last_offset >= start
        )

    def walk(self, number: int, position: int, taker: Pass, task: Task) -> None:
        """Let a pass take segment `number` from `position` on, and close the segment.

        A log may have thousands of segments. Its next reader opens a segment again. A segment with
        unflushed bytes stays open (`storage.descriptors`).
        """
        segment = self.segments[number]
        walk(segment, position, taker, task)
        segment.evict()

    def next_offset(self, number: int) -> int:
        """Return the offset at which segment `number` ends and the next one begins."""
        if number + 1 < len(self.segments):
            return self.segments[number + 1].base_offset
        return self.end_offset

    def legacy_horizon_ms(self, first_dirty_offset: int) -> int:
        """Return the `legacy_horizon_ms` of a round."""
        clean = [each.mtime_ns for each in self.segments if each.base_offset < first_dirty_offset]
        return clean[-1] // 1_000_000 - self.config.delete_retention_ms if clean else 0

    def groups(self, count: int) -> list[int]:
        """Return the sizes of the groups of the first `count` segments, in order."""
        sizes = [
            SegmentSize(
                segment.base_offset,
                segment.size,
                segment.file_size(paths.INDEX),
                segment.file_size(paths.TIMEINDEX),
            )
            for segment in self.segments[:count]
        ]
        return group(
            sizes,
            most=self.config.segment_bytes,
            most_index=self.config.segment_index_bytes,
            first_uncleanable=self.end_offset,
        )


class SegmentSize(NamedTuple):
    """Bytes of a segment's log, and of the entries of its indexes."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int


def group(
    segments: Sequence[SegmentSize], *, most: int, most_index: int, first_uncleanable: int
) -> list[int]:
    """Return the sizes of the groups, in order.

    `most`, `most_index`: bytes of log and of an index that a group may have. `first_uncleanable`:
    the offset at which the last segment ends.
    """
    counts: list[int] = []
    size = index_size = time_index_size = first_base = 0
    ends = [*(segment.base_offset for segment in segments[1:]), first_uncleanable]
    for segment, end in zip(segments, ends, strict=False):
        size += segment.size
        index_size += segment.index_size
        time_index_size += segment.time_index_size
        if (
            counts
            and size <= most
            and index_size <= most_index
            and time_index_size <= most_index
            and (segment.size == 0 or end - 1 - first_base <= MAX_OFFSET_SPAN)
        ):
            counts[-1] += 1
        else:
            counts.append(1)
            first_base, size, index_size, time_index_size = segment
    return counts
