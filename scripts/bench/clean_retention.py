#!/usr/bin/env python3
"""Measures what retention costs for each segment that it deletes, beside the bare system calls.

    scripts/bench/clean_retention.py [--segments N] [--directory DIR]

A log of N segments (10,000), each with a record, an index, a time index and a snapshot of
producers, all of which go. *delete*: from the decision until the files are called ``.deleted`` and
the log start is durable. *remove*: until the files are gone, file.delete.delay.ms being over.
*longest turn*: the most CPU time, in one go, of the thread that owns the logs, during which readers
wait. The peer renames and removes a copy of the same files, and does nothing else.

`measure` is for other benchmarks.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage import Log, LogManager, Record, encode
from storage.retain import plan_retention, retain
from storage.task import Task

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 10**12
SUFFIXES = (".log", ".index", ".timeindex")
FLUSHED_AT_ONCE = 500


@dataclass(frozen=True)
class Figures:
    """Microseconds for each segment, but for ``longest_turn_ms``."""

    segments: int
    plan_us: float
    delete_us: float
    remove_us: float
    longest_turn_ms: float
    bare_rename_us: float
    bare_remove_us: float


class Turns:
    """An owner that knows how long its longest turn was, in seconds of CPU time."""

    def __init__(self) -> None:
        self.longest = 0.0

    def __call__(self, function: Callable[[], T], /) -> T:
        started = time.thread_time()
        try:
            return function()
        finally:
            self.longest = max(self.longest, time.thread_time() - started)


def make(data: Path, segments: int) -> None:
    """A data directory with a log of so many segments and an empty one."""
    batch = encode([Record(0, NOW_MS, 0, None, b"x" * 100)])
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.set_topic_setting("t", "retention.ms", "1000")
        for number in range(segments):
            log.append(bytearray(batch), now_ns=NOW_MS * 1_000_000)
            log.roll(NOW_MS)
            if not number % FLUSHED_AT_ONCE:
                log.flush()
                close_files(log)


def close_files(log: Log) -> None:
    for _ in range(2):
        log.age_descriptors()


def measure(directory: Path, segments: int) -> Figures:
    """Needs an empty directory, and leaves it as it was."""
    data, copy = directory / "data", directory / "copy"
    try:
        make(data, segments)
        shutil.copytree(data / "t-0", copy)
        os.sync()
        bare = bare_times(copy, segments)
        with LogManager.open(str(data)) as manager:
            log = manager.log("t", 0)
            turns = Turns()
            planned = timed(lambda: plan_retention(log, LATER_MS))
            deleted = timed(lambda: retain(manager, [log], Task(turns), LATER_MS))
            assert log.log_start_offset == segments
            removed = timed(lambda: remove(manager, log, turns))
        assert not list((data / "t-0").glob("*.deleted"))
        to_us = 1e6 / segments
        return Figures(
            segments,
            planned * to_us,
            deleted * to_us,
            removed * to_us,
            turns.longest * 1e3,
            bare[0] * to_us,
            bare[1] * to_us,
        )
    finally:
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(copy, ignore_errors=True)


def remove(manager: LogManager, log: Log, turns: Turns) -> None:
    while log.retired:
        sweep = turns(lambda: manager.remove_deleted(2 * LATER_MS))
        if sweep is not None:
            sweep()


def bare_times(copy: Path, segments: int) -> tuple[float, float]:
    """Seconds to rename and to remove the same files."""
    stems = [f"{copy}/{number:020}" for number in range(segments)]

    def rename_all() -> None:
        for stem in stems:
            for suffix in SUFFIXES:
                os.rename(stem + suffix, stem + suffix + ".deleted")

    def remove_all() -> None:
        for number, stem in enumerate(stems):
            for suffix in SUFFIXES:
                os.unlink(stem + suffix + ".deleted")
            if number:  # none is taken before the first segment
                os.unlink(stem + ".snapshot")

    return timed(rename_all), timed(remove_all)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def table(figures: Figures) -> str:
    """Markdown."""
    one = figures
    lines = [
        f"| retention of {one.segments} segments, µs each | kafkafs | bare system calls | ratio |",
        "| --- | --- | --- | --- |",
        row("delete", one.delete_us, one.bare_rename_us),
        row("remove", one.remove_us, one.bare_remove_us),
        f"| decide | {one.plan_us:.1f} | | |",
        "",
        f"longest turn of the thread that owns the logs: {one.longest_turn_ms:.1f} ms",
    ]
    return "\n".join(lines)


def row(name: str, ours: float, bare: float) -> str:
    return f"| {name} | {ours:.1f} | {bare:.1f} | {ours / bare:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, help="where to make it; default: /tmp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        print(table(measure(Path(directory), options.segments)))


if __name__ == "__main__":
    main()
