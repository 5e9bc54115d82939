"""Files that start somewhere else: how they grow, and which inode a name leads to."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from kafkafs.line_index.records import BATCHES_AT_ONCE
from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.start_file import NAMES, StartFile
from storage.files import Files
from storage.record.control import ABORT, COMMIT
from storage.waiting import at_once, may_wait
from tests.kafkafs.start_files import (
    DIRECTORIES,
    Oracle,
    fill,
    forget,
    iso,
    lines,
    start_file,
    text,
)
from tests.kafkafs.tree.partition.test_transactions import Producer
from tests.kafkafs.trees import Tree, a_tree, in_thread, read
from tests.storage.logs import NOW_MS, append


class CachedFiles(Files):
    """Reads that may wait for the disk are errors inside `at_once`. `is_cold`: all others wait."""

    is_cold = False

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        assert may_wait()
        return super().preadv(fd, buffer, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        assert may_wait()
        return super().pread(fd, size, position)

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        return None if self.is_cold else super().preadv_nowait(fd, buffer, position)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_grows_up_to_a_time_that_a_record_reaches(tree: Tree, directory: str) -> None:
    append(tree.log(), b"a", timestamp_ms=NOW_MS)
    file = start_file(tree, f"{directory}0@0..{iso(NOW_MS + 100)}")
    handle = tree.open(file)
    sizes = []
    # One that is late does not end it, and one that is late after the end does not come in.
    for number, timestamp in enumerate((50, 99, 10, 100, 20, 300)):
        append(tree.log(), b"%d" % number, timestamp_ms=NOW_MS + timestamp)
        if number == 2:
            tree.roll()
        sizes.append(tree.attributes(file).size)
    assert sizes == [*sizes[:3], *sizes[2:3] * 3]
    assert sizes[0] < sizes[1] < sizes[2]
    assert read(handle) == Oracle(tree).text(directory, 0, 4)


def test_a_file_that_begins_in_an_open_transaction(tree: Tree) -> None:
    append(tree.log(), b"before")
    one, two = Producer(tree.log(), 1), Producer(tree.log(), 2)
    one.send(b"one", b"two")  # 1, 2
    two.send(b"dropped")  # 3
    append(tree.log(), b"plain", b"plain too")  # 4, 5
    at_two, at_five = start_file(tree, "0@2"), start_file(tree, "0@5..7")
    handles = [tree.open(at_two), tree.open(at_five)]
    at_end = start_file(tree, "0@end")
    for file in (at_two, at_five, at_end):
        assert tree.attributes(file).size == 0
    assert [read(handle) for handle in handles] == [b"", b""]
    two.end(ABORT)  # 6
    append(tree.log(), b"last")  # 7
    assert [read(handle) for handle in handles] == [b"", b""]
    one.end(COMMIT)  # 8
    assert read(handles[0]) == b"two\nplain\nplain too\nlast\n"
    assert read(handles[1]) == b"plain too\n"
    assert tree.attributes(at_two).size == len(b"two\nplain\nplain too\nlast\n")
    # Where a committed reader stood when it looked for the end.
    assert tree.read(at_end) == b"one\ntwo\nplain\nplain too\nlast\n"
    assert tree.file("t/0@2") is at_two


def test_transactions_of_every_count(tree: Tree) -> None:
    """Records that are not shown are not counted."""
    append(tree.log(), b"a", b"b")
    gone, stays = Producer(tree.log(), 1), Producer(tree.log(), 2)
    gone.send(b"x", b"y", b"z")
    gone.end(ABORT)
    stays.send(b"c")
    stays.end(COMMIT)
    append(tree.log(), b"d")
    shown = [b"a\n", b"b\n", b"c\n", b"d\n"]
    for count, measured in itertools.product(range(6), (True, False)):
        if not measured:
            forget(tree)
        assert text(tree, f"0@-{count}") == b"".join(shown[len(shown) - min(count, 4) :])


def test_two_files_of_one_name_are_open(tree: Tree) -> None:
    """Both were looked up before either was opened: the name leads to one of them."""
    fill(tree)
    first = start_file(tree, "0@-10")
    tree.append("t/0", b"x\n")
    second = start_file(tree, "0@-10")
    assert second is not first
    handle = tree.open(first)
    assert start_file(tree, "0@-10") is first
    other = tree.open(second)
    assert start_file(tree, "0@-10") is second
    other.release()
    assert start_file(tree, "0@-10") is first
    assert len(tree.fs.start_names.held) == 1
    handle.release()
    assert tree.fs.start_names.held == {}


def test_however_many_names_lead_to_it_few_are_held(tree: Tree) -> None:
    fill(tree)
    file = start_file(tree, f"0@{10**6}")
    handle = tree.open(file)
    for number in range(2000):
        assert start_file(tree, f"0@{10**6 + number}") is file
    held = tree.fs.start_names.held
    assert len(held) == NAMES
    tree.append("t/0", b"x\n")
    assert start_file(tree, f"0@{10**6 + 1999}") is file
    assert start_file(tree, f"0@{10**6}") is not file
    handle.release()
    assert held == {}


def test_names_of_one_meaning_are_one_inode(tree: Tree) -> None:
    fill(tree)
    inode = start_file(tree, "0@30").inode
    assert start_file(tree, "0@-10").inode == inode
    assert start_file(tree, "0@30..99").inode != inode
    assert start_file(tree, ".kv/0@30").inode != inode
    assert start_file(tree, "0@start").inode != tree.file().inode


def test_not_listed(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", MountOptions(show_dot=True)) as tree:
        tree.mkdir("t")
        start_file(tree, "0@end")
        assert not any("@" in name for name in tree.directory("t").names())
        assert not any("@" in name for name in tree.directory("t/.kv").names())


def test_extended_attributes_are_the_partitions(tree: Tree) -> None:
    fill(tree)
    file, plain = start_file(tree, "0@13"), tree.file()
    assert file.xattr_names() == plain.xattr_names()
    for name in file.xattr_names():
        assert file.xattr(name) == plain.xattr(name)
    plain_attributes, attributes = tree.attributes(plain), tree.attributes(file)
    assert attributes[1] == plain_attributes[1]
    assert attributes.mtime_ns == plain_attributes.mtime_ns
    assert attributes.blocks == plain_attributes.blocks


def test_what_was_looked_up_before_the_past_changed_is_stale(tree: Tree) -> None:
    fill(tree)
    file = start_file(tree, "0@5")
    tree.remove_head(1)
    for ask in (lambda: tree.attributes(file), lambda: tree.open(file)):
        with pytest.raises(OSError, match="rewritten") as caught:
            ask()
        assert caught.value.errno == errno.ESTALE
    assert text(tree, "0@5") == lines(10, 40)


# -- waiting ---------------------------------------------------------------------------------------


def test_what_waits_for_the_disk_is_left_to_a_worker_thread(tmp_path: Path) -> None:
    files = CachedFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        fill(tree)
        topic = tree.directory("t")
        tree.file()
        files.is_cold = True
        for name in ("0@-3", "0@08:00", "0@5..-3", "0@5..08:00"):
            with pytest.raises(BlockingIOError):
                at_once(topic.lookup, name)
            assert isinstance(in_thread(lambda: topic.lookup(name)), StartFile)  # noqa: B023
        # A lookup of an offset reads nothing. stat and open find the position of the offset.
        file = at_once(topic.lookup, "0@5")
        assert file.listed_attributes().size == 0
        with pytest.raises(BlockingIOError):
            at_once(file.attributes)
        with pytest.raises(BlockingIOError):
            at_once(file.open, os.O_RDONLY)
        assert tree.attributes(file).size == len(lines(5, 40))
        assert file.listed_attributes().size == len(lines(5, 40))


@pytest.mark.parametrize("count", [1, 10, 60, 100])
@pytest.mark.parametrize("directory", ["", ".kv/", ".jsonl/"])
def test_the_last_records_are_found_at_once_in_what_is_in_memory(
    tmp_path: Path, directory: str, count: int
) -> None:
    """Within one batch, at the beginning of one, and in the segment before the last one."""
    with a_tree(tmp_path / "data", files=CachedFiles()) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"".join(b"%d\n" % number for number in range(50)))
        tree.roll()
        for start in (50, 90, 99):
            tree.append("t/0", b"".join(b"%d\n" % number for number in range(start, 100)))
        path = f"t/{directory}0"
        records = tree.read(path).splitlines(keepends=True)
        # The entries of a sealed segment are in memory after the first look-up.
        tree.read(f"{path}@-{count}")
        parent = tree.directory(f"t/{directory}".removesuffix("/"))
        node = at_once(parent.lookup, f"0@-{count}")
        text = b"".join(records[-count:])
        assert at_once(node.attributes).size == len(text)
        assert at_once(at_once(node.open, os.O_RDONLY).read, 0, 1 << 20) == text


def test_a_large_batch_is_left_to_a_worker_thread(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", files=CachedFiles()) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"x" * BATCHES_AT_ONCE + b"\nlast\n")
        assert tree.read("t/0")
        with pytest.raises(BlockingIOError):
            at_once(tree.directory("t").lookup, "0@-1")
        assert tree.read("t/0@-1") == b"last\n"


def test_counting_that_takes_long_is_eagain_and_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        append(tree.log(), b"value")
    monkeypatch.setattr("kafkafs.tree.files.start_points.MEASURE_S", 0)
    with a_tree(tmp_path / "data") as tree:
        with pytest.raises(BlockingIOError) as caught:
            tree.node("t/0@-10001")
        assert caught.value.errno == errno.EAGAIN
        assert "lookup of t/0@-10001: indexed 0 of 73 bytes so far" in tree.events()
