"""The programs that `search.py` compares, all with the same methods, and its searches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from search_data import ABSENT, ADDRESS, START_MS, TRACE, Kind, lines_of

HERE = Path(__file__).resolve().parent
KAFKAFS = str(HERE.parents[1] / ".venv" / "bin" / "kafkafs")
JOURNAL_REMOTE = "/lib/systemd/systemd-journal-remote"
ENVIRONMENT = {**os.environ, "LC_ALL": "C"}


class Search(NamedTuple):
    """A search for a needle. `counts`: it prints the number of lines, instead of the lines."""

    key: str
    title: str
    needle: str
    counts: bool = False
    is_word: bool = True


def searches_of(kind: Kind) -> list[Search]:
    return [
        Search("absent", "a word that no line has", ABSENT),
        Search("trace", "a trace of one line", TRACE),
        Search("address", "an address of some 50 lines", ADDRESS),
        Search("common", "a word of many lines (`-c`)", kind.common, counts=True),
        Search("part", "a part of a word", kind.part, is_word=False),
    ]


class Found(NamedTuple):
    """Seconds of each run, the number of lines, and the bytes read (0: not measured)."""

    seconds: list[float]
    lines: int
    read: int = 0


class Peer(ABC):
    """A program with a copy of the text in its own form.

    `programs`: without them the peer is left out. `home`: has the files `text` and `empty`, and the
    data directory `data` with topics of these names.
    """

    name: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    searches_words_only: ClassVar[bool] = False

    def __init__(self, home: Path) -> None:
        self.home = home

    @classmethod
    def missing(cls) -> list[str]:
        return [program for program in cls.programs if shutil.which(program) is None]

    def prepare(self, kind: Kind, text: Path, level: int) -> None:  # noqa: B027  (most need nothing)
        """Copy the text."""

    @abstractmethod
    def files(self, name: str) -> list[Path]:
        """Return the files of the copy of the text `name`, "text" or "empty"."""

    @abstractmethod
    def command(self, search: Search, name: str) -> list[str]:
        """Return the command that searches a copy."""

    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files("text"))

    def search(self, search: Search, name: str, runs: int, most_s: float) -> Found:
        """Search several times; once only if that takes more than `most_s` seconds.

        The first of several times is not counted.
        """
        seconds: list[float] = []
        command = self.command(search, name)
        while not seconds or (runs > 1 and len(seconds) <= runs):
            begun = time.perf_counter()
            done = subprocess.run(
                command, capture_output=True, text=True, env=ENVIRONMENT, check=False
            )
            seconds.append(time.perf_counter() - begun)
            if done.returncode not in (0, 1):
                raise SystemExit(f"{' '.join(command)}: {done.stderr}")
            if seconds[0] > most_s:
                break
        return Found(seconds[1:] or seconds, _lines(search, done.stdout))


def _lines(search: Search, printed: str) -> int:
    return int(printed.strip() or 0) if search.counts else printed.count("\n")


def _flags(search: Search) -> list[str]:
    return ["-c"] if search.counts else []


class Kafkafs(Peer):
    """`kafkafs grep` without the start of Python (`search_ours.py`)."""

    name = "`kafkafs grep`"
    programs: ClassVar[tuple[str, ...]] = (KAFKAFS,)
    options: ClassVar[list[str]] = []

    @property
    def data(self) -> Path:
        return self.home / "data"

    def files(self, name: str) -> list[Path]:
        directory = self.data / f"{name}-0"
        return [*directory.glob("*.log"), *directory.glob("*.words")]

    def command(self, search: Search, name: str) -> list[str]:
        options = [*self.options, *_flags(search)]
        return [KAFKAFS, "grep", *options, "-e", search.needle, str(self.data), name]

    def search(self, search: Search, name: str, runs: int, most_s: float) -> Found:
        if name == "empty":
            return super().search(search, name, runs, most_s)
        command = [sys.executable, f"{HERE}/search_ours.py", str(runs)]
        command += self.command(search, name)[2:]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        figures = json.loads(done.stdout)
        return Found(figures["seconds"], _lines(search, figures["printed"]), figures["read"][-1])


class KafkafsWord(Kafkafs):
    name = "`kafkafs grep -w`"
    options: ClassVar[list[str]] = ["-w"]
    searches_words_only = True


class KafkafsCat(Kafkafs):
    name = "`kafkafs cat \\| grep -F`"
    programs = (KAFKAFS, "grep")

    def command(self, search: Search, name: str) -> list[str]:
        script = 'kafkafs=$1 data=$2 topic=$3; shift 3; "$kafkafs" cat "$data" "$topic" | "$@"'
        grep = ["grep", "-F", *_flags(search), search.needle]
        return ["sh", "-c", script, "sh", KAFKAFS, str(self.data), name, *grep]

    def search(self, search: Search, name: str, runs: int, most_s: float) -> Found:
        return Peer.search(self, search, name, runs, most_s)


class PlainFile(Peer):
    """A program that searches the text itself, or a compressed file of it."""

    suffix: ClassVar[str] = ""
    compress: ClassVar[list[str]] = []

    def prepare(self, kind: Kind, text: Path, level: int) -> None:
        for name in ("text", "empty") if self.compress else ():
            options = [f"-{level}"] if "zstd" in self.compress else []
            subprocess.run([*self.compress, *options, self.home / name], check=True)

    def files(self, name: str) -> list[Path]:
        return [self.home / f"{name}{self.suffix}"]

    def command(self, search: Search, name: str) -> list[str]:
        return [
            *self.programs[:1],
            "-F",
            *_flags(search),
            search.needle,
            *map(str, self.files(name)),
        ]


class Ripgrep(PlainFile):
    name = "ripgrep"
    programs = ("rg",)


class Grep(PlainFile):
    name = "`grep -F`"
    programs = ("grep",)


class Zgrep(PlainFile):
    name = "zgrep"
    programs = ("zgrep", "gzip")
    suffix = ".gz"
    compress: ClassVar[list[str]] = ["gzip", "-k"]


class Zstdgrep(PlainFile):
    name = "zstdgrep"
    programs = ("zstdgrep", "zstd")
    suffix = ".zst"
    compress: ClassVar[list[str]] = ["zstd", "-q"]


class Timberfs(Peer):
    """timberfs with its index of words. Its empty store has a line, because it needs a time."""

    name = "timberfs"
    programs = ("timberfs", "timber-filter")

    def prepare(self, kind: Kind, text: Path, level: int) -> None:
        self.store.mkdir()
        line = self.home / "line"
        line.write_bytes(next(lines_of(kind, kind.line_bytes))[1] + b"\n")
        options = ["--timestamp-regex", r'"time":"([^"]+)Z"'] if kind.name == "json" else []
        options += ["--timestamp-format", "%Y-%m-%dT%H:%M:%S%.f", "--utc"] if options else []
        for name, source in (("text", text), ("empty", line)):
            command = ["timberfs", "--quiet", "import", "--index", *options, str(source)]
            subprocess.run([*command, "--into", f"{self.store}/{name}.log"], check=True)

    @property
    def store(self) -> Path:
        return self.home / "timberfs"

    def files(self, name: str) -> list[Path]:
        return list(self.store.glob(f"{name}.log.*"))

    def command(self, search: Search, name: str) -> list[str]:
        how = "--has" if search.is_word else "--substring"
        where = str(self.store / f"{name}.log")
        return ["timber-filter", "--quiet", *_flags(search), how, search.needle, where]


class Journald(Peer):
    """Journal files, as journald writes them, and `journalctl --grep`."""

    name = "journald"
    programs = (JOURNAL_REMOTE, "journalctl")

    def prepare(self, kind: Kind, text: Path, level: int) -> None:
        for name in ("text", "empty"):
            directory = self.home / f"journal-{name}"
            directory.mkdir()
            command = [JOURNAL_REMOTE, "-o", f"{directory}/text.journal", "-"]
            writer = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert writer.stdin
            with open(self.home / name, "rb") as lines, writer.stdin as entries:
                for number, line in enumerate(lines):
                    time_us = START_MS * 1000 + 10_000 * number
                    head = b"__REALTIME_TIMESTAMP=%d\n_BOOT_ID=%032x" % (time_us, 1)
                    entries.write(b"%b\nMESSAGE=%b\n" % (head, line))
            if writer.wait():
                raise SystemExit(f"{JOURNAL_REMOTE}: exit status {writer.returncode}")

    def files(self, name: str) -> list[Path]:
        return list((self.home / f"journal-{name}").iterdir())

    def command(self, search: Search, name: str) -> list[str]:
        options = ["-o", "cat", "--no-pager", "-q", "--case-sensitive=true"]
        command = ["journalctl", "-D", str(self.home / f"journal-{name}"), *options]
        command += ["--grep", re.escape(search.needle)]
        return ["sh", "-c", '"$@" | wc -l', "sh", *command] if search.counts else command


OURS = [KafkafsWord, Kafkafs, KafkafsCat]
PEERS: list[type[Peer]] = [*OURS, Ripgrep, Grep, Zgrep, Zstdgrep, Timberfs, Journald]
