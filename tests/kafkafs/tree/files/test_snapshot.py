"""Snapshots, and ranges whose end is reached: nothing of them changes."""

from __future__ import annotations

import os
import threading

import pytest

from kafkafs.tree.files.start_file import StartFile
from kafkafs.tree.inodes import KEEP_S, PASSING, Change, Node
from kafkafs.tree.recent_lookups import ASKED_S, RECENT, RECENT_S
from tests.kafkafs.start_files import DIRECTORIES, fill, lines, start_file, text
from tests.kafkafs.trees import Tree
from tests.storage.logs import append
from tests.waits import until


def forgotten(tree: Tree, name: str) -> None:
    """The kernel forgets a file."""
    file = start_file(tree, name)
    tree.fs.inodes.forget(file.inode, file.lookups)
    assert tree.fs.inodes.find(file.inode) is None


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_node_that_is_made_anew_has_the_same_attributes(tree: Tree, directory: str) -> None:
    """… so the kernel keeps the pages, whatever was appended since."""
    fill(tree)
    snapshot = start_file(tree, f"{directory}.snapshot/0")
    attributes = tree.attributes(snapshot)
    assert attributes.attr_timeout == KEEP_S
    assert attributes.entry_timeout == 0
    assert attributes.size == len(tree.read(f"t/{directory}0"))
    forgotten(tree, f"{directory}.snapshot/0")
    for _ in range(2):
        tree.clock.now_ns += 10**9
        tree.append("t/0", b"more\n")
        tree.roll()
        again = start_file(tree, f"{directory}0@0..40")
        assert again is not snapshot
        assert tree.attributes(again) == attributes
        forgotten(tree, f"{directory}0@0..40")


def test_its_time_is_that_of_the_last_record(tree: Tree) -> None:
    log = tree.log()
    made_ns = log.created_ns
    assert tree.attributes(start_file(tree, ".snapshot/0")).mtime_ns == made_ns
    times = [5_000, 9_000, 7_000, -1, 10**17]
    for timestamp in times:
        append(log, b"x", timestamp_ms=timestamp)
    shown = [
        tree.attributes(start_file(tree, f"0@0..{end}")).mtime_ns
        for end in range(1, len(times) + 1)
    ]
    assert shown[:4] == [5_000_000_000, 9_000_000_000, 7_000_000_000, made_ns]
    assert 2**62 < shown[4] < 2**63
    tree.roll()
    assert tree.attributes(start_file(tree, ".snapshot/0")).mtime_ns == shown[4]
    assert tree.attributes(start_file(tree, "0@3..3")).mtime_ns == made_ns


def test_only_a_file_whose_end_was_reached_keeps_pages(tree: Tree) -> None:
    fill(tree, 1)
    growing = start_file(tree, "0@0..12")
    first = tree.open(growing)
    assert (first.direct_io, first.keep_cache) == (True, False)
    tree.append("t/0", b"line 10\nline 11\n")
    assert start_file(tree, "0@0..12") is growing
    second = tree.open(growing)
    assert (second.direct_io, second.keep_cache) == (False, False)
    snapshot = start_file(tree, ".snapshot/0")
    assert snapshot.inode != growing.inode
    third = tree.open(snapshot)
    assert (third.direct_io, third.keep_cache) == (False, True)
    first.release()
    second.release()
    assert start_file(tree, "0@0..12") is snapshot
    assert third.read(0, 1000) == lines(0, 12)
    third.release()


def test_an_append_tells_the_kernel_nothing_about_them(tree: Tree) -> None:
    fill(tree)
    files = [start_file(tree, f"0@..{end}") for end in range(1, 40)]
    handle = tree.open(files[0])
    tree.notices.clear()
    tree.append("t/0", b"more\n")
    inodes = {file.inode for file in files}
    assert not inodes & set(tree.notices.attributes)
    tree.file().set_attributes(Change(mode=0o600))
    assert inodes <= set(tree.notices.attributes)
    assert all(tree.attributes(file).mode & 0o777 == 0o600 for file in files)
    handle.release()


def test_a_thread_that_asks_again_soon_is_looked_up_once(tree: Tree) -> None:
    """`ls -l .snapshot` looks up each partition: a file of `/proc` for each would be as many."""
    directory = tree.node("t/.snapshot").inode
    now = [0.0]
    tree.fs.mount.recent._clock = lambda: now[0]
    asked: list[int] = []

    def ask() -> None:
        asked.append(threading.get_native_id())
        asked.append(tree.fs.asking(directory, "0", asked[0]))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    number, process = asked
    assert process == os.getpid() != number
    # Its entry in /proc is deleted by now.
    until(lambda: not os.path.exists(f"/proc/{number}"))
    for _ in range(5):
        now[0] += ASKED_S / 2
        assert tree.fs.asking(directory, "0", number) == process
    now[0] += 2 * ASKED_S
    assert tree.fs.asking(directory, "0", number) == number


def test_ten_thousand_leave_nothing_behind(tree: Tree) -> None:
    """Of ten thousand ends, looked up by ten thousand processes."""
    append(tree.log(), *[b"%d" % number for number in range(10_000)])
    partition = tree.fs.partitions.of(tree.log())
    tree.node("t/.snapshot")
    tree.attributes(tree.file())
    fs = tree.fs
    timeline = partition.text(fs.mount.views[0]).timeline
    attached = list(timeline.open)
    topic, directory = tree.node("t").inode, tree.node("t/.snapshot").inode
    before, known = set(fs.inodes.nodes), set(partition.known)
    owned = set(partition.owned)
    now = [0.0]
    fs.mount.recent._clock = lambda: now[0]
    for number in range(10_000):
        parent, name = (topic, f"0@..{number}") if number % 9 else (directory, "0")
        node = fs.lookup(parent, name, number + 1)
        fs.answered(parent, name, number + 1, node)
    assert len(fs.inodes.nodes) <= len(before) + PASSING
    assert len(fs.mount.recent) <= RECENT
    assert len(partition.owned) <= len(owned) + PASSING
    assert set(partition.known) == known
    now[0] = RECENT_S
    fs.partitions.tick()
    assert len(fs.mount.recent) == 0
    for inode in set(fs.inodes.nodes) - before:
        fs.inodes.forget(inode, fs.inodes.get(inode).lookups)
    assert set(fs.inodes.nodes) == before
    assert partition.owned == owned
    assert fs.start_names.held == {}
    assert not partition.ranges
    assert list(timeline.open) == attached


def test_one_that_was_looked_up_before_the_past_changed(tree: Tree) -> None:
    """A process is not led to it again."""
    fill(tree)
    directory = tree.node("t/.snapshot").inode
    file = start_file(tree, ".snapshot/0")
    tree.fs.answered(directory, "0", 7, file)
    assert tree.fs.lookup(directory, "0", 7) is file
    tree.remove_head(1)
    again = tree.fs.lookup(directory, "0", 7)
    assert again.inode != file.inode
    assert text(tree, ".snapshot/0") == lines(10, 40)


def test_a_stand_in_is_not_remembered(tree: Tree) -> None:
    """A file that a listing cannot show is found by the next lookup."""
    fill(tree)
    directory = tree.node("t/.snapshot").inode
    tree.fs.answered(directory, "0", 4711, Node(99))
    found = tree.fs.lookup(directory, "0", 4711)
    assert isinstance(found, StartFile)
    tree.fs.answered(directory, "0", 4711, found)
    tree.append("t/0", b"more\n")
    assert tree.fs.lookup(directory, "0", 4711) is found
