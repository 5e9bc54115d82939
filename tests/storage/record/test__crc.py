"""storage.record._crc: CRC-32C, by every way that this machine has."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c as crc32c_of_library
from hypothesis import given
from hypothesis import strategies as st

from storage.record._crc import WAYS, crc32c, crc32c_after
from tests.guard_page import before_guard_page

# Lanes of 64 and of 256 bytes, three at a time, and folds of 256; long input is from 2048 bytes on.
BLOCKS = (64, 192, 256, 512, 768, 1536, 2048, 4096)
RANDOM = random.Random(1).randbytes(1 << 16)


@pytest.mark.parametrize("way", WAYS)
def test_check_value(way: str) -> None:
    assert crc32c(b"123456789", way=way) == 0xE3069283
    assert crc32c(b"", way=way) == 0
    assert crc32c(bytes(32), way=way) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("way", WAYS)
def test_of_every_length_is_that_of_the_library(way: str) -> None:
    data = memoryview(RANDOM)
    for size in range(5000):
        assert crc32c(data[:size], way=way) == crc32c_of_library(data[:size])


@pytest.mark.parametrize("way", WAYS)
def test_at_every_alignment_is_that_of_the_library(way: str) -> None:
    data = memoryview(RANDOM)
    for start in range(64):
        for size in (*(block + near for block in BLOCKS for near in range(-9, 10)), 60_000):
            part = data[start : start + size]
            assert crc32c(part, way=way) == crc32c_of_library(part)


@pytest.mark.parametrize("way", WAYS)
@given(size=st.integers(0, 20_000), seed=st.integers(0, 1000))
def test_reads_nothing_behind_the_end(way: str, size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    with before_guard_page(data) as view:
        assert crc32c(view, way=way) == crc32c_of_library(data)


def test_goes_on_from_the_crc_of_what_is_before() -> None:
    data = memoryview(RANDOM)
    for size in range(0, 5000, 7):
        for end in (size, size + 1, size + 8, size + 1000):
            assert crc32c_after(crc32c(data[:size]), data[size:end]) == crc32c(data[:end])


def test_no_way_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="not a way"):
        crc32c(b"", way="by hand")
