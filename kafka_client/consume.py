"""Reads partitions of a cluster from their leaders, also when these move."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kafka_client.addresses import HostPort
from kafka_client.cluster import PAUSE_S, Cluster, TopicPartition, may_pass
from kafka_client.connection import TIMEOUT_S, Connection
from kafka_client.errors import BrokerError, BrokerUnreachable, ClientError
from kafka_client.fetch import NO_TOPIC_ID, Fetched, Fetcher, Position

# Besides the retriable ones: a topic that the broker has not heard of yet, or not any more.
_INCONSISTENT_TOPIC_ID: Final = 103
_NOT_HERE: Final = frozenset({3, 100})


class Consumer:
    """Fetches partitions from their positions on, over connections of its own. Not thread-safe.

    `ends` are offsets at which partitions are complete. A partition that is complete, or has an
    error, is not fetched any more. `options` are those of `Fetcher`.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, Position],
        ends: Mapping[TopicPartition, int] | None = None,
        **options: Any,
    ) -> None:
        self._cluster = cluster
        self._ends = ends or {}
        self._options = options
        self._fetchers: dict[HostPort, Fetcher] = {}
        self._waiting = dict(positions)
        # When a partition without a leader that answers was last well.
        self._failing: dict[TopicPartition, float] = {}

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.connection.close()
        self._fetchers.clear()

    @property
    def is_done(self) -> bool:
        """Whether no partition is fetched any more."""
        return not self._waiting and not any(each.positions for each in self._fetchers.values())

    @property
    def is_waiting(self) -> bool:
        """Whether the leader of a partition is looked for."""
        return bool(self._waiting)

    def add(self, partition: TopicPartition, position: Position) -> None:
        """Fetch a partition from now on, or from another position."""
        self.drop(partition)
        self._waiting[partition] = position

    def drop(self, partition: TopicPartition) -> None:
        """Fetch a partition no longer."""
        self._waiting.pop(partition, None)
        for fetcher in self._fetchers.values():
            fetcher.positions.pop(partition, None)

    def poll(self) -> Iterator[Fetched]:
        """Yield what the leaders have sent, within `max_wait_ms` if there is nothing new.

        The records are valid until the next poll. A partition whose leader cannot be reached for
        10 seconds has the reason as its error. Errors: ClientError, OSError.
        """
        yield from self._find_leaders()
        for fetcher in list(self._fetchers.values()):
            try:
                if not fetcher.is_under_way and fetcher.positions:
                    fetcher.send()
            except ClientError as error:
                yield from self._lose(fetcher, error)
        for fetcher in list(self._fetchers.values()):
            if not fetcher.is_under_way:
                continue
            try:
                found = fetcher.receive()
            except ClientError as error:
                yield from self._lose(fetcher, error)
                continue
            taken = [each for each in found if self._is_taken(fetcher, each)]
            lost: list[Fetched] = []
            if fetcher.positions:
                # The broker works while the caller takes these.
                try:
                    fetcher.send()
                except ClientError as error:
                    lost = list(self._lose(fetcher, error))
            yield from taken
            yield from lost

    def _is_taken(self, fetcher: Fetcher, each: Fetched) -> bool:
        """Whether the caller gets it; not if the partition is looked for at another broker."""
        partition, error = each.partition, each.error
        if isinstance(error, BrokerError) and (may_pass(error) or error.code in _NOT_HERE):
            failed = self._failed(partition, error, fetcher.answered_at)
            position = fetcher.positions.pop(partition)
            if failed is None:
                self._waiting[partition] = position
                return False
            return True
        self._failing.pop(partition, None)
        is_complete = each.next_offset >= self._ends.get(partition, each.next_offset + 1)
        if error or each.diverging or is_complete:
            fetcher.positions.pop(partition)
        return True

    def _find_leaders(self) -> Iterator[Fetched]:
        if not self._waiting:
            return
        if self._failing:
            time.sleep(PAUSE_S)
        failure: ClientError | None = None
        try:
            self._cluster.refresh({partition.topic for partition in self._waiting})
        except BrokerUnreachable as error:
            failure = error
        for partition, position in list(self._waiting.items()):
            try:
                if failure is not None:
                    raise failure
                fetcher, position = self._placed(partition, position)
            except ClientError as error:
                failed = self._failed(partition, error, time.monotonic())
                if failed is not None:
                    del self._waiting[partition]
                    yield failed
            else:
                del self._waiting[partition]
                fetcher.positions[partition] = position

    def _placed(self, partition: TopicPartition, position: Position) -> tuple[Fetcher, Position]:
        metadata = self._cluster.metadata
        leader = self._cluster.leader_of(partition)
        topic = metadata.topics[partition.topic]
        if position.topic_id not in (NO_TOPIC_ID, topic.id):
            raise BrokerError(_INCONSISTENT_TOPIC_ID, partition.topic)
        address = metadata.brokers[leader]
        if address not in self._fetchers:
            connection = Connection(address, self._cluster.settings)
            self._fetchers[address] = Fetcher(connection, **self._options)
        epoch = topic.partitions[partition.partition].leader_epoch
        return self._fetchers[address], replace(position, leader_epoch=epoch, topic_id=topic.id)

    def _lose(self, fetcher: Fetcher, error: ClientError) -> Iterator[Fetched]:
        """Look for the leaders of a connection's partitions elsewhere."""
        fetcher.connection.close()
        del self._fetchers[fetcher.connection.address]
        for partition, position in fetcher.positions.items():
            failed = self._failed(partition, error, fetcher.answered_at)
            if failed is None:
                self._waiting[partition] = position
            else:
                yield failed

    def _failed(
        self, partition: TopicPartition, error: ClientError, well_at: float
    ) -> Fetched | None:
        """Note a failure; return it when it is final."""
        well_at = self._failing.setdefault(partition, well_at)
        passes = may_pass(error) or (isinstance(error, BrokerError) and error.code in _NOT_HERE)
        if passes and time.monotonic() - well_at < TIMEOUT_S:
            return None
        del self._failing[partition]
        return Fetched(partition, memoryview(b""), -1, -1, -1, -1, error=error)
