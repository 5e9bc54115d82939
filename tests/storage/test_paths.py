"""Names: what Kafka writes is read back, what it would not write is no name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import paths
from storage.errors import InvalidTopic, PolicyViolation

topics = st.text("abzABZ019._-", min_size=1, max_size=249).filter(lambda t: t not in (".", ".."))


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "-", "...", "__consumer_offsets", "x" * 249])
def test_topic_names(topic: str) -> None:
    paths.check_topic_name(topic)
    assert paths.is_topic_name(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"),
        (".", "must not be"),
        ("..", "must not be"),
        ("x" * 250, "249 characters, this one has 250"),
        ("a b", "letters"),
        ("a/b", "letters"),
        ("ä", "letters"),
        ("a\n", "letters"),
    ],
)
def test_refused_topic_names(topic: str, reason: str) -> None:
    assert not paths.is_topic_name(topic)
    with pytest.raises(InvalidTopic, match=reason):
        paths.check_topic_name(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("__cluster_metadata", "only a cluster"),
        ("__consumer_offsets", "only a cluster"),
        ("__transaction_state", "only a cluster"),
        ("__share_group_state", "only a cluster"),
        (".kafkafs", "a mount uses this name"),
        (".groups", "a mount uses this name"),
        ("x-delete", ".*deletes or moves"),
        ("-stray", ".*deletes or moves"),
        ("a.b-future", ".*deletes or moves"),
        (f"a-0.{'0' * 32}-delete", ".*deletes or moves"),
    ],
)
def test_reserved_names(topic: str, reason: str) -> None:
    assert paths.is_topic_name(topic)
    with pytest.raises(PolicyViolation, match=f"topic {topic!r}: {reason}.*Choose another name"):
        paths.check_new_name(topic)


@pytest.mark.parametrize(
    "topic",
    ["__consumer_offsets_", "x-deleted", "delete", "cluster_metadata", "x-stray-0", "kafkafs"],
)
def test_names_that_look_reserved(topic: str) -> None:
    paths.check_new_name(topic)


def test_a_bad_new_name() -> None:
    with pytest.raises(InvalidTopic):
        paths.check_new_name("a b-delete")


@given(topics, st.integers(0, paths.MAX_PARTITION))
def test_partition_directories_round_trip(topic: str, partition: int) -> None:
    name = paths.partition_directory(topic, partition)
    assert paths.parse_partition_directory(name) == (topic, partition)


@given(topics, st.integers(0, paths.MAX_PARTITION))
def test_deleted_directories_round_trip(topic: str, partition: int) -> None:
    name = paths.deleted_directory_name(topic, partition)
    assert len(name) <= 255
    assert name != paths.deleted_directory_name(topic, partition)
    parsed = paths.parse_aside_directory(name)
    assert parsed is not None
    assert topic.startswith(parsed.topic)
    assert parsed.topic == topic or len(name) == 255
    assert parsed[1:] == (partition, "delete")
    assert paths.parse_partition_directory(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "lost+found",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-01",
        "orders--1x",
        "a b-0",
        "orders-+1",
        "orders-1 ",
        "orders-2147483648",
        "orders-\u0661",
        ".-0",
    ],
)
def test_no_partition_directories(name: str) -> None:
    assert paths.parse_partition_directory(name) is None


def test_the_last_hyphen_divides() -> None:
    assert paths.parse_partition_directory("a-1-2") == ("a-1", 2)
    assert paths.parse_partition_directory("a--1") == ("a-", 1)


@pytest.mark.parametrize("kind", ["delete", "stray", "future"])
def test_directories_set_aside(kind: str) -> None:
    name = f"a.b-c-3.{'0' * 32}-{kind}"
    assert paths.parse_aside_directory(name) == ("a.b-c", 3, kind)


@pytest.mark.parametrize("name", ["a-0", "x-delete", "a-0.-delete", "a.1-delete", "a-b.1-stray"])
def test_no_directories_set_aside(name: str) -> None:
    assert paths.parse_aside_directory(name) is None


@given(st.integers(0, paths.MAX_OFFSET), st.sampled_from([paths.LOG, paths.INDEX + paths.SWAP]))
def test_segment_files_round_trip(base_offset: int, suffix: str) -> None:
    name = paths.file_name(base_offset, suffix)
    assert name == str(base_offset).rjust(20, "0") + suffix
    assert paths.base_offset_of(name) == base_offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "123.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "0" * 21 + ".log",
        "9" * 20 + ".log",
        "0" * 20 + "-0000000000.checkpoint",
    ],
)
def test_no_segment_files(name: str) -> None:
    assert paths.base_offset_of(name) is None


def test_a_brokers_own_directories_are_no_partitions() -> None:
    assert paths.is_partition_directory("orders-0")
    assert not paths.is_partition_directory("orders")
    assert not paths.is_partition_directory("__cluster_metadata-0")
    assert paths.is_partition_directory("__consumer_offsets-0")


def test_the_logs_of_segments() -> None:
    assert paths.is_log("00000000000000000005.log")
    assert paths.is_log("00000000005.kafka")
    assert not paths.is_log("server.log")
    assert not paths.is_log("00000000000000000005.log.cut")
    assert not paths.is_log("00000000000000000005.index")
