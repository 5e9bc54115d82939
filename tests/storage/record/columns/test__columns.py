"""storage.record.columns._columns: the same rows as the plain twin, and the reader's rejections."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record.batch import Record, encode
from storage.record.columns._columns import AbortedSpans, Columns, VariableColumn, decode_columns
from storage.record.control import COMMIT, encode_marker
from storage.record.header import parse_header
from storage.record.plain import plain, recompress
from tests import oracle
from tests.guard_page import before_guard_page
from tests.made_logs import MadeLog, logs
from tests.storage.old_logs import wrapper
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


def blobs(rows: int, column: VariableColumn | None) -> list[bytes | None]:
    assert column is not None
    block, validity = column.block, column.validity
    assert validity is not None
    at = struct.unpack(f"={rows + 1}i", column.positions)
    assert at[0] == 0
    assert at[-1] == len(block)
    assert len(validity) == (rows + 7) // 8
    found = [
        bytes(block[at[row] : at[row + 1]]) if validity[row // 8] >> row % 8 & 1 else None
        for row in range(rows)
    ]
    assert column.nulls == found.count(None)
    return found


def rows(columns: Columns) -> list[tuple[int, int, bytes | None, bytes | None]]:
    keys = blobs(columns.rows, columns.keys)
    values = blobs(columns.rows, columns.values)
    table = zip(numbers(columns.offsets), numbers(columns.timestamps), keys, values, strict=True)
    return list(table)


@given(
    data=st.data(),
    log=logs(),
    tail=st.integers(0, 60),
    first=st.just(-1) | st.integers(0, 40),
    count=st.just(2**60) | st.integers(0, 40),
)
def test_every_record_of_the_offsets_is_a_row(
    data: st.DataObject, log: MadeLog, tail: int, first: int, count: int
) -> None:
    first += log.first_offset
    stored = b"".join(
        recompress(log.data[batch.position : batch.end], data.draw(st.integers(0, 4)))
        for batch in oracle.walk(log.data)
    )
    columns = decode_columns(
        b"abc" + stored + THREE_RECORDS[:tail],
        *(3, len(stored) + tail),
        from_offset=first,
        to_offset=first + count,
    )
    assert columns.consumed == len(stored)
    assert rows(columns) == oracle.columns(log.data, first, first + count)


def test_only_columns_asked_for() -> None:
    columns = decode_columns(THREE_RECORDS, 0, 95, keys=False)
    assert columns.keys is None
    assert columns.values is not None
    assert columns.values.block == bytearray(b"v1")
    columns = decode_columns(THREE_RECORDS, 0, 95, values=False)
    assert columns.values is None
    assert columns.keys is not None
    assert columns.keys.block == bytearray(b"k1k2")
    assert numbers(columns.timestamps) == [TIME, TIME + 5, TIME - 10]
    columns = decode_columns(
        THREE_RECORDS, 0, 95, offsets=False, timestamps=False, keys=False, values=False
    )
    assert columns.rows == 3
    assert not columns.offsets + columns.timestamps
    assert columns.headers is None
    assert columns.timestamp_types is None


def test_many_rows() -> None:
    records = [Record(n, n, 0, b"%d" % n, b"x" * 999) for n in range(1200)]
    data = bytes(encode(records[:600]) + encode(records[600:]))
    assert len(data) > 1 << 20  # the GIL is released
    assert rows(decode_columns(data, 0, len(data))) == oracle.columns(data, 0, 2**63)


@pytest.mark.parametrize("reason", REJECTED)
def test_reader_rejects(reason: str) -> None:
    data = THREE_RECORDS + REJECTED[reason]
    with pytest.raises(CorruptRecord) as caught:
        decode_columns(data, 0, len(data))
    assert caught.value.position == len(THREE_RECORDS)


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


# -- all that a source shows ---------------------------------------------------------------------


def shown(columns: Columns, unit: int = 1) -> list[oracle.Shown]:
    """The rows of columns that were all asked for; `unit`: of a timestamp, in ms."""
    assert columns.timestamp_types is not None
    types = struct.unpack(f"={columns.rows}i", columns.timestamp_types)
    out = []
    headers = header_lists(columns)
    for (offset, timestamp, key, value), type_, row in zip(
        rows(columns), types, headers, strict=True
    ):
        assert timestamp % unit == 0
        out.append(oracle.Shown(offset, timestamp // unit, type_, key, value, row))
    return out


def header_lists(columns: Columns) -> list[list[tuple[str, bytes | None]] | None]:
    headers, texts = columns.headers, columns.header_names
    assert headers is not None
    assert headers.validity is not None
    assert texts is not None
    count = columns.header_count
    at = struct.unpack(f"={columns.rows + 1}i", headers.positions)
    names_at = struct.unpack(f"={count + 1}i", texts.positions)
    contents = blobs(count, columns.header_values)
    assert (at[0], at[-1], names_at[0], names_at[-1]) == (0, count, 0, len(texts.block))
    names = [texts.block[a:b].decode() for a, b in pairwise(names_at)]
    assert len(headers.validity) == (columns.rows + 7) // 8
    lists: list[list[tuple[str, bytes | None]] | None] = []
    for row in range(columns.rows):
        found = list(zip(names, contents, strict=True))[at[row] : at[row + 1]]
        valid = headers.validity[row // 8] >> row % 8 & 1
        assert bool(valid) == bool(found)
        lists.append(found or None)
    assert headers.nulls == lists.count(None)
    return lists


def with_producers(data: st.DataObject, log: bytes) -> bytes:
    """The same batches, some of them of transactions, some compressed."""
    out = b""
    for batch in oracle.walk(log):
        stored = bytearray(log[batch.position : batch.end])
        if data.draw(st.booleans()):
            stored[43:51] = data.draw(st.integers(0, 2)).to_bytes(8, "big")
            stored[22] |= 0x10
        out += recompress(seal(stored), data.draw(st.sampled_from([0, 0, 0, 1, 4])))
    return out


EVERYTHING: dict[str, Any] = {"headers": True, "timestamp_types": True}
spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1100), st.integers(0, 400)).map(
        lambda span: (span[0], span[1], span[1] + span[2])
    ),
    max_size=3,
    unique_by=lambda span: span[0],
)


@given(
    data=st.data(), log=logs(), aborted=spans, first=st.integers(0, 40), count=st.integers(0, 99)
)
def test_all_that_a_source_shows(
    data: st.DataObject, log: MadeLog, aborted: list[tuple[int, int, int]], first: int, count: int
) -> None:
    first += log.first_offset
    made = with_producers(data, log.data)
    twin = b"".join(bytes(plain_of(made, at)) for at in starts(made))
    columns = decode_columns(
        made,
        0,
        len(made),
        from_offset=first,
        to_offset=first + count,
        aborted=AbortedSpans(aborted),
        **EVERYTHING,
    )
    assert shown(columns) == oracle.shown_records(twin, first, first + count, aborted)
    assert columns.consumed == len(made)
    assert columns.next_offset == (log.next_offset if log.data else -1)


def starts(log: bytes) -> list[int]:
    return [batch.position for batch in oracle.walk(log)]


def plain_of(log: bytes, at: int) -> bytearray:
    return plain(log, at, len(log))[0]


@given(data=st.data(), log=logs(), count=st.integers(0, 400))
def test_nothing_behind_the_end_is_looked_at(data: st.DataObject, log: MadeLog, count: int) -> None:
    to_offset = log.first_offset + count
    made = with_producers(data, log.data)
    # Batches begin where they do, whatever lies in them.
    needed = [batch for batch in oracle.walk(made) if batch.base_offset < to_offset]
    size = sum(batch.size for batch in needed)
    stored = made
    if needed and needed[-1].last_offset + 1 >= to_offset:
        stored = made[:size] + data.draw(st.sampled_from([b"", bytes(99), b"\xff" * 99, made]))
    columns = decode_columns(stored, 0, len(stored), to_offset=to_offset, stop=True, **EVERYTHING)
    whole = decode_columns(made, 0, len(made), to_offset=to_offset, **EVERYTHING)
    assert shown(columns) == shown(whole)
    assert columns.consumed == size
    assert columns.ended == (size < len(stored) or columns.next_offset >= to_offset)


def test_batches_that_end_in_the_offsets_are_counted_by_codec() -> None:
    record = Record(0, TIME, 0, None, b"value")
    stored: list[bytes | bytearray] = [
        oracle.put_message(oracle.Message(0, b"k", b"v", -1), 0),
        wrapper([oracle.Message(offset, None, b"v", 5) for offset in (1, 2)], 1, 2),
        encode([record._replace(offset=3), record._replace(offset=4)]),
        *(recompress(encode([record._replace(offset=4 + n)]), n) for n in (1, 3, 4)),
        encode_marker(COMMIT, 1, 0, 0, 9, 1, 0),
    ]
    data = b"".join(stored)
    codecs = [parse_header(each).codec for each in stored]
    columns = decode_columns(data, 0, len(data), stop=True)
    assert columns.batches == [codecs.count(codec) for codec in range(8)]
    columns = decode_columns(data, 0, len(data), from_offset=4, to_offset=9, stop=True)
    assert columns.batches == [1, 1, 0, 1, 1, 0, 0, 0]
    assert sum(decode_columns(data, 0, len(data)).batches) == 0


def test_timestamps_in_microseconds() -> None:
    columns = decode_columns(THREE_RECORDS, 0, 95, timestamps_us=True)
    assert numbers(columns.timestamps) == [TIME * 1000, TIME * 1000 + 5000, TIME * 1000 - 10000]
    latest = (2**63 - 1) // 1000
    for sign in (1, -1):
        row = oracle.put_row(oracle.Row(0, 3, None, b"x"))
        fits = oracle.put_batch(row, 1, base_timestamp=sign * latest, base_offset=40)
        columns = decode_columns(fits, 0, len(fits), timestamps_us=True)
        assert numbers(columns.timestamps) == [sign * latest * 1000]
        late = oracle.put_batch(row, 1, base_timestamp=sign * (latest + 1), base_offset=40)
        data = THREE_RECORDS + late
        assert numbers(decode_columns(data, 0, len(data)).timestamps)[3] == sign * (latest + 1)
        with pytest.raises(CorruptRecord, match=f"{sign * (latest + 1)} ms") as caught:
            decode_columns(data, 0, len(data), timestamps_us=True, offsets=False)
        assert (caught.value.position, caught.value.offset) == (len(THREE_RECORDS), 43)
        assert decode_columns(data, 0, len(data), timestamps_us=True, timestamps=False).rows == 4


def test_formats_without_timestamps() -> None:
    data = V0_ENTRY + V1_ENTRY
    columns = decode_columns(data, 0, len(data), **EVERYTHING)
    assert [row.timestamp_type for row in shown(columns)] == [-1, 0]
    assert [row.timestamp for row in shown(columns)] == [-1, TIME]
    columns = decode_columns(
        THREE_RECORDS,
        0,
        95,
        without_times=True,
        **EVERYTHING,
    )
    assert [row.timestamp_type for row in shown(columns)] == [-1, -1, -1]


text = st.lists(
    st.sampled_from(
        b"a \x7f \x80 \x8f \x90 \xa0 \xbf \xc0 \xc2 \xe0 \xe1 \xed \xf0 \xf1 \xf4 \xf5".split()
    ),
    max_size=7,
).map(b"".join)


@given(names=st.lists(text, max_size=20))
def test_names_that_are_no_text(names: list[bytes]) -> None:
    row = oracle.put_row(oracle.Row(0, 0, None, b"", [(name, None) for name in names]))
    data = oracle.put_batch(row, 1)
    with before_guard_page(data) as view:
        columns = decode_columns(view, 0, len(data), headers=True)
        assert header_lists(columns) == [[(oracle.java_text(name), None) for name in names] or None]


def test_plain_forms_end_when_they_are_enough() -> None:
    packed = recompress(THREE_RECORDS, 1)
    data = packed * 4
    columns = decode_columns(data, 0, len(data), plain_bytes=len(THREE_RECORDS) + 1)
    assert (columns.rows, columns.consumed) == (6, 2 * len(packed))
    columns = decode_columns(data, 0, len(data), plain_bytes=0)
    assert (columns.rows, columns.consumed) == (3, len(packed))


def test_many_spans() -> None:
    aborted = AbortedSpans((producer, 10 * n, 10 * n + 4) for producer in (7, 3) for n in range(99))
    assert len(aborted) == 198
    for producer, base, rows_left in ((7, 104, 0), (7, 105, 3), (3, 980, 0), (5, 100, 3)):
        sent = bytearray(THREE_RECORDS)
        sent[:8] = base.to_bytes(8, "big")
        sent[43:51] = producer.to_bytes(8, "big")
        assert decode_columns(seal(sent), 0, len(sent), aborted=aborted).rows == 3
        sent[22] |= 0x10
        assert decode_columns(seal(sent), 0, len(sent), aborted=aborted).rows == rows_left
