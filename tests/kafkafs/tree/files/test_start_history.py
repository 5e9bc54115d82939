"""Files that start somewhere else while the past is rewritten; those of other writers."""

from __future__ import annotations

import contextlib
import itertools
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.start_file import StartFile
from kafkafs.tree.handles import Handle
from storage.errors import SegmentGone
from storage.record.control import ABORT, COMMIT
from tests.broker_files import BrokerDirectory, BrokerPartition
from tests.kafkafs.start_files import fill, forget, lines, start_file, text
from tests.kafkafs.tree.partition.test_transactions import Producer
from tests.kafkafs.trees import Following, Tree, a_tree, clean, in_thread, read
from tests.storage.logs import append
from tests.storage.old_logs import encode_entry


def check(handle: Handle, expected: bytes) -> None:
    for position in range(0, len(expected) + 3, 7):
        assert read(handle, position, 20) == expected[position : position + 20]


def test_retention_below_the_start_changes_nothing(tree: Tree) -> None:
    fill(tree)
    file = start_file(tree, "0@25")
    handle = tree.open(file)
    tree.remove_head(2)
    in_thread(tree.fs.partitions.housekeeping)
    tree.delete_files()
    assert start_file(tree, "0@25") is file
    check(handle, lines(25, 40))
    tree.append("t/0", b"more\n")
    check(handle, lines(25, 40) + b"more\n")
    handle.release()
    # Nobody is left who would mind.
    assert start_file(tree, "0@25").inode != file.inode
    assert text(tree, "0@25") == lines(25, 40) + b"more\n"


def test_retention_of_what_it_shows(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkafs.tree.partition.generations.KEPT", 15)
    fill(tree)
    file, ranged = start_file(tree, "0@5"), start_file(tree, "0@5..18")
    handle, of_range = tree.open(file), tree.open(ranged)
    tree.remove_head(2)
    check(handle, lines(5, 40))
    check(of_range, lines(5, 18))
    # The name has another history now.
    assert start_file(tree, "0@5").inode != file.inode
    assert text(tree, "0@5") == lines(20, 40)
    assert text(tree, "0@5..18") == b""
    in_thread(tree.fs.partitions.housekeeping)
    tree.delete_files()
    with pytest.raises(SegmentGone):
        read(handle, 0, 10)
    cut = len(lines(5, 20))
    assert read(handle, cut - 15) == lines(5, 40)[cut - 15 :]
    assert tree.attributes(file).size == len(lines(5, 40))
    assert tree.attributes(ranged).size == len(lines(5, 18))
    assert read(of_range, len(lines(5, 18))) == b""


def test_a_log_start_behind_its_start(tree: Tree) -> None:
    """The name refers to records that exist, also while a program has deleted ones open."""
    fill(tree)
    names = ("0@5", "0@5..18", "0@15")
    files = [start_file(tree, name) for name in names]
    handles = [tree.open(file) for file in files]
    tree.log().raise_log_start(12)
    assert [text(tree, name) for name in names] == [lines(12, 40), lines(12, 18), lines(15, 40)]
    assert [start_file(tree, name) is file for name, file in zip(names, files, strict=True)] == [
        False,
        False,
        True,
    ]
    for handle, expected in zip(handles, (lines(5, 40), lines(5, 18), lines(15, 40)), strict=True):
        check(handle, expected)
        handle.release()
    assert tree.fs.start_names.held == {}


def test_a_file_that_nobody_has_open_holds_nothing(tree: Tree) -> None:
    fill(tree)
    for start in range(20):
        tree.read(start_file(tree, f"0@{start}"))
    view = tree.file().text
    assert len(view.timeline.open) == 1, "the partition's own"
    assert list(tree.file().partition.known) == [tree.file().inode]
    tree.notices.clear()
    tree.append("t/0", b"x\n")
    assert len(tree.notices.attributes) <= 1


def test_beside_a_broker(home: Path) -> None:
    broker = BrokerDirectory(home / "data")
    partition = broker.partition()
    for number in range(4):
        partition.append(b"a%d" % number)
        partition.append(b"b%d" % number, b"c%d" % number)
        partition.roll()
    tree = Tree(broker.data, Following(read_only=True))
    try:
        file, ranged = start_file(tree, "0@7"), start_file(tree, "0@7..13")
        handle, of_range = tree.open(file), tree.open(ranged)
        assert read(handle) == b"b2\nc2\na3\nb3\nc3\n"
        for value in (b"a4", b"b4"):
            partition.append(value)
            tree.attributes(file)
        assert tree.attributes(file).size == 21
        assert tree.attributes(ranged).size == 18
        assert read(of_range) == b"b2\nc2\na3\nb3\nc3\na4\n"
        partition.delete_head(2)
        assert tree.attributes(file).size == 21
        assert start_file(tree, "0@7") is file
        # A new leader cuts what nobody else has got, and goes on otherwise.
        partition.truncate(13)
        partition.append(b"other", b"and more")
        size = tree.attributes(file).size
        assert size == 21 + len(b"other\nand more\n")
        assert read(handle, 21) == b"other\nand more\n"
        assert read(handle, 0, 18) == b"b2\nc2\na3\nb3\nc3\na4\n"[:18]
        assert tree.attributes(ranged).size == 18
        assert read(of_range) == b"b2\nc2\na3\nb3\nc3\na4\n"
        assert start_file(tree, "0@7") is not file
        assert text(tree, "0@7") == b"b2\nc2\na3\nb3\nc3\na4\nother\nand more\n"
    finally:
        tree.stop()


@pytest.fixture
def beside(home: Path) -> BrokerPartition:
    """A partition whose broker writes it."""
    partition = BrokerDirectory(home / "data").partition()
    for number in range(3):
        partition.append(b"a%d" % number)
        partition.append(b"b%d" % number, b"c%d" % number)
        partition.roll()
    return partition


FOLLOWING = Following(read_only=True)


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        *[("0", False), ("0@3", True), (".kv/0@3", False), (".batches/0", True)],
        *[("0", True), (".batches/0@3", False)],
    ],
)
def test_a_log_that_is_cut_twice(beside: BrokerPartition, name: str, measured: bool) -> None:
    """Each cut is below the one before. `measured`: stat measures the log between the cuts."""
    with a_tree(beside.data, FOLLOWING) as tree:
        node = tree.file(f"t/{name}")
        handle = tree.open(node)
        for value in (b"x", b"y", b"z"):
            beside.append(value)
            tree.attributes(node)
        seen = read(handle)
        for offset in (beside.next_offset - 1, beside.next_offset - 2, 4, 0):
            beside.truncate(offset)
            tree.fs.partitions.of(tree.log()).follow()
            if measured:
                assert tree.attributes(node).size >= len(seen)
            check_kept(handle, seen)
        assert tree.attributes(node).size >= len(seen)
        beside.append(b"other", b"and more")
        assert tree.attributes(node).size > len(seen)
        check_kept(handle, seen)
        assert tree.read("t/0") == b"other\nand more\n"


def check_kept(handle: Handle, seen: bytes) -> None:
    """Text that a reader has seen is read unchanged, or not at all."""
    position = 0
    while position < len(seen):
        text = b""
        with contextlib.suppress(SegmentGone):
            text = read(handle, position, len(seen) - position)
        assert seen.startswith(text, position)
        position += len(text) or 1


@pytest.mark.parametrize("name", ["0", "0@1"])
def test_a_cut_that_nobody_has_seen_before_the_end(beside: BrokerPartition, name: str) -> None:
    """The history that is saved at the end is the one that was shown."""
    beside.append(b"before")
    beside.append(b"seen")
    tree = Tree(beside.data, FOLLOWING)
    inode = tree.file(f"t/{name}").inode
    tree.read(f"t/{name}")
    beside.truncate(beside.next_offset - 1)
    beside.append(b"else")
    tree.stop()
    tree = Tree(beside.data, FOLLOWING)
    try:
        assert tree.file(f"t/{name}").inode != inode
    finally:
        tree.stop()


def test_a_log_of_kafka_0_7(home: Path) -> None:
    directory = home / "data" / "t-0"
    directory.mkdir(parents=True)
    ids, texts, at = [], [], 0
    for file, mtime in enumerate((1_000_000, 2_000_000, 3_000_000)):
        base, data = at, b""
        for number in range(30):
            entry = encode_entry(b"%d/%d" % (file, number), magic=number % 2)
            ids.append(at)
            texts.append(b"%d/%d\n" % (file, number))
            data += entry
            at += len(entry)
        path = directory / f"{base:020d}.kafka"
        path.write_bytes(data)
        os.utime(path, (mtime, mtime))
    with a_tree(home / "data", MountOptions(read_only=True)) as tree:
        for number in (0, 1, 29, 30, 31, 59, 60, 89):
            assert text(tree, f"0@{ids[number]}") == b"".join(texts[number:])
            # Offsets are bytes there: the next record has the next id.
            assert text(tree, f"0@{ids[number] + 1}") == b"".join(texts[number + 1 :])
            assert text(tree, f"0@{ids[0]}..{ids[number]}") == b"".join(texts[:number])
        for count in (0, 1, 29, 30, 31, 90, 99):
            assert text(tree, f"0@-{count}") == b"".join(texts[max(90 - count, 0) :])
        # Only files have times: from the newest one that was last written then, or before.
        for seconds, first in ((500_000, 0), (1_500_000, 0), (2_500_000, 30), (4_000_000, 60)):
            moment = datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
            assert text(tree, f"0@{moment}Z") == b"".join(texts[first:])
        assert (
            text(tree, f".batches/0@{ids[31]}..{ids[33]}")
            == tree.read("t/.batches/0")[ids[31] : ids[33]]
        )
        raw = tree.directory("t/.raw/0").names()
        assert raw == sorted(path.name for path in directory.iterdir())
        assert [tree.read(f"t/.raw/0/{name}") for name in raw] == [
            (directory / name).read_bytes() for name in raw
        ]
        rows = tree.read("t/.meta/0/segments").decode().splitlines()[1:]
        assert [row.split()[0] for row in rows] == [str(int(name[:20])) for name in raw]
        offsets = tree.read("t/.meta/0/offsets").decode()
        assert offsets.startswith(f"log_start 0\nlog_end {at}\n")


# -- any history -----------------------------------------------------------------------------------


class Model:
    """A log as a list, and files that are open: what each must show."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        # (offset, line, producer), of those that are in the log.
        self.content: list[tuple[int, bytes, int]] = []
        self.files: list[tuple[StartFile, Handle, list[tuple[int, bytes, int]], int, int]] = []
        self.ended: dict[int, bool] = {}
        self.producer: Producer | None = None
        self.transactional = False

    def append(self, count: int) -> None:
        log = self.tree.log()
        values = [b"%d:%d" % (log.log_end_offset, n) for n in range(count)]
        number = 0
        first = log.log_end_offset
        if self.producer is not None and count % 2:
            number = self.producer.number
            self.producer.send(*values)
        else:
            append(log, *values)
        for n, value in enumerate(values):
            self._add((first + n, value + b"\n", number))

    def _add(self, record: tuple[int, bytes, int]) -> None:
        self.content.append(record)
        for _, _, content, _, _ in self.files:
            content.append(record)

    def begin(self) -> None:
        if self.producer is None:
            self.producer = Producer(self.tree.log(), len(self.ended) + 1)
            self.producer.send(b"first of it")
            self._add((self.tree.log().log_end_offset - 1, b"first of it\n", self.producer.number))
            self.transactional = True

    def end(self, commit: bool) -> None:
        if self.producer is not None:
            self.producer.end(COMMIT if commit else ABORT)
            self.ended[self.producer.number] = commit
            self.producer = None

    def remove_head(self) -> None:
        if len(self.tree.log().segments) > 1 and self.producer is None:
            self.tree.remove_head(1)
            start = self.tree.log().log_start_offset
            self.content = [record for record in self.content if record[0] >= start]

    def clean(self) -> None:
        count = len(self.tree.log().segments) - 1
        if count and not self.transactional:
            end = self.tree.log().segments[count].base_offset
            clean(self.tree.log(), count, lambda record: record.offset % 3 == 0)
            self.content = [r for r in self.content if r[0] >= end or r[0] % 3]

    def open(self, back: int, length: int | None) -> None:
        log = self.tree.log()
        start = max(log.log_end_offset - back, log.log_start_offset)
        end = 1 << 40 if length is None else start + length
        name = f"t/0@{start}" + ("" if length is None else f"..{end}")
        file = self.tree.file(name)
        assert isinstance(file, StartFile)
        handle = self.tree.open(file)
        self.files.append((file, handle, list(self.content), start, end))

    def forget(self) -> None:
        if not self.files:
            forget(self.tree)

    def close(self) -> None:
        if self.files:
            self.files.pop(0)[1].release()

    def check(self) -> None:
        bound = self.tree.log().last_stable_offset
        for file, handle, content, start, end in self.files:
            text_ = b"".join(
                line
                for offset, line, producer in content
                if start <= offset < min(end, bound) and self.ended.get(producer, not producer)
            )
            assert self.tree.attributes(file).size == len(text_)
            assert read(handle) == text_
            assert read(handle, len(text_) // 2, 30) == text_[len(text_) // 2 :][:30]


HEAD: list[tuple[object, ...]] = [("remove_head",)]
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("open"), st.integers(0, 12), st.none() | st.integers(0, 15)),
    st.tuples(
        st.sampled_from(["roll", "remove_head", "clean", "begin", "close", "check", "whole"])
    ),
    st.tuples(st.just("end"), st.booleans()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=25))
# Text that an open transaction held back is deleted before a reader has seen it.
@example(steps=[("begin",), ("append", 2), ("open", 1, None), ("roll",), ("end", False), *HEAD])
@example(steps=[("begin",), ("open", 0, None), ("append", 1), ("roll",), ("end", True), *HEAD])
def test_any_history(tmp_path: Path, steps: list[tuple[object, ...]]) -> None:
    """An open file shows one text, whatever happens to the log."""
    number = next(_numbers)
    with a_tree(tmp_path / f"data{number}") as tree:
        tree.mkdir("t")
        model = Model(tree)
        model.append(5)
        for name, *arguments in steps:
            if name == "roll":
                tree.roll()
            elif name == "whole":
                tree.file()
            else:
                getattr(model, str(name))(*arguments)
        model.check()
        model.end(True)
        model.append(3)
        model.check()


_numbers = itertools.count()
