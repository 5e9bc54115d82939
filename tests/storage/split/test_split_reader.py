"""storage.split.split_reader: a split's records, of any format, and what is wrong with them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage import LogManager
from storage.errors import CorruptRecord, OffsetOutOfRange
from storage.files import Files
from storage.segment.reader import SegmentReader
from storage.split.split_reader import Wanted, read_split
from tests.crash.disk import SimulatedDisk
from tests.oracle import Message, Shown, put_message
from tests.storage.logs import NOW_MS, CountedReads, append, write_settings
from tests.storage.old_logs import messages, old_file, wrapper, write_old
from tests.storage.splitting import (
    EVERYTHING,
    a_log,
    lines,
    plan,
    read,
    read_all,
    records,
)


def test_only_what_is_wanted_is_decoded(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 3)
        (split,) = plan(log)
        (columns,) = read_split(Files(), split, Wanted(*[False] * 6))
        assert columns.rows == 30
        assert not columns.offsets + columns.timestamps
        for name in ("keys", "values", "headers", "timestamp_types"):
            assert getattr(columns, name) is None
        (columns,) = read_split(Files(), split, Wanted(headers=False))
        assert columns.headers is None
        assert columns.values is not None


def test_what_lies_behind_a_split_is_not_looked_at(tmp_path: Path) -> None:
    """A broker appends there, and has preallocated the file perhaps."""
    with a_log(tmp_path) as log:
        lines(log, 3)
        expected = records(log, 0, 30)
        (split,) = plan(log)
    path = Path(split.directory) / f"{0:020}.log"
    stored = path.read_bytes()
    for tail in (bytes(1 << 20), stored[:100], b"\xff" * 5000, stored):
        path.write_bytes(stored + tail)
        for chunk in (100, 1 << 20):
            assert read(split, chunk_bytes=chunk) == expected
            assert read(split._replace(to_offset=25), chunk_bytes=chunk) == expected[:25]
    size = len(stored) // 3
    for cut in (len(stored) - 1, 2 * size + 50, 2 * size + 5):
        path.write_bytes(stored[:cut])
        with pytest.raises(OffsetOutOfRange, match="runs from 0 to 20"):
            read(split)
    # The size of the second batch is wrong.
    path.write_bytes(stored[: size + 8] + b"\x7f" + stored[size + 9 :])
    with pytest.raises(CorruptRecord, match="offsets 10 to 19 are damaged"):
        read(split)
    path.write_bytes(stored[:-1] + b"?")
    with pytest.raises(CorruptRecord, match=r"offsets from 20 on are damaged: .*CRC"):
        read(split)


@pytest.mark.parametrize("size", [500, 6000, 9800, 9910, 9920, 9930, 12_000, 30_000])
def test_no_byte_is_read_twice(tmp_path: Path, size: int) -> None:
    """Also with batches near the size of a window, or larger. Only the first batch of a split is
    read before, twice: for the two offsets that its index entry may have.
    """
    with a_log(tmp_path) as log:
        for _ in range(20):
            append(log, bytes(size))
        (split,) = plan(log)
        (rest,) = plan(log, 7)
    for part, share in ((split, 20), (rest, 13)):
        files = CountedReads()
        assert len(read(part, files, 10_000)) == share
        checked = 2 * log.size // 20 if part.position else 0
        assert files.log_bytes_read == log.size - part.position + checked


def test_damage(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 30)
        log.roll(NOW_MS)
        lines(log, 1)
        expected = records(log, 0, 310)
        splits = plan(log, target=3000)
        path = Path(log.directory) / f"{0:020}.log"
    stored = path.read_bytes()
    size = len(stored) // 30
    wrong = bytearray(stored)
    at = stored.index(b"17.3x")
    wrong[at] ^= 1
    path.write_bytes(wrong)
    batch = stored.rindex((170).to_bytes(8, "big"), 0, at)
    sound: list[Shown] = []
    for split in splits:
        if split.from_offset <= 170 < split.to_offset:
            with pytest.raises(CorruptRecord, match="CRC") as caught:
                read(split)
            error = caught.value
            assert (error.path, error.position, error.offset) == (str(path), batch, 170)
        else:
            sound += read(split)
    assert sound == [row for row in expected if row in sound]
    assert len(sound) >= 310 - 3 * 3000 // size * 10
    # No CRC covers a base offset.
    far = bytearray(stored)
    far[batch : batch + 8] = (5000).to_bytes(8, "big")
    path.write_bytes(far)
    with pytest.raises(CorruptRecord, match="5000 is not below 300") as caught:
        read(splits[0]._replace(to_offset=310))
    assert caught.value.position == batch
    between = bytearray(stored)
    between[batch : batch + 8] = (300).to_bytes(8, "big")
    path.write_bytes(between)
    with pytest.raises(CorruptRecord, match="300 is not below 300"):
        read(splits[0]._replace(to_offset=310))
    near = bytearray(stored)
    near[batch : batch + 8] = (160).to_bytes(8, "big")
    path.write_bytes(near)
    with pytest.raises(CorruptRecord, match="160 is below 170"):
        read(splits[0]._replace(to_offset=310))
    path.write_bytes(stored[:-10])
    with pytest.raises(CorruptRecord, match="extends beyond the end of the log") as caught:
        read(splits[0]._replace(to_offset=310))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("call", ["open", "pread"])
def test_an_index_that_cannot_be_read(tmp_path: Path, call: str) -> None:
    """It is not needed: neither to find the start, nor to find the end of damage."""
    with a_log(tmp_path) as log:
        lines(log, 30)
        log.roll(NOW_MS)
        lines(log, 1)
        (split,) = plan(log, 105)
        expected = records(log, 105, 310)
    split = split._replace(position=0)
    disk = SimulatedDisk(str(tmp_path))
    disk.fail_next(call, errno.EACCES, suffix=".index", times=-1)
    assert read(split, disk) == expected
    path = Path(split.directory) / f"{0:020}.log"
    stored = bytearray(path.read_bytes())
    stored[stored.index(b"17.3x")] ^= 1
    path.write_bytes(stored)
    with pytest.raises(CorruptRecord, match="offsets 170 to 179 are damaged"):
        read(split, disk)


@pytest.mark.parametrize("number", [0, 3, 14, 15, 16, 29])
def test_a_base_offset_hides_no_record(tmp_path: Path, number: int) -> None:
    """No CRC covers one: a split gets all of its records, as they are, or an error."""
    with a_log(tmp_path) as log:
        lines(log, 30)
        log.roll(NOW_MS)
        lines(log, 1)
        splits = plan(log, target=3000)
        splits += [split._replace(to_offset=split.to_offset - 3) for split in splits]
        expected = [read(split) for split in splits]
        path = Path(log.directory) / f"{0:020}.log"
        position, header = list(SegmentReader(log.segments[0]).batches())[number]
    sound = path.read_bytes()
    for bit in (0, 1, 2, 4, 7, 9, 20, 62):
        stored = bytearray(sound)
        stored[position + 7 - bit // 8] ^= 1 << bit % 8
        path.write_bytes(stored)
        touched = 0
        for split, rows in zip(splits, expected, strict=True):
            for chunk in (1000, 1 << 20):
                try:
                    found = read(split, chunk_bytes=chunk)
                except CorruptRecord:
                    touched += 1
                    continue
                assert found == rows, (split, header, bit)
        assert touched, bit


# -- other formats -------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_positions_of_a_segment_that_was_rewritten(
    tmp_path: Path, planned: bool, magic: int, codec: int
) -> None:
    """A cleaner has put a later batch where the plan or the index had one."""

    def stored(first: int, count: int) -> bytes:
        some = messages(first, count, magic)
        if codec:
            return wrapper(some, magic, codec)
        return b"".join(put_message(message, magic) for message in some)

    directory = tmp_path / "t-0"
    directory.mkdir()
    path = directory / f"{0:020}.log"
    path.write_bytes(stored(0, 90) + stored(90, 10) + stored(100, 100))
    write_settings(tmp_path, log_index_interval_bytes=1)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        assert read_all(plan(log, 100)) == records(log, 100, 200)
        (split,) = plan(log, 100)
    empty = put_message(Message(120, None, b"", NOW_MS), magic)
    large = Message(120, None, bytes(split.position - len(empty)), NOW_MS)
    path.write_bytes(put_message(large, magic) + stored(150, 50))
    if not planned:
        # The index is the old one.
        split = split._replace(position=0)
    assert [row.offset for row in read(split)] == [120, *range(150, 200)]


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_format_07(tmp_path: Path, chunk: int) -> None:
    first = old_file(b"one", b"two", b"three" * 20)
    second = old_file(b"four", b"", b"six")
    directory = write_old(tmp_path, "t", first, second)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        end = log.log_end_offset
        expected = records(log, 0, end)
        for row in expected:
            assert row.timestamp == -1
        types = b"".join(
            columns.timestamp_types or b""
            for split in plan(log)
            for columns in read_split(Files(), split)
        )
        assert types == b"\xff" * 4 * len(expected)
        for target in (1, EVERYTHING):
            splits = plan(log, target=target)
            assert len(splits) == (2 if target == 1 else 1)
            assert read_all(splits, chunk) == expected
            for a, b in ((1, end), (expected[2].offset, expected[-2].offset), (5, 6), (0, 1)):
                some = read_all(plan(log, a, b, target), chunk)
                assert some == [row for row in expected if a <= row.offset < b]
        (split,) = plan(log)
        last = directory / f"{len(first):020}.kafka"
        last.write_bytes(second + b"\0\0\0")
        assert read(split, chunk_bytes=chunk) == expected
        wrong = bytearray(first)
        wrong[first.index(b"two")] ^= 1
        (directory / f"{0:020}.kafka").write_bytes(wrong)
        with pytest.raises(CorruptRecord) as caught:
            read(split, chunk_bytes=chunk)
        assert caught.value.position == caught.value.offset == expected[1].offset
