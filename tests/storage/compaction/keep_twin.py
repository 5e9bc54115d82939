"""A plain-Python twin of `storage.compaction._keep`, and Hypothesis strategies for logs to clean.

The twin is written from the rules (Cleaner.shouldRetainRecord, MemoryRecords.filterTo and
buildRetainedRecordsInto) and shares no code with the original. Its map is a dict, its records are
rows, and it encodes every new batch as a whole. The bytes are the same as Kafka's.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from storage.compaction._keep import Keeper
from storage.compaction._offset_map import OffsetMap
from tests import oracle
from tests.made_logs import TIMESTAMP, blobs, deltas, headers

APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 0x08, 0x10, 0x20, 0x40

NOW = TIMESTAMP
NEW_HORIZON = TIMESTAMP + 86_400_000


def wrapped(number: int) -> int:
    """As Java's numbers of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def seal(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", oracle.crc32c(batch[21:])) + batch[21:]


@dataclass
class TwinMap:
    """The key map: offsets by key, and how far they go."""

    usable: int
    offsets: dict[bytes, int] = field(default_factory=dict)
    latest_offset: int = -1

    def add_batch(self, log: bytes, batch: oracle.Batch, first_offset: int) -> bool:
        """Note a batch's keys; True where the map is full (Cleaner.buildOffsetMapForSegment)."""
        for _, row in oracle.rows(log, batch):
            offset = batch.base_offset + row.offset_delta
            if row.key is not None and offset >= first_offset:
                if len(self.offsets) >= self.usable:
                    return True
                self.offsets[row.key] = self.latest_offset = offset
        if batch.last_offset >= first_offset:
            self.latest_offset = batch.last_offset
        return False

    def add_log(self, log: bytes, first_offset: int) -> tuple[int, bool]:
        """The position of the first batch that is not simple, or for which there is no room."""
        for batch in oracle.walk(log):
            if not is_simple(batch):
                return batch.position, False
            if self.add_batch(log, batch, first_offset):
                return batch.position, True
        return len(log), False


def is_simple(batch: oracle.Batch) -> bool:
    return batch.attributes & (7 | TRANSACTIONAL | CONTROL) == 0


@dataclass
class Figures:
    read: int = 0
    kept: int = 0
    invalid: int = 0
    tombstones: int = 0


@dataclass
class Twin:
    """The twin of `Keeper`: it chooses the records that stay, by a map."""

    map: TwinMap
    now_ms: int = NOW
    horizon_ms: int = NEW_HORIZON
    legacy_tombstones: bool = True
    figures: Figures = field(default_factory=Figures)

    def retains(self, batch: oracle.Batch, row: oracle.Row, legacy: bool) -> bool:
        offset = batch.base_offset + row.offset_delta
        if offset > self.map.latest_offset:
            return True
        if row.key is None:
            self.figures.invalid += 1
            return False
        if legacy:
            deletes_stay = self.legacy_tombstones
        else:
            deletes_stay = not batch.attributes & HORIZON or self.now_ms < batch.base_timestamp
        newest = offset >= self.map.offsets.get(row.key, -1)
        return newest and (row.value is not None or deletes_stay)

    def keep(self, log: bytes, batch: oracle.Batch, *, legacy: bool = False) -> bytes | None:
        """The batch that stays: empty where none does, None where all of it does as it is."""
        rows = [row for _, row in oracle.rows(log, batch)]
        kept = [row for row in rows if self.retains(batch, row, legacy)]
        tombstones = sum(row.value is None for row in kept)
        self.figures.read += len(rows)
        self.figures.kept += len(kept)
        self.figures.tombstones += tombstones
        if not kept:
            return b""
        sets_horizon = tombstones > 0 and not batch.attributes & HORIZON
        if len(kept) == len(rows) and not sets_horizon and not legacy:
            return None

        def timestamp(row: oracle.Row) -> int:
            if batch.attributes & APPEND_TIME:
                return batch.max_timestamp
            return wrapped(batch.base_timestamp + row.timestamp_delta)

        base_offset, last_offset = batch.base_offset, batch.last_offset
        if legacy:
            base_offset += kept[0].offset_delta
            last_offset = batch.base_offset + kept[-1].offset_delta
        attributes = batch.attributes | (HORIZON if tombstones else 0)
        base_timestamp = timestamp(kept[0])
        if sets_horizon:
            base_timestamp = self.horizon_ms
        elif attributes & HORIZON:
            base_timestamp = batch.base_timestamp
        records = b"".join(
            oracle.put_row(
                oracle.Row(
                    wrapped(timestamp(row) - base_timestamp),
                    batch.base_offset + row.offset_delta - base_offset,
                    row.key,
                    row.value,
                    row.headers,
                )
            )
            for row in kept
        )
        made = oracle.put_batch(
            records,
            len(kept),
            base_offset=base_offset,
            leader_epoch=batch.leader_epoch,
            attributes=attributes,
            last_offset_delta=last_offset - base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max(map(timestamp, kept)),
        )
        # The producer's fields are the batch's own.
        producer = log[batch.position + 43 : batch.position + 57]
        return seal(made[:43] + producer + made[57:])


# -- ours beside it ------------------------------------------------------------------------------

LARGE = 1 << 16
Entries = list[tuple[int, int, int, int]]


def map_of(twin: TwinMap) -> OffsetMap:
    """The same as a map of ours."""
    made = OffsetMap(LARGE)
    for key, offset in twin.offsets.items():
        made.put(key, offset)
    made.latest_offset = twin.latest_offset
    return made


def keeper_of(twin: Twin, special: Iterable[int] = ()) -> Keeper:
    return Keeper(
        map_of(twin.map),
        now_ms=twin.now_ms,
        horizon_ms=twin.horizon_ms,
        special=sorted(special),
        legacy_tombstones=twin.legacy_tombstones,
    )


def taken(keeper: Keeper) -> tuple[bytes, Entries]:
    pending = keeper.pending
    data, entries = keeper.take()
    assert len(data) == pending
    assert keeper.pending == 0
    return bytes(data), entries


def figures(keeper: Keeper) -> Figures:
    return Figures(
        keeper.records_read, keeper.records_kept, keeper.records_invalid, keeper.tombstones_kept
    )


def entries_of(log: bytes) -> Entries:
    return [
        (batch.position, batch.size, batch.last_offset, batch.max_timestamp)
        for batch in oracle.walk(log)
    ]


# -- logs to clean -------------------------------------------------------------------------------

# Few, so that most come several times; with lengths for each way through the hash.
KEYS = [None, b"", b"a", b"b", b"seven..", b"eight...", b"nine.....", b"k" * 16, b"k" * 70]


@st.composite
def rows(draw: st.DrawFn, number: int) -> oracle.Row:
    return oracle.Row(
        draw(deltas | st.just(0)),
        number,
        draw(st.sampled_from(KEYS)),
        draw(st.none() | st.just(b"value") | blobs),
        draw(headers),
    )


def many_rows(count: int, seed: int) -> list[oracle.Row]:
    """More than one go of the loops takes."""
    random_ = random.Random(seed)
    return [
        oracle.Row(
            random_.randrange(-5, 200),
            number,
            random_.choice([None, *(b"%d" % random_.randrange(count) for _ in range(9))]),
            random_.choice([None, *[b"v" * random_.randrange(200)] * 9]),
        )
        for number in range(count)
    ]


@st.composite
def one_batch(draw: st.DrawFn, offset: int, attributes: int) -> bytes:
    """As producers make them, and as earlier cleanings leave them: offsets with gaps, no records,
    a delete horizon.
    """
    number = draw(st.sampled_from([0, 0, 1, 62, 8190]))
    records: list[oracle.Row] = []
    if draw(st.integers(0, 7)) == 0:
        records = many_rows(draw(st.integers(60, 200)), draw(st.integers(0, 9)))
        number = len(records)
    else:
        for _ in range(draw(st.integers(0, 6))):
            records.append(draw(rows(number)))
            number += draw(st.sampled_from([1, 1, 2, 64]))
    near = TIMESTAMP + draw(st.integers(-2, 2))
    base_timestamp = draw(st.sampled_from([near, near, -1, 0, -5, 2**63 - 1, -(2**63)]))
    batch = oracle.put_batch(
        b"".join(map(oracle.put_row, records)),
        len(records),
        base_offset=offset,
        leader_epoch=draw(st.integers(-1, 3)),
        attributes=attributes | draw(st.sampled_from([0, 0, APPEND_TIME, HORIZON, 0x48])),
        last_offset_delta=max(number - 1, 0) + draw(st.integers(0, 1)),
        base_timestamp=base_timestamp,
        max_timestamp=TIMESTAMP + draw(st.integers(-5, 5)),
    )
    if draw(st.booleans()):
        producer = struct.pack(">qhi", draw(st.integers(0, 9)), 3, draw(st.integers(0, 99)))
        batch = seal(batch[:43] + producer + batch[57:])
    return batch


@st.composite
def logs(draw: st.DrawFn, max_batches: int = 6) -> bytes:
    """Simple batches, one after the other."""
    offset = draw(st.sampled_from([0, 0, 7, 1 << 40, 2**63 - (1 << 20)]))
    log = b""
    for _ in range(draw(st.integers(0, max_batches))):
        batch = draw(one_batch(offset, 0))
        log += batch
        offset += next(oracle.walk(batch)).last_offset_delta + 1 + draw(st.integers(0, 2))
    return log
