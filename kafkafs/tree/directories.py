"""The directories: what names lead to, and what may be made or removed.

    Root              topics; `.kafkafs`
    TopicDirectory    partitions; `.raw`, `.meta`, `.config`
    PartitionNames    a directory in a topic with one name per partition: `.raw`, `.meta`
    RawDirectory, MetaDirectory, AboutDirectory   `.raw/N`, `.meta/N`, `.kafkafs`

Root and topics list their dot names with `show_dot` only; lookup finds them always, and inside them
everything is listed. A node that the kernel knows already is handed out again, never a second one
of its number.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from kafkafs.tree import meta
from kafkafs.tree.control_file import ControlFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import (
    ROOT_INODE,
    Attributes,
    Caller,
    Change,
    Directory,
    Node,
    directory_mode,
    inode_number,
)
from kafkafs.tree.raw_file import RawFile, is_shown
from kafkafs.tree.topic_config import apply_config, config_text
from kafkafs.tree.view_file import ViewFile
from kafkafs.tree.virtual_file import Content, Owner, Text, VirtualFile
from kafkafs.views import View
from storage import paths
from storage.errors import InvalidTopic, ReadOnlyLog, StorageError
from storage.manager import Topic

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from kafkafs.tree.partition import Partition

ABOUT = ".kafkafs"

N = TypeVar("N", bound=Node)


def _missing(name: str) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


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
        mode, uid, gid = self.owner()
        timeout = self.fs.attr_timeout
        return Attributes(
            self.inode,
            directory_mode(mode),
            0,
            self.fs.started_ns,
            2,
            uid,
            gid,
            0,
            timeout,
            timeout,
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
        topic = self.fs.manager.topics.get(name)
        if topic is None:
            raise _missing(name)
        return self._topic(topic)

    def _topic(self, topic: Topic) -> TopicDirectory:
        inode = inode_number(topic.id)
        return self.known_or(TopicDirectory, inode, lambda: TopicDirectory(self.fs, inode, topic))

    def names(self) -> list[str]:
        names = sorted(name for name in self.fs.manager.topics if name != ABOUT)
        return [ABOUT, *names] if self.fs.options.show_dot else names

    def mkdir(self, name: str, mode: int, caller: Caller) -> Node:
        """A new topic with num.partitions partitions, which belongs to the caller."""
        if name == ABOUT:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        manager = self.fs.manager
        try:
            if name not in manager.topics:
                # Before anybody can see it, so that it never has another owner.
                paths.check_topic_name(name)
                if manager.read_only:
                    raise ReadOnlyLog("the mount is read-only", path=manager.path)
                manager.settings.set_owner(name, None, caller.uid, caller.gid, mode & 0o7777)
            try:
                topic = manager.create_topic(name)
            except BaseException:
                if name not in manager.topics:
                    manager.settings.drop_topic(name)
                raise
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
            raise _missing(name)
        if not manager.settings.broker.delete_topic_enable:
            raise self.refused(f"rmdir of {name!r}", "delete.topic.enable is false")
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
        partition = self.fs.find_partition(self.topic, name)
        if partition is not None:
            return self.view_file(partition, self.fs.views[0], self.inode, wait)
        make = _DOT_NAMES.get(name)
        if make is None:
            raise _missing(name)
        inode = inode_number(self.topic.id, name)
        return self.fs.inodes.find(inode) or make(self, inode)

    def view_file(self, partition: Partition, view: View, parent: int, wait: bool) -> ViewFile:
        """The current file of a partition in a view."""
        part = partition.view(view)
        nonce = partition.nonce(wait)
        inode = ViewFile.number(partition, view, nonce)
        return self.known_or(
            ViewFile, inode, lambda: ViewFile(inode, parent, partition, part, nonce)
        )

    def partition_names(self) -> list[str]:
        """In order of number."""
        return [str(number) for number in sorted(self.topic.partitions)]

    def names(self) -> list[str]:
        names = self.partition_names()
        for log in self.topic.partitions.values():
            # Here and now: the lookups that follow may be in a worker thread.
            self.fs.partition(log).view(self.fs.views[0])
        return [*_DOT_NAMES, *names] if self.fs.options.show_dot else names

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
        manager.settings.set_owner(
            self.topic.name, int(name), caller.uid, caller.gid, mode & 0o7777
        )
        node = self.lookup(name, True)
        assert isinstance(node, ViewFile)
        node.partition.owner_changed()
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return node, node.open(flags & ~os.O_TRUNC, True)
        return node, node.open_for_append(flags, True)

    def unlink(self, name: str) -> None:
        raise self.refused(
            f"unlink of {self.topic.name}/{name}",
            f"a partition cannot be removed; rmdir of {self.topic.name} deletes the topic",
        )


class PartitionNames(TreeDirectory):
    """A directory in a topic that has a name for each partition."""

    __slots__ = ("_make", "_what", "topic")

    def __init__(
        self,
        topic: TopicDirectory,
        inode: int,
        what: str,
        make: Callable[[TopicDirectory, Partition, int], Node],
    ) -> None:
        super().__init__(topic.fs, inode)
        self.topic = topic
        self._what = what
        self._make = make

    def owner(self) -> Owner:
        mode, uid, gid = self.topic.owner()
        return mode & 0o555, uid, gid

    def lookup(self, name: str, wait: bool) -> Node:
        partition = self.fs.find_partition(self.topic.topic, name)
        if partition is None:
            raise _missing(name)
        inode = inode_number(self.topic.topic.id, self._what, name)
        return self.fs.inodes.find(inode) or self._make(self.topic, partition, inode)

    def names(self) -> list[str]:
        return self.topic.partition_names()


class OfPartition(TreeDirectory):
    """A directory of one partition: who may read that may read this."""

    __slots__ = ("partition",)

    def __init__(self, topic: TopicDirectory, partition: Partition, inode: int) -> None:
        super().__init__(topic.fs, inode)
        self.partition = partition

    def owner(self) -> Owner:
        mode, uid, gid = self.partition.owner
        read = mode & 0o444
        return read | read >> 2, uid, gid

    def file_owner(self) -> Owner:
        mode, uid, gid = self.partition.owner
        return mode & 0o444, uid, gid


class RawDirectory(OfPartition):
    """`.raw/N`"""

    __slots__ = ()

    def lookup(self, name: str, wait: bool) -> Node:
        if not is_shown(name):
            raise _missing(name)
        inode = RawFile.number(self.partition, name)
        return self.known_or(RawFile, inode, lambda: RawFile(inode, self.partition, name))

    def names(self) -> list[str]:
        log = self.partition.log
        return sorted(name for name, _ in log.files.scan(log.directory) if is_shown(name))


class MetaDirectory(OfPartition):
    """`.meta/N`"""

    __slots__ = ()

    def lookup(self, name: str, wait: bool) -> Node:
        partition = self.partition
        log = partition.log
        values = partition.view(self.fs.views[0])
        content: dict[str, Callable[[], Content]] = {
            "offsets": lambda: meta.offsets(log),
            "segments": lambda: meta.segments(log, values),
            "index": lambda: meta.EntryTable(log, meta.OFFSET_INDEX),
            "timeindex": lambda: meta.EntryTable(log, meta.TIME_INDEX),
        }
        if name not in content:
            raise _missing(name)

        def prepare(wait: bool) -> None:
            partition.nonce(wait)
            values.prepare(wait)

        return VirtualFile(
            inode_number(log.topic_id, log.partition, ".meta", name),
            content[name],
            self.file_owner,
            lambda: partition.mtime_ns,
            prepare if name == "segments" else None,
        )

    def names(self) -> list[str]:
        return ["offsets", "segments", "index", "timeindex"]


class AboutDirectory(TreeDirectory):
    """`.kafkafs`: the daemon."""

    __slots__ = ()

    def lookup(self, name: str, wait: bool) -> Node:
        texts = self.fs.about
        if name not in texts:
            raise _missing(name)

        def owner() -> Owner:
            mode, uid, gid = self.owner()
            return mode & 0o444, uid, gid

        return VirtualFile(
            inode_number(ABOUT, name),
            lambda: Text(texts[name]()),
            owner,
            lambda: self.fs.clock_ns(),
        )

    def names(self) -> list[str]:
        return list(self.fs.about)


def _raw(topic: TopicDirectory, inode: int) -> Node:
    return PartitionNames(topic, inode, ".raw", RawDirectory)


def _meta(topic: TopicDirectory, inode: int) -> Node:
    return PartitionNames(topic, inode, ".meta", MetaDirectory)


def _config(topic: TopicDirectory, inode: int) -> Node:
    fs, name = topic.fs, topic.topic.name

    def owner() -> Owner:
        mode, uid, gid = topic.owner()
        return mode & 0o666, uid, gid

    def act(lines: Iterable[str]) -> None:
        try:
            apply_config(fs.manager, name, lines)
        except StorageError as error:
            fs.events(f"{name}/.config: {error}")
            raise

    return ControlFile(inode, lambda: Text(config_text(fs.manager, name)), act, owner, fs.clock_ns)


_DOT_NAMES: dict[str, Callable[[TopicDirectory, int], Node]] = {
    ".config": _config,
    ".meta": _meta,
    ".raw": _raw,
}
"""What a topic has besides partitions."""
