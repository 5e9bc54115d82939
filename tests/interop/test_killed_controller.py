"""The metadata log of a broker that is killed while it writes: every tail is read, or refused."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from storage.errors import CorruptRecord
from storage.files import Files
from storage.record.header import HEADER_SIZE, size_at
from storage.settings.metadata_log import read_metadata
from tests.interop import clients
from tests.interop.brokers import Broker
from tests.metadata_log import TOPIC
from tests.waits import until

pytestmark = pytest.mark.soak

KILLS = 4
IN_FLIGHT = 100
CUTS = 15
LAST_BATCHES = 4


def kept_ms(directory: Path) -> int:
    return int(read_metadata(Files(), str(directory)).configs[TOPIC, "orders"]["retention.ms"])


def kill_while_it_writes(broker: Broker, first_ms: int, acknowledged: int) -> None:
    """Change a setting many times at once, and kill the broker after some acknowledgements."""
    client = clients.admin(broker)
    # If the broker that has just begun names no controller, the client does not ask again.
    until(lambda: client.list_topics(timeout=clients.SECONDS).controller_id >= 0)
    changes: list[Future[None]] = []
    for retention_ms in range(first_ms, first_ms + IN_FLIGHT):
        entry = ConfigEntry(
            "retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET
        )
        topic = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
        changes.extend(client.incremental_alter_configs([topic]).values())
    for change in changes[:acknowledged]:
        change.result(clients.SECONDS)
    broker.kill()


def whole_batches(data: bytes) -> list[int]:
    found = []
    position = 0
    while len(data) - position >= max(HEADER_SIZE, size_at(data, position)):
        found.append(position)
        position += size_at(data, position)
    return found


def test_a_killed_controller_leaves_a_log_that_can_be_read(tmp_path: Path) -> None:
    rng = random.Random(1)
    broker = Broker(tmp_path / "broker", metadata_log_max_record_bytes_between_snapshots=8_000)
    copy = tmp_path / "copy"
    try:
        clients.create_topic(broker.start(), "orders", retention_ms=1)
        for kill in range(1, KILLS + 1):
            if not broker.running:
                broker.start()
            acknowledged = rng.randrange(1, IN_FLIGHT)
            first_ms = kill * IN_FLIGHT
            kill_while_it_writes(broker, first_ms, acknowledged)
            shutil.copytree(broker.partition("__cluster_metadata"), copy)
            assert first_ms <= kept_ms(copy) < first_ms + IN_FLIGHT

            path = max(copy.glob("*.log"))
            data = path.read_bytes()
            *damaged, _ = whole_batches(data)[-LAST_BATCHES:]
            for position in damaged:
                path.write_bytes(data[: position + 8] + b"\x7f" + data[position + 9 :])
                with pytest.raises(CorruptRecord, match="length is damaged"):
                    kept_ms(copy)
            for end in rng.sample(range(damaged[0], len(data)), CUTS):
                path.write_bytes(data[:end])
                assert kept_ms(copy) < first_ms + IN_FLIGHT
            shutil.rmtree(copy)
    finally:
        broker.kill()
