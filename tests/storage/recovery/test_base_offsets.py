"""A batch with a wrong base offset in the segment that was active: EIO there, and nowhere else.

No CRC covers a base offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from storage.log.salvage import salvage
from storage.record.header import parse_header
from storage.verify.verify import verify
from tests.storage.logs import (
    NOW_MS,
    NOW_NS,
    append,
    log_file,
    opened,
    readable,
    values,
    write_settings,
)
from tests.storage.transactions import Client, new_log

COUNT = 8
STOPS = ["clean", "flushed", "unflushed"]


def lines(n: int) -> list[bytes | None]:
    """Two records; those of a few batches need an index entry of their own."""
    return [b"%d.%d" % (n, m) + b"x" * (2000 if n % 3 == 2 else 0) for m in range(2)]


LINES = [line for n in range(COUNT) for line in lines(n)]


def fill(data: Path, stop: str, segments: int = 1) -> None:
    """Write batches of two records into the last segment. All or none of them are flushed."""
    manager = LogManager.open(str(data))
    log = manager.create_topic("t", 1).partitions[0]
    for n in range(COUNT):
        if n == 2 and segments > 1:
            log.roll(NOW_MS)
        append(log, *lines(n), timestamp_ms=NOW_MS + n)
    if stop != "unflushed":
        log.flush()
        manager.checkpoint()
    manager.close() if stop == "clean" else manager.abandon()


def encode_at(offset: int, values: Sequence[bytes | None]) -> bytes:
    records = [Record(offset + n, NOW_MS, 0, None, value) for n, value in enumerate(values)]
    return bytes(encode(records))


def move(path: Path, number: int, base: int) -> None:
    """Give one of a log's batches another base offset."""
    data = bytearray(path.read_bytes())
    at = 0
    for _ in range(number):
        at += parse_header(data, at).size
    data[at : at + 8] = base.to_bytes(8, "big", signed=True)
    path.write_bytes(data)


def without(*numbers: int) -> list[bytes | None]:
    return [None if n // 2 in numbers else line for n, line in enumerate(LINES)]


def check(data: Path, expected: list[bytes | None]) -> None:
    """So it is at each start, and it is appended to behind."""
    for n in range(3):
        with LogManager.open(str(data), read_only=True) as manager:
            assert readable(manager.log("t", 0)) == expected
        with LogManager.open(str(data)) as manager:
            log = manager.log("t", 0)
            assert manager.cuts == []
            assert readable(log) == expected
            assert append(log, b"more %d" % n) == len(expected)
            expected = [*expected, b"more %d" % n]
            assert readable(log) == expected


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    "moved",
    [
        *({0: by} for by in (1, 3, 1 << 62)),
        *({1: by} for by in (-1, 7, 1000)),
        *({5: by} for by in (1, -5000, 1 << 40)),
        {1: 898, 3: -6, 5: 1 << 50},
    ],
)
def test_some_that_others_follow(tmp_path: Path, moved: dict[int, int], stop: str) -> None:
    fill(tmp_path, stop)
    for number, by in moved.items():
        move(log_file(tmp_path, 0), number, 2 * number + by)
    check(tmp_path, without(*moved))


@pytest.mark.parametrize("stop", STOPS[:2])
@pytest.mark.parametrize("by", [-5000, -1])
def test_the_last_one_that_falls(tmp_path: Path, by: int, stop: str) -> None:
    """Flushed: the log ends where it was known to end."""
    fill(tmp_path, stop)
    move(log_file(tmp_path, 0), COUNT - 1, 2 * COUNT - 2 + by)
    check(tmp_path, without(COUNT - 1))


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("by", [1, 1000])
@pytest.mark.parametrize("base", [0, 4])
def test_the_last_one_of_each_segment(tmp_path: Path, base: int, by: int, stop: str) -> None:
    fill(tmp_path, stop, segments=2)
    manager = LogManager.open(str(tmp_path))
    manager.log("t", 0).roll(NOW_MS)
    append(manager.log("t", 0), b"newest")
    manager.abandon()
    number = 1 if not base else COUNT - 3
    path = log_file(tmp_path, base)
    move(path, number, base + 2 * number + by)
    check(tmp_path, [*without(base // 2 + number), b"newest"])


@pytest.mark.parametrize("stop", STOPS)
def test_the_last_one_of_the_log_is_not_checked(tmp_path: Path, stop: str) -> None:
    """No batch follows it; Kafka does not check it either."""
    fill(tmp_path, stop)
    move(log_file(tmp_path, 0), COUNT - 1, 100)
    assert verify(str(tmp_path)).faults == []
    with LogManager.open(str(tmp_path)) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == LINES
        assert append(manager.log("t", 0), b"next") == 102


def test_several_above_the_next_segment_end_the_log(tmp_path: Path) -> None:
    """Either segment may be the wrong one: no offset is read twice."""
    fill(tmp_path, "unflushed")
    log_file(tmp_path, 6).write_bytes(b"".join(encode_at(2 * n, lines(n)) for n in (3, 4, 5)))
    with LogManager.open(str(tmp_path)) as manager:
        assert readable(manager.log("t", 0)) == LINES[:6]
        assert len(manager.cuts) == 2
    with LogManager.open(str(tmp_path)) as manager:
        assert readable(manager.log("t", 0)) == LINES[:6]
        assert manager.cuts == []


def test_one_behind_flushed_damage(tmp_path: Path) -> None:
    """Both are damage in their places, though the log is read from an index entry between them."""
    write_settings(tmp_path, log_index_interval_bytes=1)
    fill(tmp_path, "flushed")
    manager = LogManager.open(str(tmp_path))
    for n in range(2):
        append(manager.log("t", 0), *lines(n))
    manager.abandon()
    path = log_file(tmp_path, 0)
    data = bytearray(path.read_bytes())
    at = parse_header(data, 0).size
    data[at + parse_header(data, at).size - 1] ^= 1
    path.write_bytes(data)
    move(path, COUNT, 900)
    expected = [*without(1, COUNT), None, None, *lines(1)]
    with LogManager.open(str(tmp_path)) as manager:
        assert readable(manager.log("t", 0)) == expected
        assert len(manager.faults) == 2
        index = manager.log("t", 0).segments[0].offset_index
        assert index.count > COUNT / 2


@pytest.mark.parametrize("stop", STOPS)
def test_an_abort_marker_that_others_follow(tmp_path: Path, stop: str) -> None:
    """The records of its transaction stay aborted."""
    manager = LogManager.open(str(tmp_path))
    log = new_log(manager)
    Client(log, 7).send(b"in it")
    Client(log, 7).abort()
    append(log, b"after")
    aborted = log.transactions.aborted()
    assert len(aborted) == 1
    if stop != "unflushed":
        log.flush()
        manager.checkpoint()
    manager.close() if stop == "clean" else manager.abandon()
    move(log_file(tmp_path, 0), 1, 900)
    for read_only in (True, False, True):
        with LogManager.open(str(tmp_path), read_only=read_only) as manager:
            assert len(manager.faults) == 1
            assert manager.log("t", 0).transactions.aborted() == aborted


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    ("number", "by"), [(0, 1), (0, 1 << 62), (1, -1), (1, 7), (5, 1), (5, -5000), (5, 1 << 40)]
)
def test_salvage_removes_it_and_keeps_the_others(
    tmp_path: Path, number: int, by: int, stop: str
) -> None:
    fill(tmp_path, stop)
    move(log_file(tmp_path, 0), number, 2 * number + by)
    with LogManager.open(str(tmp_path), verify=True) as manager:
        (cut,) = manager.cuts
        assert "base offset" in cut.reason
        salvage(manager.log("t", 0), NOW_NS)
    with opened(tmp_path) as manager:
        others = [line for n, line in enumerate(LINES) if n // 2 != number]
        assert values(manager.log("t", 0)) == others


def test_a_line_says_where(tmp_path: Path) -> None:
    fill(tmp_path, "clean")
    move(log_file(tmp_path, 0), COUNT - 2, 100)
    with LogManager.open(str(tmp_path)) as manager:
        (fault,) = manager.faults
        assert str(log_file(tmp_path, 0)) in fault
        assert "offsets 12 to 13 are damaged: base offset 100" in fault


def test_a_kill_between_two_checkpoints_is_none(tmp_path: Path) -> None:
    """The appended records lie after the flushed ones, in one batch or in more."""
    write_settings(tmp_path, log_index_interval_bytes=1)
    fill(tmp_path, "flushed")
    expected = list(LINES)
    for n in range(3):
        manager = LogManager.open(str(tmp_path))
        for line in range(n):
            append(manager.log("t", 0), b"%d" % line)
            expected.append(b"%d" % line)
        manager.abandon()
        with LogManager.open(str(tmp_path)) as manager:
            assert manager.faults == []
            assert values(manager.log("t", 0)) == expected


def test_a_log_start_within_a_batch_that_was_not_flushed_is_none(tmp_path: Path) -> None:
    """It moves the recovery point to where no batch ends."""
    manager = LogManager.open(str(tmp_path))
    log = manager.create_topic("t", 1).partitions[0]
    append(log, b"0")
    append(log, b"1", b"2", b"3")
    log.raise_log_start(2)
    manager.checkpoint()
    manager.abandon()
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == [b"2", b"3"]
