#!/usr/bin/env python3
"""Measures our source, sink and jobs beside Spark's own, and prints a Markdown table with ratios.

    .venv/bin/python scripts/bench/spark.py [--rows N] [--runs N] [--only WORK] [--directory DIR]
                                            [--tiny]

Needs scripts/setup test, and Kafka's jars, which the first run of tests/interop fetches. All
processes run on this machine: one JVM with a thread for each processor (two at most), and processes
of Python. Figures are medians over the runs, and a ratio is the median of the runs' ratios. The
peers of a work take turns, and the first round is not counted. All files are in the page cache.

The works are, each on the same rows for all of its peers (`spark_data.py`):

- All columns to `noop`; key, value and offset grouped into a hundred; all columns written as
  uncompressed Parquet: from our source, by our function `load`, and from uncompressed Parquet by
  Spark's own reader.
- The rows from our source, by `load`, and from a local broker by Spark's Kafka source: all columns
  to `noop`, and grouped.
- Keys and values from Parquet into our sink, and into Parquet. The sink's records are on the disk
  then. Parquet's are on the disk after a flush, which is counted apart.
- The rows of an hour of a day, by time and by offset, and one in a thousand by key and by a part
  of the value: by the source's option `where`, by `.where` on Parquet and on Spark's Kafka source,
  and by a load of only those offsets. Speeds refer to the number of all rows.
- Compaction of as many partitions as there are threads: the job, from planning to the swap of the
  new segments, and the plain group-by of the latest row of each key, to `noop`. A tenth of the rows
  are different keys.
- Compaction by the job of logs with a tenth of the rows, all of them, and three times as many.
- All columns to `noop` with one thread and with two.
- The first row of a session's first query, in processes of their own.

Spark has its default settings, and the source has `tuneWorkers`. The works that read from Python
are measured again with `spark.python.unix.domain.socket.enabled`. A Python source without any work
shows Spark's own part of the time. `grep -ac` reads only the segment files, with one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mount import say
from spark_peers import Bench, session_of
from spark_works import (
    FLOOR,
    FLUSHED,
    GREP,
    KAFKA,
    LOAD,
    MEMORY,
    PARQUET,
    SINK,
    SOURCE,
    Found,
    compaction,
    describe,
    first,
    group,
    growth,
    kafka,
    scan,
    sink,
    where,
    with_broker,
    write_parquet,
)
from views import Row

Figures = dict[str, dict[str, list[float]]]  # by work and name, one figure a run

MROWS = "M rows/s"
ROWS = [
    Row("scan", "source to noop", MROWS, SOURCE, PARQUET, at_least=0.75),
    Row("scan", "source to noop", MROWS, SOURCE, FLOOR),
    Row("scan", "load() to noop", MROWS, LOAD, PARQUET, at_least=0.75),
    Row("group", "source, grouped", MROWS, SOURCE, PARQUET, at_least=0.75),
    Row("group", "load(), grouped", MROWS, LOAD, PARQUET, at_least=0.75),
    Row("parquet", "source to Parquet", MROWS, SOURCE, PARQUET, at_least=0.75),
    Row("parquet", "load() to Parquet", MROWS, LOAD, PARQUET, at_least=0.75),
    Row("kafka", "source to noop", MROWS, SOURCE, KAFKA, at_least=5),
    Row("kafka", "load() to noop", MROWS, LOAD, KAFKA, at_least=5),
    Row("kafka", "source, grouped", MROWS, f"{SOURCE}, grouped", f"{KAFKA}, grouped", at_least=5),
    Row("kafka", "load(), grouped", MROWS, f"{LOAD}, grouped", f"{KAFKA}, grouped", at_least=5),
    Row("where", "an hour by time", MROWS, "by time", "only those", at_least=0.67),
    Row("where", "an hour by offset", MROWS, "by offset", "only those", at_least=0.67),
    Row("where", "one in 1,000 by key", MROWS, "by key", f"by key, {PARQUET}", at_least=1),
    Row("where", "by a part of the value", MROWS, "by value", f"by value, {PARQUET}", at_least=1),
    Row("where", "by a part of the value", MROWS, "by value", GREP),
    Row("kafka", "an hour by time", MROWS, "by time", f"by time, {KAFKA}", at_least=20),
    Row("kafka", "an hour by offset", MROWS, "by offset", f"by offset, {KAFKA}", at_least=20),
    Row("kafka", "one in 1,000 by key", MROWS, "by key", f"by key, {KAFKA}", at_least=10),
    Row("kafka", "by a part of the value", MROWS, "by value", f"by value, {KAFKA}", at_least=10),
    Row("sink", "sink", MROWS, SINK, PARQUET, at_least=0.7),
    Row("sink", "sink", MROWS, SINK, FLUSHED),
    Row("compact", "compaction", MROWS, "compact", "group-by", at_least=3),
    Row("growth", "compaction of all", "µs a row", "1 ×", "0.1 ×"),
    Row("growth", "of three times that", "µs a row", "3 ×", "1 ×"),
    Row("scaling", "source, two threads", MROWS, f"{SOURCE} 2", f"{SOURCE} 1"),
    Row("scaling", "load(), two threads", MROWS, f"{LOAD} 2", f"{LOAD} 1"),
    Row("scaling", "Parquet, two threads", MROWS, f"{PARQUET} 2", f"{PARQUET} 1"),
    Row("first", "a session's first row", "s", SOURCE, FLOOR),
    Row("first", "a session's first row", "s", SOURCE, PARQUET),
    Row("first", "a session's first row, load()", "s", LOAD, SOURCE, at_most=0.5),
    Row("scan", "a task's Python, reading", "MiB", MEMORY),
    Row("sink", "a task's Python, writing", "MiB", MEMORY),
    Row("growth", "a task's Python, compacting", "MiB", MEMORY),
]
WORKS = list(dict.fromkeys(row.work for row in ROWS))
PLAIN = {
    "scan": scan,
    "group": group,
    "parquet": write_parquet,
    "where": where,
    "sink": sink,
    "compact": compaction,
    "growth": growth,
    "first": first,
}
#: The works that are measured a second time with Unix sockets between Spark and Python.
READING = ("scan", "group", "parquet", "where")


def measure(key: str, work: Callable[[], Found], runs: int) -> dict[str, list[float]]:
    """Do the work `runs` times; if there are several runs, once more before them."""
    found: dict[str, list[float]] = {}
    for run in range(runs + (runs > 1)):
        figures = work()
        say(f"{key}: {describe(figures)}")
        if run or runs == 1:
            for name, figure in figures.items():
                found.setdefault(name, []).append(figure)
    return found


def scaling(bench: Bench, runs: int) -> dict[str, list[float]]:
    """Measure with one thread and with two, each in a session of its own."""
    found: dict[str, list[float]] = {}
    for threads in (1, 2):
        with session_of(f"local[{threads}]", bench) as session:
            figures = measure(f"scaling {threads}", lambda: scan(bench, session), runs)
        found |= {f"{name} {threads}": each for name, each in figures.items() if name != MEMORY}
    return found


def plain(bench: Bench, works: list[str], runs: int, *, unix_sockets: bool = False) -> Figures:
    """Do the works of one session in turn."""
    figures: Figures = {}
    with session_of(f"local[{threads()}]", bench, unix_sockets=unix_sockets) as session:
        for key, work in PLAIN.items():
            if key in works:
                figures[key] = measure(key, lambda work=work: work(bench, session), runs)  # type: ignore[misc]
    return figures


def measure_all(bench: Bench, works: list[str], runs: int) -> Figures:
    figures = plain(bench, works, runs)
    if "scaling" in works:
        figures["scaling"] = scaling(bench, runs)
    if "kafka" in works:
        with (
            with_broker(bench) as (broker, topic),
            session_of(f"local[{threads()}]", bench, kafka=True) as session,
        ):
            figures["kafka"] = measure("kafka", lambda: kafka(bench, session, broker, topic), runs)
    return figures


def threads() -> int:
    return min(len(os.sched_getaffinity(0)), 2)


def table(figures: Figures, by_unix: Figures) -> Iterator[str]:
    """Yield the lines of the Markdown table; `by_unix`: figures with Unix sockets."""
    yield "| work | unit | kafkafs | against | ratio | goal | with Unix sockets | ratio |"
    yield "|---|---|---:|---:|---:|---|---:|---:|"
    for row in ROWS:
        if row.work in figures:
            cells = row.cells(figures[row.work])
            _, _, ours, _, ratio, _ = row.cells(by_unix.get(row.work, figures[row.work]))
            cells += [ours, ratio] if row.work in by_unix else ["", ""]
            yield f"| {' | '.join(cells)} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the Spark side beside Spark's own.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", action="append", choices=WORKS)
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--tiny", action="store_true", help="shows that it works")
    given = parser.parse_args()
    if given.tiny:
        given.runs, given.rows = 1, 20_000
    return given


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is stopped
    works = [work for work in WORKS if not given.only or work in given.only]
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        bench = Bench(Path(name), given.rows, given.tiny)
        figures = measure_all(bench, works, given.runs)
        again = [work for work in works if work in READING]
        by_unix = plain(bench, again, given.runs, unix_sockets=True) if again else {}
    print(f"{platform.platform()}, {threads()} of {os.cpu_count()} CPUs; {given.rows:,} rows;")
    print(f"medians of {given.runs} runs")
    print("\n".join(["", *table(figures, by_unix), ""]))
    print("\n".join(bench.notes))


if __name__ == "__main__":
    main()
