"""Reads a whole segment and names every fault in it, without changing anything.

Every batch: size, CRC, offsets that rise, and every record in it, through any codec and format.
Then what the indexes say of them (``verify_index``), but for the transaction index: who knows what
is open where the segment begins judges that (``transaction_faults``).

The segment that a living process appends to may end in a part of a batch, or in zeros that were
allocated ahead; its index may be longer than it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import lt

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files, FileSource
from storage.index import txn_index
from storage.record._batch import Rebuild
from storage.record.columns._columns import decode_columns
from storage.record.header import BatchHeader, size_at
from storage.record.scan import batches
from storage.recovery.misplaced import misplaced
from storage.segment.walk import Walk, feed
from storage.verify.transactions import OpenTransactions, SegmentTransactions
from storage.verify.verify_index import (
    Finding,
    offset_index_faults,
    rebuilt_times,
    time_index_faults,
    without_zero_tail,
)

# What is decoded at a time, because it may be compressed a thousandfold.
_PIECE_BYTES = 256 * 1024
#: A file that is wrong everywhere is named this often.
MAX_FAULTS_PER_FILE = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong where: position in bytes of the file (of an index: of its log), offset."""

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
    """A segment to be read: its log, whether it is the last one, whether its writer lives.

    ``was_killed``: its writer has not ended orderly, and nobody has put in order what that left.
    ``flushed_end``: where a batch of its log ended, None: nobody knows.
    ``renamed``: what its files' names have at their end at the moment, as a cleaner's new ones.
    """

    files: Files
    directory: str
    base_offset: int
    index_interval_bytes: int
    is_last: bool
    is_live: bool
    renamed: str = ""
    was_killed: bool = False
    flushed_end: int | None = None

    def path(self, suffix: str) -> str:
        name = paths.file_name(self.base_offset, suffix)
        return os.path.join(self.directory, name) + self.renamed


@dataclass(slots=True)
class Verified:
    """What was read of one segment (control records do not count) and what is wrong with it.

    ``transactions``: nothing where the log is damaged.  ``is_read_whole``: it ends at
    ``next_offset``, which nobody knows of a damaged one.
    """

    size: int = 0
    records: int = 0
    next_offset: int = 0
    is_read_whole: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    transactions: SegmentTransactions = field(default_factory=SegmentTransactions)


def verify_segment(place: SegmentPlace, progress: Callable[[int], None]) -> Verified:
    """Read one segment whole; ``progress`` is told the bytes read.  OSError from the disk."""
    log_path = place.path(paths.LOG)
    # The indexes first: a living writer's log only grows beyond what they say.
    indexes = {suffix: _read(place, suffix) for suffix in paths.INDEX_SUFFIXES}
    rebuild = Rebuild(place.base_offset, place.index_interval_bytes)
    fd = place.files.open(log_path, os.O_RDONLY)
    try:
        walk = _Walk(place, fd, place.files.size(fd), rebuild, progress)
        faults = [Fault(log_path, *finding) for finding in walk.run()]
        if place.is_last and rebuild.fault is None:
            faults += _last_fault(place, fd, rebuild)
        seen = SegmentTransactions()
        if not faults or rebuild.fault is None:
            faults += _index_faults(place, rebuild, indexes, fd)
            entries = txn_index.decode(indexes[paths.TXNINDEX] or b"")
            seen = SegmentTransactions.of(rebuild.producers, entries)
    finally:
        place.files.close(fd)
    return Verified(
        size=walk.size,
        records=walk.records,
        next_offset=rebuild.next_offset,
        is_read_whole=rebuild.fault is None,
        epochs=rebuild.epochs,
        faults=faults,
        transactions=seen,
    )


def _last_fault(place: SegmentPlace, fd: int, rebuild: Rebuild) -> Iterator[Fault]:
    """The last batch of a log, where that lies across where the log has ended."""

    def read(position: int, size: int) -> bytes:
        return place.files.pread(fd, size, position)

    found = misplaced(read, rebuild, place.flushed_end, is_sealed=False)
    if found is not None:
        yield Fault(place.path(paths.LOG), found.reason, found.start, found.first_offset)


def transaction_faults(
    place: SegmentPlace, before: OpenTransactions, seen: SegmentTransactions
) -> Iterator[Fault]:
    """What is wrong in a segment's transaction index; ``before``: of the segments before it."""
    return _some(place.path(paths.TXNINDEX), 0, before.faults(seen))


def _read(place: SegmentPlace, suffix: str) -> bytes | None:
    try:
        return place.files.read_whole(place.path(suffix))
    except FileNotFoundError:
        return None


class _Walk:
    """Takes a log's file through ``Rebuild`` and the records in it through their decoder."""

    def __init__(
        self,
        place: SegmentPlace,
        fd: int,
        size: int,
        rebuild: Rebuild,
        progress: Callable[[int], None],
    ) -> None:
        self.place = place
        self.fd = fd
        self.size = size
        self.rebuild = rebuild
        self.progress = progress
        self.records = 0

    def run(self) -> Iterator[Finding]:
        rebuild = self.rebuild
        for window, taken, start in feed(self.place.files, self.fd, self.size, rebuild):
            self.progress(taken)
            yield from self._record_faults(window[:taken], start)
        self.progress(self.size - rebuild.position)
        if rebuild.position < self.size:
            yield from self._end()

    def _end(self) -> Iterator[Finding]:
        """Why the walk ended before the file."""
        rebuild = self.rebuild
        # What a killed writer has begun, the next start takes off.
        growing = self.place.is_last and (self.place.is_live or self.place.was_killed)
        if rebuild.fault is None:
            if not growing:
                left = self.size - rebuild.position
                yield f"the last batch is incomplete, {left} bytes", rebuild.position, None
        elif not (growing and self._only_zeros(rebuild.position)):
            yield rebuild.fault, rebuild.position, rebuild.next_offset

    def _record_faults(self, data: memoryview, start: int) -> Iterator[Finding]:
        """What is wrong inside of whole batches, whose CRCs are right; ``data[0]`` lies at
        ``start``.
        """
        last = -1
        walk = Walk(lambda at, size: data[at : at + size], 0, len(data), _PIECE_BYTES)
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
                found = offsets.tolist()
            if found and (found[0] <= last or not all(map(lt, found, islice(found, 1, None)))):
                yield "a record's offset is not above the one before it", at, found[0]
            last = found[-1] if found else last
            walk.position += columns.consumed
            self.records += columns.rows

    def _only_zeros(self, position: int) -> bool:
        while position < self.size:
            data = self.place.files.pread(self.fd, _PIECE_BYTES, position)
            if data.count(0) != len(data):
                return False
            if not data:
                break
            position += len(data)
        return True


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

    offsets, times = indexes[paths.INDEX], indexes[paths.TIMEINDEX]
    if offsets is None:
        if rebuild.position and not place.is_live:
            yield Fault(place.path(paths.INDEX), "it is missing")
    else:
        offsets, odd = _entries(place, offsets, 8)
        found = offset_index_faults(
            offsets, bytes(rebuild.offset_entries), place.base_offset, rebuild.next_offset, headers
        )
        yield from _some(place.path(paths.INDEX), odd, found)
    if times is None:
        # Logs of format v0 have no timestamps, and their brokers made no such file.
        if rebuild.max_timestamp >= 0 and not place.is_live:
            yield Fault(place.path(paths.TIMEINDEX), "it is missing")
    else:
        times, odd = _entries(place, times, 12)
        largest = None if place.is_last or rebuild.max_timestamp < 0 else rebuild.max_timestamp
        expected = rebuilt_times(rebuild, place.is_last)
        found = time_index_faults(times, expected, place.base_offset, largest, headers)
        yield from _some(place.path(paths.TIMEINDEX), odd, found)
    odd = len(indexes[paths.TXNINDEX] or b"") % txn_index.ENTRY_SIZE
    yield from _some(place.path(paths.TXNINDEX), odd, iter(()))


def _entries(place: SegmentPlace, data: bytes, size: int) -> tuple[bytes, int]:
    """The whole entries that are used, and how many bytes are left behind them."""
    if place.is_last:
        # Its writer, living or killed, had it extended.
        data = without_zero_tail(data, size)
    odd = len(data) % size
    return data[: len(data) - odd], odd


def _some(path: str, odd: int, findings: Iterator[Finding]) -> Iterator[Fault]:
    """The faults of a file, as many as are worth reading; ``odd``: bytes behind its entries."""
    if odd:
        yield Fault(path, f"{odd} bytes are left behind its last entry")
    more = 0
    for number, finding in enumerate(findings):
        if number < MAX_FAULTS_PER_FILE:
            yield Fault(path, *finding)
        else:
            more += 1
    if more:
        yield Fault(path, f"{more} more entries are wrong")
