"""The owner's thread waits for no other one, and what it left to that one gets done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kafkafs.tree.partition.partition_text import CATCH_UP_AT_ONCE
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.log.append import append_batches
from storage.task import Task
from storage.waiting import at_once
from tests.kafkafs.trees import Following, Tree, a_tree, read
from tests.storage.logs import NOW_MS, append
from tests.storage.producers import Producer
from tests.waits import HANG_S

T = TypeVar("T")
NOW_NS = NOW_MS * 1_000_000


class OwnersFiles(Files):
    """Notes which files the owner has read or made."""

    def __init__(self) -> None:
        super().__init__()
        self.is_owners = False
        self.used: set[str] = set()
        self._paths: dict[int, str] = {}

    def on_log_thread(self, function: Callable[[], T], /) -> T:
        self.is_owners = True
        try:
            return function()
        finally:
            self.is_owners = False

    def _note(self, path: str) -> None:
        if self.is_owners:
            self.used.add(os.path.basename(path))

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._note(self._paths[fd])
        return super().preadv(fd, buffer, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._note(self._paths[fd])
        return super().pread(fd, size, position)

    def read_whole(self, path: str) -> bytes:
        self._note(path)
        return super().read_whole(path)

    def replace_atomically(self, path: str, data: bytes, **how: Any) -> None:
        self._note(path)
        super().replace_atomically(path, data, **how)


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
        view = partition.text(tree.fs.mount.views[0])

        def owner() -> None:
            append(tree.log(), b"three")
            tree.roll()
            append(tree.log(), b"four")
            with pytest.raises(BlockingIOError):
                at_once(view.generation)
            view.save()

        beside(view.generation, files, owner)
        assert tree.read("t/0") == b"one\ntwo\nthree\nfour\n"
        sealed = view.timeline.extents[0]
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


def test_a_change_waits_for_no_thread_that_measures_a_transaction(tmp_path: Path) -> None:
    """It is refused, and the next one has a worker thread measure the text first."""
    files = HeldFiles(".log")
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"retention.bytes": "1"})
        file = tree.file()
        tree.append(file, b"before\n")
        handle = tree.open(file)
        log = tree.log()
        producer = Producer(1, transactional=True)
        values = [b"v" * (CATCH_UP_AT_ONCE // 2)] * 3
        for value in values:
            append_batches(log, producer.batch(value), now_ns=NOW_NS)
        tree.roll()
        append_batches(log, producer.commit(), now_ns=NOW_NS)
        before = log.segments

        def refused() -> None:
            with pytest.raises(BlockingIOError, match="try again"):
                log.remove_head(1, tree.clock.ms())

        shown = tree.fs.partitions.of(log).text(tree.fs.mount.views[0])
        beside(shown.catch_up, files, refused)
        assert log.segments == before
        assert retain(tree.manager, [log], Task()).segments == len(before) - 1
        text = b"".join(value + b"\n" for value in (b"before", *values))
        assert read(handle, 0, 4 << 20) == text


@pytest.mark.parametrize("name", ["generation", "lasting_generation"])
def test_the_log_start_moves_while_a_thread_measures_a_transaction(
    tmp_path: Path, name: str
) -> None:
    """That thread shows no record below the new start."""
    files = HeldFiles(".log")
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        file = tree.file()
        tree.append(file, b"one\n")
        tree.append(file, b"two\n")
        assert tree.read("t/0") == b"one\ntwo\n"
        log = tree.log()
        text = tree.fs.partitions.of(log).text(tree.fs.mount.views[0])
        log.raise_log_start(1)
        producer = Producer(1, transactional=True)
        for _ in range(3):
            append_batches(log, producer.batch(b"v" * (CATCH_UP_AT_ONCE // 2)), now_ns=NOW_NS)
        append_batches(log, producer.commit(), now_ns=NOW_NS)
        assert text.end_unknown
        assert not text.has_generation
        begins: list[int] = []

        def begin() -> None:
            begins.append(getattr(text, name)().first_valid)

        beside(begin, files, lambda: log.raise_log_start(2))
        assert begins == [len(b"one\ntwo\n")]


def test_retention_has_the_owner_read_no_log(tmp_path: Path) -> None:
    """Its end may lie on the disk only: nobody has looked at it for a week."""
    files = OwnersFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"retention.bytes": "1"})
        for value in (b"one", b"two", b"three"):
            append(tree.log(), value)
            tree.roll()
        append(tree.log(), b"last")
        assert tree.read("t/0") == b"one\ntwo\nthree\nlast\n"
        tree.fs.partitions.tick()
        tree.fs.partitions.housekeeping()
        task = Task(files.on_log_thread)
        assert retain(tree.manager, [tree.log()], task).segments == 3
        assert {name for name in files.used if name.endswith(".log")} == set()


def test_a_change_that_nobody_sees_has_the_owner_read_no_history(tmp_path: Path) -> None:
    """The segments below the log start are removed before any reader has opened the partition."""
    files = OwnersFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        for value in (b"one", b"two", b"three"):
            append(tree.log(), value)
            tree.roll()
        delete_records(tree.manager, tree.log(), 2, Task())
    with a_tree(tmp_path / "data", files=files) as tree:
        partition = tree.fs.partitions.of(tree.log())
        task = Task(files.on_log_thread)
        assert retain(tree.manager, [tree.log()], task).segments == 2
        assert "kafkafs.history" not in files.used
        assert not partition._history_read
