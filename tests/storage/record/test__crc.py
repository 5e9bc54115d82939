"""storage.record._crc: CRC-32C, by the instruction and by tables."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c as crc32c_of_library
from hypothesis import given
from hypothesis import strategies as st

from storage.record._crc import crc32c
from tests.guard_page import before_guard_page

# Lanes of 128 and of 1024 bytes, three at a time: sizes around where another way begins.
EDGES = sorted({edge + near for edge in (0, 8, 384, 3072, 6144) for near in range(9)})


@pytest.mark.parametrize("by_table", [False, True])
def test_check_value(by_table: bool) -> None:
    assert crc32c(b"123456789", by_table=by_table) == 0xE3069283
    assert crc32c(b"", by_table=by_table) == 0
    assert crc32c(bytes(32), by_table=by_table) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("by_table", [False, True])
@given(size=st.sampled_from(EDGES) | st.integers(0, 20_000), seed=st.integers(0, 1000))
def test_is_that_of_the_library(by_table: bool, size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    with before_guard_page(data) as view:
        assert crc32c(view, by_table=by_table) == crc32c_of_library(data)
