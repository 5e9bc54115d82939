"""`.follow` of a directory that a broker writes: the same file for as long as it can be."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.follow_file import HEAD_BYTES, head_line
from storage.errors import SegmentGone
from storage.waiting import at_once
from tests.broker_files import BrokerDirectory, BrokerPartition
from tests.kafkafs.trees import APPEND, CALLER, Following, Tree, a_tree, asked, read
from tests.storage.logs import NOW_MS, append, log_file, remove_head
from tests.storage.state.test_segment_manifest import fill, opened_with_faults

FOLLOWING = Following(read_only=True)
FOLLOW = "t/.follow/0"


class Broker:
    """A broker's partition, and all that was ever in it."""

    def __init__(self, data: Path) -> None:
        self.directory = BrokerDirectory(data)
        self.partition: BrokerPartition = self.directory.partition()
        self.text = b""

    def write(self, count: int) -> None:
        """So many segments of two records."""
        for number in range(count):
            values = [b"%04d%d" % (len(self.text), which) for which in range(2)]
            self.partition.append(*values)
            self.text += b"".join(value + b"\n" for value in values)
            if number < count - 1:
                self.partition.roll()


@pytest.fixture
def broker(home: Path) -> Broker:
    broker = Broker(home / "data")
    broker.write(5)
    return broker


@contextlib.contextmanager
def followed(broker: Broker) -> Iterator[Tree]:
    tree = Tree(broker.directory.data, FOLLOWING)
    try:
        yield tree
    finally:
        tree.stop()


def check(tree: Tree, broker: Broker, first: int) -> int:
    """All is there from a position on, and newlines before it; returns the inode."""
    file = tree.file(FOLLOW)
    assert tree.attributes(file).size == len(broker.text)
    assert asked(file.xattr, "user.kafkafs.first_position") == b"%d" % first
    assert tree.read(file, first) == broker.text[first:]
    assert tree.read(file, first // 2) == b"\n" * (first - first // 2) + broker.text[first:]
    return file.inode


def even(offset: int, value: bytes) -> bool:
    return offset % 2 == 0


def test_positions_stay_while_it_is_mounted(broker: Broker) -> None:
    with followed(broker) as tree:
        inode = check(tree, broker, 0)
        handle = tree.open(FOLLOW)
        broker.partition.delete_head(1)
        assert check(tree, broker, 12) == inode
        broker.partition.clean(2, even)
        assert check(tree, broker, 36) == inode
        broker.partition.roll()
        broker.write(2)
        assert check(tree, broker, 36) == inode
        broker.partition.delete_records(9)
        tree.fs.partitions.tick()
        assert check(tree, broker, 54) == inode
        broker.partition.delete_head(3)
        assert check(tree, broker, 60) == inode
        assert read(handle) == broker.text
        handle.release()


@pytest.mark.parametrize("is_orderly", [True, False])
def test_they_stay_over_remounts_as_the_history_kept_aside_allows(
    broker: Broker, is_orderly: bool
) -> None:
    with followed(broker) as tree:
        inode = check(tree, broker, 0)
        broker.partition.clean(2, even)
        assert check(tree, broker, 24) == inode
        if not is_orderly:
            tree.manager.abandon()
            tree.fs.stop = lambda: None  # type: ignore[method-assign]
            tree.manager.close = lambda: None  # type: ignore[method-assign]
    with followed(broker) as tree:
        assert check(tree, broker, 24) == inode
    # While it is not mounted.
    broker.partition.roll()
    broker.write(1)
    broker.partition.delete_head(3)
    with followed(broker) as tree:
        # The last segment of the last mount is there still: positions are known from there on.
        assert check(tree, broker, 48) == inode
    broker.partition.roll()
    broker.write(1)
    broker.partition.delete_head(len(broker.partition.bases) - 1)
    with followed(broker) as tree:
        assert tree.file(FOLLOW).inode != inode
        assert tree.read(FOLLOW) == broker.partition.text()


@pytest.mark.parametrize("later", [1, 2])
def test_a_segment_vanishes_before_its_roll_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """The writer has not rewritten anything, and text stays where it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    fill(data)
    with opened_with_faults(data) as writer, contextlib.ExitStack() as stack:
        tree = Tree(data, FOLLOWING)
        stack.callback(tree.stop)
        log = writer.log("t", 0)
        inode = tree.file(FOLLOW).inode
        seen = tree.read(FOLLOW)
        remove_head(log, 1, NOW_MS)
        assert tree.file(FOLLOW).inode == inode
        handle = tree.open(FOLLOW)
        stack.callback(handle.release)
        assert read(handle, len(seen)) == b""
        lost = log.log_end_offset
        for number in range(1 + later):
            log.roll(NOW_MS)
            append(log, b"more %d" % number)
        log.flush()
        writer.checkpoint()
        log_file(data, lost).unlink()
        # A loss is believed only if the directory has not just changed.
        tree.clock.now_ns = time.time_ns() + 3600 * 10**9
        file = tree.file(FOLLOW)
        assert file.inode == inode
        assert tree.log().losses != []
        text = b"".join(b"more %d\n" % (1 + number) for number in range(later))
        assert read(handle, len(seen)) == text
        assert tree.attributes(file).size == len(seen + text)


def test_without_the_cache_the_inode_is_new(broker: Broker, tmp_path: Path) -> None:
    with followed(broker) as tree:
        inode = check(tree, broker, 0)
    shutil.rmtree(tmp_path / "cache")
    with followed(broker) as tree:
        assert check(tree, broker, 0) != inode


def test_what_positions_hang_on_is_durable_before_one_is_shown(tmp_path: Path) -> None:
    """Killed at once, and the head goes before anybody looks at it again."""
    (tmp_path / "data").mkdir()
    tree = Tree(tmp_path / "data")
    tree.mkdir("t")
    tree.append("t/0", b"one\n")
    tree.roll()
    tree.append("t/0", b"two\n")
    file = tree.file("t/.follow/0")
    assert read(tree.open(file)) == b"one\ntwo\n"
    tree.manager.abandon()
    tree = Tree(tmp_path / "data")
    tree.remove_head(1)
    again = tree.file("t/.follow/0")
    assert again.inode == file.inode
    assert tree.attributes(again).size == 8
    assert read(tree.open(again), 4) == b"two\n"
    tree.stop()


MARK = "\nshown-above "
"""The line of a history that says that `.follow` has shown what may not be flushed."""


def look(tree: Tree, path: str) -> None:
    """Ask for its size and read it, as `operations` does."""
    tree.file(path)
    tree.read(path)


def test_what_is_not_flushed_is_shown_after_that_is_written_down(tmp_path: Path) -> None:
    """… durably, by a thread that may wait, once until the flush; of other names nothing is."""
    history = tmp_path / "data" / "t-0" / "kafkafs.history"
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        file = tree.file(FOLLOW)
        handle = tree.open(FOLLOW)
        assert MARK not in history.read_text(), "nothing is there"
        tree.append("t/0", b"one\n")
        for name in ("t/0", "t/.kv/0", "t/.jsonl/0", "t/0@0", "t/.follow/0@0", "t/.snapshot/0"):
            look(tree, name)
        assert MARK not in history.read_text()
        for ask in (file.attributes, lambda: handle.read(0, 10)):
            with pytest.raises(BlockingIOError):
                at_once(ask)
            # Listing does not wait, and shows a size that was shown before.
            assert file.listed_attributes().size == 0
        assert MARK not in history.read_text()
        assert tree.attributes(file).size == 4
        assert MARK + "0 1\n" in history.read_text()
        assert at_once(handle.read, 0, 10) == b"one\n"
        # It stands: nobody waits any more.
        tree.append("t/0", b"two\n")
        written = history.stat()
        assert at_once(file.attributes).size == 8
        assert at_once(handle.read, 0, 10) == b"one\ntwo\n"
        tree.fs.partitions.housekeeping()
        assert history.stat() == written
        tree.append("t/0", b"three\n")
        tree.log().flush()
        tree.fs.partitions.housekeeping()
        assert MARK not in history.read_text()
        assert at_once(handle.read, 8, 10) == b"three\n"
        assert MARK not in history.read_text(), "all of it is flushed"
        tree.append("t/0", b"four\n")
        tree.log().flush()
        tree.append("t/0", b"five\n")
        with pytest.raises(BlockingIOError):
            at_once(handle.read, 14, 10)
        assert read(handle, 14) == b"four\nfive\n"
        assert MARK + "4 5\n" in history.read_text()
        handle.release()
    assert MARK not in history.read_text(), "closed in order"


def test_of_a_deleted_topic_an_open_reader_reads_what_is_there(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"one\ntwo\n")
        handle = tree.open(FOLLOW)
        tree.fs.root.rmdir("t", CALLER)
        assert read(handle) == b"one\ntwo\n"
        remove = tree.manager.sweep(1 << 62)
        assert remove is not None
        remove()
        for _ in range(2):
            with pytest.raises(SegmentGone, match="has been deleted"):
                read(handle, 4)
        said = "t/.follow/0: the reader at position 4 missed the next records: "
        assert tree.events().count(said + "the partition was deleted") == 1
        handle.release()


LINES = [b"%09d followed.\n" % number for number in range(110)]
SIZE = len(LINES[0])


def retain(tree: Tree) -> None:
    """Delete all segments but the active one, as retention does."""
    old = tree.log().segments[:-1]
    tree.log().prepare_replacement(old, ())()
    tree.remove_head(len(old))
    tree.delete_files()


def shorten(tree: Tree) -> None:
    """Show 105 lines in `.follow`, and delete the segments of the first 100."""
    tree.mkdir("t")
    tree.read(FOLLOW)
    for first in range(0, 100, 25):
        tree.append("t/0", b"".join(LINES[first : first + 25]))
        tree.roll()
    tree.append("t/0", b"".join(LINES[100:105]))
    assert tree.read(FOLLOW) == b"".join(LINES[:105])
    retain(tree)


def test_a_reader_after_a_deletion_gets_newlines_and_has_missed_nothing(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        shorten(tree)
        text = b"\n" * 100 * SIZE + b"".join(LINES[100:105])
        handle, other = tree.open(FOLLOW), tree.open(FOLLOW)
        assert b"".join(read(handle, at, 333) for at in range(0, len(text), 333)) == text
        assert read(other, 0, SIZE) == b"\n" * SIZE
        tree.roll()
        tree.append("t/0", b"".join(LINES[105:]))
        retain(tree)
        assert read(other, 99 * SIZE) == b"\n" * 6 * SIZE + b"".join(LINES[105:])
        assert "missed" not in tree.events()
        # A reader that has been there before has.
        assert read(tree.open(FOLLOW), 99 * SIZE, 10) == b"\n" * 10
        assert tree.events().count(f"t/.follow/0: the reader at position {99 * SIZE} missed") == 1
        for each in (handle, other):
            each.release()


def test_where_gaps_are_errors_each_reader_hears_once_what_it_missed(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", MountOptions(follow_gaps="error")) as tree:
        shorten(tree)
        first = 100 * SIZE
        handle = tree.open(FOLLOW)
        for position in (25 * SIZE, 25 * SIZE, 0, 30 * SIZE):
            with pytest.raises(SegmentGone):
                read(handle, position, 100)
        assert read(handle, first, SIZE) == LINES[100]
        with pytest.raises(SegmentGone):
            read(tree.open(FOLLOW), 30 * SIZE, 100)
        ship = tree.open("t/.ship/0")
        assert read(ship, 0, 2000) == head_line(tree.log(), tree.log().history.follow_nonce)
        with pytest.raises(SegmentGone):
            read(ship, HEAD_BYTES, 2000)
        why = "which were deleted or rewritten; it can continue at position"
        told = [line.partition(": ")[2] for line in tree.events().splitlines() if "missed" in line]
        assert told == [
            f"the reader at position 500 missed offsets 25 to 99, {why} {first}",
            "the reader at position 600 missed offsets up to 99, possibly from 25 on, "
            f"{why} {first}",
            f"the reader at position {HEAD_BYTES} missed offsets 0 to 99, "
            f"{why} {HEAD_BYTES + first}",
        ]


def test_the_first_line_of_ship_names_the_partition(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t").create("1", 0o644, APPEND, CALLER)
        head, other = (tree.read(f"t/.ship/{number}") for number in (0, 1))
        assert len(head) == len(other) == 1100
        nonce = f"{tree.log().history.follow_nonce:016x}"
        assert head.decode().split() == ["#kafkafs", nonce, tree.log().topic_id, "t", "0"]
        assert head.endswith(b" \n")
        assert other != head
        paths = ("t/0", "t/.follow/0", "t/.ship/0", "t/.ship/1")
        assert len({tree.file(path).inode for path in paths}) == 4
        for flags in (APPEND, os.O_RDWR | os.O_APPEND, os.O_WRONLY, os.O_TRUNC):
            for path in paths[1:]:
                with pytest.raises(PermissionError, match="read-only; write to t/"):
                    tree.open(path, flags)


def test_a_reader_that_waited_at_the_end_hears_what_it_missed(tmp_path: Path) -> None:
    """Although it has read nothing before."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"one\ntwo\n")
        handle = tree.open(FOLLOW)
        assert read(handle, 8) == b""
        tree.append("t/0", b"three\n")
        tree.roll()
        tree.append("t/0", b"four\n")
        # As retention does it.
        tree.log().prepare_replacement(tree.log().segments[:1], ())()
        tree.remove_head(1)
        tree.delete_files()
        with pytest.raises(SegmentGone):
            read(handle, 8)
        assert "the reader at position 8 missed offsets 2 to 2, " in tree.events()
        assert read(handle, 8) == b"\n" * 6 + b"four\n"
        handle.release()


def test_a_cut_is_a_new_inode_and_an_open_reader_goes_on(broker: Broker) -> None:
    with followed(broker) as tree:
        inode = check(tree, broker, 0)
        handle = tree.open(FOLLOW)
        assert read(handle) == broker.text
        broker.partition.truncate(8)
        broker.partition.append(b"another")
        end = len(broker.text)
        assert tree.file(FOLLOW).inode != inode
        assert tree.read(FOLLOW) == broker.partition.text()
        assert tree.read("t/0") == broker.partition.text()
        assert read(handle, end) == b"another\n"
        with pytest.raises(SegmentGone, match="truncated before these bytes"):
            read(handle, end - 1)
        assert "missed the next records: positions have restarted" in tree.events()
        # The tree tells the kernel that the name leads to another file now.
        assert tree.notices.names
        handle.release()


def test_a_base_whose_segment_is_gone(broker: Broker) -> None:
    """Positions start at 0 again, even if another file is shown already."""
    with followed(broker) as tree:
        assert tree.read(tree.file("t/0")) == broker.text
        check(tree, broker, 0)
        view = tree.fs.partitions.of(tree.log()).text(tree.fs.mount.views[0])
        assert view.has_generation
        bases = [each.base_offset for each in tree.log().segments]
        before = tree.file(FOLLOW)
        tree.log().history.set_base(view.view.name, bases[1] + 1, 0)
        with pytest.raises(OSError, match="restarted, in a new inode"):
            asked(before.xattr, "user.kafkafs.first_position")
        check(tree, broker, 0)
