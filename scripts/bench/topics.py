#!/usr/bin/env python3
"""Measures the cost of many topics and partitions, and prints a Markdown table with ratios.

    scripts/bench/topics.py [--runs N] [--topics N] [--partitions N] [--rest SECONDS]
                            [--directory DIR] [--tiny]

The peer is the same mount with a twentieth of the topics. Both are mounted at once. Each run does
each work with both in turn, and a ratio is the median of the runs' ratios. A work that changes a
topic changes 20, one after the other. `rest` is the processor time, user and system, that the
daemon of all partitions takes in a second without requests. The figures of mounting and unmounting
are per partition, after a clean stop, with the files in the disk's cache.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage import LogManager, Record, encode
from storage.files import Files

KAFKAFS = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "kafkafs"
FEWER = 20
CHANGED = 20
MKDIR_GOAL = 1.5
REST_GOAL = 0.005
SETTLE_S = 15.0


class Unsynced(Files):
    """Creates directories quickly, without waiting for the disk."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


@dataclass(frozen=True)
class Work:
    """A change of one topic; its number is below CHANGED."""

    title: str
    change: Callable[[Path, int], None]


def set_retention(mount: Path, number: int) -> None:
    with open(mount / f"topic{number}" / ".config", "ab", buffering=0) as file:
        file.write(b"retention.ms=%d\n" % (number + 1_000_000_000))


WORKS = (
    Work("mkdir", lambda mount, number: (mount / f"new{number}").mkdir()),
    Work("chmod", lambda mount, number: (mount / f"new{number}").chmod(0o750)),
    Work("touch a partition", lambda mount, number: (mount / f"new{number}" / "1").touch()),
    Work(".config", set_retention),
    Work("rmdir of a new topic", lambda mount, number: (mount / f"new{number}").rmdir()),
)


class Mounted:
    """A data directory with topics of some partitions each, and its mount."""

    def __init__(self, home: Path, topics: int, partitions: int) -> None:
        self.data, self.path = home / "data", home / "mnt"
        self.partitions = topics * partitions
        home.mkdir()
        self.path.mkdir()
        self.data.mkdir()
        files = Unsynced(str(self.data))
        with LogManager.open(str(self.data), files=files) as manager:
            for number in range(topics):
                owner = (os.getuid(), os.getgid(), 0o755)
                topic = manager.create_topic(f"topic{number}", partitions, owner=owner)
                for log in topic.partitions.values():
                    now_ns = time.time_ns()
                    batch = encode(
                        [Record(n, now_ns // 10**6, 0, None, b"value") for n in range(3)]
                    )
                    log.append(bytearray(batch), now_ns=now_ns)
                    log.active.close_descriptors()
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def daemon(self) -> subprocess.Popen[bytes]:
        assert self._daemon is not None
        return self._daemon

    def start(self) -> float:
        """Mount; return the seconds until the mount answered."""
        begun = time.monotonic()
        self._daemon = subprocess.Popen([KAFKAFS, "mount", "-f", self.data, self.path])
        while not os.path.ismount(self.path):
            if self._daemon.poll() is not None:
                raise SystemExit("it cannot be mounted")
            time.sleep(0.01)
        os.listdir(self.path)
        return time.monotonic() - begun

    def stop(self) -> float:
        """Unmount; return the seconds until the daemon ended."""
        begun = time.monotonic()
        self.daemon.send_signal(signal.SIGTERM)
        if self.daemon.wait():
            raise SystemExit("it was not unmounted cleanly")
        self._daemon = None
        return time.monotonic() - begun

    def end(self) -> None:
        """Unmount after a failure."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            subprocess.run([KAFKAFS, "umount", self.path], check=False, capture_output=True)

    def processor_s(self) -> float:
        """Return the user and system time of the daemon."""
        stat = Path(f"/proc/{self.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Return the daemon's resident memory."""
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def rest(self, seconds: float) -> float:
        """Return the part of a processor that the idle daemon uses."""
        self._settle()
        begun, used = time.monotonic(), self.processor_s()
        time.sleep(seconds)
        return (self.processor_s() - used) / (time.monotonic() - begun)

    def _settle(self) -> None:
        """Wait until the background work after mounting is done and the daemon is idle."""
        while True:
            used = self.processor_s()
            time.sleep(SETTLE_S / 3)
            if self.processor_s() - used < 0.02 * SETTLE_S / 3:
                return


def change_ms(mounted: Mounted, work: Work) -> float:
    """Return the mean time of the changes of one run, in ms."""
    begun = time.monotonic()
    for number in range(CHANGED):
        work.change(mounted.path, number)
    return (time.monotonic() - begun) * 1000 / CHANGED


def verdict(figure: float, goal: float) -> str:
    return f"≤ {goal:g}: {'met' if figure <= goal else 'MISSED'}"


def table(few: Mounted, many: Mounted, options: argparse.Namespace) -> list[str]:
    """Return the lines of the Markdown table."""
    lines = ["| work | unit | few | many | ratio | goal |", "|---|---|---:|---:|---:|---|"]

    def add(title: str, unit: str, pairs: Sequence[tuple[float, float]], goal: str = "") -> None:
        one, other = (statistics.median(figures) for figures in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        lines.append(f"| {title} | {unit} | {one:.3g} | {other:.3g} | {ratio:.3g} | {goal} |")

    def per_partition(seconds: Callable[[Mounted], float]) -> tuple[float, float]:
        each = [seconds(mounted) * 1000 / mounted.partitions for mounted in (few, many)]
        return each[0], each[1]

    # The first time others' view indexes are made.
    for mounted in (few, many):
        mounted.start()
        mounted.rest(0)
        mounted.stop()
    starts = [per_partition(Mounted.start)]
    rests = [(max(few.rest(options.rest), 1e-6), many.rest(options.rest))]
    memory = [(few.memory_mib(), many.memory_mib())]
    figures: dict[str, list[tuple[float, float]]] = {work.title: [] for work in WORKS}
    for _ in range(options.runs):
        for work in WORKS:
            figures[work.title].append((change_ms(few, work), change_ms(many, work)))
    for work in WORKS:
        ratio = statistics.median(b / a for a, b in figures[work.title])
        goal = verdict(ratio, MKDIR_GOAL) if work.title == "mkdir" else ""
        add(work.title, "ms", figures[work.title], goal)
    add("rest", "processors", rests, verdict(rests[0][1], REST_GOAL))
    add("memory", "MiB", memory)
    add("mount", "ms/partition", starts)
    add("umount", "ms/partition", [per_partition(Mounted.stop)])
    return lines


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--partitions", type=int, default=5, help="of each topic")
    parser.add_argument("--rest", type=float, default=60, help="seconds")
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--tiny", action="store_true", help="for the test suite")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.runs, options.topics, options.partitions, options.rest = 1, 2 * FEWER, 1, 0.1
    with tempfile.TemporaryDirectory(dir=options.directory) as base:
        # At least the number of topics that are changed.
        few = Mounted(Path(base) / "few", max(options.topics // FEWER, CHANGED), options.partitions)
        many = Mounted(Path(base) / "many", options.topics, options.partitions)
        try:
            for line in table(few, many, options):
                print(line)
        finally:
            few.end()
            many.end()


if __name__ == "__main__":
    main(sys.argv[1:])
