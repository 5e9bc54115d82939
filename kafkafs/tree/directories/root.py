"""The mount point: topics (`topic.py`), `.kafkafs` (`about.py`), the daemon as files, and `.groups`
(`group_directories.py`), consumer groups.

It lists the latter two with `show_dot` only, and the topics that a cluster makes for itself with
`show_internal`; lookup finds all of them always.
"""

from __future__ import annotations

import errno
import os
import stat

from kafkafs.tree.directories.dot_names import DOT_NAMES
from kafkafs.tree.directories.group_directories import GroupsDirectory
from kafkafs.tree.directories.topic import TopicDirectory
from kafkafs.tree.directories.tree_directory import TreeDirectory
from kafkafs.tree.files.start_file import StartNames
from kafkafs.tree.groups.claims import Claims
from kafkafs.tree.inodes import ROOT_INODE, Caller, Change, Node, inode_number, missing
from kafkafs.tree.partition.partitions import OWN_NAMES, Partitions
from storage.manager import Topic
from storage.modes import Ownership
from storage.paths import ABOUT, GROUPS, INTERNAL_TOPICS, check_may_change
from storage.waiting import may_wait


class Root(TreeDirectory):
    """The mount point."""

    __slots__ = ("_own", "partitions", "start_names")

    kind = "mount"

    def __init__(self, partitions: Partitions, about: Node, claims: Claims) -> None:
        super().__init__(partitions.mount, ROOT_INODE)
        self.partitions = partitions
        self.start_names = StartNames(partitions)
        # The file system's own directories.
        self._own: dict[str, Node] = {ABOUT: about, GROUPS: GroupsDirectory(partitions, claims)}
        assert set(self._own) == set(OWN_NAMES)

    def owner(self) -> Ownership:
        return self.mount.permissions.root

    def set_attributes(self, change: Change) -> None:
        """chmod and chown; durable. They change no topic."""
        if change.size is not None:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not change.is_touch:
            self.mount.permissions.change_root(change)

    def lookup(self, name: str) -> Node:
        if name in self._own:
            return self._own[name]
        if not may_wait():
            self.partitions.look_for_partitions()
        topic = self.mount.manager.topics.get(name)
        if topic is None:
            raise missing(name)
        return self._topic(topic)

    def _topic(self, topic: Topic) -> Node:
        # The kernel finds nothing in a directory that was removed, while somebody is in it.
        returned = (topic.times_undeleted,) if topic.times_undeleted else ()
        inode = inode_number(topic.name, topic.id, *returned)
        return self.mount.inodes.find(inode) or TopicDirectory(
            self.partitions, inode, topic, self.start_names, DOT_NAMES
        )

    def names(self) -> list[str]:
        self.partitions.look_for_partitions()
        names = self.shown_topics()
        return [*sorted(self._own), *names] if self.mount.options.show_dot else names

    def shown_topics(self) -> list[str]:
        """Return the topics that a listing has."""
        hidden = {*self._own, *(() if self.mount.options.show_internal else INTERNAL_TOPICS)}
        return [name for name in sorted(self.mount.manager.topics) if name not in hidden]

    def mkdir(self, name: str, mode: int, caller: Caller) -> Node:
        """Create a topic with num.partitions partitions, which the caller owns.

        Below a setgid directory it takes the group, and the bit.
        """
        if name in self._own:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        parent_mode, _, parent_gid = self.owner()
        gid = parent_gid if parent_mode & stat.S_ISGID else caller.gid
        owner = (caller.uid, gid, mode & 0o7777 | parent_mode & stat.S_ISGID)
        return self._topic(self.mount.manager.create_topic(name, owner=owner))

    def rmdir(self, name: str, caller: Caller) -> None:
        """Delete a topic and all its records. EACCES where the caller could not empty it."""
        manager = self.mount.manager
        if name in self._own:
            raise OSError(errno.EPERM, "it is part of the file system and cannot be removed")
        if name not in manager.topics:
            raise missing(name)
        if not manager.settings.broker.delete_topic_enable:
            raise OSError(errno.EPERM, "deleting topics is disabled (delete.topic.enable is false)")
        manager.check_may_write(name)
        check_may_change(name)
        if not self.mount.permissions.may_empty(name, caller):
            why = f"user {caller.uid} has no permission to remove its partitions"
            raise PermissionError(errno.EACCES, why)
        topic = manager.topics[name]
        self.mount.jobs.drop_topic(topic)
        delay_ms = manager.delete_topic(name)
        self.mount.abort_outcomes.pop((topic.name, topic.id), None)
        self.mount.events.of_request(
            f"{name}: deleted. To restore it within {delay_ms / 1000:g} s: "
            f"echo undelete {name} >> {ABOUT}/topics"
        )
