"""Makes topics and partitions.

A partition exists if its directory has the partition's name. The directory of a topic's first
partition is made under a temporary name, which the next start removes. It is renamed after the
topic's settings and owner are written in it. If a topic or a partition cannot be completed, its
files are removed again.

Not here: the files of a new partition (`Loader.create_log`), deletion (`deletion`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from storage import paths
from storage.directory.checkpoints import Checkpoints
from storage.directory.deleted import Deleted, remove_directory
from storage.directory.lock import DirectoryLock
from storage.directory.partition import Loader
from storage.directory.partition_modes import PartitionModes
from storage.directory.topics import Topic, TopicPartition, Topics
from storage.errors import InvalidTopic, PolicyViolation, TopicExists
from storage.files import Files
from storage.log.log import Log
from storage.settings.setting_files import TopicFile, TopicOwner
from storage.settings.settings import Settings
from storage.state import checkpoint_file


class Manager(Protocol):
    """The part of `LogManager` that this module and `deletion` use."""

    path: str
    files: Files
    lock: DirectoryLock
    settings: Settings
    topics: Topics
    left_out: list[TopicPartition]
    ignored: list[TopicPartition]
    checkpoints: Checkpoints
    cleaner_offsets: dict[TopicPartition, int]
    clean: bool
    deleted: Deleted
    loader: Loader
    modes: PartitionModes
    clock_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]

    def check_writable(self) -> None: ...
    def check_may_write(self, topic: str) -> None: ...
    def check_may_create(self) -> None: ...
    def forget_unflushed(self, log: Log) -> None: ...
    def start_checkpoint(self, *, snapshots: bool = True) -> Callable[[], None]: ...


def create_topic(
    manager: Manager,
    name: str,
    partitions: int | None,
    owner: TopicOwner | None,
    settings: Mapping[str, str],
) -> Topic:
    """Create a topic (`LogManager.create_topic`), also with a reserved name."""
    manager.check_writable()
    assert not manager.left_out, "who makes topics has all of a directory open"
    manager.files.check_room()
    if name in manager.topics:
        raise TopicExists(f"topic {name!r} already exists", path=manager.path)
    manager.topics.check_collisions(name)
    manager.check_may_create()
    manager.settings.check_known()
    count = manager.settings.broker.num_partitions if partitions is None else partitions
    topic = Topic(name, checkpoint_file.new_topic_id())
    manager.settings.set_topic_id(name, topic.id)
    overrides = manager.settings.checked(name, settings) if settings else {}
    if name in manager.checkpoints.topics():
        # The lines of a deleted topic must not apply to the new one, which begins at offset 0.
        manager.start_checkpoint(snapshots=False)()
    try:
        begun = TopicFile(overrides, {} if owner is None else {None: owner})
        for partition in range(count):
            topic.add(_create_log(manager, topic, partition, begun))
        manager.files.sync_directory(manager.path)
    except OSError:
        for log in reversed(topic.partitions.values()):
            remove_directory(manager.files, log.directory)
        manager.settings.forget(name)
        raise
    manager.lock.note_change(manager.clock_ms())
    manager.topics[name] = topic
    manager.topics.changes += 1
    return topic


def create_offsets_topic(manager: Manager) -> None:
    """Create `__consumer_offsets` (`LogManager.create_offsets_topic`)."""
    broker = manager.settings.broker
    partitions = broker.offsets_topic_num_partitions
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(broker.offsets_topic_segment_bytes),
    }
    topic = manager.topics.get(paths.CONSUMER_OFFSETS)
    if topic is None:
        create_topic(manager, paths.CONSUMER_OFFSETS, partitions, None, settings)
        return
    begun = TopicFile(manager.settings.checked(topic.name, settings))
    for partition in sorted(set(range(partitions)) - set(topic.numbers)):
        topic.add(_create_log(manager, topic, partition, begun))
    manager.files.sync_directory(manager.path)
    manager.topics.changes += 1


def create_partition(
    manager: Manager, topic_name: str, partition: int, owner: TopicOwner | None
) -> Log:
    """Create a topic's next partition (`LogManager.create_partition`)."""
    manager.check_may_write(topic_name)
    manager.files.check_room()
    topic = manager.topics.topic(topic_name)
    topic.check(partition)
    if topic_name in paths.INTERNAL_TOPICS:
        reason = "only a cluster adds partitions to this topic"
        raise PolicyViolation(f"topic {topic_name!r}: {reason}")
    following = max(topic.numbers, default=-1) + 1
    if partition != following:
        raise InvalidTopic(
            f"the next partition of topic {topic_name!r} is {following}, not {partition}: "
            "partitions are created in order",
            path=manager.path,
        )
    manager.check_may_create()
    # Each change rewrites all lines of the topic's file, so thousands of equal partitions have
    # none.
    if owner is not None and owner != manager.settings.partition_owner(topic_name, partition):
        manager.settings.set_owner(topic_name, partition, *owner)
    log = _create_log(manager, topic, partition)
    try:
        log.load_history()
        manager.files.sync_directory(manager.path)
    except OSError:
        log.abandon()
        remove_directory(manager.files, log.directory)
        raise
    topic.add(log)
    manager.topics.changes += 1
    return log


def _create_log(
    manager: Manager, topic: Topic, partition: int, begun: TopicFile | None = None
) -> Log:
    """Make the directory of a topic's new partition, and its log.

    `begun`: the settings and the owners of a new topic.
    """
    directory = os.path.join(manager.path, paths.partition_directory(topic.name, partition))
    if partition == 0:
        _begin_topic(manager, topic.name, directory, begun or TopicFile())
    else:
        known = manager.settings.topic_file(topic.name)
        manager.modes.make_directory(directory, known, (topic.name, partition))
    try:
        if (topic.name, partition) in manager.ignored:
            # The ignored directory was removed: the checkpoints no longer repeat its lines.
            manager.ignored.remove((topic.name, partition))
            manager.start_checkpoint(snapshots=False)()
        return manager.loader.create_log(topic, partition, directory, manager.clock_ms())
    except OSError:
        remove_directory(manager.files, directory)
        raise


def _begin_topic(manager: Manager, name: str, directory: str, begun: TopicFile) -> None:
    """Make the directory of a new topic's partition 0, with the topic's file inside.

    Until the file is durable, the directory has a name that the next start removes.
    """
    files = manager.files
    if files.exists(directory):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), directory)
    unfinished = os.path.join(manager.path, paths.deleted_directory_name(name, 0))
    manager.modes.make_directory(unfinished, begun, (name, 0))
    try:
        manager.settings.begin(name, unfinished, begun)
        files.rename(unfinished, directory)
    except OSError:
        remove_directory(files, unfinished)
        raise
