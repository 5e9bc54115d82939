"""A repacked segment under a tree: the same names, inodes, positions and text for every reader."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kafkafs.line_index import SegmentLines
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.handles import Handle
from storage import LogManager, Record, encode
from storage.compaction.repack import repack as repack_one
from storage.compaction.repack import repack_all
from storage.directory.retain import delete_records, retain
from storage.errors import CorruptRecord, SegmentGone
from storage.files import Files
from storage.log.append import append_batches
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.task import Task
from storage.waiting import at_once
from tests.broker_files import BadFile
from tests.kafkafs.tree.partition.test_truncation import Woken
from tests.kafkafs.trees import Following, Tree, a_tree, clean, in_thread, read
from tests.storage.follow.test_follow import FailingRead
from tests.storage.logs import NOW_MS, NOW_NS
from tests.storage.producers import Producer

SAME = (
    *("t/0", "t/.kv/0", "t/.jsonl/0", "t/.follow/0", "t/.ship/0", "t/.snapshot/0", "t/0@5..17"),
    *("t/.jsonl/0@3", "t/0@-4", "t/.jsonl/.snapshot/0"),
)
FOLLOWING = Following(read_only=True)
CHANGED = ("t/.batches/0", "t/.batches/0@5..17", "t/.raw/0/00000000000000000000.log")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as made:
        made.mkdir("t")
        made.manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
        yield made


def fill(tree: Tree, segments: int = 3) -> None:
    for _ in range(segments):
        for _ in range(10):
            number = tree.log().log_end_offset
            value = b"%d the same words in each line, again and again" % number
            record = Record(0, NOW_MS + number, 0, b"k%d" % (number % 3), value)
            tree.log().append(bytearray(encode([record])), now_ns=NOW_NS)
        tree.roll()


def repack(tree: Tree, count: int) -> None:
    done = in_thread(lambda: repack_all(tree.log(), NOW_MS, Task()))
    assert len(done) == count


def shown(tree: Tree, names: tuple[str, ...]) -> dict[str, tuple[int, int, bytes]]:
    """The inode, size and text of each name."""
    found = {}
    for name in names:
        node = tree.node(name)
        found[name] = (node.inode, tree.attributes(node).size, tree.read(node))
    return found


def test_all_names_but_those_of_stored_bytes_stay(tree: Tree) -> None:
    fill(tree)
    tree.log().flush()
    same, changed = shown(tree, SAME), shown(tree, CHANGED)
    blocks = tree.file().partition.blocks()
    tree.notices.clear()
    repack(tree, 3)
    assert tree.log().segments[0].size < 1000
    assert shown(tree, SAME) == same
    assert tree.file().partition.blocks() <= blocks
    for name, (inode, _, data) in shown(tree, CHANGED).items():
        assert inode != changed[name][0]
        assert data != changed[name][2]
    # stat shows the blocks of the new files.
    assert tree.file("t/0").inode in tree.notices.attributes
    assert tree.notices.names > 0
    tree.delete_files()
    assert shown(tree, SAME) == same


def test_it_is_the_same_after_a_remount(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"kafkafs.repack": "lz4"})
        fill(tree)
        tree.log().flush()
        same, changed = shown(tree, SAME), shown(tree, CHANGED[:2])
        repack(tree, 3)
        batches = shown(tree, CHANGED[:2])
    with a_tree(tmp_path / "data") as tree:
        assert shown(tree, SAME) == same
        assert shown(tree, CHANGED[:2]) == batches != changed
        # Nothing is left to do.
        before = tree.log().segments
        repack(tree, 0)
        assert tree.log().segments == before


def test_open_files_go_on_in_the_middle_of_a_repacked_segment(tree: Tree) -> None:
    fill(tree)
    handles = {name: tree.open(name) for name in SAME}
    texts = {name: tree.read(name) for name in SAME}
    half = {name: len(text) // 2 + 7 for name, text in texts.items()}
    for name, handle in handles.items():
        # Readers stand within a segment, and look nothing up.
        assert read(handle, 0, half[name]) == texts[name][: half[name]]
    repack(tree, 3)
    tree.delete_files()
    for name, handle in handles.items():
        assert read(handle, half[name]) == texts[name][half[name] :]
        assert read(handle) == texts[name]
        handle.release()


def test_a_tail_of_stored_batches_goes_on_at_the_end(tree: Tree) -> None:
    fill(tree)
    handle = tree.open("t/.batches/0")
    old = read(handle)
    repack(tree, 3)
    # New batches follow the old bytes.
    assert read(handle) == old
    fill(tree, 1)
    end = tree.log().segments[3].size
    assert read(handle, len(old)) == tree.log().read(30, 1 << 20)
    assert len(read(handle, len(old))) == end
    tree.delete_files()
    assert len(read(handle, len(old))) == end
    handle.release()


def test_a_change_of_the_past_comes_before_or_after_it(tree: Tree) -> None:
    fill(tree)
    log = tree.log()
    handle = tree.open("t/0")
    text = read(handle)
    in_thread(lambda: delete_records(tree.manager, log, 5, Task()))
    repack(tree, 3)
    in_thread(lambda: delete_records(tree.manager, log, 15, Task()))
    assert read(handle) == text
    lines = text.splitlines(keepends=True)
    assert tree.read("t/0") == b"".join(lines[15:])
    tree.delete_files()
    assert read(handle) == text
    handle.release()


def test_a_text_that_a_reader_begins_to_use_meanwhile_delays_it(tree: Tree) -> None:
    fill(tree, 1)
    log = tree.log()
    partition = tree.fs.partitions.of(log)
    original = partition.preparing_repack

    def late(*arguments: object) -> object:
        write = original(*arguments)  # type: ignore[arg-type]
        assert isinstance(tree.file("t/.jsonl/0"), ViewFile)
        return write

    partition.preparing_repack = late  # type: ignore[method-assign, assignment]
    with pytest.raises(BlockingIOError):
        repack(tree, 1)
    before = log.segments
    # The index of the new segment, which is deleted, uses no memory.
    assert all(text._measured is None for text in partition.texts.values())
    partition.preparing_repack = original  # type: ignore[method-assign]
    repack(tree, 1)
    assert log.segments != before


class FirstListener(LogListener[Log]):
    """Looks a name up when the log has the new segment, before the tree shows it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.found: list[int] = []

    def repacked(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.found.append(self.tree.file("t/.batches/0").inode)


def test_stored_bytes_have_the_old_inode_until_the_new_ones_are_shown(tree: Tree) -> None:
    fill(tree)
    old, listener = tree.file("t/.batches/0").inode, FirstListener(tree)
    tree.log().listeners.insert(0, listener)
    repack(tree, 3)
    assert listener.found[0] == old
    assert old not in {*listener.found[1:], tree.file("t/.batches/0").inode}


def test_a_change_that_is_announced_in_the_middle_delays_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tree)
    log = tree.log()
    text, inode = tree.read("t/.follow/0"), tree.file("t/.follow/0").inode
    withdraw = log.manifest.withdraw

    def meanwhile(segments: Sequence[Segment]) -> None:
        if segments:
            in_thread(lambda: delete_records(tree.manager, log, 5, Task()))
        withdraw(segments)

    monkeypatch.setattr(log.manifest, "withdraw", meanwhile)
    old = log.segments
    with pytest.raises(BlockingIOError):
        repack(tree, 1)
    monkeypatch.undo()
    assert log.segments == old
    assert not log.cleaning
    repack(tree, 3)
    first = len(b"".join(text.splitlines(keepends=True)[:5]))
    assert tree.file("t/.follow/0").inode == inode
    assert tree.read("t/.follow/0", first) == text[first:]


class Shown:
    """A tree whose past changes in every way, and what it must show."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.tree = Tree(data)
        self.lines: list[bytes] = []
        self.start = 0
        self.inode = self.tree.file("t/.follow/0").inode
        self.tree.read("t/.follow/0")

    def append(self) -> None:
        number = len(self.lines)
        self.lines.append(b"%d the same words in each line, again and again\n" % number)
        record = Record(0, NOW_MS + number, 0, None, self.lines[-1][:-1])
        self.tree.log().append(bytearray(encode([record])), now_ns=NOW_NS)

    def roll(self) -> None:
        self.tree.roll()

    def flush(self) -> None:
        self.tree.log().flush()

    def repack(self) -> None:
        in_thread(lambda: repack_all(self.tree.log(), NOW_MS, Task()))

    def delete_records(self) -> None:
        log = self.tree.log()
        self.start = min(self.start + 3, log.log_end_offset)
        in_thread(lambda: delete_records(self.tree.manager, log, self.start, Task()))

    def retain(self) -> None:
        in_thread(lambda: retain(self.tree.manager, [self.tree.log()], Task()))

    def delete_files(self) -> None:
        self.tree.delete_files()

    def housekeeping(self) -> None:
        self.tree.fs.partitions.housekeeping()

    def remount(self) -> None:
        self.tree.stop()
        self.tree = Tree(self.data)

    def kill(self) -> None:
        self.tree.manager.abandon()
        self.tree = Tree(self.data)

    def check(self) -> None:
        text = b"".join(self.lines)
        first = len(b"".join(self.lines[: self.start]))
        assert self.tree.read("t/0") == text[first:]
        assert self.tree.file("t/.follow/0").inode == self.inode
        assert self.tree.attributes(self.tree.file("t/.follow/0")).size == len(text)
        assert self.tree.read("t/.follow/0", first) == text[first:]


@pytest.mark.parametrize("seed", range(4))
def test_positions_stay_whatever_else_changes(tmp_path: Path, seed: int) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        manager.create_topic("t", 1)
        manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
    shown = Shown(tmp_path)
    rng = random.Random(seed)
    rare = [shown.delete_records, shown.retain, shown.remount, shown.kill, shown.housekeeping]
    handles: list[tuple[Handle, int, int]] = []
    for _ in range(120):
        step = rng.choice(
            [*[shown.append] * 6, shown.roll, shown.repack, shown.delete_files, *rare]
        )
        if step in (shown.remount, shown.kill):
            handles.clear()
        step()
        if rng.random() < 0.2:
            shown.check()
            handles.append((shown.tree.open("t/0"), shown.start, len(shown.lines)))
        for handle, start, end in handles[-3:]:
            if start == shown.start:
                first = len(b"".join(shown.lines[start:end]))
                assert read(handle, first) == b"".join(shown.lines[end:])
                assert (
                    read(handle, first // 2, 50) == b"".join(shown.lines[start:])[first // 2 :][:50]
                )
    shown.check()
    shown.tree.stop()


class RefusingListener(LogListener[Log]):
    """Refuses a repacked segment whose files a restart would take."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def repacking(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.look()
        raise BlockingIOError


class Beside:
    """A tree that follows another one, whose process repacks, and what it must show."""

    def __init__(self, data: Path) -> None:
        self.writer = Tree(data)
        self.data = data
        self.lines: list[bytes] = []
        self.open: list[bytes] = []
        self.start = 0
        self.append()
        # The scheduler reads and writes the history before anything is sealed.
        self.writer.fs.partitions.of(self.writer.log()).nonce()
        self.tree = self.mount()
        self.inodes = self.found()
        self.tree.read("t/.follow/0")

    def mount(self, files: Files | None = None) -> Tree:
        self.handles: dict[str, Handle] = {}
        return Tree(self.data, FOLLOWING, files)

    def found(self) -> list[int]:
        return [self.tree.file(name).inode for name in ("t/0", "t/.jsonl/0", "t/.follow/0")]

    def append(self) -> None:
        for _ in range(3):
            number = len(self.lines)
            self.lines.append(b"%d the same words in each line, again and again\n" % number)
            record = Record(0, NOW_MS + number, 0, None, self.lines[-1][:-1])
            self.writer.log().append(bytearray(encode([record])), now_ns=NOW_NS)

    def roll(self) -> None:
        self.writer.roll()

    def repack(self) -> None:
        in_thread(lambda: repack_all(self.writer.log(), NOW_MS, Task()))

    def repack_and_take_back(self) -> None:
        """The mount sees the new segment, which the writer then refuses."""
        listener = RefusingListener(self.look)
        self.writer.log().listeners.append(listener)
        with contextlib.suppress(BlockingIOError):
            self.repack()
        self.writer.log().listeners.remove(listener)

    def delete_files(self) -> None:
        self.writer.delete_files()

    def remove_head(self) -> None:
        log = self.writer.log()
        if len(log.segments) > 2:
            # Positions count what the mount has seen, and it sees both changes at once.
            self.look()
            self.repack()
            self.writer.remove_head(1)
            self.start = log.log_start_offset

    def look(self) -> None:
        self.tree.file()

    def delete_own(self) -> None:
        self.tree.log().release_retired(1 << 62)

    def while_nobody_looks(self) -> None:
        """The mount closes its files, and what it has read of the log's end is repacked."""
        for handle in self.handles.values():
            handle.release()
        self.handles.clear()
        self.close_files()
        for step in self.append, self.roll, self.append, self.roll, self.repack, self.delete_files:
            step()

    def housekeeping(self) -> None:
        self.tree.fs.partitions.tick()
        self.tree.fs.partitions.housekeeping()

    def remount(self, files: Files | None = None) -> None:
        self.tree.stop()
        self.tree = self.mount(files)

    def close_files(self) -> None:
        """Nothing has used them for a while."""
        for _ in range(2):
            self.tree.log().age_descriptors()

    def kill_own(self) -> None:
        self.tree.manager.abandon()
        self.tree = self.mount()

    def kill(self) -> None:
        self.writer.manager.abandon()
        self.writer = Tree(self.data)

    def read_on(self) -> None:
        """A reader of each file goes on where it stands, without a new lookup."""
        first = len(b"".join(self.lines[: self.start]))
        text = b"".join(self.lines)
        if not self.handles:
            self.handles = {"t/.follow/0": self.tree.open("t/.follow/0")}
            self.at = first
        self.at = max(self.at, first)
        handle = self.handles["t/.follow/0"]
        try:
            piece = bytes(at_once(handle.read, self.at, 100))
        except BlockingIOError:
            try:
                piece = in_thread(lambda: bytes(handle.read(self.at, 100)))
            except SegmentGone:
                # The FUSE layer looks, and repeats a read on a worker.
                self.look()
                piece = in_thread(lambda: bytes(handle.read(self.at, 100)))
        assert piece == text[self.at : self.at + len(piece)]
        self.at += len(piece)

    def check(self) -> None:
        text = b"".join(self.lines)
        first = len(b"".join(self.lines[: self.start]))
        assert self.tree.read("t/0") == text[first:]
        inodes = self.found()
        assert inodes[2] == self.inodes[2]
        if not self.start:
            assert inodes == self.inodes
            assert self.tree.read("t/.jsonl/0").count(b"\n") == len(self.lines)
        assert self.tree.attributes(self.tree.file("t/.follow/0")).size == len(text)
        assert self.tree.read("t/.follow/0", first) == text[first:]
        assert self.tree.read("t/.batches/0") == self.writer.read("t/.batches/0")


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        manager.create_topic("t", 1)
        manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
    beside = Beside(data)
    yield beside
    beside.tree.stop()
    beside.writer.stop()


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_mount_beside_shows_the_rest_of_a_transaction(
    beside: Beside, *, is_sealed: bool, is_committed: bool
) -> None:
    """The mount has shown only the start of the old file, which is deleted."""
    log, producer = beside.writer.log(), Producer(7, transactional=True)
    append_batches(log, producer.batch(b"of a transaction"), now_ns=NOW_NS)
    beside.append()
    if is_sealed:
        beside.roll()
    shown = b"".join(beside.lines[:3])
    assert beside.tree.read("t/.follow/0") == shown
    if is_committed:
        beside.lines.insert(3, b"of a transaction\n")
    append_batches(log, producer.commit() if is_committed else producer.abort(), now_ns=NOW_NS)
    beside.while_nobody_looks()
    text = b"".join(beside.lines)
    assert beside.tree.read("t/.follow/0", len(shown)) == text[len(shown) :]
    assert beside.tree.read("t/0") == text
    assert beside.found() == beside.inodes


@pytest.mark.parametrize(("failing", "is_committed"), [(n, n % 2 == 0) for n in range(-1, 8)])
def test_a_mount_beside_takes_all_segments_of_an_open_transaction(
    beside: Beside, *, failing: int, is_committed: bool
) -> None:
    """It begins where nobody has read, in the second of two segments, and ends after both. One read
    of the first look fails.
    """
    log, producer = beside.writer.log(), Producer(7, transactional=True)
    files = FailingRead()
    beside.remount(files)
    beside.inodes = beside.found()
    beside.roll()
    beside.append()
    handle = beside.tree.open("t/.follow/0")
    shown = b"".join(beside.lines)
    assert read(handle) == shown
    beside.close_files()
    beside.append()
    append_batches(log, producer.batch(b"of a transaction"), now_ns=NOW_NS)
    if is_committed:
        beside.lines.append(b"of a transaction\n")
    beside.roll()
    append_batches(log, producer.commit() if is_committed else producer.abort(), now_ns=NOW_NS)
    for step in beside.append, beside.repack, beside.delete_files:
        step()
    files.left = failing
    beside.tree.fs.partitions.of(beside.tree.log()).look()
    files.left = -1
    # A small read does not look again.
    assert b"".join(beside.lines).startswith(shown + read(handle, len(shown), 20))
    handle.release()
    beside.check()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_mount_beside_follows_a_log_although_a_repacked_segment_cannot_be_read(
    beside: Beside, bad: int
) -> None:
    files = BadFile()
    beside.remount(files)
    for _ in range(2):
        beside.roll()
        beside.append()
    handle = beside.tree.open("t/.follow/0")
    shown = b"".join(beside.lines)
    assert read(handle) == shown
    beside.repack()
    files.inode = os.stat(beside.writer.log().segments[bad].log_path).st_ino
    partition = beside.tree.fs.partitions.of(beside.tree.log())
    for _ in range(3):
        for step in beside.append, partition.look, beside.append, beside.roll, beside.append:
            step()
        partition.look()
        text = b"".join(beside.lines)
        assert read(handle, len(shown)) == text[len(shown) :]
    assert read(handle, 0, len(shown)) == shown
    beside.repack()
    files.inode = -1
    partition.look()
    handle.release()
    beside.check()


@pytest.mark.parametrize("failing", range(-1, 8))
def test_a_mount_beside_gives_up_a_change_that_a_read_error_prevents(
    beside: Beside, failing: int
) -> None:
    """A cleaned segment has the begin of a transaction, which nobody has read."""
    log, producer = beside.writer.log(), Producer(7, transactional=True)
    files = FailingRead()
    beside.remount(files)
    handle = beside.tree.open("t/.follow/0")
    assert read(handle) == b"".join(beside.lines)
    beside.close_files()
    append_batches(log, producer.batch(b"of a transaction"), now_ns=NOW_NS)
    beside.roll()
    append_batches(log, producer.commit(), now_ns=NOW_NS)
    clean(log, 1, lambda record: record.offset == 1)
    beside.delete_files()
    files.left = failing
    beside.tree.fs.partitions.of(beside.tree.log()).look()
    files.left = -1
    assert not beside.tree.log().history.is_ahead
    beside.look()
    assert beside.tree.read("t/0") == beside.writer.read("t/0")
    handle.release()


def test_a_mount_beside_sees_a_segment_that_is_taken_back(beside: Beside) -> None:
    beside.roll()
    beside.append()
    beside.check()
    beside.repack_and_take_back()
    beside.check()
    assert beside.writer.log().counters.segments_repacked == 0
    beside.repack()
    beside.check()
    assert beside.tree.read("t/.follow/0") == b"".join(beside.lines)


@pytest.mark.parametrize("change", ["cleaned", "cleaned when sealed", "cut"])
def test_a_mount_beside_reads_a_segment_again_of_which_records_are_missing(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """It has read it, or its begin; the writer has changed that, and repacked the segment."""
    if change == "cleaned when sealed":
        beside.roll()
        beside.append()
    handle = beside.tree.open("t/.follow/0")
    assert read(handle) == b"".join(beside.lines)
    handle.release()
    beside.close_files()
    if change == "cut":
        # The power fails on the writer's machine.
        path, size = beside.writer.log().active.log_path, beside.writer.log().active.size
        beside.writer.manager.abandon()
        os.truncate(path, size * 2 // 3)
        monkeypatch.setattr("storage.state.history.boot_id", lambda: "another")
        beside.writer = Tree(beside.data)
        assert beside.writer.log().log_end_offset == 2
    for _ in range(4):
        beside.append()
    beside.roll()
    if change != "cut":
        clean(beside.writer.log(), 1, lambda record: record.offset == 1)
    for step in beside.repack, beside.delete_files:
        step()
    assert beside.writer.log().counters.segments_repacked
    text = beside.writer.read("t/0")
    missing = beside.lines[2 if change == "cut" else 1]
    assert missing not in text.splitlines(keepends=True)
    assert beside.tree.read("t/0") == text
    assert not {*beside.found()[:2]} & {*beside.inodes[:2]}
    assert text.endswith(beside.tree.read("t/.follow/0").lstrip(b"\n"))


def test_a_mount_beside_saves_the_index_of_a_repacked_segment(beside: Beside) -> None:
    """The next mount need not measure it."""
    beside.roll()
    beside.check()
    beside.repack()
    beside.look()
    extent = beside.tree.file().text.timeline.extents[0]
    assert isinstance(extent, SegmentLines)
    assert not os.path.exists(extent.path)
    beside.housekeeping()
    saved = os.stat(extent.path)
    beside.remount()
    beside.check()
    assert os.stat(extent.path).st_mtime_ns == saved.st_mtime_ns


@pytest.mark.parametrize("damaged", [0, 1, -1])
def test_damage_of_a_repacked_segment_hides_nothing_else(beside: Beside, damaged: int) -> None:
    """The mount has taken only the length of the text, and has no index of the new file."""
    beside.writer.manager.change_topic_settings("t", {"max.message.bytes": "300"})
    for _ in range(5):
        beside.append()
    beside.roll()
    beside.append()
    handle = beside.tree.open("t/.follow/0")
    text = read(handle)
    beside.repack()
    segment = beside.writer.log().segments[0]
    batches = list(SegmentReader(segment).batches())
    position, header = batches[damaged]
    assert len(batches) > 2
    with open(segment.log_path, "r+b") as file:
        file.seek(position + header.size - 1)
        file.write(b"!")
    beside.look()
    first = len(b"".join(beside.lines[: header.base_offset]))
    end = len(b"".join(beside.lines[: header.last_offset + 1]))
    assert read(handle, end) == text[end:]
    if first:
        assert read(handle, 0, first) == text[:first]
    with pytest.raises(CorruptRecord):
        read(handle, first)
    handle.release()


def test_a_mount_beside_wakes_who_waits_for_the_rest_of_a_segment(beside: Beside) -> None:
    """Nothing else follows it."""
    handle, waiter = beside.tree.open("t/.follow/0"), Woken()
    shown = read(handle)
    handle.poll(waiter)
    beside.close_files()
    for step in beside.append, beside.roll, beside.repack, beside.delete_files:
        step()
    beside.tree.fs.partitions.of(beside.tree.log()).look()
    assert waiter.count
    assert read(handle, len(shown)) == b"".join(beside.lines)[len(shown) :]
    handle.release()


@pytest.mark.parametrize("removes_active", [False, True])
def test_a_mount_beside_keeps_the_repacked_text_before_a_truncation(
    beside: Beside, *, removes_active: bool
) -> None:
    """It sees both changes at once."""
    beside.roll()
    repacked = b"".join(beside.lines)
    beside.append()
    if removes_active:
        beside.roll()
        beside.append()
    handle = beside.tree.open("t/0")
    assert read(handle) == b"".join(beside.lines)
    log = beside.writer.log()
    in_thread(lambda: repack_one(log, log.segments[0], NOW_MS, Task()))
    in_thread(lambda: beside.writer.manager.truncate(log, 5))
    beside.look()
    assert read(handle, 0, len(repacked)) == repacked
    handle.release()


def test_a_mount_beside_does_not_take_other_records_of_the_same_size(beside: Beside) -> None:
    """It sees a truncation, new records and their repacked segment at once."""
    beside.roll()
    beside.append()
    handle = beside.tree.open("t/0")
    text = read(handle)
    in_thread(lambda: beside.writer.manager.truncate(beside.writer.log(), 0))
    for number, line in enumerate(beside.lines[:3]):
        record = Record(0, NOW_MS + 10 + number, 0, None, line[:-1].swapcase())
        beside.writer.log().append(bytearray(encode([record])), now_ns=NOW_NS)
    beside.roll()
    for step in beside.append, beside.repack, beside.delete_files, beside.look:
        step()
    with contextlib.suppress(CorruptRecord, SegmentGone):
        assert b"THE SAME WORDS" not in read(handle, 0, len(text) // 2)
    shown = beside.writer.read("t/0")
    assert shown.startswith(text[: len(text) // 2].swapcase())
    assert beside.tree.read("t/0") == shown
    handle.release()


def test_a_mount_beside_remembers_a_repacked_segment_if_the_history_is_unreadable(
    beside: Beside,
) -> None:
    beside.roll()
    beside.check()
    beside.repack()
    beside.look()
    history = Path(beside.tree.log().directory) / "kafkafs.history"
    history.rename(history.with_suffix(".away"))
    beside.tree.stop()
    history.with_suffix(".away").rename(history)
    beside.tree = beside.mount()
    beside.check()


def test_a_range_ends_at_its_offset_although_the_text_is_not_measured_yet(beside: Beside) -> None:
    """The mount takes a second repacked segment before it has measured the rest of the first."""
    handle = beside.tree.open("t/0@2..7")
    assert read(handle) == beside.lines[2]
    partition = beside.tree.fs.partitions.of(beside.tree.log())
    beside.close_files()
    for step in beside.append, beside.roll, beside.repack, beside.delete_files:
        step()
    partition.look()
    beside.append()
    beside.roll()
    partition.look()
    beside.repack()
    partition.look()
    assert read(handle) == b"".join(beside.lines[2:7])
    handle.release()


@pytest.mark.parametrize("seed", range(8))
def test_a_mount_beside_shows_the_same_text(beside: Beside, seed: int) -> None:
    rng = random.Random(seed)
    steps = [*[beside.append] * 4, *[beside.roll] * 2, *[beside.repack] * 2]
    steps += [
        beside.delete_files,
        beside.look,
        beside.repack_and_take_back,
        beside.delete_own,
        beside.housekeeping,
    ]
    steps += [
        beside.while_nobody_looks,
        beside.remount,
        beside.kill,
        beside.read_on,
        beside.read_on,
        beside.check,
    ]
    # (A mount that is killed before it has saved what retention deleted begins again.)
    steps.append(beside.remove_head if seed % 2 else beside.kill_own)
    for _ in range(100):
        rng.choice(steps)()
    beside.check()
    assert beside.tree.log().counters.truncations == 0


@pytest.mark.parametrize("failing", range(-1, 4))
def test_a_mount_beside_looks_at_a_truncation_again_after_a_read_error(
    beside: Beside, failing: int
) -> None:
    """A transaction is open."""
    log, producer = beside.writer.log(), Producer(7, transactional=True)
    files = FailingRead()
    beside.remount(files)
    append_batches(log, producer.batch(b"of a transaction"), now_ns=NOW_NS)
    beside.append()
    beside.roll()
    beside.append()
    assert beside.tree.read("t/.follow/0") == b"".join(beside.lines[:3])
    beside.close_files()
    in_thread(lambda: beside.writer.manager.truncate(log, 5))
    files.left = failing
    beside.tree.fs.partitions.of(beside.tree.log()).look()
    files.left = -1
    append_batches(log, producer.commit(), now_ns=NOW_NS)
    lines = [*beside.lines[:3], b"of a transaction\n", beside.lines[3]]
    assert beside.tree.read("t/0") == b"".join(lines)
