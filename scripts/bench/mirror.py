#!/usr/bin/env python3
"""Measures the processor time of copying a topic to files, and prints a Markdown table.

    scripts/bench/mirror.py [--runs N] [--size MIB] [--directory DIR] [--tiny] [--mirror-maker]

Needs scripts/setup test, a JVM, and Kafka's jars, which the first run of tests/interop fetches. A
broker has topics of lines of 100 bytes in batches of 256 KiB, without compression and in zstd. The
peers write a topic to the same disk: `kafkafs mirror --once` into a new directory, `dd` as a copy
of the broker's log files, kcat and Kafka's console consumer as text. The console consumer prints an
eighth. With --mirror-maker, MirrorMaker 2 copies the topic to a second broker on the same machine,
which has the same codec; one figure is without the processor time of that broker, one is with it.

Figures are seconds of processor time, user and system, a GB of the broker's log, as medians over
the runs. The time for an empty topic is subtracted from those of kafkafs and of the JVM. The time
of the broker that is read is not counted. After each run of `kafkafs mirror`, the copy is compared
with the broker's log.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from confluent_kafka import KafkaException
from latency import KAFKAFS

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.properties import ClientSettings
from kafka_client.requests import produce
from storage.record.batch import Record, encode
from storage.record.header import parse_header
from storage.record.plain import recompress
from tests.interop.brokers import Broker, JavaServer, write_properties
from tests.interop.clients import create_topic, offsets
from tests.interop.kafka_tools import MIRROR_MAKER_POM, java_command, require
from tests.waits import until

MIB = 1 << 20
GB = 1e9
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
SLOW_SHARE = 8
CODECS = {"none": 0, "zstd": 4}
EMPTY = "empty"
MIRROR, DD = "`kafkafs mirror --once`", "`dd`"
RECORDS = 2400  # a batch


def batches(codec: int) -> list[bytes]:
    """Return a few batches with different lines."""
    rng = random.Random(1)
    made = []
    for _ in range(8):
        lines = [
            f'{{"id":"{rng.getrandbits(64):016x}","item":"{rng.choice(("apples", "pears"))}",'
            f'"count":{rng.randrange(1000)}}}'.ljust(100, " ").encode()
            for _ in range(RECORDS)
        ]
        plain = encode([Record(n, 1, 0, None, line) for n, line in enumerate(lines)])
        made.append(bytes(recompress(plain, codec)) if codec else plain)
    return made


class Bench:
    """A running broker with a topic for each codec, and what copying them has cost."""

    def __init__(self, base: Path, size: int, *, mirror_maker: bool) -> None:
        self._base = base
        self._has_mirror_maker = mirror_maker
        self._out = base / "out"
        self.broker = Broker(base / "broker", broker_session_timeout_ms=60_000)
        self.broker.start()
        self._counts: dict[str, int] = {EMPTY: 0}
        create_topic(self.broker, EMPTY)
        with Cluster(parse_brokers(self.broker.address), ClientSettings()) as cluster:
            for topic, codec in CODECS.items():
                create_topic(self.broker, topic)
                given = batches(codec)
                count = max(size // (RECORDS * 100), 1)
                for number in range(count):
                    produce(cluster, TopicPartition(topic, 0), given[number % len(given)])
                self._counts[topic] = count * RECORDS
        # The figures of a topic, by peer.
        self.figures: dict[str, dict[str, list[float]]] = {topic: {} for topic in CODECS}

    def log(self, topic: str) -> list[Path]:
        return sorted(self.broker.partition(topic).glob("*.log"))

    def gigabytes(self, topic: str) -> float:
        return sum(path.stat().st_size for path in self.log(topic)) / GB

    def run(self) -> None:
        """Let each peer copy each topic once."""
        started = self._mirror(EMPTY)
        started_java = self._console_consumer(1, EMPTY)
        for topic in CODECS:
            figures: dict[str, Callable[[str], float]] = {
                MIRROR: lambda topic: self._mirror(topic) - started,
                DD: self._dd,
                "kcat": self._kcat,
                "console consumer": lambda topic: (
                    SLOW_SHARE * (self._console_consumer(self._counts[topic] // SLOW_SHARE, topic))
                    - SLOW_SHARE * started_java
                ),
            }
            for name, measure in figures.items():
                cost = max(measure(topic), 0) / self.gigabytes(topic)
                self.figures[topic].setdefault(name, []).append(cost)

        if self._has_mirror_maker:
            self._run_mirror_maker()

    def _run_mirror_maker(self) -> None:
        started, target_started = self._mirror_maker(EMPTY)
        for topic in CODECS:
            took, target_took = self._mirror_maker(topic)
            own = took - started
            for name, cost in {
                "MirrorMaker 2": own,
                "MirrorMaker 2 and its target": own + target_took - target_started,
            }.items():
                cost = max(cost, 0) / self.gigabytes(topic)
                self.figures[topic].setdefault(name, []).append(cost)

    def _mirror_maker(self, topic: str) -> tuple[float, float]:
        """Return the processor time of MirrorMaker 2, and of the new broker that it writes to."""
        target = Broker(self._base / "target", broker_session_timeout_ms=60_000)
        settings = self._base / "mirror-maker.properties"
        stores = ("offset.storage", "status.storage", "config.storage")
        topics = ("offset-syncs.topic", "heartbeats.topic", "checkpoints.topic")
        write_properties(
            settings,
            {
                "clusters": "source, target",
                "source.bootstrap.servers": self.broker.address,
                "target.bootstrap.servers": target.address,
                "source->target.enabled": "true",
                "source->target.topics": topic,
                "replication.policy.class": (
                    "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
                ),
                "replication.factor": 1,
                **{f"{each}.replication.factor": 1 for each in (*stores, *topics)},
                "offset-syncs.topic.location": "target",
                "target.producer.compression.type": "none" if topic == EMPTY else topic,
            },
        )
        server = None
        try:
            target.start()
            before = cpu_seconds(target.server)
            options = ("-XX:TieredStopAtLevel=4", "-Xmx1g")
            server = JavaServer(
                java_command(MIRROR_MAKER, str(settings), pom=MIRROR_MAKER_POM, options=options)
            )

            def is_copied() -> bool:
                with suppress(KafkaException):
                    return offsets(target, topic)[1] == self._counts[topic]
                return False

            until(is_copied)
            for path in target.partition(topic).glob("*.log"):
                data = path.read_bytes()
                assert not data or parse_header(data).codec == CODECS[topic]
            return cpu_seconds(server), cpu_seconds(target.server) - before
        finally:
            if server is not None:
                server.end(signal.SIGKILL)
            target.kill()
            shutil.rmtree(target.base)

    def _mirror(self, topic: str) -> float:
        data = self._base / "data"
        words = [str(KAFKAFS), "mirror", "--once", f"kafka://{self.broker.address}", str(data)]
        took = self._seconds([*words, topic])
        copy = b"".join(path.read_bytes() for path in sorted((data / f"{topic}-0").glob("*.log")))
        assert copy == b"".join(path.read_bytes() for path in self.log(topic))
        shutil.rmtree(data)
        return took

    def _dd(self, topic: str) -> float:
        return sum(
            self._seconds(["dd", f"if={path}", f"of={self._out}", "bs=1M", "status=none"])
            for path in self.log(topic)
        )

    def _kcat(self, topic: str) -> float:
        where = ["-b", self.broker.address, "-t", topic, "-p", "0", "-o", "beginning"]
        return self._seconds([require("kcat", "kcat"), "-C", *where, "-e", "-q"])

    def _console_consumer(self, count: int, topic: str) -> float:
        where = ["--bootstrap-server", self.broker.address, "--topic", topic]
        words = ["--from-beginning", "--max-messages", str(count), "--timeout-ms", "3000"]
        return self._seconds(java_command(CONSOLE, *where, *words), may_fail=topic == EMPTY)

    def _seconds(self, command: Sequence[str], *, may_fail: bool = False) -> float:
        """Return the processor time of a program that writes to a file."""
        with open(self._out, "wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode and not may_fail:
            raise SystemExit(f"{command[0]} ended with status {process.returncode}")
        self._out.unlink()
        return usage.ru_utime + usage.ru_stime


def cpu_seconds(server: JavaServer) -> float:
    """Return the processor time of a process that runs."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(bench: Bench) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    names = list(bench.figures["none"])
    yield f"| topic | GB | {' | '.join(names)} | ratio to `dd` |"
    yield f"|---|{'---:|' * (len(names) + 2)}"
    for topic, figures in bench.figures.items():
        costs = [f"{statistics.median(figures[name]):.2f}" for name in names]
        pairs = zip(figures[MIRROR], figures[DD], strict=True)
        ratio = statistics.median(ours / max(theirs, 1e-3) for ours, theirs in pairs)
        size = f"{bench.gigabytes(topic):.3f}"
        yield f"| {topic} | {size} | {' | '.join(costs)} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the cost of copying a topic.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="of each topic")
    parser.add_argument("--directory", default="/var/tmp", help="where the broker and copies are")
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    parser.add_argument("--mirror-maker", action="store_true", help="also run MirrorMaker 2")
    given = parser.parse_args()
    if given.tiny:
        given.runs, given.size = 1, 2
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        bench = Bench(Path(name), given.size * MIB, mirror_maker=given.mirror_maker)
        try:
            for number in range(given.runs):
                print(f"run {number + 1}", file=sys.stderr, flush=True)
                bench.run()
            lines = list(table(bench))
        finally:
            bench.broker.kill()
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {given.runs} runs, CPU seconds a GB of log")
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
