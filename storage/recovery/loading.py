"""From a segment's files, after any stop, to a segment that can be trusted.

After a clean stop the files are trusted but for a look at each index's last entry; after any other
stop everything from the recovery point on is read, its CRCs checked and its index entries written
anew.  At the first batch that is torn or damaged a segment that was not flushed ends; what lies
behind is copied to ``BASE.log.POSITION.cut``.  Zeros that nothing follows are no damage and are
taken off: a file that was made as long as a segment may become (preallocate) ends in them, and so
does one whose length reached the disk and whose bytes did not.  A batch that is whole and has a
wrong base offset is damage in its place, and ends nothing (``misplaced``); so is what a failed
fsync has lost (``rescue``).

Invariants: a sealed segment's indexes equal rebuilt ones; the transaction index holds nothing
beyond the offset from which on the log was read (``replay`` adds that).

Not here: the other segments (``recovery``), producers (``replay``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files, FileSource
from storage.index import txn_index
from storage.record._batch import Rebuild
from storage.record.header import HEADER_SIZE, BatchHeader, parse_header, size_at
from storage.record.plain import first_offset
from storage.record.scan import batches
from storage.recovery.misplaced import misplaced
from storage.segment.batch_check import Part, check_part
from storage.segment.cut import Cut, cut_tail
from storage.segment.damage import Damage
from storage.segment.first_read import Known
from storage.segment.segment import Segment
from storage.segment.walk import buffered, feed
from storage.settings.config import LogConfig
from storage.state.producer_state import ABORT, ProducerBatch
from storage.task import Task

_CHUNK_BYTES = 4 * 1024 * 1024
_PAGE = 4096
# Places with damage that a segment is read on behind, from its start for each.
_MOST_MISPLACED = 100
# Batches of producers that are remembered of a segment, some 300 bytes each; rather than more of
# them the log is read again.
_MOST_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and how a partition is loaded.  Offsets count records; ``now_ms`` is wall time."""

    files: Files
    directory: str
    config: LogConfig
    clean: bool
    recovery_point: int
    log_start: int
    writable: bool
    now_ms: int
    may_be_cleaned: bool = False  # what the topic's settings say or not
    holes_to: int = 0  # a cleaner may have left gaps between segments up to here
    producer_expiration_ms: int = 86_400_000
    progress: Callable[[int], None] = lambda size: None
    # Segments whose files' names end in ``.swap``: where nothing may be changed they stay so.
    swapped: frozenset[int] = frozenset()
    # Up to where what the book says of segments counts; None: a broker's log has none.
    booked_to: int | None = None
    # Where a batch of the log ended, as it was flushed up to there; None: nobody knows.
    flushed_end: int | None = None
    # An fsync has failed, and the page cache still has, or new files do, what can be read.
    is_unsynced: bool = False


@dataclass(slots=True)
class Scan:
    """What loading has read of a segment's log: from ``position``, a batch of ``offset``, on.

    ``producers``: the batches of producers there, with positions in the log; None where they are
    too many to be remembered.  ``first_abort``: the offset of the first ABORT marker among them.
    """

    position: int
    offset: int
    producers: list[ProducerBatch] | None = field(default_factory=list)
    first_abort: int | None = None

    def take(self, batches: list[tuple[int, ...]]) -> None:
        """Add what a walk has found."""
        for batch in map(ProducerBatch._make, batches):
            if batch.marker_type == ABORT and self.first_abort is None:
                self.first_abort = batch.base_offset
            if self.producers is not None:
                self.producers.append(batch)
        if self.producers is not None and len(self.producers) > _MOST_REMEMBERED:
            self.producers = None


@dataclass(slots=True)
class Loaded:
    """A segment and how it was found.  ``damaged``: it ends before its file does, or too early.

    ``torn``: only because the last write was not finished: all that was ever acknowledged is there,
    unless the machine went down.  ``scan``: None where its files were trusted.  ``index``: what the
    offset index of a flushed segment shall hold, once the rest of what was made anew is durable.
    """

    segment: Segment
    damaged: bool = False
    torn: bool = False
    index: bytes | None = None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    scan: Scan | None = None


@dataclass(slots=True)
class _Facts:
    """What a look at a segment's files tells without reading the log."""

    size: int
    mtime_ns: int
    first: BatchHeader | None
    indexes_ok: bool
    last_offset_entry: tuple[int, int] | None
    last_time_entry: tuple[int, int] | None


def load(origin: Origin, base: int, following: int | None, present: set[str]) -> Loaded:
    """Load one segment; ``following`` is the base offset of the next one, None for the last.

    ``present``: the names of the files that there are.  OSError from the disk.
    """
    segment = Segment(
        origin.files,
        origin.directory,
        base,
        origin.config,
        writable=origin.writable,
    )
    if base in origin.swapped:
        segment.files.is_called(paths.SWAP)
    result = Loaded(segment)
    active = following is None
    segment.files.sealed = not active
    try:
        facts = _look(origin, segment, following, present)
        unflushed = not origin.clean and (following is None or following > origin.recovery_point)
        if (
            not active
            and not unflushed
            and facts.indexes_ok
            and not _may_lack_end(origin, following)
        ):
            segment.restore(
                size=facts.size,
                next_offset=following if following is not None else base,
                first_timestamp=facts.first.max_timestamp if facts.first else -1,
                max_timestamp=facts.last_time_entry[0] if facts.last_time_entry else -1,
                max_timestamp_offset=facts.last_time_entry[1] if facts.last_time_entry else base,
                last_indexed_position=facts.last_offset_entry[1] if facts.last_offset_entry else 0,
                mtime_ns=facts.mtime_ns,
                sealed=True,
            )
            end = None
        else:
            segment.files.close_descriptors()
            segment.files.sealed = False
            _recover_segment(origin, result, facts, following, may_cut=active or unflushed)
            end = segment.next_offset
            if following is not None and not result.damaged:
                if origin.writable and result.index is None:
                    segment.seal()
                segment.next_offset = max(segment.next_offset, following)
                segment.files.sealed = True
        if following is not None and not origin.files.in_order:
            _refuse_gap(origin, segment, end, following)
    finally:
        segment.files.close_descriptors()
    return result


def _may_lack_end(origin: Origin, following: int | None) -> bool:
    """Whether a sealed segment's bytes were flushed, and perhaps not how it was sealed: the last
    entry of its time index, and its files' lengths.  So it is of one that ends at the recovery
    point, as a flush that comes before the roll leaves the recovery point there.
    """
    return not origin.clean and origin.log_start < origin.recovery_point == following


def _refuse_gap(origin: Origin, segment: Segment, end: int | None, following: int) -> None:
    """CorruptRecord where what lies before the next segment is still to appear, or was lost."""
    if origin.config.is_compacted or origin.may_be_cleaned:
        return
    if end is None:
        last = segment.last_batch()
        if any(place.end >= segment.size for place in segment.damages):
            return  # What there is at the end is damaged, which reading it says.
        end = segment.base_offset if last is None else last[1].last_offset + 1
    if end < following:
        raise CorruptRecord(
            f"offsets {end} to {following - 1} are missing: copy what is not there yet; where a "
            f"cleaner has taken them, also {paths.CLEANER_OFFSETS}",
            path=segment.log_path,
            offset=end,
        )


def _look(origin: Origin, segment: Segment, following: int | None, present: set[str]) -> _Facts:
    """Sizes, the first header, and whether the indexes' last entries fit the log."""
    files = origin.files
    fd = files.open(segment.log_path, os.O_RDONLY)
    try:
        stat = files.descriptor_stat(fd)
        if not origin.writable:
            # Its writer may put another file in its place at any moment.
            segment.files.identity = stat.st_dev, stat.st_ino, files.born_ns(fd)
        first = _header_at(files, fd, 0)
        facts = _Facts(stat.st_size, stat.st_mtime_ns, first, False, None, None)
        kinds = [paths.INDEX, paths.TIMEINDEX]
        if not origin.writable and first is not None and first.magic == 0:
            kinds.pop()  # its messages have no time, and its broker wrote no such index
        if all(paths.file_name(segment.base_offset, kind) in present for kind in kinds):
            upper = following if following is not None else segment.base_offset + 2**31
            facts.last_offset_entry = segment.files.offset_index.last_entry
            facts.last_time_entry = segment.files.time_index.last_entry
            facts.indexes_ok = _indexes_fit(files, fd, segment, facts, upper)
            if paths.file_name(segment.base_offset, paths.TXNINDEX) in present:
                facts.indexes_ok = facts.indexes_ok and _transactions_fit(segment, upper)
        return facts
    finally:
        files.close(fd)


def _header_at(files: Files, fd: int, position: int) -> BatchHeader | None:
    """The header at ``position``, or None where there is none."""
    data = files.pread(fd, HEADER_SIZE, position)
    try:
        return parse_header(data)
    except CorruptRecord:
        return None


def _indexes_fit(files: Files, fd: int, segment: Segment, facts: _Facts, upper: int) -> bool:
    """Whether the last entries are possible for this log (stricter than Kafka's sanity check)."""
    if (
        segment.files.offset_index.sanity() is not None
        or segment.files.time_index.sanity() is not None
    ):
        return False
    entry, time_entry = facts.last_offset_entry, facts.last_time_entry
    if entry is not None:
        offset, position = entry
        if not (segment.base_offset <= offset < upper) or not 0 < position < facts.size:
            return False
        header = _header_at(files, fd, position)
        if header is None or position + header.size > facts.size:
            return False
        if _first_offset(files, fd, position, header) > offset:
            return False
    active = upper == segment.base_offset + 2**31
    if time_entry is not None:
        # Of a file that was to be trimmed the last entries may still be zeros.
        largest = -1 if active or facts.first is None else facts.first.max_timestamp
        return segment.base_offset <= time_entry[1] < upper and time_entry[0] >= largest
    # A sealed log whose records have timestamps ends with a final time entry.
    return active or facts.size == 0 or (facts.first is not None and facts.first.max_timestamp < 0)


def _first_offset(files: Files, fd: int, position: int, header: BatchHeader) -> int:
    """Of the batch there, which brokers index; of a wrapper that is damaged inside its last."""
    try:
        data = files.pread(fd, header.size if header.is_wrapper else 0, position)
        return first_offset(data, header)
    except CorruptRecord:
        return header.base_offset


def _transactions_fit(segment: Segment, upper: int) -> bool:
    index = segment.files.txn_index
    return not index.odd_bytes and (
        txn_index.sanity(index.entries, segment.base_offset, upper) is None
    )


def _recover_segment(
    origin: Origin,
    result: Loaded,
    facts: _Facts,
    following: int | None,
    *,
    may_cut: bool,
) -> None:
    """Read what the indexes do not vouch for, write its entries anew, cut what is damaged.

    A sealed segment that had been flushed is never cut: damage there is the disk's, hits its own
    records only, and what follows it is good.  ``storage.log.salvage`` is for that.
    """
    files, segment = origin.files, result.segment
    trusted = _trusted_entry(origin, segment, facts)
    fd = files.open(segment.log_path, os.O_RDWR) if origin.writable else segment.files.open_apart()
    try:
        scan, rebuild, reason, trusted, places = _rebuild(
            *(origin, segment, fd, facts.size, trusted, following), may_cut=may_cut
        )
        first_untrusted = -1 if trusted is None else trusted[0] + 1
        if origin.writable and may_cut:
            _write_indexes(segment, rebuild, first_untrusted)
        elif origin.writable:
            result.index = _begin_indexes(files, segment, rebuild, first_untrusted)
        size = facts.size
        if reason is not None:
            used = _used(files, fd, rebuild.position, size)
            if used == rebuild.position and (may_cut or rebuild.next_offset == following):
                size, reason = used, None
                if origin.writable:
                    files.ftruncate(fd, size)
        if reason is None:
            result.damaged = may_cut and _is_gap(origin, rebuild, following)
        elif may_cut:
            size = rebuild.position
            result.damaged = True
            result.torn = following is None and _is_torn(files, fd, size, used, facts.size)
            if origin.writable:
                result.cuts.append(cut_tail(files, fd, segment.log_path, size, facts.size, reason))
        else:
            result.faults.append(f"{segment.log_path}: position {rebuild.position}: {reason}")
    finally:
        files.close(fd)
    result.epochs = list(rebuild.epochs)
    result.scan = scan
    result.faults += [str(place.error(segment.log_path)) for place in places]
    first_timestamp = rebuild.first_max_timestamp
    if trusted is not None and facts.first is not None:
        first_timestamp = facts.first.max_timestamp
    last_indexed = rebuild.position - rebuild.bytes_since
    segment.restore(
        size=size,
        next_offset=rebuild.next_offset,
        first_timestamp=first_timestamp,
        max_timestamp=rebuild.max_timestamp,
        max_timestamp_offset=rebuild.max_timestamp_offset,
        last_indexed_position=min(last_indexed, size),
        mtime_ns=facts.mtime_ns,
        sealed=False,
    )
    segment.damages = segment.told_damages = tuple(places)
    for place in places:
        segment.first_read.add(Known(place.start, place.end, place.next_offset))


def _used(files: Files, fd: int, start: int, size: int) -> int:
    """Where the last byte from ``start`` on that is not zero ends; ``start`` where all are."""
    while size > start:
        at = max(start, size - _CHUNK_BYTES)
        used = len(files.pread(fd, size - at, at).rstrip(b"\0"))
        if used:
            return at + used
        size = at
    return start


def _is_torn(files: Files, fd: int, position: int, used: int, size: int) -> bool:
    """Whether the batch at ``position`` was being written when its writer was killed.

    The kernel takes over a write page by page.  So it ends with the file, at ``size``, or where
    the file had been made longer before, at ``used``, in an earlier page than its own last one.
    """
    head = files.pread(fd, HEADER_SIZE, position)
    if used - position < HEADER_SIZE or len(head) < HEADER_SIZE:
        return True
    end = position + size_at(head, 0)
    return end > size or (used < size and (used - 1) // _PAGE < (end - 1) // _PAGE)


def _is_gap(origin: Origin, rebuild: Rebuild, following: int | None) -> bool:
    """Whether an unflushed segment ends before the next one begins: its last batches are lost.

    Only cleaners make such gaps.
    """
    return following is not None and rebuild.next_offset < following > origin.holes_to


_Trusted = tuple[int, int, int, int]


class _Read(NamedTuple):
    """What a walk has found; ``reason``: why it stopped before the end, None where it did not.

    ``trusted``: the entry from which on it has read, None: from the start; ``places``: what it has
    passed.
    """

    scan: Scan
    rebuild: Rebuild
    reason: str | None
    trusted: _Trusted | None
    places: list[Damage]


def _rebuild(
    origin: Origin,
    segment: Segment,
    fd: int,
    size: int,
    trusted: _Trusted | None,
    following: int | None,
    *,
    may_cut: bool,
) -> _Read:
    """Walk the log from the trusted entry on; where it might be cut, past wrong base offsets."""
    limit = origin.flushed_end if following is None else following

    def next_place() -> Damage | None:
        def read(position: int, size: int) -> bytes:
            return origin.files.pread(fd, size, position)

        return misplaced(read, rebuild, limit, is_sealed=following is not None)

    scan, rebuild = _walk(origin, segment, fd, size, trusted)
    if trusted is not None and rebuild.position == trusted[1]:
        # The batch that the entry names is damaged, and tells no offset.
        trusted = None
        scan, rebuild = _walk(origin, segment, fd, size, None)
    places: list[Damage] = []
    if may_cut and origin.is_unsynced and rebuild.position < size:
        trusted = None
        places = _lost(origin, segment, fd, size, following)
        scan, rebuild = _walk(origin, segment, fd, size, None, places)
    elif may_cut and next_place() is not None:
        # What comes before the first batch of a walk is known of one from the start only.
        trusted = None
        scan, rebuild = _walk(origin, segment, fd, size, None)
        while len(places) < _MOST_MISPLACED and (place := next_place()) is not None:
            places.append(place)
            scan, rebuild = _walk(origin, segment, fd, size, None, places)
    if following is not None and rebuild.next_offset > following:
        # No CRC covers a base offset: the next segment's tells that one of these is wrong.
        source = FileSource(origin.files, fd, segment.log_path)
        for at, header in batches(source, 0, rebuild.position):
            if header.last_offset >= following and all(at != place.start for place in places):
                places = [place for place in places if place.end <= at]
                scan, rebuild = _walk(origin, segment, fd, at, trusted, places)
                reason = f"offset {header.last_offset} is not below the next segment's"
                return _Read(scan, rebuild, reason, trusted, places)
    stopped = None
    if rebuild.position != size:
        stopped = rebuild.fault or "the last batch is incomplete"
    return _Read(scan, rebuild, stopped, trusted, places)


def _lost(
    origin: Origin, segment: Segment, fd: int, size: int, following: int | None
) -> list[Damage]:
    """What a failed fsync has lost before whole batches; what is lost at the end may be torn."""
    part = Part(
        *(segment.base_offset, 0, segment.base_offset, size, origin.config.max_message_bytes),
        limit=paths.MAX_OFFSET if following is None else following,
        may_be_torn=following is None,
    )
    found = check_part(buffered(origin.files, fd), part, Task()).damages
    return [place for place in found if place.next_offset >= 0]


def _walk(
    origin: Origin,
    segment: Segment,
    fd: int,
    end: int,
    trusted: _Trusted | None,
    places: Sequence[Damage] = (),
) -> tuple[Scan, Rebuild]:
    """Read the log from the trusted entry on to ``end``, or to its first fault but these places."""
    interval = origin.config.index_interval_bytes
    scan = Scan(0, segment.base_offset) if trusted is None else Scan(trusted[1], trusted[0])
    if trusted is None:
        rebuild = Rebuild(segment.base_offset, interval)
    else:
        _, position, timestamp, timestamp_offset = trusted
        rebuild = Rebuild(
            segment.base_offset,
            interval,
            position=position,
            indexed_position=position,
            indexed_timestamp=timestamp,
            max_timestamp=timestamp,
            max_timestamp_offset=timestamp_offset,
        )
    for place in places:
        read_on(origin, rebuild, fd, place.start, scan.take)
        rebuild.skip(place.end, place.next_offset)
    read_on(origin, rebuild, fd, end, scan.take)
    return scan, rebuild


def _write_indexes(segment: Segment, rebuild: Rebuild, first_untrusted: int) -> None:
    segment.files.offset_index.truncate_to_offset(first_untrusted)
    segment.files.time_index.truncate_to_offset(first_untrusted)
    segment.files.offset_index.extend(rebuild.offset_entries)
    segment.files.time_index.extend(rebuild.time_entries)
    segment.files.offset_index.trim()
    segment.files.time_index.trim()


def _begin_indexes(files: Files, segment: Segment, rebuild: Rebuild, first_untrusted: int) -> bytes:
    """The same of a sealed segment that no start after a crash reads once more.

    Until ``finish_index`` its offset index is of a length that none has: who is killed before that
    leaves a segment whose indexes are made anew once more.  Returns what it shall hold.
    """
    # (Asking for one that is not there would make it.)
    kept = (
        b"" if first_untrusted < 0 else segment.files.offset_index.entries_before(first_untrusted)
    )
    segment.files.close_descriptors()
    files.replace_atomically(segment.files.file_path(paths.INDEX), b"\0")
    times = segment.files.time_index
    times.truncate_to_offset(first_untrusted)
    times.extend(rebuild.time_entries)
    times.maybe_append(rebuild.max_timestamp, rebuild.max_timestamp_offset)
    times.trim()
    return kept + bytes(rebuild.offset_entries)


def finish_index(files: Files, item: Loaded) -> None:
    """All that ``index`` was waiting for has been made: make that durable, then write it."""
    if item.index is not None:
        item.segment.sync()
        item.segment.files.close_descriptors()
        files.sync_directory(os.path.dirname(item.segment.log_path))
        files.replace_atomically(item.segment.files.file_path(paths.INDEX), item.index)


def _trusted_entry(
    origin: Origin, segment: Segment, facts: _Facts
) -> tuple[int, int, int, int] | None:
    """The index entry from which on the log is read: the last one that was flushed.

    (offset, position, largest timestamp so far, its offset): the time entry that was written with
    an offset entry covers everything up to that batch (``LogSegment.append``).
    """
    if not facts.indexes_ok or facts.last_offset_entry is None or facts.first is None:
        return None
    limit = facts.last_offset_entry[0]
    if not origin.clean:
        limit = min(limit, origin.recovery_point - 1)
    offset, position = segment.files.offset_index.lookup(limit)
    if not 0 < position < facts.size:
        return None
    header = parse_header(segment.read_at(position, min(HEADER_SIZE, facts.size - position)))
    if not header.base_offset <= offset <= header.last_offset:
        return None
    timestamp, timestamp_offset = segment.files.time_index.last_entry_at_or_before_offset(offset)
    if timestamp < 0 and facts.first.max_timestamp >= 0:
        return None
    return offset, position, timestamp, timestamp_offset


def is_empty(origin: Origin, segment: Segment) -> bool:
    """Whether a log's file holds nothing, or begins with zeros that were allocated ahead."""
    files = origin.files
    if not files.file_stat(segment.log_path).st_size:
        return True
    if not origin.config.preallocate:
        return False
    fd = files.open(segment.log_path, os.O_RDONLY)
    try:
        return not any(files.pread(fd, HEADER_SIZE, 0))
    finally:
        files.close(fd)


def reaches(origin: Origin, segment: Segment, offset: int) -> bool:
    """Whether a segment, of which nothing is known yet, has a batch at ``offset`` or behind it."""
    files = origin.files
    fd = files.open(segment.log_path, os.O_RDONLY)
    source = FileSource(files, fd, segment.log_path)
    try:
        _, indexed = segment.files.offset_index.lookup(offset)
        for position in sorted({max(indexed, 0), 0}, reverse=True):
            # An index that is wrong leads to no batch, and what is damaged ends the log.
            with contextlib.suppress(CorruptRecord):
                if any(header.last_offset >= offset for _, header in batches(source, position)):
                    return True
                if position and _header_at(files, fd, position) is not None:
                    return False
        return False
    finally:
        files.close(fd)
        segment.files.close_descriptors()


def read_on(
    origin: Origin,
    rebuild: Rebuild,
    fd: int,
    end: int,
    take: Callable[[list[tuple[int, ...]]], None],
    *,
    check_crc: bool = True,
) -> None:
    """Feed ``rebuild`` on from its position to ``end``, or to its first fault.

    ``take`` gets the batches of producers, some at a time.
    """
    for _, taken, _ in feed(origin.files, fd, end, rebuild, check_crc=check_crc):
        origin.progress(taken)
        if rebuild.producers:
            take(list(rebuild.producers))
            rebuild.producers.clear()
