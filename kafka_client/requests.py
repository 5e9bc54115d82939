"""Operations with one answer: offsets, epochs, a write, settings and consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafka_client.cluster import (
    Cluster,
    TopicPartition,
    by_topic,
    may_pass,
    topic_name,
)
from kafka_client.connection import ANY, TIMEOUT_S, Connection
from kafka_client.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ProtocolViolation,
    UnknownOutcome,
)
from storage.settings.messages import Struct

#: Timestamps for `list_offsets`.
LATEST: Final = -1
EARLIEST: Final = -2

#: The resource type of a topic, and the source of a setting that is set on it.
TOPIC: Final = 2
DYNAMIC_TOPIC_CONFIG: Final = 1

_CONSUMER: Final = -1
_GROUP: Final = 0
_ALL_IN_SYNC: Final = -1
_TIMEOUT_MS: Final = 9000
# After these a record may be stored.
_UNKNOWN: Final = frozenset({-1, 7, 20})
# The last versions in which these requests name topics. Later ones have ids.
_GROUP_ID_NOT_FOUND: Final = 69
_NAMES_IN_OFFSETS: Final = 9
_NAMES_IN_PRODUCE: Final = 12
_PAUSE_S: Final = 0.1


class Offset(NamedTuple):
    """An offset, the leader epoch of its record, and its timestamp in ms; -1 if there is none."""

    offset: int
    leader_epoch: int
    timestamp: int = -1


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, committed: bool = False
) -> dict[TopicPartition, Offset | ClientError]:
    """Return the first offset with at least a timestamp in ms, or LATEST or EARLIEST.

    `committed`: the latest is the last stable offset. Errors: ClientError.
    """

    def request(part: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = by_topic(part, lambda each: _asked(cluster, each, timestamp=part[each]))
        return {
            "replicaId": _CONSUMER,
            "isolationLevel": int(committed),
            "topics": topics,
            "timeoutMs": _TIMEOUT_MS,
        }

    def result(each: Struct) -> Offset:
        return Offset(each["offset"], each["leaderEpoch"], each["timestamp"])

    return cluster.at_leaders(
        "ListOffsets", wanted, request, lambda answer: _results(answer, result)
    )


def end_offsets_of_epochs(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Offset | ClientError]:
    """Return for a leader epoch the largest epoch up to it that the leader has, and its end.

    Errors: ClientError.
    """

    def request(part: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = by_topic(
            part,
            lambda each: {
                "partition": each.partition,
                "currentLeaderEpoch": _epoch(cluster, each),
                "leaderEpoch": part[each],
            },
            key="topic",
        )
        return {"replicaId": _CONSUMER, "topics": topics}

    def result(each: Struct) -> Offset:
        return Offset(each["endOffset"], each["leaderEpoch"])

    def results(answer: Struct) -> Iterator[tuple[TopicPartition, int, Offset]]:
        return _results(answer, result, topic_key="topic", key="partition")

    return cluster.at_leaders("OffsetForLeaderEpoch", wanted, request, results)


def _epoch(cluster: Cluster, partition: TopicPartition) -> int:
    return cluster.metadata.topics[partition.topic].partitions[partition.partition].leader_epoch


def _asked(cluster: Cluster, partition: TopicPartition, **fields: int) -> dict[str, int]:
    epoch = _epoch(cluster, partition)
    return {"partitionIndex": partition.partition, "currentLeaderEpoch": epoch, **fields}


def _results(
    answer: Struct,
    result: Any,
    *,
    topics: str = "topics",
    topic_key: str = "name",
    partitions: str = "partitions",
    key: str = "partitionIndex",
) -> Iterator[tuple[TopicPartition, int, Any]]:
    for topic in answer[topics]:
        try:
            name = topic_name(topic[topic_key])
        except ValueError as error:
            raise ProtocolViolation(f"an answer has {error}") from None
        for each in topic[partitions]:
            yield TopicPartition(name, each[key]), each["errorCode"], result(each)


# -- produce ---------------------------------------------------------------------------------------


def produce(cluster: Cluster, partition: TopicPartition, batch: bytes) -> int:
    """Append a batch with acks=all, and return the offset of its first record.

    The batch is sent again only if the broker has refused it. Errors: ClientError;
    UnknownOutcome if it may be stored.
    """
    deadline = time.monotonic() + TIMEOUT_S
    data = {
        "acks": _ALL_IN_SYNC,
        "timeoutMs": _TIMEOUT_MS,
        "topicData": by_topic(
            [partition],
            lambda each: {"index": each.partition, "records": batch},
            items="partitionData",
        ),
    }
    while True:
        try:
            cluster.refresh([partition.topic])
            node = cluster.leader_of(partition)
            connection = cluster.connection(cluster.metadata.brokers[node])
            return _produce(connection, partition, data)
        except (BrokerUnreachable, BrokerError) as error:
            if not may_pass(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _produce(connection: Connection, partition: TopicPartition, data: Struct) -> int:
    reason = "the broker may have stored the record, or not"
    try:
        answer = connection.request("Produce", data, _NAMES_IN_PRODUCE)
        found = list(
            _results(
                answer,
                lambda each: each,
                topics="responses",
                partitions="partitionResponses",
                key="index",
            )
        )
    except (BrokerUnreachable, ProtocolViolation) as error:
        raise UnknownOutcome(f"{partition}: {reason}: {error}") from None
    if len(found) != 1 or found[0][0] != partition:
        raise UnknownOutcome(f"{partition}: {reason}: its answer is about other partitions")
    [(_, code, each)] = found
    if code in _UNKNOWN:
        raise UnknownOutcome(f"{partition}: {reason}: {BrokerError(code, 'its answer')}")
    if code:
        raise BrokerError(code, str(partition), each["errorMessage"])
    return int(each["baseOffset"])


# -- settings --------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """The value is None if it is a secret. `source` is DYNAMIC_TOPIC_CONFIG if a topic sets it."""

    value: str | None
    source: int


def describe_topic_configs(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, dict[str, Setting] | ClientError]:
    """Return the settings of topics by name. Errors: ClientError."""
    resources = [
        {"resourceType": TOPIC, "resourceName": topic, "configurationKeys": None}
        for topic in topics
    ]
    answer = cluster.any_connection().request("DescribeConfigs", {"resources": resources})
    found: dict[str, dict[str, Setting] | ClientError] = {}
    for each in answer["results"]:
        topic = each["resourceName"].decode(errors="replace")
        if each["errorCode"]:
            found[topic] = BrokerError(each["errorCode"], topic, each["errorMessage"])
        else:
            found[topic] = {
                _text(config["name"]): Setting(
                    None if config["value"] is None else _text(config["value"]),
                    config["configSource"],
                )
                for config in each["configs"]
            }
    return found


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


# -- groups ----------------------------------------------------------------------------------------


def list_groups(cluster: Cluster) -> dict[str, str]:
    """Ask all brokers, and return the groups' states by their names. Errors: ClientError."""
    found: dict[str, str] = {}
    for address in cluster.refresh(()).brokers.values():
        answer = cluster.connection(address).request("ListGroups", {})
        if answer["errorCode"]:
            raise BrokerError(answer["errorCode"], f"broker {address}")
        found |= {_text(each["groupId"]): _text(each["groupState"]) for each in answer["groups"]}
    return found


def at_coordinator(
    cluster: Cluster, group: str, name: str, data: Struct, last: int = ANY
) -> Struct:
    """Send a request that may be repeated to a group's coordinator, for at most 10 seconds.

    Errors: ClientError.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            node = _coordinator(cluster, group)
            if node not in cluster.metadata.brokers:
                cluster.refresh(())
            address = cluster.metadata.brokers.get(node)
            if address is None:
                raise BrokerUnreachable(f"broker {node}, the coordinator of {group}, is unknown")
            answer = cluster.connection(address).request(name, data, last)
            for each in (answer, *answer.get("groups", ())):
                if each.get("errorCode"):
                    raise BrokerError(each["errorCode"], f"group {group}")
            return answer
        except (BrokerUnreachable, BrokerError) as error:
            if not may_pass(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _coordinator(cluster: Cluster, group: str) -> int:
    asked = {"key": group, "keyType": _GROUP, "coordinatorKeys": [group]}
    answer = cluster.any_connection().request("FindCoordinator", asked)
    [found] = answer["coordinators"] or [answer]
    if found["errorCode"]:
        raise BrokerError(found["errorCode"], f"group {group}", found["errorMessage"])
    return int(found["nodeId"])


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str


def fetch_committed(cluster: Cluster, group: str) -> dict[TopicPartition, Committed | ClientError]:
    """Return all committed offsets of a group; offsets of pending transactions are waited for.

    Errors: ClientError.
    """
    data = {
        "groupId": group,
        "topics": None,
        "groups": [{"groupId": group, "topics": None}],
        "requireStable": True,
    }
    answer = at_coordinator(cluster, group, "OffsetFetch", data, _NAMES_IN_OFFSETS)
    part = answer["groups"][0] if answer["groups"] else answer

    def result(each: Struct) -> Committed:
        metadata = _text(each["metadata"] or b"")
        return Committed(each["committedOffset"], each["committedLeaderEpoch"], metadata)

    return {
        partition: BrokerError(code, str(partition)) if code else committed
        for partition, code, committed in _results(part, result)
    }


def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, ClientError]:
    """Commit offsets of a group without members. Return the partitions that were refused.

    Errors: ClientError.
    """
    topics = by_topic(
        offsets,
        lambda each: {
            "partitionIndex": each.partition,
            "committedOffset": offsets[each].offset,
            "committedLeaderEpoch": offsets[each].leader_epoch,
            "committedMetadata": offsets[each].metadata,
        },
    )
    data = {"groupId": group, "topics": topics}
    answer = at_coordinator(cluster, group, "OffsetCommit", data, _NAMES_IN_OFFSETS)
    return {
        partition: BrokerError(code, str(partition))
        for partition, code, _ in _results(answer, lambda _: None)
        if code
    }


class Member(NamedTuple):
    id: str
    client_id: str
    host: str


class Group(NamedTuple):
    state: str
    members: list[Member]


def describe_group(cluster: Cluster, group: str) -> Group:
    """Describe a group of either protocol. Errors: ClientError."""
    try:
        answer = at_coordinator(cluster, group, "DescribeGroups", {"groups": [group]})
    except BrokerError as error:
        if error.code != _GROUP_ID_NOT_FOUND:
            raise
        # A group of the consumer protocol (KIP-848).
        answer = at_coordinator(cluster, group, "ConsumerGroupDescribe", {"groupIds": [group]})
    [found] = answer["groups"]
    members = [
        Member(_text(each["memberId"]), _text(each["clientId"]), _text(each["clientHost"]))
        for each in found["members"]
    ]
    return Group(_text(found["groupState"]), members)
