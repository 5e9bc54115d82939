"""A failed fsync, through the mount: what was shown stays, and appends go on by themselves."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.mount.mounting import check_data, fails, kafkafs
from tests.mount.steering import SteeredMount


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[SteeredMount]:
    mount = SteeredMount(tmp_path)
    try:
        mount.start()
        yield mount
    finally:
        mount.end()


def append(path: Path, text: str) -> None:
    """In one write."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        assert os.write(fd, text.encode()) == len(text)
    finally:
        os.close(fd)


def append_as_soon_as_may_be(path: Path, text: str) -> None:
    """Nothing is taken until all is on the disk."""
    while True:
        try:
            return append(path, text)
        except OSError as error:
            if error.errno != errno.EIO:
                raise


def sync(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def tail(path: Path) -> Iterator[IO[bytes]]:
    """Yield the output of `tail -f`, from the first line on."""
    process = subprocess.Popen(["tail", "-f", "-n", "+1", str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("lost", [False, True])
def test_beside_readers(mount: SteeredMount, lost: bool) -> None:
    """Of three lines one is durable; where the page of the second is dropped, only that is lost."""
    path = mount.topic()
    for number in range(3):
        append(path, f"{number}\n")
        if not number:
            sync(path)
    log = mount.data / "orders-0" / f"{0:020d}.log"
    before = log.stat()
    with path.open("rb", buffering=0) as reader, tail(path) as said:
        fd, inode = reader.fileno(), path.stat().st_ino
        assert [said.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        with mount.held("fdatasync", ".log.tmp") as rescue:
            if lost:
                data = log.read_bytes()
                at = len(data) * 2 // 3 - 5
                with log.open("r+b") as file:
                    file.seek(at)
                    file.write(b"?????")
            mount.daemon.fail("fdatasync", ".log", "EIO")
            fails(errno.EIO, sync, path)
            rescue.wait()
            fails(errno.EIO, append, path, "refused\n")
            assert (os.pread(fd, 2, 0), os.pread(fd, 2, 4)) == (b"0\n", b"2\n")
            assert os.fstat(fd).st_size == 6
        append_as_soon_as_may_be(path, "3\n")
        assert said.readline() == b"3\n"
        assert log.stat().st_ino != before.st_ino
        for stat in (os.fstat(fd), path.stat()):
            assert (stat.st_ino, stat.st_size) == (inode, 8)
        assert (os.pread(fd, 2, 0), os.pread(fd, 10, 4)) == (b"0\n", b"2\n3\n")
        if lost:
            fails(errno.EIO, os.pread, fd, 2, 2)
            assert "offsets 1 to 1 are damaged" in mount.events()
        else:
            assert os.pread(fd, 10, 0) == b"0\n1\n2\n3\n"
        sync(path)
    check_after_a_kill(mount, lost=lost)


def check_after_a_kill(mount: SteeredMount, *, lost: bool) -> None:
    mount.kill()
    mount.start()
    done = mount.sh("cat orders/0")
    assert done.stdout == (b"0\n" if lost else b"0\n1\n2\n3\n")
    assert (done.returncode == 0) == (not lost)
    assert mount.run("cat orders/0@2") == b"2\n3\n"
    mount.stop()
    assert not list((mount.data / "orders-0").glob("*.tmp"))
    if lost:
        assert kafkafs("verify", mount.data).returncode == 1
    else:
        check_data(mount.data)
