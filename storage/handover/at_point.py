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
from storage.record.control import ABORT, encode_marker, parse_marker
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.gaps_file import FILE_NAME, UNREADABLE
from storage.state.point_file import Point, Range, lost_from
from storage.state.producer_state import ProducerState

# A broker reads larger batches, but no client may send them.
_BATCH_BYTES = 1_000_000
MARKER_SIZE = len(encode_marker(ABORT, 0, 0, 0, 0, 0, 0))
"""The bytes of each of `markers`."""


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
    if kept.start == kept.end:
        return
    name = f"{log.topic}:{log.partition}"
    if log.log_start_offset > kept.start:
        last = min(log.log_start_offset, kept.end) - 1
        yield f"{name}: offsets {kept.start} to {last} were deleted since"
    gaps = log.gaps
    if any(gap.kind == UNREADABLE for gap in gaps):
        yield f"{name}: {FILE_NAME} cannot be read, which names the records that were lost since"
    if (first := lost_from(point, kept, gaps)) is not None:
        yield f"{name}: the cluster has lost records from offset {first} on since"


def markers(
    log: Log, producers: ProducerState, end: int, now_ms: int, *, force: bool
) -> tuple[bytearray, list[int]]:
    """Return markers, from the offset `end` on, for the transactions that `producers` have open
    there, and the producers that are aborted.

    `end` was the last stable offset in the cluster: these transactions had ended, and consumers
    were given their records, but the markers lie above it. Errors: HandoverRefused, unless `force`,
    if there is no marker, or more records of the transaction; CorruptRecord, OSError.
    """
    made, aborted = bytearray(), []
    open_ones = [producer for producer in producers if producer.in_transaction]
    ends = _ends(log, {each.producer_id for each in open_ones}, end)
    for offset, producer in enumerate(open_ones, end):
        kind, is_whole = ends.get(producer.producer_id, (ABORT, False))
        if not is_whole and not force:
            reason = (
                f"{log.topic}:{log.partition}: the restore point divides a transaction of producer "
                f"{producer.producer_id}. To hand it over: --force"
            )
            raise HandoverRefused(reason, path=log.directory)
        if kind == ABORT:
            aborted.append(producer.producer_id)
        made += producer.marker(kind, offset, now_ms, leader_epoch=0)
    return made, aborted


def _ends(log: Log, producer_ids: set[int], end: int) -> dict[int, tuple[int, bool]]:
    """Return, by producer, the type of its first marker from the offset `end` on, and whether there
    are no records of it between.
    """
    found: dict[int, tuple[int, bool]] = {}
    divided: set[int] = set()
    # Without a marker, its transaction is still open: no need to look for one.
    left = {
        each
        for each in producer_ids
        if (known := log.producers.by_id.get(each)) is None
        or not 0 <= known.transaction_first_offset < end
    }
    for segment in log.segments:
        if segment.next_offset <= end or not left:
            continue
        reader = SegmentReader(segment)
        for position, header in reader.batches(segment.position_before(end)):
            producer_id = header.producer_id
            if header.base_offset < end or producer_id not in left:
                continue
            if not header.is_control:
                divided.add(producer_id)
            elif (marker := parse_marker(reader.read(position, header.size))) is not None:
                found[producer_id] = marker.type, producer_id not in divided
                left.remove(producer_id)
                if not left:
                    break
    return found


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
