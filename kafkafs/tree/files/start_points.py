"""Finds the offset of each point of a name, without scanning the log.

A time is looked up in the time index, as Kafka's ListOffsets does; a count of records in the line
index. A view of bytes counts the records of the topic's own view.

A start before the log start is clamped to it. A start after the log end, or later than all records,
is where the view ends now. `partition_text.py` finds the position of an offset.

A group's position is an offset. A group that has committed nothing in a partition begins at the log
start, as a new consumer does that must not miss records. A group that does not exist has no
position. Where retention was faster than a group, the log of events names the gap.
"""

from __future__ import annotations

import errno
import time
from bisect import bisect_left
from typing import NamedTuple

from kafkafs.tree.files.group_names import group_name, why_no_group
from kafkafs.tree.files.start_names import Edge, Last, NoPoint, Offset, OfGroup, Point, Time
from kafkafs.tree.files.view_file import MEASURE_S
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partition_text import PartitionText
from kafkafs.tree.partition.partitions import Partitions
from storage.errors import CorruptRecord, OffsetOutOfRange
from storage.log.log import Log
from storage.log.read import Isolation
from storage.segment.reader import SegmentReader
from storage.waiting import before_waiting

_LAST_MS = 9_000_000_000_000
"""The latest time of a file, in ms: as nanoseconds it has to fit into 64 bits."""


class End(NamedTuple):
    """The end of a file (exclusive): an offset, or a time that no record has reached yet.

    Neither: the file grows with the log.
    """

    offset: int | None = None
    timestamp_ms: int | None = None

    def is_reached(self, bound: int) -> bool:
        """Whether a view that shows the log up to the offset `bound` shows all before this end."""
        return self.offset is not None and self.offset <= bound

    def __str__(self) -> str:
        if self.offset is not None:
            return str(self.offset)
        return "" if self.timestamp_ms is None else f"t{self.timestamp_ms}"


def of_group(partitions: Partitions, partition: Partition, point: Point | None) -> Point | None:
    """The point, where it is a group's position the offset that this is now. NoPoint where there is
    no such group; OSError, BlockingIOError.
    """
    if not isinstance(point, OfGroup):
        return point
    name = group_name(point.spelt)
    if name is None:
        raise NoPoint(errno.ENOENT, why_no_group(point.spelt))
    group = partitions.group(name)
    if group is None:
        why = f"there is no group {point.spelt}. To create it: mkdir .groups/{point.spelt}"
        raise NoPoint(errno.ENOENT, why)
    log = partition.log
    committed = group.committed.get((log.topic, log.partition))
    if committed is None:
        return Edge.START
    gap = log.log_start_offset - committed.position
    if gap > 0:
        partition.mount.events.of_request(
            f"{log.name}: group {point.spelt} has not read offsets {committed.position} to "
            f"{log.log_start_offset - 1} ({gap}), which were deleted; it starts at the log start"
        )
    elif committed.position > log.log_end_offset:
        partition.mount.events.of_request(
            f"{log.name}: group {point.spelt} is at offset {committed.position}, beyond the log "
            f"end, {log.log_end_offset}; it starts at the log end"
        )
    return Offset(committed.position)


def start_offset(partition: Partition, text: PartitionText, point: Point, *, strict: bool) -> int:
    """The first offset of a file. BlockingIOError, StorageError, OSError.

    `strict`: OffsetOutOfRange for an offset outside of the log.
    """
    log = partition.log
    offset = _offset_of(partition, text, point)
    start, end = log.log_start_offset, log.log_end_offset
    if offset is None or offset > end or offset < start:
        if strict and isinstance(point, Offset):
            raise OffsetOutOfRange(point.offset, start, end, path=log.directory)
        return text.bound if offset is None or offset > end else start
    return offset


def end_of(partition: Partition, text: PartitionText, point: Point | None) -> End:
    """The end of a file whose name has this point as its end; errors as `start_offset`."""
    if point is None:
        return End()
    offset = _offset_of(partition, text, point)
    if offset is None:
        assert isinstance(point, Time)
        return End(None, point.timestamp_ms)
    return End(offset)


def _offset_of(partition: Partition, text: PartitionText, point: Point) -> int | None:
    """The offset of a point; None for a time later than all records."""
    if isinstance(point, Offset):
        return point.offset
    if isinstance(point, Time):
        before_waiting()
        return offset_of_time(text, point.timestamp_ms)
    if isinstance(point, Last):
        counted = text if text.view.is_text else partition.text(partition.mount.views[0])
        return counted.offset_of_last(point.records, time.monotonic() + MEASURE_S)
    return partition.log.log_start_offset if point is Edge.START else text.bound


def offset_of_time(text: PartitionText, timestamp_ms: int) -> int | None:
    """The offset of the first record of this time or later, or None.

    In a log of Kafka 0.7, where only files have times, that record or an earlier one. Waits.
    """
    log = text.log
    isolation: Isolation = "read_committed" if text.view.committed else "read_uncommitted"
    found = log.reader.offset_for_timestamp(timestamp_ms, isolation)
    if found is not None:
        return found[1]
    return None if log.active.holds_batches else log.log_start_offset


def time_before(log: Log, start: int, end: int) -> int:
    """The largest timestamp of the last batch before the offset `end`, in ns since 1970.

    It is the same for ever while the past is the same. Where there is none, from `start` on or with
    a timestamp, it is the time when the partition was made. Waits.
    """
    if end <= start:
        return log.created_ns
    before_waiting()
    segments = log.segments
    number = bisect_left(segments, end, key=lambda segment: segment.base_offset)
    segment = segments[max(number - 1, 0)]
    if not segment.holds_batches:
        return log.created_ns
    reader = SegmentReader(segment)
    segment.lease()
    try:
        found = reader.locate(end - 1) or reader.last_batch()
    except CorruptRecord:
        return log.created_ns
    finally:
        segment.release()
    if found is None or found[1].max_timestamp < 0:
        return log.created_ns
    return min(found[1].max_timestamp, _LAST_MS) * 1_000_000
