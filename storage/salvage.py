"""Takes back what is valid behind a damaged place.

Recovery ends a log at its first damaged batch, as Kafka does, and keeps what it cuts in ``*.cut``
files.  Salvage is explicit: it searches those files for batches that are whole, have a right CRC
and begin at or above the log end, and appends them with the offsets they had.  What was damaged
becomes a gap of offsets, as compaction leaves them.

Invariants: nothing is invented, reordered or written twice (a second run finds every batch below
the log end); the ``*.cut`` files stay until ``cut.purge``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from storage import paths
from storage.cut import cut_files
from storage.errors import CorruptRecord
from storage.log import Log
from storage.record._batch import find_next_batch
from storage.record.batch import parse_header
from storage.record.plain import plain
from storage.segment import BatchEntry


@dataclass(frozen=True, slots=True)
class Salvaged:
    """One ``*.cut`` file: bytes in it, and what of it was appended again."""

    path: str
    size: int
    batches: int
    records: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.path}: took back {self.records} records in {self.batches} batches, "
            f"{self.bytes} of {self.size} bytes"
        )


def salvage(log: Log, now_ns: int) -> list[Salvaged]:
    """Append the valid batches of every ``*.cut`` file and flush.  OSError from the disk.

    A log whose end was lost takes these; it is whole again where they reach as far as it did.
    """
    lost_end, log.lost_end = log.lost_end, 0
    try:
        outcome = [
            _salvage_file(log, path, now_ns)
            for path in cut_files(log.files, log.directory)
            if paths.LOG + "." in os.path.basename(path)
        ]
        if any(salvaged.batches for salvaged in outcome):
            log.flush()
    finally:
        if log.log_end_offset < lost_end:
            log.lost_end = lost_end
    return outcome


def _salvage_file(log: Log, path: str, now_ns: int) -> Salvaged:
    fd = log.files.open(path, os.O_RDONLY)
    try:
        size = log.files.size(fd)
        if size == 0:
            return Salvaged(path, 0, 0, 0, 0)
        data = log.files.map(fd, size)
    finally:
        log.files.close(fd)
    batches = records = taken = 0
    with data, memoryview(data) as view:
        at = find_next_batch(view, 0, log.log_end_offset)
        while at >= 0:
            header = parse_header(view, at)
            # A wrapper of v0 or v1 tells only its last offset.
            if header.is_legacy and _first_offset(view, at, header.size) < log.log_end_offset:
                at = find_next_batch(view, at + header.size, log.log_end_offset)
                continue
            entry: BatchEntry = (0, header.size, header.last_offset, header.max_timestamp)
            log.append_as_follower(bytearray(view[at : at + header.size]), [entry], now_ns)
            batches += 1
            records += header.records_count
            taken += header.size
            at = find_next_batch(view, at + header.size, log.log_end_offset)
    return Salvaged(path, size, batches, records, taken)


def _first_offset(view: memoryview, at: int, size: int) -> int:
    """Of the message or wrapper there; -1 where it is damaged inside."""
    try:
        return parse_header(plain(view, at, at + size)[0]).base_offset
    except CorruptRecord:
        return -1
