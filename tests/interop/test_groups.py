"""Groups of a broker as we read them, and ours as the broker does.

`kafka-consumer-groups --describe` is the judge: of groups of both protocols, with and without
metadata, of positions in transactions that were committed and aborted; while the broker runs, when
it has stopped, and when it was killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from storage import LogManager
from storage.follow.follow_directory import DirectoryFollower
from storage.groups.group import Group
from storage.groups.offset_records import (
    COMMIT,
    commit_key,
    commit_value,
    kind_of,
    partition_for,
    read_commit,
    read_commit_key,
)
from tests.interop.brokers import Broker
from tests.interop.clients import SECONDS, Sender, create_topic
from tests.interop.kafka_tools import run_tool
from tests.interop.workload import values
from tests.mount.mounting import Mount, fails, kafkafs

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "__consumer_offsets"
OFFSETS_PARTITIONS = 4
TOPICS = ("orders", "more")

#: By group, topic and partition: position, log end, lag.
Lags = dict[tuple[str, str, int], tuple[int, int, int]]


def start_again(broker: Broker) -> None:
    """Start the broker, and wait until it has loaded all groups.

    A broker that was killed may load them twice: first as the leader that it was, until its
    controller ends that session.
    """
    broker.start()
    loaded = broker.server.wait_for("handleBrokerUnfenced: changing")
    for _ in range(OFFSETS_PARTITIONS):
        loaded = broker.server.wait_for(f"Finished loading.* {OFFSETS}-", loaded)


def described(broker: Broker) -> Lags:
    """Return the offsets and lags of all groups, as Kafka's tool prints them."""
    done = run_tool(GROUPS_TOOL, "--bootstrap-server", broker.address, "--describe", "--all-groups")
    found: Lags = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(\S+)\s+(\S+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(-?\d+)\s", line)
        if match is not None:
            group, topic, *numbers = match.groups()
            partition, *facts = map(int, numbers)
            found[group, topic, partition] = (facts[0], facts[1], facts[2])
    assert found, done.stdout + done.stderr
    return found


def shown(manager: LogManager) -> Lags:
    """Return the offsets and lags of all groups in a data directory."""
    found: Lags = {}
    for name in manager.groups.names():
        for (topic, partition), each in group_of(manager, name).committed.items():
            end = manager.log(topic, partition).high_watermark
            found[name, topic, partition] = each.position, end, end - each.position
    return found


def shown_by(mount: Mount) -> Lags:
    """Return the offsets and lags in a mount's `.lag`, except of names with a blank."""
    lines = (mount / ".groups/.lag").read_text().splitlines()
    rows = [line.split() for line in lines[1:] if not line.startswith("#")]
    return {
        (group, topic, int(number)): (int(position), int(end), int(lag))
        for group, topic, number, position, end, lag, _ in rows
        # The tool prints a name with a blank as two columns.
        if "%20" not in group
    }


def listed(data: Path) -> Lags:
    """Return the offsets and lags of `kafkafs groups --json`, except of names with a blank."""

    def of(*groups: str) -> dict[str, list[dict[str, Any]]]:
        done = kafkafs("groups", "--json", data, *groups)
        assert (done.returncode, done.stderr) == (0, "")
        found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)["result"]
        return found

    names = [each["group"] for each in of()["groups"]]
    return {
        (each["group"], each["topic"], each["partition"]): (
            *(each["offset"], each["high_watermark"]),
            each["lag"],
        )
        for each in of(*names)["offsets"]
        if " " not in each["group"]
    }


@contextlib.contextmanager
def mount_of(base: Path, *options: str) -> Iterator[Mount]:
    mount = Mount(base, options)
    try:
        yield mount.start()
    finally:
        mount.end()


def group_of(manager: LogManager, name: str) -> Group:
    group = manager.groups.find(name)
    assert group is not None
    return group


def consumer(broker: Broker, group: str, **config: object) -> Consumer:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
            **settings,
        }
    )


def takes(member: Consumer, count: int) -> None:
    """Read `count` records as a member of a group, and commit the offsets."""
    left = count
    while left:
        found = member.consume(left, 1.0)
        assert not [each.error() for each in found if each.error()]
        left -= len(found)
    member.commit(asynchronous=False)


def console(
    broker: Broker, group: str, topic: str, count: int, protocol: str, *more: str
) -> list[str]:
    """Read `count` records with Kafka's own consumer, which then ends. Return the lines."""
    done = run_tool(
        CONSOLE,
        *("--bootstrap-server", broker.address, "--topic", topic, "--group", group),
        *("--max-messages", str(count), "--from-beginning"),
        *("--command-property", f"group.protocol={protocol}"),
        *more,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def in_transaction(broker: Broker, group: str, position: int, *, commit: bool | None) -> Producer:
    """Positions go into a transaction; None: it stays open."""
    sender = Sender(broker, transactional_id=f"of-{group}-{position}")
    member = consumer(broker, group)
    sender.producer.begin_transaction()
    sender.producer.send_offsets_to_transaction(
        [TopicPartition("orders", 0, position), TopicPartition("more", 0, position)],
        member.consumer_group_metadata(),
        SECONDS,
    )
    if commit is not None:
        (sender.producer.commit_transaction if commit else sender.producer.abort_transaction)(
            SECONDS
        )
    member.close()
    return sender.producer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with groups of all kinds."""
    broker = Broker(
        tmp_path_factory.mktemp("groups"), offsets_topic_num_partitions=OFFSETS_PARTITIONS
    )
    try:
        broker.start()
        for topic in TOPICS:
            create_topic(broker, topic, 2)
            Sender(broker).send(topic, values(0, 40))
        member = consumer(broker, "classic")
        member.subscribe(list(TOPICS))
        takes(member, 60)
        member.close()
        simple = consumer(broker, "simple")
        positions = [
            TopicPartition("orders", 0, 7, metadata="host ü"),
            TopicPartition("more", 1, 0),
        ]
        simple.commit(offsets=positions, asynchronous=False)
        simple.close()
        console(broker, "new-protocol", "orders", 11, "consumer")
        console(broker, "java-classic", "orders", 12, "classic")
        console(broker, "java-consumer", "orders", 12, "consumer")
        in_transaction(broker, "exactly-once", 5, commit=True)
        in_transaction(broker, "exactly-once", 9, commit=False)
        in_transaction(broker, "never", 9, commit=False)
        yield broker
    finally:
        broker.kill()


def test_a_brokers_groups(served: Broker) -> None:
    broker = served
    members = [
        consumer(broker, "living"),
        consumer(broker, "living-too", group_protocol="consumer"),
    ]
    for member in members:
        member.subscribe(["orders"])
        takes(member, 3)
    open_one = in_transaction(broker, "exactly-once", 11, commit=None)
    theirs = described(broker)
    assert theirs["exactly-once", "orders", 0] == (5, 40, 35)
    assert not [each for each in theirs if each[0] == "never"]
    with LogManager.open(str(broker.data), read_only=True) as manager:
        follower = DirectoryFollower(manager)
        assert shown(manager) == theirs

        # While it runs: what comes is followed.
        takes(members[0], 4)
        open_one.commit_transaction(SECONDS)
        theirs = described(broker)
        assert theirs["exactly-once", "orders", 0] == (11, 40, 29)
        follower.look_for_partitions()
        for log in manager.groups.logs:
            follower.look(log)
        assert shown(manager) == theirs

        group = group_of(manager, "simple")
        # The client sends the zero that ends its string, too.
        assert group.committed["orders", 0].metadata == "host ü\0"
        assert (group.kind, group.has_members) == ("", False)
        group = group_of(manager, "classic")
        assert (group.kind, group.has_members) == ("classic", False)
        assert group.empty_since_ms is not None
        for name, kind in (("living", "classic"), ("living-too", "consumer")):
            known = group_of(manager, name)
            assert (known.kind, known.has_members, known.empty_since_ms) == (kind, True, None)
    for member in members:
        member.close()
    theirs = described(broker)
    broker.stop()
    with LogManager.open(str(broker.data), read_only=True) as manager:
        assert shown(manager) == theirs
    start_again(broker)
    takes_again = consumer(broker, "classic")
    takes_again.subscribe(list(TOPICS))
    takes(takes_again, 5)
    theirs = described(broker)
    broker.kill()
    with LogManager.open(str(broker.data), read_only=True) as manager:
        assert shown(manager) == theirs
    start_again(broker)


def test_keys_values_and_places_are_kafkas(served: Broker) -> None:
    """From the same fields, we encode the same keys and values as Kafka's classes."""
    versions = set()
    with LogManager.open(str(served.data), read_only=True) as manager:
        for number, log in manager.topic(OFFSETS).partitions.items():
            for record in log.records(isolation="read_uncommitted"):
                assert record.key is not None
                if kind_of(record.key) != COMMIT or record.value is None:
                    continue
                key = read_commit_key(record.key)
                assert partition_for(key.group, OFFSETS_PARTITIONS) == number
                assert commit_key(*key) == record.key
                found, version = read_commit(record.value), record.value[1]
                versions.add((version, found.topic_id is not None))
                # Brokers also write version 4 without an id.
                ours = commit_value(found)
                if version == ours[1]:
                    assert ours == record.value
                else:
                    assert (read_commit(ours), ours[1]) == (found, 3)
    assert (4, True) in versions, versions


def test_a_mount_shows_a_brokers_groups_and_commits_for_them(
    served: Broker, tmp_path: Path
) -> None:
    """Beside the running broker; when it was killed; in its place, and it goes on from there."""
    broker = served
    assert listed(broker.data) == described(broker)
    assert kafkafs("groups", "reset", "-g", "x", "--to", "0", broker.data).returncode == 3
    (tmp_path / "data").symlink_to(broker.data)
    with mount_of(tmp_path, "ro") as mount:
        member = consumer(broker, "beside")
        member.subscribe(["orders"])
        takes(member, 6)
        assert shown_by(mount) == described(broker)
        assert shown_by(mount)["beside", "orders", 0] == (6, 40, 34)
        assert b"\n# kind classic, members yes\n" in mount.run("cat .groups/beside/.lag")
        takes(member, 3)
        assert b"position 9\n" in mount.run("cat .groups/beside/orders/0")
        assert mount.run("cat orders/0@group=beside..10") == b"value 9\n"
        member.close()
        fails(errno.EROFS, os.mkdir, mount / ".groups/new")
        theirs = described(broker)
        # They are in their groups when the broker ends.
        members = [consumer(broker, name, group_protocol="consumer") for name in ("lives", "regex")]
        for each, pattern in zip(members, ("orders", "^ord.*"), strict=True):
            each.subscribe([pattern])
            takes(each, 3)
        theirs |= {(name, "orders", 0): (3, 40, 37) for name in ("lives", "regex")}
        broker.kill()
        assert shown_by(mount) == theirs
    with mount_of(tmp_path) as mount:
        mount.run("mkdir .groups/by-a-mount; echo 33 > .groups/by-a-mount/orders/0")
        mount.run("printf 'earliest\\tby us\\n' > .groups/by-a-mount/orders/1")
        mount.run("echo -2 > .groups/new-protocol/orders/0; rm -r .groups/exactly-once")
        mount.run("rmdir .groups/lives .groups/regex .groups/java-consumer")
        expected = shown_by(mount)
    assert expected["new-protocol", "orders", 0] == (9, 40, 31)
    start_again(broker)
    assert described(broker) == expected
    deleted = {"exactly-once", "lives", "regex", "java-consumer"}
    assert not [each for each in expected if each[0] in deleted]
    read = console(broker, "by-a-mount", "orders", 7, "classic")
    assert read == [f"value {n}" for n in range(33, 40)]
    broker.stop()
