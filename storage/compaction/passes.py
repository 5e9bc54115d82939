"""The two passes of a cleaner over a log: the first collects keys, the second keeps records.

Runs of ordinary batches are handled by the loops of `_keep`. Where a loop stops, a pass takes a
single batch: a compressed or old one, one of a transaction, a control batch, or one that may have
to stay though it is empty. The rules are those of `Cleaner.buildOffsetMap`, `Cleaner.cleanInto` and
`MemoryRecords.filterTo`.

Not here: the choice and grouping of segments (`sources`, `cleaner`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from storage.compaction._keep import Keeper, map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.compaction.group_writer import GroupWriter
from storage.compaction.transactions import CleanedTransactions
from storage.errors import CorruptRecord, InvalidRecord
from storage.index.txn_index import TxnEntry
from storage.record.batch import decode_plain, encode_records
from storage.record.control import Marker, parse_marker
from storage.record.header import (
    CODEC_BITS,
    DELETE_HORIZON_BIT,
    FRAME_SIZE,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    pack,
    parse_header,
    size_at,
)
from storage.record.plain import recompress
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.walk import Buffered, Walk
from storage.settings.config import LONG_MAX
from storage.task import Task

WINDOW_BYTES = 1 << 20
"""Bytes of a log that are read at a time, and about as many of the new one are written at once."""


class Pass(Protocol):
    """Takes the batches of a log, one after the other, until it is `finished`."""

    finished: bool

    def run(self, data: memoryview, at: int, end: int) -> int:
        """Take batches from `data[at:end]`; return the position of the first that it leaves."""

    def take_batch(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        """Take one batch, as it is stored and in plain form; `header` is the stored one."""


def walk(segment: Segment, position: int, taker: Pass, task: Task) -> None:
    """Let a pass take all batches of a segment from `position` on, where a batch begins. Errors:
    CorruptRecord and InvalidRecord with path and position, TaskCancelled, OSError.
    """

    reader = SegmentReader(segment)

    def fill(view: memoryview, at: int) -> int:
        # `_take` checks the CRC of each batch.
        read = reader.window if segment.damages else reader.raw
        return read(view, at)

    log = Walk(Buffered(fill).read, position, segment.size, WINDOW_BYTES)
    for data in log:
        taken = _take(segment, data, log.position, taker)
        log.position += taken
        task.advance(taken)
        if taker.finished:
            return
    if log.position < segment.size:
        reason = "a batch is damaged or truncated"
        raise CorruptRecord(reason, path=segment.log_path, position=log.position)


def _take(segment: Segment, data: memoryview, position: int, taker: Pass) -> int:
    """Let a pass take the batches of a window, which lies at `position` of the segment's log.

    Return the position in the window of the first incomplete batch.
    """
    at, end = 0, len(data)
    while at < end and not taker.finished:
        at = taker.run(data, at, end)
        if end - at < FRAME_SIZE or taker.finished:
            break
        stop = end
        if data[at + MAGIC_POSITION] < MAGIC:
            # Each old message is a batch; `expand` would put several into one.
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
            try:
                taker.take_batch(stored, plain, parse_header(stored))
            except InvalidRecord as error:
                raise InvalidRecord(
                    error.message, path=segment.log_path, position=position + at
                ) from None
        at += size
    return at


class MapPass:
    """Puts the keys of the dirty part into the map (`Cleaner.buildOffsetMapForSegment`).

    `finished`: whether the pass needs no more batches.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        first_dirty_offset: int,
        aborted: Iterable[TxnEntry],
        most_bytes: int,
    ) -> None:
        """`most_bytes`: the topic's max.decompressed.message.bytes."""
        self.finished = False
        self._most_bytes = most_bytes
        self._map = offset_map
        self._first = first_dirty_offset
        self._transactions = CleanedTransactions()
        self._transactions.add_aborted(aborted)

    def run(self, data: memoryview, at: int, end: int) -> int:
        """Take ordinary batches from `data[at:end]`; return the position of the first other one.

        That batch may also be incomplete before `end`, or damaged.
        """
        at, self.finished = map_batches(self._map, data, at, end, self._first)
        return at

    def take_batch(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        """Take one batch, as it is stored and in plain form; `header` is the stored one. Errors:
        InvalidRecord: a record of a compressed batch is too large.
        """
        if header.is_control:
            self._transactions.may_be_dropped(header, marker_of(plain, header))
        elif not self._transactions.is_aborted(header):
            check_record_sizes(plain, header, self._most_bytes)
            self.finished = map_batch(self._map, plain, self._first)
        last = parse_header(plain).last_offset
        if not self.finished and last >= self._first:
            self._map.latest_offset = last


class ProducerRecord(NamedTuple):
    """The batch of a producer that a cleaner keeps even if it drops all records of it.

    It is the producer's last data batch, which ends at `last_offset`; with `last_offset` -1, a
    control batch of its `epoch`.
    """

    last_offset: int
    epoch: int


class KeepRules(NamedTuple):
    """The rules that do not depend on keys; times in ms since 1970."""

    now_ms: int
    delete_retention_ms: int
    high_watermark: int
    """The end of the log when the round began (`CleanableRange.high_watermark`)."""
    producers: Mapping[int, ProducerRecord]
    most_bytes: int
    """The topic's max.decompressed.message.bytes."""
    legacy_horizon_ms: int = 0
    """Tombstones of v0 and v1 stay in segments that were written later than this."""

    @property
    def horizon_ms(self) -> int:
        """The delete horizon that a batch gets now."""
        return min(self.now_ms + self.delete_retention_ms, LONG_MAX)

    @property
    def special(self) -> list[int]:
        """The last offsets of data batches for which `stays_empty` may be true, ascending."""
        ends = {each.last_offset for each in self.producers.values() if each.last_offset >= 0}
        return sorted(ends | {self.high_watermark - 1})

    def stays_empty(self, batch: BatchHeader) -> bool:
        """Return whether a batch has to stay though all its records were dropped."""
        if batch.last_offset + 1 == self.high_watermark:
            return True
        if batch.producer_id < 0:
            return False
        producer = self.producers.get(batch.producer_id)
        if producer is None:
            return False
        if producer.last_offset >= 0:
            return batch.last_offset == producer.last_offset
        return batch.is_control and batch.producer_epoch == producer.epoch


class KeepPass:
    """Writes the kept records of the segments of a round, one segment after the other
    (`Cleaner.cleanInto`).

    `writer`: writes them; None: they are only counted.
    """

    finished = False

    def __init__(
        self, offset_map: OffsetMap, rules: KeepRules, transactions: CleanedTransactions
    ) -> None:
        self.writer: GroupWriter | None = None
        self.transactions = transactions
        self._rules = rules
        self._records_aborted = self._markers = self._rewritten = self._bytes_kept = 0
        self._keeper = Keeper(
            offset_map,
            now_ms=rules.now_ms,
            horizon_ms=rules.horizon_ms,
            special=rules.special,
        )

    def begin(self, segment: Segment) -> None:
        """Begin a segment: the next batches belong to it."""
        mtime_ms = segment.mtime_ns // 1_000_000
        self._keeper.legacy_tombstones = mtime_ms > self._rules.legacy_horizon_ms

    def run(self, data: memoryview, at: int, end: int) -> int:
        at = self._keeper.keep_batches(data, at, end)
        if self._keeper.pending >= WINDOW_BYTES:
            self.end()
        return at

    def take_batch(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        if header.is_control:
            self._control(stored, plain, header)
        elif self.transactions.is_aborted(header):
            self._keeper.records_read += header.records_count
            self._records_aborted += header.records_count
            self._keep_empty(header)
        else:
            self._data(stored, plain, header)
        if self._keeper.pending >= WINDOW_BYTES:
            self.end()

    def _data(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        check_record_sizes(plain, header, self._rules.most_bytes)
        _, kept, rewritten = self._keeper.keep_one(plain, legacy=header.magic < MAGIC)
        if not kept:
            self._keep_empty(header)
        elif rewritten is None:
            self._keeper.append(stored)
        else:
            self._rewritten += header.magic < MAGIC
            self._keeper.append(recompress(rewritten, header.codec))

    def _control(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        self._keeper.records_read += header.records_count
        may_be_dropped = self.transactions.may_be_dropped(header, marker_of(plain, header))
        horizon = header.delete_horizon
        if not header.records_count:
            self._keep_empty(header)
        elif may_be_dropped and horizon is not None and horizon <= self._rules.now_ms:
            self._markers += 1
            self._keep_empty(header)
        else:
            self._keeper.records_kept += header.records_count
            if may_be_dropped and horizon is None:
                self._rewritten += 1
                self._keeper.append(_with_horizon(plain, header, self._rules.horizon_ms))
            else:
                self._keeper.append(stored)

    def _keep_empty(self, header: BatchHeader) -> None:
        """Keep a batch without its records if it has to stay; old formats have no such batch."""
        if header.magic == MAGIC and self._rules.stays_empty(header):
            self._keeper.append(_emptied(header))

    def end(self) -> None:
        """Write the rest of a segment."""
        data, entries = self._keeper.take()
        if entries:
            self._bytes_kept += len(data)
            aborted = self.transactions.take_index()
            if self.writer is not None:
                self.writer.append(data, entries, aborted)

    @property
    def figures(self) -> dict[str, int]:
        """The fields of `Cleaned` that are counted here."""
        keeper = self._keeper
        return {
            "records_read": keeper.records_read,
            "records_kept": keeper.records_kept,
            "records_invalid": keeper.records_invalid,
            "records_aborted": self._records_aborted,
            "markers": self._markers,
            # A tombstone that stays may have got its delete horizon.
            "rewritten": self._rewritten + keeper.tombstones_kept,
            "bytes_after": self._bytes_kept,
        }


def check_record_sizes(plain: bytearray, header: BatchHeader, most_bytes: int) -> None:
    """Check the sizes of the records of a compressed batch in plain form. Errors: InvalidRecord."""
    if not header.codec or len(plain) - HEADER_SIZE <= most_bytes:
        return
    at = HEADER_SIZE
    # The pass itself reports records that do not fit their batch.
    with contextlib.suppress(IndexError):
        while at < len(plain):
            # A zig-zag varint: the length of the record's body.
            size = 0
            for shift in range(0, 35, 7):
                byte = plain[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            size >>= 1
            if size > most_bytes:
                raise InvalidRecord(
                    f"a record of {size} bytes exceeds max.decompressed.message.bytes={most_bytes}"
                )
            at += size


def marker_of(plain: bytearray, header: BatchHeader) -> Marker | None:
    """Return the marker in a control batch; None if it is empty or ends no transaction."""
    return parse_marker(plain) if header.records_count else None


def _emptied(header: BatchHeader) -> bytes:
    """Return the header alone (`DefaultRecordBatch.writeEmptyHeader`)."""
    return pack(
        header._replace(
            attributes=header.attributes & ~(CODEC_BITS | DELETE_HORIZON_BIT),
            base_timestamp=NO_TIMESTAMP,
            records_count=0,
        ),
        b"",
    )


def _with_horizon(plain: bytearray, header: BatchHeader, horizon_ms: int) -> bytes:
    """Return a control batch that may be dropped from `horizon_ms` on."""
    records = encode_records(decode_plain(plain), header.base_offset, horizon_ms)
    attributes = header.attributes | DELETE_HORIZON_BIT
    return pack(header._replace(attributes=attributes, base_timestamp=horizon_ms), records)
