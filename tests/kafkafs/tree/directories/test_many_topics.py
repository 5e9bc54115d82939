"""A change of one topic costs the same disk operations, however many other topics there are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkafs.tree.inodes import Change
from storage.files import Files, Kind
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree

OTHERS = 12


class Counted(Files):
    """Counts what is done to the disk, by operation, and the bytes that are read and written."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.done: Counter[str] = Counter()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.done["open"] += 1
        return super().open(path, flags, mode)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self.done["pwrite"] += 1
        self.done["bytes written"] += len(data)
        super().pwrite(fd, data, position)

    def read_whole(self, path: str) -> bytes:
        self.done["read whole"] += 1
        data = super().read_whole(path)
        self.done["bytes read"] += len(data)
        return data

    def fsync(self, fd: int) -> None:
        self.done["fsync"] += 1
        super().fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self.done["rename"] += 1
        super().rename(source, target)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self.done["mkdir"] += 1
        super().mkdir(path, mode)

    def unlink(self, path: str) -> None:
        self.done["unlink"] += 1
        super().unlink(path)

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        found = super().listing(path)
        self.done["listing"] += 1
        self.done["names listed"] += len(found)
        return found

    def _look(self, path: str) -> os.stat_result:
        self.done["stat"] += 1
        return super()._look(path)


def config(tree: Tree) -> None:
    handle = tree.open("t/.config", APPEND)
    handle.write(0, b"retention.ms=5\n")
    handle.release()


def made_and_removed(tree: Tree) -> None:
    tree.mkdir("new")
    tree.fs.root.rmdir("new", CALLER)


CHANGES: dict[str, Callable[[Tree], object]] = {
    "mkdir": lambda tree: tree.mkdir("new"),
    "mkdir beside one almost called so": lambda tree: tree.mkdir("n_e.w"),
    "mkdir and rmdir": made_and_removed,
    "touch": lambda tree: tree.directory("t").create("1", 0o644, APPEND, CALLER),
    "touch, by another": lambda tree: tree.directory("t").create("1", 0o600, APPEND, CALLER),
    "chmod": lambda tree: tree.node("t").set_attributes(Change(mode=0o700)),
    "chown of a partition": lambda tree: tree.node("t/0").set_attributes(Change(uid=7)),
    "config": config,
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_costs_the_same_beside_many_topics(tmp_path: Path, what: str) -> None:
    def cost(data: Path, others: int) -> dict[str, int]:
        with a_tree(data) as tree:
            for number in range(others):
                tree.mkdir(f"other{number}", 0o750)
            tree.mkdir("t")
        files = Counted(str(data))
        with a_tree(data, files=files) as tree:
            # The first that is made looks at what the last daemon has left.
            tree.mkdir("first")
            files.done.clear()
            CHANGES[what](tree)
            return dict(files.done)

    alone = cost(tmp_path / "alone", 0)
    assert alone
    assert cost(tmp_path / "many", OTHERS) == alone
