"""The check finds any damage in any log, and never reports a sound batch as damaged."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.files import Files
from storage.paths import MAX_OFFSET
from storage.record.header import HEADER_SIZE
from storage.segment.batch_check import Check, Part, check_file, sound_batch
from storage.segment.damage import Damage
from storage.segment.walk import Buffered
from storage.task import Task
from tests.storage.logs import NOW_MS

BASE = 1000
FREE = (*range(8), *range(12, 16))
"""Bytes of a batch that no CRC covers: base offset and leader epoch."""


def written(sizes: list[int]) -> list[bytes]:
    """A batch for each size of a value, with offsets that leave gaps."""
    return [
        encode([Record(BASE + 3 * n, NOW_MS, 0, None, b"x" * size)]) for n, size in enumerate(sizes)
    ]


def checked(
    data: bytes, end: int | None = None, names: Sequence[int] = (), limit: int = MAX_OFFSET
) -> tuple[int, list[Damage], int]:
    """Return the next offset, the damages, and the bytes that the task has counted.

    `names`: the positions of batches in an index.
    """

    def named(position: int) -> int | None:
        return next((name for name in names if name > position), None)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "log")
        path.write_bytes(data)
        task = Task()
        part = Part(BASE, 0, BASE, len(data) if end is None else end, 1 << 20, limit, named)
        found = check_file(Files(), str(path), part, task)
    return found.next_offset, found.damages, task.done


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0), st.integers(0, 7)), max_size=3),
)
def test_any_bits(sizes: list[int], flips: list[tuple[int, int, int]]) -> None:
    batches = written(sizes)
    original = list(batches)
    for number, at, bit in flips:
        number %= len(batches)
        batch = bytearray(batches[number])
        at %= len(batch)
        if at not in FREE:
            batch[at] ^= 1 << bit
            batches[number] = bytes(batch)
    starts = [sum(map(len, batches[:n])) for n in range(len(batches) + 1)]
    bad = {n for n, batch in enumerate(batches) if batch != original[n]}
    _, damages, done = checked(b"".join(batches), names=starts[1:-1])
    found = {
        n
        for n in range(len(batches))
        if any(place.start <= starts[n] and starts[n + 1] <= place.end for place in damages)
    }
    assert found == bad
    assert {place.start for place in damages} | {place.end for place in damages} <= set(starts)
    assert done == starts[-1]


def test_what_is_missing_at_the_end() -> None:
    batches = written([10, 20, 30])
    data = b"".join(batches)
    for cut in (1, len(batches[2]) - 5, len(batches[2]), len(batches[2]) + 1):
        _, (place,), _ = checked(data[:-cut], len(data))
        assert (place.end, place.next_offset) == (len(data), -1)
        whole = 2 if cut <= len(batches[2]) else 1
        assert place.start == sum(map(len, batches[:whole]))


def test_zeros() -> None:
    """As after a power cut that lost a page."""
    first, second, third = written([5000, 5000, 5000])
    data = bytearray(first + second + third)
    data[4096:8192] = bytes(4096)
    _, (place,), _ = checked(bytes(data), names=[len(first), len(first) + len(second)])
    assert place[:4] == (0, len(first) + len(second), BASE, BASE + 6)
    _, (place,), _ = checked(bytes(data))
    assert place[:4] == (0, len(data), BASE, -1), "nothing says where one begins"


def test_offsets_that_fall() -> None:
    first, second = written([1, 1])
    _, (place,), _ = checked(second + first)
    assert place[:2] == (len(second), len(second) + len(first))
    assert "is below" in place.reason


def chained(offsets: Sequence[int], sizes: int = 50) -> list[bytes]:
    """A batch of one record for each offset."""
    return [encode([Record(n, NOW_MS, 0, None, b"x" * sizes)]) for n in offsets]


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_base_offset_or_a_length_takes_its_batch_only(number: int) -> None:
    """No CRC covers either; and no index says where the next batch begins."""
    batches = chained(range(BASE, BASE + 8))
    size = len(batches[0])
    first = number * size
    for at, bit in itertools.product(range(12), range(8)):
        data = bytearray(b"".join(batches))
        data[first + at] ^= 1 << bit
        _, damages, _ = checked(bytes(data), limit=BASE + 8)
        found = [place[:3] for place in damages]
        assert found == [(first, first + size, BASE + number)], (at, bit)
        assert damages[0].next_offset in (BASE + number + 1, -1), (at, bit)


@pytest.mark.parametrize("zeros", [12, 61, 300])
def test_batches_in_a_value_are_never_the_log_s(zeros: int) -> None:
    """A value that holds a piece of another log, of offsets that would fit."""
    inner = b"".join(chained(range(BASE + 1, BASE + 4), 100))
    outer = [
        encode([Record(BASE, NOW_MS, 0, None, b"y" * 5000 + inner)]),
        *chained(range(BASE + 1, BASE + 9), 1000),
    ]
    data = bytearray(b"".join(outer))
    data[:zeros] = bytes(zeros)
    starts = [sum(map(len, outer[:n])) for n in range(len(outer))]
    _, (place,), _ = checked(bytes(data), names=starts[1::4])
    assert place[:4] == (0, starts[1], BASE, BASE + 1)
    _, (place,), _ = checked(bytes(data))
    if zeros > 12:
        assert place[:4] == (0, len(data), BASE, -1)
    else:
        assert place[:4] == (0, starts[1], BASE, BASE + 1), "where its CRC is right it ends"


@pytest.mark.parametrize("behind", [0, 1])
def test_a_length_that_leads_into_a_value_leads_nowhere(behind: int) -> None:
    inner = b"".join(chained(range(BASE + 1, BASE + 4), 100))
    first = encode([Record(BASE, NOW_MS, 0, None, inner + b"z" * behind)])
    rest = chained(range(BASE + 1, BASE + 9), 1000)
    data = bytearray(first + b"".join(rest))
    data[8:12] = (data.index(inner) - 12).to_bytes(4, "big")
    _, (place,), _ = checked(bytes(data))
    assert place[:4] == (0, len(first), BASE, BASE + 1), "where its CRC is right it ends"
    data[70] ^= 1
    _, (place,), _ = checked(bytes(data), names=[len(first) + len(rest[0])])
    assert place[:4] == (0, len(first) + len(rest[0]), BASE, BASE + 2)


def test_a_whole_one() -> None:
    batches = written([0, 10, 2 << 20, 3])
    data = b"".join(batches)
    assert checked(data) == (BASE + 10, [], len(data))
    assert checked(b"") == (BASE, [], 0)
    assert len(batches[0]) > HEADER_SIZE


# -- one batch -------------------------------------------------------------------------------------


class Bytes:
    """A log in memory."""

    path = "bytes"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, size: int) -> bytes:
        assert size >= 0
        return self.data[position : position + size]


def test_a_sound_batch_is_where_one_begins() -> None:
    first, second = written([10, 20])
    log = Bytes(first + second)
    header = sound_batch(log.read_at, len(first), log.size())
    assert header is not None
    assert (header.base_offset, header.size) == (BASE + 3, len(second))
    for position in range(log.size() + 100):
        found = sound_batch(log.read_at, position, log.size())
        assert (found is not None) == (position in (0, len(first))), position


@pytest.mark.parametrize("missing", [1, 30, 85])
def test_no_sound_batch_reaches_beyond_the_end(missing: int) -> None:
    (batch,) = written([10])
    log = Bytes(batch)
    assert sound_batch(log.read_at, 0, log.size() - missing) is None
    assert sound_batch(Bytes(batch[:-missing]).read_at, 0, log.size()) is None


@pytest.mark.parametrize("at", [8, 17, 25, 70])
def test_a_damaged_batch_is_not_sound(at: int) -> None:
    batch = bytearray(written([10])[0])
    batch[at] ^= 1
    assert sound_batch(Bytes(bytes(batch)).read_at, 0, len(batch)) is None


def test_of_a_very_large_batch_the_header_has_to_do() -> None:
    class Sparse(Bytes):
        def read_at(self, position: int, size: int) -> bytes:
            assert size <= HEADER_SIZE
            return super().read_at(position, size)

        def size(self) -> int:
            return 1 << 30

    batch = bytearray(written([10])[0])
    batch[8:12] = (17 << 20).to_bytes(4, "big")
    assert sound_batch(Sparse(bytes(batch)).read_at, 0, 1 << 30) is not None


class Counted(Buffered):
    """A source that counts the bytes that are read from it."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.bytes_read = 0

    def read(self, position: int, size: int) -> memoryview:
        self.bytes_read += size
        return self._data[position : position + size]

    def settle(self) -> None:
        """All is there."""


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_damage_upon_damage_takes_linear_work(damaged: int) -> None:
    """One sound batch follows each run of damaged ones; no index has its position."""
    reads = []
    for count in (600, 1200):
        batches = [bytearray(batch) for batch in written([0] * count)]
        wrong = [n for n in range(1, count - 1) if n % (damaged + 1)]
        for n in wrong:
            batches[n][-1] ^= 1
        log = Counted(b"".join(batches))
        end = sum(map(len, batches))
        check = Check(log, Part(BASE, 0, BASE, end, 1 << 14))
        check.to(end)
        found = sum(damage.end - damage.start for damage in check.damages)
        assert found == sum(len(batches[n]) for n in wrong)
        reads.append(log.bytes_read)
    assert reads[1] < 3 * reads[0]
