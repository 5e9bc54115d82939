"""`.groups`: the directories of consumer groups, of the topics of each, and of their positions.

    GroupsDirectory         .groups           the groups
      GroupDirectory        .groups/G         the topics that it has committed positions in
        PositionsDirectory  .groups/G/T       the partitions that it has committed positions in

Each topic and each partition that is there is found in them, also where nothing is committed. What
begins with a dot is not listed, so that `rm -r` works. Removing a file takes its commit back, and
removing a directory all of its commits; a group that was emptied stays until its own is removed.

Another process may write groups at any moment, and positions expire: the kernel keeps nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter

from kafkafs.tree.directories.tree_directory import TreeDirectory
from kafkafs.tree.files.group_names import (
    file_name,
    group_name,
    right_spelling,
    spelt_group,
)
from kafkafs.tree.groups import group_facts
from kafkafs.tree.groups.claim_file import NAME as CLAIMS
from kafkafs.tree.groups.claim_file import ClaimFile
from kafkafs.tree.groups.claims import Claims
from kafkafs.tree.groups.group_files import (
    ALL,
    LAG,
    GroupTopic,
    lag_file,
    offsets_log,
    waited_for,
)
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Attributes, Caller, Change, Node, inode_number, missing
from kafkafs.tree.partition.partitions import Partitions
from storage import paths
from storage.errors import InvalidRecord
from storage.groups.group import Group
from storage.modes import Ownership
from storage.waiting import may_wait


class _Uncached(TreeDirectory):
    """A directory of which the kernel keeps neither attributes nor the name."""

    __slots__ = ("_path", "_removals", "claims", "partitions")

    kind = "group"
    appends = True

    def __init__(
        self,
        partitions: Partitions,
        claims: Claims,
        removals: Counter[str],
        path: str,
        what: str = "",
    ) -> None:
        """`removals`: how often each path was removed. The kernel finds nothing in a directory that
        was removed, while somebody is in it; so the next one of the name is another inode, and also
        where it is of something else (`what`).
        """
        super().__init__(partitions.mount, inode_number(path, what, removals[path]))
        self.partitions = partitions
        self.claims = claims
        self._path = path
        self._removals = removals

    @property
    def path(self) -> str:
        return self._path

    def keep_s(self) -> float:
        return 0.0

    def attributes(self) -> Attributes:
        return super().attributes()._replace(entry_timeout=0.0)

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        raise OSError(errno.EPERM, "only existing partitions have committed offsets")

    def _find(self, group: str) -> Group | None:
        """A group, on the owner's thread, which may append for it then. MustQueue."""
        groups, log = self.mount.manager.groups, offsets_log(self.mount, group)
        if log is None:
            return groups.find(group)
        found = waited_for(log.append_queue, lambda: groups.find(group))
        log.append_queue.check_may_append()
        return found

    def _forget(self, group: str, topic: str | None = None, partition: int | None = None) -> None:
        """Take commits back. On the owner's thread. MustQueue: nothing has changed."""
        groups = self.mount.manager.groups
        self.claims.check_free(group, topic, partition)
        self._find(group)  # what is read here `forget` need not read
        if topic is not None:
            # The directory stays though it is empty; one whose name is not UTF-8 cannot.
            with contextlib.suppress(InvalidRecord):
                groups.make(group)
        groups.forget(group, topic, partition)
        self._removals[self._below(group, topic)] += partition is None

    @staticmethod
    def _below(group: str, topic: str | None = None) -> str:
        """The path of a group, or of its positions in a topic."""
        return "/".join(filter(None, (paths.GROUPS, file_name(group), topic)))


class GroupsDirectory(_Uncached):
    """`.groups`"""

    __slots__ = ("_lag",)

    def __init__(self, partitions: Partitions, claims: Claims) -> None:
        super().__init__(partitions, claims, Counter(), paths.GROUPS)
        manager = partitions.mount.manager
        self._lag = lag_file(
            partitions,
            f"{paths.GROUPS}/{LAG}",
            lambda: group_facts.all_lags_text(manager),
            self._lag_owner,
        )

    def owner(self) -> Ownership:
        return self.mount.permissions.all_groups

    def _lag_owner(self) -> Ownership:
        """That of files that tell of all topics (`AboutDirectory`)."""
        mode, _, gid = self.mount.permissions.default
        uid = self.mount.options.uid
        return mode & 0o440, os.geteuid() if uid is None else uid, gid

    def lookup(self, name: str) -> Node:
        if name == LAG:
            return self._lag
        group = spelt_group(name, self.partitions.group_names)
        if group is None or self.partitions.group(group) is None:
            raise missing(name)
        return self._directory(group)

    def _directory(self, group: str) -> Node:
        made = GroupDirectory(self.partitions, self.claims, self._removals, group)
        return self.mount.inodes.find(made.inode) or made

    def names(self) -> list[str]:
        return sorted(map(file_name, self.partitions.group_names()))

    def mkdir(self, name: str, mode: int, caller: Caller) -> Node:
        """Make a group without positions, which the caller owns."""
        group = group_name(name)
        if group is None:
            why = f"no group has the file name {name!r}; use {right_spelling(name)}"
            raise OSError(errno.EINVAL, why)
        groups = self.mount.manager.groups
        if groups.find(group) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        groups.prepare()
        self.mount.permissions.set_group(group, (caller.uid, caller.gid, mode & 0o7777))
        groups.make(group)
        return self._directory(group)

    def rmdir(self, name: str, caller: Caller) -> None:
        """Take back all that a group has committed."""
        group = spelt_group(name, self.partitions.group_names)
        if group is None or self._find(group) is None:
            raise missing(name)
        self._forget(group)


class GroupDirectory(_Uncached):
    """`.groups/G`"""

    __slots__ = ("group",)

    def __init__(
        self, partitions: Partitions, claims: Claims, removals: Counter[str], group: str
    ) -> None:
        super().__init__(partitions, claims, removals, self._below(group))
        self.group = group

    def owner(self) -> Ownership:
        return self.mount.permissions.group(self.group)

    def set_attributes(self, change: Change) -> None:
        """chmod and chown; durable."""
        if change.size is not None:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not change.is_touch:
            self.mount.permissions.change_group(self.group, change)

    def lookup(self, name: str) -> Node:
        if name == LAG:
            self._group()  # what its mode follows from, where that has to wait
            return self._lag_file()
        if name == CLAIMS:
            return ClaimFile(self.partitions, self.claims, self.group, self.path).node()
        if not may_wait():
            self.partitions.look_for_partitions()
        topic = self.mount.manager.topics.get(name)
        if topic is None and name not in self._topics():
            raise missing(name)
        of = GroupTopic(self.partitions, self.claims, self.group, name, topic)
        made = PositionsDirectory(self.partitions, self._removals, of)
        return self.mount.inodes.find(made.inode) or made

    def _topics(self) -> set[str]:
        """The topics that the group has committed positions in."""
        group = self.partitions.group(self.group)
        found = () if group is None else group.committed
        return {topic for topic, _ in found if paths.is_topic_name(topic)}

    def names(self) -> list[str]:
        return sorted(self._topics())

    def _lag_file(self) -> Node:
        manager = self.mount.manager

        def text() -> str:
            return group_facts.lag_text(manager, self._group())

        return lag_file(self.partitions, f"{self.path}/{LAG}", text, self._facts_owner)

    def _group(self) -> Group:
        return self.partitions.group(self.group) or Group(self.group)

    def _facts_owner(self) -> Ownership:
        """Who may read all the partitions of which the file tells."""
        permissions, topics = self.mount.permissions, self.mount.manager.topics
        mode, uid, gid = permissions.group(self.group)
        numbers: dict[str, list[int]] = {}
        for topic, number in self._group().committed:
            numbers.setdefault(topic, []).append(number)
        for topic, each in numbers.items():
            if topics.get(topic) is not None:
                mode &= permissions.positions(self.group, topic, each)[0]
        return mode & 0o444, uid, gid

    def rmdir(self, name: str, caller: Caller) -> None:
        """Take back what the group has committed in a topic."""
        if self.mount.manager.topics.get(name) is None and name not in self._topics():
            raise missing(name)
        self._forget(self.group, name)


class PositionsDirectory(_Uncached):
    """`.groups/G/T`"""

    __slots__ = ("of",)

    def __init__(self, partitions: Partitions, removals: Counter[str], of: GroupTopic) -> None:
        topic_id = "" if of.topic is None else of.topic.id
        super().__init__(partitions, of.claims, removals, of.path, topic_id)
        self.of = of

    def owner(self) -> Ownership:
        return self.mount.permissions.group(self.of.group)

    def lookup(self, name: str) -> Node:
        if name == ALL:
            return self.of.all_file()
        return self.of.position_file(self._number(name))

    def _number(self, name: str) -> int:
        """ENOENT"""
        number = int(name) if name.isascii() and name.isdecimal() and len(name) <= 10 else -1
        if str(number) != name:
            raise missing(name)
        if number not in self.of.numbers and number not in self.of.committed():
            raise missing(name)
        return number

    def names(self) -> list[str]:
        return [str(number) for number in sorted(self.of.committed()) if number >= 0]

    def unlink(self, name: str) -> None:
        """Take back what the group has committed in a partition."""
        if name == ALL:
            raise OSError(errno.EPERM, "it is part of the file system and cannot be removed")
        self._forget(self.of.group, self.of.name, self._number(name))
