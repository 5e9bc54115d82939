"""Reads a segment, or a whole log of 0.7, for ``verify``, in this process or in another one.

A ``LogPiece`` says what to read.  A process that reads a segment apart from those before it does
not know which transactions are open where it begins: ``verify`` judges its transaction index later.

A living writer's segment that has faults is read again: what was half written may be whole then.

Not here: what else there is in a directory (``verify``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from storage.errors import CorruptRecord
from storage.files import Files
from storage.kafka07.segment import load_entries
from storage.log.read import plain_batches
from storage.settings.settings import Settings
from storage.verify.transactions import OpenTransactions
from storage.verify.verify_segment import (
    Fault,
    SegmentPlace,
    Verified,
    transaction_faults,
    verify_segment,
)

# How often a living writer's segment is read, and how many seconds apart.
_ATTEMPTS = 4
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class OldLog:
    """A log of Kafka 0.7, in a data directory ``path``; ``names`` of its segments' files."""

    files: Files
    path: str
    directory: str
    topic: str
    names: tuple[str, ...]
    is_live: bool


LogPiece: TypeAlias = SegmentPlace | OldLog
Progress: TypeAlias = Callable[[int], None]


def verify_piece(piece: LogPiece, progress: Progress = lambda size: None) -> Verified | None:
    """Read a piece; None where it has vanished.  OSError from the disk, InvalidConfig."""
    if isinstance(piece, OldLog):
        return verify_old_log(piece, progress)
    return verify_patiently(piece, progress)


def verify_patiently(
    place: SegmentPlace,
    progress: Progress,
    before: OpenTransactions | None = None,
    found: Verified | None = None,
) -> Verified | None:
    """Read a segment, and read a living writer's with faults again; None where it has vanished.

    ``before``: the transactions of the segments before it, where they are known.  ``found``: the
    outcome, where it was read already.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            verified = found or verify_segment(place, progress)
        except FileNotFoundError:
            if not place.is_live:
                raise
            return None
        found = None
        if before is not None:
            verified.faults += transaction_faults(place, before, verified.transactions)
        if not verified.faults or not place.is_live:
            break
    return verified


def verify_old_log(log: OldLog, progress: Progress) -> Verified:
    """Read it.  OSError from the disk; InvalidConfig where its settings cannot be read."""
    found = Verified()
    try:
        config = Settings(log.files, log.path).log_config(log.topic)
        segments, _ = load_entries(log.files, log.directory, log.names, config, progress=None)
    except CorruptRecord as error:
        found.faults.append(Fault(error.path or log.directory, error.message))
        return found
    for segment in segments:
        path = segment.log_path
        try:
            good, reason = segment.check(progress)
            found.size += segment.size
            if reason is not None and not (log.is_live and segment is segments[-1]):
                found.faults.append(Fault(path, reason, good))
            for _, header in plain_batches(segment, 0, good):
                found.records += header.records_count
        except CorruptRecord as error:
            found.faults.append(Fault(path, error.message, error.position, error.offset))
        finally:
            segment.files.close()
    found.next_offset, found.is_read_whole = segments[-1].next_offset, True
    return found
