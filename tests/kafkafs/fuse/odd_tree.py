"""A tree whose nodes do what is rare in the real one, served by the real daemon.

Run as a program: ``python -m tests.kafkafs.fuse.odd_tree DATA MOUNT``, in the foreground; it
prints ``mounted`` when it answers.  The root shows:

``many/``      5000 files, whose first lookup waits for a worker thread
``file``       takes every write; reads as what was written, waiting for each read
``sized``      a file whose attributes wait until they were made in a thread once
``bug``        every operation raises what nobody foresaw
``error-NAME`` reading raises the StorageError of that name (``error-28``: OSError of that number)
``together-N`` fsync waits until `SYNC_THREADS` of them run
``syncs``      how often its data was synced: ``fsync``, O_SYNC
``unsynced``   the same, but its fsync fails
``swap``       each write makes the name ``swap`` lead to a new inode
``thread``     shows the names of the threads in which its content was written
``unlisted/``  listing it raises what nobody foresaw
``log``        the events
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

from kafkafs.fuse.daemon import Daemon, Mount
from kafkafs.fuse.notify import KernelNotices
from kafkafs.fuse.operations import SYNC_THREADS
from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.groups.claims import Claims
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import (
    KEEP_S,
    ROOT_INODE,
    Attributes,
    Caller,
    Change,
    Directory,
    Node,
    directory_mode,
    file_mode,
    inode_number,
)
from kafkafs.tree.notices import Waiter
from kafkafs.tree.open_files import OpenTable
from kafkafs.tree.owner.owner_requests import OwnerRequests
from storage import errors
from storage.follow.directory_watches import DirectoryWatches
from storage.log.flush import FlushPlan
from storage.manager import LogManager
from storage.waiting import before_waiting
from tests.waits import HANG_S

MANY = 5000


def attributes_of(inode: int, mode: int, size: int = 0, kept_s: float = KEEP_S) -> Attributes:
    uid, gid = os.getuid(), os.getgid()
    return Attributes(inode, mode, size, time.time_ns(), 1, uid, gid, 0, kept_s, kept_s)


class OddFile(Node):
    """A file whose handle is made by a function."""

    def __init__(self, name: str, make: Callable[[int], Handle], inode: int = 0) -> None:
        super().__init__(inode or inode_number(name))
        self.name = name
        self.make = make
        self.data = bytearray()

    @property
    def path(self) -> str:
        return self.name

    def attributes(self) -> Attributes:
        return attributes_of(self.inode, file_mode(0o666), len(self.data), 0)

    def open(self, flags: int) -> Handle:
        return self.make(flags)

    def set_attributes(self, change: Change) -> None:
        if change.size is not None:
            raise OSError(errno.EPERM, "cannot be cut")


class OddHandle(Handle):
    """Reads from and appends to a buffer."""

    direct_io = True

    def __init__(self, data: bytearray) -> None:
        self.data = data

    def read(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size])

    def write(self, position: int, data: bytes) -> int:
        self.data += data
        return len(data)


class WaitingHandle(OddHandle):
    def read(self, position: int, size: int) -> bytes:
        before_waiting()
        assert threading.current_thread() is not threading.main_thread()
        return super().read(position, size)


class BuggyHandle(Handle):
    direct_io = True

    def read(self, position: int, size: int) -> bytes:
        raise RuntimeError("nobody foresaw this")

    def write(self, position: int, data: bytes) -> int:
        raise RuntimeError("nobody foresaw this")

    def poll(self, waiter: Waiter | None) -> int:
        raise RuntimeError("nobody foresaw this")

    def flush(self) -> None:
        raise RuntimeError("nobody foresaw this")

    def release(self) -> None:
        raise RuntimeError("nobody foresaw this")

    def sync_plans(self) -> Sequence[FlushPlan]:
        raise RuntimeError("nobody foresaw this")


class RaisingHandle(Handle):
    direct_io = True

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, position: int, size: int) -> bytes:
        raise self.error


class SyncedHandle(OddHandle):
    """Counts what was synced, and says so as its content."""

    def __init__(
        self, data: bytearray, flags: int, sync: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(data)
        self.flags = flags
        self.sync = sync

    def write(self, position: int, data: bytes) -> int:
        self.sync_due = self.flags & (os.O_SYNC | os.O_DSYNC) != 0
        return len(data)

    def sync_plans(self) -> Sequence[FlushPlan]:
        self.sync_due = False

        def run() -> None:
            assert threading.current_thread() is not threading.main_thread()
            self.sync()

        def finish() -> None:
            assert threading.current_thread() is threading.main_thread()
            self.data += b"synced\n"

        return [cast(FlushPlan, SimpleNamespace(run=run, finish=finish))]


class ThreadHandle(OddHandle):
    structural = True

    def write(self, position: int, data: bytes) -> int:
        thread = threading.current_thread()
        self.data += b"main\n" if thread is threading.main_thread() else b"worker\n"
        return len(data)


class SizedFile(OddFile):
    """Its size is known once a thread has looked."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda flags: OddHandle(self.data))
        self.data += b"x" * 77
        self.looked = False

    def attributes(self) -> Attributes:
        if not self.looked:
            before_waiting()
            self.looked = True
        return super().attributes()

    def listed_attributes(self) -> Attributes:
        return attributes_of(self.inode, file_mode(0o666), 0, 0)


class RestlessFile(OddFile):
    """Only a thread can tell its size, and it is another one each time."""

    def attributes(self) -> Attributes:
        before_waiting()
        self.data += b"x"
        return attributes_of(self.inode, file_mode(0o666), len(self.data))

    def listed_attributes(self) -> Attributes:
        return attributes_of(self.inode, file_mode(0o666), 0, 0)


class BuggyFile(OddFile):
    def xattr(self, name: str) -> bytes:
        raise RuntimeError("nobody foresaw this")


class Swapped(OddFile):
    """A write makes its name lead to another inode: told to the kernel before the answer."""

    def __init__(self, root: Root, number: int) -> None:
        super().__init__("swap", self._handle, inode_number("swap", number))
        self.root = root
        self.number = number

    def attributes(self) -> Attributes:
        return attributes_of(self.inode, file_mode(0o666))

    def _handle(self, flags: int) -> Handle:
        return SwappingHandle(self)


class SwappingHandle(Handle):
    direct_io = True

    def __init__(self, node: Swapped) -> None:
        self.node = node

    def write(self, position: int, data: bytes) -> int:
        root = self.node.root
        root.files["swap"] = Swapped(root, self.node.number + 1)
        root.notices.names_changed()
        return len(data)


class Many(Directory):
    """Its names wait to be looked up for the first time."""

    def __init__(self) -> None:
        super().__init__(inode_number("many"))
        self.found: dict[str, Node] = {}

    def attributes(self) -> Attributes:
        return attributes_of(self.inode, directory_mode(0o755))

    def names(self) -> list[str]:
        return [f"{number:05}" for number in range(MANY)]

    def lookup(self, name: str) -> Node:
        if name.endswith("777"):
            raise FileNotFoundError(errno.ENOENT, "gone since")
        node = self.found.get(name)
        if node is None:
            before_waiting()
            node = self.found[name] = OddFile(name, lambda flags: OddHandle(bytearray()))
        return node


class Unlisted(Many):
    """Listing it raises what nobody foresaw."""

    def __init__(self) -> None:
        super().__init__()
        self.inode = inode_number("unlisted")

    @property
    def path(self) -> str:
        return "unlisted"

    def names(self) -> list[str]:
        raise RuntimeError("nobody foresaw this")


class Root(Directory):
    def __init__(self, notices: KernelNotices, events: Events) -> None:
        super().__init__(ROOT_INODE)
        self.notices = notices
        self.events = events
        self.barrier = threading.Barrier(SYNC_THREADS, timeout=HANG_S)
        self.files: dict[str, Node] = {
            "many": Many(),
            "file": (file := OddFile("file", lambda flags: WaitingHandle(file.data))),
            "sized": SizedFile("sized"),
            "restless": (
                restless := RestlessFile("restless", lambda flags: OddHandle(restless.data))
            ),
            "bug": BuggyFile("bug", lambda flags: BuggyHandle()),
            "syncs": (syncs := OddFile("syncs", lambda flags: SyncedHandle(syncs.data, flags))),
            "unsynced": (
                unsynced := OddFile(
                    "unsynced", lambda flags: SyncedHandle(unsynced.data, flags, _fail)
                )
            ),
            "thread": (thread := OddFile("thread", lambda flags: ThreadHandle(thread.data))),
            "swap": Swapped(self, 0),
            "unlisted": Unlisted(),
        }

    def attributes(self) -> Attributes:
        return attributes_of(self.inode, directory_mode(0o755))

    def names(self) -> list[str]:
        return list(self.files)

    def lookup(self, name: str) -> Node:
        if name == "log":
            text = bytearray(self.events.text().encode())
            return OddFile(f"log {text!r}", lambda flags: OddHandle(text))
        if name.startswith("together-"):
            return OddFile(name, lambda flags: SyncedHandle(bytearray(), flags, self.barrier.wait))
        kind = name.removeprefix("error-")
        if kind != name:
            return OddFile(name, lambda flags: RaisingHandle(_error(kind)))
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return self.files[name]

    def mkdir(self, name: str, mode: int, caller: Caller) -> Node:
        """Takes a while, and is never done twice at the same time."""
        assert threading.current_thread() is not threading.main_thread()
        before = len(self.files)
        time.sleep(0.02)
        assert len(self.files) == before
        node = Many()
        node.inode = inode_number("directory", name)
        self.files[name] = node
        return node


def _fail() -> None:
    raise _error(str(errno.EIO))


def _error(kind: str) -> Exception:
    if kind.isdecimal():
        return OSError(int(kind), os.strerror(int(kind)))
    if kind == "OffsetOutOfRange":
        return errors.OffsetOutOfRange(5, 1, 3)
    if kind == "RecordTooLarge":
        return errors.RecordTooLarge(5, 3)
    if kind == "LogLocked":
        return errors.LogLocked(1)
    made = getattr(errors, kind)("the message")
    assert isinstance(made, Exception)
    return made


class OddTree:
    """The part of `FileSystem` that the daemon needs."""

    def __init__(self, manager: LogManager, notices: KernelNotices, events: Events) -> None:
        self.mount = MountContext(manager, MountOptions(), notices=notices, events=events)
        self.inodes = self.mount.inodes
        self.inodes.remember(Root(notices, events))
        self.open_files = OpenTable(self.mount.open_texts)
        self.partitions = SimpleNamespace(
            mount=self.mount,
            tick=lambda: None,
            housekeeping=lambda: None,
            watches=DirectoryWatches[object](lambda _: None),
        )
        self.owner_requests = OwnerRequests(self.mount)
        self.claims = Claims(self.mount)
        self.is_stopped = False
        self.has_lost_lines = False

    def lookup(self, parent: int, name: str, process: int = 0) -> Node:
        directory = self.inodes.get(parent)
        assert isinstance(directory, Directory)
        return directory.lookup(name)

    def asking(self, parent: int, name: str, thread: int) -> int:
        return 0

    def answered(self, parent: int, name: str, process: int, node: Node) -> None:
        self.inodes.remember(node)

    def opened(self, node: Node, flags: int, thread: int) -> None:
        pass

    def statfs(self) -> os.statvfs_result:
        return os.statvfs(self.mount.manager.path)

    def stop(self) -> None:
        self.mount.stopping = self.is_stopped = True

    def release_all(self) -> None:
        pass


def main() -> None:
    data, path = sys.argv[1:]
    events = Events(lambda: time.time_ns() // 1_000_000)
    notices = KernelNotices(events)
    tree = OddTree(LogManager.open(data), notices, events)
    daemon = Daemon(
        Mount(data, path, MountOptions(), foreground=True),
        cast(FileSystem, tree),
        notices,
        lambda: print("mounted", flush=True),
    )
    daemon.mount()
    sys.exit(daemon.run())


if __name__ == "__main__":
    main()
