"""The committed offsets of a group in a topic: `.groups/G/T/N`; `.groups/G/T/.all` takes one offset
for all partitions.

A line commits inside the `write()` that carries its newline, as in a control file; of several lines
the last one counts, and a wrong one is EINVAL, which changes nothing. Only the loop thread commits.
A worker thread first does the work that waits (a long read of `__consumer_offsets`, a search for a
time), in the turn of the log that is appended to.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafkafs.tree.context import MountContext
from kafkafs.tree.files.control_file import CommandEffects, ControlHandle, TextCommands
from kafkafs.tree.files.group_names import file_name
from kafkafs.tree.files.start_names import Offset
from kafkafs.tree.groups import group_facts
from kafkafs.tree.groups.claims import Claims
from kafkafs.tree.groups.positions import Wanted, offset_of, parse
from kafkafs.tree.handles import Handle
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import Partitions
from storage import paths
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.groups.offset_records import Committed, check_metadata, partition_for
from storage.log.append_queue import AppendQueue, MustQueue
from storage.log.log import Log
from storage.manager import Topic
from storage.modes import Ownership
from storage.waiting import at_once, may_wait

T = TypeVar("T")

ALL = ".all"
LAG = ".lag"


class GroupTopic:
    """One group's positions in one topic. `topic`: None where that is not here."""

    def __init__(
        self,
        partitions: Partitions,
        claims: Claims,
        group: str,
        name: str,
        topic: Topic | None,
    ) -> None:
        self.partitions = partitions
        self.claims = claims
        self.mount: MountContext = partitions.mount
        self.group = group
        self.name = name
        self.topic = topic
        self.path = f"{paths.GROUPS}/{file_name(group)}/{name}"

    @property
    def numbers(self) -> list[int]:
        """The topic's partitions."""
        return [] if self.topic is None else list(self.topic.numbers)

    def committed(self) -> dict[int, Committed]:
        """The positions by partition. BlockingIOError, StorageError, OSError."""
        group = self.partitions.group(self.group)
        found = {} if group is None else group.committed
        return {number: each for (topic, number), each in found.items() if topic == self.name}

    def _log(self, number: int) -> Log | None:
        return None if self.topic is None else self.topic.partitions.get(number)

    def text(self, number: int) -> str:
        """The text of `N`."""
        log = self._log(number)
        if log is not None and not may_wait():
            self.partitions.of(log).follow()
        return group_facts.position_text(log, self.committed().get(number))

    def access(self, numbers: Sequence[int]) -> Ownership:
        """The ownership of a file that commits in these partitions."""
        permissions = self.mount.permissions
        if self.topic is not None:
            return permissions.positions(self.group, self.name, numbers)
        mode, uid, gid = permissions.group(self.group)
        return mode & 0o444, uid, gid

    def mtime_ns(self, number: int) -> int:
        """The time of the last commit or append, which change what is shown."""
        log = self._log(number)
        appended_ns = 0 if log is None else self.partitions.of(log).mtime_ns
        with contextlib.suppress(StorageError, OSError):
            committed = self.committed().get(number)
            if committed is not None:
                return max(committed.time_ms * 1_000_000, appended_ns)
        return appended_ns

    # -- commits -------------------------------------------------------------------------------

    def commit(self, numbers: Sequence[int], wanted: Wanted) -> CommandEffects:
        """Commit in these partitions. On the owner's thread. MustQueue: nothing has changed."""
        mount = self.mount
        if mount.stopping:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        partitions = {number: self.partition(number) for number in numbers}
        if not partitions:
            raise UnknownTopicOrPartition(f"topic {self.name} has no partitions here")
        log = offsets_log(mount, self.group) or next(iter(partitions.values())).log

        def positions() -> dict[int, Committed]:
            known = self.committed()
            return {
                number: Committed(
                    offset_of(wanted, partition, position_of(known.get(number))),
                    metadata=wanted.metadata,
                )
                for number, partition in partitions.items()
            }

        found = waited_for(log.append_queue, positions)
        log.append_queue.check_may_append()
        mount.manager.groups.commit(self.group, self.name, found)
        grown = offsets_log(mount, self.group)
        return CommandEffects(grown=[] if grown is None else [self.partitions.of(grown)])

    def partition(self, number: int) -> Partition:
        """UnknownTopicOrPartition, FaultyPartition."""
        topic = self.topic
        if topic is None or self.mount.manager.topics.get(self.name) is not topic:
            raise UnknownTopicOrPartition(f"topic {self.name} was deleted or replaced")
        topic.check(number)
        return self.partitions.of(topic.partitions[number])


class CommitCommands(TextCommands):
    """The lines of an open file that commit in these partitions."""

    def __init__(self, of: GroupTopic, path: str, numbers: Sequence[int]) -> None:
        super().__init__(of.mount, path)
        self._of = of
        self._numbers = numbers

    def open(self, flags: int, reader: Handle | None) -> ControlHandle[str]:
        check_may_commit(self.mount)
        return super().open(flags, reader)

    def check_rest(self, line: bytes) -> None:
        wanted = self._wanted(self.decode([line]))
        check_metadata(wanted.metadata)
        if isinstance(wanted.where, Offset):
            for number in self._numbers:
                offset_of(wanted, self._of.partition(number), None)

    def carry_out(self, lines: Sequence[str]) -> CommandEffects:
        """Commit the offset of the last line, unless one of the partitions is claimed."""
        return self._of.commit(self._numbers, self._wanted(lines))

    def _wanted(self, lines: Sequence[str]) -> Wanted:
        """Parse lines, and return the last one. EINVAL; EBUSY if a partition is claimed."""
        now_ms = self.mount.clock_ns() // 1_000_000
        wanted = [parse(line, now_ms) for line in lines][-1]
        for number in self._numbers:
            self._of.claims.check_free(self._of.group, self._of.name, number)
        return wanted


def check_may_commit(mount: MountContext) -> None:
    """EROFS"""
    if mount.manager.read_only or mount.options.read_only:
        raise OSError(errno.EROFS, "offsets cannot be committed through a read-only mount")


def position_of(committed: Committed | None) -> int | None:
    return None if committed is None else committed.position


def offsets_log(mount: MountContext, group: str) -> Log | None:
    """The partition of `__consumer_offsets` that has a group, where it is here."""
    topic = mount.manager.topics.get(paths.CONSUMER_OFFSETS)
    if topic is None or not topic.numbers:
        return None
    return topic.partitions.get(partition_for(group, len(topic.numbers)))


def waited_for(queue: AppendQueue, ask: Callable[[], T]) -> T:
    """Return the result of `ask`. If it has to wait, a worker thread calls it in the turn of a log:
    MustQueue, once, on the loop thread.
    """
    try:
        return at_once(ask)
    except BlockingIOError:
        if not queue.has_turn:
            raise MustQueue([queue]) from None
    return queue.off_log_thread(ask)
