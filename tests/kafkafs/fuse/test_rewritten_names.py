"""A name leads to what is there, also while another process rewrites it again and again."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyfuse3
import pytest
import trio
import trio.testing

from kafkafs.fuse import operations
from kafkafs.fuse.operations import TRIES, Operations
from kafkafs.fuse.session_loop import Spinner
from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.start_file import KEPT
from storage.files import Files
from tests.broker_files import Between, BrokerDirectory, BrokerPartition
from tests.kafkafs.trees import Following, Tree

T = TypeVar("T")
CONTEXT = pyfuse3.RequestContext()


class Rewriting(Files):
    """Calls `rewrite` before somebody opens a log."""

    def __init__(self) -> None:
        self.rewrite: Callable[[], None] = lambda: None

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if path.endswith(".log"):
            self.rewrite()
        return super().open(path, flags, mode)


class Measured(Files):
    """Calls `on_read` when a worker thread reads."""

    def __init__(self) -> None:
        super().__init__()
        self.on_read: Callable[[], None] = lambda: None

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.on_read()
        return super().preadv(fd, buffer, position)


class Removed(Exception):  # noqa: N818 - nothing is wrong
    """An open file or directory no longer exists."""


class Beside:
    """A broker's directory with a cleaner, and the requests of a kernel that has it mounted."""

    def __init__(
        self,
        data: Path,
        files: Files,
        *,
        records: int = 80,
        sealed: int = 4,
        until: int | None = None,
        follows: bool = True,
    ) -> None:
        """Write `sealed` segments and an active one. `until`: the high watermark."""
        broker = BrokerDirectory(data)
        self.partition = broker.partition()
        for number in range(records):
            self.partition.append(b"%d" % number)
            if (number + 1) % (records // sealed) == 0:
                self.partition.roll()
        self.partition.append(b"last")
        if until is not None:
            broker.write_high_watermark(self.partition, until)
        make = Following if follows else MountOptions
        options = make(read_only=True, until="log-end" if until is None else "high-watermark")
        self.tree = Tree(data, options, files)
        fs = self.tree.fs
        self.operations = Operations(fs, Spinner(), lambda: None)

    def clean(self, *, remove: bool = False) -> None:
        """Rewrite the sealed segments without one record. `remove`: delete the old files, too."""
        least = self.partition.records[20][0]
        count = len(self.partition.bases) - 1
        self.partition.clean(count, lambda offset, value: offset != least)
        if remove:
            self.partition.remove_deleted()

    async def lookup(self, path: str) -> pyfuse3.EntryAttributes:
        """As the kernel, name by name."""
        entry = await self.operations.getattr(pyfuse3.ROOT_INODE, CONTEXT)
        for name in path.split("/"):
            entry = await self.operations.lookup(entry.st_ino, os.fsencode(name), CONTEXT)
        return entry

    async def twice(self, path: str, ask: Callable[[int], Awaitable[T]]) -> T:
        """As the kernel, which looks a path up once more where it is ESTALE; each time a cleaner
        has come before the lookup, and comes before what follows.
        """
        for is_last in (False, True):
            self.clean()
            entry = await self.lookup(path)
            self.clean()
            try:
                return await ask(entry.st_ino)
            except pyfuse3.FUSEError as error:
                if is_last or error.errno != errno.ESTALE:
                    raise
        raise AssertionError("the last try raises")

    async def cat(self, path: str) -> bytes:
        """As the kernel and `cat`: a path is looked up once more where it is ESTALE."""
        for is_last in (False, True):
            try:
                entry = await self.lookup(path)
                await self.operations.getattr(entry.st_ino, CONTEXT)
                opened = await self.operations.open(entry.st_ino, os.O_RDONLY, CONTEXT)
                break
            except pyfuse3.FUSEError as error:
                if is_last or error.errno != errno.ESTALE:
                    raise
        try:
            return bytes(await self.operations.read(opened.fh, 0, 1 << 20))
        except pyfuse3.FUSEError as error:
            if error.errno != errno.ESTALE:
                raise
            raise Removed from None
        finally:
            await self.operations.release(opened.fh)

    async def read(self, inode: int) -> bytes:
        opened = await self.operations.open(inode, os.O_RDONLY, CONTEXT)
        data = await self.operations.read(opened.fh, 0, 1 << 20)
        await self.operations.release(opened.fh)
        return bytes(data)


class Rewritten(Beside):
    """Of which something happens before a log is opened."""

    def __init__(self, data: Path) -> None:
        self.files = Rewriting()
        super().__init__(data, self.files)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rewritten]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    beside = Rewritten(tmp_path / "data")
    yield beside
    beside.files.rewrite = lambda: None
    beside.tree.stop()


NAMES = ["t/0", "t/.kv/0", "t/.jsonl/0", "t/.batches/0", "t/0@start", "t/0@-10", "t/0@70..79"]


@pytest.mark.parametrize("log_start", [0, 12])
@pytest.mark.parametrize("name", NAMES)
@trio.testing.trio_test
async def test_what_was_looked_up_is_there_when_it_is_asked_for(
    beside: Beside, name: str, log_start: int
) -> None:
    """A cleaner has rewritten it between the lookup and what the kernel sends next."""
    if log_start:
        # Inside a segment.
        beside.partition.delete_records(log_start)
        beside.tree.fs.partitions.tick()
    sizes = set()
    for _ in range(2):
        entry = await beside.lookup(name)
        beside.clean()
        again = await beside.operations.getattr(entry.st_ino, CONTEXT)
        beside.clean()
        assert len(await beside.read(entry.st_ino)) == again.st_size > 0
        assert (await beside.lookup(name)).st_ino != entry.st_ino
        sizes.add(again.st_size)
    assert len(sizes) == (1 if "-10" in name or ".." in name else 2)


@pytest.mark.parametrize("times", [1, TRIES - 1])
@pytest.mark.parametrize("name", [name for name in NAMES if ".batches" not in name])
def test_a_name_that_is_rewritten_while_it_is_looked_up(
    beside: Rewritten, name: str, times: int
) -> None:
    """Before the log is read that its text is measured in; `.batches` measures nothing."""

    async def ask() -> None:
        await beside.lookup("t")
        left = times

        def rewrite() -> None:
            nonlocal left
            if left:
                left -= 1
                beside.clean(remove=True)

        beside.files.rewrite = rewrite
        entry = await beside.lookup(name)
        again = await beside.operations.getattr(entry.st_ino, CONTEXT)
        assert left == 0
        assert len(await beside.read(entry.st_ino)) == again.st_size > 0

    # Its pauses pass at once.
    trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("name", NAMES)
@trio.testing.trio_test
async def test_what_takes_longer_to_measure_than_a_lookup_may_wait(
    beside: Beside, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rewritten before it is measured, once; then who looks it up waits for that."""
    monkeypatch.setattr(operations, "PREPARE_S", -1.0)
    for _ in range(2):
        entry = await beside.twice(name, lambda inode: beside.operations.getattr(inode, CONTEXT))
        assert entry.st_size > 0
        assert await beside.twice(name, beside.read)
        beside.clean()
        assert await beside.twice(
            name,
            lambda inode: beside.operations.getxattr(inode, b"user.kafkafs.records", CONTEXT),
        )


@pytest.mark.parametrize("name", ["t/0", "t/.jsonl/0", "t/0@-10", "t/0@70..79"])
def test_a_change_is_seen_while_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By somebody else's question."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(operations, "PREPARE_S", 1e9)
    files = Measured()
    beside = Beside(tmp_path / "data", files)
    left = 3

    def change() -> None:
        nonlocal left
        if left:
            left -= 1
            beside.clean()
            partition = beside.tree.fs.partitions.of(beside.tree.log())
            trio.from_thread.run_sync(partition.follow)

    async def ask() -> None:
        await beside.lookup("t")
        files.on_read = change
        entry = await beside.lookup(name)
        assert left == 0
        assert (await beside.operations.getattr(entry.st_ino, CONTEXT)).st_size > 0

    try:
        trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        beside.tree.stop()


@trio.testing.trio_test
async def test_a_file_that_the_kernel_knows_is_kept_when_it_is_looked_up_again(
    beside: Beside,
) -> None:
    known = await beside.lookup("t/0@3")
    for offset in range(10, 10 + KEPT):
        await beside.lookup(f"t/0@{offset}")
    again = await beside.lookup("t/0@3")
    assert again.st_ino == known.st_ino
    beside.clean()
    assert (await beside.operations.getattr(known.st_ino, CONTEXT)).st_size == again.st_size


@trio.testing.trio_test
async def test_the_files_that_were_looked_up_last_are_kept_and_no_more(beside: Beside) -> None:
    first = await beside.lookup("t/0@0")
    for offset in range(1, KEPT):
        await beside.lookup(f"t/0@{offset}")
    beside.clean()
    assert (await beside.operations.getattr(first.st_ino, CONTEXT)).st_size == first.st_size
    first = await beside.lookup("t/0@0")
    for offset in range(1, KEPT + 1):
        await beside.lookup(f"t/0@{offset}")
    beside.clean()
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await beside.operations.getattr(first.st_ino, CONTEXT)
    assert raised.value.errno == errno.ESTALE
    # It is looked up again then.
    assert (await beside.lookup("t/0@0")).st_ino != first.st_ino


def test_a_broker_that_has_just_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And rewrites what was mounted while nobody wrote it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    beside = Beside(tmp_path / "data", Files(), follows=False)

    async def ask() -> None:
        await beside.lookup("t")
        beside.clean(remove=True)
        assert not beside.tree.fs.mount.follows
        monkeypatch.setattr(Files, "is_locked", lambda self, path: True)
        assert len(await beside.cat("t/0@-10")) > 0
        assert beside.tree.fs.mount.follows

    try:
        trio.run(ask)
    finally:
        beside.tree.stop()


# -- before each thing that is asked of the disk ---------------------------------------------------


def _clean(partition: BrokerPartition) -> None:
    partition.clean(len(partition.bases) - 1, lambda offset, value: offset % 2 == 0)


def _clean_active(partition: BrokerPartition) -> None:
    partition.append(b"new")
    partition.roll()
    partition.append(b"newer")
    _clean(partition)


def _delete(partition: BrokerPartition) -> None:
    partition.append(b"new")
    partition.roll()
    partition.append(b"newer")
    partition.delete_head(len(partition.bases) - 1)


@pytest.mark.parametrize(("name", "first"), [("t/0", 0), ("t/0@-3", 1)])
@pytest.mark.parametrize(
    ("change", "until", "removes"),
    [
        (_clean, None, False),
        (_clean_active, None, True),
        (_clean_active, 5, False),
        (_delete, None, False),
        (_delete, 5, True),
    ],
)
def test_it_is_rewritten_before_anything_that_is_asked_of_the_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[BrokerPartition], None],
    name: str,
    first: int,
    until: int | None,
    removes: bool,
) -> None:
    """The log is rewritten before the Nth disk operation, for every second N from `first` on.

    `until`: the high watermark that the broker wrote before. `removes`: the old files are deleted
    at once, so that a reader that has one open may get ESTALE.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    async def ask(beside: Beside, files: Between) -> None:
        def act() -> None:
            change(beside.partition)
            if removes:
                beside.partition.remove_deleted()

        await beside.lookup("t")
        files.begin(act)
        with contextlib.suppress(*[Removed] if removes else []):
            await beside.cat(name)
        files.end()
        await beside.cat(name)

    for number in itertools.count(first, 2):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        files = Between(number)
        beside = Beside(place / "data", files, records=11, sealed=2, until=until)
        try:
            trio.run(ask, beside, files)
        finally:
            beside.tree.stop()
        assert not any(segment.damages for segment in beside.tree.log().segments)
        if not files.has_acted:
            break
    assert number > 30
