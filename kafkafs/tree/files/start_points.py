"""Where in a log the points of a name lie: offsets, found without scanning the log.

Offsets are what they are, times are found by the time index as Kafka's ListOffsets finds them, and
counts by what the line index knows of records. A view of bytes counts as the topic's own view does.

Outside of the log: what is below the log start begins there, and what is above the log end, or
later than all records, begins where the view ends now.

Not here: what names say (`start_names.py`), which bytes of a view an offset is (`layout.py`).
"""

from __future__ import annotations

import time
from typing import NamedTuple

from kafkafs.tree.files.start_names import Edge, Last, Offset, Point, Time
from kafkafs.tree.files.view_file import MEASURE_S
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partition_view import PartitionView
from storage.errors import OffsetOutOfRange
from storage.log.read import Isolation
from storage.waiting import before_waiting


class End(NamedTuple):
    """Where a file ends: before an offset, or before the first record of a time or later.

    `timestamp_ms` of a time that no record has reached yet. Neither: it grows with the log.
    """

    offset: int | None = None
    timestamp_ms: int | None = None

    def __str__(self) -> str:
        if self.offset is not None:
            return str(self.offset)
        return "" if self.timestamp_ms is None else f"t{self.timestamp_ms}"


def start_offset(partition: Partition, view: PartitionView, point: Point, *, strict: bool) -> int:
    """The offset that a file begins with. BlockingIOError, StorageError, OSError.

    `strict`: an offset outside of the log is OffsetOutOfRange.
    """
    log = partition.log
    offset = _offset_of(partition, view, point)
    start, end = log.log_start_offset, log.log_end_offset
    if offset is None or offset > end or offset < start:
        if strict and isinstance(point, Offset):
            raise OffsetOutOfRange(point.offset, start, end, path=log.directory)
        return view.layout.bound if offset is None or offset > end else start
    return offset


def end_of(partition: Partition, view: PartitionView, point: Point | None) -> End:
    """Where a file ends that a name gives this end; as `start_offset`."""
    if point is None:
        return End()
    offset = _offset_of(partition, view, point)
    if offset is None:
        assert isinstance(point, Time)
        return End(None, point.timestamp_ms)
    return End(offset)


def _offset_of(partition: Partition, view: PartitionView, point: Point) -> int | None:
    """None for a time that is later than all records."""
    if isinstance(point, Offset):
        return point.offset
    if isinstance(point, Time):
        before_waiting()
        return offset_of_time(view, point.timestamp_ms)
    if isinstance(point, Last):
        counted = view if view.layout.view.is_text else partition.view(partition.mount.views[0])
        return counted.layout.offset_of_last(point.records, time.monotonic() + MEASURE_S)
    return partition.log.log_start_offset if point is Edge.START else view.layout.bound


def offset_of_time(view: PartitionView, timestamp_ms: int) -> int | None:
    """The offset of the first record of that time or later, as Kafka answers; None: there is none.

    In a log of Kafka 0.7, where only files have times, never a later one than that. Waits.
    """
    log = view.layout.log
    isolation: Isolation = "read_committed" if view.layout.view.committed else "read_uncommitted"
    found = log.reader.offset_for_timestamp(timestamp_ms, isolation)
    if found is not None:
        return found[1]
    return None if log.active.holds_batches else log.log_start_offset
