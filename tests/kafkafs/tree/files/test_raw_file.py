"""`.raw/N`: the segment files themselves."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from kafkafs.tree.inodes import KEEP_S
from storage import paths
from storage.files import Files
from storage.waiting import at_once
from tests.kafkafs.tree.files.test_view_file import ColdFiles
from tests.kafkafs.trees import (
    APPEND,
    Tree,
    a_tree,
    clean,
    cleaned_segment,
    commit,
    in_thread,
    read,
    sync,
)
from tests.storage.logs import remove_head

LOG = "t/.raw/0/00000000000000000000.log"


def test_shows_the_files_byte_for_byte(tree: Tree) -> None:
    tree.append("t/0", b"line\n" * 2000)
    tree.roll()
    tree.append("t/0", b"more\n")
    tree.log().flush()
    directory = tree.directory("t/.raw/0")
    assert set(directory.names()) == {
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000002000.index",
        "00000000000000002000.log",
        "00000000000000002000.snapshot",
        "00000000000000002000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    for name in directory.names():
        on_disk = Path(tree.log().directory, name).read_bytes()
        node = tree.node(f"t/.raw/0/{name}")
        assert tree.attributes(node).size == len(on_disk)
        handle = tree.open(node)
        assert read(handle, 0, len(on_disk) + 1) == on_disk
        assert read(handle, 5, 7) == on_disk[5:12]
        assert read(handle, len(on_disk), 7) == b""
        handle.release()
    # Neither files of our own nor those that wait for their deletion.
    tree.remove_head(1)
    assert [name for name in directory.names() if name.startswith("0" * 20)] == []
    for hidden in ("kafkafs.history", f"{0:020}.log.deleted", f"{2000:020}.lines"):
        with pytest.raises(FileNotFoundError):
            tree.node(f"t/.raw/0/{hidden}")


def test_can_only_be_read(tree: Tree) -> None:
    assert tree.attributes(tree.node(LOG)).mode & 0o222 == 0
    for flags in (APPEND, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        with pytest.raises(OSError, match="read-only here") as refused:
            tree.open(LOG, flags)
        assert refused.value.errno == errno.EROFS


def test_no_descriptor_holds_a_file_that_was_deleted(tree: Tree) -> None:
    """An open file of `.raw` would keep its room on a full disk until it is closed."""
    tree.append("t/0", b"a\nb\n")
    tree.roll()
    directory = Path(tree.log().directory)
    of_first = [name for name in tree.directory("t/.raw/0").names() if name.startswith("0" * 20)]
    opened = [tree.open(f"t/.raw/0/{name}") for name in of_first]
    opened += [tree.open(name) for name in ("t/0", "t/.jsonl/0", "t/.batches/0", "t/.snapshot/0")]
    for handle in opened:
        read(handle)
    remove_head(tree.log(), 1, 0)
    tree.delete_files()
    held = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            held.append(os.readlink(f"/proc/self/fd/{fd}"))
    assert [path for path in held if path.startswith(str(directory)) and "deleted" in path] == []
    assert list(directory.glob("*.deleted")) == []
    for handle in opened:
        handle.release()


def test_a_segment_that_is_just_being_replaced(tree: Tree) -> None:
    """The log has the new one at once; the files get their names one after the other."""
    tree.append("t/0", b"a\nb\n")
    tree.roll()
    log, known = tree.log(), tree.node(LOG)
    content = Path(log.directory, Path(LOG).name).read_bytes()
    old = log.segments[:1]
    new = cleaned_segment(log, 1, lambda record: record.offset == 0)
    commit(log, old, [new])
    log.replace(old, [new], log.monotonic_ms())

    assert tree.node(LOG).inode == known.inode
    early = tree.open(known)
    assert not early.direct_io
    assert read(early) == content
    index = tree.open("t/.raw/0/00000000000000000000.timeindex")
    assert read(index) == Path(log.directory, "00000000000000000000.timeindex").read_bytes()
    index.release()

    log.rename_to_deleted(old)
    assert not Path(log.directory, Path(LOG).name).exists()
    replacement = tree.node(LOG)
    assert replacement.inode != known.inode
    assert Path(LOG).name in tree.directory("t/.raw/0").names()
    with pytest.raises(OSError, match="deleted or replaced"):
        tree.open(known)
    between = tree.open(LOG)
    shown = read(between)
    between.release()

    log.finish_replacement(new)
    late = tree.open(LOG)
    assert tree.node(LOG).inode == replacement.inode
    assert read(late) == shown
    assert read(late) == Path(log.directory, Path(LOG).name).read_bytes() != content
    assert read(early) == content
    early.release()
    late.release()


def test_what_is_open_has_attributes_when_its_name_leads_to_another_file(tree: Tree) -> None:
    tree.append("t/0", b"a\n")
    node = tree.node("t/.raw/0/partition.metadata")
    path = Path(tree.log().directory, "partition.metadata")
    content = path.read_bytes()
    handles = [tree.open(node) for _ in range(2)]
    path.unlink()
    path.write_bytes(b"longer" + content)
    for handle in handles:
        found = at_once(node.attributes)
        assert (found.size, found.nlink) == (len(content), 0)
        assert read(handle) == content
        handle.release()
    with pytest.raises(OSError, match="deleted or replaced"):
        at_once(node.attributes)


class SameNumber(Files):
    """A disk that gives each log the number of the one before, as it may after its removal."""

    def file_stat(self, path: str) -> os.stat_result:
        found = super().file_stat(path)
        if not path.endswith(paths.LOG):
            return found
        fields = list(found)
        fields[stat.ST_INO] = 4711
        return os.stat_result(fields, {"st_mtime_ns": found.st_mtime_ns, "st_blocks": 8})


def test_another_file_with_the_same_number_on_the_disk(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", files=SameNumber()) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"a\nb\n")
        tree.roll()
        before = tree.node(LOG)
        clean(tree.log(), 1, lambda record: record.offset == 0)
        assert tree.node(LOG).inode != before.inode
        with pytest.raises(OSError, match="deleted or replaced"):
            at_once(before.attributes)


def test_pages_are_kept_once_it_is_sealed(tree: Tree) -> None:
    """The kernel's last page of a log that grew may end in zeros."""

    def opened() -> tuple[bool, bool]:
        handle = tree.open(LOG)
        handle.release()
        return handle.direct_io, handle.keep_cache

    tree.append("t/0", b"a\n")
    assert [opened(), opened()] == [(True, False)] * 2
    growing = tree.node(LOG)
    tree.roll()
    node = tree.node(LOG)
    assert node.inode != growing.inode, "another file in the page cache"
    assert [opened(), opened()] == [(False, True)] * 2
    assert tree.attributes(node).attr_timeout == KEEP_S
    tree.append("t/0", b"b\n")
    assert tree.attributes(node).attr_timeout == KEEP_S
    index = tree.open("t/.raw/0/00000000000000000000.index")
    assert index.direct_io
    index.release()


def test_a_file_that_was_replaced_or_deleted_is_not_opened(tree: Tree) -> None:
    """Between the lookup and that."""
    tree.append("t/0", b"line\n")
    tree.log().flush()
    node = tree.node(LOG)
    path = Path(tree.log().directory) / Path(LOG).name
    aside = path.rename(f"{path}.aside")
    with pytest.raises(OSError, match="deleted or replaced") as raised:
        tree.open(node)
    assert raised.value.errno == errno.ESTALE
    path.write_bytes(b"another")
    with pytest.raises(OSError, match="deleted or replaced"):
        at_once(node.attributes)
    with pytest.raises(OSError, match="deleted or replaced") as raised:
        tree.open(node)
    assert raised.value.errno == errno.ESTALE
    aside.replace(path)
    handle = tree.open(node)
    assert read(handle, 0, 1 << 20) == path.read_bytes()
    handle.release()


def test_fsync_of_it_flushes_the_partition(tree: Tree) -> None:
    tree.append("t/0", b"a\n")
    handle = tree.open(LOG)
    sync(handle)
    handle.release()
    assert tree.log().durability.recovery_point == 1


def test_cold_reads_wait_in_a_worker_thread(tmp_path: Path) -> None:
    files = ColdFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"a\n")
        files.cold = True
        handle = tree.open(LOG)
        with pytest.raises(BlockingIOError):
            at_once(handle.read, 0, 10)
        assert len(in_thread(lambda: handle.read(0, 100))) == 69
        handle.release()
