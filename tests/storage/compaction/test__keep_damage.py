"""storage.compaction._keep: what it must not believe, and nothing outside the data is read."""

from __future__ import annotations

import struct

import pytest

from storage.compaction._keep import map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.errors import CorruptRecord
from storage.record.batch import decode, encode
from storage.record.compression import ZSTD
from storage.record.control import ABORT, encode_marker
from storage.record.plain import recompress
from tests import oracle
from tests.guard_page import before_guard_page
from tests.storage.compaction.keep_twin import (
    CONTROL,
    LARGE,
    TRANSACTIONAL,
    Figures,
    Twin,
    TwinMap,
    figures,
    keeper_of,
    taken,
)
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    EMPTY_BATCH,
    REJECTED,
    THREE_RECORDS,
    V0_ENTRY,
    V1_ENTRY,
    T,
    record,
)


def row(key: bytes | None = b"k", value: bytes | None = b"v", number: int = 0) -> bytes:
    return oracle.put_row(oracle.Row(0, number, key, value))


MALFORMED = {
    **REJECTED,
    "no records said": oracle.put_batch(row(), 0),
    "a huge count": oracle.put_batch(row(), 2**31 - 1),
    "the least length": oracle.put_batch(oracle.put_varint(-(2**31)) + row()[1:], 1),
    "a timestamp without an end": oracle.put_batch(record(b"\0" + b"\xff" * 29), 1),
    "an offset after the last": oracle.put_batch(row(number=5), 1, last_offset_delta=4),
    "an offset before the first": oracle.put_batch(row(number=-1), 1),
    "a last offset before the first": oracle.put_batch(b"", 0, last_offset_delta=-1),
    "a negative offset": oracle.put_batch(row(), 1, base_offset=-1),
    "the largest offset": oracle.put_batch(row(), 1, base_offset=2**63 - 1),
    "an offset that wraps": oracle.put_batch(b"", 0, base_offset=2**63 - 3, last_offset_delta=5),
}


@pytest.mark.parametrize("good", [b"", THREE_RECORDS], ids=["first", "later"])
@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_batches(wrong: bytes, good: bytes) -> None:
    """Their CRC is right. The loops stop before them, and nobody gets a byte of them."""
    made = OffsetMap(LARGE)
    keeper = keeper_of(Twin(TwinMap(LARGE)))
    before = figures_of(good)
    for log in (good + wrong, good + wrong + THREE_RECORDS):
        with before_guard_page(log) as view:
            assert map_batches(made, view, 0, len(log), 0) == (len(good), False)
            assert keeper.keep_batches(view, 0, len(log)) == len(good)
        if good:
            keeper.take()
    assert figures(keeper) == Figures(*(2 * number for number in before))
    assert keeper.pending == 0
    with before_guard_page(wrong) as view:
        with pytest.raises(CorruptRecord):
            map_batch(made, view, 0)
        with pytest.raises(CorruptRecord):
            keeper.keep_one(view)
    assert keeper.pending == 0


def figures_of(good: bytes) -> tuple[int, int, int, int]:
    keeper = keeper_of(Twin(TwinMap(LARGE)))
    keeper.keep_batches(good, 0, len(good))
    found = figures(keeper)
    return found.read, found.kept, found.invalid, found.tombstones


@pytest.mark.parametrize(
    "other",
    [
        recompress(THREE_RECORDS, ZSTD),
        encode(decode(THREE_RECORDS), attributes=TRANSACTIONAL, producer_id=5, producer_epoch=0),
        bytes(encode_marker(ABORT, 7, 1, 3, 5, T, 0)),
        oracle.put_batch(b"", 0, attributes=CONTROL),
        V0_ENTRY,
        V1_ENTRY + bytes(61),
        THREE_RECORDS[:94],
        THREE_RECORDS[:60],
        THREE_RECORDS[:16] + b"\3" + THREE_RECORDS[17:],
        THREE_RECORDS[:8] + struct.pack(">i", 48) + THREE_RECORDS[12:],
        THREE_RECORDS[:8] + struct.pack(">i", -13) + THREE_RECORDS[12:],
        b"\0",
        bytes(70),
    ],
)
def test_it_stops_before_what_is_not_simple(other: bytes) -> None:
    log = THREE_RECORDS + other
    with before_guard_page(log) as view:
        assert map_batches(OffsetMap(LARGE), view, 0, len(log), 0) == (95, False)
        keeper = keeper_of(Twin(TwinMap(LARGE)))
        assert keeper.keep_batches(view, 0, len(log)) == 95
    out, entries = taken(keeper)
    assert len(entries) == 1
    assert decode(out) == decode(THREE_RECORDS)


@pytest.mark.parametrize(
    "other", [b"", V1_ENTRY, EMPTY_BATCH[:60], EMPTY_BATCH + b"\0", ABORT_MARKER, bytes(61)]
)
def test_what_is_no_plain_batch(other: bytes) -> None:
    with pytest.raises(CorruptRecord):
        map_batch(OffsetMap(LARGE), other, 0)
    with pytest.raises(CorruptRecord):
        keeper_of(Twin(TwinMap(LARGE))).keep_one(other)


def test_a_damaged_byte() -> None:
    """Base offset and leader epoch alone lie outside the CRC."""
    for at in range(len(THREE_RECORDS)):
        log = bytearray(THREE_RECORDS + EMPTY_BATCH)
        log[at] ^= 1
        outside = at < 8 or 12 <= at < 16
        with before_guard_page(log) as view:
            made = OffsetMap(LARGE)
            assert (map_batches(made, view, 0, len(log), 0)[0] >= 95) == outside, at
            keeper = keeper_of(Twin(TwinMap(LARGE)))
            assert (keeper.keep_batches(view, 0, len(log)) >= 95) == outside, at
        if not outside:
            assert len(made) == keeper.pending == keeper.records_read == 0, at


@pytest.mark.parametrize("size", range(7, 27))
def test_a_head_that_the_end_cuts_off(size: int) -> None:
    """The longest one there can be: it is not looked for behind the batch."""
    length = key = delta = b"\x80\x80\x80\x80\0"
    longest = length + b"\0" + b"\x80" * 9 + b"\0" + delta + key
    batch = oracle.put_batch(row() + longest[:size], 2)
    with before_guard_page(batch) as view:
        assert map_batches(OffsetMap(LARGE), view, 0, len(batch), 0) == (0, False)
        with pytest.raises(CorruptRecord):
            keeper_of(Twin(TwinMap(LARGE))).keep_one(view)


@pytest.mark.parametrize(("at", "end"), [(-1, 5), (5, 4), (0, 96), (96, 96)])
def test_positions_outside_the_data(at: int, end: int) -> None:
    with pytest.raises(ValueError, match="of a buffer of 95"):
        map_batches(OffsetMap(LARGE), THREE_RECORDS, at, end, 0)
    with pytest.raises(ValueError, match="of a buffer of 95"):
        keeper_of(Twin(TwinMap(LARGE))).keep_batches(THREE_RECORDS, at, end)
