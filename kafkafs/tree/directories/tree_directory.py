"""The base of all directories of the tree: attributes, and refusals of changes."""

from __future__ import annotations

import errno
import stat

from kafkafs.tree.context import MountContext
from kafkafs.tree.inodes import Attributes, Change, Directory, directory_mode
from storage.modes import Ownership


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

    def mtime_ns(self) -> int:
        """When a name was added or removed last; the same after a remount."""
        return self.mount.manager.changed_ns

    def keep_s(self) -> float:
        """How long the kernel may keep the attributes, in seconds."""
        return self.mount.attr_timeout

    def attributes(self) -> Attributes:
        mount = self.mount
        mode, uid, gid = self.owner()
        # On a writable mount only requests remove directories, and the kernel sees those.
        name_timeout = mount.name_timeout if mount.manager.read_only else mount.attr_timeout
        return Attributes(
            self.inode,
            directory_mode(mode),
            0,
            self.mtime_ns(),
            2,
            uid,
            gid,
            0,
            self.keep_s(),
            name_timeout,
        )

    def set_attributes(self, change: Change) -> None:
        """touch, and a mode and an owner that it has already (`cp -a`, tar), change nothing."""
        shown = self.attributes()
        has_them = (
            change.size is None
            and (change.mode is None or stat.S_IMODE(change.mode) == stat.S_IMODE(shown.mode))
            and change.uid in (None, shown.uid)
            and change.gid in (None, shown.gid)
        )
        if not has_them:
            super().set_attributes(change)

    def unlink(self, name: str) -> None:
        raise OSError(errno.EPERM, "files here cannot be removed")
