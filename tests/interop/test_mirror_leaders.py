"""A mirror of three brokers goes on when leaders are killed, and when one comes back without
records that the mirror has (an unclean election).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.properties import ClientSettings
from kafka_client.requests import produce
from kafkafs.mirror import mirror as module
from kafkafs.mirror.mirror import Mirror, Options
from storage import Record, encode
from storage.manager import LogManager
from storage.verify.verify import verify
from tests.interop import clients
from tests.interop.brokers import Member, stored
from tests.waits import HANG_S

pytestmark = pytest.mark.soak

MOVED, UNCLEAN = TopicPartition("moved", 0), TopicPartition("unclean", 0)
KEPT, LOST, AFTER = 20, 15, 30


def test_a_mirror_has_what_the_new_leaders_have(
    members: list[Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_MS", 500)
    admin = clients.admin(members[0])
    topics = [
        NewTopic("moved", 1, replica_assignment=[[2, 3, 1]]),
        NewTopic(
            "unclean",
            1,
            replica_assignment=[[2, 3]],
            config={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
        ),
    ]
    for done in admin.create_topics(topics).values():
        done.result(HANG_S)
    addresses = parse_brokers(",".join(member.address for member in members))
    lines: list[str] = []
    with (
        Cluster(addresses, ClientSettings()) as cluster,
        Cluster(addresses, ClientSettings()) as writer,
    ):
        options = Options("kafka://", ("moved", "unclean"), consumer={"max_wait_ms": 100})
        mirror = Mirror(cluster, str(tmp_path), options, lines.append)

        def write(partition: TopicPartition, text: bytes, count: int) -> None:
            for number in range(count):
                record = Record(0, 1, 0, None, b"%s %d" % (text, number))
                produce(writer, partition, encode([record]))

        def is_copied(member: Member) -> bool:
            return all(
                stored(tmp_path / f"{name}-0") == stored(member.partition(name))
                for name in ("moved", "unclean")
            )

        def steps() -> Iterator[None]:
            for partition in (MOVED, UNCLEAN):
                write(partition, b"kept", KEPT)
            while not is_copied(members[1]) or not is_copied(members[2]):
                yield
            members[2].kill()
            for partition in (MOVED, UNCLEAN):
                write(partition, b"lost", LOST)
            while not is_copied(members[1]):
                yield
            # The records of `unclean` were on the leader only.
            members[1].kill()
            write(MOVED, b"after", AFTER)
            members[2].start()
            while not is_leader(writer, UNCLEAN, members[2]):
                yield
            write(UNCLEAN, b"after", AFTER)
            write(MOVED, b"after", AFTER)
            while not is_copied(members[2]):
                yield

        rounds = steps()
        begun = time.monotonic()

        def stop() -> bool:
            assert time.monotonic() < begun + HANG_S, lines
            return next(rounds, True) is True

        mirror.run(False, stop)
    assert mirror.facts.gaps == 1, lines
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        moved, unclean = manager.log("moved", 0), manager.log("unclean", 0)
        assert moved.gaps == ()
        assert moved.log_end_offset == KEPT + LOST + 2 * AFTER
        assert [gap[:3] for gap in unclean.gaps] == [("diverged", KEPT, KEPT + LOST - 1)]
        assert unclean.log_end_offset == KEPT + AFTER
        assert len(unclean.epochs.entries) > 1
    (kept,) = (tmp_path / "unclean-0").glob("*.diverged")
    assert kept.read_bytes().count(b"lost") == LOST
    assert verify(str(tmp_path)).faults == []


def is_leader(writer: Cluster, partition: TopicPartition, member: Member) -> bool:
    found = writer.refresh([partition.topic]).topics[partition.topic]
    return found.partitions[partition.partition].leader == member.node
