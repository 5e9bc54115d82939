"""A mount for all tests of a module, and a topic and a group for each."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import KAFKAFS
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, few_directories, mounted
from tests.mount.programs import Running

_numbers = itertools.count()

Done = subprocess.CompletedProcess[bytes]


class Topic:
    """A topic of two partitions, whose records are `a0`, `a1`, … and `b0`, `b1`, …; and a group."""

    def __init__(self, mount: Mount, records: int) -> None:
        number = next(_numbers)
        self.mount = mount
        self.name = f"topic{number}"
        self.group = f"group{number}"
        self.path = mount.topic(self.name, 2).parent
        self.append("a", 0, records)
        self.append("b", 0, records)
        if not (mount / "__consumer_offsets").exists():
            # The first commit of `consume` would name the directories of this topic.
            first = mount / ".groups/first"
            first.mkdir()
            (first / self.name / "0").write_text("0\n")
            first.rmdir()

    def append(self, letter: str, first: int, count: int) -> None:
        """Records `LETTERn` to a partition, a or b."""
        append(self.path / str("ab".index(letter)), self.lines(letter, first, count))

    def lines(self, letter: str, first: int, count: int) -> bytes:
        return b"".join(b"%s%d\n" % (letter.encode(), n) for n in range(first, first + count))

    def command(self, *options: object, group: bool = True) -> list[str]:
        """The command for the whole topic, by its group."""
        by = ["-g", self.group] if group else []
        return [*KAFKAFS, "consume", *by, str(self.path), *map(str, options)]

    def consume(self, *options: object, group: bool = True, **settings: Any) -> Done:
        """Run it to its end."""
        return subprocess.run(
            self.command(*options, group=group), capture_output=True, check=False, **settings
        )

    def output(self, *options: object, group: bool = True) -> bytes:
        """Run it. Return its output. It must succeed and print no errors."""
        done = self.consume(*options, group=group)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout

    def reset(self, start: object, *words: object) -> subprocess.CompletedProcess[str]:
        """Set the group's committed offsets, in the whole topic or in the given partitions."""
        of = map(str, words or [self.path])
        line = [*KAFKAFS, "groups", "reset", "-g", self.group, "--to", str(start), *of]
        return subprocess.run(line, capture_output=True, text=True, check=False)

    def running(self, *options: object, group: bool = True) -> Running:
        return Running(self.command(*options, group=group))

    def position(self, letter: str = "a", *, group: str | None = None) -> int | None:
        """Return the committed offset; None: there is none, or no such group."""
        path = self.mount / ".groups" / (group or self.group) / self.name / str("ab".index(letter))
        try:
            found = path.read_text().partition("\n")[0].split()[1]
        except FileNotFoundError:
            return None
        return None if found == "none" else int(found)

    def commit(self, letter: str, position: int) -> None:
        (self.mount / ".groups" / self.group).mkdir(exist_ok=True)
        path = self.mount / ".groups" / self.group / self.name / str("ab".index(letter))
        path.write_text(f"{position}\n")

    @property
    def claims(self) -> list[list[str]]:
        """Partition, state and process of each claim."""
        path = self.mount / ".groups" / self.group / ".claims"
        rows = path.read_text().splitlines()[1:] if path.exists() else []
        return [[row.split()[number] for number in (1, 2, 4)] for row in rows]


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    with mounted(few_directories(tmp_path_factory.mktemp("mount"))) as started:
        yield started


@pytest.fixture
def topic(mount: Mount) -> Topic:
    """Ten records in each partition."""
    return Topic(mount, 10)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its reading and its writing end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def words(path: Path) -> list[str]:
    """Return the words that a command has written to a file."""
    return path.read_text().split() if path.exists() else []


def is_idle(program: Running) -> bool:
    """Whether a program uses no processor time for a while."""
    before = _ticks(program.pid)
    time.sleep(0.3)
    return _ticks(program.pid) == before


def _ticks(process: int) -> int:
    """Processor time so far, in clock ticks (proc_pid_stat(5))."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
