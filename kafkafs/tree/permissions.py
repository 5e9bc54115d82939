"""The uid, gid and mode of topics, partitions and groups.

They are settings of the data directory (`storage.settings`). Where none are set, a topic has the
data directory's, and its partitions can be written by that owner alone; he alone also reads Kafka's
own topics. Mount options may replace them.

The kernel checks them at each open. `may_empty` is checked here, since the kernel knows of no
rmdir that deletes what is in a directory. `Writers` are checked at each write, since an open file
that acts on a whole topic also acts on later partitions.

The mount's root has what chmod and chown have set (`storage.directory.root_owner`), else the data
directory's owner and mode. Only the root and `.groups` follow it.

A group has what mkdir, chmod and chown have set (`storage.groups.owners`); one that somebody else
has made has the data directory's, and its owner alone writes it. To commit in a partition a user
has to be able to read it, so access to a group's files never exceeds access to the partitions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from collections.abc import Iterable, Sequence

from kafkafs.tree.handles import Opener
from kafkafs.tree.inodes import Caller, Change, file_mode
from storage.directory.partition_modes import of_topic_without_mode
from storage.directory.root_owner import RootOwner
from storage.errors import StorageError
from storage.groups.owners import GroupOwners
from storage.log.log import Log
from storage.manager import LogManager, Topic
from storage.modes import Ownership, of_directory, within
from storage.paths import INTERNAL_TOPICS, partition_directory
from storage.settings.setting_files import OTHER_PARTITIONS, TopicOwner

NAMED = 10
"""How many directories a command names; of more, the data directory."""


class Permissions:
    """See the module. `uid` and `gid` replace those of everything; `umask` bits are hidden."""

    __slots__ = (
        *("_gid", "_groups", "_manager", "_root", "_uid", "_umask", "_unknown", "_unset"),
        "default",
    )

    def __init__(self, manager: LogManager, uid: int | None, gid: int | None, umask: int) -> None:
        self._manager = manager
        self._groups = GroupOwners(manager.files, manager.path, is_followed=manager.read_only)
        self._root = RootOwner(manager.files, manager.path)
        self._uid = uid
        self._gid = gid
        self._umask = umask
        found = os.stat(manager.path)
        self._unset = found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)
        # Where the mode cannot be read: it may refuse group and others.
        self._unknown = (*self._unset[:2], self._unset[2] & 0o700)
        manager.modes.shown = self._shown
        self.default = self._shown(self._unset)

    def _shown(self, owner: TopicOwner) -> Ownership:
        """An owner of the settings, after the mount options."""
        uid, gid, mode = owner
        return (
            mode & ~self._umask,
            uid if self._uid is None else self._uid,
            gid if self._gid is None else self._gid,
        )

    def topic(self, topic: str) -> Ownership:
        """The ownership of a topic's directory."""
        return self._shown(self._owner_of_topic(topic))

    def _owner_of_topic(self, topic: str) -> TopicOwner:
        settings = self._manager.settings
        owner = settings.get_owner(topic, None)
        if not settings.owners_known(topic):
            return self._unknown
        return self._without_mode(topic) if owner is None else owner

    def of_new_topic(self, mode: int, caller: Caller) -> TopicOwner:
        """The owner and the mode of a topic that a user makes, without the mount options.

        Below a setgid root it takes the group, and the bit.
        """
        _, parent_gid, parent_mode = self._owner_of_root()
        gid = parent_gid if parent_mode & stat.S_ISGID else caller.gid
        return caller.uid, gid, mode & 0o7777 | parent_mode & stat.S_ISGID

    def of_new_partition(self, topic: str, mode: int, caller: Caller) -> TopicOwner:
        """The owner and the mode of a partition that a user makes, without the mount options."""
        _, topic_gid, topic_mode = self._owner_of_topic(topic)
        gid = topic_gid if topic_mode & stat.S_ISGID else caller.gid
        return caller.uid, gid, mode & 0o7777

    def _without_mode(self, topic: str) -> TopicOwner:
        """The owner and the mode of a topic that nobody has given any."""
        uid, gid, mode = self._unset
        return uid, gid, of_topic_without_mode(topic, mode)

    def partition(self, log: Log) -> Ownership:
        """The ownership of a partition's file; the mode has the file type."""
        mode, uid, gid = self._of(log.topic, log.partition)
        return file_mode(mode), uid, gid

    def _of(self, topic: str, number: int) -> Ownership:
        return self._of_partition(topic, self._manager.settings.partition_owner(topic, number))

    def _of_partition(self, topic: str, owner: TopicOwner | None) -> Ownership:
        """The ownership of a partition with this owner; None: no owner was ever set."""
        return self._shown(self._owner_of_partition(topic, owner))

    def _owner_of_partition(self, topic: str, owner: TopicOwner | None) -> TopicOwner:
        """As `_of_partition`, without the mount options."""
        if owner is not None:
            return owner
        uid, gid, mode = self._owner_of_topic(topic)
        return uid, gid, mode & 0o644

    def whole_topic(self, topic: Topic) -> Ownership:
        """The topic's ownership, without the bits that one of its partitions denies."""
        mode, uid, gid = self.topic(topic.name)
        for owner in self._manager.settings.partition_owners(topic.name, topic.numbers):
            mode = within((mode, uid, gid), self._of_partition(topic.name, owner))
        return mode, uid, gid

    def writers(self, topic: Topic) -> Ownership:
        """The ownership of a file whose lines act on all partitions of a topic."""
        mode, uid, gid = self.whole_topic(topic)
        return mode & 0o222, uid, gid

    def facts_of_writers(self, topic: Topic) -> tuple[object, ...]:
        """All on which `writers` depends: equal as long as that returns the same. It does not look
        at each partition. (None is ever removed from a topic.)
        """
        file = self._manager.settings.topic_file(topic.name)
        return file, len(topic.partitions), len(topic.faults)

    def may_empty(self, topic: str, caller: Caller) -> bool:
        """Whether a user could remove all that is in the topic's directory, if that were files."""
        mode, uid, gid = self.topic(topic)
        if caller.uid in (0, uid):
            return True
        if mode & stat.S_ISVTX:
            return False
        triad = mode >> 3 if gid == caller.gid or gid in caller.groups else mode
        return triad & 0o3 == 0o3

    @property
    def root(self) -> Ownership:
        """The ownership of the mount's root."""
        return self._shown(self._owner_of_root())

    def _owner_of_root(self) -> TopicOwner:
        if self._manager.read_only:
            # The process that writes the directory may have changed it.
            self._root.look()
        if not self._root.is_known:
            return self._unknown
        owner = self._root.current
        return self._unset if owner is None else owner

    def change_root(self, change: Change) -> None:
        """chmod and chown of the mount's root, of no topic and of no file on the disk; durable.

        Errors: EROFS, OSError.
        """
        self._check_writable()
        self._root.set(_changed(self._owner_of_root(), change))

    @property
    def all_groups(self) -> Ownership:
        """The ownership of the directory of groups: a user who may list it may make groups, and
        may remove groups of his own.
        """
        mode, uid, gid = self.root
        if self._manager.read_only:
            return mode & 0o555, uid, gid
        makes = (mode & 0o444) >> 1 & ~self._umask
        return mode & 0o555 | makes | stat.S_ISVTX, uid, gid

    def group(self, group: str) -> Ownership:
        """The ownership of a group's directory."""
        try:
            owner = self._owner_of_group(group)
        except (StorageError, OSError):
            owner = self._unknown
        return self._shown(owner)

    def _owner_of_group(self, group: str) -> TopicOwner:
        owner = self._groups.get(group)
        if owner is not None:
            return owner
        uid, gid, mode = self._unset
        return uid, gid, mode & 0o755

    def positions(self, group: str, topic: str, numbers: Iterable[int]) -> Ownership:
        """The ownership of what shows and takes a group's positions in partitions of a topic."""
        mode, uid, gid = self.group(group)
        mode &= 0o666
        for owner in self._manager.settings.partition_owners(topic, numbers):
            readable, *whose = self._of_partition(topic, owner)
            readable &= 0o444
            mode = within((mode, uid, gid), (readable | readable >> 1, whose[0], whose[1]))
        return mode, uid, gid

    def set_group(self, group: str, owner: TopicOwner) -> None:
        """Give a group to somebody, with a mode; durable. StorageError, OSError."""
        self._groups.set(group, owner, set(self._manager.groups.names()))

    def change_group(self, group: str, change: Change) -> None:
        """chmod and chown of a group; durable. EROFS."""
        self._check_writable()
        self.set_group(group, _changed(self._owner_of_group(group), change))

    def exposed(self, partitions: Iterable[tuple[str, int]]) -> list[str]:
        """The directories of partitions that more users can read on the disk than in the mount."""
        manager = self._manager
        top = manager.files.file_stat(manager.path).st_mode
        found = []
        for name, number in partitions:
            if not manager.settings.owners_known(name):
                continue  # whether it is private is not known
            if name in INTERNAL_TOPICS and manager.settings.is_brokers:
                continue  # a broker's files keep their modes
            topic, partition = self.topic(name), self._of(name, number)
            if topic[0] & 0o011 == 0o011 and partition[0] & 0o044 == 0o044:
                continue
            directory = os.path.join(manager.path, partition_directory(name, number))
            with contextlib.suppress(OSError):
                disk = manager.files.file_stat(directory)
                wider = ~of_directory(disk.st_uid, disk.st_gid, topic, partition) & top
                # A user without search permission on the directory reaches none of its files.
                wider &= (disk.st_mode & 0o011) << 2
                if wider and any(
                    manager.files.file_stat(os.path.join(directory, file)).st_mode & wider
                    for file in manager.files.names(directory)
                ):
                    found.append(directory)
        return found

    def change_topic(self, topic: str, change: Change) -> None:
        """chmod and chown of a topic, of none of its partitions; durable. EROFS."""
        self._check_writable()
        self._manager.check_may_write(topic)
        settings = self._manager.settings
        # From now on the topic's owner says nothing of the partitions without one of their own.
        others = settings.partition_owner(topic, OTHER_PARTITIONS)
        if settings.get_owner(topic, OTHER_PARTITIONS) is None:
            if others is None:
                uid, gid, mode = self._without_mode(topic)
                others = uid, gid, mode & 0o644
            settings.set_owner(topic, OTHER_PARTITIONS, *others)
        self._change(topic, None, self._owner_of_topic(topic), change)

    def change_partition(self, log: Log, change: Change) -> None:
        """chmod and chown of a partition; durable. EROFS."""
        given = self._manager.settings.partition_owner(log.topic, log.partition)
        now = self._owner_of_partition(log.topic, given)
        self._change(log.topic, log.partition, now, change)

    def _change(self, topic: str, partition: int | None, now: TopicOwner, change: Change) -> None:
        self._check_writable()
        self._manager.set_owner(topic, partition, _changed(now, change))

    def _check_writable(self) -> None:
        if self._manager.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class Writers:
    """The users who may write an open file whose lines act on all partitions of a topic."""

    __slots__ = ("_at_open", "_checked", "_permissions", "_topic")

    def __init__(self, permissions: Permissions, topic: Topic) -> None:
        self._permissions = permissions
        self._topic = topic
        # First: what changes meanwhile is checked.
        self._checked = permissions.facts_of_writers(topic)
        self._at_open = permissions.writers(topic)

    def check(self, opener: Opener) -> None:
        """Check that the user of the file may still write it, if its mode now permits less than at
        open. EACCES
        """
        facts = self._permissions.facts_of_writers(self._topic)
        if facts == self._checked:
            return
        now, at_open = self._permissions.writers(self._topic), self._at_open
        if within(at_open, now) != at_open[0] and not may_write(now, opener):
            raise PermissionError(
                errno.EACCES,
                "the user who opened this file no longer has write permission on the topic and all "
                "its partitions",
            )
        self._checked = facts


def may_write(shown: Ownership, opener: Opener) -> bool:
    """Whether a user may write what has this mode and owner."""
    mode, uid, gid = shown
    if opener.uid in (0, uid):
        return opener.uid == 0 or bool(mode & 0o200)
    is_member = gid == opener.gid or gid in opener.groups
    return bool(mode & (0o020 if is_member else 0o002))


def _changed(now: TopicOwner, change: Change) -> TopicOwner:
    uid, gid, mode = now
    return (
        uid if change.uid is None else change.uid,
        gid if change.gid is None else change.gid,
        mode if change.mode is None else stat.S_IMODE(change.mode),
    )


def exposed_text(data_dir: str, found: Sequence[str]) -> tuple[str, str]:
    """What to say of these directories, which `exposed` has found, and the command that closes
    them.
    """
    close = found if len(found) <= NAMED else [data_dir]
    what = (
        f"{data_dir}: users without access in the mount can read the files of private "
        f"partitions ({len(found)})"
    )
    return what, f"chmod go= {shlex.join(close)}"
