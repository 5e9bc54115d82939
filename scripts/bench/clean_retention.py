"""Deleting a head of very many segments: our retention, and a broker's."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Self

from clean_peers import Fast

from storage import LogManager, Record, encode
from storage.retain import retain
from storage.task import Task
from tests.interop.brokers import Broker
from tests.interop.clients import create_topics, set_topic

TOPIC = "many"
WAIT_SECONDS = 600.0
FLUSHED_AT_ONCE = 500


def write_segments(data: Path, count: int) -> None:
    """A topic of so many sealed segments with a record each."""
    data.mkdir(parents=True)
    (data / "kafkafs.properties").write_text("log.retention.ms=-1\n")
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic(TOPIC, 1).partitions[0]
        now_ms = time.time_ns() // 1_000_000
        batch = encode([Record(0, now_ms, 0, None, b"x" * 100)])
        for number in range(count):
            log.append(bytearray(batch), now_ns=now_ms * 1_000_000)
            log.roll(now_ms)
            if not number % FLUSHED_AT_ONCE:
                # Each has three files open until then.
                log.flush()
                log.age_descriptors()
                log.age_descriptors()


def ours(data: Path, home: Path, count: int) -> dict[str, float]:
    """µs a segment until they are out of the log, and until their files are gone."""
    shutil.copytree(data, home)
    with LogManager.open(str(home)) as manager:
        log = manager.log(TOPIC, 0)
        manager.set_topic_setting(TOPIC, "retention.bytes", "0")
        begun = time.monotonic()
        outcome = retain(manager, [log], Task())
        deleted = time.monotonic() - begun
        assert outcome.segments == count, outcome
        begun = time.monotonic()
        later_ms = time.time_ns() // 1_000_000 + log.config.file_delete_delay_ms
        while (remove := manager.remove_deleted(later_ms)) is not None:
            remove()
        assert not log.retired
        removed = time.monotonic() - begun
    return {"kafkafs": deleted / count * 1e6, "kafkafs, files": removed / count * 1e6}


class KafkaRetention:
    """A running broker that has the topic once for each run. A context manager."""

    def __init__(
        self, data: Path, home: Path, count: int, runs: int, kind: type[Broker] = Fast
    ) -> None:
        self._broker = kind(home, log_retention_check_interval_ms=200)
        self._data = data / f"{TOPIC}-0"
        self._count = count
        self._topics = [f"{TOPIC}-{number}" for number in range(runs)]

    def __enter__(self) -> Self:
        broker = self._broker
        try:
            broker.start()
            settings = {"file.delete.delay.ms": 3_600_000}
            create_topics(broker, dict.fromkeys(self._topics, settings))
            broker.stop()
            for topic in self._topics:
                place = broker.partition(topic)
                for file in place.iterdir():
                    if file.name != "partition.metadata":
                        file.unlink()
                for file in self._data.iterdir():
                    if file.name != "partition.metadata":
                        shutil.copy2(file, place)
            for name in ("log-start-offset", "replication-offset"):
                (broker.data / f"{name}-checkpoint").unlink(missing_ok=True)
            broker.start()
        except BaseException:
            broker.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.kill()

    def run(self, number: int) -> dict[str, float]:
        """µs a segment, from moving the log start to the last one's renaming."""
        topic, server = self._topics[number], self._broker.server
        mark = len(server.lines)
        set_topic(self._broker, topic, retention_bytes=0)
        moved = rf"{topic}-0.*Incremented log start offset to {self._count} "
        first = server.wait_for(moved, mark, WAIT_SECONDS) - 1
        place = self._broker.partition(topic)
        while sum(file.suffix == ".log" for file in place.iterdir()) > 1:
            time.sleep(0.001)
        return {"Kafka": (time.monotonic() - server.times[first]) / self._count * 1e6}
