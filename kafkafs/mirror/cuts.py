"""Decides whether the ends of a restore point cut a transaction. Nothing is touched.

A transaction has ended below a last stable offset if its first record is below, wherever its marker
is. The end of a partition of the topic of groups is a log end: there the marker must be below.

A transaction is cut if it has records on both sides of the end of a partition: it had ended, but
another one was open there. It is also cut if it has ended below the end of one partition, and not
below that of another: ListOffsets does not ask all leaders at one moment. A producer begins a
transaction after the last one has ended in all partitions. So the ends cut no transaction of a
producer if each of its transactions above an end is later than all of those below the ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kafka_client.cluster import TopicPartition
from storage import paths
from storage.log.log import Log
from storage.record.control import COMMIT
from storage.state.producer_state import ProducerBatch

# The markers of a log that are kept, and the kind of a transaction that has none yet.
_MARKERS: Final = 1000
OPEN: Final = -1
# The markers of a transaction differ in time by less than this, and `_NEARER` times less than from
# those of the next one.
_APART_MS: Final = 10_000
_NEARER: Final = 10


class Marker(NamedTuple):
    """The end of a transaction. `first`: the offset of its first record. Without a marker (`OPEN`),
    `offset` is the same, and the time is that of the point.
    """

    first: int
    offset: int
    epoch: int
    kind: int
    time_ms: int


class Sides(NamedTuple):
    """A producer's last transaction below the end of a partition, and its first one above."""

    below: Marker | None
    above: Marker | None


class Markers:
    """The last markers of the producers of one log. All from `_known_from` on are known."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._of_groups = log.topic == paths.CONSUMER_OFFSETS
        self._known_from = log.log_end_offset
        self._recent = deque[tuple[int, Marker]]()
        # By producer: the last marker before those.
        self._older = {
            each.producer_id: Marker(
                each.last_offset, each.last_offset + 1, each.epoch, COMMIT, each.timestamp
            )
            for each in log.producers
            if each.coordinator_epoch >= 0 and not each.in_transaction
        }
        # The first and last offsets of transactions: the open ones by producer, and ended ones.
        self._open = {
            each.producer_id: (each.transaction_first_offset, each.last_offset)
            for each in log.producers
            if each.in_transaction
        }
        self._ended = deque[tuple[int, tuple[int, int]]](maxlen=_MARKERS)

    def note(self, batches: Iterable[ProducerBatch]) -> None:
        """Note batches that were appended."""
        for each in batches:
            if each.is_transactional_data:
                first, _ = self._open.get(each.producer_id, (each.base_offset, 0))
                self._open[each.producer_id] = first, each.last_offset
            if each.marker_type >= 0:
                first = each.base_offset
                if each.producer_id in self._open:
                    first, last = self._open.pop(each.producer_id)
                    self._ended.append((each.producer_id, (first, last)))
                found = each.base_offset, each.producer_epoch, each.marker_type, each.max_timestamp
                self._recent.append((each.producer_id, Marker(first, *found)))
        while len(self._recent) > _MARKERS:
            producer_id, marker = self._recent.popleft()
            self._older[producer_id] = marker
            self._known_from = max(self._known_from, marker.offset + 1)

    def is_known(self, end: int) -> bool:
        """Return whether all transactions next to an end are known."""
        return end >= self._known_from or not any(
            each.coordinator_epoch >= 0 or each.in_transaction for each in self._log.producers
        )

    def sides(self, end: int, time_ms: int) -> dict[int, Sides]:
        """Return the transactions next to an end, by producer. `time_ms`: of the point."""
        producers = self._log.producers
        self._older = {each: self._older[each] for each in self._older if each in producers.by_id}
        below: dict[int, Marker] = {}
        above: dict[int, Marker] = {}
        for producer_id, marker in (*self._older.items(), *self._recent):
            if (marker.offset if self._of_groups else marker.first) < end:
                below[producer_id] = marker
            else:
                above.setdefault(producer_id, marker)
        for each in producers:
            if each.in_transaction:
                first = each.transaction_first_offset
                marker = Marker(first, first, each.epoch, OPEN, time_ms)
                above.setdefault(each.producer_id, marker)
        return {each: Sides(below.get(each), above.get(each)) for each in below | above}

    def divided_at(self, end: int) -> int | None:
        """Return the producer of a transaction with records on both sides of an end."""
        for producer_id, (first, last) in (*self._ended, *self._open.items()):
            if first < end <= last:
                return producer_id
        return None

    def has_commit(self, first: int, end: int) -> bool:
        """Return whether a transaction may have ended with a commit at these offsets; `end` is
        exclusive.
        """
        return not self.is_known(first) or any(
            first <= marker.offset < end and marker.kind == COMMIT
            for _, marker in (*self._older.items(), *self._recent)
        )


def cut_partition(found: Mapping[TopicPartition, Sides]) -> TopicPartition | None:
    """Return a partition whose end has a transaction of a producer above it that may have ended
    below the end of another; None: there is none.
    """
    last = max(
        (sides.below for sides in found.values() if sides.below is not None),
        key=lambda marker: (marker.epoch, marker.time_ms),
        default=None,
    )
    if last is None:
        return None
    for each, (below, above) in found.items():
        if above is not None and below is not last and not _is_later(above, last, below):
            return each
    return None


def _is_later(marker: Marker, last: Marker, below: Marker | None) -> bool:
    """Return whether a transaction is later than `last` of another partition. `below`: the one
    before it in its own partition.
    """
    if marker.epoch != last.epoch:
        # With clients and brokers of Kafka 4, each transaction has an epoch of its own.
        return marker.epoch > last.epoch
    apart = marker.time_ms - last.time_ms
    # If no marker has come, it may come at any time.
    if marker.kind != OPEN and (apart > _APART_MS or (apart > 0 and marker.kind != last.kind)):
        return True
    # Else they are the same, unless `last` is clearly the one below.
    return (
        below is not None
        and below.epoch == last.epoch
        and abs(last.time_ms - below.time_ms) * _NEARER < apart
    )
