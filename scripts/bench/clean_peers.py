"""The cleaners that `clean.py` measures: ours in a process of its own, and a broker's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from clean_data import Keyed, copy_to, mark_clean
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.interop.brokers import Broker
from tests.interop.clients import SECONDS, admin, create_topics, set_topic

HERE = Path(__file__).resolve().parent
WAIT_SECONDS = 3600.0
RATIO = 0.0001  # any dirt is enough


@dataclass(frozen=True)
class Run:
    """One cleaning until nothing is dirty. `records`: the records after the last round."""

    seconds: float
    rounds: int
    records: int


def our_run(home: Path, keyed: Keyed, dedupe_bytes: int) -> tuple[Run, dict[str, Any]]:
    """Clean a copy of the partition in a process of its own; return its figures, too."""
    copy_to(keyed.directory, home / "keyed-0")
    mark_clean(home)
    (home / "kafkafs.properties").write_text(
        f"log.segment.bytes={keyed.segment_bytes}\n"
        f"log.cleaner.dedupe.buffer.size={dedupe_bytes}\n"
        "log.cleanup.policy=compact\n"
        f"log.cleaner.min.cleanable.ratio={RATIO}\n"
    )
    command: list[str | Path] = [sys.executable, HERE / "clean_ours.py", home]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    return Run(figures["seconds"], figures["rounds"], figures["kept"]), figures


class Fast(Broker):
    """A broker with the options of Kafka's scripts. The brokers of tests start sooner."""

    java_options = (
        *("-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4"),
        *("-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
        *("-Xmx1G", "-Xms1G"),
    )


class Kafka:
    """A running broker with copies of our partitions as topics. A context manager.

    `partitions`: the closed directory of a partition, by the topic's name. The broker cleans and
    deletes only on request.
    """

    def __init__(self, home: Path, partitions: Mapping[str, Path], kind: type[Broker]) -> None:
        self._partitions = partitions
        self._broker = kind(home, log_cleaner_backoff_ms=100, log_retention_check_interval_ms=200)

    def __enter__(self) -> Self:
        broker = self._broker
        settings = {
            "cleanup.policy": "delete",
            "min.cleanable.dirty.ratio": RATIO,
            "file.delete.delay.ms": 3_600_000,
        }
        try:
            broker.start()
            create_topics(broker, dict.fromkeys(self._partitions, settings))
            broker.stop()
            for topic, partition in self._partitions.items():
                place = broker.partition(topic)
                for file in place.iterdir():
                    if file.name != "partition.metadata":
                        file.unlink()
                copy_to(partition, place)
            for name in ("log-start-offset", "cleaner-offset", "replication-offset"):
                (broker.data / f"{name}-checkpoint").unlink(missing_ok=True)
            broker.start()
        except BaseException:
            broker.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.kill()

    @property
    def address(self) -> str:
        """The address for clients."""
        return self._broker.address

    def set_dedupe_buffer(self, size: int) -> None:
        """Set the size of the cleaner's map, and restart the cleaner."""
        name = "log.cleaner.dedupe.buffer.size"
        entry = ConfigEntry(name, str(size), incremental_operation=AlterConfigOpType.SET)
        broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        mark = len(self._broker.server.lines)
        client = admin(self._broker)
        client.incremental_alter_configs([broker])[broker].result(SECONDS)
        self._broker.server.wait_for("Starting the log cleaner", mark)

    def clean(self, topic: str, segment_bytes: int) -> Run:
        """Clean a topic. The time is that between two lines of the broker's log."""
        server = self._broker.server
        end = max(int(log.stem) for log in self._broker.partition(topic).glob("*.log"))
        set_topic(self._broker, topic, segment_bytes=segment_bytes)
        mark = len(server.lines)
        set_topic(self._broker, topic, cleanup_policy="compact")
        last = rf"cleaned log {topic}-0 \(dirty section = \[\d+, {end}\]\)"
        stop = server.wait_for(last, mark, WAIT_SECONDS)
        stop = server.wait_for("fewer messages", stop)
        return parse(server.lines[mark:stop], server.times[mark:stop], topic)

    def retain(self, topic: str, count: int) -> float:
        """Delete all but the active segment: `count` segments with one record each.

        Return the seconds between the new log start and the renaming of the last segment.
        """
        server, place = self._broker.server, self._broker.partition(topic)
        mark = len(server.lines)
        set_topic(self._broker, topic, retention_bytes=0)
        moved = rf"{topic}-0.*Incremented log start offset to {count} "
        first = server.wait_for(moved, mark, WAIT_SECONDS) - 1
        while sum(file.suffix == ".log" for file in place.iterdir()) > 1:
            time.sleep(0.001)
        return time.monotonic() - server.times[first]


def parse(lines: Sequence[str], times: Sequence[float], topic: str) -> Run:
    begins = _when(lines, times, rf"Beginning cleaning of log {topic}-0")
    ends = _when(lines, times, rf"cleaned log {topic}-0 ")
    left = [found for line in lines if (found := re.search(r"End size: .*\(([\d,]+) mess", line))]
    seconds = sum(end - begin for begin, end in zip(begins, ends, strict=True))
    return Run(seconds, len(ends), int(left[-1][1].replace(",", "")))


def _when(lines: Sequence[str], times: Sequence[float], pattern: str) -> list[float]:
    return [at for line, at in zip(lines, times, strict=True) if re.search(pattern, line)]
