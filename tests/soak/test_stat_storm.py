"""No file size ever decreases: processes get sizes by name and by descriptor, while others append.

A process that gets a size (from stat, fstat or the end of a read) writes it to shared memory. A
process that asks later must not get a smaller size. Each process has its own slot for each file,
whose value only rises, so no process waits for another.
"""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.mount.mounting import mounted

FILES = ("0", ".kv/0", ".jsonl/0", ".batches/0", ".follow/0", ".raw/0/00000000000000000000.log")
#: The action of each process. Those with `one` use only the first of FILES.
EVERYBODY = (
    "names",
    "names",
    "descriptors",
    "descriptors",
    "reads",
    "lines",
    "echoes",
    "json",
    "halves",
)
#: All use one file, which writers open for each append: the kernel may cache its attributes.
ONE_FILE = ("one names", "one names", "one descriptors", "one reads", "one appends", "one echoes")
#: Settings that keep all in one segment.
SETTINGS = "log.segment.bytes=2147483647\nlog.retention.ms=-1\n"
FIELD = 8


class Floors:
    """The largest size that each process got of each file, in shared memory."""

    def __init__(self, path: Path, process: int) -> None:
        with open(path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._process = process

    def floor(self, file: int) -> int:
        return max(self._words[file :: len(FILES)])

    def told(self, file: int, size: int) -> None:
        index = self._process * len(FILES) + file
        self._words[index] = max(self._words[index], size)


class Asker:
    """Asks for sizes until the time is over, and counts the questions."""

    def __init__(self, topic: Path, floors: Floors) -> None:
        self._topic = topic
        self.floors = floors
        self.asked = 0

    def check(self, file: int, ask: Callable[[], int]) -> None:
        floor = self.floors.floor(file)
        size = ask()
        if size < floor:
            raise AssertionError(f"{FILES[file]}: {size} after {floor}")
        self.floors.told(file, size)
        self.asked += 1

    def by_name(self, file: int) -> None:
        self.check(file, lambda: os.stat(self._topic / FILES[file]).st_size)

    def by_descriptor(self, file: int, descriptor: int) -> None:
        self.check(file, lambda: os.fstat(descriptor).st_size)


def storm(topic: Path, role: str, seconds: float, asker: Asker) -> None:
    draw = random.Random(role)
    files = 1 if role.startswith("one ") else len(FILES)
    role = role.removeprefix("one ")
    until = time.monotonic() + seconds
    descriptors = [os.open(topic / name, os.O_RDONLY) for name in FILES]
    line = b"%d\n" % draw.randrange(10**9)
    writing = os.open(topic / "0", os.O_WRONLY | os.O_APPEND)
    json = os.open(topic / ".jsonl/0", os.O_WRONLY | os.O_APPEND)
    while time.monotonic() < until:
        for _ in range(50):
            file = draw.randrange(files)
            if role == "names":
                asker.by_name(file)
            elif role == "descriptors":
                asker.by_descriptor(file, descriptors[file])
            elif role == "reads":
                start = asker.floors.floor(0)
                asker.check(0, lambda: start + len(os.pread(descriptors[0], 4096, start)))  # noqa: B023
                asker.by_descriptor(0, descriptors[0])
            elif role == "lines":
                os.write(writing, line)
                asker.by_descriptor(0, writing)
            elif role == "appends":
                with open(topic / "0", "ab", buffering=0) as echo:
                    echo.write(line)
            elif role == "echoes":
                with open(topic / "0", "ab", buffering=0) as echo:
                    echo.write(line)
                asker.by_name(0)
            elif role == "json":
                # Longer than what is shown of it: the kernel takes the file to be too large.
                os.write(json, b'{"value":"x"%b}\n' % (b" " * 200))
                asker.by_descriptor(2, json)
            else:
                with open(topic / "0", "ab", buffering=0) as half:
                    half.write(b"half")
                    asker.by_name(0)
                    half.write(b" and half\n")
                    asker.by_descriptor(0, half.fileno())


@pytest.mark.soak
@pytest.mark.parametrize("roles", [EVERYBODY, ONE_FILE], ids=["everybody", "one-file"])
def test_sizes_never_go_backwards(
    tmp_path: Path, roles: Sequence[str], soak_s: float, figures: Callable[[str, object], None]
) -> None:
    floors = tmp_path / "floors"
    floors.write_bytes(bytes(FIELD * len(FILES) * len(roles)))
    asked = 0
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kafkafs.properties").write_text(SETTINGS)
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        command = [sys.executable, "-m", "tests.soak.test_stat_storm"]
        processes = [
            subprocess.Popen(
                [*command, str(orders.parent), role, str(number), str(soak_s / 2), str(floors)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, role in enumerate(roles)
        ]
        said = [process.communicate() for process in processes]
        faults = [f"{role}: {err}" for role, (_, err) in zip(roles, said, strict=True) if err]
        assert not faults, "\n".join(faults)
        asked = sum(int(out) for out, _ in said)
        size = orders.stat().st_size
        assert size == len(orders.read_bytes())
    assert asked > 1000
    figures("sizes asked for beside writers", asked)
    figures("bytes appended meanwhile", size)


def main() -> None:
    path, role, number, seconds, floors = sys.argv[1:]
    asker = Asker(Path(path), Floors(Path(floors), int(number)))
    storm(Path(path), role, float(seconds), asker)
    print(asker.asked)


if __name__ == "__main__":
    main()
