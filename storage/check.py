"""Reads a whole segment and names every fault in it: batches, CRCs, offsets, both indexes.

What tests end with, and what ``LogManager.check`` is made of.  The indexes are compared with what
recovery would build, which holds for logs written here; brokers before 4.1 index differently.
"""

from __future__ import annotations

from storage import paths
from storage.errors import StorageError
from storage.old_segment import OldSegment
from storage.record._batch import Rebuild
from storage.segment import Segment

_CHUNK_BYTES = 16 * 1024 * 1024


def check_segment(segment: Segment, end: int, interval: int) -> list[str]:
    """The faults of one segment whose offsets must lie below ``end``; empty where it is sound."""
    if isinstance(segment, OldSegment):
        return segment.faults(end)
    faults: list[str] = []
    rebuild = Rebuild(segment.base_offset, interval)
    while rebuild.position < segment.size:
        data = segment.read_at(rebuild.position, min(_CHUNK_BYTES, segment.size - rebuild.position))
        if not rebuild.feed(data, len(data), rebuild.position):
            break
    try:
        if rebuild.fault is not None or rebuild.position != segment.size:
            reason = rebuild.fault or "an incomplete batch"
            faults.append(f"{segment.log_path}: position {rebuild.position}: {reason}")
        if rebuild.next_offset > end:
            faults.append(f"{segment.log_path}: ends at {rebuild.next_offset}, beyond {end}")
        if segment.offset_index.data() != bytes(rebuild.offset_entries):
            faults.append(f"{segment.file_path(paths.INDEX)}: differs from a rebuilt index")
        entries = bytes(rebuild.time_entries)
        final = entries + _final_time_entry(rebuild, entries)
        # An active segment that was closed has the final entry too, until it is written again.
        expected = (final,) if segment.sealed else (entries, final)
        if segment.time_index.data() not in expected:
            faults.append(f"{segment.file_path(paths.TIMEINDEX)}: differs from a rebuilt index")
    except StorageError as error:
        faults.append(str(error))
    return faults


def _final_time_entry(rebuild: Rebuild, entries: bytes) -> bytes:
    """What sealing adds to the time index: the largest timestamp, where it is not there yet."""
    last = int.from_bytes(entries[-12:-4], "big") if entries else -1
    if rebuild.max_timestamp <= last:
        return b""
    relative = rebuild.max_timestamp_offset - rebuild.base_offset
    return rebuild.max_timestamp.to_bytes(8, "big") + relative.to_bytes(4, "big")
