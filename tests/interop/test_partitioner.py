"""Each key goes to the partition that Kafka's own producers choose for it.

The same keys and values are written to a broker, by its Java producer and by librdkafka with Java's
rule, and to a mount's `.kv/append`; then both directories' partitions show the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record
from tests.interop.brokers import Broker
from tests.interop.clients import console_line, create_topic, produce_lines
from tests.mount.mounting import Mount, mounted

PARTITIONS = 7
SEED = 20260101


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("partitions"))
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Mount]:
    with mounted(tmp_path) as mount:
        yield mount


def rows(log_directory: Path, topic: str) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Key and value of each record, by partition."""
    with LogManager.open(str(log_directory), read_only=True) as manager:
        return [
            [(row.key, row.value) for row in manager.log(topic, number).records()]
            for number in range(PARTITIONS)
        ]


def appended(mount: Mount, topic: str, pairs: list[tuple[bytes, bytes]]) -> None:
    """Write them as lines of keys and values."""
    mount.topic(topic, PARTITIONS)
    escapes = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n"}

    def escaped(data: bytes) -> bytes:
        return b"".join(escapes.get(bytes([byte]), bytes([byte])) for byte in data)

    with open(mount / topic / ".kv" / "append", "ab", buffering=1 << 16) as file:
        for key, value in pairs:
            file.write(escaped(key) + b"\t" + escaped(value) + b"\n")


def test_as_the_java_producer(broker: Broker, ours: Mount) -> None:
    """KafkaProducer with its built-in partitioner; an empty key too."""
    random.seed(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-äß€😀"
    keys = [
        "",
        *("".join(random.choices(letters, k=random.randrange(1, 24))) for _ in range(3000)),
    ]
    pairs = [(key.encode(), b"%d" % number) for number, key in enumerate(keys)]
    create_topic(broker, "java", PARTITIONS)
    lines = "".join(console_line(Record(0, 0, 0, key, value)) for key, value in pairs)
    produce_lines(broker, "java", "none", lines)
    appended(ours, "java", pairs)
    expected = rows(broker.data, "java")
    assert rows(ours.data, "java") == expected
    assert all(len(part) > 300 for part in expected)
