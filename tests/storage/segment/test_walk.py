"""A walk takes each whole batch once, in order, with any windows; and nothing after the last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.files import Files
from storage.record._batch import Rebuild
from storage.record.header import LOG_OVERHEAD, Buffer, size_at
from storage.segment.walk import Buffered, Walk, feed

BASE = 1000


def batch(size: int) -> bytes:
    """Return bytes with the size field of a batch; the rest is random, a walk does not read it."""
    rest = size - LOG_OVERHEAD
    return bytes(8) + rest.to_bytes(4, "big", signed=True) + os.urandom(max(rest, 0))


def whole(data: Buffer) -> int:
    """How many bytes of `data` are whole batches."""
    at = 0
    while len(data) - at >= LOG_OVERHEAD and size_at(data, at) <= len(data) - at:
        at += size_at(data, at)
    return at


class Log:
    """Bytes that are read, and which of them how often."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def fill(self, view: memoryview, position: int) -> int:
        self.reads.append((position, len(view)))
        found = self.data[position : position + len(view)]
        view[: len(found)] = found
        return len(found)

    def read(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        return self.data[position : position + size]


def taken(walk: Walk[memoryview]) -> bytes:
    found = b""
    for data in walk:
        size = whole(data)
        found += data[:size]
        walk.position += size
    return found


@given(
    st.lists(st.integers(LOG_OVERHEAD, 300), max_size=20),
    st.integers(LOG_OVERHEAD, 400),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_all_whole_batches_are_taken_once(
    sizes: list[int], window_bytes: int, missing: int, beyond: int
) -> None:
    data = b"".join(map(batch, sizes))
    data = data[: max(len(data) - missing, 0)]
    log = Log(data)
    walk = Walk(Buffered(log.fill).read, 0, len(data) + beyond, window_bytes)
    assert taken(walk) == data[: whole(data)]
    assert walk.position == whole(data)


@given(
    st.lists(st.integers(LOG_OVERHEAD, 300), min_size=1, max_size=20),
    st.integers(LOG_OVERHEAD, 400),
)
def test_nothing_is_read_twice_but_by_who_keeps_nothing(
    sizes: list[int], window_bytes: int
) -> None:
    data = b"".join(map(batch, sizes))
    log = Log(data)
    taken(Walk(Buffered(log.fill).read, 0, len(data), window_bytes))
    reached = 0
    for position, size in log.reads:
        assert position == reached
        reached += size
    assert reached == len(data)


@pytest.mark.parametrize("size", [-5, 0, 11, 40, 101, 2**31 - 1])
def test_the_walk_ends_before_a_batch_that_is_not_taken(size: int) -> None:
    """Damage may say any size: no window is larger than the log."""
    first = batch(40)
    damaged = bytes(8) + (size - LOG_OVERHEAD).to_bytes(4, "big", signed=True) + bytes(88)
    log = Log(first + damaged)
    walk = Walk(log.read, 0, 140, 50)
    for data in walk:
        walk.position += len(first) if data.startswith(first) else 0
    assert walk.position == len(first)
    assert all(position + size <= 140 for position, size in log.reads)


def test_who_takes_the_windows_may_know_the_size() -> None:
    """Where a batch does not begin with it, as in Kafka 0.7."""
    data = bytes(1000)
    log = Log(data)
    walk = Walk(log.read, 0, len(data), 100)
    for window in walk:
        if len(window) < 500:
            walk.needed = 500
        else:
            walk.position += 500
    assert walk.position == len(data)
    assert log.reads == [(0, 100), (0, 500), (500, 100), (500, 500)]


def test_the_size_of_the_next_batch_spares_a_window() -> None:
    data = batch(80) + batch(500)
    log = Log(data)
    walk = Walk(log.read, 0, len(data), 100)
    for window in walk:
        walk.position += whole(window)
        walk.needed = 500
    assert log.reads == [(0, 100), (80, 500)]


def test_a_window_may_be_cut_short_by_who_moves_the_end() -> None:
    data = batch(80) + batch(80)
    walk = Walk(Log(data).read, 0, len(data), 100)
    for _ in walk:
        walk.position += 80
        walk.end = 80
    assert walk.position == 80


# -- Buffered -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60)), max_size=30))
def test_any_part_is_what_the_file_has(parts: list[tuple[int, int]]) -> None:
    data = bytes(range(100))
    buffered = Buffered(Log(data).fill)
    for position, size in parts:
        assert buffered.read(position, size) == data[position : position + size]


def test_what_has_settled_is_read_anew() -> None:
    log = Log(b"old bytes")
    buffered = Buffered(log.fill)
    assert bytes(buffered.read(0, 9)) == b"old bytes"
    log.data = b"new bytes"
    assert bytes(buffered.read(0, 3)) == b"old"
    buffered.settle()
    assert bytes(buffered.read(0, 3)) == b"new"


def test_a_read_that_fails_leaves_what_was_at_hand() -> None:
    log = Log(b"0123456789")

    def fill(view: memoryview, position: int) -> int:
        if position >= 6:
            raise BlockingIOError
        return log.fill(view, position)

    buffered = Buffered(fill)
    assert bytes(buffered.read(0, 6)) == b"012345"
    with pytest.raises(BlockingIOError):
        buffered.read(4, 6)
    assert bytes(buffered.read(4, 2)) == b"45"


# -- feed -----------------------------------------------------------------------------------------


def log_of(path: Path, sizes: list[int]) -> bytes:
    data = b"".join(
        encode([Record(BASE + n, 0, 0, None, b"x" * size)]) for n, size in enumerate(sizes)
    )
    path.write_bytes(data)
    return data


def fed(path: Path, end: int, rebuild: Rebuild, *, check_crc: bool = True) -> bytes:
    files = Files()
    fd = files.open(str(path), os.O_RDONLY)
    try:
        found = b""
        for window, size, position in feed(files, fd, end, rebuild, check_crc=check_crc):
            assert position == len(found)
            found += window[:size]
        return found
    finally:
        files.close(fd)


@pytest.mark.parametrize("sizes", [[], [10], [100, 3 << 20, 100], [1 << 20] * 5])
def test_a_log_is_fed_whole(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "log"
    data = log_of(path, sizes)
    rebuild = Rebuild(BASE, 4096)
    assert fed(path, len(data), rebuild) == data
    assert rebuild.next_offset == BASE + len(sizes)


def test_it_ends_at_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = bytearray(log_of(path, [10, 10, 10]))
    third = len(data) // 3
    data[third + 70] ^= 1
    path.write_bytes(data)
    rebuild = Rebuild(BASE, 4096)
    assert fed(path, len(data), rebuild) == data[:third]
    assert rebuild.fault == "the CRC is wrong"
    assert fed(path, len(data), Rebuild(BASE, 4096), check_crc=False) == data


def test_it_ends_where_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = log_of(path, [10, 10, 10])
    path.write_bytes(data[:-1])
    rebuild = Rebuild(BASE, 4096)
    assert fed(path, len(data), rebuild) == data[: len(data) * 2 // 3]
    assert rebuild.fault is None
