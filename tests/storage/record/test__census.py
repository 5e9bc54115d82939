"""A census agrees with the headers, read one by one."""

from __future__ import annotations

import pytest

from storage.record._census import Census
from storage.record.batch import Record, encode
from storage.record.control import COMMIT, encode_marker
from storage.record.header import parse_header
from tests import oracle
from tests.storage.old_logs import wrapper

RECORD = Record(0, 1, 0, None, b"value" * 50)


def claiming(batch: bytes, codec: int) -> bytes:
    """Headers alone count: what says that it is compressed need not be."""
    return batch[:22] + bytes([codec]) + batch[23:]


BATCHES: list[bytes | bytearray] = [
    oracle.put_message(oracle.Message(0, b"k", b"v", -1), 0),
    wrapper([oracle.Message(offset, None, b"v", 5) for offset in (1, 2)], 1, 2),
    encode([RECORD._replace(offset=3), RECORD._replace(offset=4)]),
    *(claiming(encode([RECORD._replace(offset=4 + codec)]), codec) for codec in (1, 3, 4)),
    encode(
        [RECORD._replace(offset=9)],
        attributes=0x10,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
    ),
    encode_marker(COMMIT, 1, 0, 0, 10, 1, 0),
]
DATA = b"".join(BATCHES)
HEADERS = [parse_header(each) for each in BATCHES]


def test_it_agrees_with_the_headers() -> None:
    census = Census(0, 100)
    census.add(b"??" + DATA + b"?", 2, len(DATA))
    assert census.batches == [sum(each.codec == codec for each in HEADERS) for codec in range(8)]
    assert census.bytes == [
        sum(each.size for each in HEADERS if each.codec == codec) for codec in range(8)
    ]
    assert census.formats == [1, 1, 6]
    assert census.control == sum(each.is_control for each in HEADERS) == 1
    assert census.transactional == sum(each.is_transactional for each in HEADERS) == 2
    assert census.largest == max(each.size for each in HEADERS)


def test_only_what_ends_in_the_offsets_counts_and_once() -> None:
    census = Census(4, 9)
    for _ in range(2):
        census.add(DATA, 0, len(DATA))
    assert sum(census.batches) == 4
    for at in range(0, len(DATA), len(BATCHES[0])):
        census.add(DATA[at:], 0, len(DATA) - at)
    assert sum(census.batches) == 4


def test_bytes_that_are_no_batches_do_not_count() -> None:
    census = Census(0, 100)
    for end in range(len(BATCHES[2])):
        census.add(BATCHES[2], 0, end)
    census.add(bytes(100), 0, 100)
    census.add(b"\xff" * 100, 0, 100)
    assert sum(census.batches) == 0
    for position, size in ((-1, 1), (0, -1), (1, len(DATA)), (len(DATA) + 1, 0)):
        with pytest.raises(ValueError, match="outside"):
            census.add(DATA, position, size)
