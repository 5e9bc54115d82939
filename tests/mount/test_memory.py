"""Users cannot make the daemon hold more memory than its limits: its resident set shows it."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from pathlib import Path

import pytest

from storage import Record, encode
from storage.record.plain import recompress
from tests.mount.contract.writing import APPEND
from tests.mount.control import do
from tests.mount.mounting import Mount, fails, mounted
from tests.waits import until

pytestmark = pytest.mark.soak

MIB = 1 << 20
ZSTD = 4
MEMORY = 64 * MIB
#: The bound of one kind of memory: the option, one batch in plain form, and 16 MiB.
BOUND = MEMORY + 256 * MIB + 16 * MIB


def peak_bytes(pid: int) -> int:
    """The largest resident set that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def resident_bytes(pid: int) -> int:
    """The resident set of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def metric(mount: Mount, name: str) -> float:
    lines = (mount.path / ".kafkafs/metrics").read_text().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def faults(pid: int) -> int:
    """How many pages a process has got from the kernel, which has zeroed them."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_a_large_request_gets_the_memory_of_the_one_before(mount: Mount) -> None:
    """The daemon keeps the memory that a request has freed.

    Before, it returned the memory to the kernel and got it again page by page: some 700 page faults
    for each MiB written.
    """
    # Its end is the beginning of a line.
    piece = ((b"x" * 99 + b"\n") * (MIB // 100 + 1))[:MIB]
    partition = mount.topic("t")

    def append(count: int) -> None:
        with partition.open("ab", buffering=0) as file:
            for _ in range(count):
                assert file.write(piece) == MIB

    def read() -> None:
        with partition.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass

    append(16)
    read()
    before = faults(mount.pid)
    append(32)
    appended = faults(mount.pid)
    assert appended - before < 32 * 100
    read()
    assert faults(mount.pid) - appended < 48 * 100


def test_many_open_snapshots_share_what_they_keep(mount: Mount) -> None:
    """When the past changes, each open file keeps the last megabyte of what it has shown before."""
    partition = mount.topic("t")
    with partition.open("ab", buffering=0) as file:
        for _ in range(4):
            file.write((b"x" * 99 + b"\n") * (MIB // 100))
        fds = []
        for _ in range(100):
            file.write(b"one more\n")
            fds.append(os.open(mount / "t/.snapshot/0", os.O_RDONLY))
        before = peak_bytes(mount.pid)
        do(partition, "roll", "run")
        file.write(b"behind\n")
        with (mount / "t/.config").open("a") as settings:
            settings.write("file.delete.delay.ms=0\nretention.bytes=1\n")
        do(partition, "retention", "run")
    until(lambda: not list((mount.data / "t-0").glob("*.deleted")))
    # These bytes are in memory, since the files are deleted.
    last = [os.pread(fd, 9, os.fstat(fd).st_size - 9) for fd in fds]
    assert last == [b"one more\n"] * len(fds)
    assert peak_bytes(mount.pid) < before + 30 * MIB
    for fd in fds:
        os.close(fd)


def test_one_record_of_kilobytes(mount: Mount) -> None:
    """8 KB of zstd that are 250 MiB: they are there once, whoever appends or reads them."""
    batch = recompress(encode([Record(0, 0, 0, None, b"x" * (250 * MIB))]), ZSTD)
    partition = mount.topic("t")
    views = partition.parent / ".jsonl/0", partition.parent / ".kv/0"
    idle = resident_bytes(mount.pid)
    with (partition.parent / ".batches/0").open("ab", buffering=0) as batches:
        assert batches.write(batch) == len(batch)
    assert peak_bytes(mount.pid) < idle + BOUND
    for view in views:
        with view.open("rb", buffering=0) as file:
            for _ in range(20):
                assert len(file.read(MIB)) == MIB
            size = os.fstat(file.fileno()).st_size
            assert os.pread(file.fileno(), 100, size - 10).endswith(b"\n")
    assert peak_bytes(mount.pid) < idle + BOUND
    until(lambda: resident_bytes(mount.pid) < idle + 16 * MIB)


@pytest.mark.parametrize("path", ["0", ".jsonl/0", ".batches/0", ".append"])
def test_what_is_unfinished_takes_its_bytes_and_is_given_back(tmp_path: Path, path: str) -> None:
    """Eight files take 50 MiB together, which grow by turns: no holes are left between them."""
    chunk = b"x" * (128 << 10)
    # The beginning of a batch of 60 MiB.
    head = bytes(8) + (60 * MIB).to_bytes(4, "big") + bytes(4) + b"\2" + bytes(44)
    with mounted(tmp_path, f"memory={MEMORY}") as mount:
        topic = mount.topic("t").parent
        mount.run('echo max.message.bytes=64MiB >> "$T/.config"', T=topic)
        idle = resident_bytes(mount.pid)
        handles = [os.open(topic / path, APPEND) for _ in range(8)]
        for turn in range(50):
            for fd in handles:
                begin = head if path == ".batches/0" and not turn else b""
                assert os.write(fd, begin + chunk) == len(begin + chunk)
        assert metric(mount, "kafkafs_unfinished_bytes") >= 50 * MIB
        assert resident_bytes(mount.pid) < idle + MEMORY + 16 * MIB
        for fd in handles:
            # Closing refuses a line that is no JSON, and a part of a batch.
            with contextlib.suppress(OSError):
                os.close(fd)
        until(lambda: resident_bytes(mount.pid) < idle + 16 * MIB)


def test_a_batch_that_is_refused_when_it_ends(mount: Mount) -> None:
    """Its bytes are copied to be checked. No error keeps a copy, although the file stays open."""
    size = 50 * MIB
    topic = mount.topic("t").parent
    mount.run('echo max.message.bytes=64MiB >> "$T/.config"', T=topic)
    batch = bytearray(encode([Record(0, 0, 0, None, b"x" * size)]))
    batch[-1] ^= 1  # its CRC is wrong
    idle = resident_bytes(mount.pid)
    with (topic / ".batches/0").open("ab", buffering=0) as batches:
        view = memoryview(batch)
        at = 0
        while at < len(batch) - 1000:
            at += batches.write(view[at : min(at + MIB, len(batch) - 1000)])
        fails(errno.EINVAL, batches.write, bytes(view[at:]) + bytes(MIB // 2))
        assert peak_bytes(mount.pid) < idle + BOUND
        until(lambda: resident_bytes(mount.pid) < idle + 16 * MIB)


def test_large_batches_that_end_at_the_same_moment(tmp_path: Path) -> None:
    """One of them at a time is in memory several times."""
    size, files, last = 20 * MIB, 6, 1000
    batch = encode([Record(0, 0, 0, None, b"x" * size)])
    with mounted(tmp_path, f"memory={2 * files * size}") as mount:
        topic = mount.topic("t", partitions=files).parent
        mount.run('echo max.message.bytes=64MiB >> "$T/.config"', T=topic)
        idle = resident_bytes(mount.pid)
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context((topic / f".batches/{number}").open("ab", buffering=0))
                for number in range(files)
            ]
            for file in opened:
                at = 0
                while at < len(batch) - last:
                    at += file.write(batch[at : min(at + MIB, len(batch) - last)])
            ends = [threading.Thread(target=file.write, args=(batch[-last:],)) for file in opened]
            for end in ends:
                end.start()
            for end in ends:
                end.join()
        assert all((topic / f".batches/{number}").stat().st_size > size for number in range(files))
        assert peak_bytes(mount.pid) < idle + (files + 3) * size + 16 * MIB


def test_claims_of_names_count(tmp_path: Path) -> None:
    """Consumers claim topics that do not exist."""
    with mounted(tmp_path, "memory=32M") as mount:
        group = mount / ".groups/g"
        group.mkdir()
        idle = resident_bytes(mount.pid)
        name = "x" * 200
        handles = []
        for consumer in range(9):
            handles.append(os.open(group / ".claims", os.O_RDWR))
            lines = [f"claim {name}.{consumer}.{number}\n" for number in range(4096)]
            parts = ["".join(lines[at : at + 1024]).encode() for at in range(0, 4096, 1024)]
            if consumer < 8:
                for part in parts:
                    assert os.write(handles[-1], part) == len(part)
            else:
                fails(errno.ENOMEM, os.write, handles[-1], parts[0])
        assert metric(mount, "kafkafs_unfinished_bytes") == 32 * MIB
        assert resident_bytes(mount.pid) < idle + (32 + 16) * MIB
        for fd in handles:
            os.close(fd)
        until(lambda: metric(mount, "kafkafs_unfinished_bytes") == 0)
