"""A real broker with tiered storage, whose directory is mounted for writing while it is stopped.

The broker deletes remote segments that ``leader-epoch-checkpoint`` and the log-start checkpoint do
not cover.  So the remote storage has to hold the same segments after the mount, and a consumer
still gets every record from the log start.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from storage import Record
from storage.files import Files
from storage.settings.settings import Settings
from storage.state.tiered import TieredTopics
from tests.interop.brokers import Broker
from tests.interop.clients import Sender, consume_all, create_topics, set_topic
from tests.interop.kafka_tools import POM_4_3, TIERED_POM, jars
from tests.mount.contract.writing import append
from tests.mount.mounting import fails, kafkafs, mounted
from tests.waits import until

pytestmark = pytest.mark.soak

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
PER_SEGMENT = 10
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": 1, "segment.ms": 1000}
# The test has the broker delete the remote segments of these topics, one after the other. When
# they are deleted the broker has looked at the segments of all topics.
WITNESSES = ("first", "second")


class Broker43(Broker):
    """The last release with a remote storage for tests."""

    pom = POM_4_3


class TieredBroker:
    """A broker, and a directory as its remote storage."""

    def __init__(self, base: Path) -> None:
        self.remote = base / "remote"
        (archive,) = jars(TIERED_POM).glob("*.jar")
        self.broker = Broker43(
            base / "broker",
            **{
                "remote.log.storage.system.enable": "true",
                "remote.log.storage.manager.class.name": (
                    "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
                ),
                "remote.log.storage.manager.class.path": archive,
                "rsm.config.dir": self.remote,
                "remote.log.metadata.manager.listener.name": "PLAINTEXT",
                "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
                "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
                "remote.log.manager.task.interval.ms": 200,
            },
        )
        self.sent = 0

    def send(self, topic: str, segments: int) -> None:
        """Append this many batches.  Each is a day later than the last, so it begins a segment."""
        sender = Sender(self.broker)
        for _ in range(segments):
            time_ms = NOW_MS + self.sent * DAY_MS
            values = [b"%d.%d" % (self.sent, n) for n in range(PER_SEGMENT)]
            sender.send(topic, [Record(0, time_ms, 0, b"k", value) for value in values])
            self.sent += 1

    def segments(self, topic: str) -> set[str]:
        """The names of the topic's segments in remote storage."""
        found = self.remote.glob(f"*/*{topic}-*/*.log")
        return {path.name for path in found}

    def bases_here(self, topic: str) -> list[str]:
        return sorted(path.name for path in self.broker.partition(topic).glob("*.log"))

    def await_only_active(self, topic: str, remote: int) -> None:
        """All closed segments are in remote storage, and none is here."""
        until(lambda: len(self.segments(topic)) == remote and len(self.bases_here(topic)) == 1)

    def consumed(self) -> list[Record]:
        """All records of ``orders``, once the broker knows again what is in remote storage."""
        found: list[Record] = []

        def is_readable() -> bool:
            with contextlib.suppress(KafkaException):
                found[:] = consume_all(self.broker, ("orders",))["orders"]
            return bool(found)

        until(is_readable)
        return found

    def await_look(self, witness: str) -> None:
        """Wait until the broker has deleted the remote segments of this topic."""
        set_topic(self.broker, witness, retention_ms=1)
        until(lambda: not self.segments(witness))


def test_a_mount_costs_no_remote_segment(tmp_path: Path) -> None:
    tiered = TieredBroker(tmp_path)
    broker = tiered.broker.start()
    try:
        kept = {**TIERED, "retention.ms": -1}
        create_topics(broker, dict.fromkeys(("orders", *WITNESSES), kept))
        tiered.send("orders", 4)
        for name in WITNESSES:
            tiered.send(name, 3)
            tiered.await_only_active(name, 2)
        tiered.await_only_active("orders", 3)
        # Another leader epoch.
        broker.stop()
        broker.start()
        tiered.send("orders", 4)
        tiered.await_only_active("orders", 7)
        records = tiered.consumed()
        assert len(records) == 8 * PER_SEGMENT
        broker.stop()
        segments = tiered.segments("orders")
        _is_inferred(broker.data, tmp_path / "copy")
        for is_clean in (True, False):
            with mounted(broker.base) as mount:
                assert (mount / "orders/0").read_bytes().count(b"\n") == PER_SEGMENT
                assert "remote_log_start 0\n" in (mount / "orders/.meta/0/offsets").read_text()
                fails(errno.EROFS, append, mount / "orders/0", b"line\n")
                fails(errno.EROFS, append, mount / "orders/.control/retention", b"run\n")
            broker.start()
            tiered.await_look(WITNESSES[not is_clean])
            assert tiered.segments("orders") == segments
            assert tiered.consumed() == records
            if is_clean:
                broker.kill()
        broker.stop()
    finally:
        broker.kill()


def _is_inferred(data: Path, copy: Path) -> None:
    """Without the metadata log the partition's own files say that the topic is tiered."""
    shutil.copytree(data, copy)
    shutil.rmtree(copy / "__cluster_metadata-0")
    found = TieredTopics(Files(), str(copy), Settings(Files(), str(copy)))
    assert "begins at offset 0, below its first segment here, 70" in str(found.why("orders"))
    assert found.why("__remote_log_metadata") is None
    assert kafkafs("config", copy, "orders", "retention.ms=1").returncode == 3
    shutil.rmtree(copy)
