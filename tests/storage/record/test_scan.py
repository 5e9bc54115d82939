"""storage.record.scan: batches are found in any source, whatever the chunks it is read in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord, InvalidRecord, RecordTooLarge
from storage.record.scan import CHUNK, batches, whole_batches
from tests import oracle
from tests.made_logs import MadeLog, logs
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


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (bytes(100), "length 0"),
        (THREE_RECORDS[:16] + b"\x09" + THREE_RECORDS[17:], "magic 9"),
        # Only older formats have such a length.
        (THREE_RECORDS[:8] + (20).to_bytes(4, "big") + THREE_RECORDS[12:], "length 20"),
        (V1_ENTRY[:11] + b"\x15" + V1_ENTRY[12:], "length 21"),
    ],
)
def test_what_no_batch_begins_with(damage: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecord, match=reason) as caught:
        found(THREE_RECORDS + damage)
    assert (caught.value.path, caught.value.position) == ("memory", len(THREE_RECORDS))


def test_older_formats() -> None:
    data = V0_ENTRY + V1_ENTRY * 2 + THREE_RECORDS + EMPTY_BATCH + ABORT_MARKER + V0_ENTRY
    headers = [header for _, header in batches(Bytes(data), 0)]
    assert [header.magic for header in headers] == [0, 1, 1, 2, 2, 2, 0]
    assert [header.magic < 2 for header in headers] == [True] * 3 + [False] * 3 + [True]
    assert sum(header.size for header in headers) == len(data)
    # The last one is smaller than a header of v2.
    for entry in (V0_ENTRY, V1_ENTRY):
        for size in range(len(entry)):
            assert found(THREE_RECORDS + entry[:size]) == [(0, len(THREE_RECORDS))]


def test_wrapper_does_not_say_how_many_messages_it_has() -> None:
    wrapper = oracle.put_wrapper([oracle.Message(7, b"k", b"v", 5)] * 3, 1, codec=1)
    ((_, header),) = batches(Bytes(wrapper), 0)
    assert (header.records_count, header.codec, header.magic) == (-1, 1, 1)
    assert (header.base_offset, header.last_offset, header.max_timestamp) == (7, 7, 5)


@given(log=logs(), cut=st.integers(0, 5000))
def test_whole_batches(log: MadeLog, cut: int) -> None:
    data = log.data[:cut]
    sizes = [batch.size for batch in oracle.walk(log.data)]
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    whole = max((end for end in ends if end <= len(data)), default=0)
    following = sizes[ends.index(whole) + 1 :] if whole else sizes
    known = following[0] if following and len(data) - whole >= 17 else 0
    assert whole_batches(data, 1 << 20) == (whole, known)


@pytest.mark.parametrize("batch", [THREE_RECORDS, EMPTY_BATCH, V0_ENTRY, V1_ENTRY])
def test_a_batch_that_is_too_large_is_known_by_its_head(batch: bytes) -> None:
    size = len(batch)
    assert whole_batches(batch * 2, size) == (2 * size, 0)
    assert whole_batches(batch + batch[:16], size) == (size, 0)
    for end in (17, size - 1, size):
        with pytest.raises(RecordTooLarge):
            whole_batches(EMPTY_BATCH + batch[:end], size - 1)


@pytest.mark.parametrize(
    "head",
    [
        b"a line that is no batch",
        bytes(17),
        THREE_RECORDS[:16] + b"\x03",
        THREE_RECORDS[:8] + b"\xff" + THREE_RECORDS[9:],
        THREE_RECORDS[:8] + bytes([0, 0, 0, 48]) + THREE_RECORDS[12:],
        V0_ENTRY[:8] + bytes([0, 0, 0, 13]) + V0_ENTRY[12:],
    ],
)
def test_where_no_batch_begins(head: bytes) -> None:
    with pytest.raises(InvalidRecord, match="no valid batch starts here") as caught:
        whole_batches(EMPTY_BATCH + head, 1 << 30)
    assert caught.value.position == len(EMPTY_BATCH)
    assert whole_batches(EMPTY_BATCH + head[:16], 1 << 30) == (len(EMPTY_BATCH), 0)
