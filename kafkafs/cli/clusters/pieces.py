"""Reads spans of partitions of a cluster, piece by piece.

A piece is what an answer to Fetch has of one partition: whole batches, as the broker has sent them.
Its first and its last batch may have records outside of the span. `text` leaves them out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kafka_client.cluster import PAUSE_S, Cluster, TopicPartition
from kafka_client.connection import TIMEOUT_S
from kafka_client.consume import Consumer
from kafka_client.errors import BrokerError, BrokerUnreachable
from kafka_client.fetch import NO_EPOCH, Fetched, Position
from kafka_client.requests import EARLIEST, EARLIEST_LOCAL, Offset, list_offsets
from kafkafs.cli.common.clusters import offsets_of, reason_of

_FETCH_BYTES: Final = 4 << 20
# A few offsets, and the size of a fetch for them.
_FEW: Final = 1000
_FEW_BYTES: Final = 256 << 10
_OFFSET_OUT_OF_RANGE: Final = 1


class Piece(NamedTuple):
    """Batches of a partition. Their records from `start` to before `end` are those of the span."""

    fetched: Fetched
    start: int
    end: int


class Span(NamedTuple):
    """Offsets of a partition. `end` is exclusive; None: all that will be appended, too.

    `pieces`: what has been read of it, from its start on.
    """

    start: int
    end: int | None
    pieces: tuple[Piece, ...] = ()


class ClusterReader:
    """Reads a cluster. `report` gets the reason where records are missing. Not thread-safe.

    `count`: the number of pieces so far.
    """

    def __init__(
        self, cluster: Cluster, report: Callable[[object], None], *, committed: bool
    ) -> None:
        self.cluster = cluster
        self.committed = committed
        self.report = report
        self.count = 0
        # A topic that is deleted and created again is another topic.
        self._topic_ids: dict[str, bytes] = {}

    def pieces(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Piece]:
        """Yield the pieces of spans. Each is valid until the next one.

        A span ends at the high watermark (committed: the last stable offset) or before it, or has
        no end. Errors: ClientError, OSError.
        """
        left: dict[TopicPartition, _Part] = {}
        for each, (start, end, pieces) in spans.items():
            yield from pieces
            part = _Part(start, end)
            if pieces:
                part = _Part(pieces[-1].end, end, pieces[-1].fetched.last_epoch)
            if part.start != end:
                left[each] = part
        is_short = all(
            part.end is not None and part.end - part.start <= _FEW for part in left.values()
        )
        while left:
            for piece in self._read(left, _FEW_BYTES if is_short else _FETCH_BYTES):
                self.count += 1
                yield piece

    def _read(self, left: dict[TopicPartition, _Part], fetch_bytes: int) -> Iterator[Piece]:
        """Read on until nothing is left, or another consumer is needed.

        Partitions move on as they are read. They leave `left` at their end and at an error.
        """
        ends = {each: part.end for each, part in left.items() if part.end is not None}
        unreachable: BrokerUnreachable | None = None
        is_over = False
        with Consumer(
            self.cluster,
            {each: self._position(each, part) for each, part in left.items()},
            ends,
            committed=self.committed,
            max_bytes=fetch_bytes,
            partition_bytes=fetch_bytes,
        ) as consumer:
            while not is_over and not consumer.is_done:
                for each in consumer.poll():
                    part = left[each.partition]
                    if each.error is not None or each.diverging is not None:
                        is_over = True
                        if isinstance(each.error, BrokerUnreachable):
                            unreachable = each.error
                        else:
                            self._failed(each, left)
                        continue
                    if each.records:
                        end = each.next_offset if part.end is None else part.end
                        yield Piece(each, part.start, min(end, each.next_offset))
                        part.start, part.epoch = each.next_offset, each.last_epoch
                        part.moved_at = time.monotonic()
                    if self._is_complete(part, each):
                        consumer.drop(each.partition)
                        del left[each.partition]
                if ends and consumer.is_quiet:
                    # A session leaves out a partition without records: ask in another one.
                    is_over = True
        if unreachable is not None:
            raise unreachable

    def _is_complete(self, part: _Part, each: Fetched) -> bool:
        """Return whether no more records of a span are to be read after an answer."""
        if part.end is None or part.start >= part.end:
            return part.end is not None
        if each.records:
            return False
        end = each.last_stable_offset if self.committed else each.high_watermark
        if end >= part.end and not self._is_remote(each.partition, part.start):
            # None are left before the end, as after compaction.
            return True
        # A new leader may have to ask the other replicas for their ends. A leader that gets no
        # answer from its remote storage in time sends no records.
        if time.monotonic() - part.moved_at < TIMEOUT_S:
            time.sleep(PAUSE_S)
            return False
        self.report(
            f"{each.partition}: the leader does not show offsets {part.start} to {part.end - 1},"
            " which the cluster had"
        )
        return True

    def _is_remote(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the leader has an offset in remote storage only. Errors: ClientError."""
        found = offsets_of(self.cluster, [partition], EARLIEST_LOCAL, self.report)
        return found.get(partition, offset) > offset

    def _position(self, partition: TopicPartition, part: _Part) -> Position:
        topic = partition.topic
        topic_id = self._topic_ids.setdefault(topic, self.cluster.metadata.topics[topic].id)
        return Position(part.start, part.epoch, topic_id=topic_id)

    def _failed(self, each: Fetched, left: dict[TopicPartition, _Part]) -> None:
        """Report why records are missing. The partition may go on after them."""
        partition, error = each.partition, each.error
        part = left.pop(partition)
        if isinstance(error, BrokerError) and error.code == _OFFSET_OUT_OF_RANGE:
            first = list_offsets(self.cluster, {partition: EARLIEST})[partition]
            if isinstance(first, Offset) and first.offset > part.start:
                gap_end = first.offset if part.end is None else min(first.offset, part.end)
                self.report(
                    f"{partition}: offsets {part.start} to {gap_end - 1} were deleted in the"
                    " cluster before they were read"
                )
                if part.end is None or first.offset < part.end:
                    left[partition] = _Part(first.offset, part.end)
                return
        if error is not None:
            self.report(reason_of(partition, error))
            return
        assert each.diverging is not None
        self.report(
            f"{partition}: the cluster has lost records that were read (an unclean election): its"
            f" log differs from offset {each.diverging[1]} on"
        )


@dataclass
class _Part:
    """The rest of a span, the leader epoch of the last batch that was read, and when that was."""

    start: int
    end: int | None
    epoch: int = NO_EPOCH
    moved_at: float = field(default_factory=time.monotonic)
