#!/usr/bin/env python3
"""Measures the views of a mount beside their peers, and prints a Markdown table with ratios.

    .venv/bin/python scripts/bench/views.py [--runs N] [--size MIB] [--big MIB] [--only WORK]
                                            [--directory DIR] [--tiny]

Needs scripts/setup test, and root for the read-ahead of 1 MiB. To print from a broker it needs
Kafka's jars, which the first run of tests/interop fetches. The records are mixed; the lines above
the table describe them (`views_data.py`).

Figures are medians over the runs, and a ratio is the median of the runs' ratios, as in `mount.py`.
The first round is not counted. The works are:

- `cat` of a view, cold, beside the limit (`limit.c`), which serves the same bytes from
  memory-mapped files. The files of both are in the page cache.
- The first stat of a partition of another program, from `kafkafs mount` on: the speed of measuring
  its view, in bytes of segments. The time of the same stat of a measured view is subtracted.
- The same records, whose values have no newlines, appended in `write()`s of 64 KiB through each
  view. The goals count records, because a line of JSON has far more bytes than a record.
- The first 100 bytes of `0@TIME`, open to close, at random times in a large log and in a small one.
- Records printed to /dev/null by `cat` of a running broker's directory, mounted, and from the
  broker by `kafkafs cat kafka://`, kcat and Kafka's console consumer. The time for one record is
  subtracted. The console consumer and `kcat -J` print an eighth. The console consumer has no JSON
  of whole records.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mount import build, say, verdict
from views_data import Block
from views_works import MIB, STAGES, Bench, Measure, clean

Figures = dict[str, dict[str, list[float]]]  # by work and name, one figure a run

WORKS = [work for _, works in STAGES for work in works]


@dataclass(frozen=True)
class Row:
    """A line of the table: a figure of a work, and the figure by which it is divided.

    `at_least` and `at_most` are goals for the ratio, or for a figure without a peer.
    """

    work: str
    title: str
    unit: str
    ours: str
    theirs: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def cells(self, figures: dict[str, list[float]]) -> list[str]:
        ours = figures[self.ours]
        judged, compared, times = ours, "–", ""
        shown_ratio = "–"
        if self.theirs is not None:
            theirs = figures[self.theirs]
            judged = [a / b for a, b in zip(ours, theirs, strict=True)]
            compared, times = f"{self.theirs} {statistics.median(theirs):.3g}", " ×"
            shown_ratio = f"{statistics.median(judged):.3g}"
        found = statistics.median(judged)
        goal = ""
        if self.at_least is not None:
            goal = f"≥ {self.at_least:g}{times}: {verdict(found, found >= self.at_least)}"
        elif self.at_most is not None:
            goal = f"≤ {self.at_most:g}{times}: {verdict(found, found <= self.at_most)}"
        mine = f"{statistics.median(ours):.3g}"
        return [self.title, self.unit, mine, compared, shown_ratio, goal]


CAT = "cold `cat` of "
APPEND = "64 KiB `write()`s to "
ROWS = [
    Row("cat-values", f"{CAT}values", "GB/s", "kafkafs", "limit"),
    Row("cat-kv", f"{CAT}`.kv`", "GB/s", "kafkafs", "limit", at_least=0.6),
    Row("cat-jsonl", f"{CAT}`.jsonl`", "GB/s", "kafkafs", "limit", at_least=0.4),
    Row("first-stat", "first stat, values", "GB/s of log", "values", at_least=1),
    Row("first-stat", "first stat, `.kv`", "GB/s of log", ".kv"),
    Row("first-stat", "first stat, `.jsonl`", "GB/s of log", ".jsonl"),
    Row("append", f"{APPEND}`.kv`", "records", ".kv 1,000/s", "values 1,000/s", at_least=0.7),
    Row("append", f"{APPEND}`.jsonl`", "records", ".jsonl 1,000/s", "values 1,000/s", at_least=0.3),
    Row("append", f"{APPEND}`.kv`", "text", ".kv MB/s", "values MB/s"),
    Row("append", f"{APPEND}`.jsonl`", "text", ".jsonl MB/s", "values MB/s"),
    Row("heads", "head of `0@TIME`, p50", "µs", "big p50", "small p50", at_most=1.5),
    Row("heads", "head of `0@TIME`, p99", "µs", "big p99", "small p99"),
    Row("print", "print a topic", "1,000 records/s", "cat", "kcat", at_least=20),
    Row("print", "print a topic", "1,000 records/s", "cat", "console consumer", at_least=20),
    Row("print", "print it by kafka://", "1,000 records/s", "cat kafka://", "kcat", at_least=1),
    Row("print-json", "print it as JSON", "1,000 records/s", "cat .jsonl", "kcat -J", at_least=10),
    Row(
        *("print-json", "print JSON by kafka://", "1,000 records/s"),
        *("cat kafka:// .jsonl", "kcat -J"),
        at_least=1,
    ),
]


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield "| work | unit | kafkafs | against | ratio | goal |"
    yield "|---|---|---:|---:|---:|---|"
    for row in ROWS:
        if row.work in figures:
            yield f"| {' | '.join(row.cells(figures[row.work]))} |"


def measure(key: str, work: Measure, runs: int, *, warm_up: bool) -> dict[str, list[float]]:
    """Do the work `runs` times."""
    found: dict[str, list[float]] = {}
    for run in range(runs + warm_up):
        for name, figure in work().items():
            if run >= warm_up:
                found.setdefault(name, []).append(figure)
    say(f"{key}: " + ", ".join(f"{name} {statistics.median(f):.3g}" for name, f in found.items()))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures kafkafs's views beside their peers.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="of the log")
    parser.add_argument(
        "--big", type=int, metavar="MIB", help="of the log that is looked into; 0: leave that out"
    )
    parser.add_argument("--only", action="append", choices=WORKS)
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    given = parser.parse_args()
    if given.tiny:
        given.runs, given.size = 1, 2
    if given.big is None:
        given.big = 10 * given.size
    given.only = [key for key in given.only or WORKS if given.big or key != "heads"]
    return given


def prepare(given: argparse.Namespace, directory: Path) -> Bench:
    limit, client = build(directory)
    size = given.size * MIB
    drawn = MIB if given.tiny else 4 * MIB
    return Bench(
        directory=directory / "stage",
        limit=limit,
        client=client,
        block=Block.draw(drawn),
        lines=Block.draw(drawn, lines_only=True),
        size=size,
        append=size // 8,
        big=given.big * MIB,
        small=max(size // 100, MIB),
        heads=20 if given.tiny else 1000,
        tiny=given.tiny,
    )


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is unmounted
    if os.geteuid() != 0:
        say("not root: the read-ahead stays as it is")
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        bench = prepare(given, Path(name))
        bench.directory.mkdir()
        for stage, works in STAGES:
            wanted = [work for work in works if work in given.only]
            if wanted:
                with stage(bench) as measures:
                    for work in wanted:
                        figures[work] = measure(
                            work, measures[work], given.runs, warm_up=not given.tiny
                        )
                clean(bench.directory)
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {given.runs} runs;")
    print(f"logs of {given.size} MiB; of {bench.append / MIB:g} MiB where it is appended;")
    print(f"of {given.big} MiB and {bench.small / MIB:g} MiB where it is looked into by time;")
    print("\n".join(bench.block.composition()))
    print("\n".join(["", *table(figures), ""]))


if __name__ == "__main__":
    main()
