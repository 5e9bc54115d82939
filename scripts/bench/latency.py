#!/usr/bin/env python3
"""Measures the latency of followers, and the cost of waiting; prints Markdown tables.

    scripts/bench/latency.py [--runs N] [--waiting N] [--rest SECONDS] [--directory DIR] [--tiny]

The peers are `kafkafs tail -f`, `kafkafs consume --follow` without and with a group, and GNU tail
with -f and -F, each on a partition of its own of one mount. Another peer is kcat on a broker, to
which librdkafka sends without a pause of its own. In each run all peers get a line in turn, after a
random pause of up to a second, because some look once a second. Our followers and kcat get ten
lines in a run, each after the line before was printed. A latency is the time from before write() or
produce() until the line can be read from the follower's output.

The second table is the processor time, user and system, of the daemon in a second without appends:
without waiting processes, with one process that waits for many open files in epoll(7), and with
`tail -f` on as many.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.interop.brokers import Broker
from tests.interop.clients import Sender, create_topic
from tests.interop.kafka_tools import require

KAFKAFS = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "kafkafs"
OURS = "kafkafs tail -f"
CONSUME = [str(KAFKAFS), "consume", "--follow"]
COMMANDS = {
    OURS: [str(KAFKAFS), "tail", "-f", "-n", "1"],
    "kafkafs consume --follow": CONSUME,
    "kafkafs consume --follow -g": [*CONSUME, "-g", "followers"],
    "tail -f": ["tail", "-f", "-n", "1"],
    "tail -F": ["tail", "-F", "-n", "1"],
}
GOALS = [name for name in COMMANDS if name.startswith("kafkafs")]
KCAT = "kcat on a broker"
#: Lines in a run for followers that do not look once a second.
LINES = 10
PAUSE_S = 0.005
SETTLE_S = 3.0
P99_GOAL_MS = 10.0


class Mounted:
    """A fresh data directory and its mount."""

    def __init__(self, base: Path) -> None:
        self.path = base / "mnt"
        data = base / "data"
        self.path.mkdir()
        data.mkdir()
        self._daemon = subprocess.Popen([KAFKAFS, "mount", "-f", data, self.path])
        while not os.path.ismount(self.path):
            if self._daemon.poll() is not None:
                raise SystemExit("it cannot be mounted")
            time.sleep(0.01)

    def topic(self, name: str) -> Path:
        """Create a topic; return the file of its one partition, with a line."""
        (self.path / name).mkdir()
        path = self.path / name / "0"
        with path.open("ab", buffering=0) as file:
            file.write(b"first\n")
        return path

    def processor_s(self) -> float:
        """Return the user and system time of the daemon."""
        stat = Path(f"/proc/{self._daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait()
        subprocess.run([KAFKAFS, "umount", self.path], check=False, capture_output=True)


class Follower:
    """A program that follows a partition with a line, and the function that appends to it."""

    def __init__(
        self, name: str, command: Sequence[str | Path], write: Callable[[bytes], object]
    ) -> None:
        self.name = name
        self.latencies_ms: list[float] = []
        self._write = write
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._begun = 0.0
        self.printed()

    def append(self) -> None:
        self._begun = time.perf_counter()
        self._write(b"a line\n")

    def printed(self) -> float:
        """Wait for the last line; return the time at which it was printed."""
        os.read(self._output, 1 << 16)
        return time.perf_counter()

    def measure(self) -> None:
        self.latencies_ms.append((self.printed() - self._begun) * 1000)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def follower_of(name: str, path: Path) -> Follower:
    """Start a follower of a mount."""
    write = partial(os.write, os.open(path, os.O_WRONLY | os.O_APPEND))
    return Follower(name, [*COMMANDS[name], path], write)


def kcat(broker: Broker) -> Follower:
    topic = "followed"
    create_topic(broker, topic)
    sender = Sender(broker, linger_ms=0)

    def write(line: bytes) -> None:
        sender.producer.produce(topic, partition=0, value=line.rstrip())
        sender.producer.poll(0)

    write(b"first")
    sender.flush()
    where = ["-b", broker.address, "-t", topic, "-p", "0", "-o", "beginning"]
    return Follower(KCAT, [require("kcat", "kcat"), "-C", *where, "-q", "-u"], write)


def measure_latencies(followers: Sequence[Follower], runs: int, pause_s: float) -> None:
    quick = [each for each in followers if each.name in (*GOALS, KCAT)]
    for _ in range(runs):
        time.sleep(random.uniform(0, pause_s))
        for each in quick:
            for _ in range(LINES):
                time.sleep(random.uniform(0, PAUSE_S))
                each.append()
                each.measure()
        waiting = [each for each in followers if each not in quick]
        poller = select.poll()
        for follower in waiting:
            follower.append()
            poller.register(follower._output, select.POLLIN)
        while waiting:
            ready = {fd for fd, _ in poller.poll()}
            for follower in waiting[:]:
                if follower._output in ready:
                    follower.measure()
                    poller.unregister(follower._output)
                    waiting.remove(follower)


def latency_table(followers: Sequence[Follower]) -> Iterator[str]:
    yield "| follower | lines | median ms | p99 ms | times | goal |"
    yield "|---|---:|---:|---:|---:|---|"
    ours = statistics.median(followers[0].latencies_ms)
    for follower in followers:
        figures = sorted(follower.latencies_ms)
        median, p99 = statistics.median(figures), figures[int(len(figures) * 0.99)]
        goal = ""
        if follower.name in GOALS:
            goal = f"p99 ≤ {P99_GOAL_MS:g} ms: {'met' if p99 <= P99_GOAL_MS else 'MISSED'}"
        times = f"{median / ours:.3g}"
        yield f"| {follower.name} | {len(figures)} | {median:.3g} | {p99:.3g} | {times} | {goal} |"


@contextmanager
def waiting_in_epoll(paths: Sequence[Path]) -> Iterator[None]:
    """Run a process that waits for appends to each file."""
    program = (
        "import os, select, sys\n"
        "epoll = select.epoll()\n"
        "for path in sys.argv[1:]:\n"
        "    fd = os.open(path, os.O_RDONLY)\n"
        "    while os.read(fd, 1 << 16): pass\n"
        "    epoll.register(fd, select.EPOLLPRI)\n"
        "print(flush=True)\n"
        "epoll.poll()\n"
    )
    with started([sys.executable, "-c", program, *paths]):
        yield


@contextmanager
def started(command: Sequence[str | Path]) -> Iterator[None]:
    """Run a program meanwhile, from its first output on."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1 << 16)
        yield
    finally:
        process.kill()
        process.communicate()


def rest(mounted: Mounted, seconds: float) -> float:
    """Return the milliseconds of processor time that the daemon takes in a second."""
    time.sleep(min(SETTLE_S, seconds))
    begun, used = time.monotonic(), mounted.processor_s()
    time.sleep(seconds)
    return (mounted.processor_s() - used) * 1000 / (time.monotonic() - begun)


def rest_table(mounted: Mounted, waiting: int, seconds: float, runs: int) -> Iterator[str]:
    paths = [mounted.topic(f"waiting{number}") for number in range(waiting)]

    @contextmanager
    def nobody() -> Iterator[None]:
        yield

    who: dict[str, Callable[[], object]] = {
        "nobody": nobody,
        f"{waiting} open files in epoll": lambda: waiting_in_epoll(paths),
        f"tail -f of {waiting} files": lambda: started(["tail", "-f", "-n", "1", *paths]),
    }
    figures: dict[str, list[float]] = {name: [] for name in who}
    for _ in range(runs):
        for name, wait in who.items():
            with wait():  # type: ignore[attr-defined]
                figures[name].append(rest(mounted, seconds))
    yield "| who waits | processor ms a second |"
    yield "|---|---:|"
    for name, found in figures.items():
        yield f"| {name} | {statistics.median(found):.3g} |"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--waiting", type=int, default=500, help="readers that wait")
    parser.add_argument("--rest", type=float, default=10, help="seconds")
    parser.add_argument("--rests", type=int, default=3, help="runs of the second table")
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--tiny", action="store_true", help="for the test suite")
    options = parser.parse_args(arguments)
    pause_s = 1.0
    if options.tiny:
        options.runs, options.waiting, options.rest, options.rests, pause_s = 2, 5, 0.1, 1, 0.0
    with tempfile.TemporaryDirectory(dir=options.directory) as base:
        mounted, broker = Mounted(Path(base)), Broker(Path(base) / "broker")
        followers: list[Follower] = []
        try:
            broker.start()
            for number, name in enumerate(COMMANDS):
                followers.append(follower_of(name, mounted.topic(f"followed{number}")))
            followers.append(kcat(broker))
            measure_latencies(followers, options.runs, pause_s)
            for line in latency_table(followers):
                print(line)
            for each in followers:
                each.end()
            followers.clear()
            broker.kill()
            print()
            for line in rest_table(mounted, options.waiting, options.rest, options.rests):
                print(line)
        finally:
            for each in followers:
                each.end()
            if broker.running:
                broker.kill()
            mounted.end()


if __name__ == "__main__":
    main(sys.argv[1:])
