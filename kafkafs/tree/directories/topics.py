"""Topics: the places of their directories, how names in them are found, made and removed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from kafkafs.tree.append.append_target import TopicTarget
from kafkafs.tree.append.lines_handle import LinesHandle
from kafkafs.tree.directories.about import AboutPlace
from kafkafs.tree.directories.directory import Page, Place, directory_of
from kafkafs.tree.directories.group_directories import GroupsPlace
from kafkafs.tree.files import meta, raw_file
from kafkafs.tree.files.follow_file import look_up_follow
from kafkafs.tree.files.start_file import StartNames
from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.files.view_file import MEASURE_S, ViewFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import ROOT_INODE, Caller, Node, inode_number, missing
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import OWN_NAMES
from kafkafs.views import View
from storage.errors import InvalidTopic
from storage.log.partitioner import Partitioner
from storage.manager import Topic
from storage.paths import ABOUT, INTERNAL_TOPICS, check_may_change, check_takes_records
from storage.waiting import before_waiting, may_wait

# -- places ----------------------------------------------------------------------------------------


class RootPlace(Place):
    """The mount point."""

    def __init__(self, about: AboutPlace, start_names: StartNames, groups: GroupsPlace) -> None:
        super().__init__(about.partitions, "", ROOT_INODE)
        self.about = about
        self.start_names = start_names
        self.groups = groups

    def number(self, name: str) -> int:
        return inode_number(name)


class TopicPlace(Place):
    """A topic. `view`: the view of the partitions in the directory."""

    name = ""
    """The path in the topic."""
    view: View

    def __init__(self, root: RootPlace, topic: Topic) -> None:
        # The kernel finds nothing in a directory that was removed, while somebody is in it.
        returned = (topic.times_undeleted,) if topic.times_undeleted else ()
        inode = inode_number(topic.name, topic.id, *returned)
        super().__init__(root.partitions, topic.name, inode)
        self.start_names = root.start_names
        self.topic = topic
        self.view = self.mount.views[0]

    def number(self, name: str) -> int:
        return inode_number(self.topic.name, self.topic.id, name)


class InTopic(TopicPlace):
    """A directory in a topic, or in a view's directory."""

    def __init__(self, above: TopicPlace, name: str) -> None:
        Place.__init__(self, above.partitions, f"{above.path}/{name}", above.number(name))
        self.start_names = above.start_names
        self.topic = above.topic
        self.view = self.mount.dot_views.get(name, above.view)
        self.name = f"{above.name}/{name}" if above.name else name

    def number(self, name: str) -> int:
        return super().number(f"{self.name}/{name}")


class ApartInTopic(InTopic):
    """A directory in a topic that shows no records. It counts apart in the names' numbers."""

    def number(self, name: str) -> int:
        return inode_number(self.topic.name, self.topic.id, self.name, name)


class PartitionPlace(Place):
    """One partition."""

    partition: Partition

    def __init__(self, above: TopicPlace, partition: Partition) -> None:
        number = str(partition.log.partition)
        super().__init__(above.partitions, f"{above.path}/{number}", above.number(number))
        self.partition = partition

    def number(self, name: str) -> int:
        log = self.partition.log
        return inode_number(log.topic, log.topic_id, log.partition, ".meta", name)


# -- names that are found --------------------------------------------------------------------------


def look_for_partitions(place: Place) -> None:
    place.partitions.look_for_partitions()


def look_at_once_for_partitions(place: Place) -> None:
    """Look for new partitions, unless a worker thread asks."""
    if not may_wait():
        look_for_partitions(place)


def partition_names(place: TopicPlace) -> Sequence[str]:
    """The partitions' names, by number."""
    place.partitions.look_for_partitions()
    return [str(number) for number in place.topic.numbers]


def shown_topics(place: Place) -> Sequence[str]:
    """The topics that a listing has."""
    mount = place.mount
    hidden = {*OWN_NAMES, *(() if mount.options.show_internal else INTERNAL_TOPICS)}
    return [name for name in sorted(mount.manager.topics) if name not in hidden]


def topic_names(place: Place) -> Sequence[str]:
    place.partitions.look_for_partitions()
    return shown_topics(place)


def view_file(place: TopicPlace, partition: Partition) -> ViewFile:
    """The current file of a partition in the view of a directory."""
    if not may_wait():
        partition.follow()
    text = partition.text(place.view)
    partition.nonce()
    nonce = text.nonce
    inode = ViewFile.number(partition, place.view, nonce)
    known = place.mount.inodes.find(inode) or ViewFile(inode, partition, text, nonce)
    assert isinstance(known, ViewFile)
    return known


def find_partition(place: TopicPlace, name: str) -> Node | None:
    """A partition in the view of a directory, or `N@…`."""
    partition = place.partitions.find(place.topic, name)
    if partition is not None:
        return view_file(place, partition)
    if "@" in name:
        return place.start_names.look_up(place.topic, place.inode, name, place.view)
    return None


def find_snapshot(place: TopicPlace, name: str) -> Node:
    return place.start_names.snapshot(place.topic, name, place.view)


def find_follow(place: TopicPlace, name: str) -> Node:
    """`.follow/N` or `.ship/N`; `N@…` there as in the topic."""
    if "@" in name:
        return place.start_names.look_up(place.topic, place.inode, name, place.view)
    return look_up_follow(place.partitions, place.topic, name, place.name)


def find_directory(page: Page[PartitionPlace]) -> Callable[[TopicPlace, str], Node | None]:
    """Finds the directory of a partition."""

    def find(place: TopicPlace, name: str) -> Node | None:
        partition = place.partitions.find(place.topic, name)
        return None if partition is None else directory_of(page, PartitionPlace(place, partition))

    return find


def find_raw(place: PartitionPlace, name: str) -> Node | None:
    if not raw_file.is_shown(name):
        return None
    return raw_file.RawFile.named(place.partition, name)


def raw_names(place: PartitionPlace) -> Sequence[str]:
    before_waiting()
    return raw_file.names(place.partition.log)


def follow_partition(place: PartitionPlace) -> None:
    place.partition.follow()
    # `segments` needs this view, which only the loop thread makes.
    place.partition.text(place.mount.views[0])


def segments_text(place: PartitionPlace) -> str:
    before_waiting()
    partition = place.partition
    values = partition.text(place.mount.views[0])
    partition.nonce()
    values.measure(time.monotonic() + MEASURE_S)
    return meta.segments(partition.log, values)


def append_file(place: TopicPlace, name: str) -> Node:
    """`.append`, `.kv/append`, `.jsonl/append`: lines for a topic, each for one of its partitions.

    Write-only; the mode is what the topic and all of its partitions let through. A line is a record
    as in the view of the file's directory; `log.partitioner` chooses its partition. Each file has
    one partitioner for all its writers.
    """
    view, topic, mount = place.view, place.topic, place.mount
    inode, path = place.number(name), f"{place.path}/{name}"
    assert view.is_text
    partitioner = Partitioner(mount.manager.settings.partition_count(topic.name))

    def take(flags: int, reader: Handle | None) -> Handle:
        mount.manager.tiered.check_may_write(topic.name)
        check_takes_records(topic.name)
        return LinesHandle(
            TopicTarget(place.partitions, topic, path, partitioner), view, flags, reader
        )

    return mount.inodes.find(inode) or TextFile(
        inode,
        None,
        partial(mount.permissions.writers, topic),
        lambda: topic.extended_ns,
        take=take,
        path=path,
    )


# -- making and removing ---------------------------------------------------------------------------


def create_topic(place: Place, name: str, mode: int, caller: Caller) -> None:
    """Create a topic with num.partitions partitions."""
    mount = place.mount
    if name in OWN_NAMES:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    mount.manager.create_topic(name, owner=mount.permissions.of_new_topic(mode, caller))


def delete_topic(place: Place, name: str, caller: Caller) -> None:
    """Delete a topic and all its records. EACCES where the caller could not empty it."""
    mount, manager = place.mount, place.mount.manager
    if name in OWN_NAMES:
        raise OSError(errno.EPERM, "it is part of the file system and cannot be removed")
    if name not in manager.topics:
        raise missing(name)
    if not manager.settings.broker.delete_topic_enable:
        raise OSError(errno.EPERM, "deleting topics is disabled (delete.topic.enable is false)")
    manager.check_may_write(name)
    check_may_change(name)
    if not mount.permissions.may_empty(name, caller):
        why = f"user {caller.uid} has no permission to remove its partitions"
        raise PermissionError(errno.EACCES, why)
    topic = manager.topics[name]
    mount.jobs.drop_topic(topic)
    delay_ms = manager.delete_topic(name)
    mount.abort_outcomes.pop((topic.name, topic.id), None)
    mount.events.of_request(
        f"{name}: deleted. To restore it within {delay_ms / 1000:g} s: "
        f"echo undelete {name} >> {ABOUT}/topics"
    )


def create_partition(
    place: TopicPlace, name: str, mode: int, flags: int, caller: Caller
) -> tuple[Node, Handle]:
    """Create the next partition. EINVAL where `name` is not its number."""
    manager, topic = place.mount.manager, place.topic
    if not name.isascii() or not name.isdecimal() or str(int(name)) != name:
        raise InvalidTopic(f"the name of a partition is a number, not {name!r}")
    owner = place.mount.permissions.of_new_partition(topic.name, mode, caller)
    manager.create_partition(topic.name, int(name), owner=owner)
    partition = place.partitions.of(topic.partitions[int(name)])
    node = view_file(place, partition)
    # A keyed append may have come before.
    partition.owner_changed()
    if flags & os.O_ACCMODE == os.O_RDONLY:
        return node, node.open(flags & ~os.O_TRUNC)
    return node, node.open_for_writing(flags)


def refuse_unlink(place: TopicPlace, name: str) -> None:
    topic = place.topic
    delay_ms = place.mount.manager.settings.log_config(topic.name).file_delete_delay_ms
    why = (
        "a partition cannot be removed; to delete the topic, and its files "
        f"{delay_ms / 1000:g} s later: rmdir {topic.name}"
    )
    partition = place.partitions.find(topic, name)
    if partition is not None and partition.log.is_new:
        why += "; to write an empty partition: >, cp, tar -x --overwrite or rsync --inplace"
    raise OSError(errno.EPERM, why)
