#!/usr/bin/env python3
"""Measures the size of logs and the search in them beside peers, and prints Markdown tables.

    scripts/bench/search.py [--runs N] [--size MIB] [--only KIND] [--directory DIR] [--tiny]
                            [--repacked] [--level N] [--append]

Needs scripts/setup test. A peer that is not installed is left out, and named. Each kind of log
(`search_data.py`) is written as a file of lines and as a topic, and each peer makes its own copy. A
topic has zstd batches of 16 KiB, as a producer sends them. With `--repacked`, each line is a batch
of its own, and then the log is repacked. `--level` is that of zstd, for the topic and the file.
Segments have 64 MiB, and all are closed. The logs of one kind are on the disk at a time, some four
times the size of the text.

All files are in the page cache. Figures are medians over the runs; a search that takes over two
seconds is done once. The time to start a program is measured with an empty log, and subtracted.
`kafkafs grep` runs in a process that has searched before, so its figures include the opening of the
data directory. A ratio is that of two figures. The bytes read are those of all read calls, in
percent of the log. The number of lines is compared with that of `grep -F`. The locale is C.

With `--append`, the text is written in parts of 16 KiB through a mount, once with and once without
repacking and words. Segments have 16 MiB then. The ratio is the median of ten such pairs.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import mount_peers
from mount import arguments, say, verdict
from search_data import KINDS, MIB, Indexed, Kind, Written, index, lines_of, write_topic
from search_peers import (
    PEERS,
    Found,
    Grep,
    Journald,
    Kafkafs,
    KafkafsWord,
    Peer,
    Ripgrep,
    Search,
    Timberfs,
    Zgrep,
    Zstdgrep,
    searches_of,
)

SLOW_S = 2
WRITE_BYTES = 16 << 10
PAIRS = 10
RARE = ("absent", "trace", "address")
"""The searches with a goal."""


class Measured(NamedTuple):
    """The figures of a kind of log. `starts`: seconds by peer; `found`: by search and peer."""

    kind: Kind
    written: Written
    indexed: Indexed
    sizes: dict[str, int]
    searches: list[Search]
    starts: dict[str, float]
    found: dict[str, dict[str, Found]]

    def seconds(self, search: Search, peer: str) -> float:
        """Return the time of a search without the start of the program."""
        median = statistics.median(self.found[search.key][peer].seconds)
        start = 0.0 if peer in (Kafkafs.name, KafkafsWord.name) else self.starts[peer]
        return max(median - start, 0.0001)


def measure(
    kind: Kind, directory: Path, peers: list[type[Peer]], given: argparse.Namespace
) -> Measured:
    """Write the logs of a kind, and search them."""
    text, data = directory / "text", directory / "data"
    data.mkdir()
    (directory / "empty").touch()
    options = {"repacked": given.repacked, "level": given.level}
    write_topic(kind, 0, directory / "empty", data, "empty", **options)
    say(f"{kind.name}: writing")
    written = write_topic(kind, given.size * MIB // len(KINDS), text, data, "text", **options)
    indexed = index(data, "text")
    sizes = {"text": written.text_bytes, "log": written.log_bytes, "words": indexed.words_bytes}
    users = [peer(directory) for peer in peers]
    for user in users:
        user.prepare(kind, text, given.level)
        sizes[user.name] = sum(file.stat().st_size for file in user.files("text"))
    os.sync()
    searches = searches_of(kind)
    starts = {
        user.name: statistics.median(user.search(searches[0], "empty", given.runs, SLOW_S).seconds)
        for user in users
    }
    found: dict[str, dict[str, Found]] = {}
    for search in searches:
        done = {
            user.name: user.search(search, "text", given.runs, SLOW_S)
            for user in users
            if search.is_word or not user.searches_words_only
        }
        found[search.key] = done
        say(f"{kind.name}, {search.key}: {', '.join(f'{k} {v.lines}' for k, v in done.items())}")
        for name, each in done.items():
            if each.lines != done[Grep.name].lines:
                raise SystemExit(f"{name}: {each.lines} lines of {search.needle}")
    return Measured(kind, written, indexed, sizes, searches, starts, found)


def sizes_table(measured: Measured, names: list[str]) -> Iterator[str]:
    """Yield the lines of the table of sizes."""
    sizes = measured.sizes
    peers = [
        name for name in (Zgrep.name, Zstdgrep.name, Timberfs.name, Journald.name) if name in names
    ]
    columns = ["text", "log", "words", *peers]
    shown = [f"{sizes[key] / 1e6:.1f}" for key in columns]
    titles = [f"{measured.kind.name}, MB", *columns, "log ÷ zstd", "words ÷ text", "÷ log"]
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'---:|' * (len(columns) + 3)}"
    shown.append(f"{sizes['log'] / sizes[Zstdgrep.name]:.3f}" if Zstdgrep.name in sizes else "–")
    shown += [f"{sizes['words'] / sizes[key]:.1%}" for key in ("text", "log")]
    yield f"| size | {' | '.join(shown)} |"


def search_table(measured: Measured, names: list[str]) -> Iterator[str]:
    """Yield the lines of the table of searches."""
    goals = [(Ripgrep.name, 20.0), (Timberfs.name, 0.5)]
    goals = [goal for goal in goals if goal[0] in names]
    titles = [f"speed of -w ≥ {factor:g} × {name}" for name, factor in goals]
    titles = ["read by -w", *titles]
    yield f"| {measured.kind.name}, ms | lines | {' | '.join([*names, *titles])} |"
    yield f"|---|---:|{'---:|' * (len(names) + 1)}{'---|' * len(goals)}"
    for search in measured.searches:
        found = measured.found[search.key]
        cells = [
            f"{1000 * measured.seconds(search, name):.3g}" if name in found else "–"
            for name in names
        ]
        ours = found.get(KafkafsWord.name)
        share = ours.read / measured.written.log_bytes if ours else 0
        cells.append(f"{share:.3%}" if ours else "–")
        for peer, factor in goals:
            if search.key in RARE:
                seconds = [measured.seconds(search, name) for name in (peer, KafkafsWord.name)]
                ratio = seconds[0] / seconds[1]
                cells.append(verdict(ratio, ratio >= factor))
            else:
                cells.append("–")
        yield f"| {search.title} | {found[Grep.name].lines} | {' | '.join(cells)} |"
    starts = [f"{1000 * measured.starts[name]:.3g}" for name in names]
    yield f"| the start | – | {' | '.join([*starts, *['–'] * len(titles)])} |"


def speeds(measured: Measured) -> Iterator[str]:
    """Yield lines about the speed of a core, in megabytes of text a second."""
    written, indexed = measured.written, measured.indexed
    if indexed.words_bytes:
        speed = written.text_bytes / 1e6 / indexed.seconds
        yield f"{measured.kind.name}: words {speed:.0f} MB/s of text a core"
    if written.repack_s:
        speed = written.text_bytes / 1e6 / written.repack_s
        yield f"{measured.kind.name}: repack {speed:.0f} MB/s of text a core"


def append_seconds(home: Path, writes: list[bytes], *, is_on: bool) -> float:
    """Return the time to write a text through a mount."""
    peer = mount_peers.Kafkafs(home)
    peer.start()
    try:
        topic = peer.appended.parent
        topic.mkdir()
        settings = "segment.bytes=16MiB\ncompression.type=zstd\n"
        if is_on:
            settings += "kafkafs.repack=zstd\nkafkafs.words=words\n"
        with open(topic / ".config", "a") as config:
            config.write(settings)
        begun = time.perf_counter()
        with open(peer.appended, "ab", buffering=0) as file:
            for each in writes:
                file.write(each)
        return time.perf_counter() - begun
    finally:
        peer.stop()


def measure_appends(directory: Path, size: int, pairs: int) -> str:
    """Return a line about the throughput of appends."""
    lines = lines_of(KINDS["json"], size)
    writes = []
    while part := list(islice(lines, WRITE_BYTES // KINDS["json"].line_bytes)):
        writes.append(b"".join(line + b"\n" for _, line in part))
    ratios, speed = [], 0.0
    for pair in range(pairs + 1):
        seconds = {}
        for is_on in (True, False) if pair % 2 else (False, True):
            with tempfile.TemporaryDirectory(dir=directory) as name:
                seconds[is_on] = append_seconds(Path(name) / "kafkafs", writes, is_on=is_on)
        say(f"append: {seconds[False]:.2f} s, with repacking and words {seconds[True]:.2f} s")
        if pair or pairs == 1:  # the first pair is not counted
            ratios.append(seconds[False] / seconds[True])
            speed = sum(map(len, writes)) / 1e6 / seconds[False]
    ratio = statistics.median(ratios)
    goal = f"speed ≥ 0.98 ×: {verdict(ratio, ratio >= 0.98)}"
    return f"append: {speed:.0f} MB/s; with repacking and words {goal}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the size of logs, and the search.")
    parser.add_argument("--repacked", action="store_true", help="write line by line, and repack")
    parser.add_argument("--level", type=int, default=3, help="of zstd")
    parser.add_argument("--append", action="store_true", help="measure only appends")
    given = arguments(parser, list(KINDS), runs=3, size=5120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is unmounted
    missing = {peer.name: peer.missing() for peer in PEERS}
    peers = [peer for peer in PEERS if not missing[peer.name]]
    if Grep not in peers:
        raise SystemExit("grep: not found")
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {given.runs} runs; text {given.size} MiB")
    if given.append:
        with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
            pairs = 1 if given.tiny else PAIRS
            print(measure_appends(Path(name), given.size * MIB, pairs))
        return
    how = "repacked" if given.repacked else "batches of 16 KiB"
    print(f"{how}; zstd level {given.level}")
    for name, programs in missing.items():
        if programs:
            print(f"{name} left out; not installed: {', '.join(programs)}")
    for key, kind in KINDS.items():
        if not given.only or key in given.only:
            with tempfile.TemporaryDirectory(prefix="kafkafs-bench-", dir=given.directory) as name:
                measured = measure(kind, Path(name), peers, given)
            names = [peer.name for peer in peers]
            print("\n".join(["", *sizes_table(measured, names)]))
            print("\n".join(["", *search_table(measured, names)]))
            print("\n".join(["", *speeds(measured)]), flush=True)


if __name__ == "__main__":
    main()
