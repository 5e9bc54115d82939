"""`.groups`: consumer groups, the topics that each has committed offsets in, and their partitions.

Each topic and each partition that exists is found there, also if nothing is committed. Names that
begin with a dot are not listed, so that `rm -r` works. Removing a file deletes its commit, and
removing a directory all of its commits; a group without commits stays until its own directory is
removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Sequence

from kafkafs.tree.directories.directory import Place
from kafkafs.tree.files.group_names import (
    file_name,
    group_name,
    is_shown,
    why_no_group,
)
from kafkafs.tree.groups import group_facts
from kafkafs.tree.groups.claims import Claims
from kafkafs.tree.groups.group_files import ALL, GroupTopic, offsets_log, waited_for
from kafkafs.tree.inodes import Caller, inode_number, missing
from kafkafs.tree.partition.partitions import Partitions
from storage import paths
from storage.errors import InvalidRecord
from storage.groups.group import Group
from storage.modes import Ownership

# -- places ----------------------------------------------------------------------------------------


class GroupsPlace(Place):
    """`.groups`, or a directory in it.

    `removals`: how often each path was removed. The kernel finds nothing in a directory that was
    removed, while somebody is in it; so the next one of the name is another inode, and also if it
    is of something else (`what`).
    """

    def __init__(
        self,
        partitions: Partitions,
        claims: Claims,
        removals: Counter[str],
        path: str = paths.GROUPS,
        what: str = "",
    ) -> None:
        super().__init__(partitions, path, inode_number(path, what, removals[path]))
        self.claims = claims
        self.removals = removals

    def number(self, name: str) -> int:
        return inode_number(f"{self.path}/{name}")


class GroupPlace(GroupsPlace):
    """`.groups/G`"""

    def __init__(self, above: GroupsPlace, group: str) -> None:
        path = _path(group)
        super().__init__(above.partitions, above.claims, above.removals, path)
        self.group = group

    def found(self) -> Group:
        """The group, without commits if it has none."""
        return self.partitions.group(self.group) or Group(self.group)

    def topics(self) -> set[str]:
        """The topics that the group has committed offsets in."""
        return {topic for topic, _ in self.found().committed if paths.is_topic_name(topic)}


class PositionsPlace(GroupsPlace):
    """`.groups/G/T`"""

    def __init__(self, above: GroupsPlace, of: GroupTopic) -> None:
        topic_id = "" if of.topic is None else of.topic.id
        super().__init__(above.partitions, above.claims, above.removals, of.path, topic_id)
        self.of = of

    def number(self, name: str) -> int:
        of = self.of
        topic_id = "" if of.topic is None else of.topic.id
        return inode_number(paths.GROUPS, of.group, of.name, topic_id, name)


class PositionPlace(PositionsPlace):
    """`.groups/G/T/N`"""

    def __init__(self, above: PositionsPlace, partition: int) -> None:
        super().__init__(above, above.of)
        self.numbers = [partition]


def _path(group: str, topic: str | None = None) -> str:
    """The path of a group, or of its committed offsets in a topic."""
    return "/".join(filter(None, (paths.GROUPS, file_name(group), topic)))


# -- access ----------------------------------------------------------------------------------------


def groups_access(place: GroupsPlace) -> Ownership:
    return place.mount.permissions.all_groups


def group_access(place: GroupPlace) -> Ownership:
    return place.mount.permissions.group(place.group)


def positions_access(place: PositionsPlace) -> Ownership:
    return place.mount.permissions.group(place.of.group)


def claims_access(place: GroupPlace) -> Ownership:
    mode, uid, gid = group_access(place)
    return mode & 0o666, uid, gid


def committers(place: PositionsPlace) -> Ownership:
    """Each user who may commit in all partitions of the topic."""
    mode, uid, gid = place.of.access(place.of.numbers)
    return mode & 0o222, uid, gid


def lag_readers(place: GroupPlace) -> Ownership:
    """Each user who may read the group and all the partitions of its lag."""
    permissions, topics = place.mount.permissions, place.mount.manager.topics
    mode, uid, gid = permissions.group(place.group)
    numbers: dict[str, list[int]] = {}
    for topic, number in place.found().committed:
        numbers.setdefault(topic, []).append(number)
    for topic, each in numbers.items():
        if topics.get(topic) is not None:
            mode &= permissions.positions(place.group, topic, each)[0]
    return mode & 0o444, uid, gid


# -- names that are found --------------------------------------------------------------------------


def found_group(place: GroupsPlace, name: str) -> str | None:
    """The group that has a file name."""
    group = group_name(name)
    return None if group is None or place.partitions.group(group) is None else group


def group_names(place: GroupsPlace) -> Sequence[str]:
    return sorted(map(file_name, filter(is_shown, place.partitions.group_names())))


def found_topic(place: GroupPlace, name: str) -> GroupTopic | None:
    """The group's committed offsets in a topic that exists, or that it has committed in."""
    topic = place.mount.manager.topics.get(name)
    if topic is None and name not in place.topics():
        return None
    return GroupTopic(place.partitions, place.claims, place.group, name, topic)


def topic_names(place: GroupPlace) -> Sequence[str]:
    return sorted(place.topics())


def position_number(place: PositionsPlace, name: str) -> int:
    """ENOENT"""
    number = int(name) if name.isascii() and name.isdecimal() and len(name) <= 10 else -1
    if str(number) != name:
        raise missing(name)
    if number not in place.of.numbers and number not in place.of.committed():
        raise missing(name)
    return number


def position_names(place: PositionsPlace) -> Sequence[str]:
    return [str(number) for number in sorted(place.of.committed()) if number >= 0]


def lag_text(place: GroupPlace) -> str:
    return group_facts.lag_text(place.mount.manager, place.found())


# -- making and removing ---------------------------------------------------------------------------


def make_group(place: GroupsPlace, name: str, mode: int, caller: Caller) -> None:
    """Make a group without commits, which the caller owns."""
    group = group_name(name)
    if group is None:
        raise OSError(errno.EINVAL, why_no_group(name))
    groups = place.mount.manager.groups
    if groups.find(group) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    groups.prepare()
    place.mount.permissions.set_group(group, (caller.uid, caller.gid, mode & 0o7777))
    groups.make(group)


def remove_group(place: GroupsPlace, name: str, caller: Caller) -> None:
    """Delete all commits of a group."""
    group = group_name(name)
    if group is None or _find(place, group) is None:
        raise missing(name)
    _forget(place, group)


def remove_topic(place: GroupPlace, name: str, caller: Caller) -> None:
    """Delete the group's commits in a topic."""
    if found_topic(place, name) is None:
        raise missing(name)
    _forget(place, place.group, name)


def remove_position(place: PositionsPlace, name: str) -> None:
    """Delete the group's commit in a partition."""
    if name == ALL:
        raise OSError(errno.EPERM, "it is part of the file system and cannot be removed")
    _forget(place, place.of.group, place.of.name, position_number(place, name))


def _find(place: GroupsPlace, group: str) -> Group | None:
    """Find a group, on the loop thread, which may append for it then. MustQueue."""
    groups, log = place.mount.manager.groups, offsets_log(place.mount, group)
    if log is None:
        return groups.find(group)
    found = waited_for(log.append_queue, lambda: groups.find(group))
    log.append_queue.check_may_append()
    return found


def _forget(
    place: GroupsPlace, group: str, topic: str | None = None, partition: int | None = None
) -> None:
    """Delete commits, on the loop thread. MustQueue: nothing has changed."""
    groups = place.mount.manager.groups
    place.claims.check_free(group, topic, partition)
    _find(place, group)  # `forget` then need not read the group
    if topic is not None:
        # The directory stays though it is empty; one whose name is not UTF-8 cannot.
        with contextlib.suppress(InvalidRecord):
            groups.make(group)
    groups.forget(group, topic, partition)
    place.removals[_path(group, topic)] += partition is None
