"""Nodes: what an inode number stands for, and the table of those that the kernel knows.

An inode number is a 64-bit hash of what the node *is* (topic, id, partition, view, nonce, …), never
a counter: it is the same after a remount and never used for something else (`inode_number`).
The id alone does not do: who copies a topic's directories under another name copies its id.
The table holds a node for as long as the kernel remembers it: its lookup count rises with each
entry handed out (lookup, create, mkdir, readdirplus) and falls with FORGET.

What this does *not* do: hold open files (`handles.py`), or decide what a name leads to
(`directories`).
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from kafkafs.tree.handles import Handle
from storage.waiting import at_once

ROOT_INODE = 1
KEEP_S = 3600.0
"""How long the kernel may keep attributes and entries whose change it is told of."""
FIRST_KEEP_S = 1.0
"""How long it may keep the first attributes of a file: a notice that overtakes the answer which
brings the inode finds nothing to drop."""


N = TypeVar("N", bound="Node")


class Attributes(NamedTuple):
    """What stat shows. Times in nanoseconds since the epoch, timeouts in seconds."""

    inode: int
    mode: int
    size: int
    mtime_ns: int
    nlink: int
    uid: int
    gid: int
    blocks: int
    attr_timeout: float
    entry_timeout: float


class Change(NamedTuple):
    """What setattr asks for; None leaves a thing as it is. `times` is utimens."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    times: bool = False

    @property
    def is_touch(self) -> bool:
        """Whether nothing is asked for, or times only."""
        return self.mode is None and self.uid is None and self.gid is None and self.size is None


class Caller(NamedTuple):
    """Who sent a request: becomes the owner of what it creates."""

    uid: int
    gid: int


def inode_number(*parts: object) -> int:
    """A 64-bit hash of what a node is; never 0 (none) nor 1 (the root)."""
    text = "\0".join(map(str, parts)).encode()
    number = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return number if number > ROOT_INODE else number + 2


def missing(name: str) -> OSError:
    """ENOENT"""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


class Node:
    """A file or directory. `lookups` belongs to the InodeTable."""

    __slots__ = ("inode", "lookups")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.lookups = 0

    def attributes(self) -> Attributes:
        """What stat shows now; sizes are exact."""
        raise NotImplementedError

    def listed_attributes(self) -> Attributes:
        """What readdirplus shows: never waits, and a size may be too small (with timeout 0)."""
        return at_once(self.attributes)

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has nothing to do."""
        return True

    def prepare(self, patience_s: float | None = None) -> bool:
        """In a worker thread, before it is listed: have at hand what that shows, where it takes
        next to no time; whether that is so. Raises nothing.

        With `patience_s` it may take so long, and raises ESTALE where it was rewritten. It may
        take much longer where who had looked it up was too late just before.
        """
        return True

    def set_attributes(self, change: Change) -> None:
        """chmod, chown, truncate, utimens. EPERM where filesystem.md does not allow it."""
        raise OSError(errno.EPERM, "only topics and partitions have a mode and an owner to set")

    def open(self, flags: int) -> Handle:
        """Opens with the flags of open(2); the caller puts the handle into the HandleTable."""
        raise OSError(errno.EISDIR, "is a directory")

    def xattr(self, name: str) -> bytes:
        """The value of an extended attribute; ENODATA where there is none of that name."""
        raise OSError(errno.ENODATA, "no such attribute")

    def xattr_names(self) -> Sequence[str]:
        return ()

    def loses_name(self) -> bool:
        """Whether its name leads here no longer once the partition's history is new."""
        return False

    def remembered(self) -> None:
        """The kernel has begun to know this inode."""

    def forgotten(self) -> None:
        """The kernel knows this inode no longer: no handle of it is open either."""


class Directory(Node):
    """A directory: its names, and what may be made in it."""

    __slots__ = ()

    def lookup(self, name: str) -> Node:
        """The node that a name leads to. ENOENT. Does not raise its lookup count.

        First on the owner's thread, `at_once`, where what belongs to a partition is made; then in a
        worker thread.
        """
        raise NotImplementedError

    def names(self) -> list[str]:
        """What readdir lists, without `.` and `..`; the position in it is the readdir offset."""
        raise NotImplementedError

    def mkdir(self, name: str, mode: int, caller: Caller) -> "Node":
        raise OSError(errno.EPERM, "only the root takes new directories: topics")

    def rmdir(self, name: str) -> None:
        raise OSError(errno.EPERM, "only topics can be removed")

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        """Creates and opens a file; the mode has the umask applied."""
        raise OSError(errno.EPERM, "only a topic takes new files: its next partition")

    def unlink(self, name: str) -> None:
        raise OSError(errno.EPERM, "nothing here can be unlinked")


class InodeTable:
    """Inode number -> node, for all that the kernel knows; the root is always there."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    def get(self, inode: int) -> Node:
        """The node of a number that the kernel sent. ESTALE where it should not know it."""
        node = self.nodes.get(inode)
        if node is None:
            raise OSError(errno.ESTALE, "the kernel was not given this inode")
        return node

    def find(self, inode: int) -> Node | None:
        """The node of a number, if the kernel knows it."""
        return self.nodes.get(inode)

    def known_or(self, kind: type[N], inode: int, make: Callable[[], N]) -> N:
        """The node of a number that the kernel knows, else a new one."""
        known = self.nodes.get(inode)
        return known if isinstance(known, kind) else make()

    def remember(self, node: Node) -> Node:
        """Counts one lookup; returns the node that stands for its number from now on."""
        known = self.nodes.setdefault(node.inode, node)
        known.lookups += 1
        if known.lookups == 1:
            known.remembered()
        return known

    def forget(self, inode: int, count: int) -> None:
        """The kernel gives back `count` lookups."""
        node = self.nodes.get(inode)
        if node is None or inode == ROOT_INODE:
            return
        assert count <= node.lookups, "the kernel forgets more than it was given"
        node.lookups -= count
        if node.lookups == 0:
            del self.nodes[inode]
            node.forgotten()


def directory_mode(permissions: int) -> int:
    return stat.S_IFDIR | permissions


def file_mode(permissions: int) -> int:
    return stat.S_IFREG | permissions
