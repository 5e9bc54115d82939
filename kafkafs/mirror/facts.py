"""The facts of a run of a mirror: the state of each copy of a partition, and facts for users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kafka_client.cluster import TopicPartition
from kafkafs.mirror.cuts import Markers
from storage import paths
from storage.log.log import Log
from storage.state.gaps_file import Gap
from storage.state.mirror_file import UNKNOWN, MirrorFile
from storage.state.point_file import Point

_WORDS: Final = {
    "deleted": "offsets {} to {} were deleted in the cluster before they were copied",
    "missing": "the cluster has no records at the offsets {} to {}",
    "damaged": "the records at the offsets {} to {} are damaged in the cluster, and were skipped",
    "tombstones": "records at the offsets {} to {} may have keys that were deleted in the cluster",
    "diverged": "the cluster has lost its records at the offsets {} to {} (an unclean election); "
    "ours were moved to files *.diverged",
    "aborted": "the end of a transaction at the offsets {} to {} is not known; it was aborted here",
}


@dataclass(eq=False, slots=True)
class Copy:
    """The copy of a partition. `markers`: of transactions, since the session began.

    `skip_to`: the source has no records between our log end and this offset. `is_at_end`: whether
    it has all records of the source; `at_end_ms`: when an answer last showed that, by the wall
    clock. `attempts`: how often the same kind of error came at the same position, `failure`.
    `reason`: why it waits. `is_answered`: whether the leader has answered about the position.
    `target`: the end of the source when the session began. `open_transactions`: those at our log
    end `paused_at`, until the source has given the records after it. `searched_to`: no offset below
    is free for a marker. `needed_bytes`: free space without which no marker can be written.
    """

    partition: TopicPartition
    log: Log
    markers: Markers
    start: int
    at_end_ms: int
    source_start: int = UNKNOWN
    source_end: int = UNKNOWN
    skip_to: int = 0
    is_at_end: bool = False
    attempts: int = 0
    failure: tuple[type[Exception], int] | None = None
    reason: str = ""
    is_answered: bool = False
    target: int = 0
    open_transactions: dict[int, int] = field(default_factory=dict)
    paused_at: int = 0
    searched_to: int = 0
    needed_bytes: int = 0
    diverged: tuple[int, int] | None = None

    @property
    def position(self) -> int:
        return max(self.log.log_end_offset, self.skip_to)

    @property
    def is_skipping(self) -> bool:
        return self.position > self.log.log_end_offset


@dataclass
class Facts:
    """The facts of a run. `report` gets a line for each gap, for each fault, and for each partition
    that begins or ends to wait.

    `status`: the content of `kafkafs.mirror`, from the start of the run on. `new_ids`: the ids of
    topics whose copies began when the cluster had none. `copies`: of the session. `copies_groups`:
    whether the topic of committed offsets is copied; None: the cluster does not have it yet.
    `gaps`: the number of gaps that this run has named. `copied_bytes`, `copied_offsets`: of this
    run, without gaps between batches. These and `left` do not count the topic of committed offsets.
    `point`: the last restore point, with its name. `faults`: a line for each topic and partition
    that cannot be copied, if the last restore point is not valid, and if the cluster cannot be
    reached.
    """

    report: Callable[[str], None]
    status: MirrorFile = field(init=False)
    new_ids: dict[str, str] = field(default_factory=dict)
    copies: dict[TopicPartition, Copy] = field(default_factory=dict)
    copies_groups: bool | None = None
    gaps: int = 0
    copied_bytes: int = 0
    copied_offsets: int = 0
    point: tuple[str, Point] | None = None
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of all topics that are copied."""
        offsets = (paths.CONSUMER_OFFSETS,) if self.copies_groups else ()
        return (*self.status.topics, *offsets)

    @property
    def waiting(self) -> dict[tuple[str, int], str]:
        """Why partitions are not copied."""
        return {each: copy.reason for each, copy in self.copies.items() if copy.reason}

    @property
    def left(self) -> int:
        """The number of offsets that the cluster has and the copies have not."""
        return sum(
            max(copy.source_end - copy.position, 0)
            for each, copy in self.copies.items()
            if each.topic != paths.CONSUMER_OFFSETS
        )

    @property
    def is_complete(self) -> bool:
        """Whether each copy has all records of the cluster, or waits."""
        return all(copy.is_at_end or copy.reason for copy in self.copies.values())

    def add_gap(self, copy: Copy, gap: Gap) -> None:
        self.gaps += 1
        self.report(f"{copy.partition}: {_WORDS[gap.kind].format(gap.first, gap.last)}")

    def add_fault(self, of: str, line: str) -> None:
        if self.faults.get(of) != line:
            self.faults[of] = line
            self.report(line)

    def end_fault(self, of: str) -> None:
        self.faults.pop(of, None)
