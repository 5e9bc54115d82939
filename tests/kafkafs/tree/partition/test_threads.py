"""The owner's thread waits for no other one, and what it left to that one gets done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.files import Files
from storage.waiting import at_once
from tests.hang import HANG_S
from tests.kafkafs.trees import Following, Tree, a_tree
from tests.storage.logs import append


class HeldFiles(Files):
    """Holds the next read that a thread other than the owner's makes of a file."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self.suffix = suffix
        self.owner = threading.get_ident()
        self.paths: dict[int, str] = {}
        self.reached, self.go = threading.Event(), threading.Event()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def hold(self, path: str) -> None:
        is_held = path.endswith(self.suffix) and threading.get_ident() != self.owner
        if is_held and not self.go.is_set():
            self.reached.set()
            assert self.go.wait(HANG_S)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.hold(self.paths[fd])
        return super().preadv(fd, buffer, position)

    def read_whole(self, path: str) -> bytes:
        self.hold(path)
        return super().read_whole(path)


def beside(work: Callable[[], object], files: HeldFiles, owner: Callable[[], None]) -> None:
    """Do `work` in a thread, and what the owner does while that thread reads."""
    worker = threading.Thread(target=work)
    worker.start()
    assert files.reached.wait(HANG_S)
    try:
        owner()
    finally:
        files.go.set()
        worker.join()


def foreign(data: Path) -> None:
    """A log without line indexes: a reader has to measure it."""
    with a_tree(data) as tree:
        tree.mkdir("t")
        append(tree.log(), b"one", b"two")
    for path in (data / "t-0").glob("*.lines"):
        path.unlink()


def test_appends_and_rolls_beside_a_thread_that_measures(tmp_path: Path) -> None:
    foreign(tmp_path / "data")
    files = HeldFiles(".log")
    with a_tree(tmp_path / "data", files=files) as tree:
        partition = tree.fs.partitions.of(tree.log())
        partition.nonce()
        view = partition.view(tree.fs.mount.views[0])

        def owner() -> None:
            append(tree.log(), b"three")
            tree.roll()
            append(tree.log(), b"four")
            with pytest.raises(BlockingIOError):
                at_once(view.generation)
            view.layout.save()

        beside(view.generation, files, owner)
        assert tree.read("t/0") == b"one\ntwo\nthree\nfour\n"
        sealed = view.layout.timeline.extents[0]
        assert not sealed.unsaved, "the thread that measured it has saved what it sealed"


def test_the_past_changes_beside_a_thread_that_reads_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that another process writes, before anybody has read its history."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    with a_tree(data) as tree:
        tree.mkdir("t")
        append(tree.log(), b"one", b"two")
        assert tree.read("t/0")
    files = HeldFiles("kafkafs.history")
    tree = Tree(data, Following(read_only=True), files)
    partition = tree.fs.partitions.of(tree.log())
    found: list[int] = []
    beside(lambda: found.append(partition.nonce()), files, partition.log_start_moved)
    assert found == [partition.nonce()]
    assert tree.read("t/0") == b"one\ntwo\n"
    tree.stop()
