"""Restore points that a mirror takes: what the cluster has at one moment, or why it is not that."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclOperation

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster
from kafka_client.cluster import TopicPartition as Partition
from kafka_client.properties import ClientSettings
from kafka_client.requests import fetch_all_committed, list_offsets
from kafkafs.mirror import points as module
from kafkafs.mirror.lookups import settings_of
from storage import Record, clock, paths
from storage.files import Files
from storage.state import point_file
from storage.state.point_file import INVALID, SPLIT, VALID, Point, Range
from tests.interop import clients
from tests.interop.brokers import Broker, stored
from tests.interop.clients import Sender
from tests.interop.test_mirror import Run, T, records
from tests.interop.test_mirror_groups import allowed
from tests.waits import HANG_S, until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With groups, and a transaction that is open."""
    broker = Broker(
        tmp_path_factory.mktemp("mirror"),
        offsets_topic_num_partitions=2,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    try:
        broker.start()
        clients.create_topics(broker, {"a": {}, "b": {}, "open": {"retention.ms": -1}})
        for topic in ("a", "b", "open"):
            Sender(broker).send(topic, records(b"v", 20))
        sender = Sender(broker, transactional_id="open")
        sender.producer.begin_transaction()
        sender.send("open", records(b"o", 5))
        Sender(broker).send("open", records(b"v", 5))
        clients.commit(broker, "plain group %", "a", 13)
        for number, commit in enumerate((True, False, None)):
            commit_in_transaction(broker, f"transaction-{commit}", number + 1, commit=commit)
        yield broker
    finally:
        broker.kill()


def commit_in_transaction(
    broker: Broker, group: str, offset: int, *, commit: bool | None, topic: str | None = None
) -> Sender:
    """Commit an offset in a transaction, with records of a topic. None: it stays open."""
    sender = Sender(broker, transactional_id=group)
    member = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    with contextlib.closing(member):
        sender.producer.begin_transaction()
        sender.producer.send_offsets_to_transaction(
            [TopicPartition("a", 0, offset)], member.consumer_group_metadata(), HANG_S
        )
        if topic is not None:
            sender.send(topic, records(b"out", 3))
    if commit is not None:
        end = sender.producer.commit_transaction if commit else sender.producer.abort_transaction
        end(HANG_S)
    return sender


def wait_for_markers(broker: Broker) -> None:
    """Wait until no transaction is open: a commit returns before its markers are written."""
    for topic in ("a", "b"):
        log_end = clients.offsets(broker, topic)
        until(partial(is_stable, broker, topic, log_end))


def is_stable(broker: Broker, topic: str, log_end: tuple[int, int]) -> bool:
    return clients.offsets(broker, topic, committed=True) >= log_end


def taken(data: Path) -> Point:
    """The newest point."""
    names = point_file.names(Files(), str(data))
    return point_file.read(Files(), str(data), names[-1])


def flat(groups: Mapping[str, Any]) -> set[tuple[object, ...]]:
    """All committed offsets."""
    return {
        (name, *item, *offset) for name, found in groups.items() for item, offset in found.items()
    }


def test_a_point_is_the_state_of_the_cluster(broker: Broker, tmp_path: Path) -> None:
    run = Run(broker, tmp_path)
    run()
    point = taken(tmp_path)
    assert run.facts.point == (point_file.name_at(point.time_ms), point)
    assert (point.state_text, run.lines) == (VALID, [])
    assert point.partitions == {
        (topic, 0): Range(0, clients.offsets(broker, topic, committed=True)[1])
        for topic in ("a", "b", "open")
    }
    assert point.partitions["open", 0].end == 20
    with Cluster(parse_brokers(broker.address), ClientSettings()) as cluster:
        committed = fetch_all_committed(cluster)
        assert flat(point.groups) == flat(committed)
        assert point.cluster == cluster.refresh().cluster_id
    offsets = {name: {each[0] for each in found.values()} for name, found in point.groups.items()}
    assert offsets == {"plain group %": {13}, "transaction-True": {1}}
    assert point.ids == {name: run.facts.status.ids[name] for name in ("a", "b", "open")}
    assert point.settings == {"open": {"retention.ms": "-1"}}


def test_partitions_and_groups_that_cannot_be_read(broker: Broker, tmp_path: Path) -> None:
    """A topic that the cluster does not list is in no point; any other makes it invalid."""
    clients.create_topics(broker, {"deleted": {}, "kept": {}})
    run = Run(broker, tmp_path, "deleted", "kept")
    run()
    assert set(taken(tmp_path).ids) == {"deleted", "kept"}
    clients.delete_topic(broker, "deleted")
    for path in tmp_path.glob(f"{paths.POINT}*"):
        path.unlink()
    run()
    point = taken(tmp_path)
    assert (set(point.ids), point.state) == ({"kept"}, VALID)
    assert point.reason == "without deleted, which the cluster does not list"
    with allowed(broker, AclOperation.DESCRIBE):
        run()
    point = taken(tmp_path)
    assert point.state == INVALID
    assert "__consumer_offsets:0 waits: TOPIC_AUTHORIZATION_FAILED" in point.reason
    assert "the last restore point is invalid" in "".join(run.facts.faults.values())


def between(monkeypatch: pytest.MonkeyPatch, topic: str, action: Callable[[], object]) -> None:
    """Do something after each answer of ListOffsets about a topic, before the next ones."""

    def one_by_one(cluster: Cluster, wanted: Mapping[Any, int], **options: bool) -> dict[Any, Any]:
        first = {each: time for each, time in wanted.items() if each.topic == topic}
        rest = {each: time for each, time in wanted.items() if each.topic != topic}
        found = list_offsets(cluster, first, **options)
        if "committed" in options:
            action()
        return found | list_offsets(cluster, rest, **options)

    monkeypatch.setattr(module, "list_offsets", one_by_one)


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_transaction_that_is_committed_between_two_answers(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    sender = Sender(broker, transactional_id="cut")

    def commit() -> None:
        sender.producer.commit_transaction(HANG_S)
        wait_for_markers(broker)
        begin()

    def begin() -> None:
        sender.producer.begin_transaction()
        for topic in ("a", "b"):
            sender.send(topic, records(b"cut", 2))

    begin()
    run = Run(broker, tmp_path, "a", "b")
    with monkeypatch.context() as patch:
        between(patch, first, commit)
        run()
    point = taken(tmp_path)
    assert (point.state, point.reason.partition(" of ")[0]) == (SPLIT, "a transaction")
    assert point.reason.endswith(f"ends later in {first}:0")
    sender.producer.commit_transaction(HANG_S)
    run()
    assert (taken(tmp_path).state_text, run.facts.faults) == (VALID, {})


@pytest.mark.parametrize("may_read", [True, False])
def test_a_commit_in_a_transaction_after_the_groups_were_read(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_read: bool
) -> None:
    """The records are in the point, and the group would write them again."""

    def fetch(cluster: Cluster) -> Any:
        found = fetch_all_committed(cluster)
        commit_in_transaction(broker, f"late-{may_read}", 7, commit=True, topic="b")
        wait_for_markers(broker)
        return found

    run = Run(broker, tmp_path, "b")
    with contextlib.nullcontext() if may_read else allowed(broker, AclOperation.DESCRIBE):
        with monkeypatch.context() as patch:
            patch.setattr(module, "fetch_all_committed", fetch)
            run()
        assert taken(tmp_path).state == SPLIT
        run()
    point = taken(tmp_path)
    assert point.state_text == VALID
    assert {each.offset for each in point.groups[f"late-{may_read}"].values()} == {7}


def test_keys_that_are_rewritten_and_cleaned_before_they_are_copied(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.create_topic(broker, "keyed")
    clients.set_topic(
        broker, "keyed", cleanup_policy="compact", segment_ms=1, min_cleanable_dirty_ratio=0
    )
    run = Run(broker, tmp_path, "keyed")
    # No request for records waits in the broker while the copy is held back.
    run.options = replace(run.options, consumer={"max_wait_ms": 1})
    run()
    skew, rounds = [0], iter(range(1 << 30))
    is_held, is_rewritten = threading.Event(), threading.Event()
    monotonic_ms = clock.monotonic_ms
    is_asked: list[bool] = []
    monkeypatch.setattr(clock, "monotonic_ms", lambda: monotonic_ms() + skew[0])

    def is_cleaned() -> bool:
        with contextlib.suppress(FileNotFoundError):  # the broker renames files meanwhile
            return b"old" not in stored(broker.partition("keyed"))
        return False

    def rewrite(cluster: Cluster, wanted: Any, **options: bool) -> Any:
        """The old records are below the ends, and are not there when they are copied."""
        if options:
            assert is_held.wait(HANG_S)
            Sender(broker).send("keyed", [Record(0, T, 0, b"key", b"old")])
            return list_offsets(cluster, wanted, **options)
        found = list_offsets(cluster, wanted)
        if not is_asked:
            is_asked.append(True)
            return found
        for number, value in enumerate((b"new", b"newer"), start=1):
            Sender(broker).send("keyed", [Record(0, T + 1000 * number, 0, b"key", value)])
        until(is_cleaned)
        skew[0] += 60_001
        is_rewritten.set()
        return found

    def stop() -> bool:
        """Make a point due, and hold the copy back."""
        number = next(rounds)
        if number == 0:
            skew[0] += 60_000
        elif number == 1:
            is_held.set()
            assert is_rewritten.wait(HANG_S)
        return number > 0 and run.facts.point is not None

    def ask_for_settings(cluster: Cluster, names: Sequence[str]) -> Any:
        """The copy has all records when the answers for the point are complete."""
        until(lambda: run.facts.copies[Partition("keyed", 0)].position == 3)
        return settings_of(cluster, names)

    monkeypatch.setattr(module, "list_offsets", rewrite)
    monkeypatch.setattr(module, "settings_of", ask_for_settings)
    run(stop)
    point = taken(tmp_path)
    assert point.state_text == "invalid: the copy reached the ends after 60 s"
    assert b"old" not in stored(tmp_path / "keyed-0")
    assert point.partitions["keyed", 0] == Range(0, 1)
