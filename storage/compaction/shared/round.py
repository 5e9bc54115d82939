"""One round of cleaning that several processes share, none of which owns the log.

A process that has the log open plans it (``plan``): the round is a value that goes to all.

1. ``scan``, for each range of the log: which records have later ones of their keys within the
   range, which keys are left, and what was met of transactions.
2. ``KeyMerge``, for each bucket of keys: which of those have later ones in other ranges.
3. ``keep``, for each group of segments: what stays of it, into new segments that lie as staged
   files in the partition's directory.  No group waits for another: its ``OpenAtStart`` has what a
   cleaner of the whole log knows when it comes to the group.
4. ``finished``: the request that has the log's owner swap all of it in (``swap_in``).

Which records stay, in which batches and files, is what ``cleaner`` makes of the same log at the
same time, byte for byte, where its map has room for all keys.  Here no process needs room for all
keys.  Values never leave the processes that read them.

Not here: how the parts are handed around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from storage import paths
from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import KeyScan, Superseded
from storage.compaction.cleaner import keep_group
from storage.compaction.group_writer import GroupWriter
from storage.compaction.passes import KeepPass, KeepRules, check_record_sizes, marker_of, walk
from storage.compaction.shared.plan import SharedRound
from storage.compaction.shared.swap_request import FIGURES, NewSegment, SwapRequest
from storage.compaction.sources import Sources, legacy_horizon_ms
from storage.compaction.transactions import (
    CleanedTransactions,
    Met,
    OpenAtStart,
    aborted_within,
    openings,
)
from storage.files import Files
from storage.record.control import COMMIT
from storage.record.header import BatchHeader
from storage.segment.segment import Segment
from storage.task import Task

# A map's memory grows with its keys; there is no other limit to it.
_UNLIMITED = 1 << 46


class Scanned(NamedTuple):
    """What a range tells.  By bucket: the keys that are left, ``dirty`` ones and those from below
    the first dirty offset.  By group: the offsets that are ``superseded`` within the range, and
    what was ``met`` of transactions.
    """

    dirty: list[bytes]
    clean: list[bytes]
    superseded: list[tuple[int, bytes]]
    met: list[tuple[int, Met]]


class Kept(NamedTuple):
    """What stays of a group.  ``made``: how many segments it becomes, written or not."""

    group: int
    made: int
    new: tuple[NewSegment, ...]
    figures: Mapping[str, int]
    bytes_kept: int


# -- the parts -----------------------------------------------------------------------------------


class _ScanPass:
    """Gives batches to a ``KeyScan``, but for aborted ones."""

    finished = False

    def __init__(self, keys: KeyScan, transactions: CleanedTransactions, most_bytes: int) -> None:
        self.met = Met()
        self._most_bytes = most_bytes
        self._keys = keys
        self._transactions = transactions

    def run(self, data: memoryview, at: int, end: int) -> int:
        return self._keys.take_batches(data, at, end)

    def one(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        if header.is_control:
            marker = marker_of(plain, header)
            self._transactions.can_go(header, marker)
            if marker is not None and marker.type == COMMIT:
                self.met.committed.discard(header.producer_id)
                self.met.ended.add(header.producer_id)
        elif self._transactions.is_aborted(header):
            self.met.aborted[header.producer_id] = header.last_offset
        else:
            if header.is_transactional:
                self.met.committed.add(header.producer_id)
            check_record_sizes(plain, header, self._most_bytes)
            self._keys.take_batch(plain)


def scan(shared: SharedRound, number: int, files: Files, task: Task) -> Scanned:
    """Read a range.  CorruptRecord, OSError, TaskCancelled, MemoryError."""
    parts = shared.ranges[number]
    keys = KeyScan(OffsetMap(_UNLIMITED, secret=shared.secret), shared.cleanable.first_dirty_offset)
    transactions = CleanedTransactions()
    start, end = parts[0].from_offset, parts[-1].to_offset
    transactions.add_aborted(aborted_within(shared.aborted, start, end))
    most_bytes = shared.config.max_decompressed_message_bytes
    scanning = _ScanPass(keys, transactions, most_bytes)
    met = [(parts[0].group, scanning.met)]
    for part in parts:
        if part.group != met[-1][0]:
            scanning.met = Met()
            met.append((part.group, scanning.met))
        segment = _segment(shared, part.segment, files, end=part.end)
        try:
            walk(segment, part.position, scanning, task)
        finally:
            segment.files.close_descriptors()
    return Scanned(
        keys.dirty_keys(shared.buckets),
        keys.clean_keys(shared.buckets),
        keys.superseded_by_group(shared.group_bounds),
        met,
    )


def _segment(shared: SharedRound, number: int, files: Files, *, end: int | None = None) -> Segment:
    """A segment as it was planned, to be read only; or as if it ended at position ``end``."""
    source = shared.segments[number]
    bases = [*(each.base_offset for each in shared.segments), shared.end_offset]
    segment = Segment(files, shared.directory, source.base_offset, shared.config, writable=False)
    segment.restore(
        size=source.size if end is None else end,
        next_offset=bases[number + 1],
        first_timestamp=-1,
        max_timestamp=-1,
        max_timestamp_offset=source.base_offset,
        last_indexed_position=0,
        mtime_ns=source.mtime_ns,
        sealed=True,
    )
    return segment


def openings_of(shared: SharedRound, met: Sequence[tuple[int, Met]]) -> list[OpenAtStart]:
    """The opening of each group.  ``met``: what all ranges told, in the order of the log."""
    parts: list[list[Met]] = [[] for _ in shared.firsts]
    for group, part in met:
        parts[group].append(part)
    return list(openings(zip(shared.group_bounds, parts, strict=False), shared.aborted))


def new_superseded(shared: SharedRound, group: int) -> Superseded:
    """An empty set of the superseded offsets of a group."""
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
    """Write what stays of a group, durably, to files of these names; None: only count it.

    CorruptRecord, OSError, TaskCancelled: no file is left.
    """
    segments = tuple(_segment(shared, number, files) for number in shared.members(group))
    producers = dict(shared.producers)
    end = shared.offsets_of(group).stop
    sources = Sources(segments, end, shared.config, producers, list(shared.aborted))
    known = OffsetMap(1 << 20, most=1, secret=shared.secret)
    known.latest_offset = shared.end_offset - 1
    ages = ((source.base_offset, source.mtime_ns) for source in shared.segments)
    rules = KeepRules(
        shared.now_ms,
        shared.config.delete_retention_ms,
        shared.cleanable.high_watermark,
        producers,
        shared.config.max_decompressed_message_bytes,
        legacy_horizon_ms(ages, shared.cleanable.first_dirty_offset, shared.config),
    )
    keeping = KeepPass(known, rules, CleanedTransactions.resumed(opening), superseded)
    writer: GroupWriter | None = None
    if suffix is not None:
        writer = keeping.writer = GroupWriter(
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
        made = keep_group(sources, range(len(segments)), keeping, task)
        new: tuple[NewSegment, ...] = ()
        if writer is not None:
            new = tuple(_written(writer, files))
            files.sync_directory(shared.directory)
    except BaseException:
        if writer is not None:
            writer.discard()
        raise
    finally:
        for segment in segments:
            segment.files.release()
            segment.files.close_descriptors()
    figures = keeping.figures
    return Kept(group, made, new, figures, figures.pop("bytes_after"))


def _written(writer: GroupWriter, files: Files) -> Iterator[NewSegment]:
    for segment in writer.segments:
        inode = files.file_stat(segment.files.file_path(paths.LOG)).st_ino
        base, size, mtime_ns = segment.base_offset, segment.size, segment.mtime_ns
        yield NewSegment(base, segment.next_offset, size, inode, mtime_ns, writer.suffix)


# -- the end -------------------------------------------------------------------------------------


def finished(
    shared: SharedRound, job: str, kept: Sequence[Kept], *, keys: int, elapsed_ms: int
) -> SwapRequest:
    """The request to the owner when all groups are done.

    Where nothing changes it names no new segments; the caller removes the files that were written.
    """
    ordered = sorted(kept, key=lambda each: each.group)
    assert [each.group for each in ordered] == list(range(len(shared.firsts)))
    figures = {name: sum(each.figures.get(name, 0) for each in kept) for name in FIGURES}
    figures.update(map_keys=keys, elapsed_ms=elapsed_ms)
    changes = (
        sum(each.made for each in kept) != len(shared.segments)
        or sum(each.bytes_kept for each in kept) != shared.size
        or figures["records_read"] != figures["records_kept"]
        or figures["rewritten"]
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
