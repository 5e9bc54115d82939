"""What kafka-python encodes is decoded alike, and the other way round: every format and codec."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.record.batch import Record, decode, encode
from storage.record.control import COMMIT, encode_marker
from storage.record.header import CREATE_TIME, LOG_APPEND_TIME, parse_header
from storage.record.plain import recompress, to_v2
from storage.record.scan import batches
from tests.made_logs import TIMESTAMP, blobs, nullable
from tests.storage.record.test_batch import T
from tests.storage.record.test_scan import Bytes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the whole client is imported with it
    from kafka.record import MemoryRecords, MemoryRecordsBuilder

ROOM = 1 << 20
codecs = st.integers(0, 4)
headers = st.lists(st.tuples(st.sampled_from(["", "a", "é€😀"]), nullable), max_size=2).map(tuple)


@st.composite
def made_records(draw: st.DrawFn, magic: int, first: int = 0) -> list[Record]:
    """As a producer sends them: offsets one after another."""
    count = draw(st.integers(1, 6))
    return [
        Record(
            first + number,
            TIMESTAMP + draw(st.integers(-70, 70)) if magic else -1,
            CREATE_TIME,
            draw(nullable),
            draw(st.none() | blobs),
            draw(headers) if magic == 2 else (),
        )
        for number in range(count)
    ]


def built(records: list[Record], magic: int, codec: int) -> bytes:
    """What kafka-python's producer would send."""
    builder = MemoryRecordsBuilder(
        magic=magic, compression_type=codec, batch_size=ROOM, offset=records[0].offset
    )
    for record in records:
        taken = builder.append(
            timestamp=record.timestamp if magic else None,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
        assert taken is not None
    builder.close()
    return bytes(builder.buffer())


def read(log: bytes) -> Iterator[Record]:
    """What kafka-python's consumer makes of a log."""
    found = MemoryRecords(log)
    while (batch := found.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            timestamp = -1 if record.timestamp is None else record.timestamp
            yield Record(
                record.offset,
                timestamp,
                record.timestamp_type or 0,
                record.key,
                record.value,
                tuple(record.headers),
            )


def decoded(log: bytes) -> list[Record]:
    return [record for at, _ in batches(Bytes(log), 0) for record in decode(log, at)]


@given(data=st.data(), magic=st.integers(0, 2), codec=codecs)
def test_we_decode_what_it_encodes(data: st.DataObject, magic: int, codec: int) -> None:
    codec = codec if magic == 2 else min(codec, 3)
    records = data.draw(made_records(magic))
    log = built(records, magic, codec)
    assert decoded(log) == records
    if magic == 0:
        records = [record._replace(timestamp=-1) for record in records]
    assert list(read(log)) == records


@given(data=st.data(), codec=codecs)
def test_it_decodes_what_we_encode(data: st.DataObject, codec: int) -> None:
    log = b""
    records: list[Record] = []
    for _ in range(data.draw(st.integers(1, 3))):
        made = data.draw(made_records(2, len(records)))
        log += recompress(encode(made, leader_epoch=3), codec)
        records += made
    assert list(read(log)) == records
    marker = encode_marker(COMMIT, 7, 1, 2, len(records), T, 0)
    found = MemoryRecords(log + marker)
    *_, last = iter(found.next_batch, None)
    assert last.is_control_batch
    assert [(record.commit, record.abort) for record in last] == [(True, False)]


def moved(wrapper: bytes, offset: int, timestamp: int, *, append_time: bool) -> bytes:
    """As a v1 broker stores it: its builder leaves offset and timestamp 0."""
    out = bytearray(wrapper)
    struct.pack_into(">q", out, 0, offset)
    struct.pack_into(">q", out, 18, timestamp)
    out[17] |= 8 if append_time else 0
    struct.pack_into(">I", out, 12, zlib.crc32(out[16:]))
    return bytes(out)


@given(data=st.data(), codec=st.integers(1, 3), append_time=st.booleans())
def test_wrappers_as_a_broker_stores_them(
    data: st.DataObject, codec: int, append_time: bool
) -> None:
    records = data.draw(made_records(1))
    base = data.draw(st.sampled_from([1, 500, 1 << 40]))
    wrapper = moved(
        built(records, 1, codec), base + len(records) - 1, T + 9, append_time=append_time
    )
    expected = [record._replace(offset=base + record.offset) for record in records]
    if append_time:
        expected = [
            record._replace(timestamp=T + 9, timestamp_type=LOG_APPEND_TIME) for record in expected
        ]
    assert list(read(wrapper)) == expected
    assert decode(wrapper) == expected
    batch, size = to_v2(wrapper, 0, len(wrapper))
    assert size == len(wrapper)
    assert parse_header(batch).codec == codec
    assert list(read(batch)) == expected


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_its_wrappers_leave_the_offset_0(codec: int) -> None:
    records = [Record(number, T, CREATE_TIME, None, b"x" * 999) for number in range(90)]
    wrapper = built(records, 1, codec)
    assert parse_header(wrapper).base_offset == 0
    assert decode(wrapper) == records


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_many_records(magic: int) -> None:
    values = [b"%d" % number * (number % 97) for number in range(3000)]
    records = [
        Record(number, T if magic else -1, CREATE_TIME, None, value)
        for number, value in enumerate(values)
    ]
    for codec in range(5 if magic == 2 else 4):
        assert decoded(built(records, magic, codec)) == records
