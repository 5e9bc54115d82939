"""The targets of an `AppendHandle`: one partition, or all partitions of a topic.

After a write the kernel takes its position plus its length for the file's size; where that is
wrong, the target has it drop the size.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial

from kafkafs.tree.context import MountContext
from kafkafs.tree.handles import Opener
from kafkafs.tree.partition.generations import Generation
from kafkafs.tree.partition.partition import Partition, Writer
from kafkafs.tree.partition.partitions import Partitions, flush_plans
from kafkafs.tree.permissions import Writers
from storage.errors import LogClosed, StorageError
from storage.log.append import append_batches, append_with_offsets
from storage.log.append_queue import check_all_may_append
from storage.log.assign import Assigned
from storage.log.flush import FlushPlan
from storage.log.partitioner import Partitioner, Routed
from storage.log.validator import ValidatedBatch, without_conversion
from storage.manager import Topic
from storage.record.header import parse_header
from storage.settings.config import LogConfig


class OutOfOrderError(PermissionError):
    """A write without O_APPEND that does not follow the handle's last one; errno EPERM."""


class PartitionTarget(Writer):
    """One partition, through the file of one generation."""

    __slots__ = ("_generation", "mount", "partition")

    def __init__(self, partition: Partition, inode: int, generation: Generation) -> None:
        super().__init__(inode)
        self.mount: MountContext = partition.mount
        self.partition = partition
        self._generation = generation

    @property
    def name(self) -> str:
        """Its name in the event log."""
        log = self.partition.log
        return f"{log.topic}/{log.partition}"

    @property
    def config(self) -> LogConfig:
        """The present settings. LogClosed where the topic is deleted."""
        return self.partition.log.config

    @property
    def flush_due(self) -> bool:
        """Whether flush.messages asks for a flush after what was appended last."""
        return self.partition.log.durability.flush_due

    def check_may_append(self) -> None:
        """MustQueue where a write has to queue."""
        self.partition.log.append_queue.check_may_append()

    def append(self, batches: bytearray, now_ns: int) -> None:
        """Append batches that the view has made. Errors of `Log.assign`; OSError."""
        log = self.partition.log
        ready = log.assign(batches, now_ns=now_ns)
        self.partition.append_through(self, log.append_assigned, ready, now_ns)

    def append_batches(
        self,
        batches: bytes,
        now_ns: int,
        trusted: dict[int, int],
        checked: list[ValidatedBatch] | None,
    ) -> int:
        """Append finished batches, as `append_batches` does; return their size."""
        append = partial(
            append_batches, now_ns=now_ns, trusted=trusted, defer_flush=True, checked=checked
        )
        self.partition.append_through(self, append, self.partition.log, batches)
        return len(batches)

    def check(self, batches: bytearray, now_ns: int) -> None:
        """Raise what `append` would refuse; appends nothing."""
        self.partition.log.assign(batches, now_ns=now_ns)

    def flush_plans(self) -> Sequence[FlushPlan]:
        """The flushes that fsync has to run."""
        return self.partition.flush_plans()

    def line_begun(self) -> None:
        """A handle holds an unfinished line, which may become a record at any time."""
        self.partition.line_begun()

    def line_ended(self) -> None:
        """The line has become a record, or was dropped."""
        self.partition.line_ended()

    def written(self, guess: int) -> None:
        """A write has ended; the kernel takes the file to be `guess` bytes long."""
        generation = self._generation
        if generation.size != guess:
            # Else a stat before the kernel has taken the answer would make the guess a valid size.
            self.partition.drop_sizes()

    def released(self) -> None:
        """The handle is closed, and the kernel has the answers to all writes."""
        self.partition.released(self)


class NewPartitionTarget(PartitionTarget):
    """A partition that never held a record, written in order from position 0 on.

    One handle may do so until it is closed: the first that writes. Batches keep their offsets.
    """

    __slots__ = ("_config", "_end", "_kept")

    def __init__(self, partition: Partition, inode: int, generation: Generation) -> None:
        super().__init__(partition, inode, generation)
        # The log end after the bytes that are written.
        self._end = 0
        self._config = self.partition.log.config
        self._kept = without_conversion(self._config)

    @property
    def config(self) -> LogConfig:
        """The present settings, but those by which batches would be stored otherwise."""
        config = super().config
        if config is not self._config:
            self._config, self._kept = config, without_conversion(config)
        return self._kept

    def check_order(self, position: int) -> None:
        """EPERM for a write that is not the next one of the handle that may write."""
        partition = self.partition
        if not partition.is_first_writer(self):
            reason = "the partition has records: write with O_APPEND (>>)"
        elif partition.log.log_end_offset != self._end:
            reason = "the partition was appended to meanwhile: write with O_APPEND (>>)"
        elif position != self.position:
            reason = (
                f"a new partition must be written sequentially: the next byte is {self.position}, "
                f"not {position} (for files with holes: cp --sparse=never)"
            )
            raise OutOfOrderError(errno.EPERM, reason)
        else:
            return
        raise OSError(errno.EPERM, reason)

    def append(self, batches: bytearray, now_ns: int) -> None:
        super().append(batches, now_ns)
        self._end = self.partition.log.log_end_offset

    def append_batches(
        self,
        batches: bytes,
        now_ns: int,
        trusted: dict[int, int],
        checked: list[ValidatedBatch] | None,
    ) -> int:
        """Append finished batches, as `append_with_offsets` does. Return the size of those that are
        appended: all, or those that fit into the segments before an error.
        """
        log = self.partition.log
        append = partial(append_with_offsets, now_ns=now_ns, checked=checked)
        try:
            self.partition.append_through(self, append, log, batches)
        except (StorageError, OSError):
            if log.log_end_offset > self._end and (
                appended := _size_below(batches, log.log_end_offset)
            ):
                return appended
            raise
        finally:
            self._end = log.log_end_offset
        return len(batches)

    def written(self, guess: int) -> None:
        self.position = guess
        super().written(guess)


def _size_below(batches: bytes, end: int) -> int:
    """Return the size of the first batches, whose offsets are below `end`."""
    at = 0
    while at < len(batches) and (header := parse_header(batches, at)).last_offset < end:
        at += header.size
    return at


class TopicTarget:
    """All partitions of a topic, later ones included.

    Each partition's log checks its lines of a write before any is appended. A disk error then ends
    the write: the records in earlier partitions stay, and a line in the event log names them.
    """

    __slots__ = (
        "_partitioner",
        "_partitions",
        "_topic",
        "_unfinished",
        "_writers",
        "flush_due",
        "mount",
        "name",
        "opener",
        "position",
    )

    def __init__(
        self, partitions: Partitions, topic: Topic, name: str, partitioner: Partitioner
    ) -> None:
        self.mount = partitions.mount
        self.name = name
        self.position = 0
        """How many bytes the handle has written."""
        self.flush_due = False
        self._topic = topic
        self._partitioner = partitioner
        self._partitions = partitions
        self._writers = Writers(partitions.mount.permissions, topic)
        self.opener: Opener | None = None
        """Set after the open, if that was a request of the kernel."""
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

    def check_order(self, position: int) -> None:
        """EPERM for a write without O_APPEND that does not follow the last one."""
        if position != self.position:
            reason = (
                f"without O_APPEND it must be written sequentially: the next byte is "
                f"{self.position}, not {position}. To append: >>"
            )
            raise OutOfOrderError(errno.EPERM, reason)

    def check_may_append(self) -> None:
        """Nothing: `append` knows to which partitions the lines go."""

    def append(self, batches: bytearray, now_ns: int) -> None:
        routed, assigned = self._assign(batches, now_ns)
        check_all_may_append(partition.log.append_queue for partition, _ in assigned)
        # Those first that are not in turn: while a slow one waits for its disk, others may be
        # appended to, and the offsets assigned here would be taken.
        assigned.sort(key=lambda each: each[0].log.append_queue.in_use)
        grown: list[tuple[Partition, int]] = []
        try:
            for partition, ready in assigned:
                first = partition.log.append_assigned(ready, now_ns)
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
        """The batches for each partition, checked. EACCES; errors of `Log.assign`."""
        limit = self.config.max_message_bytes
        if self.opener is not None:
            self._writers.check(self.opener)
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
            assigned.append((self._partitions.of(log), log.assign(part, now_ns=now_ns)))
        return routed, assigned

    def _log_appended(self, grown: Sequence[tuple[Partition, int]]) -> None:
        """Log the offsets in each partition that a failed write has appended."""
        parts = [
            f"{partition.name} (offsets {first} to {partition.log.log_end_offset - 1})"
            for partition, first in grown
        ]
        if parts:
            self.mount.events(
                f"{self.name}: a write failed after it appended to {', '.join(parts)}"
            )

    def flush_plans(self) -> Sequence[FlushPlan]:
        """Those of the whole topic: records may be anywhere, also through other handles."""
        logs = self._topic.partitions.copy().values()
        return flush_plans(self._partitions.of(log) for log in logs)

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
        """Note the position of the next write. The kernel keeps no size of this file."""
        self.position = guess

    def released(self) -> None:
        """Nothing: the kernel keeps no size of a partition for these writes."""


AppendTarget = PartitionTarget | TopicTarget
