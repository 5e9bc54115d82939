"""The works of `tools.py`: each reads a text of lines once."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import mount_works

LINE_SIZE = 100
LAST_LINE = b"999999999999 INFO worker-00 request=0 status=200 took=00000us".ljust(99, b".") + b"\n"
APPEND_EVERY_S = 0.01
COLUMNS = 6
"""The fields of a line of the text, with spaces between them."""

DUCKDB = f"""import duckdb, sys
columns = {{f"c{{n}}": "VARCHAR" for n in range({COLUMNS})}}
print(duckdb.read_csv(sys.argv[1], sep=" ", columns=columns).aggregate("count(*), max(c3)"))"""
PANDAS = """import pandas, sys
lines = pandas.read_csv(sys.argv[1], sep=" ", header=None)
print(len(lines), lines[3].max())"""


@dataclass(frozen=True)
class Work(ABC):
    """A work; `key` is its name on the command line. Lower figures are better."""

    key: str
    title: str
    unit: ClassVar[str]
    page_cache: ClassVar[bool]
    """Whether the work is also measured if the page cache serves the reads."""

    @abstractmethod
    def measure(self, place: Place, path: Path) -> float:
        """Read the file once."""


@dataclass(frozen=True)
class Place:
    """The place of the work. `client`: the program. `copy`: a file that tools write, not kept."""

    client: Path
    copy: Path


@dataclass(frozen=True)
class Tool(Work):
    """A command with placeholders FILE and COPY. `package`: it has the command."""

    command: tuple[str, ...]
    package: str | None = None
    module: str | None = None
    """The Python module without which the tool is left out."""
    unit = "s"
    page_cache = True

    @classmethod
    def of(cls, key: str, command: str, package: str | None = None) -> Tool:
        title = f"`{command.partition(' FILE')[0]}`"
        return cls(key, title, tuple(shlex.split(command)), package)

    @classmethod
    def python(cls, key: str, title: str, script: str, module: str | None = None) -> Tool:
        return cls(key, title, (sys.executable, "-c", script, "FILE"), module=module)

    @property
    def installed(self) -> bool:
        if self.module is not None:
            return importlib.util.find_spec(self.module) is not None
        return shutil.which(self.command[0]) is not None

    def measure(self, place: Place, path: Path) -> float:
        return self.run(place, path)[0]

    def run(self, place: Place, path: Path) -> tuple[float, str]:
        """Return the seconds, and the output with FILE for the file's name.

        The output of cat is not read, because most of its time would be that of a pipe.
        """
        names = {"FILE": str(path), "COPY": str(place.copy)}
        command = [names.get(word, word) for word in self.command]
        output = subprocess.DEVNULL if self.key == "cat" else subprocess.PIPE
        environment = {**os.environ, "LC_ALL": "C"}
        begun = time.monotonic()
        done = subprocess.run(command, stdout=output, env=environment, text=True, check=True)
        seconds = time.monotonic() - begun
        place.copy.unlink(missing_ok=True)
        return seconds, (done.stdout or "").replace(str(path), "FILE")


@dataclass(frozen=True)
class SequentialReads(Work):
    """`read()` calls of one size, from the start to the end."""

    size: int
    unit = "µs"
    page_cache = False

    @classmethod
    def of(cls, kib: int) -> SequentialReads:
        return cls(f"read-{kib}k", f"a sequential `read()` of {kib} KiB", kib << 10)

    def measure(self, place: Place, path: Path) -> float:
        return 1e6 / mount_works.client(place.client, "sequence", self.size, path)["per_second"]


TOOLS = [
    Tool.of("wc", "wc -l FILE"),
    Tool.of("grep", "grep -c status=500 FILE"),
    Tool.of("md5sum", "md5sum FILE"),
    Tool.of("cat", "cat FILE"),
    Tool.python("python", "`for line in open()`", "import sys\nfor _ in open(sys.argv[1]): pass"),
    Tool.of("gawk", "gawk '{ n++ } END { print n }' FILE", "gawk"),
    Tool.of("mawk", "mawk '{ n++ } END { print n }' FILE", "mawk"),
    Tool.of("perl", "perl -ne '$n++; END { print $n }' FILE", "perl"),
    Tool.of("sed", "sed -n '$=' FILE"),
    Tool.of("sort", "sort -c FILE"),
    Tool.of("cp", "cp FILE COPY"),
    Tool.python("duckdb", "DuckDB's `read_csv`", DUCKDB, "duckdb"),
    Tool.python("pandas", "pandas' `read_csv`", PANDAS, "pandas"),
]
WORKS: list[Work] = [*TOOLS, *(SequentialReads.of(kib) for kib in (4, 16, 32, 96, 128))]


def runnable(works: list[Work]) -> list[Work]:
    """Return the works that can be measured here; exit if an installable program is missing."""
    missing = [work for work in works if isinstance(work, Tool) and not work.installed]
    packages = [tool.package for tool in missing if tool.package]
    if packages:
        raise SystemExit(f"{', '.join(packages)}: not found: apt-get install {' '.join(packages)}")
    return [work for work in works if work not in missing]


def make_sorted_text(path: Path, size: int) -> Path:
    """Write lines of 100 bytes in the order of `sort -c`, each with a number of its own."""
    ends = [
        f" INFO worker-{n % 32:02} request={n * 0x9E3779B97F4A7C15 % (1 << 64):016x}"
        f" status={500 if n % 10 == 0 else 200} took={n * 7919 % 10**5:05}us"
        for n in range(1000)
    ]
    with open(path, "w") as file:
        for start in range(0, size // LINE_SIZE, len(ends)):
            lines = [
                f"{start + n:012}{end}".ljust(LINE_SIZE - 1, ".") for n, end in enumerate(ends)
            ]
            file.writelines(f"{line}\n" for line in lines[: size // LINE_SIZE - start])
    return path


@contextlib.contextmanager
def appended_to(path: Path) -> Iterator[None]:
    """Append a line every 10 ms meanwhile."""
    ended = threading.Event()

    def append() -> None:
        with open(path, "ab", buffering=0) as file:
            while not ended.wait(APPEND_EVERY_S):
                file.write(LAST_LINE)

    with ThreadPoolExecutor(1) as threads:
        appending = threads.submit(append)
        try:
            yield
        finally:
            ended.set()
        appending.result()
