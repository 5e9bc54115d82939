"""A read-only mount beside a broker, through the kernel: what it does to its files shows."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
from pathlib import Path

from storage import LogManager
from tests.mount.beside import Beside
from tests.mount.contract.test_caching import Metrics
from tests.mount.mounting import fails, mounted
from tests.mount.programs import Running
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.logs import append

FAST = ["--sleep-interval=0.02"]
BY_NAME = ["-F", "--max-unchanged-stats=1", *FAST]


def test_a_tail_shows_each_record_once(beside: Beside) -> None:
    beside.start()
    partition, written = beside.partition, b"zero\n"
    with Running(["tail", "-f", "--lines=+1", *FAST, beside.file]) as tail:
        for number in range(30):
            value = b"%d" % number * 100
            partition.append(value)
            written += value + b"\n"
            if number % 3 == 2:
                partition.roll()
            if number % 10 == 6:
                partition.clean(2, lambda offset, value: offset % 2 == 0)
            if number % 10 == 9:
                partition.delete_head(1)
                partition.remove_deleted()
            assert tail.read_until(value + b"\n") == written
        assert tail.errors() == ""
    assert beside.file.read_bytes() == partition.text()


def test_a_tail_by_name_prints_what_is_left_once_more(beside: Beside) -> None:
    beside.partition.fill()
    beside.start()
    before = beside.partition.text()
    with Running(["tail", "--lines=+1", *BY_NAME, beside.file]) as tail:
        assert tail.read_until(before) == before
        beside.partition.delete_head(2)
        left = beside.partition.text()
        assert tail.read_until(b"c3\n" + left) == before + left
        assert "has been replaced" in tail.errors()


def read_elsewhere(path: Path) -> bytes:
    """The bytes that another process reads."""
    return subprocess.run(["cat", path], check=True, capture_output=True).stdout


def test_a_snapshot_keeps_its_pages_beside_a_broker(beside: Beside) -> None:
    partition = beside.partition
    for number in range(100):
        partition.append(*[b"%d %0500d" % (number, line) for line in range(10)])
    beside.start()
    snapshot = beside.path / "t" / ".snapshot" / "0"
    text = partition.text()
    with open(snapshot, "rb", buffering=0) as file:
        assert file.read() == text
        asked = Metrics(beside)
        partition.append(b"more")
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        while part := file.read(4096):
            assert len(part) <= 4096
        counted = asked()
        # That of the metrics, and no attributes for each read.
        assert counted["read"] <= 2
        assert counted["getattr"] <= 20
        assert read_elsewhere(snapshot) == text + b"more\n" == beside.file.read_bytes()
        assert os.fstat(file.fileno()).st_size == len(text)
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
            assert shared[:] == text


def test_a_snapshot_of_what_a_broker_cuts(beside: Beside) -> None:
    """The next one is another file. An open one has no other bytes than it had."""
    partition = beside.partition
    partition.append(*[b"%0500d" % number for number in range(1000)])
    starts = partition.next_offset
    partition.append(*[b"lost %0500d" % number for number in range(1000)])
    beside.start()
    snapshot = beside.path / "t" / ".snapshot" / "0"
    text = partition.text()
    with open(snapshot, "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 4096, 0) == text[:4096]
        inode = os.fstat(file.fileno()).st_ino
        partition.truncate(starts)
        partition.append(*[b"other %0500d" % number for number in range(1000)])
        assert read_elsewhere(snapshot) == partition.text()
        assert os.pread(file.fileno(), 4096, 0) == text[:4096]
        fails(errno.ESTALE, os.pread, file.fileno(), 4096, len(text) - 5000)
        assert os.fstat(file.fileno()).st_ino == inode
        assert snapshot.stat().st_ino != inode


def test_a_mirror_that_runs_only_for_a_moment(tmp_path: Path) -> None:
    """The mount need not meet its process to show what that has written."""
    data = tmp_path / "data"
    data.mkdir()
    make_mirror(data)
    with LogManager.open(str(data), mirrors=True) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"one")
    with mounted(tmp_path, "ro") as mount:
        assert (mount / "t/0").read_bytes() == b"one\n"
        with LogManager.open(str(data), mirrors=True) as manager:
            append(manager.log("t", 0), b"two")
        assert (mount / "t/0").read_bytes() == b"one\ntwo\n"
