"""Nodes, which stand for inodes, and the table of those that the kernel knows.

An inode number is a 64-bit hash of what the node *is* (topic, id, partition, view, nonce, …), never
a counter: it is the same after a remount, and no other node ever gets it (`inode_number`). The
topic's name is part of it, since a copy of a topic's directories has the same topic id. The table
holds a node while the kernel knows it: its lookup count rises with each entry in an answer (lookup,
create, mkdir, readdirplus) and falls with FORGET.
"""

import errno
import os
import stat
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from kafkafs.tree.handles import Handle
from storage.waiting import at_once

ROOT_INODE = 1
KEEP_S = 3600.0
"""Seconds that the kernel may keep attributes and entries, of whose changes it gets notices."""
FIRST_KEEP_S = 1.0
"""Seconds that it may keep the first attributes of a file: a notice that overtakes the answer with
the inode finds nothing to drop."""


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
    """A setattr request; None: leave it unchanged. `times` is utimens."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    times: bool = False

    @property
    def is_touch(self) -> bool:
        """Whether it changes times only, or nothing."""
        return self.is_content and self.size is None

    @property
    def is_content(self) -> bool:
        """Whether it changes neither mode nor owner."""
        return self.mode is None and self.uid is None and self.gid is None


class Caller(NamedTuple):
    """The user of a request, who owns what it creates."""

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
        """What readdirplus shows. Never waits; a size may be too small (with timeout 0)."""
        return at_once(self.attributes)

    @property
    def is_measured(self) -> bool:
        """Whether `measure` has nothing to do."""
        return True

    def measure(self, patience_s: float | None = None) -> bool:
        """In a worker thread, before listing: load or measure what `listed_attributes` shows, if
        that takes next to no time. False where it failed; raises nothing.

        With `patience_s` it takes at most so many seconds, or longer where the last lookup was too
        late, and raises SegmentGone or ESTALE where the past was rewritten.
        """
        return True

    def set_attributes(self, change: Change) -> None:
        """chmod, chown, truncate, utimens. EPERM where the node does not allow it."""
        raise OSError(errno.EPERM, "only topics and partitions have a mode and an owner to set")

    def open(self, flags: int) -> Handle:
        """Open with the flags of open(2); the caller adds the handle to the HandleTable."""
        raise OSError(errno.EISDIR, "is a directory")

    def xattr(self, name: str) -> bytes:
        """The value of an extended attribute. ENODATA."""
        raise OSError(errno.ENODATA, "no such attribute")

    def xattr_names(self) -> Sequence[str]:
        return ()

    def loses_name(self) -> bool:
        """Whether its name leads to another inode after a change of the past."""
        return False

    def remembered(self) -> None:
        """The kernel knows this inode from now on."""

    def forgotten(self) -> None:
        """The kernel has forgotten this inode, which has no open handle."""


class Directory(Node):
    """A directory. It refuses changes; a subclass overrides those that it supports."""

    __slots__ = ()

    def lookup(self, name: str) -> Node:
        """The node of a name, without counting the lookup. ENOENT.

        Called first on the owner's thread, `at_once`, which makes partitions and views; then in a
        worker thread.
        """
        raise NotImplementedError

    def names(self) -> list[str]:
        """The names for readdir, without `.` and `..`; the position in it is the readdir offset."""
        raise NotImplementedError

    def mkdir(self, name: str, mode: int, caller: Caller) -> "Node":
        raise OSError(errno.EPERM, "only the root takes new directories: topics")

    def rmdir(self, name: str) -> None:
        raise OSError(errno.EPERM, "only topics can be removed")

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        """Create and open a file; the umask is applied to `mode` already."""
        raise OSError(errno.EPERM, "only a topic takes new files: its next partition")

    def unlink(self, name: str) -> None:
        raise OSError(errno.EPERM, "nothing here can be unlinked")


class InodeTable:
    """Inode number -> node, for all that the kernel knows; the root is always there."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    def get(self, inode: int) -> Node:
        """The node of a number that the kernel sent. ESTALE where the table has none."""
        node = self.nodes.get(inode)
        if node is None:
            raise OSError(errno.ESTALE, "the kernel was not given this inode")
        return node

    def directory(self, inode: int) -> Directory:
        """The directory of a number that the kernel sent. ESTALE, ENOTDIR."""
        node = self.get(inode)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return node

    def find(self, inode: int) -> Node | None:
        """The node of a number that the kernel knows, else None."""
        return self.nodes.get(inode)

    def remember(self, node: Node) -> Node:
        """Count one lookup; returns the node that the table has for its number."""
        known = self.nodes.setdefault(node.inode, node)
        known.lookups += 1
        if known.lookups == 1:
            known.remembered()
        return known

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` lookups (FORGET)."""
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
