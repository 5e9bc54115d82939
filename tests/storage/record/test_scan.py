"""storage.record.scan: batches are found in any source, whatever the chunks it is read in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord, UnsupportedFormat
from storage.record.scan import CHUNK, batches, unsupported
from tests import oracle
from tests.made_logs import MadeLog, damaged, logs
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    EMPTY_BATCH,
    THREE_RECORDS,
    V0_ENTRY,
    V1_ENTRY,
)


class Bytes:
    """A source of bytes in memory that counts what is asked of it."""

    def __init__(self, data: bytes) -> None:
        self.path = "memory"
        self.data = data
        self.read = 0

    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, size: int) -> bytes:
        assert 0 <= position <= position + size <= len(self.data)
        self.read += size
        return self.data[position : position + size]


def found(data: bytes, position: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    return [(at, header.size) for at, header in batches(Bytes(data), position, end)]


@given(log=logs(), tail=st.integers(1, 60))
def test_every_whole_batch_is_found(log: MadeLog, tail: int) -> None:
    expected = [(batch.position, batch.size) for batch in oracle.walk(log.data)]
    assert found(log.data) == expected
    assert found(log.data + THREE_RECORDS[:tail]) == expected
    for position, size in expected:
        assert found(log.data, position) == [pair for pair in expected if pair[0] >= position]
        end = position + size
        assert found(log.data, 0, end) == [pair for pair in expected if sum(pair) <= end]
        assert found(log.data, 0, end - 1) == [pair for pair in expected if sum(pair) < end]


def test_batches_across_and_beyond_chunks() -> None:
    small = oracle.put_batch(oracle.put_row(oracle.Row(0, 0, None, b"x" * 1000)), 1)
    large = oracle.put_batch(oracle.put_row(oracle.Row(0, 0, None, b"x" * 5 * CHUNK)), 1)
    data = small * 200 + large + small * 3 + large * 2 + small
    source = Bytes(data)
    assert [at for at, _ in batches(source, 0)] == [batch.position for batch in oracle.walk(data)]
    assert source.read < 8 * CHUNK  # of the large ones only what lies in the header's chunk


def test_size_that_no_format_has() -> None:
    with pytest.raises(CorruptRecord) as caught:
        found(THREE_RECORDS + bytes(100))
    assert caught.value.position == len(THREE_RECORDS)
    assert caught.value.path == "memory"


def test_magic_that_no_format_has() -> None:
    damage = bytearray(THREE_RECORDS * 2)
    damage[95 + 16] = 9
    with pytest.raises(CorruptRecord, match="magic 9") as caught:
        found(bytes(damage))
    assert caught.value.position == len(THREE_RECORDS)


def test_batch_length_that_only_older_formats_have() -> None:
    damage = bytearray(THREE_RECORDS)
    damage[8:12] = (20).to_bytes(4, "big")
    with pytest.raises(CorruptRecord):
        found(bytes(damage))


@pytest.mark.parametrize(("entry", "name"), [(V0_ENTRY, "v0"), (V1_ENTRY, "v1")])
def test_older_formats_are_refused_by_name(entry: bytes, name: str) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        found(THREE_RECORDS + entry)
    assert caught.value.what == f"message format {name}"
    assert (caught.value.position, caught.value.path) == (len(THREE_RECORDS), "memory")
    assert found(entry[:-1]) == []


def test_what_is_not_built_yet_is_named() -> None:
    def name(batch: bytes, attributes: int | None = None) -> str | None:
        (_, header), *_ = batches(Bytes(batch), 0)
        if attributes is not None:
            header = header._replace(attributes=attributes)
        return unsupported(header)

    assert name(THREE_RECORDS) is None
    assert name(EMPTY_BATCH) is None
    assert name(ABORT_MARKER) == "transactions"
    assert name(THREE_RECORDS, 0x20) == "control records"
    assert name(THREE_RECORDS, 0x10) == "transactions"
    assert name(THREE_RECORDS, 0x08 | 0x40) is None
    assert name(THREE_RECORDS, 4) == "zstd compression"


@given(data=damaged())
def test_damage_ends_the_scan(data: bytes) -> None:
    try:
        ends = [at + size for at, size in found(data)]
    except (CorruptRecord, UnsupportedFormat):
        return
    assert all(end <= len(data) for end in ends)
