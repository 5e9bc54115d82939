"""kill -9 of the daemon at any moment, during requests that make the kernel wait for it.

Processes append lines, delete records and open `N@-10` until the daemon is killed. After a deletion
of records the kernel looks up names again. During a lookup of `N@-10`, which may wait, the kernel
holds the directory's lock. After the kill every request ends, the daemon's process has ended, and
the mount point is free and can be mounted again. No acknowledged line is lost or duplicated.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, check_data, mounted
from tests.waits import HANG_S

#: EIO: of a request that the kernel was just giving to the killed daemon (`fuse_dev_do_read`).
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
#: The action of each process, and its partition. Records of partition 0 are deleted.
ROLES = (
    *("append 0", "append 0", "append 1", "append 1"),
    *("delete 0", "open 0", "open 0", "open 1"),
)
#: How many of the newest records a deletion leaves.
KEPT = 500


def main(topic: str, role: str, name: str) -> None:
    """Run one process. It prints a byte for each acknowledged line."""
    draw = random.Random(name)
    kind, partition = role.split()
    path = f"{topic}/{partition}"
    try:
        if kind == "append":
            append(path, name)
        while True:
            try:
                if kind == "delete":
                    delete(topic, path)
                else:
                    look(draw.choice((topic, f"{topic}/.kv")), partition, draw)
            except OSError as error:
                # A deletion has rewritten the history of the file meanwhile.
                if error.errno != errno.ESTALE:
                    raise
    except OSError as error:
        if error.errno not in GONE:
            raise


def append(path: str, name: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in itertools.count():
        os.write(fd, b"%s %d %s\n" % (name.encode(), number, b"x" * (number % 200)))
        os.write(1, b".")


def delete(topic: str, path: str) -> None:
    end = int(os.getxattr(path, "user.kafkafs.log_end"))
    with open(f"{topic}/.control/delete-records", "ab", buffering=0) as control:
        control.write(b"0 %d\n" % max(end - KEPT, 0))


def look(directory: str, partition: str, draw: random.Random) -> None:
    for name in (f"{partition}@-{draw.randrange(1, 1000)}", partition):
        fd = os.open(f"{directory}/{name}", os.O_RDONLY)
        try:
            os.pread(fd, 100, 0)
            os.fstat(fd)
        finally:
            os.close(fd)


class Judge:
    """Counts the acknowledged lines of each writer, and checks that the partitions have them."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self.acknowledged: dict[str, tuple[str, int]] = {}

    def kill_beside(self, topic: Path, number: int, seconds: float) -> None:
        """Run one round, up to the kill and the end of all requests."""
        names = [f"{number}.{place}" for place in range(len(ROLES))]
        command = [sys.executable, "-m", "tests.soak.test_kills", str(topic)]
        processes = [
            subprocess.Popen([*command, role, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for role, name in zip(ROLES, names, strict=True)
        ]
        for role, process in zip(ROLES, processes, strict=True):
            if role.startswith("append"):
                assert process.stdout is not None
                assert process.stdout.read(1) == b"."
        time.sleep(seconds)
        assert self._mount.process is not None
        self._mount.process.kill()
        self._mount.process.wait(HANG_S)
        for role, name, process in zip(ROLES, names, processes, strict=True):
            said, wrong = process.communicate(timeout=HANG_S)
            assert (process.returncode, wrong) == (0, b""), f"{role}: {wrong.decode()}"
            if role.startswith("append"):
                # The first byte has been read already.
                self.acknowledged[name] = (role[-1], len(said) + 1)

    def look(self, topic: Path) -> None:
        """Check the lines of each writer: none is missing in the middle or at the end. Without
        deletions, none is missing at the beginning.
        """
        for partition in ("0", "1"):
            content = (topic / partition).read_bytes()
            assert (topic / partition).stat().st_size == len(content)
            found: dict[str, list[int]] = {}
            for line in content.splitlines():
                writer, number, rest = line.split(b" ")
                assert rest == b"x" * (int(number) % 200)
                found.setdefault(writer.decode(), []).append(int(number))
            for name, (where, count) in self.acknowledged.items():
                if where != partition:
                    continue
                numbers = found.get(name, [])
                assert numbers or partition == "0", f"{name} is lost"
                if numbers:
                    assert numbers == list(range(numbers[0], numbers[-1] + 1)), name
                    assert numbers[-1] + 1 >= count, f"{name}: {count} were acknowledged"
                assert partition == "0" or numbers[0] == 0, name


@pytest.mark.soak
def test_a_kill_frees_the_mount(
    tmp_path: Path, soak_s: float, figures: Callable[[str, object], None]
) -> None:
    draw = random.Random(7)
    until = time.monotonic() + soak_s
    kills = 0
    with mounted(tmp_path) as mount:
        topic = mount.topic(partitions=2).parent
        mount.run("echo internal.segment.bytes=20000 >> orders/.config")
        judge = Judge(mount)
        while kills < 3 or time.monotonic() < until:
            judge.kill_beside(topic, kills, draw.uniform(0, 1))
            mount.start()
            judge.look(topic)
            kills += 1
        mount.stop()
    check_data(mount.data)
    figures("kills", kills)
    figures("acknowledged lines", sum(count for _, count in judge.acknowledged.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
