"""The state of each producer of a partition, and the open transactions.

An idempotent producer numbers its records, and a batch has the numbers of its records. By a
producer's last batches, the next one is new, a duplicate, or after a gap; by its epoch, it may be
fenced off; its markers end its transactions. Rules: `ProducerStateManager.java`,
`ProducerAppendInfo.java`, `ProducerStateEntry.java`.

Sequences are numbers from 0 to 2^31 - 1, after which comes 0; -1 is none: a coordinator's records
in `__consumer_offsets` are transactional and have no sequence.

`.snapshot`, big-endian: version i16 = 1, CRC-32C u32 of all following bytes, count i32, then per
producer 46 bytes: producer id i64, epoch i16, last sequence i32, last offset i64 (-1: none), offset
delta i32, timestamp i64 in ms, coordinator epoch i32 (-1: none), first offset of its open
transaction i64 (-1: none). The file's name is the offset up to which, exclusive, it is valid; it
has only the last batch of each producer.

Producers and batches are immutable and their dictionary is read with one lookup, so that other
threads may read. Not here: when snapshots are written and read (`log.snapshots`,
`recovery.producers`), the reaction of an append (`log.append`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from storage import paths
from storage.errors import (
    CorruptCheckpoint,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
)
from storage.files import LARGEST_WHOLE, Files
from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT, encode_marker
from storage.record.crc import crc32c
from storage.record.header import CONTROL_BIT, TRANSACTIONAL_BIT

VERSION = 1
_HEAD = Struct(">hIi")
_COUNT_AT = 6
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")

MAX_SEQUENCE = 2**31 - 1
# The remembered batches of a producer: a client has no more of them in flight.
BATCHES_KEPT = 5


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence after `count` more records (`DefaultRecordBatch.incrementSequence`)."""
    return (sequence + count) & MAX_SEQUENCE


class ProducerEntry(NamedTuple):
    """One producer's last batch and open transaction, as a snapshot has them."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class ProducerBatch(NamedTuple):
    """The producer's fields of a stored batch; `position` in bytes.

    `marker_type`: 0 ABORT, 1 COMMIT, -1 for any other batch.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    max_timestamp: int
    position: int
    marker_type: int = -1
    coordinator_epoch: int = -1

    @property
    def counts(self) -> bool:
        """Whether it has a producer, and is no control batch except a marker."""
        return self.producer_id >= 0 and (
            self.marker_type >= 0 or not self.attributes & CONTROL_BIT
        )

    @property
    def is_transactional_data(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT) and not self.attributes & CONTROL_BIT

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return -1
        return sequence_after(self.base_sequence, self.last_offset - self.base_offset)


class WrittenBatch(NamedTuple):
    """One of the last batches of a producer. `offset_delta`: its last offset - its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return sequence_after(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer(NamedTuple):
    """One producer; `batches` has the oldest first. Offsets and epochs are -1 where none."""

    producer_id: int
    epoch: int
    batches: tuple[WrittenBatch, ...] = ()
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """The offset of its last record that is no marker."""
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def in_transaction(self) -> bool:
        return self.transaction_first_offset >= 0

    def marker(self, kind: int, offset: int, timestamp_ms: int, leader_epoch: int) -> bytearray:
        """Return the marker, ABORT or COMMIT, that ends its transaction at `offset`, as a batch."""
        return encode_marker(
            kind,
            producer_id=self.producer_id,
            epoch=self.epoch,
            coordinator_epoch=max(self.coordinator_epoch, 0),
            offset=offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=leader_epoch,
        )

    def duplicate(self, batch: ProducerBatch) -> WrittenBatch | None:
        """Return the batch that this one repeats (`ProducerStateEntry.findDuplicateBatch`)."""
        if batch.producer_epoch == self.epoch and batch.base_sequence >= 0:
            for written in self.batches:
                if (
                    written.first_sequence == batch.base_sequence
                    and written.last_sequence == batch.last_sequence
                ):
                    return written
        return None

    def after(self, batch: ProducerBatch) -> Producer:
        """Return the producer's state after this batch."""
        earlier = self.batches if batch.producer_epoch == self.epoch else ()
        if batch.marker_type >= 0:
            return Producer(
                self.producer_id,
                batch.producer_epoch,
                earlier,
                batch.max_timestamp,
                batch.coordinator_epoch,
            )
        written = WrittenBatch(
            batch.last_sequence,
            batch.last_offset,
            batch.last_offset - batch.base_offset,
            batch.max_timestamp,
        )
        first_offset = self.transaction_first_offset
        if first_offset < 0 and batch.attributes & TRANSACTIONAL_BIT:
            first_offset = batch.base_offset
        return Producer(
            self.producer_id,
            batch.producer_epoch,
            (*earlier[1 - BATCHES_KEPT :], written),
            batch.max_timestamp,
            self.coordinator_epoch,
            first_offset,
        )

    def check(self, batch: ProducerBatch, *, follows: bool) -> None:
        """Check that a batch may come next (`ProducerAppendInfo.maybeValidateDataBatch`).

        `follows`: a gap before it is known to be valid. Errors: InvalidProducerEpoch,
        OutOfOrderSequence, InvalidTxnState.
        """
        if batch.producer_epoch < self.epoch:
            raise InvalidProducerEpoch(
                f"epoch {batch.producer_epoch} is fenced, the current epoch is {self.epoch}",
                self.producer_id,
            )
        if batch.marker_type >= 0:
            if batch.coordinator_epoch < self.coordinator_epoch:
                raise InvalidTxnState(
                    f"marker with coordinator epoch {batch.coordinator_epoch} after one with "
                    f"epoch {self.coordinator_epoch}",
                    self.producer_id,
                )
            return
        if self.in_transaction and not batch.attributes & TRANSACTIONAL_BIT:
            raise InvalidTxnState(
                "non-transactional batch while a transaction is open, from offset "
                f"{self.transaction_first_offset}",
                self.producer_id,
            )
        if batch.base_sequence < 0:
            return
        if batch.producer_epoch != self.epoch:
            expected = 0
        else:
            expected = sequence_after(self.last_sequence, 1)
        gap = (batch.base_sequence - expected) & MAX_SEQUENCE
        # A sequence more than half of all sequences ahead is in the past: an old batch again.
        if gap and not (follows and gap <= MAX_SEQUENCE // 2):
            raise OutOfOrderSequence(
                f"sequence {batch.base_sequence} of epoch {batch.producer_epoch}, but expected "
                f"{expected}",
                self.producer_id,
            )

    def entry(self) -> ProducerEntry:
        """Return the entry of a snapshot."""
        last = self.batches[-1] if self.batches else WrittenBatch(-1, -1, 0, -1)
        return ProducerEntry(
            *(self.producer_id, self.epoch),
            *(last.last_sequence, last.last_offset, last.offset_delta),
            *(self.timestamp, self.coordinator_epoch, self.transaction_first_offset),
        )

    @classmethod
    def from_entry(cls, entry: ProducerEntry) -> Producer:
        """Return the producer of a snapshot's entry."""
        producer_id, epoch, sequence, offset, delta, timestamp, *rest = entry
        last = (WrittenBatch(sequence, offset, delta, timestamp),) if offset >= 0 else ()
        return cls(producer_id, epoch, last, timestamp, *rest)


class ProducerState:
    """Every producer of a partition, by id, at the log's end. One thread changes it."""

    __slots__ = ("_open", "by_id", "first_undecided_offset")

    def __init__(self, producers: Iterable[Producer] = ()) -> None:
        self.by_id: dict[int, Producer] = {}
        # The first offset of every open transaction, by producer id.
        self._open: dict[int, int] = {}
        # The smallest of those; None: no transaction is open.
        self.first_undecided_offset: int | None = None
        for producer in producers:
            self.put(producer)

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self.by_id.values()))

    def put(self, producer: Producer) -> None:
        """Store this as the producer's state."""
        self.by_id[producer.producer_id] = producer
        first = producer.transaction_first_offset
        if first >= 0:
            if self._open.get(producer.producer_id) == first:
                return
            self._open[producer.producer_id] = first
        elif self._open.pop(producer.producer_id, -1) < 0:
            return
        self.first_undecided_offset = min(self._open.values(), default=None)

    def apply(self, batch: ProducerBatch) -> TxnEntry | None:
        """Add a batch of the log; return the transaction index's entry if it aborts a transaction.

        Refuses nothing: it is in the log already (`ProducerStateManager.loadProducers`).
        """
        if batch.marker_type == ABORT:
            update = ProducerUpdate(self)
            update.add(batch)
            update.commit()
            return update.aborted[0] if update.aborted else None
        if batch.counts:
            before = self.by_id.get(batch.producer_id)
            if before is None:
                before = Producer(batch.producer_id, batch.producer_epoch)
            self.put(before.after(batch))
        return None

    @property
    def undecided_offsets(self) -> Iterable[int]:
        """The first offset of every open transaction."""
        return self._open.values()

    def first_undecided_without(self, producer_ids: Iterable[int]) -> int | None:
        """Return the first offset of the oldest transaction of another producer, or None."""
        left_out = set(producer_ids)
        return min((o for p, o in self._open.items() if p not in left_out), default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers without a batch for that long, unless their transaction is open."""
        for producer in list(self.by_id.values()):
            if not producer.in_transaction and now_ms - producer.timestamp >= expiration_ms:
                del self.by_id[producer.producer_id]

    # -- snapshots -----------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the bytes of a snapshot."""
        if not self.by_id:
            return EMPTY_SNAPSHOT
        return encode(producer.entry() for producer in self.by_id.values())

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> ProducerState:
        """Return the state in a snapshot. Errors: those of `decode`."""
        if data == EMPTY_SNAPSHOT:
            return cls()
        return cls(Producer.from_entry(entry) for entry in decode(data, path=path))


class ProducerUpdate:
    """The producers' state after batches that are about to be appended (`ProducerAppendInfo`).

    `batches`: those added, in order. `aborted`: the transaction index's entries of the transactions
    that they abort.
    """

    __slots__ = ("_changed", "_state", "aborted", "batches")

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._changed: dict[int, Producer] = {}
        self.aborted: list[TxnEntry] = []
        self.batches: list[ProducerBatch] = []

    def get(self, producer_id: int) -> Producer | None:
        """Return the producer after the batches added so far; None: it is unknown."""
        return self._changed.get(producer_id) or self._state.by_id.get(producer_id)

    def add(self, batch: ProducerBatch) -> None:
        """Add the next batch, with the offsets that it will have; the caller has checked it."""
        self.batches.append(batch)
        if not batch.counts:
            return
        before = self.get(batch.producer_id) or Producer(batch.producer_id, batch.producer_epoch)
        self._changed[batch.producer_id] = before.after(batch)
        if batch.marker_type == ABORT and before.in_transaction:
            self.aborted.append(
                TxnEntry(
                    batch.producer_id,
                    before.transaction_first_offset,
                    batch.last_offset,
                    self._stable_behind(batch),
                )
            )

    def _stable_behind(self, marker: ProducerBatch) -> int:
        """Return the first offset of the oldest open transaction of another producer, else the
        offset after the marker (`ProducerStateManager.lastStableOffset`).
        """
        oldest = self._first_undecided_without(marker.producer_id)
        return marker.last_offset + 1 if oldest is None else oldest

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open after these batches, or None."""
        return self._first_undecided_without(-1)

    def _first_undecided_without(self, producer_id: int) -> int | None:
        oldest = self._state.first_undecided_without({*self._changed, producer_id})
        for producer in self._changed.values():
            if producer.in_transaction and producer.producer_id != producer_id:
                first = producer.transaction_first_offset
                oldest = first if oldest is None else min(oldest, first)
        return oldest

    def commit(self) -> None:
        """Store the new state: the batches are in the log."""
        for producer in self._changed.values():
            self._state.put(producer)


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of a snapshot of these producers."""
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    body = _COUNT.pack(len(packed) // _ENTRY.size) + packed
    return _HEAD.pack(VERSION, crc32c(body), 0)[:_COUNT_AT] + body


def decode(data: bytes, *, path: str) -> list[ProducerEntry]:
    """Return the entries of a snapshot, whose file at `path` has its offset as name. Errors:
    CorruptCheckpoint, with `path`: also if it is the snapshot of a later offset.

    A corrupt snapshot is no loss: it is rebuilt from the next older one and the log.
    """
    if len(data) < _HEAD.size:
        raise CorruptCheckpoint(f"{len(data)} bytes are too few for a producer snapshot", path=path)
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptCheckpoint(f"unknown producer snapshot version {version}", path=path)
    if crc32c(data[_COUNT_AT:]) != crc:
        raise CorruptCheckpoint("the checksum of the producer snapshot is wrong", path=path)
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptCheckpoint(
            f"{count} producers do not fit into a producer snapshot of {len(data)} bytes", path=path
        )
    entries = [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :])]
    offset = paths.base_offset_of(os.path.basename(path))
    for entry in entries:
        last_offset = max(entry.last_offset, entry.transaction_first_offset)
        if offset is not None and last_offset >= offset:
            reason = (
                f"offset {last_offset} of producer {entry.producer_id} is beyond the offset of "
                "the snapshot"
            )
            raise CorruptCheckpoint(reason, path=path)
    return entries


EMPTY_SNAPSHOT = encode(())


def read(files: Files, path: str) -> tuple[bytes, int]:
    """Read as many bytes of a snapshot as its count requires; return them, and the number of other
    bytes. Errors: OSError.
    """
    with files.held_open(path) as fd:
        # Most snapshots are empty.
        data = files.pread(fd, _HEAD.size + 1, 0)
        if len(data) <= _HEAD.size:
            return data, 0
        size, (count,) = files.size(fd), _COUNT.unpack_from(data, _COUNT_AT)
        counted = min(_HEAD.size + max(count, 0) * _ENTRY.size, size, LARGEST_WHOLE)
        return files.pread(fd, counted, 0), size - counted
