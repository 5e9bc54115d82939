"""The tree's answers in FUSE's words, and the errors that are logged."""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections.abc import Iterator

import pyfuse3

from kafkafs.tree.files.start_names import NoPoint
from kafkafs.tree.inodes import FIRST_KEEP_S, Attributes, Directory, Node
from storage import errors

#: How long the kernel keeps no attributes after a change of mode or owner, in seconds.
OWNER_SETTLES_S = 10.0

#: Errors that programs meet every day, and understand. The log of events has the reason of all
#: others, since the caller sees only a number. (EAGAIN: the file has said how far it is.)
EVERYDAY = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENODATA,
        errno.ENAMETOOLONG,
        errno.EBADF,
        errno.EAGAIN,
    }
)
#: Exceptions that are logged whatever their errno is.
UNCOMMON = NoPoint, errors.TopicExists, errors.IgnoredEntry


class Entries:
    """Makes pyfuse3's entries of the tree's attributes."""

    def __init__(self) -> None:
        self._keeps_after_s = 0.0

    @contextlib.contextmanager
    def owner_changes(self) -> Iterator[None]:
        """Mode or owner of some inodes change: the kernel keeps no attributes for a while.

        It marks new attributes as valid before it has stored their mode and owner. A process whose
        permission is checked in between would be judged by the old ones.
        """
        self._keeps_after_s = math.inf
        try:
            yield
        finally:
            self._keeps_after_s = time.monotonic() + OWNER_SETTLES_S

    def first_of(self, node: Node, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """The entry that hands a node to the kernel, which may not know it yet."""
        entry = self.of(attributes)
        if not node.lookups and not isinstance(node, Directory):
            entry.attr_timeout = min(entry.attr_timeout, FIRST_KEEP_S)
        return entry

    def of(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Attributes in pyfuse3's form."""
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = attributes.inode
        entry.st_mode = attributes.mode
        entry.st_size = attributes.size
        entry.st_nlink = attributes.nlink
        entry.st_uid = attributes.uid
        entry.st_gid = attributes.gid
        entry.st_blocks = attributes.blocks
        entry.st_blksize = attributes.block_size
        entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = attributes.mtime_ns
        keeps = time.monotonic() > self._keeps_after_s
        entry.attr_timeout = attributes.attr_timeout if keeps else 0.0
        entry.entry_timeout = attributes.entry_timeout
        return entry
