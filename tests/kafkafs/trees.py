"""Helpers for tests of the tree: a tree over a real data directory, called as the daemon does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.handles import Handle, NotExamined, Opener
from kafkafs.tree.inodes import Attributes, Caller, Directory, Node
from kafkafs.tree.notices import Notices, Waiter
from storage import LogManager, Record, encode, paths
from storage.files import Files
from storage.log.flush import run_all
from storage.log.log import Log
from storage.plain_forms import BUDGET, plain_forms
from storage.record.batch import decode
from storage.recovery import swap
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.writer import SegmentWriter
from storage.waiting import at_once
from tests.log_check import check
from tests.storage.logs import remove_head

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CALLER = Caller(1000, 100)
ROOT = Opener(0, 0, (), 0)
APPEND = os.O_WRONLY | os.O_APPEND


class RecordedNotices(Notices):
    """Notices that are kept for the test to look at."""

    def __init__(self) -> None:
        self.attributes: list[int] = []
        self.names = 0

    def attributes_changed(self, inode: int) -> None:
        self.attributes.append(inode)

    def names_changed(self) -> None:
        self.names += 1

    def wake(self, waiter: Waiter) -> None:
        waiter.notify()

    def clear(self) -> None:
        self.attributes.clear()
        self.names = 0


class Clock:
    """Nanoseconds that only a test moves."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def ms(self) -> int:
        return self.now_ns // 1_000_000


def in_thread(function: Callable[[], T]) -> T:
    """Call in a worker thread, as the FUSE layer does what may wait."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def asked(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Ask at once, and where that has to wait, in a worker thread."""
    try:
        return at_once(function, *arguments)
    except BlockingIOError:
        return in_thread(lambda: function(*arguments))


class Following(MountOptions):
    """The options of a mount beside another process that writes the directory."""


class Tree:
    """A tree and its data directory. Paths are those under the mount point."""

    def __init__(
        self, data: Path, options: MountOptions | None = None, files: Files | None = None
    ) -> None:
        self.clock = Clock()
        self.notices = RecordedNotices()
        read_only = options is not None and options.read_only
        plain_forms.budget = (options or MountOptions()).memory
        self.manager = LogManager.open(
            str(data), files=files, clock_ms=self.clock.ms, read_only=read_only
        )
        self.fs = FileSystem(
            MountContext(
                self.manager,
                options,
                follows=isinstance(options, Following),
                notices=self.notices,
                clock_ns=self.clock,
            )
        )

    def attributes(self, node: Node) -> Attributes:
        """Get the attributes as `operations` does: again after a worker thread has waited."""
        try:
            return at_once(node.attributes)
        except BlockingIOError:
            found = in_thread(node.attributes)
        try:
            return at_once(node.attributes)
        except BlockingIOError:
            return found

    def node(self, path: str) -> Node:
        """Look up a path, name by name; the kernel knows what is on the way."""
        node: Node = self.fs.inodes.get(1)
        for name in path.split("/"):
            parent = node
            node = asked(self.fs.lookup, parent.inode, name)
            self.attributes(node)
            node = self.fs.inodes.remember(node)
        return node

    def file(self, path: str = "t/0") -> ViewFile:
        node = self.node(path)
        assert isinstance(node, ViewFile)
        return node

    def directory(self, path: str) -> Directory:
        node = self.node(path)
        assert isinstance(node, Directory)
        return node

    def rest(self) -> None:
        """Let two ticks pass in which nothing grows, and clear the recorded notices."""
        for _ in range(2):
            self.fs.partitions.tick()
        self.notices.clear()

    def mkdir(self, name: str, mode: int = 0o755) -> Directory:
        topic = self.fs.root.mkdir(name, mode, CALLER)
        assert isinstance(topic, Directory)
        node = self.fs.inodes.remember(topic)
        assert isinstance(node, Directory)
        return node

    def open(self, node: Node | str, flags: int = os.O_RDONLY, opener: Opener = ROOT) -> Handle:
        found = self.node(node) if isinstance(node, str) else node
        handle = asked(found.open, flags)
        handle.opened_by(opener)
        return handle

    def read(self, node: Node | str, position: int = 0, size: int = 1 << 20) -> bytes:
        handle = node if isinstance(node, Handle) else self.open(node)
        try:
            return read(handle, position, size)
        finally:
            handle.release()

    def append(self, node: Node | str, data: bytes) -> None:
        """Open, write at what the kernel takes for the end, close."""
        found = self.node(node) if isinstance(node, str) else node
        handle = self.open(found, APPEND)
        write(handle, self.attributes(found).size, data)
        handle.flush()
        handle.release()

    def log(self, topic: str = "t", partition: int = 0) -> Log:
        return self.manager.log(topic, partition)

    def roll(self, topic: str = "t") -> None:
        self.log(topic).roll(self.clock.ms())

    def remove_head(self, count: int, topic: str = "t") -> None:
        remove_head(self.log(topic), count, self.clock.ms())

    def delete_files(self, topic: str = "t") -> None:
        """The delay of what was removed is over."""
        for path in self.log(topic).release_retired(1 << 62):
            os.unlink(path)

    def events(self) -> str:
        return self.fs.mount.events.text()

    def stop(self) -> None:
        self.fs.stop()
        self.manager.close()
        plain_forms.budget = BUDGET


def read(handle: Handle, position: int = 0, size: int = 1 << 20) -> bytes:
    return bytes(asked(handle.read, position, size))


def write(handle: Handle, position: int, data: bytes) -> int:
    """Write as `operations` does: what takes long is examined in a worker thread first."""
    while True:
        try:
            return handle.write(position, data)
        except NotExamined:
            in_thread(lambda: handle.examine(data))


def sync(handle: Handle) -> None:
    """fsync, where something has to be flushed."""
    plans = handle.sync_plans()
    assert plans
    try:
        run_all(plans)
    finally:
        for plan in plans:
            plan.finish()


@contextlib.contextmanager
def a_tree(
    data: Path, options: MountOptions | None = None, files: Files | None = None
) -> Iterator[Tree]:
    """A tree over a directory, which is made, and checked at the end."""
    data.mkdir(exist_ok=True)
    tree = Tree(data, options, files)
    try:
        yield tree
        faults = check(tree.manager)
        assert faults == [], faults
    except BaseException:
        tree.manager.abandon()
        raise
    tree.stop()


def cleaned_segment(log: Log, count: int, drop: Callable[[Record], bool]) -> Segment:
    """Write the first `count` segments, without the records to `drop`, as a `.cleaned` segment."""
    old = log.segments[:count]
    kept: list[bytes] = []
    for segment in old:
        for position, header in SegmentReader(segment).batches():
            records = decode(SegmentReader(segment).read(position, header.size), 0)
            staying = [record for record in records if not drop(record)]
            if staying:
                kept.append(encode(staying, base_offset=header.base_offset))
    writer = SegmentWriter.begin(
        Segment.create(
            log.files,
            log.directory,
            old[0].base_offset,
            log.config,
            now_ms=1_700_000_000_000,
            suffix=paths.CLEANED,
        )
    )
    for batch in kept:
        first = decode(batch, 0)
        entry = (0, len(batch), first[-1].offset, max(record.timestamp for record in first))
        writer.append(batch, [entry], 1_700_000_000_000_000_000)
    writer.seal()
    new = writer.segment
    new.stable_size = new.size
    return new


def commit(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Decide to replace `old` by the `.cleaned` segments `new`, as a cleaner does."""
    log.manifest.withdraw(old)
    swap.decide(log.files, log.directory, new)


def clean(log: Log, count: int, drop: Callable[[Record], bool]) -> None:
    """Replace the first `count` segments by one without some records, as the cleaner does."""
    old = log.segments[:count]
    new = cleaned_segment(log, count, drop)
    commit(log, old, [new])
    log.replace(old, [new], log.monotonic_ms())
    log.rename_to_deleted(old)
    log.finish_replacement(new)
