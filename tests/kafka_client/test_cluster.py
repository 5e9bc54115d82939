"""Brokers and leaders: what is done when they move, refuse or go away."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kafka_client import cluster as cluster_module
from kafka_client import connection as connection_module
from kafka_client import consume as consume_module
from kafka_client import requests as requests_module
from kafka_client.addresses import HostPort
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ProtocolViolation,
    UnknownOutcome,
)
from kafka_client.fetch import Position
from kafka_client.properties import ClientSettings, Tls
from kafka_client.requests import (
    LATEST,
    Committed,
    Offset,
    TopicSettings,
    describe_topic_configs,
    fetch_all_committed,
    fetch_committed,
    list_groups,
    list_offsets,
    produce,
)
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import ID, FakeBroker, answer, batch, partition
from tests.waits import until

TOPIC = TopicPartition("t", 0)
UNSTABLE = 88


class Pair:
    """Two brokers. One of them leads partition 0 of the topic `t`."""

    def __init__(self, one: FakeBroker, two: FakeBroker) -> None:
        self.brokers = [one, two]
        self.leader = 0
        for each in self.brokers:
            each.answers["Metadata"] = lambda *_: self.metadata()

    def metadata(self, **topic: Any) -> Mapping[str, Any]:
        part = {"partitionIndex": 0, "leaderId": self.leader, "leaderEpoch": 5}
        return {
            "brokers": [
                {"nodeId": node, "host": each.address.host, "port": each.address.port}
                for node, each in enumerate(self.brokers)
            ],
            "topics": [{"name": b"t", "topicId": ID, "partitions": [part], **topic}],
        }

    def answer(self, name: str, *answers: Callable[..., Any]) -> None:
        for broker, each in zip(self.brokers, answers, strict=True):
            broker.answers[name] = each

    def count(self, name: str) -> list[int]:
        return [[each[0] for each in broker.requests].count(name) for broker in self.brokers]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with FakeBroker() as one, FakeBroker() as two:
        yield Pair(one, two)


@pytest.fixture
def cluster(pair: Pair) -> Iterator[Cluster]:
    with Cluster([pair.brokers[0].address], ClientSettings()) as cluster:
        yield cluster


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is a second."""
    for module in (cluster_module, connection_module, consume_module, requests_module):
        monkeypatch.setattr(module, "TIMEOUT_S", 1.0)


def offsets(code: int = 0, offset: int = 7) -> Callable[..., Struct]:
    part = {"partitionIndex": 0, "errorCode": code, "offset": offset}
    return lambda *_: {"topics": [{"name": "t", "partitions": [part]}]}


def moves(pair: Pair, last: Callable[..., Any]) -> Callable[..., Any]:
    """Answer once more. From then on, the other broker is the leader."""

    def moved(*_: object) -> Any:
        pair.leader = 1
        return last()

    return moved


# -- requests to leaders ---------------------------------------------------------------------------


def test_a_leader_that_has_moved_is_found(pair: Pair, cluster: Cluster) -> None:
    pair.answer("ListOffsets", moves(pair, offsets(6)), offsets())
    assert list_offsets(cluster, {TOPIC: LATEST}) == {TOPIC: Offset(7, -1)}
    assert pair.count("ListOffsets") == [1, 1]


def test_a_leader_that_is_dead_is_replaced(pair: Pair, cluster: Cluster) -> None:
    pair.answer("ListOffsets", moves(pair, lambda: None), offsets())
    assert list_offsets(cluster, {TOPIC: LATEST}) == {TOPIC: Offset(7, -1)}


def test_a_right_that_is_missing_is_an_error_of_its_topic(pair: Pair, cluster: Cluster) -> None:
    pair.answer("ListOffsets", offsets(29), offsets())
    error = list_offsets(cluster, {TOPIC: LATEST})[TOPIC]
    assert isinstance(error, BrokerError)
    assert str(error) == "t:0: TOPIC_AUTHORIZATION_FAILED"
    assert pair.count("ListOffsets") == [1, 0]


@pytest.mark.parametrize(
    ("topic", "number", "reason"),
    [
        ("../x", 0, r"an answer has the topic name '\.\./x'"),
        ("t", 1, "its answer to ListOffsets has other partitions"),
    ],
)
def test_an_answer_about_other_partitions_is_refused(
    pair: Pair, cluster: Cluster, topic: str, number: int, reason: str
) -> None:
    found = {"topics": [{"name": topic, "partitions": [{"partitionIndex": number}]}]}
    pair.answer("ListOffsets", lambda *_: found, offsets())
    error = list_offsets(cluster, {TOPIC: LATEST})[TOPIC]
    assert isinstance(error, ProtocolViolation)
    assert re.search(reason, str(error))


def test_a_partition_that_does_not_exist_or_has_no_leader(
    quick: None, pair: Pair, cluster: Cluster
) -> None:
    other = TopicPartition("t", 7)
    pair.leader = -1
    found = list_offsets(cluster, {TOPIC: LATEST, other: LATEST})
    assert [str(found[each]) for each in (TOPIC, other)] == [
        "t:0: LEADER_NOT_AVAILABLE",
        "t:7: UNKNOWN_TOPIC_OR_PARTITION",
    ]


def test_an_error_that_does_not_pass_is_returned(quick: None, pair: Pair, cluster: Cluster) -> None:
    pair.answer("ListOffsets", offsets(6), offsets())
    started = time.monotonic()
    error = list_offsets(cluster, {TOPIC: LATEST})[TOPIC]
    assert str(error) == "t:0: NOT_LEADER_OR_FOLLOWER"
    assert time.monotonic() - started < 9


def test_all_brokers_are_gone(quick: None, pair: Pair, cluster: Cluster) -> None:
    cluster.refresh(["t"])
    for broker in pair.brokers:
        broker.__exit__()
    error = list_offsets(cluster, {TOPIC: LATEST})[TOPIC]
    assert isinstance(error, BrokerUnreachable)


def test_a_certificate_that_is_missing_later_is_waited_for(
    quick: None, pair: Pair, cluster: Cluster
) -> None:
    """It may just be replaced by the next one."""
    settings = ClientSettings(tls=Tls("/none/ca.pem"))
    with Cluster([pair.brokers[0].address], settings) as later:
        with pytest.raises(FileNotFoundError):
            later.refresh()
        later.metadata = cluster.refresh()
        found = list_offsets(later, {TOPIC: LATEST})[TOPIC]
        assert isinstance(found, BrokerUnreachable)
        assert "/none/ca.pem" in str(found)


def test_the_next_of_the_bootstrap_servers_is_tried(pair: Pair) -> None:
    """The first ones do not listen, and are no broker."""
    with FakeBroker(ApiVersions=lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n") as web:
        servers = [HostPort("127.0.0.1", 1), web.address, pair.brokers[1].address]
        with Cluster(servers, ClientSettings()) as cluster:
            assert list(cluster.refresh(["t"]).topics) == ["t"]
        with (
            Cluster([web.address, servers[0]], ClientSettings()) as cluster,
            pytest.raises(ProtocolViolation, match=r"Is it a Kafka broker\?"),
        ):
            cluster.refresh(["t"])


def test_a_silent_broker_leaves_time_for_the_next(quick: None, pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:
        silent = HostPort(*full.getsockname())
        first.connect(silent)  # nobody accepts: the next one waits
        with Cluster([silent, pair.brokers[1].address], ClientSettings()) as cluster:
            assert list(cluster.refresh(["t"]).topics) == ["t"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topics": [{"name": b"../x", "partitions": []}]}, r"the topic name '\.\./x'"),
        ({"topics": [{"name": b"u", "partitions": []}]}, "a topic that was not asked for"),
        ({"topics": [{"name": b"t", "partitions": [{"partitionIndex": -1}]}]}, "the partition -1"),
        (
            {"brokers": [{"nodeId": 0, "host": b"a b\n", "port": 1}]},
            r"the address 'a b\\n', port 1",
        ),
        ({"brokers": [{"nodeId": 0, "host": b"a", "port": -1}]}, "the address 'a', port -1"),
    ],
)
def test_metadata_that_is_not_valid(
    pair: Pair, cluster: Cluster, change: Struct, reason: str
) -> None:
    pair.brokers[0].answers["Metadata"] = lambda *_: {**pair.metadata(), **change}
    with pytest.raises(ProtocolViolation, match=f"its answer to Metadata has {reason}"):
        cluster.refresh(["t"])


# -- the coordinator of a group --------------------------------------------------------------------


def coordinator(*_: object) -> Struct:
    return {"coordinators": [{"key": "g", "nodeId": 1}]}


def test_a_request_waits_for_the_coordinator(pair: Pair, cluster: Cluster) -> None:
    """Its errors stand at the group, or at each partition."""
    codes = [(0, 0), (16, 0), (0, 14)] * 2

    def committed(*_: object) -> Struct:
        of_group, of_partition = codes.pop()
        part = {"partitionIndex": 0, "committedOffset": 3, "errorCode": of_partition}
        topics = [{"name": "t", "partitions": [part]}]
        return {"groups": [{"groupId": "g", "topics": topics, "errorCode": of_group}]}

    pair.answer("FindCoordinator", coordinator, coordinator)
    pair.answer("OffsetFetch", committed, committed)
    cluster.refresh(["t"])
    assert fetch_committed(cluster, "g") == {TOPIC: Committed(3, -1, "")}
    assert pair.count("OffsetFetch") == [0, 3]
    listed = [{"groupId": "g", "groupState": "Empty", "groupType": "classic"}]
    pair.answer("Metadata", *[lambda *_: {**pair.metadata(), "topics": []}] * 2)
    pair.answer("ListGroups", lambda *_: {"groups": []}, lambda *_: {"groups": listed})
    assert fetch_all_committed(cluster) == {"g": {TOPIC: Committed(3, -1, "")}}
    assert pair.count("OffsetFetch") == [0, 6]


def test_a_group_that_moves_while_the_brokers_are_asked(pair: Pair, cluster: Cluster) -> None:
    """Its next coordinator was asked before, or has to load it first."""
    node, loading = 1, 0

    def listed(number: int) -> Callable[..., Struct]:
        def groups(*_: object) -> Struct:
            nonlocal node, loading
            found = [{"groupId": "g", "groupState": "Empty", "groupType": "classic"}]
            here, node = number == node, 0
            if here and not number and loading:
                loading -= 1
                return {"errorCode": 14}
            return {"groups": found if here else []}

        return groups

    def committed(*_: object) -> Struct:
        part = {"partitionIndex": 0, "committedOffset": 3}
        return {"groups": [{"groupId": "g", "topics": [{"name": "t", "partitions": [part]}]}]}

    pair.answer("Metadata", *[lambda *_: {**pair.metadata(), "topics": []}] * 2)
    pair.answer("ListGroups", listed(0), listed(1))
    pair.answer("OffsetFetch", committed, committed)
    assert fetch_all_committed(cluster) == {"g": {TOPIC: Committed(3, -1, "")}}
    assert pair.count("OffsetFetch") == [1, 0]
    node, loading = 1, 1
    assert list_groups(cluster) == {"g": "Empty"}


def test_offsets_of_pending_transactions_are_waited_for(
    pair: Pair, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10 seconds, they are errors beside the other offsets."""
    codes = [UNSTABLE, UNSTABLE, 0]

    def committed(*_: object) -> Struct:
        parts = [
            {"partitionIndex": 0, "committedOffset": 3, "errorCode": codes.pop(0)},
            {"partitionIndex": 1, "committedOffset": 4},
        ]
        return {"groups": [{"groupId": "g", "topics": [{"name": "t", "partitions": parts}]}]}

    pair.answer("FindCoordinator", coordinator, coordinator)
    pair.answer("OffsetFetch", committed, committed)
    cluster.refresh(["t"])
    other = TopicPartition("t", 1)
    known = Committed(4, -1, "")
    assert fetch_committed(cluster, "g") == {TOPIC: Committed(3, -1, ""), other: known}
    assert pair.count("OffsetFetch") == [0, 3]
    monkeypatch.setattr("kafka_client.requests.TIMEOUT_S", 0.0)
    codes += [UNSTABLE]
    found = fetch_committed(cluster, "g")
    assert (str(found[TOPIC]), found[other]) == ("t:0: UNSTABLE_OFFSET_COMMIT", known)


def test_an_answer_about_other_groups_is_refused(pair: Pair, cluster: Cluster) -> None:
    pair.answer("FindCoordinator", coordinator, coordinator)
    cluster.refresh(["t"])
    pair.answer("OffsetFetch", *[lambda *_: {"groups": [{}, {}]}] * 2)
    refused = pytest.raises(ProtocolViolation, match="its answer to OffsetFetch has other groups")
    with refused:
        fetch_committed(cluster, "g")
    listed = [{"groupId": name, "groupState": "Empty", "groupType": "classic"} for name in "gh"]
    pair.answer("Metadata", *[lambda *_: {**pair.metadata(), "topics": []}] * 2)
    pair.answer("ListGroups", *[lambda *_: {"groups": listed}] * 2)
    pair.answer("OffsetFetch", *[lambda *_: {"groups": [{"groupId": "g", "topics": []}]}] * 2)
    with refused:
        fetch_all_committed(cluster)


def test_the_settings_of_many_topics_come_in_several_answers(pair: Pair, cluster: Cluster) -> None:
    """One answer would be larger than allowed."""

    def described(_version: int, data: Struct) -> Struct:
        names = [each["resourceName"] for each in data["resources"]]
        assert len(names) <= 1000
        return {"results": [{"resourceName": name} for name in names]}

    pair.answer("DescribeConfigs", described, described)
    names = [f"t{number}" for number in range(2001)]
    assert describe_topic_configs(cluster, names) == dict.fromkeys(names, TopicSettings({}, {}))
    assert describe_topic_configs(cluster, []) == {}
    assert pair.count("DescribeConfigs") == [3, 0]


# -- produce ---------------------------------------------------------------------------------------


def produced(code: int = 0, base_offset: int = 3) -> Callable[..., Struct]:
    part = {"index": 0, "errorCode": code, "baseOffset": base_offset, "errorMessage": b"no\x1b[31m"}
    return lambda *_: {"responses": [{"name": "t", "partitionResponses": [part]}]}


def test_a_batch_goes_to_the_new_leader_after_a_refusal(pair: Pair, cluster: Cluster) -> None:
    pair.answer("Produce", moves(pair, produced(6, -1)), produced())
    assert produce(cluster, TOPIC, batch(0)) == 3
    assert pair.count("Produce") == [1, 1]


@pytest.mark.parametrize(
    "outcome",
    [
        *(lambda *_: None, lambda *_: b"HTTP/1.1 500", lambda *_: {}),
        *(produced(7, -1), produced(20, -1)),
        # The leader has appended the batch, and has then ceased to be the leader.
        *(produced(6), produced(56), produced(3)),
    ],
)
def test_an_unknown_outcome_is_never_repeated(
    pair: Pair, cluster: Cluster, outcome: Callable[..., Any]
) -> None:
    pair.answer("Produce", outcome, produced())
    with pytest.raises(UnknownOutcome, match="t:0: the broker may have stored the record, or not"):
        produce(cluster, TOPIC, batch(0))
    assert pair.count("Produce") == [1, 0]


def test_a_refusal_has_the_brokers_reason_made_printable(pair: Pair, cluster: Cluster) -> None:
    pair.answer("Produce", produced(87, -1), produced())
    with pytest.raises(BrokerError) as error:
        produce(cluster, TOPIC, batch(0))
    assert str(error.value) == "t:0: INVALID_RECORD: no\N{REPLACEMENT CHARACTER}[31m"


# -- consume ---------------------------------------------------------------------------------------


def consume(cluster: Cluster, end: int = 15, **position: Any) -> list[Any]:
    found = []
    start = Position(10, **position)
    with Consumer(cluster, {TOPIC: start}, {TOPIC: end}, max_wait_ms=10) as consumer:
        while not consumer.is_done:
            found += [(each.next_offset, each.error) for each in consumer.poll()]
    return found


def got(*found: Any, **fields: Any) -> Callable[..., Struct]:
    return lambda *_: answer(*found, **fields)


@pytest.mark.parametrize("code", [3, 6, 74, 75, 100])
def test_a_consumer_follows_the_leader(pair: Pair, cluster: Cluster, code: int) -> None:
    pair.answer("Fetch", moves(pair, got(partition(errorCode=code))), got(partition(batch(10))))
    assert consume(cluster) == [(15, None)]


def test_a_consumer_goes_on_at_another_broker_after_a_cut(pair: Pair, cluster: Cluster) -> None:
    pair.answer("Fetch", moves(pair, lambda: None), got(partition(batch(10))))
    assert consume(cluster) == [(15, None)]


def test_a_consumer_ends_when_no_leader_answers(quick: None, pair: Pair, cluster: Cluster) -> None:
    pair.answer("Fetch", lambda *_: b"", lambda *_: b"")
    started = time.monotonic()
    ((_, error),) = consume(cluster)
    assert isinstance(error, BrokerUnreachable)
    assert time.monotonic() - started < 9


def test_a_consumer_ends_when_all_brokers_are_gone(
    quick: None, pair: Pair, cluster: Cluster
) -> None:
    pair.answer("Fetch", got(partition()), got(partition()))
    with Consumer(cluster, {TOPIC: Position(10)}, max_wait_ms=10) as consumer:
        until(lambda: [each.error for each in consumer.poll()] == [None])
        for broker in pair.brokers:
            broker.__exit__()
        found: list[Any] = []
        while not consumer.is_done:
            found += consumer.poll()
    assert isinstance(found[-1].error, BrokerUnreachable)


def test_a_topic_that_was_created_again_is_not_the_same(pair: Pair, cluster: Cluster) -> None:
    ((_, error),) = consume(cluster, topic_id=b"x" * 16)
    assert isinstance(error, BrokerError)
    assert error.name == "INCONSISTENT_TOPIC_ID"


def test_an_error_of_a_partition_ends_it(pair: Pair, cluster: Cluster) -> None:
    pair.answer("Fetch", got(partition(errorCode=29)), got())
    ((_, error),) = consume(cluster)
    assert isinstance(error, BrokerError)
    assert error.name == "TOPIC_AUTHORIZATION_FAILED"


def test_an_answer_that_is_not_valid_ends_its_partitions(pair: Pair, cluster: Cluster) -> None:
    pair.answer("Fetch", got(partition(partitionIndex=4)), got())
    ((_, error),) = consume(cluster)
    assert isinstance(error, ClientError)
    assert "a partition that was not asked for" in str(error)


def test_nothing_beyond_the_end_is_fetched(pair: Pair, cluster: Cluster) -> None:
    pair.answer("Fetch", got(partition(batch(10))), got())
    assert consume(cluster, end=13) == [(15, None)]
    assert pair.count("Fetch") == [1, 0]
