"""Reading what nobody has read yet: it is checked as it is read, and read once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import LogManager, Record, encode
from storage.errors import CorruptRecord
from storage.files import Files
from storage.segment.checked_ranges import CheckedRanges
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.waiting import at_once
from tests.storage.logs import NOW_MS, append, flip, opened_log

BATCHES = 40


class CountedFiles(Files):
    """Those of the kernel, how many bytes were read in the end, and by how many waits."""

    def __init__(self) -> None:
        self.read = 0
        self.waits = 0

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        self.read += count
        self.waits += 1
        return count

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        count = super().preadv_nowait(fd, buffer, position)
        self.read += count or 0
        return count


def write(data: Path) -> bytes:
    """A log of one closed segment; the bytes of that one."""
    with opened_log(data) as log:
        for number in range(BATCHES):
            append(log, *([bytes([number]) * 1000] * 8))
        log.roll(NOW_MS)
    return log_path(data).read_bytes()


def log_path(data: Path) -> Path:
    return data / "t-0" / f"{0:020}.log"


@contextlib.contextmanager
def unread(data: Path, files: Files | None = None) -> Iterator[Segment]:
    """Yield the closed segment; nothing of it has been read."""
    manager = LogManager.open(str(data), files=files)
    try:
        yield manager.topics["t"].partitions[0].segments[0]
    finally:
        manager.abandon()


@pytest.mark.parametrize("size", [20_000, 100_000, 1 << 20])
def test_bytes_at_hand_are_checked_without_waiting_and_read_once(tmp_path: Path, size: int) -> None:
    data, files = write(tmp_path), CountedFiles()
    with unread(tmp_path, files) as segment:
        files.read = 0
        read = bytearray()
        while len(read) < len(data):
            assert not segment.checked_ranges.whole
            wanted = segment.checked_ranges.to_read(len(read), size)
            buffer = bytearray(min(wanted, len(data) - len(read)))
            count = at_once(SegmentReader(segment).window, buffer, len(read))
            assert count
            read += buffer[:count]
        assert read == data
        assert segment.checked_ranges.whole
        # Only parts of batches that a read has cut off are read twice.
        assert files.read < len(data) * 1.6


def test_who_reads_anywhere_waits_for_the_disk_once(tmp_path: Path) -> None:
    """… for the batches that he needs, which are then in the page cache."""
    data, files = write(tmp_path), CountedFiles()
    batch_size = len(data) // BATCHES
    with unread(tmp_path, files) as segment:
        for number in (30, 12, 21, 3, 36):
            position = number * batch_size + batch_size // 2
            files.waits = 0
            buffer = bytearray(100)
            assert SegmentReader(segment).window(buffer, position) == 100
            assert buffer == data[position : position + 100]
            if number != 30:
                assert files.waits == 2, "one for the batch, and one for what is there now"
                assert segment.checked_ranges.covers(number * batch_size, (number + 1) * batch_size)


def test_who_begins_anywhere_has_it_checked_in_what_he_reads(tmp_path: Path) -> None:
    data, files = write(tmp_path), CountedFiles()
    batch_size = len(data) // BATCHES
    with unread(tmp_path, files) as segment:
        # The index is opened by who may wait.
        SegmentReader(segment).start_before(batch_size * 2)
        files.waits = 0
        for number in (30, 12, 21, 3, 36):
            batch = number * batch_size
            start = at_once(SegmentReader(segment).start_before, batch + 10)
            assert start[0] == batch
            files.read = 0
            buffer = memoryview(bytearray(batch_size + 100))
            assert at_once(SegmentReader(segment).window, buffer, batch, start) == batch_size
            assert buffer[:batch_size] == data[batch : batch + batch_size]
            assert files.read == len(buffer)
            assert segment.checked_ranges.checked_until(batch) > batch
        assert files.waits == 0


@pytest.mark.parametrize("number", [4, 17, BATCHES - 1])
@pytest.mark.parametrize("falls_by", [1, 8, 15])
def test_a_base_offset_that_is_too_low_is_found_where_reading_begins(
    tmp_path: Path, number: int, falls_by: int
) -> None:
    """No CRC covers it, and nothing before it has been read."""
    data = write(tmp_path)
    batch_size = len(data) // BATCHES
    start = number * batch_size
    changed = bytearray(data)
    changed[start : start + 8] = (8 * number - falls_by).to_bytes(8, "big")
    log_path(tmp_path).write_bytes(changed)
    with unread(tmp_path) as segment:
        with pytest.raises(CorruptRecord):
            read_through(segment, start, bytearray(2 * batch_size))
        assert [place[:2] for place in segment.damages] == [(start, start + batch_size)]


@pytest.mark.parametrize("left", [0, 8, 20])
def test_an_index_that_somebody_has_cut_costs_nobody_what_he_reads(
    tmp_path: Path, left: int
) -> None:
    """In a directory of others."""
    data = write(tmp_path)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        segment = manager.topics["t"].partitions[0].segments[0]
        SegmentReader(segment).start_before(len(data) - 1)
        os.truncate(log_path(tmp_path).with_suffix(".index"), left)
        for position in (len(data) - 100, len(data) // 2, 10):
            buffer = bytearray(50)
            assert SegmentReader(segment).window(buffer, position) == 50
            assert buffer == data[position : position + 50]


def read_through(segment: Segment, batch: int, buffer: bytearray) -> None:
    """Read as who begins in a batch, until its first byte was read."""
    position = -1
    while position <= batch:
        start = SegmentReader(segment).start_before(max(position, batch))
        position = start[0] + SegmentReader(segment).window(buffer, start[0], start)


def read_on(segment: Segment, buffer: bytearray, data: bytes, until: type[Exception]) -> int:
    """Read until that is raised; where that was. All before must be as in `data`."""
    position = 0
    while True:
        try:
            count = SegmentReader(segment).window(buffer, position)
        except until:
            return position
        assert count
        assert buffer[:count] == data[position : position + count]
        position += count


@pytest.mark.parametrize("size", [5_000, 20_000, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 17, BATCHES - 1])
def test_nothing_of_a_damaged_batch_is_read(tmp_path: Path, size: int, number: int) -> None:
    data = write(tmp_path)
    batch_size = len(data) // BATCHES
    start = number * batch_size
    changed = bytearray(data)
    changed[start + 5000] ^= 1
    log_path(tmp_path).write_bytes(changed)
    with unread(tmp_path) as segment:
        buffer = bytearray(size)
        # Whether the batch before it is right, too, may be for who may wait to find out.
        assert at_once(read_on, segment, buffer, data, BlockingIOError) <= start
        assert read_on(segment, buffer, data, CorruptRecord) == start
        assert [place[:2] for place in segment.damages] == [(start, start + batch_size)]


def damage(data: Path) -> None:
    """A bit of the first batch flips."""
    flip(log_path(data), 100)


def test_what_was_written_here_is_checked_once_it_is_sealed(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = manager.create_topic("t", 1).partitions[0]
    append(log, b"a" * 1000)
    damage(tmp_path)
    # Bytes of the active segment in the page cache count as those that were written.
    assert SegmentReader(log.active).window(bytearray(200), 0) == 200
    log.roll(NOW_MS)
    with pytest.raises(CorruptRecord):
        SegmentReader(log.segments[0]).window(bytearray(200), 0)
    manager.abandon()


def test_what_was_written_here_is_checked_when_it_comes_back_from_the_disk(tmp_path: Path) -> None:
    class Dropped(Files):
        """The page cache has nothing of it any more."""

        def preadv_nowait(
            self, fd: int, buffer: bytearray | memoryview, position: int
        ) -> int | None:
            return None

    manager = LogManager.open(str(tmp_path), files=Dropped(), clock_ms=lambda: NOW_MS)
    active = (log := manager.create_topic("t", 1).partitions[0]).active
    append(log, b"a" * 1000)
    damage(tmp_path)
    with pytest.raises(BlockingIOError):
        at_once(SegmentReader(active).window, bytearray(200), 0)
    with pytest.raises(CorruptRecord):
        SegmentReader(active).window(bytearray(200), 0)
    manager.abandon()


def test_the_last_batch_counts_once_its_base_offset_is_known_to_be_right() -> None:
    batches = [encode([Record(offset, NOW_MS, 0, None, b"v")]) for offset in (0, 1, 2)]
    size = len(batches[0])
    high = (9).to_bytes(8, "big") + batches[1][8:]

    def sound(data: bytes, end: int) -> int:
        reads = CheckedRanges()
        reads.forget_written(end)
        reads.add_sound(data, (0, 0, 0), end, 0, 10)
        part = reads.end_before(0)
        return 0 if part is None else part[0]

    assert sound(b"".join(batches), 3 * size) == 3 * size
    assert sound(b"".join(batches), 4 * size) == 2 * size
    assert sound(b"".join(batches)[: 2 * size + 17], 3 * size) == 2 * size
    assert sound(b"".join(batches)[: 2 * size + 16], 3 * size) == size
    for tail in (bytes(100), b"\xff" * 100, batches[2][:16]):
        assert sound(batches[0] + batches[1] + tail, 2 * size + len(tail)) == 2 * size
    assert sound(batches[0] + high + batches[2][:17], 3 * size) == size
    assert sound(batches[0] + high + batches[2], 3 * size) == size


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 100)), max_size=12))
def test_what_is_known_is_what_was_added(added: list[tuple[int, int]]) -> None:
    reads = CheckedRanges()
    reads.forget_written(100)
    known: set[int] = set()
    for start, size in added:
        end = min(start + size, 100)
        reads.add(start, end, end * 10)
        known |= set(range(start, end))
        for position in range(100):
            part = reads.end_before(position)
            assert (part is not None and part[0] > position) == (position in known)
            if part is not None and part[0] > position:
                assert {*range(position, part[0])} <= known
                assert part[0] not in known
                assert part[1] == part[0] * 10
            for end in (position + 1, min(position + 7, 100)):
                assert reads.covers(position, end) == ({*range(position, end)} <= known)
        assert reads.whole == (len(known) == 100)
