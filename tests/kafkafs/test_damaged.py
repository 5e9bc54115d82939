"""Views of a log in which damage was found: EIO where it lies, everything else can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Record, encode
from storage.errors import CorruptRecord
from storage.log.append import append_batches
from storage.record.control import COMMIT
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.task import Task
from storage.verify.log_checker import LogChecker
from tests.kafkafs.trees import Clock, Tree, read
from tests.storage.transactions import Client, marker

CLOCK = Clock()
VIEWS = ("t/0", "t/.kv/0", "t/.jsonl/0", "t/.batches/0")
COUNT = 400


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    made.mkdir("t")
    yield made
    made.manager.abandon()


def fill(tree: Tree, per_batch: int = 1, codec: str = "uncompressed", size: int = 60) -> None:
    """Records of `size` bytes and more, whose values are their numbers and filling."""
    tree.manager.change_topic_settings("t", {"compression.type": codec})
    for first in range(0, COUNT, per_batch):
        records = [
            Record(n, CLOCK.ms(), 0, b"k%d" % (first + n), b"%d:" % (first + n) + b"x" * size)
            for n in range(per_batch)
        ]
        tree.log().append(bytearray(encode(records)), now_ns=CLOCK.now_ns)


def damage(tree: Tree, *numbers: int, at: int = 70) -> None:
    """Flip a bit of these batches in the file, and let the checker look."""
    segment = tree.log().active
    batches = list(SegmentReader(segment).batches())
    fd = os.open(segment.log_path, os.O_RDWR)
    for number in numbers:
        position = batches[number][0] + at
        byte = os.pread(fd, 1, position)[0]
        os.pwrite(fd, bytes([byte ^ 8]), position)
    os.close(fd)
    LogChecker(tree.manager.logs, CLOCK.ms).run_newest(Task())
    assert segment.damages


def numbered(whole: bytes, first: int, last: int) -> tuple[int, int]:
    """Where the lines of the records `first` to `last` begin and end."""
    lines = whole.split(b"\n")
    start = sum(len(line) + 1 for line in lines[:first])
    return start, start + sum(len(line) + 1 for line in lines[first : last + 1])


def check(tree: Tree, path: str, before: bytes, lost: list[tuple[int, int]], step: int) -> None:
    """Every read gets what it did, up to what is lost; one that begins there fails."""
    handle = tree.open(path)
    for position in range(0, len(before), step):
        if any(start <= position < end for start, end in lost):
            with pytest.raises(CorruptRecord):
                read(handle, position, 50)
            continue
        until = min([position + 50, *(start for start, _ in lost if start > position)])
        assert read(handle, position, 50) == before[position:until], position
    handle.release()


@pytest.mark.parametrize(("per_batch", "codec"), [(1, "uncompressed"), (20, "lz4")])
@pytest.mark.parametrize("at", [9, 16, 60, 70])
def test_all_else_is_read_as_before(tree: Tree, per_batch: int, at: int, codec: str) -> None:
    fill(tree, per_batch, codec)
    before = {path: tree.read(path) for path in VIEWS}
    batches = list(SegmentReader(tree.log().active).batches())
    damaged = [0, len(batches) // 2, len(batches) - 1]
    damage(tree, *damaged, at=at)
    tree.append("t/0", b"behind it\n")
    for path in VIEWS:
        if path.endswith(".batches/0"):
            lost = [
                (batches[number][0], batches[number][0] + batches[number][1].size)
                for number in damaged
            ]
        else:
            lost = [
                numbered(before[path], number * per_batch, (number + 1) * per_batch - 1)
                for number in damaged
            ]
        check(tree, path, before[path], lost, 37)
        assert b"behind it" in tree.read(path, len(before[path]))


@pytest.mark.parametrize(
    ("at", "codec", "number"),
    [
        *[(9, "uncompressed", 0), (16, "uncompressed", 10), (60, "uncompressed", 19)],
        *[(9, "lz4", 19), (60, "lz4", 0), (70, "lz4", 10)],
    ],
)
def test_a_range_that_ends_in_damage(tree: Tree, at: int, codec: str, number: int) -> None:
    """No range of damaged records is empty, and none seems to be whole."""
    fill(tree, 20, codec)
    before = {path: tree.read(path) for path in VIEWS[:3]}
    first, last = 20 * number, 20 * number + 19
    damage(tree, number, at=at)
    for path in VIEWS:
        for offset in range(first, last + 1):
            with pytest.raises(CorruptRecord, match=f"offsets {first} to {last} are damaged"):
                tree.read(f"{path}@{offset}..{offset + 1}")
    for path, whole in before.items():
        lines = whole.splitlines(keepends=True)
        if first:
            handle = tree.open(f"{path}@{first - 2}..{first + 3}")
            sound = b"".join(lines[first - 2 : first])
            assert read(handle, 0, len(sound)) == sound
            with pytest.raises(CorruptRecord):
                read(handle, len(sound), 1 << 20)
            handle.release()
        with pytest.raises(CorruptRecord):
            tree.read(f"{path}@{first + 3}..{last + 3}")
        assert tree.read(f"{path}@{last + 1}..{last + 3}") == b"".join(lines[last + 1 : last + 3])


def test_what_shows_nothing_is_passed(tree: Tree) -> None:
    """A damaged marker of a transaction."""
    log = tree.log()
    client = Client(log, 7)
    client.send(b"one", timestamp_ms=CLOCK.ms())
    append_batches(log, marker(7, COMMIT), now_ns=CLOCK.now_ns)
    tree.append("t/0", b"two\nthree\n")
    assert tree.read("t/0") == b"one\ntwo\nthree\n"
    damage(tree, 1, at=65)
    handle = tree.open("t/0")
    assert read(handle) == b"one\ntwo\nthree\n"
    assert read(handle, 4) == b"two\nthree\n"
    handle.release()


def test_neighbours_and_places_far_from_each_other(tree: Tree) -> None:
    fill(tree)
    before = {path: tree.read(path) for path in VIEWS[:3]}
    damage(tree, 50, 51, 300)
    for path, whole in before.items():
        lost = [numbered(whole, 50, 51), numbered(whole, 300, 300)]
        check(tree, path, whole, lost, 41)


@pytest.mark.parametrize("at", [9, 70])
@pytest.mark.parametrize(("path", "stand_in"), [("t/0", b"\n"), ("t/.kv/0", b"\t\n")])
def test_a_view_that_is_measured_afterwards(
    tree: Tree, path: str, stand_in: bytes, at: int
) -> None:
    """A damaged record counts as it was, or else as the line of an empty record."""
    fill(tree)
    damage(tree, 200, at=at)
    keys = [b"k%d\t" % n if "kv" in path else b"" for n in range(COUNT)]
    lines = [b"%s%d:%s\n" % (key, n, b"x" * 60) for n, key in enumerate(keys)]
    if at == 9:
        lines[200] = stand_in
    whole = b"".join(lines)
    assert tree.attributes(tree.node(path)).size == len(whole)
    check(tree, path, whole, [numbered(whole, 200, 200)], 31)


@pytest.mark.parametrize("measured", [True, False])
def test_names_that_begin_at_an_offset(tree: Tree, measured: bool) -> None:
    fill(tree)
    whole = tree.read("t/0") if measured else b""
    damage(tree, 200, 201)
    lines = [b"%d:%s\n" % (n, b"x" * 60) for n in range(COUNT)]
    assert not measured or whole == b"".join(lines)
    for first in (202, 203, 230, 399):
        assert tree.read(f"t/0@{first}") == b"".join(lines[first:])
    assert tree.read("t/0@-5") == b"".join(lines[-5:])
    assert tree.read("t/0@150..200") == b"".join(lines[150:200])
    for first in (200, 201):
        with pytest.raises(CorruptRecord):
            tree.read(f"t/0@{first}")
    assert tree.read("t/0@199") == lines[199]


def test_the_file_itself_is_shown_as_it_is(tree: Tree) -> None:
    fill(tree)
    segment = tree.log().active
    damage(tree, 10)
    raw = tree.read(f"t/.raw/0/{Path(segment.log_path).name}")
    assert raw == Path(segment.log_path).read_bytes()


@pytest.mark.parametrize("path", VIEWS[:3])
@pytest.mark.parametrize("number", [1, 150, COUNT - 2])
def test_what_lies_behind_damage_can_be_what_is_read_first(
    tree: Tree, path: str, number: int
) -> None:
    """An entry of the line index leads to a batch before the damage, which nobody knows of."""
    fill(tree)
    before = tree.read(path)
    segment = tree.log().active
    position = list(SegmentReader(segment).batches())[number][0] + 70
    tree.roll()
    with Path(segment.log_path).open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 8]))
    start, end = numbered(before, number, number)
    handle = tree.open(path)
    assert not segment.damages
    assert read(handle, end + 3, 50) == before[end + 3 : end + 53]
    assert [place.first_offset for place in segment.damages] == [number]
    with pytest.raises(CorruptRecord):
        read(handle, start, 50)
    handle.release()


CHANGES = {
    "a value, to a quote": (80, b'"', VIEWS[2:3]),
    "a value, to a newline": (80, b"\n", VIEWS[1:3]),
    "a key, to a TAB": (68, b"\t", VIEWS[1:3]),
    "a value's length": (72, b"\x40", VIEWS[:3]),
    "a record's length": (61, b"\x20", VIEWS[:3]),
    "the base offset": (7, b"\x07", VIEWS[2:3]),
    "the batch's length": (11, b"\x40", VIEWS[:3]),
    "the format": (16, b"\x01", VIEWS[:3]),
}


@pytest.mark.parametrize(
    ("path", "at", "byte"),
    [
        pytest.param(path, at, byte, id=f"{name}, {path}")
        for name, (at, byte, paths) in CHANGES.items()
        for path in paths
    ],
)
def test_bytes_that_change_after_they_were_read(
    tree: Tree, path: str, at: int, byte: bytes
) -> None:
    """No name begins inside a record, before the checker has been there and afterwards."""
    fill(tree, size=300)
    segment = tree.log().active
    tree.roll()
    whole = tree.read(path)
    changed = (200, 203)
    # No entry of the line index says where the lines between the two are.
    lost = range(changed[0], changed[1] + 1)
    batches = list(SegmentReader(segment).batches())
    with Path(segment.log_path).open("r+b") as file:
        for number in changed:
            file.seek(batches[number][0] + at)
            assert file.read(1) != byte
            file.seek(-1, os.SEEK_CUR)
            file.write(byte)

    def check_names() -> None:
        for first in range(191, 214):
            start, end = numbered(whole, first, first)
            name = f"{path}@{first}" if first % 2 else f"{path}@-{COUNT - first}"
            if first in lost:
                with pytest.raises(CorruptRecord):
                    tree.read(name)
            else:
                assert tree.read(name, 0, end - start) == whole[start:end], first
            if first > lost[-1]:
                assert tree.read(name, 0, 4000) == whole[start : start + 4000], first

    check_names()
    LogChecker(tree.manager.logs, CLOCK.ms).run_sealed(Task())
    check_names()


def test_a_change_before_the_entry_nearest_to_an_offset(tree: Tree) -> None:
    """The offset index leads to a batch that is several entries of the line index before."""
    fill(tree, size=20)
    segment = tree.log().active
    tree.roll()
    whole = tree.read("t/.jsonl/0")
    position = list(SegmentReader(segment).batches())[235][0] + CHANGES["a value, to a newline"][0]
    with Path(segment.log_path).open("r+b") as file:
        file.seek(position)
        file.write(b"\n")
    start, end = numbered(whole, 258, 258)
    assert tree.read("t/.jsonl/0@258", 0, end - start) == whole[start:end]


@pytest.mark.parametrize("byte", [b"\n", b"\xff"])
def test_a_segment_whose_text_has_another_length_than_it_had(tree: Tree, byte: bytes) -> None:
    """A reader that comes to its end gets an error once, and finds the damage."""
    fill(tree)
    segment = tree.log().active
    position = list(SegmentReader(segment).batches())[10][0] + 80
    tree.append("t/.jsonl/0", b'{"value":"%s"}\n' % (b"\\n" * 100))
    tree.roll()
    tree.append("t/0", b"the next segment\n")
    whole = tree.read("t/.jsonl/0")
    with Path(segment.log_path).open("r+b") as file:
        file.seek(position)
        file.write(byte)
    handle = tree.open("t/.jsonl/0")

    def read_on() -> None:
        done = 0
        while done < len(whole):
            done += len(read(handle, done, 5000))

    with pytest.raises(CorruptRecord, match="has changed since"):
        read_on()
    handle.release()
    assert [place.first_offset for place in segment.damages] == [10]
    check(tree, "t/.jsonl/0", whole, [numbered(whole, 10, 10)], 37)


def change(segment: Segment, number: int, at: int) -> None:
    """Flip a bit of a batch in the file, which nobody checks again for now."""
    position = list(SegmentReader(segment).batches())[number][0] + at
    with Path(segment.log_path).open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 8]))


@pytest.mark.parametrize("at", [9, 16, 61])
def test_text_that_was_shown_keeps_its_positions(tree: Tree, at: int) -> None:
    """A transaction ends whose records have changed since they were written, and more text, too."""
    fill(tree)
    shown = tree.read("t/0")
    log = tree.log()
    client = Client(log, 7)
    client.send(b"changed", timestamp_ms=CLOCK.ms())
    change(log.active, 100, 80)
    change(log.active, COUNT, at)
    append_batches(log, marker(7, COMMIT), now_ns=CLOCK.now_ns)
    size = tree.attributes(tree.node("t/0")).size
    assert size > len(shown)
    tree.append("t/0", b"behind it\n")
    handle = tree.open("t/0")
    start, end = numbered(shown, 100, 100)
    assert read(handle, 0, start) == shown[:start]
    assert read(handle, end, len(shown) - end) == shown[end:]
    with pytest.raises(CorruptRecord, match=f"offsets {COUNT} to"):
        read(handle, len(shown))
    assert read(handle, tree.attributes(tree.node("t/0")).size - 10) == b"behind it\n"
    handle.release()


@pytest.mark.parametrize("path", VIEWS)
def test_a_batch_larger_than_what_is_measured_at_a_time(tree: Tree, path: str) -> None:
    """It cannot be measured after some of its records have been."""
    tree.manager.change_topic_settings("t", {"max.message.bytes": "8000000"})
    values = [b"%d" % n * 700_000 for n in range(4)]
    records = [Record(n, CLOCK.ms(), 0, b"k", each) for n, each in enumerate(values)]
    tree.append("t/0", b"before it\n")
    tree.log().append(bytearray(encode(records)), now_ns=CLOCK.now_ns)
    segment = tree.log().active
    tree.log().append(bytearray(encode([records[0]])), now_ns=CLOCK.now_ns)
    data = Path(segment.log_path).read_bytes()
    change(segment, 1, data.index(values[3]) - list(SegmentReader(segment).batches())[1][0] - 3)
    size = tree.attributes(tree.node(path)).size
    handle = tree.open(path)
    assert b"0" * 50 in read(handle, size - 600_000)
    handle.release()


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("path", VIEWS)
def test_a_log_that_starts_in_damage(tree: Tree, path: str, is_known: bool) -> None:
    fill(tree, 20)
    tree.log().raise_log_start(45)
    if is_known:
        damage(tree, 2, at=16)
    else:
        change(tree.log().active, 2, 16)
    size = tree.attributes(tree.node(path)).size
    handle = tree.open(path)
    with pytest.raises(CorruptRecord):
        read(handle, 0)
    assert b"399:" in read(handle, size - 200)
    handle.release()
