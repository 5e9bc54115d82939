"""Rebuilds the state of the producers from loaded segments and their snapshots.

`ProducerStateManager.java`, `UnifiedLog.rebuildProducerState`.

The newest usable snapshot has the state at its offset; the headers of later batches add the rest. A
snapshot is used only if the log has everything below it: not above the log's end, and not below the
first segment's base, as its open transactions may have been deleted with their records.

On the way missing files are made again: the snapshot at each segment's base, and the transaction
index of segments whose logs were read to load them, or whose index may lack entries. For that the
walk begins at an older snapshot; an existing newer one overrules the log, since a cleaner may have
removed records that only the snapshot still has.

Not here: CRCs and offset indexes (`segment`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence

from storage import paths
from storage.errors import CorruptCheckpoint, CorruptRecord
from storage.index.txn_index import TxnEntry
from storage.record._batch import Rebuild
from storage.record.header import MAGIC
from storage.recovery.promises import PartitionFiles
from storage.recovery.segment import Loaded, read_on
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.producer_state import EMPTY_SNAPSHOT, ProducerBatch, ProducerState, read


def replay(
    partition: PartitionFiles, loaded: Sequence[Loaded], names: Collection[str]
) -> tuple[ProducerState, Snapshots]:
    """Return the producers at the log's end, and the snapshots.

    `names`: the files of the directory. In a writable load snapshots and transaction indexes are
    corrected on disk, else in memory only. Errors: OSError from the disk.
    """
    first, last = loaded[0].segment, loaded[-1].segment
    snapshots = Snapshots(partition, names, first.base_offset, last.next_offset)
    bases = [item.segment.base_offset for item in loaded]
    missing = [base for base in bases[1:] if partition.writable and base not in snapshots]
    aborts = [
        item.scan.first_abort
        for item in loaded
        if item.scan is not None and item.scan.first_abort is not None
    ]
    # A broker recovers from the segment on that has the recovery point, or from the last one.
    may_lack_aborts = [
        base
        for base, following in zip(bases, [*bases[1:], paths.MAX_OFFSET], strict=True)
        if following > partition.promises.aborts_below
        and paths.file_name(base, paths.TXNINDEX) in names
    ]
    start = snapshots.newest_up_to(min([last.next_offset, *missing, *aborts, *may_lack_aborts]))
    state = ProducerState() if start < 0 else snapshots.load(start)
    for number, item in enumerate(loaded):
        base, end = item.segment.base_offset, item.segment.next_offset
        if base > start and number:
            if base in snapshots:
                state = snapshots.load(base)
            else:
                snapshots.write(base, state)
        begins = max(start, base)
        rebuilt = _walk(partition, item, begins, state) if end > start else []
        if item is loaded[-1] and (newest := snapshots.newest_up_to(end)) > begins:
            state = snapshots.load(newest)
            rebuilt += _walk(partition, item, newest, state)
        if item.scan is not None or base in may_lack_aborts:
            trusted_to = end if item.scan is None else item.scan.offset
            read_to = end if item.end is None else item.end
            _put_transactions(partition, item.segment, trusted_to, read_to, rebuilt, names)
    snapshots.drop_others(bases)
    return state, snapshots


def _walk(
    partition: PartitionFiles, item: Loaded, start: int, state: ProducerState
) -> list[TxnEntry]:
    """Add a segment's batches from `start` on; return the transactions that are aborted there."""
    rebuilt: list[TxnEntry] = []
    segment, scan = item.segment, item.scan
    if segment.is_lost:
        return rebuilt
    scanned_from = segment.size if scan is None else scan.position
    known = scan.producers if scan is not None else []
    read_to = segment.size if known is None else scanned_from
    for batch in itertools.chain(_unread(partition, segment, start, read_to), known or ()):
        if batch.base_offset >= start:
            entry = state.apply(batch)
            if entry is not None:
                rebuilt.append(entry)
    return rebuilt


def _unread(
    partition: PartitionFiles, segment: Segment, start: int, end: int
) -> Iterator[ProducerBatch]:
    """Yield the batches of producers from the offset `start` to the position `end`, or to any
    damage, without checking CRCs.
    """
    try:
        reader = SegmentReader(segment)
        position = reader.position_of(start) if start > segment.base_offset else 0
        if position is None or position >= end or _is_before_producers(segment):
            return
        interval = partition.config.index_interval_bytes
        rebuild = Rebuild(segment.base_offset, interval, position=position)
        yield from read_on(partition, rebuild, segment.log_fd(), end, check_crc=False)
    finally:
        segment.close_descriptors()


def _is_before_producers(segment: Segment) -> bool:
    """Return whether the segment is older than producers, by its first and last batch."""
    try:
        # Its header is enough: no record is read here.
        first = next(segment.headers(0, segment.size), None)
        last = SegmentReader(segment).last_batch()
    except CorruptRecord:
        return False
    return (
        first is not None and first[1].magic < MAGIC and last is not None and last[1].magic < MAGIC
    )


def _put_transactions(
    partition: PartitionFiles,
    segment: Segment,
    trusted_to: int,
    read_to: int,
    rebuilt: list[TxnEntry],
    names: Collection[str],
) -> None:
    """Write the transaction index of a segment: its entries up to the offset `trusted_to`, later
    ones that its log has, and its entries in damage or from the offset `read_to` on, whose markers
    were not read.

    An index that was emptied, or copied before its log, lacks the last entries. A cleaner may have
    removed earlier ones, and the markers of others.
    """
    if not rebuilt and paths.file_name(segment.base_offset, paths.TXNINDEX) not in names:
        return
    index = segment.txn_index
    base = segment.base_offset
    known = tuple(entry for entry in index.entries if base <= entry.last_offset < trusted_to)
    known_to = known[-1].last_offset if known else -1
    later = {entry.last_offset: entry for entry in rebuilt if entry.last_offset > known_to}
    hidden = [(place.first_offset, place.next_offset) for place in segment.damages]
    hidden.append((read_to, segment.next_offset))
    for each in index.entries:
        at = each.last_offset
        if at > known_to and any(first <= at < end for first, end in hidden):
            later[at] = each
    entries = known + tuple(later[offset] for offset in sorted(later))
    if not partition.writable:
        index.entries = entries
    elif entries != index.entries or not index.is_sound:
        index.replace(entries)
        if not entries:
            partition.files.unlink(segment.file_path(paths.TXNINDEX))
    if partition.writable and not partition.promises.clean:
        index.mark_unsynced()
    index.release()


class Snapshots:
    """The usable `.snapshot` files of a partition, by offset; each is read at its first use.

    `unsynced`: the offsets of those that may not be on the disk, as no flush followed.
    """

    def __init__(
        self, partition: PartitionFiles, names: Iterable[str], log_start: int, log_end: int
    ) -> None:
        """Take the snapshots between the first segment's base and the log's end.

        A writable load removes the others, and later unreadable ones.
        """
        self._files = partition.files
        self._directory = partition.directory
        self._writable = partition.writable
        # A roll right after a flush leaves one at the recovery point.
        self._flushed_below = partition.promises.trusted_below
        self._states: dict[int, bytes | None] = {}
        self._made: set[int] = set()
        is_ahead = False
        for name in names:
            if not name.endswith(paths.SNAPSHOT):
                continue
            offset = paths.base_offset_of(name)
            if offset is not None and log_start <= offset <= log_end:
                self._states[offset] = None
            elif partition.writable:
                partition.files.unlink(os.path.join(partition.directory, name))
                is_ahead = is_ahead or (offset or 0) > log_end
        if is_ahead:
            # The log will grow over it with other records: it must not return.
            partition.files.sync_directory(partition.directory)

    def __contains__(self, offset: int) -> bool:
        if offset not in self._states:
            return False
        if self._states[offset] is not None:
            return True
        path = self._path(offset)
        data, excess = read(self._files, path)
        if _is_snapshot(data, path):
            self._states[offset] = data
            if excess and self._writable:
                self._replace(offset, data)
            return True
        del self._states[offset]
        if self._writable:
            self._files.unlink(path)
        return False

    @property
    def unsynced(self) -> frozenset[int]:
        unflushed = {each for each in self._states if each >= self._flushed_below}
        return frozenset(self._made | unflushed)

    def newest_up_to(self, offset: int) -> int:
        """Return the offset of the newest one at or below `offset`, or -1."""
        for candidate in sorted(self._states, reverse=True):
            if candidate <= offset and candidate in self:
                return candidate
        return -1

    def load(self, offset: int) -> ProducerState:
        """Return the state of the snapshot at `offset`, which exists."""
        data = self._states[offset]
        assert data is not None
        return ProducerState.decode(data, path=self._path(offset))

    def write(self, offset: int, state: ProducerState) -> None:
        """Make a snapshot again in a writable load."""
        if self._writable:
            data = self._states[offset] = state.encode()
            self._replace(offset, data)

    def _replace(self, offset: int, data: bytes) -> None:
        self._made.add(offset)
        self._files.replace_atomically(self._path(offset), data, sync=False)

    def drop_others(self, bases: Sequence[int]) -> None:
        """Remove all except those at a segment's base and the newest, and unreadable ones."""
        if self._writable:
            for offset in self._states.keys() - {*bases, self.newest_up_to(paths.MAX_OFFSET)}:
                del self._states[offset]
                self._files.unlink(self._path(offset))
            # The first segment's was not read if there is a newer one.
            _ = bases[0] in self

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, paths.file_name(offset, paths.SNAPSHOT))


def _is_snapshot(data: bytes, path: str) -> bool:
    if data == EMPTY_SNAPSHOT:
        return True
    try:
        ProducerState.decode(data, path=path)
    except CorruptCheckpoint:
        return False
    return True
