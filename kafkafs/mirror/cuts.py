"""Decides whether the ends of a restore point cut a transaction. Nothing is touched.

A transaction has ended below a last stable offset if its first record is below, wherever its marker
is. The end of a partition of the topic of groups is a log end: there the marker must be below.

A transaction is cut if it has records on both sides of the end of a partition: it had ended, but
another one was open there. It is also cut if it has ended below the end of one partition, and not
below that of another: ListOffsets does not ask all leaders at one moment. So the ends cut no
transaction of a producer if each of its transactions above an end is later than all of those below
the ends of other partitions. Only two facts prove that:

- Its records have a later epoch. With clients and brokers of Kafka 4, each transaction has one.
- It began after all ends were known: its first record is above the log end of that time.

Times prove nothing: a leader can write a marker long after the others, and has its own clock.
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


class Marker(NamedTuple):
    """The end of a transaction. `first`: the offset of its first record, `epoch`: of its records.
    Those of the marker if the log has no records. Without a marker (`OPEN`), `offset` is `first`.
    """

    first: int
    offset: int
    epoch: int
    kind: int


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
            each.producer_id: Marker(each.last_offset, each.last_offset + 1, each.epoch, COMMIT)
            for each in log.producers
            if each.coordinator_epoch >= 0 and not each.in_transaction
        }
        # The first and last offsets and the epochs of transactions: the open ones by producer, and
        # ended ones.
        self._open = {
            each.producer_id: (each.transaction_first_offset, each.last_offset, each.epoch)
            for each in log.producers
            if each.in_transaction
        }
        self._ended = deque[tuple[int, tuple[int, int, int]]](maxlen=_MARKERS)

    def note(self, batches: Iterable[ProducerBatch]) -> None:
        """Note batches that were appended."""
        for each in batches:
            if each.is_transactional_data:
                first, *_ = self._open.get(each.producer_id, (each.base_offset,))
                self._open[each.producer_id] = first, each.last_offset, each.producer_epoch
            if each.marker_type >= 0:
                epoch, kind = each.producer_epoch, each.marker_type
                self.note_marker(each.producer_id, each.base_offset, epoch, kind)

    def note_marker(self, producer_id: int, offset: int, epoch: int, kind: int) -> None:
        """Note the end of a transaction, which may be below other batches that were noted."""
        first = offset
        if producer_id in self._open:
            # The epoch of the marker may already be that of the next transaction.
            first, last, epoch = self._open.pop(producer_id)
            self._ended.append((producer_id, (first, last, epoch)))
        self._recent.append((producer_id, Marker(first, offset, epoch, kind)))
        while len(self._recent) > _MARKERS:
            producer_id, marker = self._recent.popleft()
            self._older[producer_id] = marker
            self._known_from = max(self._known_from, marker.offset + 1)

    def is_known(self, end: int) -> bool:
        """Return whether all transactions next to an end are known."""
        return end >= self._known_from or not any(
            each.coordinator_epoch >= 0 or each.in_transaction for each in self._log.producers
        )

    def sides(self, end: int, log_end: int) -> dict[int, Sides]:
        """Return the transactions next to an end, by producer; not those that began at `log_end` or
        later.
        """
        producers = self._log.producers
        self._older = {each: self._older[each] for each in self._older if each in producers.by_id}
        below: dict[int, Marker] = {}
        above: dict[int, Marker] = {}
        for producer_id, marker in (*self._older.items(), *self._recent):
            if (marker.offset if self._of_groups else marker.first) < end:
                below[producer_id] = marker
            elif marker.first == marker.offset:
                # The epoch of its records may be the one before.
                above.setdefault(producer_id, marker._replace(epoch=marker.epoch - 1))
            elif marker.first < log_end:
                above.setdefault(producer_id, marker)
        for each in producers:
            first = each.transaction_first_offset
            if each.in_transaction and first < log_end:
                above.setdefault(each.producer_id, Marker(first, first, each.epoch, OPEN))
        return {each: Sides(below.get(each), above.get(each)) for each in below | above}

    def divided_at(self, end: int) -> int | None:
        """Return the producer of a transaction with records on both sides of an end."""
        for producer_id, (first, last, _) in (*self._ended, *self._open.items()):
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
    epochs = {each: sides.below.epoch for each, sides in found.items() if sides.below is not None}
    latest = max(epochs.values(), default=-1)
    last = [each for each, epoch in epochs.items() if epoch == latest]
    for each, (_, above) in found.items():
        if above is not None and last and last != [each] and above.epoch <= latest:
            return each
    return None
