"""The copy of one partition, while the mirror runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_client.cluster import TopicPartition
from kafkafs.mirror.cuts import Markers
from storage.log.log import Log
from storage.state.mirror_file import UNKNOWN


@dataclass(eq=False, slots=True)
class Copy:
    """The copy of a partition.

    `skip_to`: the source has no records between our log end and this offset. `is_at_end`: whether
    it has all records of the source; `at_end_ms`: when an answer last showed that, by the wall
    clock. `attempts`: how often the same kind of error came at the same position, `failure`.
    `reason`: why it waits. `is_answered`: whether the leader has answered about the position.
    `target`: the end of the source when the session began. `open_transactions`: those at our log
    end `paused_at`, until the source has given the records after it. `searched_to`: no offset below
    is free for a marker. `needed_bytes`: free space without which no marker can be written.
    `markers`: of transactions, since the session began.
    """

    partition: TopicPartition
    log: Log
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
    markers: Markers = field(init=False)

    def __post_init__(self) -> None:
        self.markers = Markers(self.log)

    @property
    def position(self) -> int:
        return max(self.log.log_end_offset, self.skip_to)

    @property
    def is_skipping(self) -> bool:
        return self.position > self.log.log_end_offset
