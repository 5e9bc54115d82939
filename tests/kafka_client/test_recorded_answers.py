"""Answers of brokers of several releases, replayed.

`answers/VERSION.json` has what a new broker of that release sent to the calls of `test_…`, in that
order, and the port that it had. Its topic `orders` has two partitions and `retention.ms` set. In
partition 0 are 5 records, 5 in lz4, an aborted transaction and a committed one, of one record each.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.fetch import Position
from kafka_client.properties import ClientSettings
from kafka_client.requests import (
    LATEST,
    Committed,
    Offset,
    TopicSettings,
    describe_topic_configs,
    end_offsets_of_epochs,
    fetch_all_committed,
    fetch_committed,
    list_groups,
    list_offsets,
    produce,
)
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import Body, FakeBroker, batch

ANSWERS = Path(__file__).with_name("answers")
ORDERS = TopicPartition("orders", 0)
T = 1_700_000_000_000


def replayed(path: Path) -> FakeBroker:
    """A broker that answers with what is recorded. It is asked in the recorded versions."""
    recorded = json.loads(path.read_text())
    answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in recorded["answers"]:
        answers[each["api"]].append(each)
    broker = FakeBroker()

    def replay(api: str) -> Callable[[int, Struct], Body]:
        def answer(version: int, _data: Struct) -> Body:
            left = answers[api]
            if api == "ApiVersions":  # the refusal of its last version, then version 0
                each = left[0 if version else 1]
            else:
                each = left.pop(0) if len(left) > 1 else left[0]
                assert version == each["version"]
            body = base64.b64decode(each["answer"])
            port = recorded["port"].to_bytes(4, "big")
            assert api != "Metadata" or body.count(port) == 1
            return Body(body.replace(port, broker.address.port.to_bytes(4, "big")))

        return answer

    broker.answers = {api: replay(api) for api in answers}
    return broker


@pytest.mark.parametrize("path", sorted(ANSWERS.iterdir()), ids=lambda path: path.stem)
def test_a_broker_of_this_release(path: Path) -> None:
    with (
        replayed(path) as broker,
        Cluster([broker.address], ClientSettings()) as cluster,
    ):
        topic = cluster.refresh(["orders"]).topics["orders"]
        assert (topic.error, sorted(topic.partitions)) == (0, [0, 1])
        assert (topic.id == bytes(16)) == (path.stem == "2.4.1")
        assert list_offsets(cluster, {ORDERS: LATEST}) == {ORDERS: Offset(14, 0)}
        assert list_offsets(cluster, {ORDERS: T + 3}) == {ORDERS: Offset(3, 0, T + 3)}
        assert end_offsets_of_epochs(cluster, {ORDERS: 0}) == {ORDERS: Offset(14, 0)}
        size = 0
        with Consumer(cluster, {ORDERS: Position(0)}, {ORDERS: 14}, committed=True) as consumer:
            while not consumer.is_done:
                for each in consumer.poll():
                    assert (each.error, each.aborted) == (None, [(0, 10)])
                    size += len(each.records)
        assert size == 583
        assert produce(cluster, TopicPartition("orders", 1), batch(0)) == 0
        found = describe_topic_configs(cluster, ["orders"])["orders"]
        assert isinstance(found, TopicSettings)
        assert found.set_here == {"retention.ms": "1000000000000"}
        assert fetch_committed(cluster, "g") == {ORDERS: Committed(3, -1, "m")}
        assert fetch_all_committed(cluster) == {"g": {ORDERS: Committed(3, -1, "m")}}
        assert list_groups(cluster) == {"g": "" if path.stem == "2.4.1" else "Empty"}
