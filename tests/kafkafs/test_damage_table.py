"""Every kind of damage, in every place, for every reader: its batch is lost, and nothing else.

Each test closes a partition of three segments, damages one of its files and opens it again. So
nothing has found the damage before the readers do, as after a restart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkafs.mount_options import MountOptions
from storage import Record, encode
from storage.errors import CorruptRecord
from storage.task import Task
from storage.verify.log_checker import LogChecker
from tests.kafkafs.trees import Clock, Tree, read

CLOCK = Clock()
PER_SEGMENT = 10
SEGMENTS = 3
COUNT = SEGMENTS * PER_SEGMENT
PAD = 500


class Fault(NamedTuple):
    """Damages the bytes of a batch. `cuts`: the rest of the segment's file is removed, too."""

    damage: Callable[[bytearray], None]
    cuts: bool = False


def flip(at: int, bit: int = 3) -> Fault:
    def damage(batch: bytearray) -> None:
        batch[at] ^= 1 << bit

    return Fault(damage)


def zeros(start: int, end: int) -> Fault:
    def damage(batch: bytearray) -> None:
        batch[start:end] = bytes(end - start)

    return Fault(damage)


def cut(batch: bytearray) -> None:
    del batch[len(batch) // 2 :]


FAULTS = {
    "base offset, far above": flip(1),
    "base offset, above": flip(7, 4),
    "base offset, below": flip(7, 0),
    "longer than the file": flip(8),
    "a little longer": flip(10),
    "a little shorter": flip(11, 1),
    "magic": flip(16, 2),
    "an older format": flip(16, 1),
    "CRC": flip(18),
    "codec": flip(22, 0),
    "transactional": flip(22, 4),
    "invalid last offset delta": flip(26),
    "record count": flip(60),
    "a record's length": flip(61),
    "a value": flip(200),
    "zeros in the header": zeros(0, 61),
    "zeros from the length on": zeros(8, 100),
    "zeros in a value": zeros(100, 400),
    "all zeros": zeros(0, PAD),
    "truncated": Fault(cut, cuts=True),
}
INSIDE = {
    "in the first segment": 5,
    "in a sealed one": PER_SEGMENT + 5,
    "in the active one": 2 * PER_SEGMENT + 5,
}
AT_AN_END = {
    "the first": 0,
    "the last of a segment": PER_SEGMENT - 1,
    "the first of a sealed one": PER_SEGMENT,
    "the last of a sealed one": 2 * PER_SEGMENT - 1,
}
PLACES = INSIDE | AT_AN_END


def value(number: int) -> bytes:
    return b"%04d:" % number + b"x" * PAD


def line(number: int) -> bytes:
    return value(number) + b"\n"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Batches of one record each; every one but a segment's first is in its index."""
    tree = Tree(tmp_path)
    tree.mkdir("t")
    tree.manager.change_topic_settings("t", {"index.interval.bytes": "0"})
    log = tree.log()
    for number in range(COUNT):
        if number and number % PER_SEGMENT == 0:
            tree.roll()
        record = Record(0, CLOCK.ms(), 0, b"k", value(number))
        log.append(bytearray(encode([record])), now_ns=CLOCK.now_ns)
    for path in ("t/0", "t/.jsonl/0"):
        assert tree.read(path)
    tree.stop()
    return tmp_path / "t-0"


def damage(partition: Path, number: int, fault: Fault) -> tuple[Path, int]:
    """Damage a batch: the segment's file, and where the batch begins in it."""
    path = sorted(partition.glob("*.log"))[number // PER_SEGMENT]
    data = path.read_bytes()
    starts = [0]
    while starts[-1] < len(data):
        at = starts[-1]
        starts.append(at + 12 + int.from_bytes(data[at + 8 : at + 12], "big"))
    start, end = starts[number % PER_SEGMENT : number % PER_SEGMENT + 2]
    batch = bytearray(data[start:end])
    fault.damage(batch)
    path.write_bytes(data[:start] + batch + (b"" if fault.cuts else data[end:]))
    return path, start


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Tree]]:
    trees: list[Tree] = []

    def open_tree(partition: Path) -> Tree:
        trees.append(Tree(partition.parent))
        return trees[-1]

    yield open_tree
    for tree in trees:
        tree.manager.abandon()


def read_all(tree: Tree, path: str, step: int = 1 << 20) -> tuple[bytes, list[int]]:
    """All that can be read, as a reader that steps over what cannot; where it could not."""
    handle = tree.open(path)
    size = tree.attributes(tree.node(path)).size
    found, errors, position = b"", [], 0
    while position < size:
        try:
            data = read(handle, position, min(step, size - position))
        except CorruptRecord:
            errors.append(position)
            position += 1
            continue
        assert data
        found += data
        position += len(data)
    handle.release()
    return found, errors


def without(*numbers: int) -> bytes:
    return b"".join(line(number) for number in range(COUNT) if number not in numbers)


# Each fault inside a segment and at an end of one, each place with several faults.
# (What a log's last file lacks at its end is what a kill leaves: the log ends there.)
TABLE = [
    pytest.param(fault, PLACES[place], id=f"{fault}, {place}")
    for n, fault in enumerate(FAULTS)
    for place in ([*INSIDE][n % len(INSIDE)], [*AT_AN_END][n % len(AT_AN_END)])
    if not (FAULTS[fault].cuts and place == "in the active one")
]


@pytest.mark.parametrize(("name", "number"), TABLE)
def test_its_batch_is_lost_and_nothing_else(
    partition: Path,
    opened: Callable[[Path], Tree],
    name: str,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault = FAULTS[name]
    lost = [number]
    if fault.cuts:
        lost = [*range(number, (number // PER_SEGMENT + 1) * PER_SEGMENT)]
    damaged, start = damage(partition, number, fault)
    tree = opened(partition)
    log = tree.log()
    assert log.log_end_offset == COUNT
    size = tree.attributes(tree.node("t/0")).size
    found, errors = read_all(tree, "t/0", 3 * PAD)
    assert found == without(*lost)
    assert errors == [*range(errors[0], errors[0] + len(errors))], "in one place"
    assert len(found) + len(errors) == size
    said = [message for message in caplog.messages if "Run `kafkafs verify`" in message]
    assert len(said) == 1
    assert f"offsets {lost[0]} to {lost[-1]} are damaged" in said[0]
    assert f"{damaged}, position {start}" in said[0]
    # The other views.
    rows = [json.loads(row) for row in read_all(tree, "t/.jsonl/0", 3 * PAD)[0].splitlines()]
    assert [row["offset"] for row in rows] == [n for n in range(COUNT) if n not in lost]
    # Names that begin somewhere.
    for first in {0, max(lost[0] - 2, 0), lost[-1] + 1, COUNT - 1} - {COUNT}:
        expected = b"".join(line(n) for n in range(first, COUNT) if n not in lost)
        assert read_all(tree, f"t/0@{first}", 3 * PAD)[0] == expected
    with pytest.raises(CorruptRecord):
        tree.read(f"t/0@{number}")
    # Readers of batches.
    for offset in range(COUNT):
        if offset in lost:
            with pytest.raises(CorruptRecord):
                log.read(offset, 1)
        else:
            assert value(offset) in log.read(offset, 1)
    # And it goes on.
    tree.append("t/0", b"behind it\n")
    assert read_all(tree, "t/0", 3 * PAD)[0] == without(*lost) + b"behind it\n"
    assert log.log_end_offset == COUNT + 1


@pytest.mark.parametrize(
    ("number", "at"),
    list(zip(PLACES.values(), [9, 60, 200, 9, 60, 200, 9], strict=True)),
    ids=list(PLACES),
)
def test_of_what_was_appended_here_too(
    partition: Path, opened: Callable[[Path], Tree], number: int, at: int
) -> None:
    """A segment that was closed is read from a disk."""
    tree = opened(partition)
    tree.append("t/0", b"more\n")
    tree.roll()
    assert tree.attributes(tree.node("t/0")).size == len(without()) + 5
    damage(partition, number, flip(at))
    found, errors = read_all(tree, "t/0", 3 * PAD)
    assert found == without(number) + b"more\n"
    assert len(errors) == len(line(number))


@pytest.mark.parametrize(
    ("codec", "name", "number"),
    [
        (codec, name, number)
        for codec, number in (("uncompressed", 5), ("gzip", PER_SEGMENT - 1))
        for name, fault in FAULTS.items()
        if not fault.cuts
        # A last batch could begin there.
        if not (name == "base offset, above" and number == PER_SEGMENT - 1)
    ],
)
def test_of_what_was_appended_here_and_not_measured(
    tmp_path: Path, opened: Callable[[Path], Tree], codec: str, name: str, number: int
) -> None:
    """No stat fails although nobody has checked the bytes since they changed."""
    tree = opened(tmp_path / "t-0")
    tree.mkdir("t")
    settings = {"index.interval.bytes": "0", "compression.type": codec}
    tree.manager.change_topic_settings("t", settings)
    log = tree.log()
    values = [random.Random(n).randbytes(PAD).hex().encode() for n in range(PER_SEGMENT)]
    for each in values:
        record = Record(0, CLOCK.ms(), 0, b"k", each)
        log.append(bytearray(encode([record])), now_ns=CLOCK.now_ns)
    damage(tmp_path / "t-0", number, FAULTS[name])
    for path in ("t/.batches/0", "t/.kv/0", "t/0", "t/.jsonl/0", "t/.follow/0"):
        assert tree.attributes(tree.node(path)).size
    # A wrong CRC alone is found by the checker.
    LogChecker(tree.manager.logs, CLOCK.ms).run_newest(Task())
    sound = [each for n, each in enumerate(values) if n != number]
    assert read_all(tree, "t/0", 3 * PAD)[0].split() == sound
    assert [place.first_offset for place in log.segments[0].damages] == [number]
    tree.append("t/0", b"behind it\n")
    assert read_all(tree, "t/0", 3 * PAD)[0].split(b"\n")[:-1] == [*sound, b"behind it"]


def test_garbage_behind_the_last_batch_of_a_sealed_segment(
    partition: Path, opened: Callable[[Path], Tree], caplog: pytest.LogCaptureFixture
) -> None:
    """No record lies there: who reads on does not meet it."""
    path = sorted(partition.glob("*.log"))[0]
    whole = path.read_bytes()
    path.write_bytes(whole + b"rubbish" * 100)
    tree = opened(partition)
    assert tree.read("t/0") == without()
    assert "700 bytes after the last batch are not a batch" in caplog.text
    assert f"position {len(whole)}" in caplog.text
    tree.append("t/0", b"more\n")
    assert tree.read("t/0") == without() + b"more\n"


def test_batches_in_a_value_stay_in_it(tmp_path: Path, opened: Callable[[Path], Tree]) -> None:
    """A value holds another log, whose batches would fit behind the damage."""
    tree = Tree(tmp_path)
    tree.mkdir("t")
    log = tree.log()
    inner = b"".join(encode([Record(n, CLOCK.ms(), 0, None, b"FORGED")]) for n in range(1, 4))
    for number in range(8):
        held = b"y" * 9000 + inner if number == 0 else b"good %d" % number + b"." * 5000
        record = Record(0, CLOCK.ms(), 0, None, held)
        log.append(bytearray(encode([record])), now_ns=CLOCK.now_ns)
    tree.roll()
    tree.stop()
    path = sorted((tmp_path / "t-0").glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[:200] = bytes(200)
    path.write_bytes(data)
    tree = opened(tmp_path / "t-0")
    found, _ = read_all(tree, "t/0", 4000)
    assert b"FORGED" not in found
    assert [row[:6] for row in found.splitlines()] == [b"good %d" % n for n in range(1, 8)]


def test_a_directory_that_may_not_be_written(
    partition: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a page cache, damage lets the whole read fail. So each read is a line."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    damage(partition, PER_SEGMENT + 8, flip(200))
    tree = Tree(partition.parent, MountOptions(read_only=True))
    try:
        found, errors = read_all(tree, "t/0", len(line(0)))
        assert found == without(PER_SEGMENT + 8)
        assert len(errors) == len(line(PER_SEGMENT + 8))
    finally:
        tree.manager.abandon()
