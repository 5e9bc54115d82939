"""The modes of partitions' directories and files: the disk permits no more reading than the mount.

A user who may read a partition in a mount (by its recorded owners) may read its directory; its
files are not wider than that. A new file takes its mode from the directory (`storage.files`).

Not here: the bits of an ownership (`storage.modes`), the recorded owners (`storage.settings`).
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence

from storage import modes, paths
from storage.directory.topics import TopicPartition
from storage.files import Files
from storage.settings.setting_files import TopicFile, TopicOwner

_log = logging.getLogger(__name__)


def _ownership(owner: TopicOwner) -> modes.Ownership:
    uid, gid, mode = owner
    return mode, uid, gid


def of_topic_without_mode(topic: str, mode: int) -> int:
    """Return the permission bits of a topic without a recorded mode; `mode`: the data directory's.

    Kafka's own topics name the groups and transactions of all users: only their owner reads them.
    """
    return mode & 0o700 if topic in paths.INTERNAL_TOPICS else mode


class PartitionModes:
    """Sets the modes. `shown`: returns the shown form of an owner and a mode."""

    def __init__(self, files: Files, path: str) -> None:
        """`path`: of the data directory."""
        self._files = files
        self._path = path
        self.shown: Callable[[TopicOwner], modes.Ownership] = _ownership

    def make_directory(self, directory: str, owners: TopicFile, item: TopicPartition) -> None:
        """Make a partition's directory, readable as the partition is. Errors: OSError."""
        self._files.mkdir(directory, 0o700)
        self._limit_one(directory, item, (owners,))

    def limit(self, topic: str, numbers: Sequence[int], owners: Sequence[TopicFile]) -> None:
        """Restrict partitions' files to users who may read the partitions by all of `owners`.

        Modes that cannot be changed stay; the log says so.
        """
        for number in numbers:
            directory = os.path.join(self._path, paths.partition_directory(topic, number))
            self._limit_one(directory, (topic, number), owners)

    def _limit_one(self, directory: str, item: TopicPartition, owners: Sequence[TopicFile]) -> None:
        try:
            self._change(directory, item, owners)
        except OSError as error:
            # The files belong to another user, or the file system has no modes.
            reason = f"the modes of its files were not changed: {error.strerror}"
            _log.warning("%s: chmod of %s: %s", self._path, directory, reason)

    def _change(self, directory: str, item: TopicPartition, owners: Sequence[TopicFile]) -> None:
        files = self._files
        name, number = item
        top, found = files.file_stat(self._path), files.file_stat(directory)
        mode = stat.S_IMODE(top.st_mode) | 0o700
        for each in owners:
            unset = of_topic_without_mode(name, top.st_mode)
            topic = each.owners.get(None, (top.st_uid, top.st_gid, unset))
            partition = each.partition_owner(number) or topic
            mode &= modes.of_directory(
                *(found.st_uid, found.st_gid, self.shown(topic), self.shown(partition))
            )
        mode |= found.st_mode & 0o7000
        if mode == stat.S_IMODE(found.st_mode):
            return
        # The directory comes first, since new files take their modes from it.
        files.chmod(directory, mode)
        is_moving = True
        while is_moving:
            is_moving = False
            for name, kind in files.listing(directory):
                try:
                    if kind == "file":
                        files.chmod(os.path.join(directory, name), modes.of_file(mode))
                except FileNotFoundError:
                    is_moving = True  # renamed or removed
