"""A restore point as the state that is handed over: where logs end, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from storage.errors import HandoverRefused
from storage.groups.offset_records import (
    Committed,
    commit_key,
    commit_value,
    encode_batches,
    partition_for,
)
from storage.handover.handed_segment import Part
from storage.log.log import Log
from storage.record.control import ABORT, encode_marker
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.point_file import Point, Range
from storage.state.producer_state import ProducerState

# A broker reads larger batches, but no client may send them.
_BATCH_BYTES = 1_000_000


def parts_of(log: Log, end: int) -> list[Part]:
    """Return the segments of a log up to an offset. Errors: HandoverRefused if no batch ends there;
    CorruptRecord, OSError.
    """
    if log.log_end_offset < end:
        reason = f"it ends at offset {log.log_end_offset}, before the restore point: {end}"
        raise HandoverRefused(reason, path=log.directory)
    parts = []
    for segment in log.segments:
        if segment.base_offset < end:
            size = segment.size if segment.next_offset <= end else _size_below(segment, end)
            if size:
                parts.append(Part(segment, size, min(segment.next_offset, end)))
    return parts


def _size_below(segment: Segment, end: int) -> int:
    """Return how many bytes of a segment lie below an offset."""
    for position, header in SegmentReader(segment).batches(segment.position_before(end)):
        if header.base_offset >= end:
            return position
        if header.last_offset >= end:
            reason = f"offset {end}, the end of the restore point, lies within a batch"
            raise HandoverRefused(reason, path=segment.log_path)
    return segment.size


def faults(point: Point, log: Log, kept: Range) -> Iterator[str]:
    """Yield why a log has not the records of a point any more; `kept`: those of its partition."""
    name = f"{log.topic}:{log.partition}"
    if log.log_start_offset > kept.start:
        yield f"{name}: offsets {kept.start} to {log.log_start_offset - 1} were deleted since"
    for gap in log.gaps:
        if gap.kind == "diverged" and gap.first < kept.end and gap.time_ms >= point.time_ms:
            yield f"{name}: the cluster has lost records from offset {gap.first} on since"


def abort_markers(producers: ProducerState, end: int, now_ms: int) -> bytearray:
    """Return ABORT markers, from the offset `end` on, for the open transactions of a log. In the
    cluster they have ended, but above the point.
    """
    markers = bytearray()
    open_ones = (producer for producer in producers if producer.in_transaction)
    for offset, producer in enumerate(open_ones, end):
        markers += encode_marker(
            ABORT,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            coordinator_epoch=max(producer.coordinator_epoch, 0),
            offset=offset,
            timestamp_ms=now_ms,
            leader_epoch=0,
        )
    return markers


def group_batches(
    point: Point, topic_ids: Mapping[str, str], count: int, now_ms: int
) -> dict[int, bytearray]:
    """Return the batches of `count` partitions of `__consumer_offsets` with the committed offsets
    of a point, without empty ones.

    `topic_ids`: the ids at the broker of the topics whose offsets count. Their times are now: a
    broker removes old ones. No offset is above the end of a partition: a group may have read
    uncommitted records.
    """
    records: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for group, positions in sorted(point.groups.items()):
        into = records.setdefault(partition_for(group, count), [])
        for (topic, number), position in sorted(positions.items()):
            if topic in topic_ids and (topic, number) in point.partitions:
                offset = min(position.offset, point.partitions[topic, number].end)
                committed = Committed(
                    offset, -1, position.metadata, now_ms, topic_id=topic_ids[topic]
                )
                into.append((commit_key(group, topic, number), commit_value(committed)))
    return {
        number: encode_batches(each, now_ms, _BATCH_BYTES)
        for number, each in records.items()
        if each
    }
