#!/usr/bin/env python3
"""Measures the records a second of consumers, and prints a Markdown table.

    scripts/bench/consume.py [--records N] [--runs N] [--directory DIR] [--tiny]

The peers are `kafkafs consume` on a mount, and kcat and Kafka's console consumer on a broker, alone
and in a group. All have the same records, lines of 100 bytes in one partition, uncompressed. All
write them to a pipe that `cat` empties, or (`--exec cat`) to a command for each batch. Each run
measures each peer once, with a new group if it needs one. The time for printing a single record is
subtracted: it is the time to start and to join a group. The console consumer prints an eighth.

The ratios are those of the medians: ours to the peer that does the same.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from latency import KAFKAFS, Mounted

from tests.interop.brokers import Broker
from tests.interop.clients import create_topic
from tests.interop.kafka_tools import java_command, require

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SLOW_SHARE = 8
ALONE, GROUPED = "alone", "in a group"
TOPIC = "lines"

_numbers = itertools.count()


def group() -> str:
    """Return the name of a new group."""
    return f"group{next(_numbers)}"


class Peer:
    """A program that prints records. `command` returns its command line for a number of them."""

    def __init__(self, name: str, kind: str, command: Callable[[int], list[str]]) -> None:
        self.name = name
        self.kind = kind
        self._command = command
        self.rates: list[float] = []

    def measure(self, records: int) -> None:
        """Return 1,000 records a second."""
        starting = self._seconds(1)
        self.rates.append(records / max(self._seconds(records) - starting, 1e-6) / 1e3)

    def _seconds(self, records: int) -> float:
        begun = time.monotonic()
        reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        subprocess.run(
            self._command(records), check=True, stdout=reader.stdin, stderr=subprocess.DEVNULL
        )
        reader.communicate()
        return time.monotonic() - begun

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def ours(mounted: Mounted) -> Iterator[Peer]:
    def command(*options: str) -> Callable[[int], list[str]]:
        def made(records: int) -> list[str]:
            words = [group() if word == "GROUP" else word for word in options]
            limit = ["--max-records", str(records)] if "-g" in words or records == 1 else []
            return [str(KAFKAFS), "consume", *words, *limit, str(mounted.path / TOPIC)]

        return made

    yield Peer("kafkafs consume", ALONE, command())
    yield Peer("kafkafs consume -g", GROUPED, command("-g", "GROUP"))
    yield Peer("kafkafs consume -g --exec cat", GROUPED, command("-g", "GROUP", "--exec", "cat"))


def theirs(broker: Broker) -> Iterator[Peer]:
    def kcat(records: int) -> list[str]:
        where = ["-C", "-b", broker.address, "-t", TOPIC, "-o", "beginning"]
        return [require("kcat", "kcat"), *where, "-q", "-c", str(records)]

    def kcat_group(records: int) -> list[str]:
        where = ["-b", broker.address, "-X", "auto.offset.reset=earliest", "-G", group()]
        return [require("kcat", "kcat"), *where, "-q", "-c", str(records), TOPIC]

    def console(*more: str) -> Callable[[int], list[str]]:
        def made(records: int) -> list[str]:
            words = [group() if word == "GROUP" else word for word in more]
            where = ["--bootstrap-server", broker.address, "--topic", TOPIC, "--from-beginning"]
            return java_command(CONSOLE, *where, *words, "--max-messages", str(records))

        return made

    yield Peer("kcat -C", ALONE, kcat)
    yield Peer("console consumer", ALONE, console())
    yield Peer("kcat -G", GROUPED, kcat_group)
    yield Peer("console consumer --group", GROUPED, console("--group", "GROUP"))


def table(mine: Sequence[Peer], others: Sequence[Peer]) -> Iterator[str]:
    yield "| program | | 1,000 records/s | times kcat | times console consumer |"
    yield "|---|---|---:|---:|---:|"
    for peer in [*mine, *others]:
        ratios = [f"{peer.rate / each.rate:.3g}" for each in others if each.kind == peer.kind]
        yield f"| {peer.name} | {peer.kind} | {peer.rate:.3g} | {' | '.join(ratios)} |"


def fill(mounted: Mounted, broker: Broker, base: Path, records: int) -> None:
    """Append the same lines to both."""
    lines = base / "lines"
    with open(lines, "wb") as file:
        file.writelines(b"%09d %s\n" % (number, b"x" * 89) for number in range(records))
    (mounted.path / TOPIC).mkdir()
    with open(lines, "rb") as file, open(mounted.path / TOPIC / "0", "ab") as topic:
        shutil.copyfileobj(file, topic, 1 << 20)
    create_topic(broker, TOPIC)
    send = [require("kcat", "kcat"), "-P", "-b", broker.address, "-t", TOPIC, "-p", "0"]
    # The most messages that librdkafka's queue holds.
    queue = ["-X", "queue.buffering.max.messages=1000000", "-X", "linger.ms=50"]
    subprocess.run([*send, *queue, "-l", str(lines)], check=True)
    lines.unlink()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--tiny", action="store_true", help="for the test suite")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.records, options.runs = 2000, 1
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        base = Path(directory)
        mounted, broker = Mounted(base), Broker(base / "broker")
        try:
            broker.start()
            fill(mounted, broker, base, options.records)
            mine, others = list(ours(mounted)), list(theirs(broker))
            for _ in range(options.runs):
                for peer in [*mine, *others]:
                    is_slow = peer.name.startswith("console")
                    peer.measure(options.records // (SLOW_SHARE if is_slow else 1))
            for line in table(mine, others):
                print(line)
        finally:
            if broker.running:
                broker.kill()
            mounted.end()


if __name__ == "__main__":
    main(sys.argv[1:])
