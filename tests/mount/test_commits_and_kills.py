"""The daemon is killed during commits, again and again: no acknowledged commit is lost.

Shells append lines and commit their offsets. After a kill, the committed offset is at least the
last one whose commit has succeeded. It is at most the last one that the shell has requested, and
not past the end of the log.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, mounted

#: Prints `asked N` before each commit and `done N` after it; ends with 1 when anything fails.
WRITER = """
for ((n = START + 1; ; n++)); do
    echo $n >> orders/$PARTITION || exit 1
    echo asked $n
    echo $n > .groups/$GROUP/orders/$PARTITION || exit 1
    echo done $n
done
"""
PARTITIONS = 3


class Writer:
    """A shell that commits in a partition, for a group of its own."""

    def __init__(self, mount: Mount, partition: int) -> None:
        self.group, self.partition = f"g{partition}", partition
        self.asked = self.done = facts(mount, self.group, partition)["position"]
        self._process = subprocess.Popen(
            ["bash", "-c", WRITER],
            cwd=mount.path,
            env={
                **os.environ,
                "START": str(facts(mount, self.group, partition)["log_end"]),
                "PARTITION": str(partition),
                "GROUP": self.group,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def commits(self, count: int) -> None:
        """Wait until it has made `count` more commits."""
        while count:
            count -= self._read_line().startswith("done")

    def ended(self) -> None:
        """Read the rest of its output. It must have failed."""
        while self._read_line():
            pass
        assert self._process.wait() == 1
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            word, number = line.split()
            setattr(self, word, int(number))
        return line

    def check(self, mount: Mount) -> None:
        found = facts(mount, self.group, self.partition)
        assert self.done <= found["position"] <= self.asked
        assert found["position"] <= found["log_end"]
        assert found["lag"] == found["high_watermark"] - found["position"]


def facts(mount: Mount, group: str, partition: int) -> dict[str, int]:
    """Of a position; 0 is none."""
    text = (mount / f".groups/{group}/orders/{partition}").read_text()
    lines = (line.split() for line in text.splitlines())
    return {line[0]: 0 if line[1] == "none" else int(line[1]) for line in lines if len(line) > 1}


def kill(base: Path, times: int, seed: int) -> None:
    draw = random.Random(seed)
    with mounted(base) as mount:
        mount.topic("orders", PARTITIONS)
        mount.run("mkdir .groups/g{0..2}")
        for _ in range(times):
            writers = [Writer(mount, partition) for partition in range(PARTITIONS)]
            draw.choice(writers).commits(draw.choice((1, 3, 20)))
            for writer in writers:
                # Each has committed: so its group is there after the kill.
                if not writer.done:
                    writer.commits(1)
            mount.kill()
            for writer in writers:
                writer.ended()
            mount.start()
            for writer in writers:
                writer.check(mount)
        names = mount.run("ls .groups").split()
        assert names == [b"g0", b"g1", b"g2"]
        before = mount.run("cat .groups/.lag")
        mount.restart()
        assert mount.run("cat .groups/.lag") == before


def test_four_kills(tmp_path: Path) -> None:
    kill(tmp_path, 4, seed=11)


@pytest.mark.soak
def test_many_kills(tmp_path: Path) -> None:
    kill(tmp_path, 30, seed=12)
