"""Appending to a topic: `.append`, `.kv/append` and `.jsonl/append` of the contract."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import opened
from tests.mount.mounting import Mount, fails

PARTITIONS = 4
WAYS = [".append", ".kv/append", ".jsonl/append"]


@pytest.fixture
def topic(mount: Mount) -> Path:
    """The directory of a new topic with four partitions."""
    return new_topic(mount, PARTITIONS).parent


def shown(topic: Path, view: str = ".") -> list[bytes]:
    """The contents of each partition."""
    names = sorted((name for name in os.listdir(topic) if name.isdecimal()), key=int)
    return [(topic / view / name).read_bytes() for name in names]


def lines_of(topic: Path) -> list[bytes]:
    return [line for part in shown(topic) for line in part.splitlines()]


# -- the files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_it_is_write_only(mount: Mount, topic: Path, way: str) -> None:
    """`.append` write-only … (.kv/append and .jsonl/append: the same with keys …)"""
    path = topic / way
    found = path.stat()
    assert stat.S_ISREG(found.st_mode)
    assert found.st_size == 0
    assert stat.S_IMODE(found.st_mode) == stat.S_IMODE(topic.stat().st_mode) & 0o222
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND):
        fails(errno.EACCES, os.open, path, flags)
    with opened(path) as fd:
        fails(errno.EBADF, os.read, fd, 1)
    fails(errno.EPERM, os.chmod, path, 0o600)
    fails(errno.EPERM, os.unlink, path)
    fails(errno.EPERM, os.rename, path, topic / "5")
    mount.run('touch "$F"', F=path)
    assert path.stat().st_size == 0


def test_both_ways_of_redirection_append(mount: Mount, topic: Path) -> None:
    """`>` has nothing to cut there: both do, and so does a pipe into `tee`, `dd` or `cp`."""
    mount.run(
        """
        echo one > "$T/.append"; echo two >> "$T/.append"; echo three | tee "$T/.append" > /dev/null
        echo four | dd of="$T/.append" status=none; echo five > "$D/five"; cp "$D/five" "$T/.append"
        truncate -s 0 "$T/.append"; printf six | tee -a "$T/.append" > /dev/null
        """,
        T=topic,
        D=mount.path.parent,
    )
    assert sorted(lines_of(topic)) == sorted(b"one two three four five six".split())
    assert (topic / ".append").stat().st_size == 0


@pytest.mark.parametrize("size", [1000, 4096, 4097, 8193])
def test_without_o_append_it_is_written_in_order(mount: Mount, topic: Path, size: int) -> None:
    """… as by a shell's `>`. posix_fallocate writes zeros at places, the first one perhaps at 0."""
    for way in WAYS:
        with opened(topic / way, os.O_WRONLY) as fd:
            fails(errno.EPERM, os.posix_fallocate, fd, 0, size)
        with opened(topic / way, os.O_WRONLY) as fd:
            fails(errno.EPERM, os.pwrite, fd, b"k\tv\n", 1)
    assert f"{topic.name}/.append" in mount.events()
    assert shown(topic) == [b""] * PARTITIONS
    with opened(topic / ".append", os.O_WRONLY) as fd:
        os.write(fd, b"one\ntw")
        fails(errno.EPERM, os.pwrite, fd, b"again\n", 0)
        os.write(fd, b"o\n")
    assert sorted(b"".join(shown(topic)).splitlines()) == [b"one", b"two"]
    fresh = new_topic(mount)
    with opened(fresh, os.O_WRONLY) as fd:
        fails(errno.EPERM, os.posix_fallocate, fd, 0, size)
    assert fresh.read_bytes() == b""
