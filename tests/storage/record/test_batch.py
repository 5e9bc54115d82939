"""storage.record.batch: the format's vectors, round trips, and what a reader must reject."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from storage.record.batch import Record, decode, encode, encode_records
from storage.record.header import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    CREATE_TIME,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL_BIT,
    pack,
    parse_header,
)
from tests import oracle
from tests.made_logs import names

T = 1_700_000_000_000

# The vectors of the format's Appendix A, which Apache Kafka's DumpLogSegments reads as stated.
THREE_RECORDS = bytes.fromhex(
    "0000000000000000000000530000000002c3eb14760000000000020000018bcfe568000000018bcfe56805ffffff"
    "ffffffffffffffffffffff0000000322000000046b310476310402680278026e010c000a0201000010001304046b"
    "320100"
)
ABORT_MARKER = bytes.fromhex(
    "000000000000000a000000420000000002590cda830030000000000000018bcfe568000000018bcfe56800000000"
    "00000003e80003ffffffff000000012000000008000000000c00000000000700"
)
EMPTY_BATCH = bytes.fromhex(
    "0000000000000064000000310000000002ab8b99ff000000000009ffffffffffffffff0000018bcfe56800000000"
    "00000003e800030000000500000000"
)
V0_ENTRY = bytes.fromhex("000000000000000500000014a4cdab3a0000000000016b0000000568656c6c6f")
V1_ENTRY = bytes.fromhex(
    "00000000000000050000001caa1f677901000000018bcfe56800000000016b0000000568656c6c6f"
)


def seal(batch: bytes | bytearray) -> bytes:
    """Make the CRC right again."""
    return (
        bytes(batch[:17]) + struct.pack(">I", oracle.crc32c(bytes(batch[21:]))) + bytes(batch[21:])
    )


def with_records(records: bytes, count: int = 1) -> bytes:
    return oracle.put_batch(records, count, base_timestamp=T, max_timestamp=T)


def test_vector_of_three_records() -> None:
    records = [
        Record(0, T, CREATE_TIME, b"k1", b"v1", (("h", b"x"), ("n", None))),
        Record(1, T + 5, CREATE_TIME, None, b""),
        Record(2, T - 10, CREATE_TIME, b"k2", None),
    ]
    assert encode(records) == THREE_RECORDS
    assert decode(THREE_RECORDS) == records
    header = parse_header(THREE_RECORDS)
    assert (header.size, header.last_offset, header.records_count) == (95, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (T, T + 5)
    assert (header.timestamp_type, header.codec, header.leader_epoch) == (CREATE_TIME, 0, 0)
    assert not header.is_transactional
    assert not header.is_control
    assert header.delete_horizon is None


def test_vector_of_an_abort_marker() -> None:
    marker = Record(10, T, CREATE_TIME, bytes(4), bytes.fromhex("000000000007"))
    batch = encode(
        [marker], attributes=TRANSACTIONAL_BIT | CONTROL_BIT, producer_id=1000, producer_epoch=3
    )
    assert batch == ABORT_MARKER
    assert decode(ABORT_MARKER) == [marker]
    header = parse_header(ABORT_MARKER)
    assert header.is_transactional
    assert header.is_control
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1000, 3, -1)


def test_vector_of_an_empty_batch() -> None:
    header = parse_header(EMPTY_BATCH)
    assert (header.base_offset, header.last_offset, header.records_count) == (100, 109, 0)
    assert (header.base_timestamp, header.max_timestamp, header.leader_epoch) == (-1, T, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1000, 3, 5)
    assert decode(EMPTY_BATCH) == []
    assert pack(header, b"") == EMPTY_BATCH


def test_append_time_is_every_records_time() -> None:
    records = [Record(3, T, CREATE_TIME, None, b"a"), Record(4, T + 9, CREATE_TIME, None, b"b")]
    decoded = decode(encode(records, attributes=APPEND_TIME_BIT))
    assert [record.timestamp for record in decoded] == [T + 9, T + 9]
    assert {record.timestamp_type for record in decoded} == {LOG_APPEND_TIME}
    assert decode(encode(decoded, attributes=APPEND_TIME_BIT)) == decoded


def test_delete_horizon() -> None:
    header = parse_header(THREE_RECORDS)
    moved = pack(header._replace(attributes=0x40), THREE_RECORDS[HEADER_SIZE:])
    assert parse_header(moved).delete_horizon == T


@given(
    records=st.lists(
        st.builds(
            Record,
            offset=st.integers(0, 2**31 - 1),
            timestamp=st.integers(-1, 2**62),
            timestamp_type=st.just(CREATE_TIME),
            key=st.none() | st.binary(max_size=200),
            value=st.none() | st.binary(max_size=9000),
            headers=st.lists(st.tuples(names, st.none() | st.binary(max_size=70)), max_size=3).map(
                tuple
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    epoch=st.integers(-1, 2**31 - 1),
)
def test_decode_gives_back_what_was_encoded(records: list[Record], epoch: int) -> None:
    batch = encode(records, leader_epoch=epoch)
    assert decode(batch) == records
    assert decode(memoryview(b"xyz" + batch + b"rest"), 3) == records
    assert parse_header(batch).leader_epoch == epoch
    assert len(batch) == parse_header(batch).size
    mine = [
        oracle.Row(
            record.timestamp - records[0].timestamp,
            record.offset - records[0].offset,
            record.key,
            record.value,
            [(name.encode(), value) for name, value in record.headers],
        )
        for record in records
    ]
    assert batch[HEADER_SIZE:] == b"".join(map(oracle.put_row, mine))


ROW = oracle.put_row(oracle.Row(0, 0, b"key", b"value", [(b"h", b"x")]))
BARE = oracle.put_row(oracle.Row(0, 0, None, None))
V = oracle.put_varint


def record(body: bytes) -> bytes:
    return V(len(body)) + body


REJECTED = {
    "negative count": with_records(b"", -1),
    "fewer records than the count": with_records(ROW, 2),
    "more records than the count": with_records(ROW + ROW, 1),
    "bytes after the records": with_records(ROW + b"\0", 1),
    "no bytes but a count": with_records(b"", 1),
    "record longer than its batch": with_records(V(200) + ROW[1:]),
    "negative record length": with_records(V(-2) + ROW[1:]),
    "record longer than its fields": with_records(record(ROW[1:] + b"\0")),
    "record shorter than its fields": with_records(record(ROW[1:-1])),
    "record of no bytes": with_records(record(b"")),
    "key length -2": with_records(record(b"\0\0\0" + V(-2) + b"\1\0")),
    "key longer than its record": with_records(record(b"\0\0\0" + V(100) + b"\1\0")),
    "value length -2": with_records(record(b"\0\0\0\1" + V(-2) + b"\0")),
    "value longer than its record": with_records(record(b"\0\0\0\1" + V(2) + b"a\0")),
    "largest value length": with_records(record(b"\0\0\0\1" + V(2**31 - 1) + b"a\0")),
    "negative header count": with_records(record(BARE[1:-1] + V(-1))),
    "header count with no headers": with_records(record(BARE[1:-1] + V(1))),
    "largest header count": with_records(record(BARE[1:-1] + V(2**31 - 1))),
    "null header name": with_records(record(BARE[1:-1] + V(1) + V(-1) + V(-1))),
    "header value length -2": with_records(record(BARE[1:-1] + V(1) + V(0) + V(-2))),
    "varint of six bytes": with_records(record(b"\0\0" + b"\x80" * 5 + b"\0\1\1\0")),
    "varlong of eleven bytes": with_records(record(b"\0" + b"\x80" * 10 + b"\0\0\1\1\0")),
    "varint without an end": with_records(b"\x80" * 3),
}


def test_varints_may_be_longer_than_they_must_be() -> None:
    padded = record(b"\0\0\0" + b"\x81\x80\x80\x80\x00" + b"\x82\x00" + b"a\0")
    assert decode(with_records(padded)) == [Record(0, T, CREATE_TIME, None, b"a")]


def test_base_offset_and_epoch_are_outside_the_crc() -> None:
    moved = bytearray(THREE_RECORDS)
    struct.pack_into(">q", moved, 0, 500)
    struct.pack_into(">i", moved, 12, 7)
    assert [record.offset for record in decode(moved)] == [500, 501, 502]


def test_header_names_that_are_no_utf8_are_kept() -> None:
    batch = with_records(record(BARE[1:-1] + V(1) + V(2) + b"h\xff" + V(-1)))
    records = decode(batch)
    assert records[0].headers == (("h\udcff", None),)
    assert encode(records, leader_epoch=-1)[HEADER_SIZE:] == batch[HEADER_SIZE:]


def test_vectors_of_the_older_formats() -> None:
    message = Record(5, -1, CREATE_TIME, b"k", b"hello")
    for entry, expected in ((V0_ENTRY, message), (V1_ENTRY, message._replace(timestamp=T))):
        assert decode(entry) == [expected]
        assert decode(b"abc" + entry * 2, 3) == [expected]  # a batch is one message
        header = parse_header(b"abc" + entry, 3)
        assert header.magic < 2
        assert (header.base_offset, header.last_offset, header.records_count) == (5, 5, 1)
        assert (header.size, header.codec) == (len(entry), 0)
        assert header.base_timestamp == header.max_timestamp == expected.timestamp
        assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (-1, -1, -1)
    assert not parse_header(THREE_RECORDS).magic < 2


def test_sums_that_leave_64_bits_wrap_as_javas_do() -> None:
    header = parse_header(encode([Record(0, 0, 0, None, b"v"), Record(1, 3, 0, None, b"v")]))
    header = header._replace(base_offset=2**63 - 1, base_timestamp=2**63 - 2)
    batch = pack(header, encode_records([Record(1, 3, 0, None, b"v")] * 2, 0, 0))
    assert [(record.offset, record.timestamp) for record in decode(batch)] == [
        (-(2**63), -(2**63) + 1)
    ] * 2
