#!/usr/bin/env python3
"""Measures the mounted file system beside its peers, and prints a Markdown table with ratios.

    scripts/bench/mount.py [--runs N] [--size MIB] [--only WORK] [--directory DIR] [--tiny]

Needs scripts/setup, and root for the read-ahead of 1 MiB. The peers are the limit (`limit.c`: one
thread of C on libfuse's low level over a real file), the same in stock pyfuse3 (`stock_peer.py`), a
plain file on the same disk, and timberfs if it is on the PATH.

All peers are mounted at once. Each run does each work once with every peer in turn. Figures are
medians over the runs, and a ratio is the median of the runs' ratios: if the machine slows down for
a while, both sides slow down. Lines have 100 bytes. Before a cold read the page cache of the
mount's file is dropped (POSIX_FADV_DONTNEED), and the peers' own files are read once more, so that
no disk is measured. The limit serves random reads from the segment files that kafkafs reads.
Uncached stat is statx() with AT_STATX_FORCE_SYNC, which the kernel may not answer from its
attributes. On a few cores the scheduler's placement of client and daemon matters much: fix it with
`taskset`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mount_works
from mount_peers import HERE, Kafkafs, Limit, Peer, PlainFile, StockPyfuse3, Timberfs
from mount_works import WORKS, Scale, Tools, Work

COPIES_IN_BIG = 10

Figures = dict[str, dict[str, list[float]]]  # by work and peer, one figure a run


@dataclass(frozen=True)
class Goal:
    """A goal for a work: the speed of kafkafs is at least `factor` times the peer's."""

    work: str
    peer: str
    factor: float

    def judge(self, figures: Figures) -> str | None:
        """Return the text for the table, or None if the work was not measured."""
        theirs = figures[self.work].get(self.peer)
        if not theirs:
            return None
        ratio = speed_ratio(work_named(self.work), figures[self.work]["kafkafs"], theirs)
        return f"≥ {self.factor:g} × {self.peer}: {verdict(ratio, ratio >= self.factor)}"


GOALS = [
    Goal("append", "limit (C)", 0.6),
    Goal("append", "timberfs", 1),
    Goal("append", "timberfs, WAL", 1),
    Goal("write", "limit (C)", 0.5),
    Goal("write", "stock pyfuse3", 2),
    Goal("echo", "limit (C)", 0.45),
    Goal("echo", "timberfs", 1),
    Goal("echo", "timberfs, WAL", 1),
    Goal("cat-1m", "limit (C)", 0.8),
    Goal("cat-128k", "limit (C)", 0.6),
    Goal("second-cat", "limit (C)", 0.9),  # both are the kernel's page cache
    Goal("stat", "limit (C)", 0.7),
    Goal("read-big", "limit (C)", 0.6),
]
START_GOAL_SECONDS = 0.4
BIG_P50_GOAL = 1.5  # times the p50 of the small file


def work_named(key: str) -> Work:
    return next(work for work in WORKS if work.key == key)


def speed_ratio(work: Work, ours: list[float], theirs: list[float]) -> float:
    """Return our speed against the peer's: the median over the runs."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(1 / r if work.less_is_better else r for r in ratios)


def verdict(ratio: float, met: bool) -> str:
    return f"**{ratio:.3g}** {'met' if met else 'MISSED'}"


def judge(work: Work, figures: Figures) -> str:
    """Return the last column: each goal of the work, and whether it is met."""
    said = [goal.judge(figures) for goal in GOALS if goal.work == work.key]
    ours = figures[work.key]["kafkafs"]
    if work.key == "start":
        seconds = statistics.median(ours)
        said.append(f"≤ {START_GOAL_SECONDS} s: {verdict(seconds, seconds <= START_GOAL_SECONDS)}")
    if work.key == "read-big-p50" and "read-small" in figures:
        pairs = zip(ours, figures["read-small"]["kafkafs"], strict=True)
        ratio = statistics.median(big / small for big, small in pairs)
        said.append(f"≤ {BIG_P50_GOAL} × the small file: {verdict(ratio, ratio <= BIG_P50_GOAL)}")
    return "; ".join(filter(None, said))


def table(peers: list[Peer], figures: Figures) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    names = [peer.name for peer in peers]
    yield f"| work | unit | {' | '.join(names)} | goals |"
    yield f"|---|---|{'---:|' * len(names)}---|"
    for work in WORKS:
        if work.key not in figures:
            continue
        cells = [
            f"{statistics.median(figures[work.key][name]):.3g}"
            if name in figures[work.key]
            else "–"
            for name in names
        ]
        yield f"| {work.title} | {work.unit} | {' | '.join(cells)} | {judge(work, figures)} |"


def build(directory: Path) -> tuple[Path, Path]:
    """Compile `limit.c` and `client.c`."""
    fuse3 = shlex.split(
        subprocess.run(
            ["pkg-config", "--cflags", "--libs", "fuse3"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    for name in ("limit", "client"):
        source, program = HERE / f"{name}.c", directory / name
        subprocess.run(["cc", "-O2", "-o", program, source, *fuse3], check=True)
    return directory / "limit", directory / "client"


def make_text(path: Path, size: int) -> Path:
    """Write a log of 100-byte lines. It repeats itself after 4 MiB, which helps no peer."""
    rng = random.Random(1)
    block = "".join(
        f"2026-11-21T08:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(10**6):06}Z"
        f" INFO worker-{rng.randrange(32):02} request id={rng.getrandbits(64):016x} status=200"
        f" took={rng.randrange(10**5):05}us ".ljust(99, ".")
        + "\n"
        for _ in range(min(size, 4 << 20) // 100)
    ).encode()
    with open(path, "wb") as file:
        for position in range(0, size // 100 * 100, len(block)):
            file.write(block[: size // 100 * 100 - position])
    return path


@contextlib.contextmanager
def mounted(directory: Path, scale: Scale, limit: Path) -> Iterator[list[Peer]]:
    """Mount all peers, with the same texts."""
    text = make_text(directory / "text", scale.text)
    small = make_text(directory / "small", scale.small)
    with contextlib.ExitStack() as stack:

        def mount(peer: Peer) -> None:
            stack.callback(peer.stop)
            peer.start()

        kafkafs = Kafkafs(directory / "kafkafs")
        mount(kafkafs)
        say("filling the topics")
        mount_works.load(kafkafs, text, {"text": 1, "big": COPIES_IN_BIG}, small)
        texts = {"text": [text], "small": [small], "big": kafkafs.segments("big")}
        peers: list[Peer] = [kafkafs, Limit(directory / "limit-peer", texts, limit)]
        peers += [StockPyfuse3(directory / "stock", texts), PlainFile(directory / "plain", texts)]
        if Timberfs.installed():
            peers += [Timberfs(directory / f"timberfs-{wal}", wal=wal) for wal in (False, True)]
        for peer in peers[1:]:
            mount(peer)
            if isinstance(peer, Timberfs) and peer.reads:
                with open(peer.served("text")[0], "ab") as store:
                    subprocess.run(["cat", text], stdout=store, check=True)
        scale.settle()
        yield peers


def warm(work: Work, peers: list[Peer]) -> None:
    """Read the peers' own files into the page cache."""
    for peer in peers:
        if work.warm and isinstance(peer, PlainFile):
            mount_works.read_all(peer.served(work.warm))
        if work.warm and isinstance(peer, Kafkafs):
            mount_works.read_all(peer.segments(work.warm))


def measure(works: list[Work], peers: list[Peer], tools: Tools, runs: int) -> Figures:
    """Do every work with every peer, `runs` times in turn. The first round is not counted."""
    figures: Figures = {}
    for work in works:
        suited = [peer for peer in peers if work.suits(peer)]
        for run in range(runs + 1):
            warm(work, peers)
            for peer in suited:
                figure = work.measure(tools, peer)
                if work.writes:
                    tools.scale.settle()
                if run:
                    figures.setdefault(work.key, {}).setdefault(peer.name, []).append(figure)
        medians = {name: statistics.median(found) for name, found in figures[work.key].items()}
        say(f"{work.key}: " + ", ".join(f"{name} {m:.3g}" for name, m in medians.items()))
        say(f"  {memory_of(peers)}")
    return figures


def memory_of(peers: list[Peer]) -> str:
    rss, anonymous = next(peer for peer in peers if isinstance(peer, Kafkafs)).memory()
    return f"RSS {rss / 1e6:.1f} MB, of it anonymous {anonymous / 1e6:.1f} MB"


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def arguments(
    parser: argparse.ArgumentParser, keys: list[str], *, runs: int, size: int
) -> argparse.Namespace:
    """Parse the command line. `runs`, `size` (in MiB): the defaults."""
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--size", type=int, default=size, metavar="MIB", help="of the text")
    parser.add_argument("--only", action="append", choices=keys)
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    given = parser.parse_args()
    if given.tiny:
        given.runs, given.size = 1, 2
    return given


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures kafkafs's mount beside its peers.")
    given = arguments(parser, [work.key for work in WORKS], runs=5, size=1024)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is unmounted
    runs = given.runs
    scale = Scale.of(given.size, tiny=given.tiny)
    works = [work for work in WORKS if not given.only or work.key in given.only]
    if os.geteuid() != 0:
        say("not root: the read-ahead stays as it is, and cat-1m is left out")
        works = [work for work in works if work.key != "cat-1m"]
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
        directory = Path(name)
        limit, client = build(directory)
        tools = Tools(scale, client, make_text(directory / "appendix", scale.append))
        with mounted(directory, scale, limit) as peers:
            peers[0].stop()
            peers[0].start()
            memory = [f"just mounted: {memory_of(peers)}"]
            figures = measure([work for work in works if work.key != "start"], peers, tools, runs)
            memory.append(f"after all this: {memory_of(peers)}")
            figures |= measure([work for work in works if work.key == "start"], peers, tools, runs)
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {runs} runs;")
    print(f"text {scale.text >> 20} MiB, big {scale.big >> 20} MiB, small {scale.small >> 20} MiB")
    print("\n".join(["", *table(peers, figures), ""]))
    print("\n".join(f"daemon memory {line}" for line in memory))


if __name__ == "__main__":
    main()
