"""A cluster: its brokers, topics and leaders, with one connection to each broker that is used.

Not thread-safe. A thread that waits for its own answers has a cluster of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kafka_client.addresses import HostPort, is_host, is_topic
from kafka_client.connection import TIMEOUT_S, Connection
from kafka_client.errors import BrokerError, BrokerUnreachable, ClientError, ProtocolViolation
from kafka_client.properties import ClientSettings
from storage.settings.messages import Struct

UNKNOWN_TOPIC: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
_PAUSE_S: Final = 0.1

V = TypeVar("V")
R = TypeVar("R")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


@dataclass
class Partition:
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    error: int


@dataclass
class Topic:
    """A topic. `id` is 16 zeros if the broker has no ids; `error` is a code, 0 if there is none."""

    name: str
    id: bytes
    is_internal: bool
    error: int
    partitions: dict[int, Partition] = field(default_factory=dict)


@dataclass
class Metadata:
    cluster_id: str | None = None
    controller: int = -1
    brokers: dict[int, HostPort] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)


class Cluster:
    """Sends requests to the right broker. `metadata` is what the last answer said."""

    def __init__(self, brokers: Sequence[HostPort], settings: ClientSettings) -> None:
        assert brokers
        self._bootstrap = list(brokers)
        self.settings = settings
        self.metadata = Metadata()
        self._connections: dict[HostPort, Connection] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def connection(self, address: HostPort) -> Connection:
        """Return the open connection to a broker, or connect. Errors: those of `Connection`."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable():
            connection = self._connections[address] = Connection(address, self.settings)
        return connection

    def any_connection(self) -> Connection:
        """Return a connection to the first broker that answers. Errors: the last one's."""
        failed: ClientError | None = None
        known = [*self._connections, *self._bootstrap, *self.metadata.brokers.values()]
        deadline = time.monotonic() + TIMEOUT_S
        for address in dict.fromkeys(known):
            if failed is not None and time.monotonic() > deadline:
                break
            try:
                return self.connection(address)
            except BrokerUnreachable as error:
                failed = error
        assert failed is not None
        raise failed

    # -- metadata ----------------------------------------------------------------------------------

    def refresh(self, topics: Iterable[str] | None = None) -> Metadata:
        """Ask for these topics, or for all of them. Errors: ClientError."""
        wanted = None if topics is None else sorted(set(topics))
        connection = self.any_connection()
        data = {
            "topics": None if wanted is None else [{"name": name} for name in wanted],
            "allowAutoTopicCreation": False,
        }
        answer = connection.request("Metadata", data)
        if answer["errorCode"]:
            raise BrokerError(answer["errorCode"], f"broker {connection.address}")
        try:
            found = _metadata(answer)
            if wanted is not None and not found.topics.keys() <= set(wanted):
                raise ValueError("a topic that was not asked for")
        except ValueError as error:
            connection.close()
            reason = f"broker {connection.address}: its answer to Metadata has {error}"
            raise ProtocolViolation(reason) from None
        if wanted is not None:
            found.topics = self.metadata.topics | found.topics
        self.metadata = found
        return found

    def leader_of(self, partition: TopicPartition) -> int:
        """Return the node of the leader by the current metadata. Errors: BrokerError."""
        topic = self.metadata.topics.get(partition.topic)
        if topic is None or topic.error:
            raise BrokerError(topic.error if topic else UNKNOWN_TOPIC, partition.topic)
        if partition.partition not in topic.partitions:
            raise BrokerError(UNKNOWN_TOPIC, str(partition))
        found = topic.partitions[partition.partition]
        if found.leader < 0 or found.leader not in self.metadata.brokers:
            raise BrokerError(LEADER_NOT_AVAILABLE, str(partition))
        return found.leader

    # -- requests to leaders -----------------------------------------------------------------------

    def at_leaders(
        self,
        name: str,
        wanted: Mapping[TopicPartition, V],
        request: Callable[[Mapping[TopicPartition, V]], Mapping[str, Any]],
        results: Callable[[Struct], Iterator[tuple[TopicPartition, int, R]]],
    ) -> dict[TopicPartition, R | ClientError]:
        """Send a request that may be repeated to the leaders of partitions.

        `request` makes the message for some of them; `results` gives partition, error code and
        result from an answer. For 10 seconds a partition is tried again after an error that may
        pass. The returned value of a partition is its result or its last error.
        """
        deadline = time.monotonic() + TIMEOUT_S
        found: dict[TopicPartition, R | ClientError] = {}
        left = dict(wanted)
        while left:
            failed: dict[TopicPartition, ClientError] = {}
            for node, part in self._by_leader(left, failed).items():
                try:
                    answer = self.connection(self.metadata.brokers[node]).request(
                        name, request(part)
                    )
                except ClientError as error:
                    failed |= dict.fromkeys(part, error)
                    continue
                unanswered = dict(part)
                for partition, code, result in results(answer):
                    if unanswered.pop(partition, None) is None:
                        raise ProtocolViolation(f"{partition} was not asked for")
                    if code:
                        failed[partition] = BrokerError(code, str(partition))
                    else:
                        found[partition] = result
                        del left[partition]
                failed |= {each: ClientError(f"{each}: no answer") for each in unanswered}
            is_late = time.monotonic() > deadline
            for partition, failure in failed.items():
                if is_late or not may_pass(failure):
                    found[partition] = failure
                    del left[partition]
            if left:
                time.sleep(_PAUSE_S)
                try:
                    self.refresh({partition.topic for partition in left})
                except BrokerUnreachable as error:
                    if time.monotonic() > deadline:
                        return found | dict.fromkeys(left, error)
        return found

    def _by_leader(
        self, wanted: Mapping[TopicPartition, V], failed: dict[TopicPartition, ClientError]
    ) -> dict[int, dict[TopicPartition, V]]:
        missing = {partition.topic for partition in wanted} - self.metadata.topics.keys()
        if missing:
            self.refresh(missing)
        parts: dict[int, dict[TopicPartition, V]] = {}
        for partition, value in wanted.items():
            try:
                parts.setdefault(self.leader_of(partition), {})[partition] = value
            except BrokerError as error:
                failed[partition] = error
        return parts


def may_pass(error: ClientError) -> bool:
    """Return whether the same request may succeed a moment later."""
    return isinstance(error, BrokerUnreachable) or (
        isinstance(error, BrokerError) and error.is_retriable
    )


def by_topic(
    partitions: Iterable[TopicPartition],
    item: Callable[[TopicPartition], Any],
    *,
    key: str = "name",
    items: str = "partitions",
) -> list[dict[str, Any]]:
    """Return the array of topics of a request, with an item for each partition."""
    topics: dict[str, list[Any]] = {}
    for each in partitions:
        topics.setdefault(each.topic, []).append(item(each))
    return [{key: topic, items: values} for topic, values in topics.items()]


def topic_name(data: bytes) -> str:
    """Return the name of a topic in an answer. Errors: ValueError."""
    name = data.decode("ascii", errors="replace")
    if not is_topic(name):
        raise ValueError(f"the topic name {name!a}")
    return name


def _metadata(answer: Struct) -> Metadata:
    cluster_id = answer["clusterId"]
    found = Metadata(cluster_id and cluster_id.decode(errors="replace"), answer["controllerId"])
    for each in answer["brokers"]:
        host = each["host"].decode("ascii", errors="replace")
        if not is_host(host) or not 0 < each["port"] < 65536:
            raise ValueError(f"the address {host!a}, port {each['port']}")
        found.brokers[each["nodeId"]] = HostPort(host, each["port"])
    for each in answer["topics"]:
        topic = Topic(
            topic_name(each["name"] or b""), each["topicId"], each["isInternal"], each["errorCode"]
        )
        for part in each["partitions"]:
            if part["partitionIndex"] < 0:
                raise ValueError(f"the partition {part['partitionIndex']}")
            topic.partitions[part["partitionIndex"]] = Partition(
                part["leaderId"],
                part["leaderEpoch"],
                part["replicaNodes"],
                part["isrNodes"],
                part["errorCode"],
            )
        found.topics[topic.name] = topic
    return found
