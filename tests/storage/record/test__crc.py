"""storage.record._crc: CRC-32C for the loops, with and without the processor's instruction."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.record._crc import crc32c
from tests import oracle
from tests.guard_page import before_guard_page

pytestmark = pytest.mark.parametrize("by_table", [False, True])

RANDOM = random.Random(1).randbytes(1 << 13)


def test_check_value(by_table: bool) -> None:
    assert crc32c(b"123456789", by_table=by_table) == 0xE3069283
    assert crc32c(b"", by_table=by_table) == 0
    assert crc32c(bytes(32), by_table=by_table) == 0x8A9136AA  # RFC 3720, B.4


def test_of_every_length_at_every_alignment(by_table: bool) -> None:
    """Folds of 256 bytes from 2048 on; lanes of 256 and of 64 bytes; words of 8 bytes; bytes."""
    data = memoryview(RANDOM)
    for start in range(8):
        expected = 0
        for end in range(start, start + 3000):
            assert crc32c(data[start:end], by_table=by_table) == expected
            expected = oracle.crc32c(data[end : end + 1], expected)


@given(size=st.integers(0, 8192), seed=st.integers(0, 1000))
def test_reads_nothing_behind_the_end(by_table: bool, size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    with before_guard_page(data) as view:
        assert crc32c(view, by_table=by_table) == oracle.crc32c(data)
