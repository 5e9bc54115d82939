"""One round of cleaning that several processes share, none of which owns the log.

Whoever has the log open plans it (``plan``): the round is then a value that goes to all.

1. ``scan``, for each range of the log: which records have later ones of their keys within the
   range, which keys are left, and what was met of transactions.
2. ``KeyMerge``, for each bucket of keys: which of those have later ones in other ranges.
3. ``keep``, for each group of segments: what stays of it, into new segments that lie as staged
   files in the partition's directory.  Groups need not wait for each other: what a cleaner of a
   whole log knows by a group's first segment is in its ``OpenAtStart``.
4. ``finished``: the request that has the log's owner put all of it in (``swap_in``).

Which records stay, in which batches and files, is what ``cleaner`` makes of the same log at the
same time, byte for byte: where its map has room for all keys, that is; here nothing is as large as
all keys are together.  Values never leave the processes that read them.

Not here: how the parts are handed around.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from storage import paths
from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import KeyScan, Superseded
from storage.compaction.cleaner import Keeping, Nowhere, keep_group
from storage.compaction.passes import Figures, Round, marker_of, walk
from storage.compaction.rewrite import GroupWriter
from storage.compaction.shared.plan import SharedRound
from storage.compaction.shared.swap_request import FIGURES, NewSegment, SwapRequest
from storage.compaction.sources import Sources
from storage.compaction.transactions import CleanedTransactions, Met, OpenAtStart, openings
from storage.files import Files
from storage.record.control import COMMIT
from storage.record.header import BatchHeader
from storage.segment.segment import Segment
from storage.task import Task

# A map's memory grows with its keys; there is no other limit to it.
_UNLIMITED = 1 << 46


class Scanned(NamedTuple):
    """What a range tells: keys that are left by bucket, dirty ones and those from below; by group
    the offsets that are superseded within, and what was met of transactions.
    """

    dirty: list[bytes]
    clean: list[bytes]
    superseded: list[tuple[int, bytes]]
    met: list[tuple[int, Met]]


class Kept(NamedTuple):
    """What has become of a group.  ``made``: of so many segments, also where none was written."""

    group: int
    made: int
    new: tuple[NewSegment, ...]
    figures: Mapping[str, int]
    bytes_kept: int


# -- the parts -----------------------------------------------------------------------------------


class _ScanPass:
    """Gives the batches of a part to a ``KeyScan``, but for those that were aborted."""

    finished = False

    def __init__(self, keys: KeyScan, transactions: CleanedTransactions) -> None:
        self._keys = keys
        self._transactions = transactions
        self._begin()

    def _begin(self) -> None:
        self._committed: set[int] = set()
        self._ended: set[int] = set()
        self._aborted: dict[int, int] = {}

    def run(self, data: memoryview, at: int, end: int) -> int:
        return self._keys.take_batches(data, at, end)

    def one(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        if header.is_control:
            marker = marker_of(plain, header)
            self._transactions.can_go(header, marker)
            if marker is not None and marker.type == COMMIT:
                self._committed.discard(header.producer_id)
                self._ended.add(header.producer_id)
        elif self._transactions.is_aborted(header):
            self._aborted[header.producer_id] = header.last_offset
        else:
            if header.is_transactional:
                self._committed.add(header.producer_id)
            self._keys.take_batch(plain)

    def take_met(self) -> Met:
        """What was met since it was last asked."""
        met = Met(frozenset(self._committed), frozenset(self._ended), tuple(self._aborted.items()))
        self._begin()
        return met


def scan(shared: SharedRound, number: int, files: Files, task: Task) -> Scanned:
    """Read a range.  CorruptRecord, OSError, TaskCancelled, MemoryError."""
    pieces = shared.ranges[number]
    keys = KeyScan(OffsetMap(_UNLIMITED, secret=shared.secret), shared.cleanable.first_dirty_offset)
    transactions = CleanedTransactions()
    transactions.add_aborted(shared.aborted_within(pieces[0].from_offset, pieces[-1].to_offset))
    scanning = _ScanPass(keys, transactions)
    met: list[tuple[int, Met]] = []
    for at, piece in enumerate(pieces):
        segment = _segment(shared, piece.segment, files, end=piece.end)
        try:
            walk(segment, piece.position, scanning, task)
        finally:
            segment.files.close_descriptors()
        if at + 1 == len(pieces) or pieces[at + 1].group != piece.group:
            met.append((piece.group, scanning.take_met()))
    return Scanned(
        keys.dirty_keys(shared.buckets),
        keys.clean_keys(shared.buckets),
        keys.superseded_by_group(shared.group_bounds),
        met,
    )


def _segment(shared: SharedRound, number: int, files: Files, *, end: int | None = None) -> Segment:
    """A segment as it was planned, to be read only; or as if it ended at a position."""
    source = shared.segments[number]
    bases = [*(each.base_offset for each in shared.segments[number + 1 : number + 2])]
    segment = Segment(files, shared.directory, source.base_offset, shared.config, writable=False)
    segment.restore(
        size=source.size if end is None else end,
        next_offset=bases[0] if bases else shared.end_offset,
        first_timestamp=-1,
        max_timestamp=-1,
        max_timestamp_offset=source.base_offset,
        last_indexed_position=0,
        mtime_ns=source.mtime_ns,
        sealed=True,
    )
    return segment


def openings_of(shared: SharedRound, met: Sequence[tuple[int, Met]]) -> list[OpenAtStart]:
    """What each group has to know.  ``met``: what all ranges told, in the order of the log."""
    bases = shared.group_bounds[:-1]
    parts: list[list[Met]] = [[] for _ in bases]
    for group, part in met:
        parts[group].append(part)
    merged = ((base, _merged(some)) for base, some in zip(bases, parts, strict=True))
    return list(openings(merged, shared.aborted))


def _merged(parts: Sequence[Met]) -> Met:
    """Of parts that follow each other, as of one."""
    if len(parts) == 1:
        return parts[0]
    committed: set[int] = set()
    ended: set[int] = set()
    aborted: dict[int, int] = {}
    for part in parts:
        committed = (committed - part.ended) | part.committed
        ended |= part.ended
        aborted.update(part.aborted)
    return Met(frozenset(committed), frozenset(ended), tuple(aborted.items()))


def new_superseded(shared: SharedRound, group: int) -> Superseded:
    """What of a group is superseded, as long as nobody has told."""
    offsets = shared.offsets_of(group)
    return Superseded(offsets.start, len(offsets))


def keep(
    shared: SharedRound,
    group: int,
    opening: OpenAtStart,
    superseded: Superseded,
    files: Files,
    task: Task,
    suffix: str | None,
) -> Kept:
    """Write what stays of a group, durably, to files of these names; None: count it only.

    CorruptRecord, OSError, TaskCancelled: no file is left.
    """
    members = shared.members(group)
    segments = tuple(_segment(shared, number, files) for number in members)
    producers = dict(shared.producers)
    end = shared.offsets_of(group).stop
    sources = Sources(segments, end, shared.config, producers, list(shared.aborted))
    known = OffsetMap(1 << 20, most=1, secret=shared.secret)
    known.latest_offset = shared.end_offset - 1
    keeping = Keeping(
        sources,
        known,
        Round.of(shared.now_ms, shared.config.delete_retention_ms, shared.end_offset, producers),
        _legacy_horizon_ms(shared),
        CleanedTransactions.resumed(opening),
        Figures(),
    )
    writer: GroupWriter | Nowhere = Nowhere()
    if suffix is not None:
        writer = GroupWriter(
            files,
            shared.directory,
            segments[0].base_offset,
            shared.config,
            now_ms=shared.now_ms,
            pace=task.pace,
            suffix=suffix,
        )
    for segment in segments:
        segment.files.lease()
    try:
        made = keep_group(keeping, range(len(segments)), writer, task, superseded)
        new = () if suffix is None else _written(writer, files, suffix)
        if suffix is not None:
            files.sync_directory(shared.directory)
    except BaseException:
        if isinstance(writer, GroupWriter):
            writer.discard()
        raise
    finally:
        sources.close_read()
        for segment in segments:
            segment.files.release()
            segment.files.close_descriptors()
    figures = keeping.figures
    told = {name: getattr(figures, name) for name in FIGURES if hasattr(figures, name)}
    return Kept(group, made, new, told, figures.bytes_kept)


def _legacy_horizon_ms(shared: SharedRound) -> int:
    """As ``Sources`` has it of the whole log."""
    first_dirty = shared.cleanable.first_dirty_offset
    clean_ones = [each for each in shared.segments if each.base_offset < first_dirty]
    if not clean_ones:
        return 0
    return clean_ones[-1].mtime_ns // 1_000_000 - shared.config.delete_retention_ms


def _written(writer: GroupWriter | Nowhere, files: Files, suffix: str) -> tuple[NewSegment, ...]:
    assert isinstance(writer, GroupWriter)
    new = []
    for segment in writer.segments:
        stat = files.file_stat(segment.files.file_path(paths.LOG))
        new.append(
            NewSegment(
                segment.base_offset,
                segment.next_offset,
                segment.size,
                stat.st_ino,
                segment.mtime_ns,
                suffix,
            )
        )
    return tuple(new)


# -- the end -------------------------------------------------------------------------------------


def finished(
    shared: SharedRound, job: str, kept: Sequence[Kept], *, keys: int, elapsed_ms: int
) -> SwapRequest:
    """What the owner is asked for when all groups are done.

    Where all stays as it is nothing takes its place; the files that were written are the caller's
    to remove.
    """
    assert sorted(each.group for each in kept) == list(range(len(shared.firsts)))
    figures = {name: sum(each.figures.get(name, 0) for each in kept) for name in FIGURES}
    figures.update(map_keys=keys, elapsed_ms=elapsed_ms)
    ordered = sorted(kept, key=lambda each: each.group)
    changes = not (
        sum(each.made for each in kept) == len(shared.segments)
        and sum(each.bytes_kept for each in kept) == shared.size
        and figures["records_read"] == figures["records_kept"]
        and not figures["rewritten"]
    )
    return SwapRequest(
        shared.topic,
        shared.partition,
        job,
        shared.cleanable.first_dirty_offset,
        shared.end_offset,
        shared.segments,
        tuple(new for each in ordered for new in each.new) if changes else (),
        figures,
    )
