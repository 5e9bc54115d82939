"""One cleaning of one log (`Cleaner.java`): keeps only the latest record of each key.

The cleaner makes two passes. The first puts the keys of the dirty part, with the offset of the
latest record of each, into a map of bounded memory. The second copies all segments, up to the end
of the mapped part, to new segments, without the records for which the map has later ones. Kept
records keep their offset, their order and their codec. If the map is full, the round ends there,
and the next round continues.

One swap publishes the whole round, so that readers see one new history. A round that is stopped
before its swap changes nothing.

The choice of batches and records is that of `MemoryRecords.filterTo` and `Cleaner.cleanInto`:

- records of aborted transactions are dropped; `_keep` decides about others;
- a batch without any record left is dropped, too. Its header stays in two cases: it has the last
  sequence of a producer that has not expired, or it was the last batch of the log when the round
  began (KAFKA-20452). So sequences and the log end survive a restart;
- tombstones, and markers of transactions without any batch left, get a *delete horizon* (KIP-534):
  a later round drops them, delete.retention.ms afterwards.

Threads: a round runs on a worker thread. It reads sealed segments under leases, and changes the log
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
from storage.compaction.sources import Sources
from storage.compaction.transactions import CleanedTransactions
from storage.files import Files
from storage.index.txn_index import aborted_within
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.task import Task


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of one round, or of its preview; offsets count records, sizes are in bytes.

    The log is clean below `end_offset`, the next round's first dirty offset. Of the `records_read`
    that were not kept, `records_invalid` had no key, `records_aborted` belonged to aborted
    transactions, `markers` had ended transactions without any batch left, and the others had later
    records of their keys or were tombstones past their horizon. `rewritten`: batches that changed
    for another reason than dropped records.
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
        """The number of dropped records."""
        return self.records_read - self.records_kept

    @property
    def records_superseded(self) -> int:
        """Records dropped for later ones of their keys, or as tombstones past their horizon."""
        return self.records_dropped - self.records_invalid - self.records_aborted - self.markers

    @property
    def is_same(self) -> bool:
        """Whether the round changes nothing."""
        return (
            self.segments_before == self.segments_after
            and self.bytes_before == self.bytes_after
            and self.records_read == self.records_kept
            and self.rewritten == 0
        )


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
    """Write the kept records into new segments, durably; none if nothing changes.

    `cleanable`: the log is cleaned below its first uncleanable offset, as far as an empty map
    reaches. `now_ms`: wall time, for delete horizons. `suffix`: the ending of the names of their
    files. Errors: TaskCancelled, CorruptRecord if the log is damaged, InvalidRecord if a record
    exceeds max.decompressed.message.bytes, OSError; no file is left.
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
        discard(written())
        raise
    if cleaned.is_same:
        discard(written())
        return cleaned, []
    return cleaned, written()


@contextlib.contextmanager
def leased(log: Log, cleanable: CleanableRange, task: Task) -> Iterator[Sources]:
    """Yield the segments of a round, with leases on them."""

    def lease() -> Sources:
        sources = Sources.below(log, cleanable.first_uncleanable_offset)
        for segment in sources.segments:
            segment.lease()
        return sources

    sources = task.on_log_thread(lease)
    try:
        # Off the log thread, since it may wait. A transaction that begins below the first
        # uncleanable offset and is still open has begun below the log start, too.
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

    `new_writer`: returns the writer of a group by its base offset; None: only count.
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
        # The cleanable part may now end below the clean one.
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
    """Write the kept records of these segments, a group; return the number of new segments."""
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
    """Fill the map (`Cleaner.buildOffsetMap`); return whether it was too small for all keys.

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


def discard(segments: Sequence[Segment]) -> None:
    """Remove the files of these segments, as far as possible."""
    for segment in segments:
        with contextlib.suppress(OSError):
            segment.discard()
