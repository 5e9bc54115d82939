"""The works of `views.py`, in stages; each stage has its own mounts.

A stage creates its data, mounts its peers, and yields one function for each of its works. Such a
function does the work once and returns its figures by name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from mount_peers import Kafkafs, Limit
from mount_works import read_all, seconds_of
from views_broker import Printing
from views_data import BLOCK_BYTES, MIB, Block, Written, link_foreign, segments, write_topic

Measure = Callable[[], dict[str, float]]
Stage = Callable[["Bench"], contextlib.AbstractContextManager[dict[str, Measure]]]

READ_AHEAD_KIB = 1024
WRITE_BYTES = 64 << 10
SLOW_SHARE = 8  # the console consumer takes a minute for a gigabyte
VIEWS = {"values": "", ".kv": ".kv", ".jsonl": ".jsonl"}


@dataclass(frozen=True)
class Bench:
    """The amounts to measure, and the tools of the works. Sizes are in bytes of segments."""

    directory: Path
    limit: Path
    client: Path
    block: Block
    lines: Block  # of records whose values are a line each
    size: int  # the log for cat and for measuring views
    append: int
    big: int  # the log for searches by time; 0: no search
    small: int
    heads: int
    tiny: bool

    def settle(self) -> None:
        """Wait until the disk has all written bytes: no work is to slow down another one."""
        if not self.tiny:
            os.sync()

    def ask(self, *arguments: object) -> dict[str, float]:
        """Run client.c; return its figures by name."""
        command = [str(self.client), *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        words = done.stdout.split()
        return dict(zip(words[::2], map(float, words[1::2]), strict=True))


class Mounted(Kafkafs):
    """kafkafs over an existing data directory, with a cache of its own."""

    def __init__(self, home: Path, data: Path, *options: str) -> None:
        super().__init__(home)
        self.data.rmdir()
        self.data.symlink_to(data)
        self.options = [word for option in options for word in ("-o", option)]
        self.cache = home / "cache"

    def command(self) -> list[str | Path]:
        return ["env", f"XDG_CACHE_HOME={self.cache}", *super().command(), *self.options]

    def view(self, topic: str, view: str) -> Path:
        """Return the path of partition 0 of the topic in a view."""
        return self.mount_point / topic / VIEWS[view] / "0"


@contextlib.contextmanager
def started(*peers: Kafkafs | Limit) -> Iterator[None]:
    """Mount the peers. As root, they all have the same read-ahead."""
    with contextlib.ExitStack() as stack:
        for peer in peers:
            stack.callback(peer.stop)
            peer.start()
            if os.geteuid() == 0:
                peer.set_read_ahead(READ_AHEAD_KIB)
        yield


def copy_texts(mounted: Mounted, topic: str, to: Path, views: list[str]) -> dict[str, Path]:
    """Copy the topic's views to plain files."""
    texts: dict[str, Path] = {}
    to.mkdir()
    for view in views:
        measured_size(mounted.view(topic, view))
        texts[view] = to / view.strip(".")
        with open(texts[view], "wb") as file:
            seconds_of(["cat", mounted.view(topic, view)], file)
    return texts


def measured_size(path: Path) -> int:
    """Wait until the file's size is measured, and return it."""
    while True:
        try:
            return path.stat().st_size
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise


@contextlib.contextmanager
def reading(bench: Bench) -> Iterator[dict[str, Measure]]:
    """Measure `cat` of a view beside the limit, which serves the same bytes."""
    base = bench.directory / "reading"
    data = base / "data"
    data.mkdir(parents=True)
    write_topic(data, "mixed", bench.block, bench.size)
    kafkafs = Mounted(base / "kafkafs", data)
    with started(kafkafs):
        texts = copy_texts(kafkafs, "mixed", base / "texts", list(VIEWS))
        limit = Limit(base / "limit", {p.name: [p] for p in texts.values()}, bench.limit)

        def cat(view: str) -> dict[str, float]:
            read_all(segments(data, "mixed"))
            files = {
                "kafkafs": kafkafs.view("mixed", view),
                "limit": limit.mount_point / texts[view].name,
            }
            size = texts[view].stat().st_size
            found = {"text/segment": size / sum(p.stat().st_size for p in segments(data, "mixed"))}
            for name, path in files.items():
                bench.ask("drop", path)
                found[name] = size / read_all([path]) / 1e9
            return found

        with started(limit):
            bench.settle()
            yield {
                "cat-values": lambda: cat("values"),
                "cat-kv": lambda: cat(".kv"),
                "cat-jsonl": lambda: cat(".jsonl"),
            }


@contextlib.contextmanager
def indexing(bench: Bench) -> Iterator[dict[str, Measure]]:
    """Measure the first stat of a partition."""
    base = bench.directory / "indexing"
    data, foreign = base / "data", base / "foreign"
    data.mkdir(parents=True)
    foreign.mkdir()
    write_topic(data, "mixed", bench.block, bench.size)
    link_foreign(data, "mixed", foreign)
    size = sum(path.stat().st_size for path in segments(foreign, "mixed"))
    runs = count()

    def until_known(kafkafs: Mounted, view: str) -> float:
        """Return the seconds from the daemon's start to the answer."""
        begun = time.monotonic()
        with started(kafkafs):
            measured_size(kafkafs.view("mixed", view))
            return time.monotonic() - begun

    def first_stat() -> dict[str, float]:
        kafkafs = Mounted(base / f"run-{next(runs)}", foreign, "ro")
        read_all(segments(foreign, "mixed"))
        found: dict[str, float] = {}
        for view in VIEWS:
            unknown = until_known(kafkafs, view)
            found[view] = size / max(unknown - until_known(kafkafs, view), 1e-6) / 1e9
        return found

    bench.settle()
    yield {"first-stat": first_stat}


@contextlib.contextmanager
def appending(bench: Bench) -> Iterator[dict[str, Measure]]:
    """Append the same records through each view, each time to a new topic.

    The topic is deleted before the next one is created. On a virtual machine, memory that was not
    written to for long is slow to get. Without the deletion the first views would seem faster.
    """
    base = bench.directory / "appending"
    data = base / "data"
    data.mkdir(parents=True)
    written = write_topic(data, "lines", bench.lines, bench.append)
    kafkafs = Mounted(base / "kafkafs", data)
    runs = count()
    with started(kafkafs):
        texts = copy_texts(kafkafs, "lines", base / "texts", list(VIEWS))

        def append() -> dict[str, float]:
            found: dict[str, float] = {}
            for view, text in texts.items():
                topic = kafkafs.mount_point / f"appended-{next(runs)}"
                topic.mkdir()
                with open(topic / ".config", "a") as config:
                    config.write("file.delete.delay.ms=0\n")
                target = kafkafs.view(topic.name, view)
                seconds = bench.ask("append", text, target, WRITE_BYTES)["seconds"]
                found[f"{view} 1,000/s"] = written.records / seconds / 1e3
                found[f"{view} MB/s"] = text.stat().st_size / seconds / 1e6
                records = int(os.getxattr(target, "user.kafkafs.records"))
                assert records == written.records, (view, records, written.records)
                topic.rmdir()
                wait_until_gone(data, topic.name)
                bench.settle()
            return found

        bench.settle()
        yield {"append": append}


def wait_until_gone(data: Path, topic: str) -> None:
    """Wait until the files of a deleted topic are deleted, too."""
    while any(data.glob(f"{topic}-0.*-delete")):
        time.sleep(0.05)


@contextlib.contextmanager
def finding(bench: Bench) -> Iterator[dict[str, Measure]]:
    """Measure the head of `0@TIME` in a large log and in a small one."""
    base = bench.directory / "finding"
    data = base / "data"
    data.mkdir(parents=True)
    sizes = {"big": bench.big, "small": bench.small}
    logs = {name: write_topic(data, name, bench.block, size) for name, size in sizes.items()}
    kafkafs = Mounted(base / "kafkafs", data)
    rng = random.Random(1)

    def at_random(name: str, log: Written) -> list[Path]:
        # The end is left out, because it may have too few bytes to read.
        span = (log.last_ms - log.first_ms) * 9 // 10
        times = (log.first_ms + rng.randrange(span) for _ in range(bench.heads))
        return [kafkafs.mount_point / name / f"0@{_iso(at)}" for at in times]

    def heads() -> dict[str, float]:
        found: dict[str, float] = {}
        for name, log in logs.items():
            read_all(segments(data, name))
            asked = bench.ask("heads", 100, *at_random(name, log))
            found |= {f"{name} p50": asked["p50_us"], f"{name} p99": asked["p99_us"]}
        return found

    with started(kafkafs):
        for name in logs:
            measured_size(kafkafs.view(name, "values"))
        bench.settle()
        yield {"heads": heads}


def _iso(timestamp_ms: int) -> str:
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03}Z"


@contextlib.contextmanager
def printing(bench: Bench) -> Iterator[dict[str, Measure]]:
    """Measure `cat` beside consumers that print the same records from a running broker."""
    base = bench.directory / "printing"
    blocks = max(bench.size // BLOCK_BYTES, 1)
    with Printing(base, bench.block.records, blocks) as peers:
        kafkafs = Mounted(base / "kafkafs", peers.broker.data, "ro")

        def cat(view: str) -> float:
            path = kafkafs.view(peers.topic, view)
            bench.ask("drop", path)
            return peers.count / read_all([path]) / 1e3

        with started(kafkafs):
            for view in VIEWS:
                measured_size(kafkafs.view(peers.topic, view))
            bench.settle()
            yield {
                "print": lambda: {
                    "cat": cat("values"),
                    "kcat": peers.kcat(),
                    "console consumer": peers.console_consumer(SLOW_SHARE),
                    "cat kafka://": peers.kafkafs(),
                },
                "print-json": lambda: {
                    "cat .jsonl": cat(".jsonl"),
                    "kcat -J": peers.kcat("-J", share=SLOW_SHARE),
                    "cat kafka:// .jsonl": peers.kafkafs("--view", "jsonl"),
                },
            }


STAGES: list[tuple[Stage, tuple[str, ...]]] = [
    (reading, ("cat-values", "cat-kv", "cat-jsonl")),
    (indexing, ("first-stat",)),
    (appending, ("append",)),
    (finding, ("heads",)),
    (printing, ("print", "print-json")),
]


def clean(directory: Path) -> None:
    """Remove the files of a stage, so that the disk has those of one stage at a time."""
    for left in directory.iterdir():
        if left.is_dir():
            shutil.rmtree(left)


__all__ = ["MIB", "STAGES", "Bench", "Measure", "clean"]
