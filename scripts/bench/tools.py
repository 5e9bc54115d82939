#!/usr/bin/env python3
"""Measures tools over a partition of a mount beside its peers, and prints a Markdown table.

    scripts/bench/tools.py [--runs N] [--size MIB] [--only WORK] [--directory DIR] [--beside]
                           [--tiny]

Needs scripts/setup test. The tools read one text of 100-byte lines, in order, as

- a plain file on the same disk,
- the partition's `.snapshot/0`, which cannot grow, so that the page cache serves it,
- the same in C: `limit.c`, with one thread and with several,
- the partition's own name, which can grow, so that each `read()` is a request,
- the same in C, again with one thread and with several (`limit.c -d`),
- a file of timberfs, if it is on the PATH.

All peers are mounted at once. Each run does each work with every peer in turn. Figures are medians
over the runs, and a ratio is the median of the runs' ratios. The first round is not counted: it
compares a tool's output with that for the plain file. Before a cold read the page cache of the
mount's file is dropped (POSIX_FADV_DONTNEED), and the peers' own files are read once more, so that
no disk is measured. A warm read follows a cold one. Sequential reads are measured if each `read()`
is a request; the figure is the time of one. The locale is C.

With `--beside`, a line is appended every 10 ms meanwhile. Each lookup of `.snapshot/0` then finds a
new file. So the tools read `0@0..N`, which stays the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mount_works
from mount import arguments, build, say, verdict
from mount_peers import Kafkafs, Limit, Peer, PlainFile, Timberfs
from mount_works import MIB
from tools_works import (
    LINE_SIZE,
    WORKS,
    Place,
    Tool,
    Work,
    appended_to,
    make_sorted_text,
    runnable,
)

Figures = dict[str, dict[str, list[float]]]  # by work and column, one figure a run


@dataclass(frozen=True)
class Column:
    """A file with the text.

    `cold`: drop the page cache of the mount's file before each read. `direct`: the page cache keeps
    nothing of it. `grows`: the file may have more than the text.
    """

    name: str
    path: Path
    cold: bool = False
    direct: bool = False
    grows: bool = False


@dataclass(frozen=True)
class Goal:
    """A goal for the figure of `ours` against that of `theirs`: the longest time or least speed."""

    ours: str
    theirs: str
    time_at_most: float | None = None
    speed_at_least: float | None = None

    @property
    def title(self) -> str:
        if self.time_at_most is not None:
            return f"{self.ours}: time ≤ {self.time_at_most:g} × {self.theirs}"
        return f"{self.ours}: speed ≥ {self.speed_at_least:g} × {self.theirs}"

    def judge(self, figures: dict[str, list[float]]) -> str:
        if not {self.ours, self.theirs} <= figures.keys():
            return "–"
        pairs = list(zip(figures[self.ours], figures[self.theirs], strict=True))
        if self.time_at_most is not None:
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            return verdict(ratio, ratio <= self.time_at_most)
        assert self.speed_at_least is not None
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        return verdict(ratio, ratio >= self.speed_at_least)


GOALS = [
    Goal("snapshot, warm", "plain file", time_at_most=1.2),
    Goal("range, warm", "plain file", time_at_most=1.2),
    Goal("snapshot, cold", "C cached, cold", speed_at_least=0.8),
    Goal("range, cold", "C cached, cold", speed_at_least=0.8),
    Goal("live", "C direct, threads", speed_at_least=0.7),
]


@contextlib.contextmanager
def mounted(
    directory: Path, size: int, limit: Path, *, beside: bool
) -> Iterator[tuple[Kafkafs, list[Column]]]:
    """Mount all peers, with the same text."""
    text = make_sorted_text(directory / "text", size)
    texts = {"text": [text]}
    with contextlib.ExitStack() as stack:

        def mount(peer: Peer) -> Path:
            stack.callback(peer.stop)
            peer.start()
            return peer.served("text")[0]

        def limits(name: str, *options: str) -> Path:
            return mount(Limit(directory / name, texts, limit, *options))

        kafkafs = Kafkafs(directory / "kafkafs")
        live = mount(kafkafs)
        say("filling the topic")
        live.parent.mkdir()
        fill(live, text)
        fixed = live.parent / ".snapshot" / "0"
        if beside:
            fixed = live.with_name(f"0@0..{text.stat().st_size // LINE_SIZE}")
        name = "range" if beside else "snapshot"
        cached, threads = limits("cached"), limits("cached-threads", "-m")
        columns = [
            Column("plain file", mount(PlainFile(directory / "plain", texts))),
            Column(f"{name}, cold", fixed, cold=True),
            Column(f"{name}, warm", fixed),
            Column("C cached, cold", cached, cold=True),
            Column("C cached, warm", cached),
            Column("C cached, threads, cold", threads, cold=True),
            Column("live", live, direct=True, grows=beside),
            Column("C direct", limits("direct", "-d"), direct=True),
            Column("C direct, threads", limits("direct-threads", "-d", "-m"), direct=True),
        ]
        if Timberfs.installed():
            timber = mount(Timberfs(directory / "timberfs", wal=False))
            fill(timber, text)
            columns += [Column("timberfs, cold", timber, cold=True), Column("timberfs", timber)]
        os.sync()
        yield kafkafs, columns


def fill(target: Path, text: Path) -> None:
    with open(target, "ab") as file:
        subprocess.run(["cat", text], stdout=file, check=True)


def check(tool: Tool, place: Place, columns: list[Column]) -> None:
    """Check that the tool prints the same for each column."""
    _, expected = tool.run(place, columns[0].path)
    for column in columns[1:]:
        _, printed = tool.run(place, column.path)
        if printed != expected and not column.grows:
            raise SystemExit(f"{tool.key}, {column.name}: {printed!r} instead of {expected!r}")


def measure(
    works: list[Work], place: Place, kafkafs: Kafkafs, columns: list[Column], runs: int
) -> Figures:
    """Do every work in every column, `runs` times in turn."""
    figures: Figures = {}
    for work in works:
        suited = [column for column in columns if work.page_cache or column.direct]
        if isinstance(work, Tool):
            check(work, place, suited)
        else:
            for column in suited:
                work.measure(place, column.path)
        found: dict[str, list[float]] = {column.name: [] for column in suited}
        for _ in range(runs):
            mount_works.read_all([columns[0].path, *kafkafs.segments("text")])
            for column in suited:
                if column.cold:
                    subprocess.run([place.client, "drop", column.path], check=True)
                found[column.name].append(work.measure(place, column.path))
        figures[work.key] = found
        medians = {name: statistics.median(times) for name, times in found.items()}
        say(f"{work.key}: " + ", ".join(f"{name} {m:.3g}" for name, m in medians.items()))
    return figures


def table(works: list[Work], columns: list[Column], figures: Figures) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    names = [column.name for column in columns]
    goals = [goal for goal in GOALS if {goal.ours, goal.theirs} <= set(names)]
    yield f"| work | unit | {' | '.join(names)} | {' | '.join(goal.title for goal in goals)} |"
    yield f"|---|---|{'---:|' * len(names)}{'---|' * len(goals)}"
    for work in works:
        found = figures[work.key]
        times = [
            f"{statistics.median(found[name]):.3g}" if name in found else "–" for name in names
        ]
        judged = [goal.judge(found) for goal in goals]
        yield f"| {work.title} | {work.unit} | {' | '.join([*times, *judged])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures tools over a partition.")
    parser.add_argument("--beside", action="store_true", help="with an append every 10 ms")
    given = arguments(parser, [work.key for work in WORKS], runs=3, size=512)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is unmounted
    works = runnable([work for work in WORKS if not given.only or work.key in given.only])
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        directory = Path(name)
        limit, client = build(directory)
        place = Place(client, directory / "copy")
        with mounted(directory, given.size * MIB, limit, beside=given.beside) as (kafkafs, columns):
            live = kafkafs.served("text")[0]
            with appended_to(live) if given.beside else contextlib.nullcontext():
                figures = measure(works, place, kafkafs, columns, given.runs)
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {given.runs} runs; text {given.size} MiB")
    print("\n".join(["", *table(works, columns, figures), ""]))


if __name__ == "__main__":
    main()
