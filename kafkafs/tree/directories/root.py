"""The directories: what names lead to, and what may be made or removed.

    Root              topics; `.kafkafs` (`about.py`)
    TopicDirectory    partitions; the rest: `dot_names.py`

Root and topics list their dot names with `show_dot` only; lookup finds them always, and inside them
everything is listed.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kafkafs.tree.directories.about import ABOUT, AboutDirectory
from kafkafs.tree.directories.dot_names import DOT_NAMES
from kafkafs.tree.directories.tree_directory import TreeDirectory
from kafkafs.tree.files.start_file import look_up_start
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.files.virtual_file import Owner
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import ROOT_INODE, Caller, Change, Node, inode_number, missing
from kafkafs.views import View
from storage.directory.manager import Topic
from storage.errors import InvalidTopic, StorageError

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from kafkafs.tree.partition.partition import Partition


class Root(TreeDirectory):
    """The mount point."""

    __slots__ = ()

    def __init__(self, fs: FileSystem) -> None:
        super().__init__(fs, ROOT_INODE)

    def owner(self) -> Owner:
        return self.fs.default_owner

    def lookup(self, name: str, wait: bool) -> Node:
        if name == ABOUT:
            inode = inode_number(ABOUT)
            return self.known_or(AboutDirectory, inode, lambda: AboutDirectory(self.fs, inode))
        if not wait:
            self.fs.look_for_partitions()
        topic = self.fs.manager.topics.get(name)
        if topic is None:
            raise missing(name)
        return self._topic(topic)

    def _topic(self, topic: Topic) -> TopicDirectory:
        inode = inode_number(topic.name, topic.id)
        return self.known_or(TopicDirectory, inode, lambda: TopicDirectory(self.fs, inode, topic))

    def names(self) -> list[str]:
        self.fs.look_for_partitions()
        names = [name for name in sorted(self.fs.manager.topics) if name != ABOUT]
        return [ABOUT, *names] if self.fs.options.show_dot else names

    def mkdir(self, name: str, mode: int, caller: Caller) -> Node:
        """A new topic with num.partitions partitions, which belongs to the caller."""
        if name == ABOUT:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        owner = (caller.uid, caller.gid, mode & 0o7777)
        try:
            topic = self.fs.manager.create_topic(name, owner=owner)
        except StorageError as error:
            self.fs.events(f"mkdir of {name!r} refused: {error}")
            raise
        return self._topic(topic)

    def rmdir(self, name: str) -> None:
        """Delete a topic with everything in it."""
        manager = self.fs.manager
        if name == ABOUT:
            raise self.refused(f"rmdir of {name!r}", "it belongs to the file system")
        if name not in manager.topics:
            raise missing(name)
        if not manager.settings.broker.delete_topic_enable:
            raise self.refused(f"rmdir of {name!r}", "delete.topic.enable is false")
        self.fs.jobs.drop_topic(manager.topics[name])
        manager.delete_topic(name)


class TopicDirectory(TreeDirectory):
    """A topic: its partitions' values, and dot names for the rest."""

    __slots__ = ("topic",)

    def __init__(self, fs: FileSystem, inode: int, topic: Topic) -> None:
        super().__init__(fs, inode)
        self.topic = topic

    def owner(self) -> Owner:
        return self.fs.topic_owner(self.topic.name)

    def set_attributes(self, change: Change) -> None:
        self.fs.set_topic_owner(self.topic, self.inode, change)

    def lookup(self, name: str, wait: bool) -> Node:
        if not wait:
            self.fs.look_for_partitions()
        partition = self.fs.find_partition(self.topic, name)
        if partition is not None:
            return self.view_file(partition, self.fs.views[0], wait)
        if "@" in name:
            return look_up_start(self, self.inode, name, self.fs.views[0], wait)
        make = DOT_NAMES.get(name)
        if make is None:
            raise missing(name)
        inode = inode_number(self.topic.name, self.topic.id, name)
        return self.fs.inodes.find(inode) or make(self, inode)

    def view_file(self, partition: Partition, view: View, wait: bool) -> ViewFile:
        """The current file of a partition in a view."""
        if not wait:
            partition.follow()
        part = partition.view(view)
        nonce = partition.nonce(wait)
        inode = ViewFile.number(partition, view, nonce)
        return self.known_or(ViewFile, inode, lambda: ViewFile(inode, partition, part, nonce))

    def partition_names(self) -> list[str]:
        """In order of number."""
        self.fs.look_for_partitions()
        return [str(number) for number in self.topic.numbers]

    def names(self) -> list[str]:
        names = self.partition_names()
        return [*DOT_NAMES, *names] if self.fs.options.show_dot else names

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        """The next partition; a name that is not its number is EINVAL."""
        manager = self.fs.manager
        try:
            if not name.isascii() or not name.isdecimal() or str(int(name)) != name:
                raise InvalidTopic(f"a partition's name is its number, {name!r} is none")
            manager.create_partition(self.topic.name, int(name))
        except StorageError as error:
            self.fs.events(f"creation of {self.topic.name}/{name} refused: {error}")
            raise
        owner = (caller.uid, caller.gid, mode & 0o7777)
        if owner != self._partitions_owner():
            manager.settings.set_owner(self.topic.name, int(name), *owner)
        node = self.lookup(name, True)
        assert isinstance(node, ViewFile)
        node.partition.owner_changed()
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return node, node.open(flags & ~os.O_TRUNC, True)
        return node, node.open_for_append(flags, True)

    def _partitions_owner(self) -> tuple[int, int, int] | None:
        """(uid, gid, mode) that its partitions have by the topic's, where that was ever set.

        Those of their own are lines of the topic's file, which is written anew for each: of
        thousands of partitions made alike that is left out.
        """
        owner = self.fs.manager.settings.get_owner(self.topic.name, None)
        return None if owner is None else (owner[0], owner[1], owner[2] & 0o666)

    def unlink(self, name: str) -> None:
        raise self.refused(
            f"unlink of {self.topic.name}/{name}",
            f"a partition cannot be removed; rmdir of {self.topic.name} deletes the topic",
        )
