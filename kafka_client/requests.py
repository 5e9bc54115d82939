"""Operations with one answer: offsets, epochs, a write, settings and consumer groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from kafka_client.cluster import (
    PAUSE_S,
    UNKNOWN_TOPIC,
    Cluster,
    Names,
    TopicPartition,
    may_pass,
    results,
)
from kafka_client.connection import ANY, TIMEOUT_S, Connection
from kafka_client.errors import (
    COORDINATOR_ERRORS,
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
#: The first offset that is not in remote storage only.
EARLIEST_LOCAL: Final = -4

# The resource type of a topic, and the source of a setting that is set on it.
_TOPIC: Final = 2
_OF_THE_TOPIC: Final = 1
_CONSUMER: Final = -1
_GROUP: Final = 0
_ALL_IN_SYNC: Final = -1
_TIMEOUT_MS: Final = 9000
# After these a record may be stored.
_UNKNOWN: Final = frozenset({-1, 7, 20})
# The last versions in which these requests name topics. Later ones have ids.
_NAMES_IN_OFFSETS: Final = 9
_NAMES_IN_PRODUCE: Final = 12
# The first version of OffsetFetch for many groups, and the number of groups in a request.
_MANY_GROUPS: Final = 8
_GROUPS_EACH: Final = 100
# The number of topics in a request for settings. The answer has 1.5 KB for each.
_TOPICS_EACH: Final = 1000
# The error of a topic that may not be described, the code of the right to read, and what a broker
# that does not know the rights says.
_DENIED: Final = 29
_READ: Final = 3
_NOT_SAID: Final = -(1 << 31)


T = TypeVar("T")


class Offset(NamedTuple):
    """An offset, the leader epoch of its record, and its timestamp in ms; -1 if there is none."""

    offset: int
    leader_epoch: int
    timestamp: int = -1


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, committed: bool = False
) -> dict[TopicPartition, Offset | ClientError]:
    """Return the first offset with at least a timestamp in ms, or LATEST, EARLIEST or
    EARLIEST_LOCAL.

    `committed`: the latest is the last stable offset. Errors: ClientError.
    """
    common = {"replicaId": _CONSUMER, "isolationLevel": int(committed), "timeoutMs": _TIMEOUT_MS}
    asked = {each: {"timestamp": wanted[each]} for each in wanted}
    found = cluster.at_leaders("ListOffsets", asked, common, Names())
    return {each: _offset(value, "offset") for each, value in found.items()}


def end_offsets_of_epochs(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Offset | ClientError]:
    """Return for a leader epoch the largest epoch up to it that the leader has, and its end.

    Errors: ClientError.
    """
    asked = {each: {"leaderEpoch": wanted[each]} for each in wanted}
    names = Names("topic", "partition")
    found = cluster.at_leaders("OffsetForLeaderEpoch", asked, {"replicaId": _CONSUMER}, names)
    return {each: _offset(value, "endOffset") for each, value in found.items()}


def _offset(found: Struct | ClientError, name: str) -> Offset | ClientError:
    if isinstance(found, ClientError):
        return found
    return Offset(found[name], found["leaderEpoch"], found.get("timestamp", -1))


# -- produce ---------------------------------------------------------------------------------------


def produce(cluster: Cluster, partition: TopicPartition, batch: bytes) -> int:
    """Append a batch with acks=all, and return the offset of its first record.

    The batch is sent again only if the broker has refused it. Errors: ClientError;
    UnknownOutcome if it may be stored.
    """
    part = {"index": partition.partition, "records": batch}
    data = {
        "acks": _ALL_IN_SYNC,
        "timeoutMs": _TIMEOUT_MS,
        "topicData": [{"name": partition.topic, "partitionData": [part]}],
    }

    def attempt() -> int:
        cluster.refresh([partition.topic])
        connection = cluster.connection(cluster.metadata.leader_of(partition))
        return _produce(connection, partition, data)

    return _repeated(attempt)


def _repeated(attempt: Callable[[], T]) -> T:
    """Return the result of a function. For 10 seconds, call it again after an error that may pass.

    Errors: ClientError.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return attempt()
        except (BrokerUnreachable, BrokerError) as error:
            if not may_pass(error) or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


def _produce(connection: Connection, partition: TopicPartition, data: Struct) -> int:
    reason = f"{partition}: the broker may have stored the record, or not"
    names = Names("name", "index", "responses", "partitionResponses")
    try:
        answer = connection.request("Produce", data, _NAMES_IN_PRODUCE)
        found = dict(results(connection, answer, names))
    except (BrokerUnreachable, ProtocolViolation) as error:
        raise UnknownOutcome(f"{reason}: {error}") from None
    if found.keys() != {partition}:
        raise UnknownOutcome(f"{reason}: its answer is about other partitions")
    code = found[partition]["errorCode"]
    # A leader that has appended the batch, and then loses its leadership, answers with its offset.
    if code in _UNKNOWN or (code and found[partition]["baseOffset"] >= 0):
        raise UnknownOutcome(f"{reason}: {BrokerError(code, 'its answer')}")
    if code:
        raise BrokerError(code, str(partition), found[partition]["errorMessage"])
    return int(found[partition]["baseOffset"])


# -- settings --------------------------------------------------------------------------------------


class TopicSettings(NamedTuple):
    """Settings by name, without the values of secrets; and those of them that the topic sets."""

    in_force: dict[str, str]
    set_here: dict[str, str]


def describe_topic_configs(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, TopicSettings | ClientError]:
    """Return the settings of topics. Errors: ClientError."""
    resources = [
        {"resourceType": _TOPIC, "resourceName": topic, "configurationKeys": None}
        for topic in topics
    ]
    found: dict[str, TopicSettings | ClientError] = {}
    for at in range(0, len(resources), _TOPICS_EACH):
        data = {"resources": resources[at : at + _TOPICS_EACH]}
        found |= _settings_in(cluster.any_connection().request("DescribeConfigs", data))
    return found


def _settings_in(answer: Struct) -> dict[str, TopicSettings | ClientError]:
    found: dict[str, TopicSettings | ClientError] = {}
    for each in answer["results"]:
        topic = _text(each["resourceName"])
        if each["errorCode"]:
            found[topic] = BrokerError(each["errorCode"], topic, each["errorMessage"])
            continue
        settings = TopicSettings({}, {})
        for config in sorted(each["configs"], key=lambda config: bytes(config["name"])):
            if config["value"] is not None:
                name, value = _text(config["name"]), _text(config["value"])
                settings.in_force[name] = value
                if config["configSource"] == _OF_THE_TOPIC:
                    settings.set_here[name] = value
        found[topic] = settings
    return found


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


# -- groups ----------------------------------------------------------------------------------------


def list_groups(cluster: Cluster) -> dict[str, str]:
    """Ask all brokers, and return the groups' states by their names. Errors: ClientError."""

    def attempt() -> dict[str, str]:
        found = [each for _, groups in _all_groups(cluster) for each in groups.items()]
        return {name: _text(group["groupState"]) for name, group in found}

    return _repeated(attempt)


def _all_groups(cluster: Cluster) -> Iterator[tuple[Connection, dict[str, Struct]]]:
    """Yield each broker with groups that it coordinates, each group once.

    All brokers are asked twice: between two answers, a group may move to a broker that was asked.
    """
    known: set[str] = set()
    for _ in range(2):
        for address in cluster.refresh(()).brokers.values():
            connection = cluster.connection(address)
            groups = _groups_at(connection)
            yield connection, {name: groups[name] for name in groups if name not in known}
            known |= groups.keys()


def _groups_at(connection: Connection) -> dict[str, Struct]:
    """Return the groups that a broker coordinates."""
    answer = connection.request("ListGroups", {})
    if answer["errorCode"]:
        raise BrokerError(answer["errorCode"], f"broker {connection.address}")
    return {_text(each["groupId"]): each for each in answer["groups"]}


def _only(connection: Connection, name: str, data: Struct, group: str, last: int = ANY) -> Struct:
    """Send a request about one group; later versions answer with an array."""
    answer = connection.request(name, data, last)
    parts = answer.get("groups") or answer.get("coordinators") or [answer]
    if len(parts) != 1:
        raise connection.violation(f"its answer to {name} has other groups")
    found: Struct = parts[0]
    codes = [found.get("errorCode"), answer.get("errorCode")]
    if "topics" in found:
        found["topics"] = dict(results(connection, found, Names()))
        # Old versions have the coordinator's errors at the partitions.
        codes += {each["errorCode"] for each in found["topics"].values()} & COORDINATOR_ERRORS
    for code in filter(None, codes):
        raise BrokerError(code, f"group {group}", found.get("errorMessage"))
    return found


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str


CommittedOffsets = dict[TopicPartition, Committed | ClientError]


def fetch_committed(cluster: Cluster, group: str) -> CommittedOffsets:
    """Return all committed offsets of a group.

    Offsets of pending transactions are waited for, up to 10 seconds. Errors: ClientError.
    """
    deadline = time.monotonic() + TIMEOUT_S
    asked = {"key": group, "keyType": _GROUP, "coordinatorKeys": [group]}

    def attempt() -> Struct:
        found = _only(cluster.any_connection(), "FindCoordinator", asked, group)
        if found["nodeId"] not in cluster.metadata.brokers:
            cluster.refresh(())
        address = cluster.metadata.brokers.get(found["nodeId"])
        if address is None:
            raise BrokerUnreachable(f"the coordinator of group {group} is not available")
        data = {**_offsets_of([group]), "requireStable": True}
        return _only(cluster.connection(address), "OffsetFetch", data, group, _NAMES_IN_OFFSETS)

    while True:
        committed = _committed(_repeated(attempt)["topics"])
        if not any(map(may_pass, committed.values())) or time.monotonic() > deadline:
            return committed
        time.sleep(PAUSE_S)


def fetch_all_committed(cluster: Cluster) -> dict[str, CommittedOffsets | ClientError]:
    """Return the committed offsets of all groups, many in a request where the brokers can do that.

    Offsets of pending transactions do not count yet. Share groups have none. Errors: ClientError.
    """
    return _repeated(lambda: _all_committed(cluster))


def _all_committed(cluster: Cluster) -> dict[str, CommittedOffsets | ClientError]:
    found: dict[str, CommittedOffsets | ClientError] = {}
    for connection, groups in _all_groups(cluster):
        names = [name for name, each in groups.items() if each["groupType"].lower() != b"share"]
        size = _GROUPS_EACH if connection.last_version("OffsetFetch") >= _MANY_GROUPS else 1
        for part in (names[at : at + size] for at in range(0, len(names), size)):
            found |= _committed_at(connection, part)
    return found


def _committed_at(
    connection: Connection, groups: Sequence[str]
) -> dict[str, CommittedOffsets | ClientError]:
    """Ask the coordinator of groups; before version 8, of one group."""
    answer = connection.request("OffsetFetch", _offsets_of(groups), _NAMES_IN_OFFSETS)
    parts = answer.get("groups") or [{**answer, "groupId": groups[0].encode()}]
    found: dict[str, CommittedOffsets | ClientError] = {}
    for each in parts:
        code, name = each["errorCode"], _text(each["groupId"])
        offsets = dict(results(connection, each, Names()))
        for moved in {code, *(part["errorCode"] for part in offsets.values())} & COORDINATOR_ERRORS:
            raise BrokerError(moved, f"group {name}")
        found[name] = BrokerError(code, f"group {name}") if code else _committed(offsets)
    if found.keys() != set(groups):
        raise connection.violation("its answer to OffsetFetch has other groups")
    return found


def _offsets_of(groups: Sequence[str]) -> Struct:
    """Return a request for all offsets of groups; before version 8, it is about the first one."""
    many = [{"groupId": group, "topics": None} for group in groups]
    return {"groupId": groups[0], "topics": None, "groups": many}


def _committed(found: Mapping[TopicPartition, Struct]) -> CommittedOffsets:
    return {
        each: BrokerError(fields["errorCode"], str(each))
        if fields["errorCode"]
        else Committed(
            fields["committedOffset"],
            fields["committedLeaderEpoch"],
            _text(fields["metadata"] or b""),
        )
        for each, fields in found.items()
    }


# -- rights ----------------------------------------------------------------------------------------


def may_read(cluster: Cluster, topic: str) -> bool | None:
    """Return whether this client may read a topic; None: it does not exist. A broker before 2.3
    does not say, and counts as allowing it. Errors: ClientError.
    """
    data = {
        "topics": [{"name": topic}],
        "allowAutoTopicCreation": False,
        "includeTopicAuthorizedOperations": True,
    }
    connection = cluster.any_connection()
    topics = connection.request("Metadata", data)["topics"]
    if len(topics) != 1:
        raise connection.violation("its answer to Metadata has other topics")
    found = topics[0]
    if found["errorCode"] == UNKNOWN_TOPIC:
        return None
    allowed = found["topicAuthorizedOperations"]
    return found["errorCode"] != _DENIED and (allowed == _NOT_SAID or bool(allowed >> _READ & 1))
