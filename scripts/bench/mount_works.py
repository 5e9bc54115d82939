"""The works of `mount.py`: one peer does a work once, which gives one figure."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mount_peers import Daemon, Kafkafs, Peer, Timberfs

LINE = "x" * 99
MIB = 1 << 20


@dataclass(frozen=True)
class Scale:
    """The amounts to measure. Sizes are in bytes. A line has 100 bytes with its newline."""

    text: int  # the file for cat
    big: int  # the file for reads at random positions
    small: int  # a smaller one, for comparison
    append: int  # the bytes that `cat big >> file` appends
    writes: int
    echoes: int
    requests: int  # random reads, stats
    tiny: bool

    @classmethod
    def of(cls, text_mib: int, *, tiny: bool) -> Scale:
        return cls(
            text=text_mib * MIB,
            big=10 * text_mib * MIB,
            small=max(1, text_mib // 100) * MIB,
            append=text_mib * MIB * 500 // 1024,
            writes=500 if tiny else 50_000,
            echoes=20 if tiny else 1000,
            requests=100 if tiny else 20_000,
            tiny=tiny,
        )

    def settle(self) -> None:
        """Wait until the disk has all written bytes: no peer is to slow down another one."""
        if not self.tiny:
            os.sync()


@dataclass(frozen=True)
class Tools:
    """The programs and files that the works use beside the peer."""

    scale: Scale
    client: Path
    appendix: Path  # the text that is appended


def seconds_of(command: list[str | Path], output: IO[bytes] | int | None = None) -> float:
    """Run a command to its end. `output`: its standard output."""
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=output)
    return time.monotonic() - begun


def client(program: Path, *arguments: object) -> dict[str, float]:
    """Run client.c; return its figures by name."""
    command: list[str | Path] = [program, *map(str, arguments)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(printed[::2], map(float, printed[1::2]), strict=True))


def size_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def read_all(paths: list[Path]) -> float:
    return seconds_of(["cat", *paths], subprocess.DEVNULL)


def cold_cat(kib: int) -> Callable[[Tools, Peer], float]:
    def measure(tools: Tools, peer: Peer) -> float:
        peer.set_read_ahead(kib)
        peer.forget("text", tools.client)
        files = peer.served("text")
        return size_of(files) / read_all(files) / 1e9

    return measure


def second_cat(tools: Tools, peer: Peer) -> float:
    files = peer.served("text")
    read_all(files)
    return size_of(files) / read_all(files) / 1e9


def append_text(tools: Tools, peer: Peer) -> float:
    with open(peer.appended, "ab") as target:
        took = seconds_of(["cat", tools.appendix], target)
    return tools.appendix.stat().st_size / took / 1e6


def write_lines(tools: Tools, peer: Peer) -> float:
    return client(tools.client, "write", peer.appended, tools.scale.writes, 100)["per_second"] / 1e3


def echo(tools: Tools, peer: Peer) -> float:
    count = tools.scale.echoes
    loop = f'for ((n = 0; n < {count}; n++)); do echo {LINE} >> "$1"; done'
    return seconds_of(["bash", "-c", loop, "bash", peer.appended]) / count * 1e3


def read_at_random(name: str, figure: str, factor: float) -> Callable[[Tools, Peer], float]:
    def measure(tools: Tools, peer: Peer) -> float:
        peer.forget(name, tools.client)
        read = client(tools.client, "read", tools.scale.requests, *peer.served(name))
        return read[figure] * factor

    return measure


def stat(tools: Tools, peer: Peer) -> float:
    path = peer.served("text")[0]
    return client(tools.client, "stat", tools.scale.requests, path)["per_second"] / 1e3


def start(tools: Tools, peer: Peer) -> float:
    tools.scale.settle()
    peer.stop()
    return peer.start()


@dataclass(frozen=True)
class Work:
    """A work; `key` is its name on the command line. Figures are rates unless `less_is_better`."""

    key: str
    title: str
    unit: str
    measure: Callable[[Tools, Peer], float]
    warm: str | None = None  # the text that has to be in the page cache
    writes: bool = False
    less_is_better: bool = False

    def suits(self, peer: Peer) -> bool:
        if self.key == "start":
            return isinstance(peer, Daemon)
        if isinstance(peer, Timberfs):
            return self.writes or (peer.reads and self.warm == "text")
        return True


WORKS = [
    Work("append", "`cat big >> file`", "MB/s", append_text, writes=True),
    Work("write", "one-line `write()`s", "1,000/s", write_lines, writes=True),
    Work("echo", "`echo >> file`", "ms", echo, writes=True, less_is_better=True),
    Work("cat-1m", "cold `cat`, read-ahead 1 MiB", "GB/s", cold_cat(1024), warm="text"),
    Work("cat-128k", "cold `cat`, read-ahead 128 KiB", "GB/s", cold_cat(128), warm="text"),
    Work("second-cat", "second `cat`", "GB/s", second_cat, warm="text"),
    Work("stat", "`stat`, uncached", "1,000/s", stat, warm="text"),
    Work(
        "read-small",
        "4 KiB reads of the small file, p50",
        "µs",
        read_at_random("small", "p50_us", 1),
        warm="small",
        less_is_better=True,
    ),
    Work(
        "read-big-p50",
        "4 KiB reads of the big file, p50",
        "µs",
        read_at_random("big", "p50_us", 1),
        warm="big",
        less_is_better=True,
    ),
    Work(
        "read-big",
        "4 KiB reads of the big file",
        "1,000/s",
        read_at_random("big", "per_second", 1e-3),
        warm="big",
    ),
    Work("start", "start to mounted", "s", start, less_is_better=True),
]


def load(kafkafs: Kafkafs, text: Path, copies: dict[str, int], small: Path) -> None:
    """Create the topics with a number of copies of the text each, and the small one."""
    for name in (*copies, "small", "appended"):
        (kafkafs.mount_point / name).mkdir()
    for name, count in copies.items():
        with open(kafkafs.served(name)[0], "ab") as partition:
            for _ in range(count):
                subprocess.run(["cat", text], stdout=partition, check=True)
    with open(kafkafs.served("small")[0], "ab") as partition:
        subprocess.run(["cat", small], stdout=partition, check=True)
