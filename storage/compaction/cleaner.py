"""One cleaning of one log (``Cleaner.java``): of each key's records only the latest stays.

In two passes: the keys of the dirty part, with the offset of the latest record of each, go into a
map of bounded memory; then all segments up to where the map reaches are written anew without the
records that the map knows later ones of.  What stays keeps its offset, its order and its codec.
When the map is full the round ends there, and the next one goes on.

The whole round is published in one swap, so that readers see one new history of it.  Whenever it is
stopped before that, all is as it was.

Which batches and records stay is ``MemoryRecords.filterTo`` and ``Cleaner.cleanInto``:

- records of aborted transactions go, others as ``_keep`` has it;
- a batch of which nothing is left goes, too, unless it holds the last sequence of a producer that
  is still known, or ends what is being cleaned: then its header stays, so that sequences and the
  log end survive a restart;
- a marker that ended something of which nothing is left, and a tombstone, get a *delete horizon*
  (KIP-534) and go in a later round, delete.retention.ms after that.

Threads: ``clean`` runs in a worker thread.  It reads sealed segments under leases, and changes the
log through ``task.by_owner`` only.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from storage import paths
from storage.compaction._offset_map import OffsetMap
from storage.compaction.cleanable import CleanableRange
from storage.compaction.grouping import SegmentSize, group
from storage.compaction.passes import (
    Figures,
    KeepPass,
    MapPass,
    Pass,
    ProducerRecord,
    Round,
    walk,
)
from storage.compaction.rewrite import GroupWriter
from storage.compaction.transactions import CleanedTransactions
from storage.config import LogConfig
from storage.errors import TaskCancelled
from storage.index.txn_index import TxnEntry
from storage.log import Log, in_turns
from storage.record.header import Buffer
from storage.rewriting import prepare_replacement
from storage.segment import BatchEntry, Segment
from storage.task import Task

# Segments that are read until their descriptors are closed: a log may have thousands.
_CLOSED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What one round did, or would do; offsets count records, sizes are in bytes.

    Everything below ``end_offset`` is clean now: the next round's first dirty offset.  Of the
    ``records_read`` that were not kept, ``records_invalid`` had no key, ``records_aborted`` were of
    aborted transactions, ``markers`` had ended transactions of which nothing was left, and the
    others had later records of their keys or were tombstones past their horizon.  ``rewritten``:
    batches that stay, but otherwise than they were, where that was not for records that went.
    """

    start_offset: int
    first_dirty_offset: int
    end_offset: int
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_read: int
    records_kept: int
    records_invalid: int
    records_aborted: int
    markers: int
    rewritten: int
    map_keys: int
    map_full: bool
    elapsed_ms: int


def clean(
    log: Log, cleanable: CleanableRange, task: Task, *, now_ms: int, offset_map: OffsetMap
) -> Cleaned:
    """Clean the log below ``cleanable.first_uncleanable_offset``, as far as an empty map reaches.

    ``now_ms``: wall time, for delete horizons.  TaskCancelled, CorruptRecord where the log is
    damaged, OSError: nothing has changed then.
    """
    writers: list[GroupWriter] = []

    def target(base_offset: int, config: LogConfig) -> GroupWriter:
        made = GroupWriter(
            log.files, log.directory, base_offset, config, now_ms=now_ms, pace=task.pace
        )
        writers.append(made)
        return made

    with _sources(log, cleanable, task) as sources:
        try:
            cleaned = _run(sources, cleanable, task, now_ms, offset_map, target)
            changes = not _is_same(cleaned)
            if changes:
                task.begin("replacing", 0)
                # What goes may do so because of what lies behind it.
                log.flush(task.by_owner)
                old = sources.segments[: cleaned.segments_before]
                new = [segment for writer in writers for segment in writer.segments]
                # Before any name says `.swap`: from then on a restart carries it out.
                task.by_owner(lambda: prepare_replacement(log, old, new))()
        except BaseException:
            _discard(writers)
            raise
        if changes:
            _publish(log, old, new, task, now_ms)
        else:
            _discard(writers)
    return cleaned


def preview(
    log: Log, cleanable: CleanableRange, task: Task, *, now_ms: int, offset_map: OffsetMap
) -> Cleaned:
    """What ``clean`` would do; writes nothing.  Its errors."""
    with _sources(log, cleanable, task) as sources:
        return _run(sources, cleanable, task, now_ms, offset_map, lambda base, config: _Nowhere())


@dataclass(frozen=True, slots=True)
class _Sources:
    """What a round works on: ``segments`` are the sealed ones below its end, from the log's head.

    ``following``: the base offset of the segment behind them.
    """

    segments: tuple[Segment, ...]
    following: int
    config: LogConfig
    producers: dict[int, ProducerRecord]
    aborted: list[TxnEntry]
    _read: list[Segment] = field(default_factory=list)

    def walk(self, number: int, position: int, taker: Pass, task: Task) -> None:
        """Have a pass take segment ``number`` from ``position`` on, and close it soon."""
        walk(self.segments[number], position, taker, task)
        self._read.append(self.segments[number])
        if len(self._read) == _CLOSED_AT_ONCE:
            task.by_owner(self.close_read)

    def close_read(self) -> None:
        """Close what was read; the owner may read it again, as may others who have a lease."""
        for segment in self._read:
            segment.close_descriptors(own_leases=1)
        self._read.clear()

    def aborted_within(self, start: int, end: int) -> list[TxnEntry]:
        """The aborted transactions that have any part of theirs in this range of offsets.

        (``UnifiedLog.collectAbortedTransactions``); those that ended before are over.
        """
        first = bisect_left(self.aborted, start, key=lambda entry: entry.last_offset)
        found = []
        for entry in islice(self.aborted, first, None):
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                break
        return found

    def next_offset(self, number: int) -> int:
        """Where segment ``number`` ends and the next one begins."""
        if number + 1 < len(self.segments):
            return self.segments[number + 1].base_offset
        return self.following


@contextlib.contextmanager
def _sources(log: Log, cleanable: CleanableRange, task: Task) -> Iterator[_Sources]:
    """The facts of now, and leases on what is read."""

    def gather() -> _Sources:
        end = cleanable.first_uncleanable_offset
        segments = tuple(each for each in log.segments[:-1] if each.base_offset < end)
        producers = {
            each.producer_id: ProducerRecord(each.last_offset, each.epoch) for each in log.producers
        }
        for segment in segments:
            segment.lease()
        return _Sources(segments, end, log.config, producers, [])

    sources = task.by_owner(gather)
    try:
        # Reading the indexes may wait; of what may be cleaned no more transactions are aborted.
        sources.aborted.extend(log.aborted_transactions())
        yield sources
    finally:
        task.by_owner(sources.close_read)
        for segment in sources.segments:
            segment.release()


def _run(
    sources: _Sources,
    cleanable: CleanableRange,
    task: Task,
    now_ms: int,
    offset_map: OffsetMap,
    target: Callable[[int, LogConfig], GroupWriter | _Nowhere],
) -> Cleaned:
    """Both passes (``Cleaner.doClean``); ``target`` makes what a group is written to."""
    started = time.monotonic()
    full = _build_map(sources, cleanable, task, offset_map)
    end_offset = offset_map.latest_offset + 1
    count = sum(segment.base_offset < end_offset for segment in sources.segments)
    segments = sources.segments[:count]
    task.begin("cleaning", sum(segment.size for segment in segments))
    clean_ones = [each for each in segments if each.base_offset < cleanable.first_dirty_offset]
    retention_ms = sources.config.delete_retention_ms
    legacy_horizon_ms = _mtime_ms(clean_ones[-1]) - retention_ms if clean_ones else 0
    facts = Round.of(now_ms, retention_ms, cleanable.first_uncleanable_offset, sources.producers)
    transactions = CleanedTransactions()
    figures = Figures()
    made = 0
    first = 0
    for size in _groups(sources, segments):
        members = range(first, first + size)
        writer = target(segments[first].base_offset, sources.config)
        for number in members:
            ends = sources.next_offset(number)
            transactions.add_aborted(sources.aborted_within(segments[number].base_offset, ends))
            keep = KeepPass(
                offset_map,
                facts,
                transactions,
                figures,
                writer,
                legacy_tombstones=_mtime_ms(segments[number]) > legacy_horizon_ms,
            )
            sources.walk(number, 0, keep, task)
            keep.end()
            task.counts.update(figures.counts)
        last = members[-1]
        made += writer.end(sources.next_offset(last), segments[last].mtime_ns)
        first += size
    return Cleaned(
        start_offset=cleanable.start_offset,
        first_dirty_offset=cleanable.first_dirty_offset,
        # It was clean up to there, though less may be cleaned now.
        end_offset=max(end_offset, cleanable.first_dirty_offset),
        segments_before=count,
        segments_after=made,
        bytes_before=sum(segment.size for segment in segments),
        bytes_after=figures.bytes_kept,
        records_read=figures.records_read,
        records_kept=figures.records_kept,
        records_invalid=figures.records_invalid,
        records_aborted=figures.records_aborted,
        markers=figures.markers,
        rewritten=figures.rewritten,
        map_keys=len(offset_map),
        map_full=full,
        elapsed_ms=int((time.monotonic() - started) * 1000),
    )


def _mtime_ms(segment: Segment) -> int:
    return segment.mtime_ns // 1_000_000


def _build_map(
    sources: _Sources, cleanable: CleanableRange, task: Task, offset_map: OffsetMap
) -> bool:
    """Fill the map (``Cleaner.buildOffsetMap``); whether it was too small for all of it.

    Its ``latest_offset`` is then the last offset that it knows of.
    """
    first = cleanable.first_dirty_offset
    offset_map.latest_offset = min(first, sources.following) - 1
    dirty = [
        number
        for number, segment in enumerate(sources.segments)
        if sources.next_offset(number) > first
    ]
    task.begin("mapping", sum(sources.segments[number].size for number in dirty))
    aborted = sources.aborted_within(first, sources.following)
    mapping = MapPass(offset_map, first, aborted)
    for number in dirty:
        segment = sources.segments[number]
        start = segment.position_before(first) if segment.base_offset < first else 0
        sources.walk(number, start, mapping, task)
        if mapping.finished:
            return True
        offset_map.latest_offset = sources.next_offset(number) - 1
        task.counts["map_keys"] = len(offset_map)
    return False


def _groups(sources: _Sources, segments: Sequence[Segment]) -> list[int]:
    """How many segments each of the new ones takes the place of."""
    config = sources.config
    sizes = [
        SegmentSize(
            segment.base_offset,
            segment.size,
            segment.file_size(paths.INDEX),
            segment.file_size(paths.TIMEINDEX),
        )
        for segment in segments
    ]
    return group(
        sizes,
        most=config.segment_bytes,
        most_index=config.segment_index_bytes,
        first_uncleanable=sources.following,
    )


class _Nowhere:
    """Where nothing is written, but counted."""

    def append(
        self, data: Buffer, entries: Sequence[BatchEntry], aborted: Iterable[TxnEntry]
    ) -> None:
        pass

    def end(self, next_offset: int, mtime_ns: int) -> int:
        return 1


def _is_same(cleaned: Cleaned) -> bool:
    """Whether nothing has gone, and nothing would be other than it is."""
    return (
        cleaned.segments_before == cleaned.segments_after
        and cleaned.bytes_before == cleaned.bytes_after
        and cleaned.records_read == cleaned.records_kept
        and cleaned.rewritten == 0
    )


def _discard(writers: Iterable[GroupWriter]) -> None:
    for writer in writers:
        with contextlib.suppress(OSError):
            writer.discard()


def _publish(
    log: Log, old: Sequence[Segment], new: Sequence[Segment], task: Task, now_ms: int
) -> None:
    """Let the new segments take the place of the old ones (``LocalLog.replaceSegments``).

    Only the ``by_owner`` parts touch the log; between them the names are made durable.  An error
    before ``replace`` is done leaves all as it was; after one behind it the log has the new ones,
    and a restart finds them.
    """

    def replace() -> None:
        # (``LogManager.updateTopicConfig`` aborts a cleaning then.)
        if not log.config.is_compacted:
            raise TaskCancelled("cleanup.policy has become one without compact")
        log.replace(old, new, now_ms)

    log.stage_replacement(new)
    try:
        task.by_owner(replace)
    except BaseException:
        if new[0] not in log.segments:
            log.unstage(new)
        raise
    for some in in_turns(old):
        task.by_owner(lambda some=some: log.mark_detached(some, now_ms))  # type: ignore[misc]
    log.files.sync_directory(log.directory)
    for some in in_turns(new):
        task.by_owner(lambda some=some: log.finish_replacement(some))  # type: ignore[misc]
    log.files.sync_directory(log.directory)
