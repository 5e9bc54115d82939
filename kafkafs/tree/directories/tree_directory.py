"""What all directories of the tree share.

They have a date and an owner, and nothing can be made or removed in them unless they say so. A node
that the kernel knows already is handed out again, never a second one of its number.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kafkafs.tree.files.virtual_file import Owner
from kafkafs.tree.inodes import Attributes, Change, Directory, Node, directory_mode

if TYPE_CHECKING:
    from kafkafs.tree.directories.root import TopicDirectory
    from kafkafs.tree.filesystem import FileSystem

N = TypeVar("N", bound=Node)


class TreeDirectory(Directory):
    """What all directories here share."""

    __slots__ = ("fs",)

    def __init__(self, fs: FileSystem, inode: int) -> None:
        super().__init__(inode)
        self.fs = fs

    def owner(self) -> Owner:
        """(permission bits, uid, gid)"""
        mode, uid, gid = self.fs.default_owner
        return mode & 0o555, uid, gid

    def attributes(self, wait: bool) -> Attributes:
        fs = self.fs
        mode, uid, gid = self.owner()
        # Where anything can be written, directories go by requests only, which the kernel sees.
        name_timeout = fs.name_timeout if fs.manager.read_only else fs.attr_timeout
        return Attributes(
            self.inode,
            directory_mode(mode),
            0,
            fs.started_ns,
            2,
            uid,
            gid,
            0,
            fs.attr_timeout,
            name_timeout,
        )

    def known_or(self, kind: type[N], inode: int, make: Callable[[], N]) -> N:
        """The node of a number that the kernel knows, else a new one."""
        known = self.fs.inodes.find(inode)
        return known if isinstance(known, kind) else make()

    def set_attributes(self, change: Change) -> None:
        if not change.is_touch:
            super().set_attributes(change)

    def unlink(self, name: str) -> None:
        raise self.refused(f"unlink of {name!r}", "files here cannot be removed")

    def refused(self, what: str, why: str) -> OSError:
        """EPERM, with a line in the log that says why."""
        self.fs.events(f"{what} refused: {why}")
        return OSError(errno.EPERM, why)


class InTopic(TreeDirectory):
    """A directory in a topic: who may read that may read this."""

    __slots__ = ("topic",)

    def __init__(self, topic: TopicDirectory, inode: int) -> None:
        super().__init__(topic.fs, inode)
        self.topic = topic

    def owner(self) -> Owner:
        mode, uid, gid = self.topic.owner()
        return mode & 0o555, uid, gid
