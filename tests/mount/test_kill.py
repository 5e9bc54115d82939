"""The daemon is killed under load, again and again: each acknowledged record is there once.

In each round the daemon recovers (sometimes the recovery is killed too), and the test reads the
whole file. Then four processes write across rolls, the test kills the daemon at some moment, and
counts the acknowledged lines of each process.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import subprocess
from pathlib import Path

import pytest

from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.log_check import check
from tests.mount.line_writer import Writers, lines_of
from tests.mount.mounting import Mount, mounted
from tests.mount.test_many_writers import by_writer
from tests.storage.logs import batch

SEGMENT_BYTES = 20_000
# The last one waits for the disk with each write.
FLAGS = [0, 0, 0, os.O_DSYNC]
GONE = {
    "Transport endpoint is not connected",
    "Software caused connection abort",
    # Of a request that the kernel was just giving to the killed daemon (`fuse_dev_do_read`).
    "Input/output error",
}


def acknowledged_lines(name: str, size: int) -> list[bytes]:
    """The lines that are complete in the first `size` bytes of what a writer has to write."""
    lines: list[bytes] = []
    for line in lines_of(name):
        size -= len(line) + 1
        if size < 0:
            return lines
        lines.append(line)
    raise AssertionError("a writer's lines have no end")


class KilledMount:
    """A mount, and what its file must hold after all that has happened to it."""

    def __init__(self, mount: Mount, draw: random.Random) -> None:
        self._mount = mount
        self._draw = draw
        self._lines: dict[str, list[bytes]] = {}
        self.acknowledged = 0

    def write_and_kill(self, orders: Path, number: int) -> None:
        """Kill it at some moment while it is written to."""
        names = [f"{number}.{writer}" for writer in range(len(FLAGS))]
        with Writers(orders, names, 0, FLAGS) as writers:
            writers.go()
            writers.wait(self._draw.choice((1, 100, 400, 1000)) + self._draw.randrange(50))
            # A report comes between two requests of its writer. Nothing tells of what lies
            # between two reports, so that some time passes here: up to a few requests' worth.
            select.select([], [], [], self._draw.uniform(0, 0.004))
            self._mount.kill()
            writers.wait(None)
            for name, (status, words) in writers.ends().items():
                assert status == 1
                assert words.strip().removeprefix(f"{name}: ") in GONE
        for name, size in writers.written.items():
            self._lines[name] = acknowledged_lines(name, size)
            self.acknowledged += len(self._lines[name])

    def kill_while_it_starts(self) -> None:
        """Kill it at some moment between its start and its first answer."""
        command = [*KAFKAFS, "mount", str(self._mount.data), str(self._mount.path), "-f"]
        starting = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        select.select([], [], [], self._draw.uniform(0, 0.2))
        starting.kill()
        starting.wait()

    def look(self, orders: Path) -> None:
        """Every acknowledged line is there once, in order; of the others a beginning, whole.

        What was found of those is part of the log from now on, and must stay.
        """
        content = orders.read_bytes()
        assert orders.stat().st_size == len(content)
        found = by_writer(content)
        assert found.keys() <= self._lines.keys()
        for name, lines in self._lines.items():
            there = found.get(name, [])
            assert len(there) >= len(lines), name
            assert there == list(itertools.islice(lines_of(name), len(there))), name
            self._lines[name] = there
        with LogManager.open(str(self._mount.data), read_only=True) as manager:
            faults = check(manager)
        assert faults == []


def kill(base: Path, times: int, seed: int) -> None:
    draw = random.Random(seed)
    with mounted(base) as mount:
        orders = mount.topic()
        mount.run('echo "internal.segment.bytes=$BYTES" >> orders/.config', BYTES=SEGMENT_BYTES)
        killed = KilledMount(mount, draw)
        for number in range(times):
            killed.write_and_kill(orders, number)
            if number % 3 == 1:
                killed.kill_while_it_starts()
            mount.start()
            killed.look(orders)
        assert killed.acknowledged > 100 * times
        mount.restart()
        killed.look(orders)
        segments = mount.run("ls orders/.raw/0").decode().count(".log\n")
        assert segments > times


def test_three_kills(tmp_path: Path) -> None:
    kill(tmp_path, 3, seed=4)


@pytest.mark.parametrize("deleted", [False, True])
def test_who_follows_goes_on_after_a_kill(tmp_path: Path, deleted: bool) -> None:
    """The inode and the positions stay, also where the kill fell into a write, and where all that
    had been shown was deleted before.
    """
    with mounted(tmp_path) as mount:
        mount.topic()
        follow = mount / "orders" / ".follow" / "0"
        mount.run("seq 1000 1099 >> orders/0")
        assert follow.read_bytes().split() == [b"%d" % n for n in range(1000, 1100)]
        inode = follow.stat().st_ino
        if deleted:
            mount.run("echo 0 100 > orders/.control/delete-records")
            mount.run("echo 0 > orders/.control/roll")
        mount.run("seq 1100 1199 >> orders/0")
        mount.kill()
        log = sorted((mount.data / "orders-0").glob("*.log"))[-1]
        with log.open("ab") as file:
            file.write(batch([b"never acknowledged"] * 1000)[:9000])
        mount.start()
        assert follow.stat().st_ino == inode
        assert follow.stat().st_size == 1000
        with follow.open("rb", buffering=0) as file:
            file.seek(500)
            assert file.read(1000).split() == [b"%d" % n for n in range(1100, 1200)]


@pytest.mark.soak
def test_twelve_kills(tmp_path: Path) -> None:
    kill(tmp_path, 12, seed=20)
