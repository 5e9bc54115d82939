"""The checked options of the source; `options` makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kafkafs.spark.source.offsets import TopicPartition
from storage.log.read import Isolation

MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
PARTITION_BYTES = 128 * 1024 * 1024
_INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))


@dataclass(frozen=True)
class Subscription:
    """The wanted partitions of a data directory; exactly one field is set."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    partitions: frozenset[TopicPartition] | None = None

    def wants(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        if self.partitions is not None:
            return any(each.topic == topic for each in self.partitions)
        assert self.pattern is not None
        if topic in _INTERNAL_TOPICS:
            return False
        return re.fullmatch(self.pattern, topic) is not None

    def wants_partition(self, name: TopicPartition) -> bool:
        return self.wants(name.topic) if self.partitions is None else name in self.partitions


@dataclass(frozen=True)
class Limit:
    """Where to start or end: at `offset` (`EARLIEST`, `LATEST`) or the time `timestamp` (in ms) of
    all partitions, or at an offset or a time (in ms) for each.
    """

    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    error_without_match: bool = True


@dataclass(frozen=True)
class SourceOptions:
    """The checked options; `remarks` are warnings about options without effect."""

    path: str
    subscription: Subscription
    starting: Limit
    ending: Limit
    isolation: Isolation = "read_committed"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records: int | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS
    partition_bytes: int = PARTITION_BYTES
    until_high_watermark: bool = False
    remarks: tuple[str, ...] = ()
