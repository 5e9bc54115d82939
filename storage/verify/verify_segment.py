"""Reads a segment, or a whole log of 0.7, and reports every fault in it, without changing anything.

The rules:

- Each batch is whole, of a known format and codec, with a right CRC, and its offsets are above
  those of the batch before it. The reading ends at the first batch that is not.
- Each record can be decoded, and its offset is above the one before it.
- The log ends with a batch. The segment to which a living process appends may end in an incomplete
  batch, or in preallocated zeros, and its index may be longer than its used part.
- The `.index` and the `.timeindex` exist if the log needs them, and match it (`verify_index`).
- The `.txnindex` has an entry for each aborted transaction, and no other (`transactions`). That
  needs the transactions that are open at the segment's start.

A `LogPiece` names the range to read, in this process or in another one. A living writer's segment
with faults is read again, because its last batch may be complete then.

Not here: the other files of a directory (`verify`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import lt
from typing import TypeAlias

from storage import paths
from storage.byte_source import FileSource
from storage.errors import CorruptRecord, UnusableFile
from storage.files import Files
from storage.index import txn_index
from storage.kafka07.segment import load_entries
from storage.log.read import plain_batches
from storage.record._batch import Rebuild
from storage.record.columns._columns import decode_columns
from storage.record.header import BatchHeader, size_at
from storage.record.scan import batches
from storage.segment.walk import Walk, feed
from storage.settings.settings import Settings
from storage.verify.transactions import OpenTransactions, SegmentTransactions
from storage.verify.verify_index import (
    Finding,
    offset_index_faults,
    rebuilt_times,
    time_index_faults,
    without_zero_tail,
)

# Bytes that are decoded at a time: they may be compressed a thousandfold.
_DECODED_BYTES = 256 * 1024
_TOGETHER = 1 << 16
#: The number of faults of one file that are reported.
MAX_FAULTS_PER_FILE = 20
# Attempts to read a living writer's segment, and the seconds between them.
_ATTEMPTS = 4
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a file.

    `position`: in bytes, in the file; for an index, in the log that it refers to.
    """

    path: str
    reason: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = "" if self.position is None else f"position {self.position}: "
        what = "" if self.offset is None else f"offset {self.offset}: "
        return f"{self.path}: {where}{what}{self.reason}"


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A segment to be read. `is_live`: its writer is running.

    `was_killed`: its writer did not stop cleanly, and no start has recovered it. `renamed`: the
    suffix of its files' names, if they have one (a cleaner's new segments). `is_swapping`: a kill
    has interrupted its renaming, so the next start rebuilds its indexes.
    """

    files: Files
    directory: str
    base_offset: int
    index_interval_bytes: int
    is_last: bool
    is_live: bool
    renamed: str = ""
    was_killed: bool = False
    is_swapping: bool = False

    def path(self, suffix: str) -> str:
        name = paths.file_name(self.base_offset, suffix)
        return os.path.join(self.directory, name) + self.renamed


@dataclass(frozen=True, slots=True)
class OldLog:
    """A log of Kafka 0.7, in a data directory `path`; `names` of its segments' files."""

    files: Files
    path: str
    directory: str
    topic: str
    names: tuple[str, ...]
    is_live: bool


LogPiece: TypeAlias = SegmentPlace | OldLog
Progress: TypeAlias = Callable[[int], None]


@dataclass(slots=True)
class Verified:
    """The content of one segment, without control records, and its faults.

    `transactions`: empty if the log is damaged. `is_read_whole`: it ends at `next_offset`, which is
    not known of a damaged one. `sound_size`: the bytes before the first damage.
    """

    size: int = 0
    sound_size: int = 0
    records: int = 0
    next_offset: int = 0
    is_read_whole: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    transactions: SegmentTransactions = field(default_factory=SegmentTransactions)


def verify_piece(
    piece: LogPiece,
    progress: Progress = lambda size: None,
    before: OpenTransactions | None = None,
    found: Verified | None = None,
) -> Verified | None:
    """Read a piece, and again if a living writer's segment has faults; return None if it vanished.

    `before`: the transactions of the segments before it, if they are known. `found`: the outcome,
    if it was read already. Errors: OSError from the disk, InvalidConfig.
    """
    if isinstance(piece, OldLog):
        return found or _verify_old_log(piece, progress)
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            verified = found or verify_segment(piece, progress)
        except FileNotFoundError:
            if not piece.is_live:
                raise
            return None
        except UnusableFile as error:
            return Verified(faults=[Fault(str(error.filename), str(error.strerror))])
        found = None
        if before is not None:
            verified.faults += transaction_faults(piece, before, verified.transactions)
        if not verified.faults or not piece.is_live:
            break
    return verified


def _verify_old_log(log: OldLog, progress: Progress) -> Verified:
    """Read a log of 0.7. Errors: OSError from the disk; InvalidConfig for unreadable settings."""
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
            segment.close()
    found.next_offset, found.is_read_whole = segments[-1].next_offset, True
    return found


# -- one segment ---------------------------------------------------------------------------------


def verify_segment(place: SegmentPlace, progress: Progress) -> Verified:
    """Read one segment whole; `progress` gets the read bytes. Errors: OSError from the disk."""
    log_path = place.path(paths.LOG)
    # The indexes first: a living writer's log only grows beyond them.
    indexes = {suffix: _read(place, suffix) for suffix in paths.INDEX_SUFFIXES}
    rebuild = Rebuild(place.base_offset, place.index_interval_bytes)
    found = Verified()
    with place.files.held_open(log_path) as fd:
        found.size = place.files.size(fd)
        for finding in _log_findings(place, fd, rebuild, found, progress):
            found.faults.append(Fault(log_path, *finding))
        if not found.faults or rebuild.fault is None:
            found.faults += _index_faults(place, rebuild, indexes, fd)
            entries = txn_index.decode(indexes[paths.TXNINDEX] or b"")
            found.transactions = SegmentTransactions.of(rebuild.producers, entries)
    found.next_offset, found.epochs = rebuild.next_offset, rebuild.epochs
    found.sound_size = rebuild.position
    found.is_read_whole = rebuild.fault is None
    return found


def _log_findings(
    place: SegmentPlace,
    fd: int,
    rebuild: Rebuild,
    found: Verified,
    progress: Progress,
) -> Iterator[Finding]:
    """Yield the faults of the batches of a log; count their records in `found`."""
    size = found.size
    for window, taken, start in feed(place.files, fd, size, rebuild):
        progress(taken)
        yield from _record_findings(window[:taken], start, found)
    left = size - rebuild.position
    progress(left)
    # The next start cuts off the incomplete batch of a killed writer.
    growing = place.is_last and (place.is_live or place.was_killed)
    if left and rebuild.fault is None and not growing:
        yield f"the last batch is incomplete, {left} bytes", rebuild.position, None
    if left and rebuild.fault is not None:
        if growing and _is_zeros(place.files, fd, rebuild.position, size):
            return
        yield rebuild.fault, rebuild.position, rebuild.next_offset


def _record_findings(data: memoryview, start: int, found: Verified) -> Iterator[Finding]:
    """Yield the faults in whole batches with a correct CRC; `data[0]` lies at `start`."""
    last = -1
    walk = Walk(lambda at, size: data[at : at + size], 0, len(data), _DECODED_BYTES)
    for piece in walk:
        at = start + walk.position
        try:
            columns = decode_columns(piece, 0, len(piece), keys=False, values=False)
        except CorruptRecord as error:
            position = error.position or 0
            yield error.message, at + position, error.offset
            walk.position += position + size_at(piece, position)
            continue
        with memoryview(columns.offsets) as view, view.cast("q") as offsets:
            if columns.rows and (offsets[0] <= last or not _rise(offsets)):
                yield "a record's offset is not above the previous one", at, offsets[0]
            last = offsets[-1] if columns.rows else last
        walk.position += columns.consumed
        found.records += columns.rows


def _rise(offsets: memoryview[int]) -> bool:
    """Return whether each is above the one before it. Compares a few at a time: a batch of
    kilobytes may have millions.
    """
    for at in range(0, len(offsets), _TOGETHER):
        some = offsets[at : at + _TOGETHER + 1].tolist()
        if not all(map(lt, some, islice(some, 1, None))):
            return False
    return True


def _is_zeros(files: Files, fd: int, position: int, end: int) -> bool:
    for start, stop in files.data_ranges(fd, position, end):
        for at in range(start, stop, _DECODED_BYTES):
            data = files.pread(fd, min(_DECODED_BYTES, stop - at), at)
            if data.count(0) != len(data):
                return False
    return True


def transaction_faults(
    place: SegmentPlace, before: OpenTransactions, seen: SegmentTransactions
) -> Iterator[Fault]:
    """Yield the faults of a segment's transaction index; `before`: the state at its start."""
    return _some(place.path(paths.TXNINDEX), 0, before.faults(seen))


def _read(place: SegmentPlace, suffix: str) -> bytes | None:
    try:
        return place.files.read_whole(place.path(suffix))
    except FileNotFoundError:
        return None


# -- the indexes ---------------------------------------------------------------------------------


def _index_faults(
    place: SegmentPlace,
    rebuild: Rebuild,
    indexes: dict[str, bytes | None],
    fd: int,
) -> Iterator[Fault]:
    source = FileSource(place.files, fd, place.path(paths.LOG))

    def headers() -> Iterator[tuple[int, BatchHeader]]:
        return batches(source, 0, rebuild.position)

    base = place.base_offset

    def offset_faults(data: bytes) -> Iterator[Finding]:
        rebuilt, end = bytes(rebuild.offset_entries), rebuild.next_offset
        return offset_index_faults(data, rebuilt, base, end, headers)

    def time_faults(data: bytes) -> Iterator[Finding]:
        largest = None if place.is_last or rebuild.max_timestamp < 0 else rebuild.max_timestamp
        expected = rebuilt_times(rebuild, place.is_last)
        return time_index_faults(data, expected, base, largest, headers)

    for suffix, size, is_needed, faults in (
        (paths.INDEX, 8, rebuild.position > 0, offset_faults),
        # Logs of format v0 have no timestamps, and their brokers made no such file.
        (paths.TIMEINDEX, 12, rebuild.max_timestamp >= 0, time_faults),
    ):
        data = indexes[suffix]
        if data is not None:
            if place.is_last:
                # Its writer preallocates it, and only a clean end trims it.
                data = without_zero_tail(data, size)
            odd = len(data) % size
            yield from _some(place.path(suffix), odd, faults(data[: len(data) - odd]))
        elif is_needed and not place.is_live:
            yield Fault(place.path(suffix), "the file is missing")
    odd = len(indexes[paths.TXNINDEX] or b"") % txn_index.ENTRY_SIZE
    yield from _some(place.path(paths.TXNINDEX), odd, iter(()))


def _some(path: str, odd: int, findings: Iterator[Finding]) -> Iterator[Fault]:
    """Yield the first faults of a file, and how many more; `odd`: bytes after its entries."""
    if odd:
        yield Fault(path, f"{odd} bytes remain after its last entry")
    more = 0
    for number, finding in enumerate(findings):
        if number < MAX_FAULTS_PER_FILE:
            yield Fault(path, *finding)
        else:
            more += 1
    if more:
        yield Fault(path, f"{more} more entries are wrong")
