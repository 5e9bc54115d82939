#!/usr/bin/env python3
"""Measures the cleaners beside Kafka's, and prints a Markdown table with ratios.

    .venv/bin/python scripts/bench/clean.py [--runs N] [--size MIB] [--segments N] [--only WORK]
                                            [--directory DIR] [--tiny]

Needs scripts/setup test, and Kafka's jars, which the first run of tests/interop fetches. In each
run, both cleaners clean the same segments (hard links), which are in the page cache. Figures are
medians over the runs, and a ratio is the median of the runs' ratios. The broker has Kafka's own JVM
options. The first run of each work is not counted, because the broker is slow in it.

The works are:

- Compaction of a log of 100-byte values with 10 % distinct keys, until nothing is dirty: MB of log
  a second. For kafkafs this is the time of the process (`clean_ours.py`, one thread). For the
  broker it is the time between two lines of its log, at the start and at the end.
- Compaction of a log with different keys only, which is a quarter as large. The dedupe buffer is
  too small by a factor of 20, as the default of 128 MiB is for 100 million keys. So it takes some
  20 rounds, and each round reads all earlier segments. The growth of our memory is measured, too.
- p99 of 4 KiB reads and of one-line appends through a mount, while its daemon cleans such a log and
  while the daemon is idle.
- Retention of a log of many segments with one record each: µs a deleted segment, until all are out
  of the log. This is measured once.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clean_data import MIB, RECORD_BYTES, Keyed, warm, write_keyed
from clean_mount import READ, WRITE, Busy
from clean_peers import Fast, Kafka, our_run
from clean_retention import TOPIC, delete, write_segments
from mount import build, say
from views import Row

from tests.interop.brokers import Broker

DEFAULT_BUFFER = 128 * MIB
SMALLEST_BUFFER = MIB + 1  # the smallest size that a broker accepts
SLOT_BYTES = 24
LOAD_FACTOR = 0.9
ROUNDS = 20
SHARE = 4  # of the log is what is cleaned in many rounds

Found = dict[str, list[float]]

ROWS = [
    Row("compact", "10 % distinct keys", "MB/s", "kafkafs", "Kafka", at_least=5),
    Row("pressure", "all keys distinct, small map", "MB/s", "kafkafs", "Kafka", at_least=5),
    Row("pressure", "memory grown by", "MiB", "grown", "buffer"),
    Row("compact", "memory grown by", "MiB", "grown", "buffer", at_most=1),
    Row("mount", "4 KiB reads, p99", "µs", "read cleaning", "read idle", at_most=3),
    Row("mount", "one-line appends, p99", "µs", "write cleaning", "write idle", at_most=3),
    Row("retention", "deleted segment", "µs", "kafkafs", "Kafka"),
    Row("retention", "its files' removal, later", "µs", "kafkafs, files"),
]
WORKS = list(dict.fromkeys(row.work for row in ROWS))


@dataclass
class Bench:
    """The amounts to measure. Sizes are in bytes. `notes` are printed below the table."""

    directory: Path
    runs: int
    size: int
    segments: int
    requests: int
    notes: list[str] = field(default_factory=list)

    @property
    def warm_up(self) -> int:
        return int(self.runs > 1)


def compact(bench: Bench, kafka: Kafka, keyed: Keyed) -> Found:
    return cleaning(bench, kafka, "compact", keyed, DEFAULT_BUFFER)


def pressure(bench: Bench, kafka: Kafka, keyed: Keyed) -> Found:
    wanted = int(keyed.records / ROUNDS * SLOT_BYTES / LOAD_FACTOR)
    return cleaning(bench, kafka, "pressure", keyed, max(wanted, SMALLEST_BUFFER))


def cleaning(bench: Bench, kafka: Kafka, work: str, keyed: Keyed, buffer: int) -> Found:
    """Measure both cleaners on the same log, run by run."""
    found: Found = {}
    warm(keyed.directory)
    kafka.set_dedupe_buffer(buffer)
    for run in range(bench.runs + bench.warm_up):
        os.sync()
        mine, memory = our_run(bench.directory / f"{work}-{run}", keyed, buffer)
        os.sync()
        theirs = kafka.clean(f"{work}-{run}", keyed.segment_bytes)
        if (mine.rounds, mine.records) != (theirs.rounds, theirs.records):
            raise RuntimeError(f"{work}: {mine} where Kafka has {theirs}")
        say(f"{work}: {mine.seconds:.2f} s, Kafka {theirs.seconds:.2f} s")
        if run >= bench.warm_up:
            add(found, "kafkafs", keyed.size / mine.seconds / 1e6)
            add(found, "Kafka", keyed.size / theirs.seconds / 1e6)
            add(found, "grown", (memory["peak"] - memory["before"]) / MIB)
            add(found, "buffer", buffer / MIB)
    bench.notes.append(
        f"{work}: {keyed.size / MIB:.0f} MiB, {keyed.records:,} records, {mine.rounds} rounds,"
        f" {memory['keys']:,} keys in the map, {mine.records:,} records left; memory"
        f" {memory['before'] / MIB:.1f} MiB before, {memory['peak'] / MIB:.1f} at most,"
        f" {memory['after'] / MIB:.1f} after"
    )
    return found


def add(found: Found, name: str, figure: float) -> None:
    found.setdefault(name, []).append(figure)


def retention(bench: Bench, kafka: Kafka, data: Path) -> Found:
    """Measure once: a broker has all segments open from its start."""
    count = bench.segments
    found = {name: [f] for name, f in delete(data, bench.directory / "retained", count).items()}
    add(found, "Kafka", kafka.retain("retention", count) / count * 1e6)
    return found


def mount(bench: Bench, client: Path, keyed: Keyed) -> Found:
    found: Found = {}
    warm(keyed.directory)
    running = 0.0
    say("mount")
    with Busy(bench.directory / "mount", keyed, 2 * bench.runs, client) as busy:
        for what in (READ, WRITE):
            busy.idle(what, bench.requests)
            for _ in range(bench.runs):
                add(found, f"{what} idle", busy.idle(what, bench.requests))
                while_cleaning, still = busy.while_cleaning(what, bench.requests)
                add(found, f"{what} cleaning", while_cleaning)
                running += still / (2 * bench.runs)
    bench.notes.append(f"mount: the cleaning outlasted the requests in {running:.0%} of the runs")
    return found


def measure(bench: Bench, works: list[str], kind: type[Broker]) -> dict[str, Found]:
    """Do these works. Those that need a broker share one."""
    figures: dict[str, Found] = {}
    few, distinct = bench.directory / "few-keys", bench.directory / "distinct-keys"
    many = bench.directory / "many-segments"
    partitions: dict[str, Path] = {}
    runs = range(bench.runs + bench.warm_up)
    if "compact" in works or "mount" in works:
        few_keys = write_keyed(few, bench.size, 0.1)
    if "mount" in works:
        figures["mount"] = mount(bench, build(bench.directory)[1], few_keys)
    if "compact" in works:
        partitions |= {f"compact-{run}": few_keys.directory for run in runs}
    if "pressure" in works:
        distinct_keys = write_keyed(distinct, bench.size // SHARE, 1)
        partitions |= {f"pressure-{run}": distinct_keys.directory for run in runs}
    if "retention" in works:
        write_segments(many, bench.segments)
        partitions["retention"] = many / f"{TOPIC}-0"
    if partitions:
        with Kafka(bench.directory / "broker", partitions, kind) as kafka:
            if "compact" in works:
                figures["compact"] = compact(bench, kafka, few_keys)
            if "pressure" in works:
                figures["pressure"] = pressure(bench, kafka, distinct_keys)
            if "retention" in works:
                figures["retention"] = retention(bench, kafka, many)
    return figures


def table(figures: dict[str, Found]) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield "| work | unit | kafkafs | against | ratio | goal |"
    yield "|---|---|---:|---:|---:|---|"
    for row in ROWS:
        if row.work in figures:
            yield f"| {' | '.join(row.cells(figures[row.work]))} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures kafkafs's cleaners beside Kafka's.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="of the log")
    parser.add_argument("--segments", type=int, default=10_000, help="to be deleted")
    parser.add_argument("--only", action="append", choices=WORKS)
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    given = parser.parse_args()
    if given.tiny:
        given.runs, given.size, given.segments = 1, 16, 20
    return given


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is unmounted
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    works = [work for work in WORKS if not given.only or work in given.only]
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        requests = 100 if given.tiny else 20_000
        bench = Bench(Path(name), given.runs, given.size * MIB, given.segments, requests)
        # A broker that starts soon, or one that runs fast.
        figures = measure(bench, works, Broker if given.tiny else Fast)
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {given.runs} runs;")
    print(f"logs of {given.size} MiB in records of {RECORD_BYTES} bytes")
    print(f"and batches of 16 KiB; {given.segments} segments are deleted")
    print("\n".join(["", *table(figures), ""]))
    print("\n".join(bench.notes))


if __name__ == "__main__":
    main()
