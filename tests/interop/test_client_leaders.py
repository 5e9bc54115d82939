"""Our client and three brokers. The leader of a partition is killed."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.fetch import Position
from kafka_client.properties import ClientSettings
from kafka_client.requests import LATEST, Offset, list_offsets, produce
from storage import Record, encode
from storage.record.batch import decode
from tests.interop import clients
from tests.interop.brokers import Member
from tests.waits import HANG_S

pytestmark = pytest.mark.soak

MOVED = TopicPartition("moved", 0)
COUNT = 100


def batch(number: int) -> bytes:
    return encode([Record(0, 1, 0, None, b"%d" % number)])


def values(data: bytes) -> list[bytes | None]:
    found = []
    while data:
        records = decode(data)
        found += [record.value for record in records]
        data = data[int.from_bytes(data[8:12], "big") + 12 :]
    return found


def test_reading_and_writing_go_on_at_the_next_leader(members: list[Member]) -> None:
    admin = clients.admin(members[0])
    (done,) = admin.create_topics([NewTopic("moved", 1, replica_assignment=[[2, 3, 1]])]).values()
    done.result(HANG_S)
    addresses = parse_brokers(",".join(member.address for member in members))
    with (
        Cluster(addresses, ClientSettings()) as cluster,
        Cluster(addresses, ClientSettings()) as writer,
        Consumer(cluster, {MOVED: Position(0)}, {MOVED: COUNT}, max_wait_ms=100) as consumer,
    ):
        data = b""
        for number in range(COUNT):
            if number == COUNT // 2:
                assert writer.metadata.leader_of(MOVED).port == members[1].port
                members[1].kill()
            assert produce(writer, MOVED, batch(number)) == number
            for each in consumer.poll():
                assert each.error is None
                data += each.records
        while not consumer.is_done:
            for each in consumer.poll():
                assert each.error is None
                data += each.records
        assert writer.metadata.leader_of(MOVED).port != members[1].port
        assert values(data) == [b"%d" % number for number in range(COUNT)]
        end = list_offsets(writer, {MOVED: LATEST})[MOVED]
        assert isinstance(end, Offset)
        assert (end.offset, end.leader_epoch > 0) == (COUNT, True)
