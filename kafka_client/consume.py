"""Reads partitions of a cluster from their leaders, also when these move."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kafka_client.addresses import HostPort
from kafka_client.cluster import PAUSE_S, Cluster, Metadata, TopicPartition, may_pass
from kafka_client.connection import TIMEOUT_S, Connection, in_background, result_of
from kafka_client.errors import BrokerError, ClientError
from kafka_client.fetch import NO_TOPIC_ID, Fetched, Fetcher, Position

_OFFSET_OUT_OF_RANGE: Final = 1
# Besides the retriable ones: a topic that the broker has not heard of yet, or not any more.
_INCONSISTENT_TOPIC_ID: Final = 103
_NOT_HERE: Final = frozenset({3, 100})
# Between two looks at a thread that connects or asks for leaders.
_LOOK_S: Final = 0.005
# As long as in Kafka's consumer, a replica is read without asking the leader which one it prefers.
_LEASE_S: Final = 300


class _Lookup(NamedTuple):
    """A request for the leaders of partitions that were waiting."""

    waiting: dict[TopicPartition, Position]
    metadata: Future[Metadata]


class _Place(NamedTuple):
    """A broker, and the rack that requests to it have; "": it does not name another replica."""

    address: HostPort
    rack_id: str


class Consumer:
    """Fetches partitions from their positions on, over connections of its own. Not thread-safe.

    Leaders are looked for and connections are made on threads, and only a whole answer is
    processed: a slow broker does not delay the partitions of the others.

    `ends` are offsets at which partitions are complete. A partition that is complete, or has an
    error, is not fetched any more. `options` are those of `Fetcher`. With a `rack_id` a partition
    is fetched from the replica that its leader names (KIP-392). Records that are damaged there, of
    another history, or not there yet (`read_from_leader`), are read from the leader. Without
    `retries`, a partition whose leader fails has the error at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, Position],
        ends: Mapping[TopicPartition, int] | None = None,
        *,
        max_wait_ms: int = 500,
        retries: bool = True,
        rack_id: str = "",
        **options: Any,
    ) -> None:
        self._retries = retries
        self._ends = ends or {}
        self._max_wait_s = max_wait_ms / 1000
        self._options = {"max_wait_ms": max_wait_ms, **options}
        self._rack_id = rack_id
        self._settings = cluster.settings
        # For the thread of a lookup.
        self._finder = cluster.for_thread()
        self._lookup: _Lookup | None = None
        self._next_lookup_at = 0.0
        # The metadata since the last failure.
        self._metadata = cluster.metadata
        self._fetchers: dict[_Place, Fetcher] = {}
        self._connecting: dict[_Place, Future[Connection]] = {}
        # The partitions without a known leader; those that are not fetched from their leader, with
        # the time of the answer that named the replica, oldest first.
        self._waiting: dict[TopicPartition, Position] = {}
        self._at_followers: dict[TopicPartition, float] = {}
        # When a partition without a leader that answers was last well.
        self._failing: dict[TopicPartition, float] = {}
        # When the caller got the last answers.
        self._given_at = time.monotonic()
        for partition, position in positions.items():
            self.add(partition, position)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A thread that still makes one closes it at its end."""
        for fetcher in self._fetchers.values():
            if fetcher.connection is not None:
                fetcher.connection.close()
        self._fetchers.clear()
        for future in self._connecting.values():
            future.add_done_callback(_close_result)
        self._connecting.clear()
        if self._lookup is None:
            self._finder.close()
        else:
            self._lookup.metadata.add_done_callback(lambda _: self._finder.close())

    @property
    def is_done(self) -> bool:
        """Whether no partition is fetched any more."""
        return not self._waiting and not any(each.positions for each in self._fetchers.values())

    @property
    def is_quiet(self) -> bool:
        """Whether the leaders of all partitions are known, and had no news in their last answer."""
        return not self._waiting and all(
            each.is_quiet for each in self._fetchers.values() if each.positions
        )

    def add(self, partition: TopicPartition, position: Position) -> None:
        """Fetch a partition from now on, or from another position."""
        self.drop(partition)
        self._place_or_wait(partition, position, self._rack_id)

    def drop(self, partition: TopicPartition) -> None:
        """Fetch a partition no longer."""
        self._waiting.pop(partition, None)
        self._failing.pop(partition, None)
        for fetcher in self._fetchers.values():
            if partition in fetcher.positions:
                fetcher.remove(partition)

    def read_from_leader(self, partition: TopicPartition) -> None:
        """Fetch the next records of a partition from its leader: another replica may lack them."""
        self._leave_follower(partition, "")

    def poll(self) -> Iterator[Fetched]:
        """Yield what the leaders have sent: nothing if `max_wait_ms` pass without an answer.

        The records are valid until the next poll. A partition whose leader cannot be reached for
        10 seconds has the reason as its error.
        """
        end = time.monotonic() + self._max_wait_s
        found: list[Fetched] = []
        if (taken_s := time.monotonic() - self._given_at) > TIMEOUT_S:
            self._leave_out(taken_s)
        self._end_leases()
        while True:
            found += self._find_leaders()
            is_answered = False
            for place, fetcher in list(self._fetchers.items()):
                try:
                    is_answered |= self._exchange(place, fetcher, found)
                except ClientError as error:
                    found += self._lose(place, error)
            left_s = end - time.monotonic()
            if found or is_answered or left_s <= 0:
                break
            self._wait(left_s)
        self._given_at = time.monotonic()
        yield from found

    def _leave_out(self, taken_s: float) -> None:
        """Do not count the time that the caller has taken as silence of the brokers."""
        now = time.monotonic()
        for fetcher in self._fetchers.values():
            fetcher.answered_at = min(fetcher.answered_at + taken_s, now)
        for partition, failed_at in self._failing.items():
            self._failing[partition] = min(failed_at + taken_s, now)

    def _exchange(self, place: _Place, fetcher: Fetcher, found: list[Fetched]) -> bool:
        """Take the answer if it is whole, and ask for more. Return whether it is."""
        connection = fetcher.connection
        if connection is None:
            return False
        is_answered = fetcher.is_under_way and connection.is_answered()
        if is_answered:
            found += [each for each in fetcher.receive() if self._is_taken(place, fetcher, each)]
        if not fetcher.is_under_way and fetcher.positions and not connection.is_throttled:
            # The broker works while the caller takes the answer.
            fetcher.send()
        return is_answered

    def _wait(self, left_s: float) -> None:
        """Wait until a broker sends something, or something else is to be done."""
        answers = select.poll()
        for each in self._fetchers.values():
            if each.connection is not None and each.is_under_way:
                answers.register(each.connection, select.POLLIN)
        if self._lookup is not None or self._connecting:
            left_s = min(left_s, _LOOK_S)
        elif self._waiting:
            left_s = min(left_s, PAUSE_S)
        answers.poll(left_s * 1000)

    def _is_taken(self, place: _Place, fetcher: Fetcher, each: Fetched) -> bool:
        """Whether the caller gets it; not if the partition is looked for at another broker."""
        partition, error = each.partition, each.error
        if isinstance(error, BrokerError) and self._passes(partition, error):
            failed = self._failed(partition, error, fetcher.answered_at)
            position = fetcher.remove(partition)
            if failed is None and position is not None:
                self._waiting[partition] = position
                return False
            return True
        self._failing.pop(partition, None)
        if each.preferred_replica >= 0 and error is None:
            position = fetcher.remove(partition)
            assert position is not None
            address = self._metadata.brokers.get(each.preferred_replica)
            if address is None:
                self._waiting[partition] = position
            else:
                self._fetch_from(_Place(address, place.rack_id), partition, position)
                self._at_followers[partition] = time.monotonic()
            return False
        is_complete = each.next_offset >= self._ends.get(partition, each.next_offset + 1)
        if error or each.diverging:
            position = fetcher.remove(partition)
            assert position is not None
            if partition in self._at_followers:
                self._place_or_wait(partition, position, "")
                return False
        elif is_complete:
            fetcher.remove(partition)
        elif each.records and place.rack_id != self._rack_id:
            # The replica in the rack may have the records after these.
            position = fetcher.remove(partition)
            assert position is not None
            self._place_or_wait(partition, position, self._rack_id)
        return True

    def _end_leases(self) -> None:
        """Ask leaders again which replicas to fetch from: one may no longer replicate."""
        for partition, named_at in list(self._at_followers.items()):
            if time.monotonic() - named_at < _LEASE_S:
                break
            self._leave_follower(partition, self._rack_id)

    def _leave_follower(self, partition: TopicPartition, rack_id: str) -> None:
        if self._at_followers.pop(partition, None) is not None:
            for fetcher in self._fetchers.values():
                position = fetcher.positions.get(partition)
                if position is not None:
                    fetcher.remove(partition)
                    self._place_or_wait(partition, position, rack_id)
                    break

    # -- leaders -----------------------------------------------------------------------------------

    def _find_leaders(self) -> Iterator[Fetched]:
        for place, future in list(self._connecting.items()):
            if future.done():
                del self._connecting[place]
                try:
                    self._fetchers[place].connection = result_of(future)
                except ClientError as error:
                    yield from self._lose(place, error)
        if self._lookup is not None and self._lookup.metadata.done():
            lookup, self._lookup = self._lookup, None
            yield from self._take_leaders(lookup)
        if self._waiting and self._lookup is None and time.monotonic() >= self._next_lookup_at:
            topics = {partition.topic for partition in self._waiting}
            metadata = in_background(lambda: self._finder.refresh(topics))
            self._lookup = _Lookup(dict(self._waiting), metadata)

    def _take_leaders(self, lookup: _Lookup) -> Iterator[Fetched]:
        failure: ClientError | None = None
        metadata = Metadata()
        try:
            metadata = self._metadata = result_of(lookup.metadata)
        except ClientError as error:
            failure = error
        for partition, position in lookup.waiting.items():
            if self._waiting.get(partition) is not position:
                continue
            try:
                if failure is not None:
                    raise failure
                self._place(partition, position, metadata, self._rack_id)
            except ClientError as error:
                failed = self._failed(partition, error, time.monotonic())
                if failed is None:
                    continue
                yield failed
            del self._waiting[partition]

    def _place_or_wait(self, partition: TopicPartition, position: Position, rack_id: str) -> None:
        """Fetch a partition from its leader, or look for that first."""
        try:
            self._place(partition, position, self._metadata, rack_id)
        except BrokerError:
            self._waiting[partition] = position

    def _place(
        self, partition: TopicPartition, position: Position, metadata: Metadata, rack_id: str
    ) -> None:
        """Fetch a partition from its leader. Errors: BrokerError."""
        address = metadata.leader_of(partition)
        topic = metadata.topics[partition.topic]
        if position.topic_id not in (NO_TOPIC_ID, topic.id):
            raise BrokerError(_INCONSISTENT_TOPIC_ID, partition.topic)
        epoch = topic.partitions[partition.partition].leader_epoch
        self._at_followers.pop(partition, None)
        position = replace(position, leader_epoch=epoch, topic_id=topic.id)
        self._fetch_from(_Place(address, rack_id), partition, position)

    def _fetch_from(self, place: _Place, partition: TopicPartition, position: Position) -> None:
        if place not in self._fetchers:
            self._fetchers[place] = Fetcher(rack_id=place.rack_id, **self._options)
            self._connecting[place] = in_background(
                lambda: Connection(place.address, self._settings)
            )
        self._fetchers[place].add(partition, position)

    def _lose(self, place: _Place, error: ClientError) -> Iterator[Fetched]:
        """Look for the leaders of a broker's partitions elsewhere."""
        fetcher = self._fetchers.pop(place)
        if fetcher.connection is not None:
            fetcher.connection.close()
        for partition, position in fetcher.positions.items():
            failed = self._failed(partition, error, fetcher.answered_at)
            if failed is None:
                self._waiting[partition] = position
            else:
                yield failed

    def _passes(self, partition: TopicPartition, error: ClientError) -> bool:
        """Whether the partition may be read a moment later, or at its leader."""
        if not isinstance(error, BrokerError):
            return may_pass(error)
        is_from_follower = partition in self._at_followers
        return (
            may_pass(error)
            or error.code in _NOT_HERE
            or (is_from_follower and error.code == _OFFSET_OUT_OF_RANGE)
        )

    def _failed(
        self, partition: TopicPartition, error: ClientError, well_at: float
    ) -> Fetched | None:
        """Note a failure; return it when it is final."""
        self._metadata = Metadata()
        self._next_lookup_at = time.monotonic() + PAUSE_S
        well_at = self._failing.setdefault(partition, well_at)
        may_retry = self._retries and self._passes(partition, error)
        if may_retry and time.monotonic() - well_at < TIMEOUT_S:
            return None
        del self._failing[partition]
        return Fetched(partition, memoryview(b""), -1, -1, -1, -1, error=error)


def _close_result(future: Future[Connection]) -> None:
    with contextlib.suppress(BaseException):
        future.result().close()
