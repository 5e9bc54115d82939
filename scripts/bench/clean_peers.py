"""The cleaners that ``clean.py`` measures: ours in a process of its own, and a broker's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from clean_data import Keyed, copy_to

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.interop.brokers import Broker
from tests.interop.clients import create_topics, set_topic

HERE = Path(__file__).resolve().parent
WAIT_SECONDS = 3600.0
RATIO = 0.0001  # any dirt is enough


@dataclass(frozen=True)
class Run:
    """One cleaning until nothing is dirty. ``records``: what is left where one round did it."""

    seconds: float
    rounds: int
    records: int


def our_run(home: Path, keyed: Keyed, dedupe_bytes: int) -> tuple[Run, dict[str, Any]]:
    """Clean a copy of the partition in a process of its own; its figures too."""
    copy_to(keyed, home / "keyed-0")
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
    """A broker as Kafka's own scripts start it, where tests want one that starts soon."""

    java_options = (
        *("-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4"),
        *("-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
        *("-Xmx1G", "-Xms1G"),
    )


class KafkaCleaner:
    """A running broker that has a topic for each run, with the partition's segments in it."""

    def __init__(
        self, home: Path, keyed: Keyed, dedupe_bytes: int, runs: int, kind: type[Broker] = Fast
    ) -> None:
        self._keyed = keyed
        self._topics = [f"run-{number}" for number in range(runs)]
        self._broker = kind(
            home,
            log_cleaner_dedupe_buffer_size=dedupe_bytes,
            log_segment_bytes=keyed.segment_bytes,
            log_cleaner_backoff_ms=100,
        )

    def __enter__(self) -> Self:
        broker = self._broker
        try:
            broker.start()
            settings = {"cleanup.policy": "delete", "min.cleanable.dirty.ratio": RATIO}
            create_topics(broker, dict.fromkeys(self._topics, settings))
            broker.stop()
            for topic in self._topics:
                place = broker.partition(topic)
                for file in place.iterdir():
                    if file.name != "partition.metadata":
                        file.unlink()
                copy_to(self._keyed, place)
            for name in ("log-start-offset", "cleaner-offset", "replication-offset"):
                (broker.data / f"{name}-checkpoint").unlink(missing_ok=True)
            broker.start()
        except BaseException:
            broker.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.kill()

    def run(self, number: int) -> Run:
        """Have that run's topic cleaned; the time is between lines of the broker's log."""
        topic, server = self._topics[number], self._broker.server
        end = max(int(log.stem) for log in self._broker.partition(topic).glob("*.log"))
        mark = len(server.lines)
        set_topic(self._broker, topic, cleanup_policy="compact")
        last = rf"cleaned log {topic}-0 \(dirty section = \[\d+, {end}\]\)"
        stop = server.wait_for(last, mark, WAIT_SECONDS)
        stop = server.wait_for("fewer messages", stop)
        lines = server.lines[mark:stop]
        return parse(lines, server.times[mark:stop], topic)


def parse(lines: Sequence[str], times: Sequence[float], topic: str) -> Run:
    begins = _when(lines, times, rf"Beginning cleaning of log {topic}-0")
    ends = _when(lines, times, rf"cleaned log {topic}-0 ")
    left = [found for line in lines if (found := re.search(r"End size: .*\(([\d,]+) mess", line))]
    seconds = sum(end - begin for begin, end in zip(begins, ends, strict=True))
    return Run(seconds, len(ends), int(left[-1][1].replace(",", "")))


def _when(lines: Sequence[str], times: Sequence[float], pattern: str) -> list[float]:
    return [at for line, at in zip(lines, times, strict=True) if re.search(pattern, line)]
