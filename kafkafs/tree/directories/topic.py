"""A topic: its partitions' values, and the dot names (`dot_names.py`).

It lists its dot names with `show_dot` only; lookup finds them always.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping

from kafkafs.tree.directories.tree_directory import TreeDirectory
from kafkafs.tree.files.start_file import StartNames
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Caller, Change, Node, inode_number, missing
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import Partitions
from kafkafs.views import View
from storage.errors import InvalidTopic
from storage.manager import Topic
from storage.modes import Ownership
from storage.waiting import may_wait


class TopicDirectory(TreeDirectory):
    """See the module. `dot_names`: makes the node of each dot name."""

    __slots__ = ("_dot_names", "partitions", "start_names", "topic")

    kind = "topic"

    def __init__(
        self,
        partitions: Partitions,
        inode: int,
        topic: Topic,
        start_names: StartNames,
        dot_names: DotNames,
    ) -> None:
        super().__init__(partitions.mount, inode)
        self.partitions = partitions
        self.topic = topic
        self.start_names = start_names
        self._dot_names = dot_names

    @property
    def path(self) -> str:
        return self.topic.name

    def owner(self) -> Ownership:
        return self.mount.permissions.topic(self.topic.name)

    def mtime_ns(self) -> int:
        return self.topic.extended_ns

    def set_attributes(self, change: Change) -> None:
        """chmod and chown; durable. They change no partition."""
        if change.size is not None:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not change.is_touch:
            self.mount.permissions.change_topic(self.topic.name, change)
            self._changed()

    def _changed(self) -> None:
        """Have the kernel drop the attributes of the directories that follow this one."""
        inside = (f"{view}/.snapshot" for view in self.mount.dot_views)
        for name in (*self._dot_names, *inside):
            self.mount.notices.attributes_changed(self._number(name))

    def _number(self, name: str) -> int:
        """The inode number of a dot name, or a path of two of them."""
        return inode_number(self.topic.name, self.topic.id, name)

    def lookup(self, name: str) -> Node:
        if not may_wait():
            self.partitions.look_for_partitions()
        partition = self.partitions.find(self.topic, name)
        if partition is not None:
            return self.view_file(partition, self.mount.views[0])
        if "@" in name:
            return self.start_names.look_up(self.topic, self.inode, name, self.mount.views[0])
        make = self._dot_names.get(name)
        if make is None:
            raise missing(name)
        inode = self._number(name)
        return self.mount.inodes.find(inode) or make(self, inode)

    def view_file(self, partition: Partition, view: View) -> Node:
        """The current file of a partition in a view."""
        if not may_wait():
            partition.follow()
        partition_view = partition.view(view)
        nonce = partition.nonce()
        inode = ViewFile.number(partition, view, nonce)
        return self.mount.inodes.find(inode) or ViewFile(inode, partition, partition_view, nonce)

    def partition_names(self) -> list[str]:
        """The partitions' names, by number."""
        self.partitions.look_for_partitions()
        return [str(number) for number in self.topic.numbers]

    def names(self) -> list[str]:
        names = self.partition_names()
        return [*self._dot_names, *names] if self.mount.options.show_dot else names

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        """Create the next partition. EINVAL where `name` is not its number."""
        manager = self.mount.manager
        if not name.isascii() or not name.isdecimal() or str(int(name)) != name:
            raise InvalidTopic(f"the name of a partition is a number, not {name!r}")
        topic_mode, _, topic_gid = self.owner()
        gid = topic_gid if topic_mode & stat.S_ISGID else caller.gid
        owner = (caller.uid, gid, mode & 0o7777)
        manager.create_partition(self.topic.name, int(name), owner=owner)
        self._changed()
        node = self.lookup(name)
        assert isinstance(node, ViewFile)
        # A keyed append may have come before.
        node.partition.owner_changed()
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return node, node.open(flags & ~os.O_TRUNC)
        return node, node.open_for_writing(flags)

    def unlink(self, name: str) -> None:
        delay_ms = self.mount.manager.settings.log_config(self.topic.name).file_delete_delay_ms
        why = (
            "a partition cannot be removed; to delete the topic, and its files "
            f"{delay_ms / 1000:g} s later: rmdir {self.topic.name}"
        )
        partition = self.partitions.find(self.topic, name)
        if partition is not None and partition.log.is_new:
            why += "; to write an empty partition: >, cp, tar -x --overwrite or rsync --inplace"
        raise OSError(errno.EPERM, why)


DotNames = Mapping[str, Callable[[TopicDirectory, int], Node]]
"""By name: makes the node of a dot name from the topic and an inode number."""


class InTopic(TreeDirectory):
    """A directory in a topic, readable by those who may read the topic."""

    __slots__ = ("topic",)

    name: str

    def __init__(self, topic: TopicDirectory, inode: int) -> None:
        super().__init__(topic.mount, inode)
        self.topic = topic

    @property
    def path(self) -> str:
        return f"{self.topic.path}/{self.name}"

    def owner(self) -> Ownership:
        mode, uid, gid = self.topic.owner()
        return mode & 0o555, uid, gid

    def mtime_ns(self) -> int:
        return self.topic.mtime_ns()

    def names(self) -> list[str]:
        return self.topic.partition_names()
