"""storage.record._columns: the same rows as the plain twin, and the reader's rejections."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record._columns import Columns, decode_columns
from storage.record.plain import recompress
from tests import oracle
from tests.guard_page import before_guard_page
from tests.made_logs import MadeLog, damaged, logs
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    REJECTED,
    THREE_RECORDS,
    V0_ENTRY,
    V1_ENTRY,
    seal,
)
from tests.storage.record.test_batch import T as TIME


def numbers(column: bytearray) -> list[int]:
    return list(struct.unpack(f"={len(column) // 8}q", column))


def blobs(
    rows: int, positions: bytearray | None, block: bytearray | None, validity: bytearray | None
) -> list[bytes | None]:
    assert positions is not None
    assert block is not None
    assert validity is not None
    at = struct.unpack(f"={rows + 1}i", positions)
    assert at[0] == 0
    assert at[-1] == len(block)
    assert len(validity) == (rows + 7) // 8
    return [
        bytes(block[at[row] : at[row + 1]]) if validity[row // 8] >> row % 8 & 1 else None
        for row in range(rows)
    ]


def rows(columns: Columns) -> list[tuple[int, int, bytes | None, bytes | None]]:
    keys = blobs(columns.rows, columns.key_positions, columns.keys, columns.key_validity)
    values = blobs(columns.rows, columns.value_positions, columns.values, columns.value_validity)
    assert columns.key_nulls == keys.count(None)
    assert columns.value_nulls == values.count(None)
    table = zip(numbers(columns.offsets), numbers(columns.timestamps), keys, values, strict=True)
    return list(table)


@given(log=logs(), tail=st.integers(0, 60))
def test_every_record_is_a_row(log: MadeLog, tail: int) -> None:
    data = b"abc" + log.data + THREE_RECORDS[:tail]
    columns = decode_columns(data, 3, len(data) - 3)
    assert columns.consumed == len(log.data)
    assert rows(columns) == oracle.columns(log.data, 0, 2**63)


@given(log=logs(), first=st.integers(0, 40), count=st.integers(0, 40))
def test_only_offsets_asked_for(log: MadeLog, first: int, count: int) -> None:
    first += log.first_offset
    columns = decode_columns(log.data, 0, len(log.data), from_offset=first, to_offset=first + count)
    assert rows(columns) == oracle.columns(log.data, first, first + count)
    assert columns.consumed == len(log.data)


def test_only_columns_asked_for() -> None:
    columns = decode_columns(THREE_RECORDS, 0, 95, keys=False)
    assert (columns.keys, columns.key_positions, columns.key_validity) == (None, None, None)
    assert columns.values == bytearray(b"v1")
    columns = decode_columns(THREE_RECORDS, 0, 95, values=False)
    assert (columns.values, columns.value_positions, columns.value_validity) == (None, None, None)
    assert columns.keys == bytearray(b"k1k2")
    assert numbers(columns.timestamps) == [TIME, TIME + 5, TIME - 10]


def test_many_rows() -> None:
    row = b"".join(oracle.put_row(oracle.Row(n, n, b"%d" % n, b"x" * 99)) for n in range(1000))
    data = b"".join(oracle.put_batch(row, 1000, base_offset=n * 1000) for n in range(10))
    assert len(data) > 1 << 20  # the GIL is released
    assert rows(decode_columns(data, 0, len(data))) == oracle.columns(data, 0, 2**63)


@pytest.mark.parametrize("reason", REJECTED)
def test_reader_rejects(reason: str) -> None:
    data = THREE_RECORDS + REJECTED[reason]
    with pytest.raises(CorruptRecord) as caught:
        decode_columns(data, 0, len(data))
    assert caught.value.position == len(THREE_RECORDS)


@given(data=st.data(), log=logs(control=False))
def test_compressed_batches(data: st.DataObject, log: MadeLog) -> None:
    packed = b""
    for batch in oracle.walk(log.data):
        codec = data.draw(st.integers(0, 4))
        packed += recompress(log.data[batch.position : batch.end], codec)
    columns = decode_columns(b"abc" + packed + packed[:70], 3, len(packed))
    assert columns.consumed == len(packed)
    assert rows(columns) == oracle.columns(log.data, 0, 2**63)


def test_older_formats_and_transactions() -> None:
    sent = bytearray(THREE_RECORDS)
    sent[22] = 0x10
    message = (5, -1, b"k", b"hello")
    later = (5, TIME, b"k", b"hello")
    data = V0_ENTRY * 2 + seal(sent) + ABORT_MARKER + V1_ENTRY + recompress(THREE_RECORDS, 4)
    three = oracle.columns(THREE_RECORDS, 0, 2**63)
    for tail in (b"", V0_ENTRY):
        columns = decode_columns(data + tail, 0, len(data + tail))
        assert rows(columns) == [message, message, *three, later, *three] + [message] * bool(tail)
        assert columns.consumed == len(data + tail)
    assert rows(decode_columns(data, 0, len(data), from_offset=2, to_offset=5)) == three[2:] * 2
    columns = decode_columns(data, 0, len(data) - 1)
    assert columns.consumed == len(data) - len(recompress(THREE_RECORDS, 4))


def test_damaged_plain_form() -> None:
    packed = bytearray(recompress(REJECTED["key length -2"], 1))
    for damage, reason in ((packed, "key"), (packed[:-1] + b"x", "CRC")):
        data = b"12345" + THREE_RECORDS + damage
        with pytest.raises(CorruptRecord, match=reason) as caught:
            decode_columns(data, 5, len(data) - 5)
        assert caught.value.position == 5 + len(THREE_RECORDS)


def test_zeros_are_no_batches() -> None:
    with pytest.raises(CorruptRecord, match="length 0"):
        decode_columns(bytes(200), 0, 200)


def test_wrong_calls() -> None:
    for position, size in ((-1, 10), (0, 96), (90, 6), (0, -1), (1 << 62, 1 << 31)):
        with pytest.raises(ValueError, match="bytes"):
            decode_columns(THREE_RECORDS, position, size)


@given(data=damaged())
def test_damage_is_an_error_or_gives_rows(data: bytes) -> None:
    with before_guard_page(data) as view, contextlib.suppress(CorruptRecord):
        columns = decode_columns(view, 0, len(data))
        assert len(rows(columns)) == columns.rows
        assert columns.consumed <= len(data)
