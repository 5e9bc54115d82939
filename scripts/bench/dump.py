#!/usr/bin/env python3
"""Measures `kafkafs dump` beside Kafka's DumpLogSegments, and prints a Markdown table with ratios.

    scripts/bench/dump.py [--runs N] [--size MIB] [--only WORK] [--directory DIR] [--tiny]

Needs scripts/setup test, a JVM, and Kafka's jars, which the first run of tests/interop fetches.
Records have 100 bytes, and batches 16 KiB. The works print a log without compression: its batches,
its records, and its records with their contents. They print the contents of logs in gzip and in
format v1, of an eighth of the size. They print the offset index and the time index of a sixteenth,
because DumpLogSegments reads much of the log for each entry.

Each run does each work once with both. The output goes to /dev/null, and the files are in the page
cache. Figures are medians over the runs, and a ratio is the median of the runs' ratios. Both are
also started on an empty log; "without the start" subtracts that time. Before the runs, the outputs
of both are compared on a small log.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.record._batch import Rebuild, assign_offsets
from storage.record.batch import Record, encode
from storage.record.plain import recompress

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
T = 1_700_000_000_000
RECORDS = 140  # a batch, so that it has some 16 KiB
INTERVAL = 4096
GOAL = 10

OURS = "kafkafs dump"
THEIRS = "DumpLogSegments"

Figures = dict[str, dict[str, list[float]]]  # seconds by work and peer, one a run


@dataclass(frozen=True)
class Work:
    """`share`: the log is smaller by this factor. `goal`: the work has a goal."""

    key: str
    title: str
    suffix: str
    options: tuple[str, ...]
    share: int
    kind: str = "none"
    goal: bool = False


WORKS = [
    Work("batches", "batches", ".log", (), 1),
    Work("records", "records", ".log", ("--deep-iteration",), 1, goal=True),
    Work("contents", "records and contents", ".log", ("--print-data-log",), 1, goal=True),
    Work("gzip", "the same, gzip", ".log", ("--print-data-log",), 8, "gzip"),
    Work("v1", "the same, format v1", ".log", ("--print-data-log",), 8, "v1"),
    Work("index", "`.index`", ".index", (), 16),
    Work("timeindex", "`.timeindex`", ".timeindex", (), 16),
]


def jars() -> str:
    """Return the class path of Kafka's tools."""
    found = sorted((ROOT / ".cache" / "kafka-jars").glob("*/kafka-tools-*.jar"))
    if not found:
        raise SystemExit("no jars of Kafka here; run .venv/bin/pytest tests/interop once")
    return f"{found[-1].parent}/*"


def commands() -> dict[str, list[str]]:
    program = [sys.executable, "-c", "from kafkafs.cli import main; main()", "dump"]
    java = ["java", "-cp", jars(), "org.apache.kafka.tools.DumpLogSegments"]
    return {OURS: program, THEIRS: java}


# -- logs ------------------------------------------------------------------------------------------


def lines() -> list[bytes]:
    rng = random.Random(1)
    return [
        f"2026-11-21T08:{rng.randrange(60):02}:{rng.randrange(60):02}Z INFO worker-{number % 32:02}"
        f" request id={rng.getrandbits(64):016x} status=200".ljust(100, ".").encode()
        for number in range(RECORDS)
    ]


def legacy_batch() -> bytearray:
    """Return messages of v1, without compression."""
    out = bytearray()
    for number, line in enumerate(lines()):
        body = struct.pack(">bbqii", 1, 0, T + number, -1, len(line)) + line
        out += struct.pack(">qiI", number, len(body) + 4, zlib.crc32(body)) + body
    return out


def make_log(directory: Path, kind: str, size: int) -> int:
    """Write a log of plain records, with its indexes; return the number of records."""
    plain = encode([Record(n, T + n, 0, None, line) for n, line in enumerate(lines())])
    batch = bytearray(recompress(plain, 1) if kind == "gzip" else plain)
    legacy = legacy_batch()
    rebuild = Rebuild(0, INTERVAL)
    count = 0
    directory.mkdir()
    with open(directory / f"{0:020}.log", "wb") as log:
        for _ in range(max(size // len(plain), 1)):
            if kind == "v1":
                log.write(legacy)
            else:
                assign_offsets(batch, count, 0)
                # Timestamps that rise make an entry of each batch.
                struct.pack_into(">q", batch, 35, T + count)
                struct.pack_into(">q", batch, 27, T + count - RECORDS + 1)
                rebuild.feed(batch, len(batch), log.tell(), check_crc=False)
                log.write(batch)
            count += RECORDS
    for suffix, entries in (
        (".index", rebuild.offset_entries),
        (".timeindex", rebuild.time_entries),
    ):
        (directory / f"{0:020}{suffix}").write_bytes(entries)
    return count


# -- measuring -------------------------------------------------------------------------------------


def seconds(command: list[str], path: Path, options: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run(
        [*command, "--files", str(path), *options],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def printed(command: list[str], path: Path, options: tuple[str, ...]) -> str:
    done = subprocess.run(
        [*command, "--files", str(path), *options],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    return hashlib.sha256(done.stdout).hexdigest()


def directory_of(base: Path, work: Work) -> Path:
    return base / f"{work.kind}-{work.share}"


def fill(base: Path, works: list[Work], size: int) -> dict[Path, int]:
    """Write the logs of the works, and an empty one; return the number of records of each."""
    counts = {}
    for work in works:
        path = directory_of(base, work)
        if not path.exists():
            counts[path] = make_log(path, work.kind, max(size // work.share, 1))
    (base / "empty").mkdir()
    for suffix in (".log", ".index", ".timeindex"):
        (base / "empty" / f"{0:020}{suffix}").touch()
    return counts


def check(base: Path, works: list[Work]) -> None:
    fill(base, works, 1)
    for work in works:
        path = directory_of(base, work) / f"{0:020}{work.suffix}"
        digests = {printed(command, path, work.options) for command in commands().values()}
        if len(digests) != 1:
            raise SystemExit(f"{work.key}: the two do not print the same")


def measure(base: Path, works: list[Work], runs: int) -> tuple[Figures, Figures]:
    """Measure the works, and the starts."""
    figures: Figures = {}
    starts: Figures = {}
    for work in works:
        path = directory_of(base, work) / f"{0:020}{work.suffix}"
        empty = base / "empty" / path.name
        for _ in range(runs):
            for peer, command in commands().items():
                took = seconds(command, path, work.options)
                started = seconds(command, empty, work.options)
                figures.setdefault(work.key, {}).setdefault(peer, []).append(took)
                starts.setdefault(work.key, {}).setdefault(peer, []).append(started)
        found = {peer: statistics.median(took) for peer, took in figures[work.key].items()}
        say(f"{work.key}: " + ", ".join(f"{peer} {took:.2f} s" for peer, took in found.items()))
    return figures, starts


def ratios(figures: dict[str, list[float]], starts: dict[str, list[float]]) -> tuple[float, float]:
    """Return our speed against the peer's, with and without the start; medians of the runs."""
    whole = [b / a for a, b in zip(figures[OURS], figures[THEIRS], strict=True)]
    net = [
        max(b - d, 1e-3) / max(a - c, 1e-3)
        for a, b, c, d in zip(
            figures[OURS], figures[THEIRS], starts[OURS], starts[THEIRS], strict=True
        )
    ]
    return statistics.median(whole), statistics.median(net)


def table(
    base: Path, works: list[Work], counts: dict[Path, int], figures: Figures, starts: Figures
) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield f"| work | records | {OURS}, s | {THEIRS}, s | ratio | without the start | M records/s |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for work in works:
        mine, theirs = (statistics.median(figures[work.key][peer]) for peer in (OURS, THEIRS))
        start = statistics.median(starts[work.key][OURS])
        count = counts[directory_of(base, work)]
        found = [f"{ratio:.3g}" for ratio in ratios(figures[work.key], starts[work.key])]
        if work.goal:
            both = zip(found, ratios(figures[work.key], starts[work.key]), strict=True)
            found = [f"**{shown}** {'met' if ratio >= GOAL else 'MISSED'}" for shown, ratio in both]
        rate = count / max(mine - start, 1e-3) / 1e6
        cells = [work.title, count, f"{mine:.3g}", f"{theirs:.3g}", *found, f"{rate:.3g}"]
        yield f"| {' | '.join(map(str, cells))} |"


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures kafkafs dump beside DumpLogSegments.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="of the log")
    parser.add_argument("--only", action="append", choices=[work.key for work in WORKS])
    parser.add_argument("--directory", default="/var/tmp", help="where the logs are made")
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    given = parser.parse_args()
    if given.tiny:
        given.runs, given.size = 1, 1
    return given


def main() -> None:
    given = arguments()
    works = [work for work in WORKS if not given.only or work.key in given.only]
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        base = Path(name)
        (base / "small").mkdir()
        check(base / "small", works)
        say("filling the logs")
        counts = fill(base, works, given.size * MIB)
        figures, starts = measure(base, works, given.runs)
        lines_ = list(table(base, works, counts, figures, starts))
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(
        f"{platform.platform()}, {cpus}; medians of {given.runs} runs; a log of {given.size} MiB;"
    )
    print(f"goal of the marked: {GOAL} times {THEIRS}")
    print("\n".join(["", *lines_]))


if __name__ == "__main__":
    main()
