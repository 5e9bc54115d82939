"""From a partition's directory, after any stop, to segments that can be trusted.

The passes are those of Kafka's ``LogLoader``, numbered as there:

1. remove what a cleaner or a deletion left half done (``.deleted``, ``.cleaned``, late ``.swap``);
2. of a swap that had been decided, remove the files that it replaces;
3. finish that swap by renaming its files;
4. load the segments in order of their base offsets.  After a clean stop the files are trusted
   but for a look at each index's last entry; after any other stop everything from the recovery
   point on is read, its CRCs checked and its index entries written anew.

At the first batch that is torn or damaged the log ends.  Unlike Kafka nothing is thrown away: the
bytes behind it are copied to ``BASE.log.POSITION.cut`` and later segments are renamed to
``….cut``; each is reported as a ``Cut``.

Invariants: afterwards every segment but the last is sealed, offsets rise from segment to segment,
the recovery point is ≤ the log end, and every index equals a rebuilt one.

Not here: taking back what is valid behind a damaged place (``LogManager.salvage``), and other
partitions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from crc32c import crc32c

from storage import old_segment, paths, producer_state
from storage.config import LogConfig
from storage.cut import Cut, cut_tail
from storage.errors import CorruptCheckpoint, CorruptRecord, UnsupportedFormat
from storage.files import Files, FileSource
from storage.producer_state import ProducerBatch, ProducerState
from storage.record._batch import Rebuild
from storage.record.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header
from storage.record.scan import batches, unsupported
from storage.segment import Segment
from storage.swap import drop_orphan_indexes, finish_swaps

_CRC_START = 21
_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Recovered:
    """The outcome of ``recover``: segments in order, the last one active.

    ``damaged``: the log ends before its files do (also where nothing may be cut).
    ``producers``: as of the log's end.  ``snapshot_offset``: that of the newest snapshot on disk,
    -1 where there is none.
    """

    segments: list[Segment]
    producers: ProducerState = field(default_factory=ProducerState)
    snapshot_offset: int = -1
    damaged: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


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
    progress: Callable[[int], None] = lambda size: None


def recover(origin: Origin) -> Recovered:
    """Load one partition's directory.

    UnsupportedFormat where it holds what is not built yet; OSError from the disk.  With
    ``writable`` false nothing on disk changes: what a writable load would cut or rebuild is left
    out of sight.
    """
    names = [name for name, is_directory in origin.files.scan(origin.directory) if not is_directory]
    if old_segment.is_old(names):
        return _load_old(origin, names)
    if origin.writable:
        names = finish_swaps(origin.files, origin.directory, names)
    bases = sorted(
        base
        for name in names
        if name.endswith(paths.LOG) and (base := paths.base_offset_of(name)) is not None
    )
    if origin.writable:
        names = drop_orphan_indexes(origin.files, origin.directory, names, set(bases))
    present = set(names)
    result = Recovered([])
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        segment = _load(origin, result, base, following, present)
        result.segments.append(segment)
        if result.damaged:
            _set_aside(origin, result, bases[number + 1 :])
            break
    _start_where_the_log_starts(origin, result)
    if origin.writable:
        result.segments[-1].sealed = False
        _repair_snapshots(origin, result, names)
    return result


def _load_old(origin: Origin, names: list[str]) -> Recovered:
    """A partition of Kafka 0.7; ReadOnlyFormat where it was to be written."""
    if origin.writable:
        raise old_segment.refusal(origin.directory)
    segments, faults = old_segment.load(
        origin.files,
        origin.directory,
        names,
        origin.config,
        check_last=not origin.clean,
        now_ms=origin.now_ms,
        progress=origin.progress,
    )
    return Recovered(list[Segment](segments), damaged=bool(faults), faults=faults)


def _repair_snapshots(origin: Origin, result: Recovered, names: list[str]) -> None:
    """Make a missing or damaged snapshot of any segment again: there are no producers.

    UnsupportedFormat where a snapshot knows one.
    """
    files = origin.files
    missing = {segment.base_offset for segment in result.segments[1:]}
    for name in names:
        offset = paths.base_offset_of(name)
        if not name.endswith(paths.SNAPSHOT) or offset is None:
            continue
        path = os.path.join(origin.directory, name)
        data = _start_of(files, path)
        if data != producer_state.EMPTY_SNAPSHOT:
            try:
                producers = producer_state.decode(files.read_whole(path), path=path)
            except CorruptCheckpoint:
                files.unlink(path)
                continue
            if producers:
                raise UnsupportedFormat("appending beside idempotent producers", path=path)
        missing.discard(offset)
    for offset in sorted(missing):
        path = os.path.join(origin.directory, paths.file_name(offset, paths.SNAPSHOT))
        files.replace_atomically(path, producer_state.EMPTY_SNAPSHOT, sync=False)


def _start_of(files: Files, path: str) -> bytes:
    """As much of a snapshot as tells whether it is an empty one."""
    fd = files.open(path, os.O_RDONLY)
    try:
        return files.pread(fd, len(producer_state.EMPTY_SNAPSHOT) + 1, 0)
    finally:
        files.close(fd)


# -- one segment ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Facts:
    """What a look at a segment's files tells without reading the log."""

    size: int
    mtime_ns: int
    first: BatchHeader | None
    indexes_ok: bool
    last_offset_entry: tuple[int, int] | None
    last_time_entry: tuple[int, int] | None


def load_segment(
    origin: Origin, base: int, following: int | None, present: set[str]
) -> Segment:
    """Load one segment; ``following`` is the base offset of the next one, None for the last.

    ``present`` are the names of the files that are there.  As ``recover``.
    """
    return _load(origin, Recovered([]), base, following, present)


def _load(
    origin: Origin, result: Recovered, base: int, following: int | None, present: set[str]
) -> Segment:
    segment = Segment(
        origin.files,
        origin.directory,
        base,
        origin.config,
        writable=origin.writable,
        created_ms=origin.now_ms,
    )
    active = following is None
    segment.sealed = not active
    try:
        facts = _look(origin, segment, following, present)
        unflushed = not origin.clean and (following is None or following > origin.recovery_point)
        if not active and not unflushed and facts.indexes_ok:
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
        else:
            segment.close_descriptors()
            segment.sealed = False
            _recover_segment(origin, result, segment, facts, following, may_cut=active or unflushed)
            if following is not None and not result.damaged:
                if origin.writable:
                    segment.seal()
                segment.next_offset = max(segment.next_offset, following)
                segment.sealed = True
    finally:
        segment.close_descriptors()
    return segment


def _look(origin: Origin, segment: Segment, following: int | None, present: set[str]) -> _Facts:
    """Sizes, the first header, and whether the indexes' last entries fit the log."""
    files = origin.files
    fd = files.open(segment.log_path, os.O_RDONLY)
    try:
        stat = files.file_stat(segment.log_path)
        first = _header_at(files, fd, 0)
        if first is not None:
            _refuse(origin, files, fd, segment, first)
        facts = _Facts(stat.st_size, stat.st_mtime_ns, first, False, None, None)
        names = [paths.file_name(segment.base_offset, s) for s in (paths.INDEX, paths.TIMEINDEX)]
        if all(name in present for name in names):
            upper = following if following is not None else segment.base_offset + 2**31
            facts.last_offset_entry = segment.offset_index.last_entry
            facts.last_time_entry = segment.time_index.last_entry
            facts.indexes_ok = _indexes_fit(files, fd, segment, facts, upper)
        return facts
    finally:
        files.close(fd)


def _header_at(files: Files, fd: int, position: int) -> BatchHeader | None:
    """The v2 header at ``position``, or None where there is none."""
    data = files.pread(fd, HEADER_SIZE, position)
    try:
        return parse_header(data)
    except (CorruptRecord, UnsupportedFormat):
        return None


def _refuse(origin: Origin, files: Files, fd: int, segment: Segment, header: BatchHeader) -> None:
    """What is not built yet is refused by name, never misread; damage is no such thing."""
    what = unsupported(header)
    if what is None and origin.writable and header.producer_id >= 0:
        what = "appending beside idempotent producers"
    if what is not None and crc32c(files.pread(fd, header.size, 0)[_CRC_START:]) == header.crc:
        raise UnsupportedFormat(what, path=segment.log_path, position=0, offset=header.base_offset)


def _indexes_fit(files: Files, fd: int, segment: Segment, facts: _Facts, upper: int) -> bool:
    """Whether the last entries are possible for this log (stricter than Kafka's sanity check)."""
    if segment.offset_index.sanity() is not None or segment.time_index.sanity() is not None:
        return False
    entry, time_entry = facts.last_offset_entry, facts.last_time_entry
    if entry is not None:
        offset, position = entry
        if not (segment.base_offset <= offset < upper) or not 0 < position < facts.size:
            return False
        header = _header_at(files, fd, position)
        if header is None or header.base_offset > offset:
            return False
        if position + header.size > facts.size:
            return False
    if time_entry is not None:
        return segment.base_offset <= time_entry[1] < upper
    # A sealed log whose records have timestamps ends with a final time entry.
    active = upper == segment.base_offset + 2**31
    return active or facts.size == 0 or (facts.first is not None and facts.first.max_timestamp < 0)


def _recover_segment(
    origin: Origin,
    result: Recovered,
    segment: Segment,
    facts: _Facts,
    following: int | None,
    *,
    may_cut: bool,
) -> None:
    """Read what the indexes do not vouch for, write its entries anew, cut what is damaged.

    A sealed segment that had been flushed is never cut: damage there is the disk's, hits its own
    records only, and what follows it is good.  ``storage.salvage`` is for that.
    """
    files = origin.files
    trusted = _trusted_entry(origin, segment, facts)
    fd = files.open(segment.log_path, os.O_RDWR if origin.writable else os.O_RDONLY)
    try:
        rebuild, reason = _rebuild(origin, segment, fd, facts.size, trusted, following)
        if reason is None and may_cut and _is_gap(origin, rebuild, following):
            result.damaged = True
        if origin.writable:
            _write_indexes(segment, rebuild, -1 if trusted is None else trusted[0] + 1)
        size = facts.size
        if reason is not None:
            if may_cut:
                size = rebuild.position
                result.damaged = True
                if origin.writable:
                    result.cuts.append(
                        cut_tail(files, fd, segment.log_path, size, facts.size, reason)
                    )
            else:
                result.faults.append(f"{segment.log_path}: position {rebuild.position}: {reason}")
    finally:
        files.close(fd)
    result.epochs.extend(rebuild.epochs)
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


def _is_gap(origin: Origin, rebuild: Rebuild, following: int | None) -> bool:
    """Whether an unflushed segment ends before the next one begins: its last batches are lost.

    Only cleaners make such gaps, so that a compacted topic may have them.
    """
    if following is None or origin.config.is_compacted:
        return False
    return rebuild.next_offset < following


def _rebuild(
    origin: Origin,
    segment: Segment,
    fd: int,
    size: int,
    trusted: tuple[int, int, int, int] | None,
    following: int | None,
) -> tuple[Rebuild, str | None]:
    """Walk the log from the trusted entry on; why it stopped before its end, or None."""
    interval = origin.config.index_interval_bytes

    def walk(end: int) -> Rebuild:
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
        _feed(origin, rebuild, fd, end, check_crc=True)
        if rebuild.unsupported is not None:
            raise UnsupportedFormat(
                rebuild.unsupported,
                path=segment.log_path,
                position=rebuild.position,
                offset=rebuild.next_offset,
            )
        return rebuild

    rebuild = walk(size)
    if following is not None and rebuild.next_offset > following:
        # No CRC covers a base offset: the next segment's tells that one of these is wrong.
        source = FileSource(origin.files, fd, segment.log_path)
        for at, header in batches(source, 0, rebuild.position):
            if header.last_offset >= following:
                return walk(at), f"offset {header.last_offset} is not below the next segment's"
    if rebuild.position == size:
        return rebuild, None
    return rebuild, rebuild.fault or "the last batch is incomplete"


def _write_indexes(segment: Segment, rebuild: Rebuild, first_untrusted: int) -> None:
    segment.offset_index.truncate_to_offset(first_untrusted)
    segment.time_index.truncate_to_offset(first_untrusted)
    segment.offset_index.extend(rebuild.offset_entries)
    segment.time_index.extend(rebuild.time_entries)
    segment.offset_index.trim()
    segment.time_index.trim()


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
    offset, position = segment.offset_index.lookup(limit)
    if not 0 < position < facts.size:
        return None
    header = parse_header(segment.read_at(position, HEADER_SIZE))
    if not header.base_offset <= offset <= header.last_offset:
        return None
    timestamp, timestamp_offset = segment.time_index.last_entry_at_or_before_offset(offset)
    if timestamp < 0 and facts.first.max_timestamp >= 0:
        return None
    return offset, position, timestamp, timestamp_offset


def _feed(origin: Origin, rebuild: Rebuild, fd: int, size: int, *, check_crc: bool) -> None:
    """Run ``rebuild`` over the file to its end or its first fault."""
    chunk = bytearray(min(_CHUNK_BYTES, max(size - rebuild.position, 1)))
    while rebuild.position < size:
        wanted = min(len(chunk), size - rebuild.position)
        count = origin.files.preadv(fd, memoryview(chunk)[:wanted], rebuild.position)
        if count == 0:
            return
        consumed = rebuild.feed(chunk, count, rebuild.position, check_crc=check_crc)
        origin.progress(consumed)
        if rebuild.fault is not None or rebuild.unsupported is not None:
            return
        if consumed == 0:
            needed = int.from_bytes(chunk[8:12], "big") + LOG_OVERHEAD
            if rebuild.position + max(count, needed) > size or count == size - rebuild.position:
                return  # the last batch is incomplete
            chunk = bytearray(max(needed, 2 * len(chunk)))


def _set_aside(origin: Origin, result: Recovered, bases: list[int]) -> None:
    """Segments behind a damaged one are no part of the log any more."""
    if not origin.writable:
        return
    for base in bases:
        segment = Segment(
            origin.files,
            origin.directory,
            base,
            origin.config,
            writable=False,
            created_ms=origin.now_ms,
        )
        path = segment.log_path
        size = origin.files.file_stat(path).st_size
        segment.set_aside()
        result.cuts.append(Cut(path, 0, size, "records before it are missing", segment.log_path))


def _start_where_the_log_starts(origin: Origin, result: Recovered) -> None:
    """A log that ends before its start offset begins anew there (``LogLoader.load``)."""
    segments = result.segments
    if segments and segments[-1].next_offset < origin.log_start:
        if not origin.writable:
            raise CorruptRecord(
                f"the log ends at offset {segments[-1].next_offset}, before its start offset "
                f"{origin.log_start}",
                path=origin.directory,
            )
        _set_aside(origin, result, [segment.base_offset for segment in segments])
        segments.clear()
    if not segments:
        if origin.writable:
            segments.append(
                Segment.create(
                    origin.files,
                    origin.directory,
                    origin.log_start,
                    origin.config,
                    now_ms=origin.now_ms,
                )
            )
            segments[-1].close_descriptors()
        else:
            segments.append(
                Segment(
                    origin.files,
                    origin.directory,
                    origin.log_start,
                    origin.config,
                    writable=False,
                    created_ms=origin.now_ms,
                )
            )
