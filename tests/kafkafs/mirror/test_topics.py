"""The topics that a mirror copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_client.addresses import HostPort
from kafka_client.cluster import Metadata, Partition, Topic, TopicPartition
from kafka_client.fetch import NO_TOPIC_ID
from kafkafs.mirror import topics
from storage.files import Files
from storage.state.mirror_file import NO_ID, MirrorFile


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("*", "a.b orders-1 orders-2"),
        ("orders-*", "orders-1 orders-2"),
        ("orders-[2-9] a.b", "a.b orders-2"),
        ("a?b", "a.b"),
        ("nothing", ""),
        ("__*", ""),
        ("__consumer_offsets o*1", "__consumer_offsets orders-1"),
    ],
)
def test_patterns_choose_topics(patterns: str, names: str) -> None:
    """An internal one must be given by its name."""
    there = ["__consumer_offsets", "__transaction_state", "a.b", "orders-1", "orders-2"]
    found = [name for name in there if topics.is_wanted(name, patterns.split())]
    assert found == names.split()


def topic(name: str, *numbers: int, topic_id: bytes = NO_TOPIC_ID, error: int = 0) -> Topic:
    partitions = {number: Partition(1 if number else -1, 0, [1], [1]) for number in numbers}
    return Topic(name, topic_id, error, partitions)


def test_topics_that_cannot_be_read_are_left_out() -> None:
    listed = [
        topic("good", 0, 1),
        topic("none"),
        topic("holes", 0, 2),
        topic("far", 2**31 - 1),
        topic("secret", 0, error=29),
    ]
    metadata = Metadata("c", {1: HostPort("b", 9092)}, {each.name: each for each in listed})
    assert list(topics.wanted(metadata, ["*"])) == ["good"]
    wanted = [TopicPartition("good", 1), TopicPartition("good", 0), TopicPartition("secret", 0)]
    found = [topics.has_leader(metadata, each) for each in wanted]
    assert found == [True, False, False]


def test_a_topic_with_another_id_was_created_again(tmp_path: Path) -> None:
    one, two = bytes(range(16)), bytes(range(1, 17))
    ids = {"same": one, "other": two, "unknown": NO_TOPIC_ID, "x" * 230: two, "taken": two}
    known = topics.id_text(one)
    status = MirrorFile("c", "s", ("*",), {**dict.fromkeys(ids, known), "without": NO_ID})
    listed = {name: topic(name, 0, topic_id=topic_id) for name, topic_id in ids.items()}
    listed["without"] = topic("without", 0, topic_id=one)
    # A kill has left `other` with one partition that is not renamed yet.
    for name in (f"other.{known}-0", "other-1", f"taken.{known}-0", "taken-0"):
        (tmp_path / name).mkdir()
    # The name with many x leaves no room for the id.
    assert topics.created_again(Files(), str(tmp_path), status, listed) == ["other"]
    assert topics.id_text(NO_TOPIC_ID) == NO_ID
