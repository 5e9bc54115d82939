"""A cluster: its brokers, topics and leaders, with one connection to each broker that is used.

Not thread-safe. A thread that waits for its own answers has a cluster of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka_client.addresses import HostPort, is_host, is_topic
from kafka_client.connection import TIMEOUT_S, Connection
from kafka_client.errors import BrokerError, BrokerUnreachable, ClientError, ProtocolViolation
from kafka_client.properties import ClientSettings
from storage.errors import InvalidConfig, reason_of
from storage.settings.messages import Struct

UNKNOWN_TOPIC: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
#: Between two attempts.
PAUSE_S: Final = 0.1
_SHORTEST_S: Final = 0.1


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


@dataclass
class Topic:
    """A topic. `id` is 16 zeros if the broker has no ids; `error` is a code, 0 if there is none."""

    name: str
    id: bytes
    error: int
    partitions: dict[int, Partition] = field(default_factory=dict)


@dataclass
class Metadata:
    cluster_id: str | None = None
    brokers: dict[int, HostPort] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)

    def leader_of(self, partition: TopicPartition) -> HostPort:
        """Return the address of the leader. Errors: BrokerError."""
        topic = self.topics.get(partition.topic)
        if topic is None or topic.error:
            raise BrokerError(topic.error if topic else UNKNOWN_TOPIC, partition.topic)
        if partition.partition not in topic.partitions:
            raise BrokerError(UNKNOWN_TOPIC, str(partition))
        found = topic.partitions[partition.partition]
        if found.leader < 0 or found.leader not in self.brokers:
            raise BrokerError(LEADER_NOT_AVAILABLE, str(partition))
        return self.brokers[found.leader]


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

    def for_thread(self) -> Cluster:
        """Return a cluster without connections, for another thread."""
        cluster = Cluster(self._bootstrap, self.settings)
        cluster.metadata = self.metadata
        return cluster

    def connection(self, address: HostPort, connect_s: float | None = None) -> Connection:
        """Return the open connection to a broker, or connect. Errors: those of `Connection`.

        Once the brokers are known, an error of a file is BrokerUnreachable, such as that of a
        certificate that is just replaced by the next one.
        """
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable():
            try:
                connection = Connection(address, self.settings, connect_s)
            except (OSError, InvalidConfig) as error:
                if not self.metadata.brokers:
                    raise
                raise BrokerUnreachable(reason_of(error)) from None
            self._connections[address] = connection
        return connection

    def any_connection(self) -> Connection:
        """Return a connection to the first broker that answers. Errors: that of an answer that is
        not valid, otherwise the last one.
        """
        opened = [address for address, each in self._connections.items() if each.is_open]
        known = [*opened, *self._bootstrap, *self.metadata.brokers.values()]
        addresses = list(dict.fromkeys(known))
        deadline = time.monotonic() + TIMEOUT_S
        failures: list[ClientError] = []
        while addresses:
            address = addresses.pop(0)
            # A broker that is silent leaves time for the others.
            left_s = max(deadline - time.monotonic(), _SHORTEST_S)
            try:
                return self.connection(address, left_s / (len(addresses) + 1))
            except (ProtocolViolation, BrokerUnreachable) as error:
                failures.append(error)
        violations = [each for each in failures if isinstance(each, ProtocolViolation)]
        raise (violations or failures)[-1]

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
            raise connection.violation(f"its answer to Metadata has {error}") from None
        if wanted is not None:
            found.topics = self.metadata.topics | found.topics
        self.metadata = found
        return found

    # -- requests to leaders -----------------------------------------------------------------------

    def at_leaders(
        self, name: str, wanted: Mapping[TopicPartition, Struct], common: Struct, names: Names
    ) -> dict[TopicPartition, Struct | ClientError]:
        """Send a request that may be repeated to the leaders of partitions.

        `wanted` has the fields of each partition, `common` those of the request. Returned are the
        fields of the answer, or the error. An error that may pass is tried again for 10 seconds.
        """
        deadline = time.monotonic() + TIMEOUT_S
        found: dict[TopicPartition, Struct | ClientError] = {}
        left = dict(wanted)
        while True:
            for address, part in self._by_leader(left, found, names).items():
                try:
                    connection = self.connection(address)
                    topics = by_topic(part, part.__getitem__, names)
                    answer = connection.request(name, {**common, names.topics: topics})
                    answered = dict(results(connection, answer, names))
                    if answered.keys() != part.keys():
                        raise connection.violation(f"its answer to {name} has other partitions")
                except ClientError as error:
                    found |= dict.fromkeys(part, error)
                    continue
                found |= {
                    each: BrokerError(fields["errorCode"], str(each))
                    if fields["errorCode"]
                    else fields
                    for each, fields in answered.items()
                }
            left = {each: left[each] for each in left if may_pass(found[each])}
            if not left or time.monotonic() > deadline:
                return found
            time.sleep(PAUSE_S)
            with contextlib.suppress(ClientError):
                self.refresh({partition.topic for partition in left})

    def _by_leader(
        self,
        wanted: Mapping[TopicPartition, Struct],
        failed: dict[TopicPartition, Struct | ClientError],
        names: Names,
    ) -> dict[HostPort, dict[TopicPartition, Struct]]:
        missing = {partition.topic for partition in wanted} - self.metadata.topics.keys()
        if missing:
            self.refresh(missing)
        parts: dict[HostPort, dict[TopicPartition, Struct]] = {}
        for each, fields in wanted.items():
            try:
                leader = self.metadata.leader_of(each)
            except BrokerError as error:
                failed[each] = error
                continue
            epoch = self.metadata.topics[each.topic].partitions[each.partition].leader_epoch
            part = parts.setdefault(leader, {})
            part[each] = {names.partition: each.partition, "currentLeaderEpoch": epoch, **fields}
        return parts


class Names(NamedTuple):
    """How an API calls its arrays and their keys."""

    topic: str = "name"
    partition: str = "partitionIndex"
    topics: str = "topics"
    partitions: str = "partitions"


def may_pass(error: object) -> bool:
    """Return whether the same request may succeed a moment later."""
    return isinstance(error, BrokerUnreachable) or (
        isinstance(error, BrokerError) and error.is_retriable
    )


def by_topic(
    partitions: Iterable[TopicPartition], item: Callable[[TopicPartition], Any], names: Names
) -> list[Struct]:
    """Return the array of topics of a request, with an item for each partition."""
    topics: dict[str, list[Any]] = {}
    for each in partitions:
        topics.setdefault(each.topic, []).append(item(each))
    return [{names.topic: topic, names.partitions: values} for topic, values in topics.items()]


def results(
    connection: Connection, answer: Struct, names: Names
) -> Iterator[tuple[TopicPartition, Struct]]:
    """Yield the partitions of an answer. Errors: ProtocolViolation; the connection is closed."""
    for topic in answer[names.topics]:
        try:
            name = topic_name(topic[names.topic])
        except ValueError as error:
            raise connection.violation(f"an answer has {error}") from None
        for each in topic[names.partitions]:
            yield TopicPartition(name, each[names.partition]), each


def topic_name(data: bytes) -> str:
    """Return the name of a topic in an answer. Errors: ValueError."""
    name = data.decode("ascii", errors="replace")
    if not is_topic(name):
        raise ValueError(f"the topic name {name!a}")
    return name


def _metadata(answer: Struct) -> Metadata:
    cluster_id = answer["clusterId"]
    found = Metadata(cluster_id and cluster_id.decode(errors="replace"))
    for each in answer["brokers"]:
        host = each["host"].decode("ascii", errors="replace")
        if not is_host(host) or not 0 < each["port"] < 65536:
            raise ValueError(f"the address {host!a}, port {each['port']}")
        found.brokers[each["nodeId"]] = HostPort(host, each["port"])
    for each in answer["topics"]:
        topic = Topic(topic_name(each["name"] or b""), each["topicId"], each["errorCode"])
        for part in each["partitions"]:
            if part["partitionIndex"] < 0:
                raise ValueError(f"the partition {part['partitionIndex']}")
            topic.partitions[part["partitionIndex"]] = Partition(
                part["leaderId"],
                part["leaderEpoch"],
                part["replicaNodes"],
                part["isrNodes"],
            )
        found.topics[topic.name] = topic
    return found
