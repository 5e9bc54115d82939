"""One cleaning of one log (`Cleaner.java`): of each key's records only the latest stays.

In two passes. The first puts the keys of the dirty part, with the offset of the latest record of
each, into a map of bounded memory. The second writes all segments, up to where the map reaches,
anew without the records of which the map knows later ones. What stays keeps its offset, its order
and its codec. When the map is full the round ends there, and the next one goes on.

One swap publishes the whole round, so that readers see one new history. A round that is stopped
before its swap changes nothing.

Which batches and records stay is `MemoryRecords.filterTo` and `Cleaner.cleanInto`:

- records of aborted transactions go; which others go `_keep` decides;
- a batch without any record left goes, too. Its header stays in two cases: it holds the last
  sequence of a producer that is still known, or it was the last batch of the log as the round began
  (KAFKA-20452). So sequences and the log end survive a restart;
- a marker that ended something of which nothing is left, and a tombstone, get a *delete horizon*
  (KIP-534) and go in a later round, delete.retention.ms after that.

Threads: `clean` runs in a worker thread. It reads sealed segments under leases, and changes the log
through `task.on_log_thread` only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage import paths
from storage.compaction._offset_map import OffsetMap
from storage.compaction.cleanable import CleanableRange
from storage.compaction.group_writer import GroupWriter
from storage.compaction.passes import KeepPass, KeepRules, MapPass
from storage.compaction.replacing import prepare, publish
from storage.compaction.sources import Sources
from storage.compaction.transactions import CleanedTransactions, aborted_within
from storage.files import Files
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.task import Task


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What one round did, or would do; offsets count records, sizes are in bytes.

    Everything below `end_offset` is clean now: the next round's first dirty offset. Of the
    `records_read` that were not kept, `records_invalid` had no key, `records_aborted` were of
    aborted transactions, `markers` had ended transactions of which nothing was left, and the others
    had later records of their keys or were tombstones past their horizon. `rewritten`: batches that
    stay in another form, for another reason than records that went.
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
        """How many records went."""
        return self.records_read - self.records_kept

    @property
    def records_superseded(self) -> int:
        """How many went for later records of their keys, or as tombstones past their horizon."""
        return self.records_dropped - self.records_invalid - self.records_aborted - self.markers

    @property
    def is_same(self) -> bool:
        """Whether nothing goes and nothing changes."""
        return (
            self.segments_before == self.segments_after
            and self.bytes_before == self.bytes_after
            and self.records_read == self.records_kept
            and self.rewritten == 0
        )


def clean(
    log: Log, cleanable: CleanableRange, task: Task, *, now_ms: int, offset_map: OffsetMap
) -> Cleaned:
    """Clean the log below `cleanable.first_uncleanable_offset`, as far as an empty map reaches.

    `now_ms`: wall time, for delete horizons. Errors: TaskCancelled, CorruptRecord where the log is
    damaged, InvalidRecord where a record exceeds max.decompressed.message.bytes, OSError: nothing
    has changed then.
    """
    with _sources(log, cleanable, task) as sources:
        cleaned, new = write(
            *(log.files, log.directory, sources, cleanable, task),
            now_ms=now_ms,
            offset_map=offset_map,
        )
        if new:
            old = sources.segments[: cleaned.segments_before]
            try:
                prepare(log, old, new, task)
            except BaseException:
                _discard(new)
                raise
            publish(log, old, new, task)
    return cleaned


def write(
    files: Files,
    directory: str,
    sources: Sources,
    cleanable: CleanableRange,
    task: Task,
    *,
    now_ms: int,
    offset_map: OffsetMap,
    suffix: str = paths.CLEANED,
) -> tuple[Cleaned, list[Segment]]:
    """Write what stays into new segments, durably; none where nothing changes.

    `suffix`: what the names of their files end in. The errors of `clean`: no file is left.
    """
    writers: list[GroupWriter] = []

    def new_writer(base_offset: int) -> GroupWriter:
        made = GroupWriter(
            *(files, directory, base_offset, sources.config),
            now_ms=now_ms,
            pace=task.pace,
            suffix=suffix,
        )
        writers.append(made)
        return made

    def written() -> list[Segment]:
        return [segment for writer in writers for segment in writer.segments]

    try:
        cleaned = run(sources, cleanable, task, now_ms, offset_map, new_writer)
    except BaseException:
        _discard(written())
        raise
    if cleaned.is_same:
        _discard(written())
        return cleaned, []
    return cleaned, written()


def preview(
    log: Log, cleanable: CleanableRange, task: Task, *, now_ms: int, offset_map: OffsetMap
) -> Cleaned:
    """Say what `clean` would do; write nothing. The errors of `clean`."""
    with _sources(log, cleanable, task) as sources:
        return run(sources, cleanable, task, now_ms, offset_map)


@contextlib.contextmanager
def _sources(log: Log, cleanable: CleanableRange, task: Task) -> Iterator[Sources]:
    """What the round reads, with leases on it."""

    def lease() -> Sources:
        sources = Sources.below(log, cleanable.first_uncleanable_offset)
        for segment in sources.segments:
            segment.lease()
        return sources

    sources = task.on_log_thread(lease)
    try:
        # Not on the owner's thread: it may wait. Below the first uncleanable offset no transaction
        # is open that could be aborted now.
        sources.read_aborted(log)
        yield sources
    finally:
        for segment in sources.segments:
            segment.release()


def run(
    sources: Sources,
    cleanable: CleanableRange,
    task: Task,
    now_ms: int,
    offset_map: OffsetMap,
    new_writer: Callable[[int], GroupWriter] | None = None,
) -> Cleaned:
    """Make both passes (`Cleaner.doClean`).

    `new_writer`: of a group, by its base offset; None: only count what would stay.
    """
    started = time.monotonic()
    full = _build_map(sources, cleanable, task, offset_map)
    end_offset = offset_map.latest_offset + 1
    count = sum(segment.base_offset < end_offset for segment in sources.segments)
    segments = sources.segments[:count]
    task.begin("cleaning", sum(segment.size for segment in segments))
    rules = KeepRules(
        now_ms,
        sources.config.delete_retention_ms,
        cleanable.high_watermark,
        sources.producers,
        sources.config.max_decompressed_message_bytes,
        sources.legacy_horizon_ms(cleanable.first_dirty_offset),
    )
    keep = KeepPass(offset_map, rules, CleanedTransactions())
    made = first = 0
    for size in sources.groups(count):
        if new_writer is not None:
            keep.writer = new_writer(segments[first].base_offset)
        made += _keep_group(sources, range(first, first + size), keep, task)
        first += size
    return Cleaned(
        start_offset=cleanable.start_offset,
        first_dirty_offset=cleanable.first_dirty_offset,
        # Less than what is clean already may be cleanable now.
        end_offset=max(end_offset, cleanable.first_dirty_offset),
        segments_before=count,
        segments_after=made,
        bytes_before=sum(segment.size for segment in segments),
        map_keys=len(offset_map),
        map_full=full,
        elapsed_ms=int((time.monotonic() - started) * 1000),
        **keep.figures,
    )


def _keep_group(sources: Sources, members: range, keep: KeepPass, task: Task) -> int:
    """Write what stays of these segments, a group; returns how many segments it becomes."""
    for number in members:
        segment = sources.segments[number]
        end = sources.next_offset(number)
        keep.transactions.add_aborted(aborted_within(sources.aborted, segment.base_offset, end))
        keep.begin(segment)
        sources.walk(number, 0, keep, task)
        keep.end()
        kept, read = keep.figures["records_kept"], keep.figures["records_read"]
        task.counts.update(records_kept=kept, records_dropped=read - kept)
    if keep.writer is None:
        return 1
    last = members[-1]
    return keep.writer.end(sources.next_offset(last), sources.segments[last].mtime_ns)


def _build_map(
    sources: Sources, cleanable: CleanableRange, task: Task, offset_map: OffsetMap
) -> bool:
    """Fill the map (`Cleaner.buildOffsetMap`); returns whether it was too small for all keys.

    Its `latest_offset` is then the last offset that was read into it.
    """
    first = cleanable.first_dirty_offset
    offset_map.latest_offset = min(first, sources.end_offset) - 1
    dirty = [
        number
        for number, segment in enumerate(sources.segments)
        if sources.next_offset(number) > first
    ]
    task.begin("mapping", sum(sources.segments[number].size for number in dirty))
    aborted = aborted_within(sources.aborted, first, sources.end_offset)
    most_bytes = sources.config.max_decompressed_message_bytes
    mapping = MapPass(offset_map, first, aborted, most_bytes)
    for number in dirty:
        segment = sources.segments[number]
        start = segment.position_before(first) if segment.base_offset < first else 0
        sources.walk(number, start, mapping, task)
        if mapping.finished:
            return True
        offset_map.latest_offset = sources.next_offset(number) - 1
        task.counts["map_keys"] = len(offset_map)
    return False


def _discard(segments: Sequence[Segment]) -> None:
    for segment in segments:
        with contextlib.suppress(OSError):
            segment.discard()
