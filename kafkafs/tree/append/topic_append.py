"""`.append`, `.kv/append`, `.jsonl/append`: lines for a topic, each for one of its partitions.

Write-only, and always empty. A line is a record as in the view of the file's directory;
`log.partitioner` chooses its partition. Each file has one partitioner for all its writers.

Each partition's log checks its lines of a write before any is appended. A disk error then ends the
write: the records in earlier partitions stay, and a line in the event log names them.

Everything here runs on the owner's thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from kafkafs.tree.append.lines_handle import LinesHandle
from kafkafs.tree.handles import FlushPlan, Handle
from kafkafs.tree.inodes import Attributes, Change, Node, file_mode
from kafkafs.tree.partition.flush_plans import planned
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import Partitions
from kafkafs.views import TextView
from storage.directory.manager import Topic
from storage.errors import LogClosed, StorageError
from storage.log.append import Assigned
from storage.log.partitioner import Partitioner, Routed
from storage.settings.config import LogConfig


class TopicAppend(Node):
    """The file. `name` is its path in the topic, for the event log."""

    __slots__ = ("_name", "_partitioner", "_partitions", "_topic", "_view")

    def __init__(
        self, partitions: Partitions, topic: Topic, inode: int, name: str, view: TextView
    ) -> None:
        super().__init__(inode)
        self._partitions = partitions
        self._topic = topic
        self._name = name
        self._view = view
        self._partitioner = Partitioner()

    def attributes(self) -> Attributes:
        mount = self._partitions.mount
        mode, uid, gid = mount.permissions.topic(self._topic.name)
        return Attributes(
            self.inode, file_mode(mode & 0o222), 0, mount.started_ns, 1, uid, gid, 0, 0.0, 0.0
        )

    def set_attributes(self, change: Change) -> None:
        """`>` cuts it to nothing first, which it is already; its mode is the topic's."""
        if not change.is_content:
            super().set_attributes(change)

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_WRONLY:
            raise OSError(errno.EACCES, "this file can only be written")
        name = f"{self._topic.name}/{self._name}"
        target = TopicTarget(self._partitions, self._topic, name, self._partitioner)
        # A write without O_APPEND is appended, too.
        return LinesHandle(target, self._view, flags | os.O_APPEND, None)


class TopicTarget:
    """All partitions of a topic, later ones included."""

    __slots__ = (
        "_partitioner",
        "_partitions",
        "_topic",
        "_unfinished",
        "flush_due",
        "mount",
        "name",
    )

    def __init__(
        self, partitions: Partitions, topic: Topic, name: str, partitioner: Partitioner
    ) -> None:
        self.mount = partitions.mount
        self.name = name
        self.flush_due = False
        self._topic = topic
        self._partitioner = partitioner
        self._partitions = partitions
        # The partitions that count an unfinished line.
        self._unfinished: list[Partition] = []

    @property
    def config(self) -> LogConfig:
        # Other threads create and delete partitions: iterate over a copy only.
        partitions = self._topic.partitions
        log = partitions.get(0) or next(iter(partitions.copy().values()), None)
        if log is None:
            self._topic.check(next(iter(self._topic.numbers), 0))
            raise LogClosed("the topic has been deleted")
        return log.config

    def append(self, batches: bytearray, now_ns: int) -> None:
        routed, assigned = self._assign(batches, now_ns)
        grown: list[tuple[Partition, int]] = []
        try:
            for partition, ready in assigned:
                first = partition.log.appender.append_assigned(ready, now_ns=now_ns)
                grown.append((partition, first))
        except (StorageError, OSError):
            self._log_appended(grown)
            raise
        self._partitioner.sticky = routed.sticky
        self.flush_due = any(partition.log.durability.flush_due for partition, _ in grown)

    def check(self, batches: bytearray, now_ns: int) -> None:
        self._assign(batches, now_ns)

    def _assign(
        self, batches: bytearray, now_ns: int
    ) -> tuple[Routed, list[tuple[Partition, Assigned]]]:
        """The batches for each partition, checked. Errors of `Appender.assign`."""
        limit = self.config.max_message_bytes
        partitions = self._topic.partitions
        # The partitioner counts all partitions, those that cannot be opened included.
        there = self._topic.numbers if self._topic.faults else partitions
        routed = self._partitioner.route(batches, there, limit)
        assigned = []
        for number, part in routed.batches.items():
            log = partitions.get(number)
            if log is None:
                self._topic.check(number)
                raise LogClosed("the topic is being deleted")
            assigned.append((self._partitions.of(log), log.appender.assign(part, now_ns=now_ns)))
        return routed, assigned

    def _log_appended(self, grown: Sequence[tuple[Partition, int]]) -> None:
        """Log the offsets in each partition that a failed write has appended."""
        parts = [
            f"{partition.name} (offsets {first} to {partition.log.log_end_offset - 1})"
            for partition, first in grown
        ]
        if parts:
            self.mount.events(
                f"{self.name}: of a write that failed there are in {', '.join(parts)}"
            )

    def flush_plan(self) -> FlushPlan | None:
        """The plan for the whole topic: records may be anywhere, also through other handles."""
        logs = self._topic.partitions.copy().values()
        return planned(self._partitions.of(log) for log in logs)

    def line_begun(self) -> None:
        logs = self._topic.partitions.copy().values()
        self._unfinished = [self._partitions.of(log) for log in logs]
        for partition in self._unfinished:
            partition.line_begun()

    def line_ended(self) -> None:
        for partition in self._unfinished:
            partition.line_ended()
        self._unfinished = []

    def written(self, guess: int) -> None:
        """Nothing: the kernel keeps no size of this file."""

    def released(self) -> None:
        """Nothing: the kernel keeps no size of a partition for these writes."""
