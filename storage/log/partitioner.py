"""Chooses the partition of a record, as Kafka's own producer does.

A record with a key, also an empty one, goes by the key's hash (`KafkaProducer.partition`,
`BuiltInPartitioner.partitionForKey`: `toPositive(murmur2(key)) % partitions`). The count of
partitions is that of the topic (in a broker's directory: of its cluster, as far as known), so a new
partition gets some of the old ones' keys from then on.

A record without a key (null) goes to the partition of the previous one, until `STAY_BYTES` of such
records are there, then to another partition, chosen at random (KIP-480, KIP-794).

Pure except for its memory of the partition of records without a key.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from storage.errors import UnknownTopicOrPartition
from storage.record._route import route
from storage.record.header import Buffer

STAY_BYTES = 16384
"""The default `batch.size` of a producer."""


def next_sticky_partition(
    partitions: Collection[int],
    before: int,
    choose: Callable[[Sequence[int]], int] = random.choice,
) -> int:
    """Return the next partition for records without a key, after `before`."""
    others = list(partitions)
    if before in partitions and len(others) > 1:
        others.remove(before)
    return choose(others)


class Sticky(NamedTuple):
    """The partition of records without a key, and the remaining bytes for it."""

    partition: int = -1
    left: int = 0


class Routed(NamedTuple):
    """Record batches by partition, and the partitioner's `sticky` once they are appended."""

    batches: dict[int, bytearray]
    sticky: Sticky


class Partitioner:
    """Chooses the partitions of one topic. `choose` picks one of several numbers.

    `least`: the number of the topic's partitions in its cluster, if it is known. Otherwise the last
    one that is here counts as the topic's last.
    """

    def __init__(
        self, least: int = 0, choose: Callable[[Sequence[int]], int] = random.choice
    ) -> None:
        self._choose = choose
        self._least = least
        self.sticky = Sticky()
        # The number of partitions at the last call, and the count for keys.
        self._known = 0
        self._count = 0

    def route(self, batches: Buffer, partitions: Collection[int], max_batch_bytes: int) -> Routed:
        """Split batches that were made here over `partitions`.

        Each partition's batches are within `max_batch_bytes` and keep the order. Nothing is
        remembered: the caller sets `sticky` to the answer's when the records are in the logs.
        Errors: UnknownTopicOrPartition if `partitions` is empty, or lacks the one of a key: a
        copied directory need not have all of a topic.
        """
        if not partitions:
            raise UnknownTopicOrPartition("the topic has no partitions")
        sticky = self.sticky
        if sticky.partition not in partitions:
            sticky = Sticky()

        def following(before: int) -> int:
            return next_sticky_partition(partitions, before, self._choose)

        if len(partitions) != self._known:
            # A topic gets partitions at its end and loses none.
            self._known = len(partitions)
            self._count = max(self._least, max(partitions) + 1)
        count = self._count
        parts, partition, left = route(
            batches, count, *sticky, following, STAY_BYTES, max_batch_bytes
        )
        if len(partitions) < count:
            for number in parts:
                if number not in partitions:
                    raise UnknownTopicOrPartition(
                        f"the key belongs to partition {number} of {count}, which is not in "
                        "this directory"
                    )
        return Routed(parts, Sticky(partition, left))
