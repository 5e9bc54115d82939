"""Snapshots: Kafka's bytes, and anything else refused."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.producer_state import EMPTY_SNAPSHOT, ProducerEntry, decode, encode

ONE = bytes.fromhex(
    "00015b5ba59a0000000100000000000003e8000300000004000000000000000e000000040000018bcfe568000000"
    "0007ffffffffffffffff"
)
ENTRY = ProducerEntry(1000, 3, 4, 14, 4, 1_700_000_000_000, 7, -1)


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


entries = st.builds(
    ProducerEntry,
    *(_signed(bits) for bits in (64, 16, 32, 64, 32, 64, 32, 64)),
)


def test_known_bytes() -> None:
    assert bytes.fromhex("000148674bc700000000") == EMPTY_SNAPSHOT
    assert encode([ENTRY]) == ONE
    assert decode(ONE, path="f") == [ENTRY]
    assert decode(EMPTY_SNAPSHOT, path="f") == []


@given(st.lists(entries, max_size=4))
def test_round_trip(producers: list[ProducerEntry]) -> None:
    assert decode(encode(producers), path="f") == producers


@given(st.data())
def test_any_damaged_byte_is_found(data: st.DataObject) -> None:
    damaged = bytearray(ONE)
    at = data.draw(st.integers(0, len(ONE) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptCheckpoint):
        decode(bytes(damaged), path="f")


@given(st.integers(0, len(ONE) - 1))
def test_any_cut_is_found(size: int) -> None:
    with pytest.raises(CorruptCheckpoint) as e:
        decode(ONE[:size], path="some.snapshot")
    assert e.value.path == "some.snapshot"


@pytest.mark.parametrize(("count", "producers"), [(2, 1), (0, 1), (-1, 0)])
def test_a_count_that_does_not_fit_is_found(count: int, producers: int) -> None:
    body = count.to_bytes(4, "big", signed=True) + encode([ENTRY] * producers)[10:]
    data = ONE[:2] + crc32c(body).to_bytes(4, "big") + body
    with pytest.raises(CorruptCheckpoint, match=f"{count} producers"):
        decode(data, path="f")


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(CorruptCheckpoint, match="version 2"):
        decode(b"\0\2" + ONE[2:], path="f")
