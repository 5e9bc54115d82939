"""storage.record.control: markers, and what is none."""

from __future__ import annotations

import struct

import pytest

from storage.errors import CorruptRecord
from storage.record.batch import Record, decode, encode
from storage.record.control import ABORT, COMMIT, Marker, encode_marker, parse_marker
from storage.record.header import CREATE_TIME, parse_header
from storage.record.plain import plain
from tests.storage.record.test_batch import ABORT_MARKER, EMPTY_BATCH, THREE_RECORDS, T


def control(key: bytes | None, value: bytes | None) -> bytes:
    return encode([Record(3, T, CREATE_TIME, key, value)], attributes=0x30, producer_id=1)


def test_vector() -> None:
    assert encode_marker(ABORT, 1000, 3, 7, 10, T, 0) == ABORT_MARKER
    assert parse_marker(ABORT_MARKER) == Marker(ABORT, 7)
    assert parse_marker(b"abc" + ABORT_MARKER + b"d", 3) == Marker(ABORT, 7)
    assert parse_marker(plain(ABORT_MARKER, 0, len(ABORT_MARKER))[0]) == Marker(ABORT, 7)


def test_markers_come_back() -> None:
    for kind in (ABORT, COMMIT):
        marker = encode_marker(
            type=kind,
            producer_id=2**63 - 1,
            epoch=32767,
            coordinator_epoch=2**31 - 1,
            offset=1 << 40,
            timestamp_ms=T,
            leader_epoch=9,
        )
        assert isinstance(marker, bytearray)
        assert parse_marker(marker) == Marker(kind, 2**31 - 1)
        header = parse_header(marker)
        assert header.is_control
        assert header.is_transactional
        assert (header.base_offset, header.last_offset, header.leader_epoch) == (
            1 << 40,
            1 << 40,
            9,
        )
        assert (header.producer_id, header.producer_epoch) == (2**63 - 1, 32767)
        assert (header.base_sequence, header.max_timestamp) == (-1, T)
        assert len(decode(marker)) == 1


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 99, -1])
def test_other_control_records(kind: int) -> None:
    assert parse_marker(control(struct.pack(">hh", 0, kind), b"anything")) is None


MALFORMED = {
    "no record": EMPTY_BATCH[:22] + b"\x30" + EMPTY_BATCH[23:],
    "null key": control(None, b""),
    "key cut off": control(b"\0\0\0", bytes(6)),
    "negative version": control(b"\xff\xff\0\0", bytes(6)),
    "null value": control(bytes(4), None),
    "value cut off": control(bytes(4), bytes(5)),
    "negative version of the value": control(bytes(4), b"\xff\xff" + bytes(4)),
    "codec": ABORT_MARKER[:22] + b"\x34" + ABORT_MARKER[23:],
    "batch cut off": ABORT_MARKER[:-1],
}


@pytest.mark.parametrize("batch", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(batch: bytes) -> None:
    with pytest.raises(CorruptRecord):
        parse_marker(batch)


def test_only_control_batches_are_asked() -> None:
    with pytest.raises(AssertionError):
        parse_marker(THREE_RECORDS)
