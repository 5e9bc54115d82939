"""The two passes of a cleaner over a log: what its keys are, and what of it stays.

Runs of ordinary batches go through the loops of ``_keep``; what they stop at (compressed, old, of
transactions, control batches, batches that may have to stay though they are empty) is looked at
one by one.  The rules are those of ``Cleaner.buildOffsetMap``, ``Cleaner.cleanInto`` and
``MemoryRecords.filterTo``.

Not here: which segments, where what stays is written (``cleaner``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from storage.compaction._keep import Keeper, map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import Superseded
from storage.compaction.transactions import CleanedTransactions
from storage.errors import CorruptRecord
from storage.index.txn_index import TxnEntry
from storage.record.batch import decode_plain, encode_records
from storage.record.control import Marker, parse_marker
from storage.record.header import (
    CODEC_BITS,
    DELETE_HORIZON_BIT,
    FRAME_SIZE,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    pack,
    parse_header,
    size_at,
)
from storage.record.plain import recompress
from storage.segment.segment import BatchEntry, Segment
from storage.segment.walk import Buffered, Walk
from storage.settings.config import LONG_MAX
from storage.task import Task

WINDOW_BYTES = 1 << 20
"""How much of a log is read at a time, and about how much of the new one is written at once."""


class Pass(Protocol):
    """What is done with the batches of a log, in order."""

    finished: bool
    """Whether it wants no more of them."""

    def run(self, data: memoryview, at: int, end: int) -> int:
        """Take ordinary batches from ``data[at:end]``; returns where the first other one begins.

        That may be one that is not whole before ``end``, or damaged.
        """
        ...

    def one(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        """Take one batch, as it is stored and in plain form; ``header`` is its stored one's."""
        ...


def walk(segment: Segment, position: int, taker: Pass, task: Task) -> None:
    """Have a pass take all batches of a segment from ``position`` on, where one begins.

    CorruptRecord, with path and position, TaskCancelled, OSError.
    """

    def fill(view: memoryview, at: int) -> int:
        # Each batch's CRC is checked as it is taken.
        read = segment.read_into if segment.damages else segment.read_stored
        return read(view, at)

    log = Walk(Buffered(fill).read, position, segment.size, WINDOW_BYTES)
    for data in log:
        taken = _take(segment, data, log.position, taker)
        log.position += taken
        task.advance(taken)
        if taker.finished:
            return
    if log.position < segment.size:
        reason = "a batch is damaged or cut off"
        raise CorruptRecord(reason, path=segment.log_path, position=log.position)


def _take(segment: Segment, data: memoryview, position: int, taker: Pass) -> int:
    """Have the batches of a window taken; returns where the first one begins that is not whole.

    The window lies at ``position`` of the segment's log.
    """
    at, end = 0, len(data)
    while at < end and not taker.finished:
        at = taker.run(data, at, end)
        if end - at < FRAME_SIZE or taker.finished:
            break
        stop = end
        if data[at + MAGIC_POSITION] < MAGIC:
            # Each old message is a batch, which ``expand`` would make one of with others.
            stop = min(end, at + max(size_at(data, at), FRAME_SIZE))
        try:
            plain, size = segment.expand(data, at, stop, position + at)
        except CorruptRecord as error:
            raise CorruptRecord(
                error.message, path=segment.log_path, position=position + at, offset=error.offset
            ) from None
        if not plain:
            break
        assert isinstance(plain, bytearray)
        with data[at : at + size] as stored:
            taker.one(stored, plain, parse_header(stored))
        at += size
    return at


class MapPass:
    """Puts the keys of the dirty part into the map (``Cleaner.buildOffsetMapForSegment``)."""

    def __init__(
        self, offset_map: OffsetMap, first_dirty_offset: int, aborted: Iterable[TxnEntry]
    ) -> None:
        self.finished = False
        self._map = offset_map
        self._first = first_dirty_offset
        self._transactions = CleanedTransactions()
        self._transactions.add_aborted(aborted)

    def run(self, data: memoryview, at: int, end: int) -> int:
        at, self.finished = map_batches(self._map, data, at, end, self._first)
        return at

    def one(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        if header.is_control:
            self._transactions.can_go(header, marker_of(plain, header))
        elif not self._transactions.is_aborted(header):
            self.finished = map_batch(self._map, plain, self._first)
        last = parse_header(plain).last_offset
        if not self.finished and last >= self._first:
            self._map.latest_offset = last


class ProducerRecord(NamedTuple):
    """What stays of a producer: its last data batch ends at ``last_offset``, or, where that is -1,
    a marker of its ``epoch``.
    """

    last_offset: int
    epoch: int


class Round(NamedTuple):
    """What one round of cleaning knows beside its map; times are in ms since 1970."""

    now_ms: int
    horizon_ms: int
    """The delete horizon that a batch gets now."""
    upper_bound: int
    producers: Mapping[int, ProducerRecord]
    special: Sequence[int]
    """The last offsets of data batches for which ``stays_empty`` may hold, rising."""

    @classmethod
    def of(
        cls,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound: int,
        producers: Mapping[int, ProducerRecord],
    ) -> Round:
        offsets = {each.last_offset for each in producers.values() if each.last_offset >= 0}
        special = sorted(offsets | {upper_bound - 1})
        horizon_ms = min(now_ms + delete_retention_ms, LONG_MAX)
        return cls(now_ms, horizon_ms, upper_bound, producers, special)

    def stays_empty(self, batch: BatchHeader) -> bool:
        """Whether a batch of which no record is left has to stay all the same."""
        if batch.last_offset + 1 == self.upper_bound:
            return True
        if batch.producer_id < 0:
            return False
        producer = self.producers.get(batch.producer_id)
        if producer is None:
            return False
        if producer.last_offset >= 0:
            return batch.last_offset == producer.last_offset
        return batch.is_control and batch.producer_epoch == producer.epoch


class Target(Protocol):
    """Where what stays is written."""

    def append(
        self, data: Buffer, entries: Sequence[BatchEntry], aborted: Iterable[TxnEntry]
    ) -> None: ...


class Figures:
    """What the segments of a round had.  ``rewritten``: batches that stay, but otherwise than they
    were, where that was not for records that went.
    """

    def __init__(self) -> None:
        self.records_read = 0
        self.records_kept = 0
        self.records_invalid = 0
        self.records_aborted = 0
        self.markers = 0
        self.rewritten = 0
        self.bytes_kept = 0

    @property
    def counts(self) -> dict[str, int]:
        """What a progress bar shows."""
        dropped = self.records_read - self.records_kept
        return {"records_kept": self.records_kept, "records_dropped": dropped}


class KeepPass:
    """Gives what stays of one segment to a target (``Cleaner.cleanInto``)."""

    finished = False

    def __init__(
        self,
        offset_map: OffsetMap,
        facts: Round,
        transactions: CleanedTransactions,
        figures: Figures,
        target: Target,
        *,
        legacy_tombstones: bool,
        superseded: Superseded | None = None,
    ) -> None:
        """``transactions``: one for all segments of a round, in order, as are the ``figures``.

        ``superseded``: who has it needs of the map no more than its ``latest_offset``.
        """
        self._facts = facts
        self._transactions = transactions
        self._figures = figures
        self._target = target
        self._keeper = Keeper(
            offset_map,
            now_ms=facts.now_ms,
            horizon_ms=facts.horizon_ms,
            special=facts.special,
            legacy_tombstones=legacy_tombstones,
            superseded=superseded,
        )

    def run(self, data: memoryview, at: int, end: int) -> int:
        at = self._keeper.keep_batches(data, at, end)
        if self._keeper.pending >= WINDOW_BYTES:
            self._write()
        return at

    def one(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        if header.is_control:
            self._control(stored, plain, header)
        elif self._transactions.is_aborted(header):
            self._figures.records_read += header.records_count
            self._figures.records_aborted += header.records_count
            self._keep_empty(header)
        else:
            self._data(stored, plain, header)
        if self._keeper.pending >= WINDOW_BYTES:
            self._write()

    def _data(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        _, kept, rewritten = self._keeper.keep_one(plain, legacy=header.magic < MAGIC)
        if not kept:
            self._keep_empty(header)
        elif rewritten is None:
            self._keeper.append(stored)
        else:
            self._figures.rewritten += header.magic < MAGIC
            self._keeper.append(recompress(rewritten, header.codec))

    def _control(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        self._figures.records_read += header.records_count
        can_go = self._transactions.can_go(header, marker_of(plain, header))
        horizon = header.delete_horizon
        if not header.records_count:
            self._keep_empty(header)
        elif can_go and horizon is not None and horizon <= self._facts.now_ms:
            self._figures.markers += 1
            self._keep_empty(header)
        else:
            self._figures.records_kept += header.records_count
            if can_go and horizon is None:
                self._figures.rewritten += 1
                self._keeper.append(_with_horizon(plain, header, self._facts.horizon_ms))
            else:
                self._keeper.append(stored)

    def _keep_empty(self, header: BatchHeader) -> None:
        """A batch without its records, where it has to stay; the old formats know no such."""
        if header.magic == MAGIC and self._facts.stays_empty(header):
            self._keeper.append(_emptied(header))

    def _write(self) -> None:
        data, entries = self._keeper.take()
        if entries:
            self._figures.bytes_kept += len(data)
            self._target.append(data, entries, self._transactions.take_index())

    def end(self) -> None:
        """The segment is through: write what is left of it."""
        self._write()
        figures, keeper = self._figures, self._keeper
        figures.records_read += keeper.records_read
        figures.records_kept += keeper.records_kept
        figures.records_invalid += keeper.records_invalid
        # One that stays may have got its horizon.
        figures.rewritten += keeper.tombstones_kept


def marker_of(plain: bytearray, header: BatchHeader) -> Marker | None:
    return parse_marker(plain) if header.records_count else None


def _emptied(header: BatchHeader) -> bytes:
    """The header alone (``DefaultRecordBatch.writeEmptyHeader``)."""
    return pack(
        header._replace(
            attributes=header.attributes & ~(CODEC_BITS | DELETE_HORIZON_BIT),
            base_timestamp=NO_TIMESTAMP,
            records_count=0,
        ),
        b"",
    )


def _with_horizon(plain: bytearray, header: BatchHeader, horizon_ms: int) -> bytes:
    """A control batch that may go from ``horizon_ms`` on."""
    records = encode_records(decode_plain(plain), header.base_offset, horizon_ms)
    attributes = header.attributes | DELETE_HORIZON_BIT
    return pack(header._replace(attributes=attributes, base_timestamp=horizon_ms), records)
