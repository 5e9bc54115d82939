"""The names in a topic that begin with a dot.

    InTopic             a directory in a topic:
      ViewNames           each partition in another view: `.kv`, `.jsonl`, `.batches`
      SnapshotNames       each partition as it is now: `.snapshot`, in these directories, too
      FollowNames         each partition with positions that never change: `.follow`, `.ship`
      PartitionNames      a directory for each partition: `.raw`, `.meta`
      ControlDirectory    a file for each command: `.control` (`control_directory.py`)
    OfPartition         a directory of one partition: `.raw/N`, `.meta/N`

These directories list all their entries except `append` (`topic_append.py`).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial

from kafkafs.tree.append.topic_append import TopicAppend
from kafkafs.tree.control.topic_config import ConfigCommands, config_text
from kafkafs.tree.directories.control_directory import ControlDirectory, command_file
from kafkafs.tree.directories.topic import InTopic, TopicDirectory
from kafkafs.tree.directories.tree_directory import TreeDirectory
from kafkafs.tree.files import meta, raw_file
from kafkafs.tree.files.follow_file import FOLLOW, SHIP, look_up_follow
from kafkafs.tree.files.text_file import Content, TextFile
from kafkafs.tree.files.view_file import MEASURE_S
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Caller, Node, inode_number, missing
from kafkafs.tree.partition.partition import Partition
from kafkafs.views import View
from storage.modes import Ownership
from storage.waiting import before_waiting, may_wait

APPEND = "append"
"""The file that takes records for any partition; in the topic itself `.append`."""
SNAPSHOT = ".snapshot"


class ViewNames(InTopic):
    """The partitions of a topic in another view than that of its own files.

    It lists `append` and `.snapshot` only with `show_dot`, so that `.kv/*` matches the partitions
    alone.
    """

    __slots__ = ("_view", "name")

    def __init__(self, topic: TopicDirectory, inode: int, name: str) -> None:
        super().__init__(topic, inode)
        self.name = name
        self._view = topic.mount.dot_views[name]

    def lookup(self, name: str) -> Node:
        if name == APPEND and self._view.is_text:
            topic, view, path = self.topic, self._view, f"{self.name}/{APPEND}"
            inode = inode_number(topic.topic.name, topic.topic.id, path)
            return self.mount.inodes.find(inode) or TopicAppend(
                topic.partitions, topic.topic, inode, path, view
            )
        if name == SNAPSHOT:
            path = f"{self.name}/{SNAPSHOT}"
            inode = inode_number(self.topic.topic.name, self.topic.topic.id, path)
            return self.mount.inodes.find(inode) or SnapshotNames(
                self.topic, inode, self._view, path
            )
        if "@" in name:
            return self.topic.start_names.look_up(self.topic.topic, self.inode, name, self._view)
        partition = self.topic.partitions.find(self.topic.topic, name)
        if partition is None:
            raise missing(name)
        return self.topic.view_file(partition, self._view)

    def names(self) -> list[str]:
        names = super().names()
        if self.mount.options.show_dot:
            return [SNAPSHOT, *names, APPEND] if self._view.is_text else [SNAPSHOT, *names]
        return names


class SnapshotNames(InTopic):
    """`.snapshot`, in a topic and in each directory of another view."""

    __slots__ = ("_view", "name")

    has_snapshots = True

    def __init__(self, topic: TopicDirectory, inode: int, view: View, name: str) -> None:
        super().__init__(topic, inode)
        self.name = name
        self._view = view

    def lookup(self, name: str) -> Node:
        return self.topic.start_names.snapshot(self.topic.topic, name, self._view)

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        raise OSError(errno.EROFS, "new files cannot be created in a snapshot")


class FollowNames(InTopic):
    """`.follow` and `.ship`."""

    __slots__ = ("name",)

    def __init__(self, topic: TopicDirectory, inode: int, name: str) -> None:
        super().__init__(topic, inode)
        self.name = name

    def lookup(self, name: str) -> Node:
        topic = self.topic
        if "@" in name:
            return topic.start_names.look_up(topic.topic, self.inode, name, self.mount.views[0])
        return look_up_follow(topic.partitions, topic.topic, name, self.name)


class PartitionNames(InTopic):
    """A directory in a topic that has a directory for each partition."""

    __slots__ = ("_make", "name")

    def __init__(
        self,
        topic: TopicDirectory,
        inode: int,
        what: str,
        make: Callable[[TopicDirectory, Partition, int], Node],
    ) -> None:
        super().__init__(topic, inode)
        self.name = what
        self._make = make

    def lookup(self, name: str) -> Node:
        partition = self.topic.partitions.find(self.topic.topic, name)
        if partition is None:
            raise missing(name)
        topic = self.topic.topic
        inode = inode_number(topic.name, topic.id, self.name, name)
        return self.mount.inodes.find(inode) or self._make(self.topic, partition, inode)


class OfPartition(TreeDirectory):
    """A directory of one partition, readable by those who may read the partition."""

    __slots__ = ("partition",)

    def __init__(self, topic: TopicDirectory, partition: Partition, inode: int) -> None:
        super().__init__(topic.mount, inode)
        self.partition = partition

    @property
    def is_replaced(self) -> bool:
        return self.partition.is_replaced

    def remembered(self) -> None:
        self.partition.owned.add(self.inode)

    def forgotten(self) -> None:
        self.partition.owned.discard(self.inode)

    def owner(self) -> Ownership:
        mode, uid, gid = self.partition.owner
        read = mode & 0o444
        return read | read >> 2, uid, gid

    def mtime_ns(self) -> int:
        return self.partition.log.created_ns

    def file_owner(self) -> Ownership:
        mode, uid, gid = self.partition.owner
        return mode & 0o444, uid, gid


class RawDirectory(OfPartition):
    """`.raw/N`"""

    __slots__ = ()

    @property
    def path(self) -> str:
        return f"{self.partition.log.topic}/.raw/{self.partition.log.partition}"

    def lookup(self, name: str) -> Node:
        if not raw_file.is_shown(name):
            raise missing(name)
        return raw_file.RawFile.named(self.partition, name)

    def mtime_ns(self) -> int:
        """That of the last append, with which the files come."""
        return self.partition.mtime_ns

    def keep_s(self) -> float:
        return self.partition.keep_s(self.inode)

    def remembered(self) -> None:
        super().remembered()
        self.partition.known[self.inode] = self

    def forgotten(self) -> None:
        super().forgotten()
        self.partition.known.pop(self.inode, None)

    def names(self) -> list[str]:
        before_waiting()
        return raw_file.names(self.partition.log)


class MetaDirectory(OfPartition):
    """`.meta/N`"""

    __slots__ = ()

    @property
    def path(self) -> str:
        return f"{self.partition.log.topic}/.meta/{self.partition.log.partition}"

    def lookup(self, name: str) -> Node:
        partition = self.partition
        if not may_wait():
            partition.follow()
        log = partition.log
        values = partition.view(self.mount.views[0])

        def segments() -> str:
            before_waiting()
            partition.nonce()
            values.layout.measure(time.monotonic() + MEASURE_S)
            return meta.segments(log, values)

        content: dict[str, Callable[[], str | Content]] = {
            "offsets": lambda: meta.offsets(log),
            "segments": segments,
            "index": lambda: meta.EntryTable(log, meta.OFFSET_INDEX),
            "timeindex": lambda: meta.EntryTable(log, meta.TIME_INDEX),
            "txnindex": lambda: meta.aborted_transactions(log),
            "producers": lambda: meta.producers(log),
        }
        if name not in content:
            raise missing(name)
        return TextFile(
            inode_number(log.topic, log.topic_id, log.partition, ".meta", name),
            content[name],
            self.file_owner,
            lambda: partition.mtime_ns,
            path=f"{self.path}/{name}",
            of=partition,
        )

    def names(self) -> list[str]:
        return ["offsets", "segments", "index", "timeindex", "txnindex", "producers"]


def _append(topic: TopicDirectory, inode: int) -> Node:
    view = topic.mount.views[0]
    assert view.is_text
    return TopicAppend(topic.partitions, topic.topic, inode, f".{APPEND}", view)


def _snapshot(topic: TopicDirectory, inode: int) -> Node:
    return SnapshotNames(topic, inode, topic.mount.views[0], SNAPSHOT)


def _config(topic: TopicDirectory, inode: int) -> Node:
    mount, path = topic.mount, f"{topic.path}/.config"
    text = partial(config_text, mount.manager.settings, topic.topic.name)
    begin = partial(ConfigCommands, mount, path, topic.topic)
    return command_file(topic, inode, path, text, begin, shows_partitions=False)


DOT_NAMES: dict[str, Callable[[TopicDirectory, int], Node]] = {
    f".{APPEND}": _append,
    ".batches": partial(ViewNames, name=".batches"),
    ".config": _config,
    ".control": ControlDirectory,
    FOLLOW: partial(FollowNames, name=FOLLOW),
    ".jsonl": partial(ViewNames, name=".jsonl"),
    ".kv": partial(ViewNames, name=".kv"),
    ".meta": partial(PartitionNames, what=".meta", make=MetaDirectory),
    ".raw": partial(PartitionNames, what=".raw", make=RawDirectory),
    SHIP: partial(FollowNames, name=SHIP),
    SNAPSHOT: _snapshot,
}
"""Makes the node of each dot name."""
