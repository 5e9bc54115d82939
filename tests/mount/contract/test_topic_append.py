"""Appending to a topic: `.append`, `.kv/append` and `.jsonl/append` of the contract."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.contract.test_appending import (
    flush_only_when_asked,
    opened_longer_than_mounted,
)
from tests.mount.contract.writing import APPEND, append, offsets, opened, write_all
from tests.mount.mounting import Mount, fails
from tests.murmur2 import partition_of

PARTITIONS = 4
WAYS = [".append", ".kv/append", ".jsonl/append"]


@pytest.fixture
def topic(mount: Mount) -> Path:
    """The directory of a new topic with four partitions."""
    return new_topic(mount, PARTITIONS).parent


def owner(key: bytes, partitions: int = PARTITIONS) -> int:
    """By Kafka's rule: toPositive(murmur2(key)) % partitions."""
    return partition_of(key, partitions)


def key_of(number: int) -> bytes:
    """A key of this partition."""
    return next(key for key in (b"key%d" % n for n in range(1000)) if owner(key) == number)


def shown(topic: Path, view: str = ".") -> list[bytes]:
    """The contents of each partition."""
    names = sorted((name for name in os.listdir(topic) if name.isdecimal()), key=int)
    return [(topic / view / name).read_bytes() for name in names]


def lines_of(topic: Path) -> list[bytes]:
    return [line for part in shown(topic) for line in part.splitlines()]


EVERYWHERE = b"".join(key_of(number) + b"\tv%d\n" % number for number in range(PARTITIONS))


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


# -- where records go ----------------------------------------------------------------------------


def test_a_large_write(topic: Path) -> None:
    """One that arrives in pieces: nothing is lost or cut, whatever the line that it is cut in."""
    rows = [(b"key%d" % (n % 1000), b"%d %s" % (n, b"x" * (n % 300))) for n in range(12_000)]
    with opened(topic / ".kv" / "append") as fd:
        write_all(fd, b"".join(key + b"\t" + value + b"\n" for key, value in rows))
    for number, text in enumerate(shown(topic)):
        assert text.splitlines() == [value for key, value in rows if owner(key) == number]


# -- unfinished lines ----------------------------------------------------------------------------


def test_who_looks_after_the_release_sees_it(mount: Mount, topic: Path) -> None:
    """… so that `printf n >> p; tail -n1 p` sees it: in whichever partition it is."""
    for number in range(PARTITIONS):
        (topic / str(number)).stat()
    for number in range(20):
        script = 'printf "$K\\t$N" >> "$T/.kv/append"; stat -c %s "$T/$P"; tail -n1 "$T/$P"'
        partition = number % PARTITIONS
        said = mount.run(script, T=topic, K=key_of(partition).decode(), N=number, P=partition)
        size, line = said.split()
        assert line == b"%d" % number
        assert int(size) == (topic / str(partition)).stat().st_size
        assert int(size) > len(line)


# -- who else is there ---------------------------------------------------------------------------


def test_the_partitions_files_follow(topic: Path) -> None:
    """Sizes and times of the partitions that got something, and of no other, in every view."""
    (topic / ".kv" / "append").write_bytes(EVERYWHERE)
    before = [(topic / str(n)).stat() for n in range(PARTITIONS)]
    sizes = [(topic / ".kv" / str(n)).stat().st_size for n in range(PARTITIONS)]
    line = key_of(1) + b"\tmore\n"
    append(topic / ".kv" / "append", line)
    after = [(topic / str(n)).stat() for n in range(PARTITIONS)]
    grown = [new.st_size - old.st_size for new, old in zip(after, before, strict=True)]
    assert grown == [0, 5, 0, 0]
    later = [new.st_mtime_ns > old.st_mtime_ns for new, old in zip(after, before, strict=True)]
    assert later == [False, True, False, False]
    now = [(topic / ".kv" / str(n)).stat().st_size for n in range(PARTITIONS)]
    assert [new - old for new, old in zip(now, sizes, strict=True)] == [0, len(line), 0, 0]


def test_several_writers_lose_and_mix_nothing(topic: Path) -> None:
    """Through all files of the topic at once: each record once, each writer's in order."""
    script = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n"
        "for n in range(20):\n"
        "    lines = (sys.argv[2] % (k % 7, n * 500 + k) for k in range(500))\n"
        "    data = ''.join(lines).encode()\n"
        "    while data: data = data[os.write(fd, data):]\n"
    )
    forms = {
        "a": (".append", "a%d %d\n"),
        "b": (".kv/append", "b%d\tb %d\n"),
        "c": (".kv/append", "c%d\tc %d\n"),
        "d": (".jsonl/append", '{"key":"d%d","value":"d %d"}\n'),
        "e": ("0", "e%d %d\n"),
    }
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(topic / way), form])
        for way, form in forms.values()
    ]
    assert [writer.wait() for writer in writers] == [0] * len(writers)
    found: dict[str, list[int]] = {name: [] for name in forms}
    for text in shown(topic):
        last: dict[str, int] = {}
        for line in text.decode().splitlines():
            who, number = line.split()
            assert last.get(who[0], -1) < int(number)
            last[who[0]] = int(number)
            found[who[0]].append(int(number))
    assert {name: sorted(numbers) for name, numbers in found.items()} == {
        name: list(range(10_000)) for name in forms
    }


def recovery_points(topic: Path) -> list[int]:
    return [offsets(topic / str(number))["recovery_point"] for number in range(PARTITIONS)]


@pytest.mark.parametrize("way", WAYS)
def test_the_unfinished_line(mount: Mount, way: str) -> None:
    """The rest without a newline stays with the handle, is joined with the next write, and becomes
    a record at release: as in a partition's own file.
    """
    topic = new_topic(mount, PARTITIONS).parent
    before, line, after = (
        (b'{"value":"', b"unfinished", b'"}') if "json" in way else (b"", b"un", b"")
    )
    with opened(topic / way) as fd:
        os.write(fd, before)
        os.write(fd, line)
        subprocess.run(["true"], check=True, pass_fds=[fd])
        assert lines_of(topic) == []
        os.write(fd, after + b"\n" + before + b"next")
        assert lines_of(topic) == [line]
        os.write(fd, after)
    assert sorted(lines_of(topic)) == sorted([line, b"next"])


def test_an_orderly_shutdown_makes_it_a_record(own: Mount) -> None:
    topic = own.topic(partitions=PARTITIONS).parent
    with opened_longer_than_mounted(topic / ".kv" / "append") as fd:
        os.write(fd, EVERYWHERE + key_of(2) + b"\tunfinished")
        own.stop()
        fails(errno.ENOTCONN, os.write, fd, b"too late\n")
    own.start()
    assert shown(topic) == [b"v0\n", b"v1\n", b"v2\nunfinished\n", b"v3\n"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_too_large_is_discarded_through_its_newline(mount: Mount, way: str) -> None:
    """(the handle then discards through its newline, so that the remainder never becomes a
    record)
    """
    topic = new_topic(mount, PARTITIONS).parent
    good = b'{"value":"good"}\n' if "json" in way else b"good\n"
    mount.run('echo max.message.bytes=1000 >> "$T/.config"', T=topic)
    with opened(topic / way) as fd:
        fails(errno.EMSGSIZE, os.write, fd, good + b"x" * 20_000)
        os.write(fd, b"more of the same line")
        os.write(fd, b"and its end\n" + good)
    assert lines_of(topic) == [b"good"]


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_o_sync(mount: Mount, topic: Path, flag: int) -> None:
    """O_SYNC and O_DSYNC … flush before replying …"""
    flush_only_when_asked(mount, topic / "0")
    with opened(topic / ".kv" / "append", APPEND | flag) as fd:
        os.write(fd, EVERYWHERE)
        assert recovery_points(topic) == [1] * PARTITIONS
        os.write(fd, key_of(1) + b"\tv\n")
        assert recovery_points(topic) == [1, 2, 1, 1]
