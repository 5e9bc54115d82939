"""Two brokers lead a partition of a topic each. One of them is slow, silent or refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kafka_client import connection as connection_module
from kafka_client import consume as consume_module
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.errors import BrokerUnreachable
from kafka_client.fetch import Fetched, Position
from kafka_client.properties import ClientSettings, Tls
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import (
    HANG_S,
    ID,
    FakeBroker,
    all_versions,
    answer,
    batch,
    partition,
)
from tests.waits import until

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def metadata(*brokers: FakeBroker) -> Mapping[str, Any]:
    """Each broker leads the partition of its number."""
    return {
        "brokers": [
            {"nodeId": node, "host": each.address.host, "port": each.address.port}
            for node, each in enumerate(brokers)
        ],
        "topics": [
            {
                "name": b"t",
                "topicId": ID,
                "partitions": [
                    {"partitionIndex": node, "leaderId": node, "leaderEpoch": 5}
                    for node in range(len(brokers))
                ],
            }
        ],
    }


def lead(number: int) -> Callable[[int, Struct], Struct]:
    """An answer to Fetch with one batch at the requested offset."""

    def fetched(_version: int, data: Struct) -> Struct:
        offsets = [each["fetchOffset"] for topic in data["topics"] for each in topic["partitions"]]
        parts = [batch(each, 1) for each in offsets]
        return answer(
            *[partition(part, partitionIndex=number, highWatermark=1 << 40) for part in parts]
        )

    return fetched


@pytest.fixture
def brokers() -> Iterator[list[FakeBroker]]:
    with FakeBroker(Fetch=lead(0)) as zero, FakeBroker(Fetch=lead(1)) as one:
        for each in (zero, one):
            each.answers["Metadata"] = lambda *_: metadata(zero, one)
        yield [zero, one]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Set it to let a broker answer that waits for it."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


@pytest.fixture
def cluster(brokers: list[FakeBroker]) -> Iterator[Cluster]:
    with Cluster([brokers[0].address], ClientSettings()) as cluster:
        yield cluster


@pytest.fixture
def consumer(brokers: list[FakeBroker], cluster: Cluster) -> Iterator[Consumer]:
    """It has not asked any broker yet."""
    with Consumer(cluster, {ZERO: Position(0), ONE: Position(0)}, max_wait_ms=100) as consumer:
        yield consumer


def get(consumer: Consumer, wanted: TopicPartition, count: int = 5) -> list[Fetched]:
    """Poll until `count` answers have come for a partition; return those for others."""
    others: list[Fetched] = []
    found: list[Fetched] = []

    def is_enough() -> bool:
        for each in consumer.poll():
            (found if each.partition == wanted else others).append(each)
        return len(found) >= count

    until(is_enough)
    assert [each.error for each in found if each.error] == []
    return others


def fetches(broker: FakeBroker) -> int:
    return [name for name, _, _ in broker.requests].count("Fetch")


def test_a_broker_that_sends_half_an_answer_delays_nobody(
    brokers: list[FakeBroker], consumer: Consumer, held: threading.Event
) -> None:
    def slow(_version: int, _data: Struct) -> Iterator[bytes]:
        brokers[1].answers["Fetch"] = lead(1)
        yield b"\0\0"
        held.wait(HANG_S)

    brokers[1].answers["Fetch"] = slow
    assert get(consumer, ZERO) == []
    until(lambda: fetches(brokers[1]) == 1)
    assert get(consumer, ZERO) == []


def test_a_broker_that_is_slow_keeps_its_connection(
    brokers: list[FakeBroker], consumer: Consumer, held: threading.Event
) -> None:
    def slow(version: int, data: Struct) -> Struct:
        held.wait(HANG_S)
        return lead(1)(version, data)

    brokers[1].answers["Fetch"] = slow
    assert get(consumer, ZERO) == []
    assert fetches(brokers[1]) <= 1
    held.set()
    get(consumer, ONE)
    assert brokers[1].connections == 1


def test_a_broker_that_accepts_a_connection_and_is_silent_delays_nobody(
    brokers: list[FakeBroker], consumer: Consumer, held: threading.Event
) -> None:
    def silent(version: int, data: Struct) -> Mapping[str, Any]:
        held.wait(HANG_S)
        return all_versions()(version, data)

    brokers[1].answers["ApiVersions"] = silent
    assert get(consumer, ZERO) == []
    held.set()
    get(consumer, ONE)


def test_a_search_for_a_leader_delays_nobody(
    brokers: list[FakeBroker], consumer: Consumer, held: threading.Event
) -> None:
    def slow(*_: object) -> Mapping[str, Any]:
        held.wait(HANG_S)
        return metadata(*brokers)

    def moved(*_: object) -> Struct:
        brokers[0].answers["Metadata"] = slow
        brokers[1].answers["Fetch"] = lead(1)
        return answer(partition(errorCode=6, partitionIndex=1))

    brokers[1].answers["Fetch"] = moved
    until(lambda: not list(consumer.poll()) or brokers[1].answers["Fetch"] is not moved)
    assert get(consumer, ZERO) == []
    held.set()
    get(consumer, ONE)


def test_a_broker_that_asks_for_a_pause_delays_nobody(
    brokers: list[FakeBroker], consumer: Consumer
) -> None:
    brokers[1].answers["Fetch"] = lambda version, data: {
        **lead(1)(version, data),
        "throttleTimeMs": 3_600_000,
    }
    others = get(consumer, ZERO) + get(consumer, ZERO)
    assert len(others) <= 1
    get(consumer, ZERO)
    assert fetches(brokers[1]) <= 1


def test_a_silent_broker_has_a_time_limit_of_its_own(
    monkeypatch: pytest.MonkeyPatch, brokers: list[FakeBroker], consumer: Consumer
) -> None:
    for module in (connection_module, consume_module):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    get(consumer, ONE)
    brokers[1].answers["Fetch"] = lambda *_: b""
    others: list[Fetched] = []
    while not others:
        others = [each for each in consumer.poll() if each.partition == ONE and each.error]
    assert isinstance(others[0].error, BrokerUnreachable)
    get(consumer, ZERO)
    # It may be fetched again.
    brokers[1].answers["Fetch"] = lead(1)
    consumer.add(ONE, Position(3))
    get(consumer, ONE)


def test_a_connection_that_was_closed_while_no_partition_needed_it(
    monkeypatch: pytest.MonkeyPatch, brokers: list[FakeBroker], consumer: Consumer
) -> None:
    """Its last answer is older than the time limit."""
    limit_s = 0.5
    monkeypatch.setattr(consume_module, "TIMEOUT_S", limit_s)
    get(consumer, ONE)
    consumer.drop(ONE)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        get(consumer, ZERO, 1)
    brokers[1].hang_up()
    consumer.add(ONE, Position(3))
    found: list[Fetched] = []
    while not found:
        found = [each for each in consumer.poll() if each.partition == ONE]
    assert [each.error for each in found] == [None]


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_caller_that_takes_long_does_not_end_a_partition(
    monkeypatch: pytest.MonkeyPatch,
    brokers: list[FakeBroker],
    consumer: Consumer,
    is_failing: bool,
) -> None:
    """As `cat -f` before a pager. Meanwhile, a broker restarts."""
    limit_s = 1.0
    monkeypatch.setattr(consume_module, "TIMEOUT_S", limit_s)
    get(consumer, ONE)
    brokers[1].answers["Fetch"] = lambda *_: None
    if is_failing:
        count = brokers[1].connections
        until(lambda: list(consumer.poll()) and brokers[1].connections > count)
    time.sleep(limit_s)
    if not is_failing:
        brokers[1].hang_up()
    brokers[1].answers["Fetch"] = lead(1)
    found: list[Fetched] = []
    while not found:
        found = [each for each in consumer.poll() if each.partition == ONE]
    assert [each.error for each in found] == [None]


def test_a_partition_is_fetched_from_another_position(
    brokers: list[FakeBroker], consumer: Consumer
) -> None:
    get(consumer, ZERO)
    consumer.add(ZERO, Position(700))
    found: list[Fetched] = []
    while not found:
        found = [each for each in consumer.poll() if each.partition == ZERO]
    assert [each.next_offset for each in found] == [701]


def test_a_certificate_that_cannot_be_read_is_an_error_of_the_partitions(
    monkeypatch: pytest.MonkeyPatch, brokers: list[FakeBroker]
) -> None:
    """It may just be replaced by the next one."""
    monkeypatch.setattr(consume_module, "TIMEOUT_S", 0.2)
    settings = ClientSettings(tls=Tls("/none/ca.pem"))
    with (
        Cluster([brokers[0].address], settings) as cluster,
        Consumer(cluster, {ZERO: Position(0)}, max_wait_ms=10) as consumer,
    ):
        found: list[Fetched] = []
        while not found:
            found += consumer.poll()
        assert isinstance(found[0].error, BrokerUnreachable)
        assert "/none/ca.pem" in str(found[0].error)


def test_a_consumer_without_partitions_waits_for_one(brokers: list[FakeBroker]) -> None:
    with (
        Cluster([brokers[0].address], ClientSettings()) as cluster,
        Consumer(cluster, {}, max_wait_ms=10) as consumer,
    ):
        assert consumer.is_done
        assert list(consumer.poll()) == []
        consumer.add(ONE, Position(0))
        get(consumer, ONE)


def test_a_replica_that_the_leader_prefers_is_read_until_it_lacks_the_offset(
    brokers: list[FakeBroker], cluster: Cluster
) -> None:
    asked: list[str] = []

    def leader(_version: int, data: Struct) -> Struct:
        asked.append(f"leader, rack {data['rackId'].decode()}")
        if len(asked) == 1:
            return answer(partition(preferredReadReplica=1))
        return answer(partition(batch(1)))

    def follower(*_: object) -> Struct:
        asked.append("follower")
        if len(asked) == 2:
            return answer(partition(batch(0, 1)))
        return answer(partition(errorCode=1))

    brokers[0].answers["Fetch"], brokers[1].answers["Fetch"] = leader, follower
    found: list[Fetched] = []
    with Consumer(cluster, {ZERO: Position(0)}, {ZERO: 2}, rack_id="r") as consumer:
        while not consumer.is_done:
            found += consumer.poll()
    assert [(each.next_offset, each.error) for each in found] == [(1, None), (6, None)]
    assert asked == ["leader, rack r", "follower", "follower", "leader, rack r"]


@pytest.mark.parametrize(
    "fault",
    [
        partition(bytes(len(batch(0, 1)))),
        partition(divergingEpoch={"epoch": 0, "endOffset": 0}),
    ],
)
def test_what_a_preferred_replica_has_in_another_way_is_read_from_the_leader(
    brokers: list[FakeBroker], cluster: Cluster, fault: Mapping[str, Any]
) -> None:
    """Records that are damaged there, or of another history. Later ones are read there again."""

    def leader(_version: int, data: Struct) -> Struct:
        if data["rackId"]:
            return answer(partition(preferredReadReplica=1))
        return lead(0)(_version, data) if data["topics"] else answer()

    faults = [fault]

    def follower(version: int, data: Struct) -> Struct:
        return answer(faults.pop()) if faults else lead(0)(version, data)

    brokers[0].answers["Fetch"], brokers[1].answers["Fetch"] = leader, follower
    found: list[Fetched] = []
    with Consumer(cluster, {ZERO: Position(0)}, {ZERO: 2}, rack_id="r") as consumer:
        while not consumer.is_done:
            found += consumer.poll()
    assert [(each.next_offset, each.error) for each in found] == [(1, None), (2, None)]
    assert [fetches(each) for each in brokers] == [3, 2]


def test_the_leader_is_asked_again_when_a_preferred_replica_has_no_news(
    brokers: list[FakeBroker], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_module, "_LEASE_S", 0)

    def leader(version: int, data: Struct) -> Struct:
        if not fetches(brokers[1]):
            return answer(partition(preferredReadReplica=1))
        return lead(0)(version, data)

    brokers[0].answers["Fetch"], brokers[1].answers["Fetch"] = leader, lambda *_: answer()
    with Consumer(cluster, {ZERO: Position(0)}, {ZERO: 1}, rack_id="r") as consumer:
        get(consumer, ZERO, 1)
        assert consumer.is_done
