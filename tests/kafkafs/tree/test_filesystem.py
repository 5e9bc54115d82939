"""The whole tree: periodic work, the end, the daemon's own files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from kafkafs.tree.filesystem import FileSystem
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        for topic in ("t", "u"):
            tree.mkdir(topic)
            tree.file(f"{topic}/0")
        yield tree


def saved(tree: Tree) -> list[str]:
    return sorted(
        path.parent.name
        for path in Path(tree.manager.path).glob("*/*.lines")
        if path.stat().st_size
    )


def test_a_tick_saves_what_has_grown(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkafs.tree.partition.partitions.SAVE_BYTES", 1000)
    tree.append("t/0", b"x" * 2000 + b"\n")
    tree.append("u/0", b"x" * 200 + b"\n")
    tree.fs.partitions.tick()
    assert saved(tree) == ["t-0"]
    monkeypatch.setattr("kafkafs.tree.partition.partitions.SAVE_ALL_BYTES", 250)
    tree.fs.partitions.tick()
    assert saved(tree) == ["t-0", "u-0"]
    assert tree.read("t/0") == b"x" * 2000 + b"\n"


def test_a_roll_and_the_end_save(tree: Tree) -> None:
    tree.append("t/0", b"x\n")
    tree.append("u/0", b"x\n")
    assert saved(tree) == []
    tree.roll()
    assert saved(tree) == ["t-0"]
    tree.fs.stop()
    assert saved(tree) == ["t-0", "u-0"]


def test_what_the_tree_keeps_in_memory_does_not_grow_with_the_data(tree: Tree) -> None:
    partition = tree.fs.partitions.of(tree.log())
    for _ in range(20):
        tree.append("t/0", b"0123456789\n" * 2000)
        tree.roll()
    extents = partition.text(tree.fs.mount.views[0]).timeline.extents
    assert [extent.unsaved for extent in extents] == [0] * 21
    assert tree.fs.mount.store.memory.total == 0
    assert tree.attributes(tree.file()).size == 20 * 22_000


def test_of_a_deleted_topic_nothing_stays_in_memory(tree: Tree) -> None:
    for _ in range(3):
        tree.append("t/0", b"0123456789\n" * 2000)
        tree.roll()
    for number in range(3):
        assert tree.read("t/0", number * 22_000 + 11_000, 11) == b"0123456789\n"
    manager = tree.fs.mount.manager
    tree.fs.root.rmdir("t", CALLER)
    assert tree.fs.mount.store.memory.total > 0
    while (remove := manager.deleted.remove(2 * manager.clock_ms())) is not None:
        remove()
    assert tree.fs.mount.store.memory.total == 0
    assert [partition.log.topic for partition in tree.fs.partitions] == ["u"]


def test_the_daemons_own_files(tree: Tree) -> None:
    tree.fs.mount.events("something happened")
    assert tree.read(".kafkafs/version").decode() == version("kafkafs") + "\n"
    assert tree.read(".kafkafs/log").endswith(b" something happened\n")
    assert b"mkdir orders" in tree.read(".kafkafs/help")
    with pytest.raises(PermissionError):
        tree.open(".kafkafs/log", APPEND)


def test_statfs_is_the_disks(tree: Tree) -> None:
    assert tree.fs.statfs().f_blocks == os.statvfs(tree.manager.path).f_blocks


def test_logs_that_nobody_looks_at_have_no_cost(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        for number in range(5):
            tree.manager.create_topic(f"t{number}", 1)
        assert list(tree.fs.partitions) == []
        assert isinstance(tree.fs, FileSystem)


def test_removal_of_what_nobody_has_seen_is_a_new_history(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"x\n")
        tree.roll()
        inode = tree.file("t/0").inode
    with a_tree(tmp_path / "data") as tree:
        tree.remove_head(1)
    with a_tree(tmp_path / "data") as tree:
        assert tree.file("t/0").inode != inode
