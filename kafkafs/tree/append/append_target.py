"""Targets of an `AppendHandle`: the protocol, and the target for one partition.

Everything here runs on the owner's thread. After a write the kernel takes its position plus its
length for the file's size; where that is wrong, the target has it drop the size.
"""

from __future__ import annotations

from typing import Protocol

from kafkafs.tree.context import MountContext
from kafkafs.tree.handles import FlushPlan
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partition_view import ViewGeneration
from storage.log.append import Appended
from storage.log.validator import Admitted
from storage.settings.config import LogConfig


class AppendTarget(Protocol):
    """See the module."""

    @property
    def mount(self) -> MountContext: ...

    @property
    def name(self) -> str:
        """Its name in the event log."""
        ...

    @property
    def config(self) -> LogConfig:
        """The present settings. LogClosed where the topic is deleted."""
        ...

    @property
    def flush_due(self) -> bool:
        """Whether flush.messages asks for a flush after what was appended last."""
        ...

    def append(self, batches: bytearray, now_ns: int) -> None:
        """Append batches that the view has made. Errors of `Appender.assign`; OSError."""
        ...

    def check(self, batches: bytearray, now_ns: int) -> None:
        """Raise what `append` would refuse; appends nothing."""
        ...

    def flush_plan(self) -> FlushPlan | None:
        """The plan for fsync; None where all of it is flushed."""
        ...

    def line_begun(self) -> None:
        """A handle holds an unfinished line, which may become a record at any time."""
        ...

    def line_ended(self) -> None:
        """The line has become a record, or was dropped."""
        ...

    def written(self, guess: int) -> None:
        """A write has ended; the kernel takes the file to be `guess` bytes long."""
        ...

    def released(self) -> None:
        """The handle is closed, and the kernel has the answers to all writes."""
        ...


class PartitionTarget:
    """One partition, through the file of one generation."""

    __slots__ = ("_generation", "inode", "mount", "partition")

    def __init__(self, partition: Partition, inode: int, generation: ViewGeneration) -> None:
        self.mount = partition.mount
        self.partition = partition
        self.inode = inode
        self._generation = generation

    @property
    def name(self) -> str:
        log = self.partition.log
        return f"{log.topic}/{log.partition}"

    @property
    def config(self) -> LogConfig:
        return self.partition.log.config

    @property
    def flush_due(self) -> bool:
        return self.partition.log.durability.flush_due

    def append(self, batches: bytearray, now_ns: int) -> None:
        partition = self.partition
        log = partition.log
        ready = log.appender.assign(batches, now_ns=now_ns)
        partition.writer = self
        try:
            log.appender.append_assigned(ready, now_ns=now_ns)
        finally:
            partition.writer = None

    def append_batches(
        self,
        batches: bytes,
        now_ns: int,
        trusted: dict[int, int],
        checked: list[Admitted] | None,
    ) -> list[Appended]:
        """`Appender.append_batches`"""
        partition = self.partition
        partition.writer = self
        try:
            return partition.log.appender.append_batches(
                batches,
                now_ns=now_ns,
                trusted=trusted,
                defer_flush=True,
                checked=checked,
            )
        finally:
            partition.writer = None

    def check(self, batches: bytearray, now_ns: int) -> None:
        self.partition.log.appender.assign(batches, now_ns=now_ns)

    def flush_plan(self) -> FlushPlan | None:
        return self.partition.flush_plan()

    def line_begun(self) -> None:
        self.partition.line_begun()

    def line_ended(self) -> None:
        self.partition.line_ended()

    def written(self, guess: int) -> None:
        generation = self._generation
        if generation.timeline.end - generation.origin != guess:
            # Else a stat before the kernel has taken the answer would make the guess a valid size.
            self.partition.grows()

    def released(self) -> None:
        self.partition.released(self)
