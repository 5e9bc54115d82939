"""What all directories of the tree share.

They have a date and an owner, and nothing can be made or removed in them unless they say so.
"""

from __future__ import annotations

import errno

from kafkafs.tree.context import MountContext
from kafkafs.tree.inodes import Attributes, Change, Directory, directory_mode
from kafkafs.tree.permissions import Ownership


class TreeDirectory(Directory):
    """What all directories here share."""

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
        # Where anything can be written, directories go by requests only, which the kernel sees.
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
        """EPERM, with a line in the log that says why."""
        self.mount.events(f"{what} refused: {why}")
        return OSError(errno.EPERM, why)
