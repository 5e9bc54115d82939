"""The base of all directories of the tree: attributes, and refusals of changes."""

from __future__ import annotations

import errno

from kafkafs.tree.context import MountContext
from kafkafs.tree.inodes import Attributes, Change, Directory, directory_mode
from kafkafs.tree.permissions import Ownership


class TreeDirectory(Directory):
    """See the module."""

    __slots__ = ("mount",)

    def __init__(self, mount: MountContext, inode: int) -> None:
        super().__init__(inode)
        self.mount = mount

    def owner(self) -> Ownership:
        """(permission bits, uid, gid)"""
        mode, uid, gid = self.mount.permissions.default
        return mode & 0o555, uid, gid

    def attributes(self) -> Attributes:
        mount = self.mount
        mode, uid, gid = self.owner()
        # On a writable mount only requests remove directories, and the kernel sees those.
        name_timeout = mount.name_timeout if mount.manager.read_only else mount.attr_timeout
        return Attributes(
            self.inode,
            directory_mode(mode),
            0,
            mount.started_ns,
            2,
            uid,
            gid,
            0,
            mount.attr_timeout,
            name_timeout,
        )

    def set_attributes(self, change: Change) -> None:
        if not change.is_touch:
            super().set_attributes(change)

    def unlink(self, name: str) -> None:
        raise self.refused(f"unlink of {name!r}", "files here cannot be removed")

    def refused(self, what: str, why: str) -> OSError:
        """Write why into the event log; returns EPERM."""
        self.mount.events(f"{what} refused: {why}")
        return OSError(errno.EPERM, why)
