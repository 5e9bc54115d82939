"""Nodes, which stand for inodes, and the table of those that the kernel knows.

An inode number is a 64-bit hash of what the node *is* (topic, id, partition, view, nonce, …), never
a counter: it is the same after a remount, and no other node ever gets it (`inode_number`). The
topic's name is part of it, since a copy of a topic's directories has the same topic id. The table
holds a node while the kernel knows it: its lookup count rises with each entry in an answer (lookup,
create, mkdir, readdirplus) and falls with FORGET.

The kernel forgets when it wants to, and a reader can look up ever new names of places (`N@…`). As
the kernel keeps no such name, the table need not keep those files, either (`Node.is_passing`): it
has the ones that are open, and the last `PASSING` others. A request for another
inode gets ESTALE, after which the kernel looks the name up again.
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import NamedTuple

from kafkafs.tree.handles import Handle
from storage.log.append_queue import AppendQueue
from storage.waiting import at_once

ROOT_INODE = 1
KEEP_S = 3600.0
"""Seconds that the kernel may keep attributes and entries, of whose changes it gets notices."""
BLOCK_SIZE = 4096
"""The default of `Attributes.block_size`."""
FIRST_KEEP_S = 1.0
"""Seconds that it may keep the first attributes of a file: a notice that overtakes the answer with
the inode finds nothing to drop."""

PASSING = 1024
"""The most passing nodes in the table that are not open."""


class Attributes(NamedTuple):
    """The result of stat. Times in nanoseconds since the epoch, timeouts in seconds."""

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
    block_size: int = BLOCK_SIZE
    """How many bytes programs should read at once (st_blksize)."""


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
    """The user of a request, who owns what it creates. `groups`: the supplementary ones."""

    uid: int
    gid: int
    groups: Collection[int] = ()


def inode_number(*parts: object) -> int:
    """A 64-bit hash of what a node is; never 0 (none) nor 1 (the root)."""
    text = "\0".join(map(str, parts)).encode(errors="surrogateescape")
    number = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return number if number > ROOT_INODE else number + 2


def missing(name: str) -> OSError:
    """ENOENT"""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


class Node:
    """A file or directory. `lookups` belongs to the InodeTable."""

    __slots__ = ("inode", "lookups")

    kind = "file"
    """The kind of file, which selects the advice in the event log: the mount, a topic, a partition,
    a group's directory, another directory or file."""
    is_passing = False
    """The kernel keeps no name of it (entry timeout 0): each lookup decides where the name leads.
    There may be any number of such nodes."""

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.lookups = 0

    @property
    def append_queue(self) -> AppendQueue | None:
        """The queue of the log that it shows: stat, open and read wait for the queued appends."""
        return None

    @property
    def path(self) -> str:
        """Its path in the mount, for messages; empty for the mount point."""
        return ""

    @property
    def is_open(self) -> bool:
        """Whether a passing node has handles; `InodeTable.closed` hears when it has none."""
        return False

    @property
    def is_fixed(self) -> bool:
        """Whether its bytes and attributes change no more, except mode and owner. The kernel may
        keep the pages, and gets no notice of appends.
        """
        return False

    def attributes(self) -> Attributes:
        """The attributes for stat; sizes are exact."""
        raise NotImplementedError

    def listed_attributes(self) -> Attributes:
        """The attributes for readdirplus. Never waits; a size may be too small (with timeout 0)."""
        return at_once(self.attributes)

    @property
    def is_measured(self) -> bool:
        """Whether `measure` has nothing to do."""
        return True

    def measure(self, patience_s: float | None = None) -> bool:
        """In a worker thread, before listing: load or measure what `listed_attributes` shows, if
        that takes next to no time. False where it failed; raises nothing.

        `patience_s` limits it, or a longer time after a lookup that came too late. With a limit it
        raises SegmentGone or ESTALE if the log was rewritten.
        """
        return True

    def set_attributes(self, change: Change) -> None:
        """chmod, chown, truncate, utimens. EPERM where the node does not allow it."""
        if change.size is not None:
            raise OSError(errno.EPERM, "this file cannot be truncated")
        why = (
            "mode and owner can be set only for the mount point, topics, partitions and groups: "
            "chmod TOPIC, TOPIC/N"
        )
        raise OSError(errno.EPERM, why)

    def open(self, flags: int) -> Handle:
        """Open with the flags of open(2); the caller adds the handle to the OpenTable."""
        raise OSError(errno.EISDIR, "is a directory")

    def xattr(self, name: str) -> bytes:
        """The value of an extended attribute. ENODATA."""
        raise OSError(errno.ENODATA, "no such attribute")

    def xattr_names(self) -> Sequence[str]:
        return ()

    @property
    def is_replaced(self) -> bool:
        """Whether the next lookup of its name makes another node with the same number, since its
        topic was deleted and undeleted.
        """
        return False

    def is_current(self) -> bool:
        """Whether the next lookup of the same process may find it again."""
        return True

    def has_lost_name(self) -> bool:
        """Whether its name leads to another inode by now, as the past has changed."""
        return False

    def remembered(self) -> None:
        """The kernel knows this inode from now on."""

    def forgotten(self) -> None:
        """The kernel has forgotten this inode, which has no open handle."""


class Directory(Node):
    """A directory."""

    __slots__ = ()

    kind = "directory"
    has_snapshots = False
    """Its names are snapshots, made at lookup (`recent_lookups.py`)."""
    appends = False
    """Its `rmdir` appends to a log, so it runs on the loop thread, and does not wait."""

    def lookup(self, name: str) -> Node:
        """The node of a name, without counting the lookup. ENOENT.

        Called first on the loop thread, `at_once`, which makes partitions and views; then in a
        worker thread.
        """
        raise NotImplementedError

    def names(self) -> list[str]:
        """The names for readdir, without `.` and `..`; the position in it is the readdir offset.

        Called as `lookup` is.
        """
        raise NotImplementedError

    def mkdir(self, name: str, mode: int, caller: Caller) -> "Node":
        raise NotImplementedError

    def rmdir(self, name: str, caller: Caller) -> None:
        raise NotImplementedError

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        """Create and open a file; the umask is applied to `mode` already."""
        raise NotImplementedError

    def unlink(self, name: str) -> None:
        raise NotImplementedError


class InodeTable:
    """Inode number -> node, for all that the kernel knows; the root is always there.

    Of passing nodes see the module.
    """

    __slots__ = ("_passing", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        # The inodes of passing nodes, the last one that was looked up or closed at the end. Of what
        # is open some are here; the others come back when they are closed.
        self._passing: OrderedDict[int, None] = OrderedDict()

    def get(self, inode: int) -> Node:
        """The node of a number that the kernel sent. ESTALE where the table has none."""
        node = self.find(inode)
        if node is None:
            reason = "the kernel was not given this inode, or its topic was deleted and restored"
            raise OSError(errno.ESTALE, reason)
        return node

    def directory(self, inode: int) -> Directory:
        """The directory of a number that the kernel sent. ESTALE, ENOTDIR."""
        node = self.get(inode)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return node

    def find(self, inode: int) -> Node | None:
        """The node of a number that the kernel knows; None: a lookup has to make one."""
        node = self.nodes.get(inode)
        return None if node is None or node.is_replaced else node

    def remember(self, node: Node) -> Node:
        """Count one lookup; returns the node that the table has for its number."""
        known = self.nodes.setdefault(node.inode, node)
        earlier = 0
        if known is not node and known.is_replaced:
            # The kernel counts the lookups of a number, and not of a node.
            earlier = known.lookups
            known.forgotten()
            known = self.nodes[node.inode] = node
        known.lookups += 1
        if known.lookups == 1:
            known.remembered()
        known.lookups += earlier
        if known.is_passing:
            self._pass(known)
        return known

    def _pass(self, node: Node) -> None:
        self.closed(node)
        while len(self._passing) > PASSING:
            inode, _ = self._passing.popitem(last=False)
            oldest = self.nodes.get(inode)
            if oldest is not None and not oldest.is_open:
                self._drop(oldest)

    def closed(self, node: Node) -> None:
        """A passing node that the table has is not open any more. Any thread."""
        if node.inode in self.nodes:
            self._passing[node.inode] = None
            self._passing.move_to_end(node.inode)

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` lookups (FORGET)."""
        node = self.nodes.get(inode)
        if node is None or inode == ROOT_INODE:
            return
        if node.is_passing:
            # Some may be of an earlier node, which the table has dropped.
            count = min(count, node.lookups)
        assert count <= node.lookups, "the kernel forgets more than it was given"
        node.lookups -= count
        if node.lookups == 0 and not node.is_open:
            self._drop(node)

    def _drop(self, node: Node) -> None:
        node.lookups = 0
        del self.nodes[node.inode]
        self._passing.pop(node.inode, None)
        node.forgotten()


def directory_mode(permissions: int) -> int:
    return stat.S_IFDIR | permissions


def file_mode(permissions: int) -> int:
    return stat.S_IFREG | permissions
