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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import Superseded
from storage.compaction.cleanable import CleanableRange
from storage.compaction.passes import Figures, KeepPass, MapPass, ProducerRecord, Round
from storage.compaction.replacing import prepare, publish
from storage.compaction.rewrite import GroupWriter
from storage.compaction.sources import Sources, aborted_of, mtime_ms
from storage.compaction.transactions import CleanedTransactions
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.record.header import Buffer
from storage.segment.segment import BatchEntry
from storage.settings.config import LogConfig
from storage.task import Task


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

    @property
    def records_dropped(self) -> int:
        """How many did not stay."""
        return self.records_read - self.records_kept

    @property
    def records_superseded(self) -> int:
        """Those of them that had later records of their keys, or were tombstones past their
        horizon.
        """
        return self.records_dropped - self.records_invalid - self.records_aborted - self.markers

    @property
    def is_same(self) -> bool:
        """Whether nothing has gone, and nothing would be other than it is."""
        return (
            self.segments_before == self.segments_after
            and self.bytes_before == self.bytes_after
            and self.records_read == self.records_kept
            and self.rewritten == 0
        )


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
            changes = not cleaned.is_same
            if changes:
                old = sources.segments[: cleaned.segments_before]
                new = [segment for writer in writers for segment in writer.segments]
                prepare(log, old, new, task)
        except BaseException:
            _discard(writers)
            raise
        if changes:
            publish(log, old, new, task)
        else:
            _discard(writers)
    return cleaned


def preview(
    log: Log, cleanable: CleanableRange, task: Task, *, now_ms: int, offset_map: OffsetMap
) -> Cleaned:
    """What ``clean`` would do; writes nothing.  Its errors."""
    with _sources(log, cleanable, task) as sources:
        return _run(sources, cleanable, task, now_ms, offset_map, lambda base, config: Nowhere())


@contextlib.contextmanager
def _sources(log: Log, cleanable: CleanableRange, task: Task) -> Iterator[Sources]:
    """The facts of now, and leases on what is read."""

    def gather() -> Sources:
        end = cleanable.first_uncleanable_offset
        segments = tuple(each for each in log.segments[:-1] if each.base_offset < end)
        producers = {
            each.producer_id: ProducerRecord(each.last_offset, each.epoch) for each in log.producers
        }
        for segment in segments:
            segment.files.lease()
        return Sources(segments, end, log.config, producers, [])

    sources = task.by_owner(gather)
    try:
        # Reading the indexes may wait; of what may be cleaned no more transactions are aborted.
        sources.aborted.extend(aborted_of(log))
        yield sources
    finally:
        task.by_owner(sources.close_read)
        for segment in sources.segments:
            segment.files.release()


def _run(
    sources: Sources,
    cleanable: CleanableRange,
    task: Task,
    now_ms: int,
    offset_map: OffsetMap,
    target: Callable[[int, LogConfig], GroupWriter | Nowhere],
) -> Cleaned:
    """Both passes (``Cleaner.doClean``); ``target`` makes what a group is written to."""
    started = time.monotonic()
    full = _build_map(sources, cleanable, task, offset_map)
    end_offset = offset_map.latest_offset + 1
    count = sum(segment.base_offset < end_offset for segment in sources.segments)
    segments = sources.segments[:count]
    task.begin("cleaning", sum(segment.size for segment in segments))
    retention_ms = sources.config.delete_retention_ms
    facts = Round.of(now_ms, retention_ms, cleanable.first_uncleanable_offset, sources.producers)
    keeping = Keeping(
        sources,
        offset_map,
        facts,
        sources.legacy_horizon_ms(cleanable.first_dirty_offset, count),
        CleanedTransactions(),
        Figures(),
    )
    made = 0
    first = 0
    for size in sources.groups(count):
        writer = target(segments[first].base_offset, sources.config)
        made += keep_group(keeping, range(first, first + size), writer, task)
        first += size
    figures = keeping.figures
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


class Keeping(NamedTuple):
    """What is the same for all groups of a round, or goes on from one to the next."""

    sources: Sources
    offset_map: OffsetMap
    facts: Round
    legacy_horizon_ms: int
    transactions: CleanedTransactions
    figures: Figures


def keep_group(
    keeping: Keeping,
    members: range,
    writer: GroupWriter | Nowhere,
    task: Task,
    superseded: Superseded | None = None,
) -> int:
    """Write what stays of these segments; how many it has become.

    ``superseded``: what of them has later records, where it is not the map that says so.
    """
    sources = keeping.sources
    for number in members:
        segment = sources.segments[number]
        ends = sources.next_offset(number)
        keeping.transactions.add_aborted(sources.aborted_within(segment.base_offset, ends))
        keep = KeepPass(
            keeping.offset_map,
            keeping.facts,
            keeping.transactions,
            keeping.figures,
            writer,
            legacy_tombstones=mtime_ms(segment) > keeping.legacy_horizon_ms,
            superseded=superseded,
        )
        sources.walk(number, 0, keep, task)
        keep.end()
        task.counts.update(keeping.figures.counts)
    last = members[-1]
    return writer.end(sources.next_offset(last), sources.segments[last].mtime_ns)


def _build_map(
    sources: Sources, cleanable: CleanableRange, task: Task, offset_map: OffsetMap
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


class Nowhere:
    """Where nothing is written, but counted."""

    def append(
        self, data: Buffer, entries: Sequence[BatchEntry], aborted: Iterable[TxnEntry]
    ) -> None:
        pass

    def end(self, next_offset: int, mtime_ns: int) -> int:
        return 1


def _discard(writers: Iterable[GroupWriter]) -> None:
    for writer in writers:
        with contextlib.suppress(OSError):
            writer.discard()
