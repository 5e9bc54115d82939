"""Checks of the batches that a broker sends, and the state of a fetch session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from kafka_client.cluster import TopicPartition
from kafka_client.connection import Connection
from kafka_client.errors import BrokerError, ProtocolViolation
from kafka_client.fetch import Fetcher, Position, check_batches
from kafka_client.properties import ClientSettings
from storage.errors import CorruptRecord
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import (
    END,
    ID,
    FakeBroker,
    all_versions,
    answer,
    batch,
    partition,
)

TOPIC = TopicPartition("t", 0)


def check(data: bytes, offset: int = 10, end: int = END) -> tuple[int, int, int, str]:
    return check_batches(memoryview(data), offset, end)


# -- batches ---------------------------------------------------------------------------------------


def test_batches_are_taken_with_the_last_epoch() -> None:
    data = batch(10, 5, 3) + batch(15, 2, 4)
    assert check(data) == (len(data), 17, 4, "")


def test_the_first_batch_may_begin_below_the_offset() -> None:
    data = batch(7) + batch(12)
    assert check(data) == (len(data), 17, 0, "")


def test_offsets_may_have_holes_of_any_size() -> None:
    """In a compacted topic; a walk of recovery ends at 2**31."""
    data = batch(10) + batch(2**31 + 20) + batch(2**40)
    assert check(data, end=2**50) == (len(data), 2**40 + 5, 0, "")


@pytest.mark.parametrize("cut", [1, 16, 17, 60, 61, 70])
def test_a_batch_that_is_not_whole_is_left_out(cut: int) -> None:
    first = batch(10)
    assert check(first + batch(15)[:cut]) == (len(first), 15, 0, "")
    assert check(first[:cut]) == (0, 10, -1, "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (batch(10)[:-1] + b"x", "the CRC is wrong"),
        (batch(5), "its offset 5 is below the one asked for"),
        (batch(-3), "its offset -3 is below the one asked for"),
        (batch(998), "base offset 998 is not below 1000"),
        (batch(10)[:16] + b"\3" + batch(10)[17:], "unknown record format: magic 3"),
        (batch(10)[:8] + b"\0\0\0\x30" + batch(10)[12:], "batch length 48 is less than"),
        (batch(10)[:8] + b"\xff" * 4 + batch(10)[12:], "batch length -1 is less than"),
    ],
)
def test_a_batch_that_is_not_sound_is_an_error(data: bytes, reason: str) -> None:
    size, next_offset, _, fault = check(data)
    assert (size, next_offset) == (0, 10)
    assert reason in fault


def test_what_lies_before_a_damaged_batch_is_taken() -> None:
    first = batch(10)
    size, next_offset, _, fault = check(first + batch(15)[:-1] + b"x")
    assert (size, next_offset, fault) == (len(first), 15, "the CRC is wrong")


def test_offsets_must_rise() -> None:
    first = batch(10)
    size, next_offset, _, fault = check(first + batch(12))
    assert (size, next_offset) == (len(first), 15)
    assert fault == "base offset 12 is below 15, the next offset"


# -- answers ---------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def fetcher(broker: FakeBroker) -> Iterator[Fetcher]:
    with contextlib.closing(Connection(broker.address, ClientSettings())) as connection:
        fetcher = Fetcher(connection)
        fetcher.add(TOPIC, Position(10, topic_id=ID))
        yield fetcher


def fetch(broker: FakeBroker, fetcher: Fetcher, found: Struct) -> Any:
    broker.answers["Fetch"] = lambda *_: found
    fetcher.send()
    return fetcher.receive()


def test_positions_move_on(broker: FakeBroker, fetcher: Fetcher) -> None:
    (found,) = fetch(broker, fetcher, answer(partition(batch(10, 5, 7))))
    assert (bytes(found.records), found.next_offset) == (batch(10, 5, 7), 15)
    assert fetcher.positions == {TOPIC: Position(15, 7, topic_id=ID)}
    assert fetch(broker, fetcher, answer(partition()))[0].records == b""
    asked = [
        data["topics"][0]["partitions"][0] for name, _, data in broker.requests if name == "Fetch"
    ]
    assert [(each["fetchOffset"], each["lastFetchedEpoch"]) for each in asked] == [
        (10, -1),
        (15, 7),
    ]


def test_a_damaged_batch_is_an_error_of_its_partition(broker: FakeBroker, fetcher: Fetcher) -> None:
    (found,) = fetch(broker, fetcher, answer(partition(batch(10)[:-1] + b"x")))
    assert isinstance(found.error, CorruptRecord)
    assert str(found.error) == (
        "t:0: a batch from the broker is damaged: the CRC is wrong (offset 10)"
    )
    assert (found.records, fetcher.positions[TOPIC].offset) == (b"", 10)


def test_a_part_of_a_batch_alone_is_damage(broker: FakeBroker, fetcher: Fetcher) -> None:
    """Asked for again and again, it would never end."""
    (found,) = fetch(broker, fetcher, answer(partition(batch(10)[:-1])))
    assert "a part of it is missing" in str(found.error)


def test_an_answer_of_many_pieces(broker: FakeBroker, fetcher: Fetcher) -> None:
    large = batch(10, 100_000)
    end = {"highWatermark": 1 << 40}
    (found,) = fetch(broker, fetcher, answer(partition(large, **end)))
    assert (found.error, bytes(found.records)) == (None, large)
    # The next answer is in the same memory.
    (found,) = fetch(broker, fetcher, answer(partition(batch(100_010), **end)))
    assert (found.error, bytes(found.records)) == (None, batch(100_010))


def test_records_above_the_last_stable_offset_are_not_committed(broker: FakeBroker) -> None:
    with contextlib.closing(Connection(broker.address, ClientSettings())) as connection:
        fetcher = Fetcher(connection, committed=True)
        fetcher.add(TOPIC, Position(10, topic_id=ID))
        (found,) = fetch(broker, fetcher, answer(partition(batch(10), lastStableOffset=12)))
        assert isinstance(found.error, CorruptRecord)


@pytest.mark.parametrize("committed", [False, True])
def test_records_from_the_end_on_come_again(broker: FakeBroker, committed: bool) -> None:
    """A broker reads the high watermark and the last stable offset before the records."""
    ends = {"highWatermark": 10, "lastStableOffset": 10}
    with contextlib.closing(Connection(broker.address, ClientSettings())) as connection:
        fetcher = Fetcher(connection, committed=committed)
        fetcher.add(TOPIC, Position(5, topic_id=ID))
        (found,) = fetch(broker, fetcher, answer(partition(batch(5) + batch(10), **ends)))
        assert (found.error, bytes(found.records), found.next_offset) == (None, batch(5), 10)
        (found,) = fetch(broker, fetcher, answer(partition(batch(10), **ends)))
        assert (found.error, bytes(found.records), found.next_offset) == (None, b"", 10)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (answer(partition(partitionIndex=1)), "a partition that was not asked for"),
        (
            {"responses": [{"topicId": b"x" * 16, "partitions": [partition()]}]},
            "a partition that was not asked for",
        ),
    ],
)
def test_an_answer_about_something_else_closes_the_connection(
    broker: FakeBroker, fetcher: Fetcher, found: Struct, reason: str
) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        fetch(broker, fetcher, found)
    assert fetcher.connection is not None
    assert not fetcher.connection.is_open


def test_a_topic_name_is_checked(broker: FakeBroker, fetcher: Fetcher) -> None:
    fetcher.add(TOPIC, Position(10))  # a broker without ids
    found = {"responses": [{"topic": "../x", "partitions": [partition()]}]}
    with pytest.raises(ProtocolViolation, match=r"the topic name '\.\./x'"):
        fetch(broker, fetcher, found)


def test_a_position_that_has_changed_meanwhile_is_not_moved(
    broker: FakeBroker, fetcher: Fetcher
) -> None:
    broker.answers["Fetch"] = lambda *_: answer(partition(batch(10)))
    fetcher.send()
    fetcher.add(TOPIC, Position(500, topic_id=ID))
    assert fetcher.receive() == []
    assert fetcher.positions[TOPIC].offset == 500


# -- sessions --------------------------------------------------------------------------------------


def sent(broker: FakeBroker) -> list[tuple[int, int, list[int], list[int]]]:
    """Of each request: session, epoch, partitions, forgotten ones."""
    return [
        (
            data["sessionId"],
            data["sessionEpoch"],
            [each["partition"] for topic in data["topics"] for each in topic["partitions"]],
            [each for topic in data["forgottenTopicsData"] for each in topic["partitions"]],
        )
        for name, _, data in broker.requests
        if name == "Fetch"
    ]


def test_positions_are_added_while_others_are_compared() -> None:
    """The next request compares them. The answer about a position that has changed is skipped."""

    def epochs(_version: int, data: Struct) -> Struct:
        found = {"leaderEpoch": 3, "endOffset": 7}
        parts = [
            {"partition": each["partition"], **found} for each in data["topics"][0]["partitions"]
        ]
        return {"topics": [{"topic": "t", "partitions": parts}]}

    other = TopicPartition("t", 1)
    with (
        FakeBroker(
            ApiVersions=all_versions({"Fetch": (4, 11)}), OffsetForLeaderEpoch=epochs
        ) as broker,
        contextlib.closing(Connection(broker.address, ClientSettings())) as connection,
    ):
        fetcher = Fetcher(connection)
        fetcher.add(TOPIC, Position(10, 3))
        fetcher.send()
        fetcher.add(TOPIC, Position(5, 3))
        fetcher.add(other, Position(10, 3))
        assert fetcher.receive() == []
        fetcher.send()
        assert [(each.partition, each.diverging) for each in fetcher.receive()] == [(other, (3, 7))]


def test_a_session_sends_changes_only(broker: FakeBroker, fetcher: Fetcher) -> None:
    other = TopicPartition("t", 1)
    fetcher.add(other, Position(0, topic_id=ID))
    fetch(broker, fetcher, answer(partition(), session=9))
    fetch(broker, fetcher, answer(partition(batch(10)), session=9))
    fetch(broker, fetcher, answer(session=9))
    fetcher.remove(other)
    fetch(broker, fetcher, answer(session=9))
    assert sent(broker) == [
        (0, 0, [0, 1], []),
        (9, 1, [], []),
        (9, 2, [0], []),
        (9, 3, [], [1]),
    ]


def test_a_topic_that_was_created_again_replaces_the_old_one_in_the_session(
    broker: FakeBroker, fetcher: Fetcher
) -> None:
    fetch(broker, fetcher, answer(partition(), session=9))
    fetcher.add(TOPIC, Position(0, topic_id=b"j" * 16))
    fetch(broker, fetcher, answer(session=9))
    data = broker.requests[-1][2]
    assert [bytes(topic["topicId"]) for topic in data["topics"]] == [b"j" * 16]
    assert [bytes(topic["topicId"]) for topic in data["forgottenTopicsData"]] == [ID]


@pytest.mark.parametrize("is_meanwhile", [False, True])
def test_a_partition_that_is_added_again_is_in_another_session(
    broker: FakeBroker, fetcher: Fetcher, is_meanwhile: bool
) -> None:
    """In its session, the broker would say nothing about it before it has news."""
    position = Position(10, topic_id=ID)
    other = TopicPartition("t", 1)
    fetcher.add(other, Position(0, topic_id=ID))
    fetch(broker, fetcher, answer(partition(), session=9))
    if is_meanwhile:
        fetcher.send()
    fetcher.remove(TOPIC)
    fetcher.add(TOPIC, position)
    if is_meanwhile:
        fetcher.receive()
    fetch(broker, fetcher, answer(partition(), session=8))
    fetch(broker, fetcher, answer(session=8))
    assert sent(broker)[-2:] == [(9, 0, [1, 0], []), (8, 1, [], [])]


def test_a_session_that_the_broker_has_forgotten_begins_again(
    broker: FakeBroker, fetcher: Fetcher
) -> None:
    fetch(broker, fetcher, answer(partition(), session=9))
    assert fetch(broker, fetcher, answer(errorCode=70)) == []
    fetch(broker, fetcher, answer(partition(), session=0))
    fetch(broker, fetcher, answer(partition(), session=0))
    assert sent(broker) == [(0, 0, [0], []), (9, 1, [], []), (0, 0, [0], []), (0, 0, [0], [])]


def test_another_error_of_the_whole_answer(broker: FakeBroker, fetcher: Fetcher) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
        fetch(broker, fetcher, answer(errorCode=-1))


def test_a_broker_is_quiet_when_it_was_asked_for_all_and_has_nothing(
    broker: FakeBroker, fetcher: Fetcher
) -> None:
    quiet = []
    for found in (answer(partition(), session=9), answer(session=9)):
        fetch(broker, fetcher, found)
        quiet.append(fetcher.is_quiet)
    broker.answers["Fetch"] = lambda *_: answer(session=9)
    fetcher.send()
    fetcher.add(TopicPartition("t", 1), Position(0, topic_id=ID))
    quiet.append(fetcher.is_quiet)
    fetcher.receive()
    assert [*quiet, fetcher.is_quiet] == [False, True, False, False]
