"""Names: listing, lookup, creation, removal and ownership."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.handles import Opener
from kafkafs.tree.inodes import ROOT_INODE, Change, Directory
from storage import LogManager
from storage.errors import InvalidTopic, ReadOnlyLog, SegmentGone, TopicExists
from storage.settings.setting_files import TOPIC_FILE
from storage.waiting import at_once
from tests.crash.failing_disk import FailingDisk
from tests.kafkafs.trees import APPEND, CALLER, ROOT, Following, Tree, a_tree
from tests.storage.logs import write_settings


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        yield tree


OWNER = Opener(CALLER.uid, 1, (), 0)
MEMBER = Opener(2, 2, (3, CALLER.gid), 0)
ABOUT_NAMES = ["adopt", "config", "help", "log", "metrics", "topics", "version"]


def owner(tree: Tree, path: str) -> tuple[int, int, int]:
    found = tree.attributes(tree.node(path))
    return stat.S_IMODE(found.mode), found.uid, found.gid


# -- what is there -------------------------------------------------------------------------------


def test_topics_and_partitions_are_listed_and_nothing_else(tree: Tree) -> None:
    tree.mkdir("b")
    tree.mkdir("a")
    for number in range(1, 12):
        tree.directory("a").create(str(number), 0o644, APPEND, CALLER)
    root = tree.fs.root
    assert root.names() == ["a", "b"]
    assert tree.directory("a").names() == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    "path",
    [
        "x",
        "t/1",
        "t/00",
        "t/-1",
        "t/x",
        "t/٣",
        "t/.raw/1",
        "t/.batches/1",
        "t/.control/0",
        "t/.raw/0/x",
        "t/.meta/0/x",
        "t/.snapshot/1",
        "t/.snapshot/0@0",
        "t/.snapshot/0@..end",
        "t/.follow/.snapshot",
        ".kafkafs/x",
    ],
)
def test_other_names_are_not_there(tree: Tree, path: str) -> None:
    tree.mkdir("t")
    with pytest.raises(FileNotFoundError):
        tree.node(path)


def test_a_name_can_be_too_long(tree: Tree) -> None:
    with pytest.raises(OSError, match="too long") as caught:
        tree.node("x" * 256)
    assert caught.value.errno == errno.ENAMETOOLONG
    with pytest.raises(FileNotFoundError):
        tree.node("x" * 255)


def test_a_topic_with_our_own_name_is_not_shown(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.manager.create_topic("theirs", 1)
    (tmp_path / "data/theirs-0").rename(tmp_path / "data/.kafkafs-0")
    with a_tree(tmp_path / "data") as tree:
        assert tree.fs.root.names() == []
        assert tree.directory(".kafkafs").names() == ABOUT_NAMES
        assert "'.kafkafs' is not shown" in tree.events()


def test_a_file_has_no_names_in_it(tree: Tree) -> None:
    tree.mkdir("t")
    with pytest.raises(NotADirectoryError):
        tree.node("t/0/x")


def test_a_known_node_is_handed_out_again(tree: Tree) -> None:
    tree.mkdir("t")
    for path in (
        "t",
        "t/0",
        "t/.raw",
        "t/.raw/0",
        "t/.config",
        "t/.batches",
        "t/.control",
        ".kafkafs",
    ):
        assert tree.node(path) is tree.node(path)


def test_a_topic_and_its_copy_share_no_inode(tmp_path: Path) -> None:
    """A copy of a topic's directory under another name has the same topic id."""
    names = ["", "/0", "/0@start", "/.kv", "/.kv/0", "/.kv/append", "/.follow/0", "/.append"]
    names += ["/.raw/0", "/.raw/0/partition.metadata", "/.meta/0", "/.meta/0/index", "/.config"]
    names += ["/.control/retention", "/.control/abort-transaction"]
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
    shutil.copytree(tmp_path / "data" / "t-0", tmp_path / "data" / "u-0")
    with a_tree(tmp_path / "data") as tree:
        found = [tree.node(f"{topic}{name}").inode for topic in "tu" for name in names]
        assert tree.fs.mount.manager.topic("t").id == tree.fs.mount.manager.topic("u").id
    assert len(set(found)) == 2 * len(names)


# -- making and removing -------------------------------------------------------------------------


def test_mkdir_creates_a_topic_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_settings(tmp_path / "data", num_partitions=3)
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t", 0o750)
        assert tree.directory("t").names() == ["0", "1", "2"]
        assert owner(tree, "t") == (0o750, 1000, 100)
        assert owner(tree, "t/2") == (0o640, 1000, 100)
        assert owner(tree, "t/.raw/2") == (0o550, 1000, 100)
        assert owner(tree, "t/.raw/2/partition.metadata") == (0o440, 1000, 100)


def test_bad_and_taken_names(tree: Tree) -> None:
    tree.mkdir("a.b")
    with pytest.raises(InvalidTopic, match="'a b' does not"):
        tree.mkdir("a b")
    for name in ("a.b", "a_b"):
        with pytest.raises(TopicExists):
            tree.mkdir(name)
    with pytest.raises(FileExistsError):
        tree.mkdir(".kafkafs")
    assert tree.manager.settings.get_owner("a_b", None) is None
    assert tree.manager.settings.get_owner("a.b", None) == (1000, 100, 0o755)


def test_touch_creates_the_next_partition(tree: Tree) -> None:
    topic = tree.mkdir("t")
    node, handle = topic.create("1", 0o604, APPEND, CALLER)
    assert isinstance(node, ViewFile)
    handle.write(0, b"line\n")
    handle.release()
    assert tree.read("t/1") == b"line\n"
    assert owner(tree, "t/1") == (0o604, 1000, 100)
    _, reading = topic.create("2", 0o644, os.O_RDONLY, CALLER)
    assert at_once(reading.read, 0, 10) == b""
    for name in ("2", "4", "x", "03", ".x"):
        with pytest.raises(InvalidTopic, match=r"the next partition|is a number"):
            topic.create(name, 0o644, APPEND, CALLER)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, error: int) -> None:
    """Whatever the disk refuses: no partition, to which keyed lines would go, also after a start;
    and the owner of the next one is whoever makes it.
    """
    disk = FailingDisk(str(tmp_path))
    with LogManager.open(str(tmp_path), files=disk) as manager:
        topic = manager.create_topic("t", 1)
        manager.settings.set_owner("t", None, 1, 2, 0o700)
        directory = FileSystem(MountContext(manager)).lookup(ROOT_INODE, "t")
        assert isinstance(directory, Directory)
        for at in range(1, 1000):
            disk.failed = ""
            disk.fail_from_now(error, at)
            try:
                directory.create("1", 0o640, os.O_WRONLY, CALLER)
            except OSError:
                disk.fail_from_now(0, 0)
                assert disk.failed
                assert topic.numbers == [0], disk.failed
                assert not (tmp_path / "t-1").exists(), disk.failed
                continue
            finally:
                disk.fail_from_now(0, 0)
            break
        assert at > 5
        node = directory.lookup("1")
        assert node.attributes().uid == CALLER.uid


def test_rmdir_deletes_a_topic_with_everything_in_it(tree: Tree, tmp_path: Path) -> None:
    tree.mkdir("t")
    tree.append("t/0", b"line\n")
    handle = tree.open("t/0")
    inode = tree.node("t/0").inode
    root = tree.fs.root
    root.rmdir("t", CALLER)
    with pytest.raises(FileNotFoundError):
        tree.node("t")
    assert at_once(handle.read, 0, 10) == b"line\n", "until its files are gone"
    assert [path for path in (tmp_path / "data").iterdir() if path.name.endswith("-delete")]
    tree.mkdir("t")
    assert tree.node("t/0").inode != inode
    assert tree.read("t/0") == b""
    remove = tree.manager.sweep(1 << 62)
    assert remove is not None
    remove()
    with pytest.raises(SegmentGone):
        at_once(handle.read, 0, 10)


def test_rmdir_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_settings(tmp_path / "data", delete_topic_enable="false")
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        root = tree.fs.root
        for name, why in (
            ("t", "deleting topics is disabled (delete.topic.enable is false)"),
            (".kafkafs", "it is part of"),
        ):
            with pytest.raises(PermissionError, match=re.escape(why)):
                root.rmdir(name, CALLER)
        with pytest.raises(FileNotFoundError):
            root.rmdir("x", CALLER)


def test_everything_else_is_eperm(tree: Tree) -> None:
    topic = tree.mkdir("t")
    root = tree.fs.root
    with pytest.raises(PermissionError):
        root.create("x", 0o644, APPEND, CALLER)
    with pytest.raises(PermissionError):
        topic.mkdir("x", 0o755, CALLER)
    with pytest.raises(PermissionError):
        topic.rmdir(".raw", CALLER)
    with pytest.raises(
        PermissionError, match="to delete the topic, and its files 60 s later: rmdir t"
    ):
        topic.unlink("0")
    with pytest.raises(PermissionError):
        tree.directory("t/.raw/0").unlink("partition.metadata")
    with pytest.raises(PermissionError):
        tree.directory("t/.raw").create("1", 0o644, APPEND, CALLER)
    for path, change in (
        ("t/.raw", Change(mode=0o700)),
        ("t/.raw/0/partition.metadata", Change(uid=0)),
        ("t/.meta/0/index", Change(size=0)),
    ):
        with pytest.raises(PermissionError):
            tree.node(path).set_attributes(change)


def test_a_read_only_mount_makes_nothing(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
    with a_tree(tmp_path / "data", MountOptions(read_only=True)) as tree:
        root = tree.fs.root
        with pytest.raises(ReadOnlyLog):
            tree.mkdir("u")
        with pytest.raises(ReadOnlyLog):
            root.rmdir("t", CALLER)
        with pytest.raises(ReadOnlyLog):
            tree.directory("t").create("1", 0o644, APPEND, CALLER)
        for path in ("t", "t/0"):
            with pytest.raises(OSError, match="Read-only") as caught:
                tree.node(path).set_attributes(Change(mode=0o700))
            assert caught.value.errno == errno.EROFS


# -- owners --------------------------------------------------------------------------------------


def test_chmod_and_chown_last(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.mkdir("u")
        tree.node("t").set_attributes(Change(mode=0o40700, uid=5))
        tree.node("u/0").set_attributes(Change(gid=7))
    with a_tree(tmp_path / "data") as tree:
        assert owner(tree, "t") == (0o700, 5, 100)
        assert owner(tree, "t/0") == (0o644, 1000, 100), "as it was made"
        assert owner(tree, "u/0") == (0o644, 1000, 7)
        tree.notices.clear()
        tree.node("t").set_attributes(Change(mode=0o40755))
        told = tree.notices.attributes
        assert tree.node("t/.kv").inode in told
        assert tree.node("t/0").inode not in told
        raw = tree.node("t/.raw/0").inode
        tree.notices.clear()
        tree.node("t/0").set_attributes(Change(mode=0o100600))
        assert {raw, tree.node("t/0").inode} <= {*tree.notices.attributes}


@pytest.mark.parametrize(
    ("path", "change", "refused"),
    [
        ("t/0", Change(mode=0o464), {OWNER}),
        ("t/0", Change(mode=0o644), {MEMBER}),
        ("t/0", Change(gid=5), {MEMBER}),
        ("t/1", Change(uid=5), {OWNER}),
        ("t/1", Change(uid=5, mode=0o644), {OWNER, MEMBER}),
        ("t", Change(mode=0o555), {OWNER, MEMBER}),
        ("t", Change(mode=0o777), set()),
        ("t/0", Change(mode=0o260), set()),
    ],
)
@pytest.mark.parametrize(
    ("opener", "name", "line"),
    [
        (ROOT, ".append", b"x\n"),
        (OWNER, ".append", b"x\n"),
        (OWNER, ".config", b"segment.ms=9\n"),
        (MEMBER, ".append", b"x\n"),
        (MEMBER, ".control/roll", b"run\n"),
    ],
)
def test_an_open_file_of_the_whole_topic_obeys_a_chmod(
    tree: Tree,
    name: str,
    line: bytes,
    path: str,
    change: Change,
    refused: set[Opener],
    opener: Opener,
) -> None:
    tree.mkdir("t", 0o775)
    handle = tree.open(f"t/{name}", APPEND, opener)
    tree.directory("t").create("1", 0o664, APPEND, CALLER)
    assert handle.write(0, line) == len(line)
    tree.node(path).set_attributes(change)
    if opener in refused:
        with pytest.raises(PermissionError, match="the user who opened this file no longer has"):
            handle.write(len(line), line)
    else:
        handle.write(len(line), line)
    handle.release()


def test_topics_without_owners_have_the_data_directorys(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o750)
    with a_tree(tmp_path / "data") as tree:
        tree.manager.create_topic("t", 1)
        found = os.stat(tmp_path / "data")
        mode = stat.S_IMODE(found.st_mode)
        assert owner(tree, "t") == (mode, found.st_uid, found.st_gid)
        assert owner(tree, "t/0") == (mode & 0o644, found.st_uid, found.st_gid)


def test_mount_options_override_what_is_shown(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", MountOptions(uid=1, gid=2, umask=0o027)) as tree:
        tree.mkdir("t", 0o755)
        assert owner(tree, "t") == (0o750, 1, 2)
        assert owner(tree, "t/0") == (0o640, 1, 2)
        assert tree.manager.settings.get_owner("t", None) == (1000, 100, 0o755)


def test_the_group_of_a_setgid_directory_is_inherited_as_it_is_stored(tmp_path: Path) -> None:
    """Not as the mount option `gid` shows it: a later mount may be without."""
    options = MountOptions(gid=2)
    with a_tree(tmp_path / "data", options) as tree:
        tree.fs.root.set_attributes(Change(gid=7, mode=0o42775))
        tree.mkdir("t")
        tree.directory("t").create("1", 0o644, APPEND, CALLER)
        assert {owner(tree, path)[2] for path in ("t", "t/0", "t/1")} == {2}
    with a_tree(tmp_path / "data") as tree:
        assert {owner(tree, path)[2] for path in ("t", "t/0", "t/1")} == {7}


def test_what_chmod_and_chown_leave_is_not_what_mount_options_show(tmp_path: Path) -> None:
    """The mount options count for this mount only; a later one shows the owners as they were."""

    def owners(tree: Tree, change: Change | None = None) -> list[tuple[int, int, int]]:
        nodes = [tree.fs.root, *map(tree.node, ("t", "t/0", "t/1", ".groups/g"))]
        if change is not None:
            for node in nodes:
                node.set_attributes(change)
        shown = map(tree.attributes, nodes)
        return [(stat.S_IMODE(each.mode), each.uid, each.gid) for each in shown]

    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t", 0o777)
        tree.directory("t").create("1", 0o666, APPEND, CALLER)
        tree.directory(".groups").mkdir("g", 0o777, CALLER)
        tree.append(".groups/g/t/0", b"0\n")
        expected = owners(tree)
    for change in (Change(uid=7), Change(gid=8), Change(mode=0o40711)):
        with a_tree(tmp_path / "data", MountOptions(uid=1, gid=2, umask=0o027)) as tree:
            assert {owner[1:] for owner in owners(tree, change)} == {(1, 2)}
        uid, gid, mode = change.uid, change.gid, change.mode
        expected = [
            (stat.S_IMODE(mode or each[0]), uid or each[1], gid or each[2]) for each in expected
        ]
        with a_tree(tmp_path / "data") as tree:
            assert owners(tree) == expected, change


def test_a_read_only_mount_shows_what_another_process_changes(tmp_path: Path) -> None:
    """A path that becomes private is private there, too, from the next stat or open on."""
    data = tmp_path / "data"
    paths = ("t", "t/0", "t/1", "t/.kv", "t/.kv/0", "t/.raw/0", "t/.meta/0", ".groups/g")
    with a_tree(data) as tree, a_tree(data, Following(read_only=True)) as beside:
        tree.mkdir("t")
        tree.directory("t").create("1", 0o644, APPEND, CALLER)
        tree.directory(".groups").mkdir("g", 0o755, CALLER)
        tree.append(".groups/g/t/0", b"0\n")

        def check() -> None:
            assert [owner(beside, path) for path in paths] == [owner(tree, path) for path in paths]
            assert owner_of_root(beside) == owner_of_root(tree)

        def owner_of_root(tree: Tree) -> tuple[int, int, int]:
            found = tree.attributes(tree.fs.root)
            return stat.S_IMODE(found.mode), found.uid, found.gid

        check()
        open_before = beside.file("t/0")
        for path, change in (
            ("t/0", Change(mode=0o100600)),
            ("t", Change(mode=0o40700, uid=5)),
            ("t/0", Change(mode=0o100640, gid=6)),
            ("t/1", Change(uid=7)),
            (".groups/g", Change(mode=0o40700)),
            (".groups/g", Change(uid=8)),
        ):
            tree.node(path).set_attributes(change)
            check()
        for change in (Change(mode=0o41777), Change(uid=9)):
            tree.fs.root.set_attributes(change)
            check()
        assert stat.S_IMODE(beside.attributes(open_before).mode) == 0o640
        tree.append("t/.config", b"retention.ms=4711\n")
        assert b"retention.ms=4711\n" in beside.read("t/.config")


def test_where_the_owners_are_not_known_everybody_else_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t", 0o755)
        found = os.stat(tmp_path / "data")
    (tmp_path / "data" / "t-0" / TOPIC_FILE).write_bytes(b"\xff")
    manager = LogManager.open(str(tmp_path / "data"), keeps_faulty=True)
    permissions = FileSystem(MountContext(manager)).mount.permissions
    assert permissions.topic("t") == (0o700, found.st_uid, found.st_gid)
    mode, *_ = permissions.partition(manager.log("t", 0))
    assert stat.S_IMODE(mode) == 0o600
    manager.close()
