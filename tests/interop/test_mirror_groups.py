"""The committed offsets of groups are mirrored: with their topic, or by requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from kafka_client.requests import LATEST
from kafkafs.mirror.topics import MirrorRefused
from storage import paths
from storage.files import Files
from storage.groups.offset_records import partition_for
from storage.manager import LogManager
from storage.state import checkpoint_file, mirror_file
from tests.interop import clients
from tests.interop.brokers import Broker, OldBroker, stored
from tests.interop.clients import Sender
from tests.interop.test_mirror import Run, records
from tests.waits import HANG_S, until

OFFSETS = "__consumer_offsets"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With two topics. Rights on a topic count once it has an ACL."""
    broker = Broker(
        tmp_path_factory.mktemp("mirror"),
        offsets_topic_num_partitions=2,
        log_cleaner_backoff_ms=100,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    try:
        broker.start()
        clients.create_topics(broker, {"orders": {}, "tx": {}})
        Sender(broker).send("orders", records(b"v", 100))
        yield broker
    finally:
        broker.kill()


def committed(data: Path) -> dict[str, dict[tuple[str, int], int]]:
    """The offsets of all groups."""
    with LogManager.open(str(data), read_only=True) as manager:
        found = {name: manager.groups.find(name) for name in manager.groups.names()}
        return {
            name: {item: each.position for item, each in group.committed.items()}
            for name, group in found.items()
            if group is not None
        }


def test_the_offsets_of_groups_are_copied_with_their_topic(broker: Broker, tmp_path: Path) -> None:
    """From its first record on, also if the other topics begin at their ends."""
    clients.commit(broker, "topic-1", "orders", 33)
    clients.commit(broker, "topic-2", "orders", 44)
    clients.commit(broker, "topic-2", "orders", 45)
    run = Run(broker, tmp_path, "orders", start=LATEST)
    assert (run().gaps, run.lines, run.facts.waiting) == (0, [], {})
    found = committed(tmp_path)
    assert (found["topic-1"], found["topic-2"]) == ({("orders", 0): 33}, {("orders", 0): 45})
    for number in range(2):
        assert stored(tmp_path / f"{OFFSETS}-{number}") == stored(broker.partition(OFFSETS, number))
    status = mirror_file.read(Files(), str(tmp_path))
    assert status is not None
    assert (status.topics, set(status.ids)) == (("orders",), {"orders", OFFSETS})


@contextlib.contextmanager
def allowed(broker: Broker | OldBroker, *operations: AclOperation) -> Iterator[None]:
    """Of the topic of committed offsets, only this is allowed."""
    who = (ResourceType.TOPIC, OFFSETS, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    acls = [(*who, operation, AclPermissionType.ALLOW) for operation in operations]
    client = clients.admin(broker)
    for made in client.create_acls([AclBinding(*acl) for acl in acls]).values():
        made.result(HANG_S)
    try:
        yield
    finally:
        for gone in client.delete_acls([AclBindingFilter(*acl) for acl in acls]).values():
            gone.result(HANG_S)


def test_offsets_whose_topic_may_not_be_read(broker: Broker, tmp_path: Path) -> None:
    """A mirror that has once begun in either way goes on in it."""
    clients.commit(broker, "denied", "orders", 33)
    clients.commit(broker, "denied", "tx", 3)
    readable = Run(broker, tmp_path / "readable", "orders")
    readable()
    run = Run(broker, tmp_path / "denied", "orders")
    with allowed(broker, AclOperation.DESCRIBE):
        assert (run().gaps, run.facts.waiting, run.facts.faults) == (0, {}, {})
        assert run.lines == [
            f"{OFFSETS}: this mirror asks for the offsets of groups every 30 s, as it may not read "
            "the topic"
        ]
        assert committed(run.data)["denied"] == {("orders", 0): 33}
        clients.commit(broker, "denied", "orders", 50)
        before = len(readable.lines)
        readable()
        assert set(readable.facts.waiting) == {(OFFSETS, 0), (OFFSETS, 1)}
        assert "TOPIC_AUTHORIZATION_FAILED" in readable.lines[before]
        assert committed(readable.data)["denied"] == {("orders", 0): 33}
    run()
    assert run.lines[1:] == [
        f"{OFFSETS}: this mirror asks for the offsets of groups every 30 s, as it did before. To "
        "copy the topic, which may be read now, begin a new mirror"
    ]
    assert committed(run.data)["denied"] == {("orders", 0): 50}
    ends = offsets_ends(run.data)
    assert (run().waiting, offsets_ends(run.data)) == ({}, ends)
    with pytest.raises(MirrorRefused, match="a topic __consumer_offsets of its own"):
        Run(broker, run.data, "orders", OFFSETS)()
    readable()
    assert committed(readable.data)["denied"] == {("orders", 0): 50}


def offsets_ends(data: Path) -> list[int]:
    with LogManager.open(str(data), read_only=True) as manager:
        return [log.log_end_offset for log in manager.groups.logs]


def test_a_topic_whose_settings_may_not_be_read(broker: Broker, tmp_path: Path) -> None:
    """A broker has compacted it: records are missing, and this is no gap."""
    config = {"segment_ms": 1, "min_cleanable_dirty_ratio": 0}
    clients.commit(broker, "cleaned", "orders", 1)
    clients.set_topic(broker, OFFSETS, **config)
    number = partition_for("cleaned", 2)
    for offset in (2, 3, 4):
        clients.commit(broker, "cleaned", "orders", offset)
    checkpoint = str(broker.data / paths.CLEANER_OFFSETS)
    end = max(int(log.stem) for log in broker.partition(OFFSETS, number).glob("*.log"))
    ends = {(OFFSETS, number): end}
    until(lambda: ends.items() <= checkpoint_file.read_offsets(Files(), checkpoint).items())
    run = Run(broker, tmp_path, "orders")
    with allowed(broker, AclOperation.READ, AclOperation.DESCRIBE):
        assert (run().gaps, run.facts.waiting, run.lines) == (0, {}, [])
    assert committed(tmp_path)["cleaned"] == {("orders", 0): 4}
