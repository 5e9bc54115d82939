"""Appending to a topic: `.append`, `.kv/append` and `.jsonl/append` of the contract."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.contract.test_appending import (
    flush_only_when_asked,
    offsets,
    opened_longer_than_mounted,
)
from tests.mount.contract.test_directories import as_nobody
from tests.mount.contract.writing import APPEND, append, opened, write_all
from tests.mount.mounting import Mount, fails, let_others_in, mounted, needs_root
from tests.mount.programs import Running
from tests.mount.steering import SteeredMount
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
    """What each partition shows."""
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


@needs_root
def test_the_topic_s_mode_says_who_may_write(tmp_path: Path) -> None:
    """Its mode is the topic's, as far as all partitions let it, without reading."""
    let_others_in(tmp_path)
    with mounted(tmp_path, "allow_other") as mount:
        topic = mount.topic(partitions=2).parent
        os.chmod(topic, 0o755)
        assert stat.S_IMODE((topic / ".append").stat().st_mode) == 0o200
        refused = as_nobody("echo x >> .append", topic)
        assert refused.returncode != 0
        assert b"Permission denied" in refused.stderr
        os.chmod(topic, 0o777)
        os.chmod(topic / "0", 0o666)
        assert as_nobody("echo x >> .append", topic).returncode != 0
        os.chmod(topic / "1", 0o666)
        assert as_nobody("echo x >> .append", topic).returncode == 0
        assert lines_of(topic) == [b"x"]
        assert b"Permission denied" in as_nobody("cat .append", topic).stderr


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


def test_a_key_has_its_partition(topic: Path) -> None:
    """… routed over the partitions … by Kafka's murmur2 partitioner; the order of a key's records
    is kept. An empty key is a key.
    """
    keys = [b"", b"21", b"foobar", "schlüssel".encode(), *(b"customer-%d" % n for n in range(50))]
    rows = [(keys[n * 7 % len(keys)], b"%05d" % n) for n in range(5000)]
    append(topic / ".kv" / "append", b"".join(key + b"\t" + value + b"\n" for key, value in rows))
    for number, text in enumerate(shown(topic, ".kv")):
        expected = [key + b"\t" + value for key, value in rows if owner(key) == number]
        assert text.splitlines() == expected
        assert expected, "every partition has some"


def test_json_keeps_everything(topic: Path) -> None:
    """`.jsonl/append`: keys of any bytes, values, headers and timestamps."""
    rows = [
        {"timestamp": 1000 + n, "key": key, "value": value, "headers": [["h", str(n)]]}
        for n, (key, value) in enumerate(
            [
                ("a", "x"),
                ({"base64": "/wA="}, None),
                ("a", {"base64": "/w=="}),
                ("", ""),
                ("b\n", "y"),
            ]
        )
    ]
    append(topic / ".jsonl" / "append", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    keys = [b"a", b"\xff\x00", b"a", b"", b"b\n"]
    for number, text in enumerate(shown(topic, ".jsonl")):
        found = [json.loads(line) for line in text.splitlines()]
        expected = [row for key, row in zip(keys, rows, strict=True) if owner(key) == number]
        assert [{name: row[name] for name in rows[0]} for row in found] == expected
        assert [row["offset"] for row in found] == list(range(len(found)))


def test_a_partition_that_is_created_while_it_is_open(topic: Path) -> None:
    """It gets its share of the keys from then on."""
    key = next(key for key in (b"k%d" % n for n in range(1000)) if owner(key, 5) == 4)
    with opened(topic / ".kv" / "append") as fd:
        os.write(fd, key + b"\tbefore\n")
        (topic / "4").touch()
        os.write(fd, key + b"\tafter\n")
    assert (topic / "4").read_bytes() == b"after\n"
    assert (topic / str(owner(key))).read_bytes() == b"before\n"


def test_a_large_write(topic: Path) -> None:
    """One that arrives in pieces: nothing is lost or cut, whatever the line that it is cut in."""
    rows = [(b"key%d" % (n % 1000), b"%d %s" % (n, b"x" * (n % 300))) for n in range(12_000)]
    with opened(topic / ".kv" / "append") as fd:
        write_all(fd, b"".join(key + b"\t" + value + b"\n" for key, value in rows))
    for number, text in enumerate(shown(topic)):
        assert text.splitlines() == [value for key, value in rows if owner(key) == number]


# -- all or nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "good", "bad", "number"),
    [
        (".kv/append", EVERYWHERE, b"k\t" + b"x" * 2000 + b"\n", errno.EMSGSIZE),
        (".jsonl/append", b'{"value":"v"}\n', b'{"value":1}\n', errno.EINVAL),
    ],
    ids=["kv, size", "jsonl, syntax"],
)
def test_all_lines_are_validated_first(
    mount: Mount, way: str, good: bytes, bad: bytes, number: int
) -> None:
    """`.append` validates all lines first: no partition has anything of a write that is refused,
    and the log says which line it was.
    """
    topic = new_topic(mount, PARTITIONS).parent
    mount.run('echo max.message.bytes=1000 >> "$T/.config"', T=topic)
    with opened(topic / way) as fd:
        for data in (good + bad, bad + good, good + bad + good):
            before = mount.events()
            fails(number, os.write, fd, data)
            line = mount.events().removeprefix(before)
            assert line.count("\n") == 1
            at = 1 if data.startswith(bad) else good.count(b"\n") + 1
            assert f"{topic.name}/{way}: append refused: line {at}: " in line
        assert shown(topic) == [b""] * PARTITIONS
        os.write(fd, good)
    assert len(lines_of(topic)) == good.count(b"\n")


# -- unfinished lines ----------------------------------------------------------------------------


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


def test_a_line_that_several_programs_write(mount: Mount, topic: Path) -> None:
    """(`{ echo -n a; cmd; echo b; } >> f` is one line `ab`)"""
    script = '{ printf "$K\\t"; (exit 0); env printf a; printf b; } >> "$T/.kv/append"'
    mount.run(script, T=topic, K=key_of(3).decode())
    assert (topic / "3").read_bytes() == b"ab\n"


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


def test_flush_only_checks(mount: Mount, topic: Path) -> None:
    """Flush only checks that it would be accepted, and returns the errno."""
    fd = os.open(topic / ".kv" / "append", APPEND)
    os.write(fd, b"k\twrong \\q")
    fails(errno.EINVAL, os.close, fd)
    assert lines_of(topic) == []


# -- the disk ------------------------------------------------------------------------------------


def recovery_points(topic: Path) -> list[int]:
    return [offsets(topic / str(number))["recovery_point"] for number in range(PARTITIONS)]


def test_fsync(mount: Mount, topic: Path) -> None:
    """`fsync` … make them survive the machine's: in every partition."""
    flush_only_when_asked(mount, topic / "0")
    with opened(topic / ".kv" / "append") as fd:
        os.write(fd, EVERYWHERE)
        assert recovery_points(topic) == [0] * PARTITIONS
        os.fsync(fd)
        assert recovery_points(topic) == [1] * PARTITIONS
        os.write(fd, key_of(2) + b"\tv\n")
        os.fdatasync(fd)
        assert recovery_points(topic) == [1, 1, 2, 1]
    append(topic / ".kv" / "append", EVERYWHERE)
    mount.run('sync "$F"', F=topic / ".append")
    assert recovery_points(topic) == [2, 2, 3, 2]


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_o_sync(mount: Mount, topic: Path, flag: int) -> None:
    """O_SYNC and O_DSYNC … flush before replying …"""
    flush_only_when_asked(mount, topic / "0")
    with opened(topic / ".kv" / "append", APPEND | flag) as fd:
        os.write(fd, EVERYWHERE)
        assert recovery_points(topic) == [1] * PARTITIONS
        os.write(fd, key_of(1) + b"\tv\n")
        assert recovery_points(topic) == [1, 2, 1, 1]


def test_flush_messages(mount: Mount, topic: Path) -> None:
    """… `flush.messages` …"""
    flush_only_when_asked(mount, topic / "0")
    mount.run('echo flush.messages=2 >> "$T/.config"', T=topic)
    with opened(topic / ".kv" / "append") as fd:
        os.write(fd, key_of(3) + b"\tv\n")
        assert recovery_points(topic) == [0] * PARTITIONS
        os.write(fd, key_of(3) + b"\tv\n")
        assert recovery_points(topic) == [0, 0, 0, 2]


def test_an_fsync_that_fails_is_told(steered_mount: SteeredMount) -> None:
    """EIO … from the disk, of one partition: the others are flushed all the same."""
    topic = new_topic(steered_mount, PARTITIONS).parent
    flush_only_when_asked(steered_mount, topic / "0")
    with opened(topic / ".kv" / "append") as fd:
        os.write(fd, EVERYWHERE)
        steered_mount.daemon.fail("fdatasync", f"{topic.name}-1/00000000000000000000.log", "EIO")
        fails(errno.EIO, os.fsync, fd)
        assert recovery_points(topic) == [1, 0, 1, 1]
        fails(errno.EIO, os.write, fd, EVERYWHERE)
    assert shown(topic) == [b"v0\n", b"v1\n", b"v2\n", b"v3\n"]


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


def test_tail_follows(mount: Mount, topic: Path) -> None:
    """`tail -f` of a partition prints what `.kv/append` has brought."""
    words = ["tail", "-f", "-n", "+1", "--sleep-interval=0.02"]
    with Running([*words, topic / "2"]) as tail:
        expected = b""
        for number in range(20):
            append(topic / ".kv" / "append", b"%s\tline %d\n" % (key_of(2), number) + EVERYWHERE)
            expected += b"line %d\nv2\n" % number
            assert tail.read_until(b"line %d\nv2\n" % number) == expected


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


def test_a_topic_that_is_deleted_while_it_is_open(own: Mount) -> None:
    """Nothing of it goes anywhere, least of all into a new topic of the same name."""
    topic = own.topic(partitions=PARTITIONS).parent
    fd = os.open(topic / ".kv" / "append", APPEND)
    os.write(fd, EVERYWHERE + key_of(0) + b"\thalf")
    topic.rmdir()
    own.topic(partitions=PARTITIONS)
    fails(errno.ESHUTDOWN, os.write, fd, EVERYWHERE)
    fails(errno.ESHUTDOWN, os.close, fd)
    assert shown(topic) == [b""] * PARTITIONS


def test_a_read_only_mount(own: Mount) -> None:
    """EROFS a read-only mount."""
    topic = own.topic(partitions=2).parent
    append(topic / ".append", b"one\n")
    own.restart("ro")
    for way in WAYS:
        fails(errno.EROFS, os.open, topic / way, APPEND)
        assert (topic / way).stat().st_size == 0
    assert lines_of(topic) == [b"one"]


def test_it_is_listed_with_the_dot_names(mount: Mount, topic: Path, tmp_path: Path) -> None:
    """… readdir returns it only with `-o show_dot`, so that `.kv/*` is the partitions."""
    append(topic / ".kv" / "append", EVERYWHERE)
    lines = mount.run('cat "$T"/.kv/*', T=topic)
    assert lines == EVERYWHERE
    assert sorted(os.listdir(topic / ".jsonl")) == ["0", "1", "2", "3"]
    with mounted(tmp_path, "show_dot") as other:
        shown_topic = other.topic().parent
        assert ".append" in os.listdir(shown_topic)
        for view in (".kv", ".jsonl"):
            assert sorted(os.listdir(shown_topic / view)) == [".snapshot", "0", "append"]
        assert sorted(os.listdir(shown_topic / ".batches")) == [".snapshot", "0"]
