"""The uid, gid and mode of topics and partitions.

They are settings of the data directory; where none are set, a partition has its topic's and a topic
the data directory's. Mount options may replace them.
"""

from __future__ import annotations

import errno
import os
import stat

from kafkafs.tree.inodes import Change, file_mode
from storage.directory.manager import LogManager
from storage.log.log import Log

Ownership = tuple[int, int, int]
"""(permission bits, uid, gid)"""


class Permissions:
    """See the module. `uid` and `gid` replace those of everything; `umask` bits are hidden."""

    __slots__ = ("_gid", "_manager", "_uid", "_umask", "default")

    def __init__(self, manager: LogManager, uid: int | None, gid: int | None, umask: int) -> None:
        self._manager = manager
        self._uid = uid
        self._gid = gid
        self._umask = umask
        found = os.stat(manager.path)
        self.default = self._shown((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)))

    def _shown(self, owner: tuple[int, int, int]) -> Ownership:
        """(uid, gid, mode) of the settings, after the mount options."""
        uid, gid, mode = owner
        return (
            mode & ~self._umask,
            uid if self._uid is None else self._uid,
            gid if self._gid is None else self._gid,
        )

    def topic(self, topic: str) -> Ownership:
        """The ownership of a topic's directory."""
        settings = self._manager.settings
        owner = settings.get_owner(topic, None)
        if not settings.owners_known(topic):
            # The unknown mode may refuse group and others.
            mode, uid, gid = self.default
            return mode & 0o700, uid, gid
        return self.default if owner is None else self._shown(owner)

    def partition(self, log: Log) -> Ownership:
        """The ownership of a partition's file; the mode has the file type."""
        owner = self._manager.settings.get_owner(log.topic, log.partition)
        mode, uid, gid = self.topic(log.topic) if owner is None else self._shown(owner)
        return file_mode(mode & (0o666 if owner is None else 0o7777)), uid, gid

    def change_topic(self, topic: str, change: Change) -> None:
        """chmod and chown of a topic; durable. EROFS."""
        self._change(topic, None, self.topic(topic), change)

    def change_partition(self, log: Log, change: Change) -> None:
        """chmod and chown of a partition; durable. EROFS."""
        self._change(log.topic, log.partition, self.partition(log), change)

    def _change(self, topic: str, partition: int | None, now: Ownership, change: Change) -> None:
        if self._manager.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        mode, uid, gid = now
        self._manager.settings.set_owner(
            topic,
            partition,
            uid if change.uid is None else change.uid,
            gid if change.gid is None else change.gid,
            stat.S_IMODE(mode if change.mode is None else change.mode),
        )
