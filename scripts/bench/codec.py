#!/usr/bin/env python3
"""Measures record batches to text, to columns and back, beside aiokafka and kafka-python.

    scripts/bench/codec.py [--runs N] [--size MIB] [--only WORK] [--tiny]

Needs scripts/setup test. There is no file and no mount: logs are in memory. Works are `render`
(batches to the text of the `values` view), `columns` (offsets, timestamps, keys, values) and
`encode` (lines to batches, compressed if there is a codec), and each with one record a batch. The
peers iterate over their records and join the values, or collect them in four lists. They append
line by line to their builders. No peer checks a CRC unless it must; ours must for compressed and
older batches.

Each run does each work with every peer in turn. A figure is megabytes of text a second of processor
time, so that it is about the same on a busy machine. Figures are medians over the runs, and a ratio
is the median of the runs' ratios. Logs are read 2 MiB at a time. kafka-python does only a part of
the work. Before the runs, the peers' text is compared with ours.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

from codec_peers import KAFKA_PYTHON_SHARE, PEERS, their_render
from codec_works import CASES, MIB, Case, Data, make_data, our_render, our_work

LEAST_SECONDS = 0.1  # a shorter work is repeated until it has taken this time
NAMES = ["kafkafs", *(peer.name for peer in PEERS)]


def compare(case: Case, data: Data) -> None:
    """Compare the peers' text with ours. A peer without this work is not measured."""
    if case.work == "render":
        shown = [bytes(data.out[: our_render(case, log, data.out)]) for log in data.logs]
        assert b"".join(shown) == data.text
        for peer in PEERS:
            assert [their_render(peer.records, log) for log in data.logs] == shown, peer.name
    elif case.work == "columns":
        assert our_work(case, data) == len(data.lines)
        for peer in PEERS:
            assert peer.work(case, data) == len(data.lines), peer.name


def seconds(work: Callable[[], object], least: float) -> float:
    """Return the mean time of the calls that together take the `least` seconds."""
    start = time.process_time()
    times = 0
    while True:
        work()
        times += 1
        took = time.process_time() - start
        if took >= least:
            return took / times


def measure(case: Case, size: int, runs: int, least: float) -> dict[str, list[float]]:
    """Return megabytes of text a second by peer, one figure a run."""
    compare(case, make_data(case, size // KAFKA_PYTHON_SHARE))
    whole = make_data(case, size)
    parts = {1: whole}
    works: dict[str, tuple[Callable[[], object], int]] = {
        "kafkafs": (lambda: our_work(case, whole), len(whole.text))
    }
    for peer in PEERS:
        data = parts.setdefault(peer.share, make_data(case, size // peer.share))
        works[peer.name] = (functools.partial(peer.work, case, data), len(data.text))
    figures: dict[str, list[float]] = {name: [] for name in works}
    for run in range(runs + 1):
        for name, (work, text) in works.items():
            took = seconds(work, least)
            if run:
                figures[name].append(text / took / 1e6)
    return figures


def verdict(case: Case, figures: dict[str, list[float]]) -> str:
    pairs = zip(figures["kafkafs"], figures["aiokafka"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    if case.goal is None:
        return f"{ratio:.3g}"
    return f"**{ratio:.3g}** ≥ {case.goal:g} {'met' if ratio >= case.goal else 'MISSED'}"


def row(case: Case, figures: dict[str, list[float]]) -> str:
    cells = [f"{statistics.median(figures[name]):.3g}" for name in NAMES]
    return f"| {case.title} | {' | '.join(cells)} | {verdict(case, figures)} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the record codec beside its peers.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", type=int, default=32, metavar="MIB", help="of the text")
    parser.add_argument("--only", action="append", choices=["render", "columns", "encode"])
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    runs, size = (1, MIB // 4) if given.tiny else (given.runs, given.size * MIB)
    least = 0 if given.tiny else LEAST_SECONDS
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {runs} runs; MB of text a CPU second\n")
    print(f"| work | {' | '.join(NAMES)} | times aiokafka |")
    print(f"|---|{'---:|' * len(NAMES)}---|")
    for case in CASES:
        if not given.only or case.work in given.only:
            # A record alone in its batch costs much more than its bytes.
            part = size // 8 if case.one and not given.tiny else size
            print(row(case, measure(case, part, runs, least)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
