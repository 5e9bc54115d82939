"""The topics of a data directory, with their partitions in it.

A partition that could not be opened is a fault of its topic and does not concern the others.

Not here: finding and loading partitions (`open`, `partition`), making and deleting them
(`data_directory`, `deletion`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from storage import paths
from storage.errors import (
    CorruptCheckpoint,
    FaultyPartition,
    StorageError,
    TopicExists,
    UnknownTopicOrPartition,
)
from storage.log.log import Log
from storage.settings.settings import Settings
from storage.state import checkpoint_file
from storage.state.tiered import remote_line

_log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]
"""A partition: its topic and number."""


def fault_line(item: TopicPartition, error: Exception) -> str:
    """Return a line that says why a partition cannot be shown."""
    name, number = item
    return f"{name}-{number}: cannot open: {str(error) or type(error).__name__}"


@dataclass(slots=True, weakref_slot=True)
class Topic:
    """A topic and its partitions here, by number.

    `faults`: why the other partitions could not be opened. `extended_ns`: the creation time of the
    newest partition, in ns since 1970; 0 if none could be opened. `times_undeleted`: as far as
    nodes of a mount refer to it.
    """

    name: str
    id: str
    partitions: dict[int, Log] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    extended_ns: int = 0
    times_undeleted: int = 0

    def add(self, log: Log) -> None:
        """Add a partition, or replace its log."""
        self.partitions[log.partition] = log
        self.extended_ns = max(self.extended_ns, log.created_ns)

    @property
    def created_ns(self) -> int:
        """The creation time of its first partition; 0 if none could be opened."""
        return min((log.created_ns for log in list(self.partitions.values())), default=0)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all its partitions, ascending."""
        return sorted({*self.partitions, *self.faults})

    @property
    def remote_line(self) -> str | None:
        """A line for users about offsets that are only in remote storage, if there are any."""
        logs = sorted(self.partitions.copy().items())
        ranges = [
            (number, start, log.segments[0].base_offset)
            for number, log in logs
            if (start := log.remote_log_start) is not None
        ]
        return remote_line(self.name, ranges)

    def check(self, partition: int) -> None:
        """Check that a partition is open. Errors: FaultyPartition."""
        if partition in self.faults:
            raise FaultyPartition(self.faults[partition])


class Topics(dict[str, Topic]):
    """The topics by name. `changes`: counts changes of partitions or settings of any topic.

    `deleted_ms`: when topics were last deleted, in ms since 1970, by name.
    """

    def __init__(self, path: str, settings: Settings, faults: list[str]) -> None:
        """`faults` gets a line for each partition that cannot be opened."""
        super().__init__()
        self._path = path
        self._settings = settings
        self._faults = faults
        self.changes = 0
        self.deleted_ms: dict[str, int] = {}
        # Deleted topics that are still referred to, by name and id.
        self._deleted = WeakValueDictionary[tuple[str, str], Topic]()
        # The creation time of the newest topic, and the `changes` when it was found.
        self._created: tuple[int, int] = (-1, 0)
        # The logs of compacted topics, and the `changes` when they were listed.
        self._compacted: tuple[int, tuple[Log, ...]] = (-1, ())

    # -- partitions ----------------------------------------------------------------------------

    def logs(self) -> Iterator[Log]:
        """Yield every partition, by topic and number."""
        for topic in list(self.values()):
            yield from list(topic.partitions.values())

    @property
    def compacted(self) -> tuple[Log, ...]:
        """Every partition of a compacted topic. Thread-safe."""
        changes, logs = self._compacted
        if changes != self.changes:
            changes = self.changes
            logs = tuple(log for log in self.logs() if log.config.is_compacted)
            self._compacted = changes, logs
        return logs

    @property
    def created_ns(self) -> int:
        """The creation time of the newest topic, in ns since 1970."""
        changes, created_ns = self._created
        if changes != self.changes:
            changes = self.changes
            created_ns = max((topic.created_ns for topic in list(self.values())), default=0)
            self._created = changes, created_ns
        return created_ns

    def topic(self, name: str) -> Topic:
        """Return a topic. Errors: UnknownTopicOrPartition."""
        topic = self.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}", path=self._path)
        return topic

    def log(self, topic: str, partition: int) -> Log:
        """Return a partition's log. Errors: UnknownTopicOrPartition, FaultyPartition if not
        open.
        """
        self.topic(topic).check(partition)
        log = self.topic(topic).partitions.get(partition)
        if log is None:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has no partition {partition}", path=self._path
            )
        return log

    def id_of(self, name: str) -> str:
        """Return the id that the topic's partitions share; empty if it has none."""
        topic = self.get(name)
        return topic.id if topic is not None and topic.partitions else ""

    def add(self, log: Log) -> None:
        """Add a loaded partition to its topic. Errors: CorruptCheckpoint if its topic id differs
        from that of the topic's other partitions.
        """
        known = self.id_of(log.topic)
        if known and log.topic_id != known:
            raise CorruptCheckpoint(
                f"topic id {log.topic_id} differs from {known} of the topic's other partitions",
                path=os.path.join(log.directory, paths.PARTITION_METADATA),
            )
        topic = self.get(log.topic) or self.appear(log.topic, log.topic_id)
        topic.id = log.topic_id
        topic.faults.pop(log.partition, None)
        topic.add(log)
        self.changes += 1

    def __delitem__(self, name: str) -> None:
        self._deleted[name, self[name].id] = self[name]
        super().__delitem__(name)

    def appear(self, name: str, topic_id: str) -> Topic:
        """Add a topic; for an undeleted one, the object that nodes of a mount still refer to."""
        topic = self._deleted.pop((name, topic_id), None)
        if topic is None:
            topic = Topic(name, topic_id)
        else:
            topic.times_undeleted += 1
        self[name] = topic
        return topic

    def check_collisions(self, name: str) -> None:
        """Check a new name. Errors: TopicExists if Kafka's metrics would confuse it with another
        topic (`Topic.java`).
        """
        if "." not in name and "_" not in name:
            return
        collision = name.replace(".", "_")
        for other in self:
            if other.replace(".", "_") == collision:
                raise TopicExists(
                    f"topic {name!r} collides with {other!r}: Kafka's metric names do not "
                    "distinguish '.' and '_'",
                    path=self._path,
                )

    # -- faults --------------------------------------------------------------------------------

    def set_fault(self, item: TopicPartition, error: Exception) -> None:
        """Record why a partition cannot be shown; each reason is logged once."""
        name, number = item
        if not isinstance(error, (StorageError, OSError)):
            _log.error("%s-%d: unexpected error", name, number, exc_info=error)
        reason = fault_line(item, error)
        topic = self.get(name)
        if topic is None:
            stand_in = checkpoint_file.stand_in_topic_id(self._path, name)
            topic = self.setdefault(name, Topic(name, stand_in))
        if topic.faults.get(number) != reason:
            topic.faults[number] = reason
            if name in paths.INTERNAL_TOPICS and isinstance(error, PermissionError):
                reason = f"{name}: only its owner can read it; its contents are not shown"
            if reason not in self._faults:
                self._faults.append(reason)

    def forget_faults(self, there: Container[TopicPartition]) -> None:
        """Forget the faults of partitions that are not `there`."""
        for item in self.faulty:
            if item not in there:
                topic = self[item[0]]
                del topic.faults[item[1]]
                if not topic.numbers:
                    del self[topic.name]
                    self._settings.forget(topic.name)

    @property
    def faulty(self) -> list[TopicPartition]:
        """The partitions that exist and could not be opened."""
        return [(topic.name, number) for topic in list(self.values()) for number in topic.faults]

    def check_open(self, wants: Callable[[str, int], bool]) -> None:
        """Check that all wanted partitions are open. Errors: FaultyPartition."""
        for topic, partition in self.faulty:
            if wants(topic, partition):
                self[topic].check(partition)
