"""A disk that is filled and emptied again and again, in every way that a user would try.

Lines are appended until the disk takes no more; then something makes room, or the daemon is stopped
or killed. After each step the partition holds every line that was acknowledged, from its log start
on, and in the end appends work again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.file_systems import file_system, fill_bytes, fill_inodes
from tests.mount.mounting import Mount, check_data

SIZE = 48 << 20
INODES = 300
LINE = "x" * 4000
STEP_FILES = 5
"""So many files of the reserve one step may give up."""
SETTINGS = """\
log.initial.task.delay.ms=86400000
log.segment.delete.delay.ms=0
"""


class Judge:
    """One disk, one mount, and the lines that are to be there: from `start` to `end`, exclusive."""

    def __init__(self, disk: Path, mount: Mount) -> None:
        self.disk = disk
        self.mount = mount
        self.start = 0
        self.end = 0
        self.did: Counter[str] = Counter()

    def partition(self) -> Path:
        return self.mount / "orders/0"

    def append(self, path: Path, text: str) -> bool:
        """Whether the disk took it."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            return os.write(fd, text.encode()) == len(text)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        finally:
            os.close(fd)

    def append_until_full(self, most: int) -> None:
        for _ in range(most):
            if not self.append(self.partition(), f"{self.end} {LINE}\n"):
                self.did["refused appends"] += 1
                return
            self.end += 1
            self.did["lines"] += 1

    def fill(self, random_: random.Random) -> None:
        fill = random_.choice([fill_bytes, fill_inodes])
        if self.has_reserve():
            fill(self.disk)
            self.did["fillings"] += 1

    def has_reserve(self) -> bool:
        """Whether the reserve is large enough for the next step; if not, free the disk. A filling
        takes for ever what was given up.
        """
        has_reserve = len(list(self.mount.data.glob("kafkafs.reserve.*"))) >= STEP_FILES
        if not has_reserve:
            self.free()
        return has_reserve

    def check(self) -> None:
        lines = self.partition().read_text().splitlines()
        assert [int(line.split()[0]) for line in lines] == list(range(self.start, self.end))

    # -- ways out ------------------------------------------------------------------------------

    def retention(self) -> None:
        self.has_reserve()
        assert self.append(self.mount / "orders/.config", "retention.bytes=1048576\n")
        assert self.append(self.mount / "orders/.control/retention", "run\n")
        assert self.append(self.mount / "orders/.config", "retention.bytes=\n")
        first = self.partition().read_text().split(maxsplit=1)
        start = int(first[0]) if first else self.end
        # As many lines of a megabyte as there are, and not a segment more.
        kept = (self.end - start) * len(LINE)
        assert start == self.start or 1_000_000 < kept < 1_600_000
        self.start = start

    def delete_records(self) -> None:
        self.has_reserve()
        assert self.append(self.mount / "orders/.control/delete-records", f"0 {self.end}\n")
        self.start = self.end
        assert self.append(self.mount / "orders/.control/retention", "run\n")

    def delete_topic(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.mount / "other").rmdir()

    def stop(self) -> None:
        self.mount.stop()
        assert (self.mount.data / ".kafka_cleanshutdown").exists()
        self.mount.start()

    def kill(self) -> None:
        self.mount.kill()
        self.mount.start()

    def free(self) -> None:
        os.truncate(self.disk / "filler", 0)
        for file in (self.disk / "fillers").iterdir():
            file.unlink()

    def other_topic(self) -> None:
        """Something to delete, where there is room for it."""
        try:
            (self.mount / "other").mkdir()
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return
        for _ in range(100):
            if not self.append(self.mount / "other/0", f"{LINE}\n"):
                return


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "overlay"])
def test_every_way_out_of_a_full_disk(
    kind: str, tmp_path: Path, soak_s: float, figures: Callable[[str, object], None]
) -> None:
    seed = random.randrange(1 << 32)
    figures("seed", seed)
    random_ = random.Random(seed)
    with file_system(kind, tmp_path, SIZE, INODES) as disk:
        mount = Mount(tmp_path)
        mount.data.rmdir()
        mount.data = disk / "data"
        mount.data.mkdir()
        # On a full disk there is no room for them.
        (disk / "filler").touch()
        (disk / "fillers").mkdir()
        (mount.data / "kafkafs.properties").write_text(SETTINGS)
        judge = Judge(disk, mount)
        steps = [
            *(judge.retention, judge.delete_records, judge.delete_topic),
            *(judge.stop, judge.kill, judge.free, judge.other_topic),
        ]
        try:
            mount.start()
            mount.topic("orders")
            judge.append(mount / "orders/.config", "internal.segment.bytes=262144\n")
            # Makes the files that a directory has only once: a step has no room for all of them.
            judge.append_until_full(1)
            judge.delete_records()
            end = time.monotonic() + soak_s / 3
            # Also where one step takes all the time.
            while time.monotonic() < end or not judge.did["refused appends"]:
                judge.append_until_full(random_.randrange(200))
                if random_.random() < 0.7:
                    judge.fill(random_)
                judge.append_until_full(200)
                step = random_.choice(steps)
                step()
                judge.did[step.__name__] += 1
                judge.check()
            judge.free()
            judge.delete_records()
            mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")
            mount.stop()
        finally:
            mount.end()
        check_data(mount.data)
    for name, count in sorted(judge.did.items()):
        figures(name, count)
