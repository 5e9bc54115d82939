"""Appending to a partition: "Appending" of the contract."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record
from storage.segment.reader import SegmentReader
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import APPEND, append, offsets, opened, write_all
from tests.mount.mounting import Mount, fails
from tests.mount.steering import SteeredMount


@contextlib.contextmanager
def opened_longer_than_mounted(path: Path) -> Iterator[int]:
    """A descriptor that leads nowhere any more when it is closed."""
    fd = os.open(path, APPEND)
    yield fd
    fails(errno.ENOTCONN, os.close, fd)


def batches(mount: Mount, path: Path) -> list[list[Record]]:
    """The records of each batch, read past the mount."""
    from storage.record.batch import decode

    with LogManager.open(str(mount.data), read_only=True) as manager:
        log = manager.log(path.parent.name, int(path.name))
        return [
            decode(SegmentReader(segment).read(position, header.size), 0)
            for segment in log.segments
            for position, header in SegmentReader(segment).batches()
        ]


# -- opening, and what is refused ----------------------------------------------------------------


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR], ids=["O_WRONLY", "O_RDWR"])
def test_opening_for_writing_needs_o_append(orders: Path, access: int) -> None:
    """As with a file under `chattr +a`: opening for writing needs O_APPEND …"""
    append(orders, b"one\n")
    fails(errno.EPERM, os.open, orders, access)
    fails(errno.EPERM, os.open, orders, access | os.O_CREAT, 0o644)
    with opened(orders, access | os.O_APPEND) as fd:
        os.write(fd, b"two\n")
    assert orders.read_bytes() == b"one\ntwo\n"


def test_o_append_is_judged_at_open(orders: Path) -> None:
    """… judged at open (what F_SETFL clears later is not seen, and the write appends all the
    same) …
    """
    append(orders, b"one\n")
    with opened(orders) as fd:
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        os.pwrite(fd, b"two\n", 0)
        os.write(fd, b"three\n")
    assert orders.read_bytes() == b"one\ntwo\nthree\n"


def test_what_is_refused_changes_nothing(mount: Mount, orders: Path) -> None:
    """… a plain `>` (O_TRUNC arrives in the open flags), truncate, rename and unlink of a
    partition are EPERM and change nothing, said explicitly (pyfuse3's default is ENOSYS).
    """
    append(orders, b"one\ntwo\n")
    topic = orders.parent
    (topic / "1").touch()
    before = orders.stat()
    refused = mount.sh('echo x > "$F"', F=orders)
    assert refused.returncode != 0
    assert b"Operation not permitted" in refused.stderr
    for flags in (os.O_WRONLY, os.O_RDWR, APPEND, os.O_RDONLY):
        fails(errno.EPERM, os.open, orders, flags | os.O_TRUNC)
    for size in (0, 3, 8, 100):
        fails(errno.EPERM, os.truncate, orders, size)
        with opened(orders) as fd:
            fails(errno.EPERM, os.ftruncate, fd, size)
    fails(errno.EPERM, os.rename, orders, topic / "2")
    fails(errno.EPERM, os.rename, orders, topic / "1")
    fails(errno.EPERM, os.rename, topic, mount / "another")
    fails(errno.EPERM, os.unlink, orders)
    fails(errno.EPERM, os.link, orders, topic / "2")
    after = orders.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mtime_ns == before.st_mtime_ns
    assert orders.read_bytes() == b"one\ntwo\n"
    assert sorted(os.listdir(topic)) == ["0", "1"]


def test_what_else_changes_a_file_is_refused(orders: Path) -> None:
    """Nothing but appending changes a partition: no fallocate, no writable map."""
    append(orders, b"one\n")
    with opened(orders, os.O_RDWR | os.O_APPEND) as fd:
        with pytest.raises(OSError, match=r"not supported|Bad file"):
            os.posix_fallocate(fd, 0, 100)
        with pytest.raises(OSError, match=r"No such device|denied|not permitted"):
            mmap.mmap(fd, 4, access=mmap.ACCESS_WRITE)
    assert orders.read_bytes() == b"one\n"
    assert orders.stat().st_size == 4


def test_touch_of_an_existing_partition(mount: Mount, orders: Path) -> None:
    """`touch` of an existing partition succeeds and changes nothing …"""
    append(orders, b"one\n")
    before = orders.stat()
    mount.run('touch "$F"; touch -d 2001-01-01 "$F"; touch -a "$F"', F=orders)
    after = orders.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert after.st_ino == before.st_ino


def test_a_partition_that_touch_creates(mount: Mount, orders: Path) -> None:
    """… where it creates one, the handle may write it from its beginning."""
    topic = orders.parent
    mount.run('touch "$T/1"', T=topic)
    with opened(topic / "2", os.O_WRONLY | os.O_CREAT) as fd:
        os.write(fd, b"x\n")
    with opened(topic / "3", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        fails(errno.EPERM, os.pwrite, fd, b"x\n", 1)
    with opened(topic / "4", APPEND | os.O_CREAT | os.O_EXCL) as fd:
        os.write(fd, b"x\n")
        fails(errno.EEXIST, os.open, topic / "4", APPEND | os.O_CREAT | os.O_EXCL)
    mount.run('echo y >> "$T/5"', T=topic)
    assert [(topic / str(n)).read_bytes() for n in range(6)] == [
        b"",
        b"",
        b"x\n",
        b"",
        b"x\n",
        b"y\n",
    ]


def test_the_offset_of_a_write_is_ignored(orders: Path) -> None:
    """The offset that the kernel sends with a write is ignored: the log decides."""
    with opened(orders) as first, opened(orders) as second:
        os.write(first, b"1\n")
        os.pwrite(second, b"2\n", 1000)
        os.lseek(first, 0, os.SEEK_SET)
        os.write(first, b"3\n")
        os.pwrite(second, b"4\n", 0)
    assert orders.read_bytes() == b"1\n2\n3\n4\n"


# -- lines and records ---------------------------------------------------------------------------


def test_the_lines_of_one_request_are_one_batch(mount: Mount, orders: Path) -> None:
    """All complete lines of one FUSE request (one `write()` of up to 1 MiB minus a page from one
    buffer …) become consecutive records (one batch …)
    """
    with opened(orders) as fd:
        os.write(fd, b"a\nb\nc\nrest")
        os.write(fd, b" of it\n")
        lines = b"".join(b"%0100d\n" % number for number in range(9_000))
        assert os.write(fd, lines) == len(lines)
    assert [[record.value for record in batch] for batch in batches(mount, orders)] == [
        [b"a", b"b", b"c"],
        [b"rest of it"],
        lines.splitlines(),
    ]
    records = [record for batch in batches(mount, orders) for record in batch]
    assert [record.offset for record in records] == list(range(len(records)))


def test_a_large_write_arrives_in_pieces(mount: Mount, orders: Path) -> None:
    """… a larger or scattered one arrives in pieces …. Lines always stay whole …"""
    lines = b"".join(b"%08d %s\n" % (number, b"x" * (number % 300)) for number in range(40_000))
    with opened(orders) as fd:
        assert os.write(fd, lines) == len(lines)
        buffers = [b"scattered ", b"over ", b"buffers\n", b"and\n"] * 100
        assert os.writev(fd, buffers) == len(b"".join(buffers))
    assert orders.read_bytes() == lines + b"".join(buffers)
    assert offsets(orders)["log_end"] == 40_000 + 200


def test_the_unfinished_line_ends_with_the_last_descriptor(orders: Path) -> None:
    """At **release**, when the last descriptor in any process is closed … it becomes a record;
    *not* at flush, which every child's exit sends …
    """
    fd = os.open(orders, APPEND)
    copy = os.dup(fd)
    os.write(fd, b"unfinished")
    os.close(fd)
    subprocess.run(["true"], check=True, pass_fds=[copy])
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert orders.read_bytes() == b""
    os.write(copy, b" business\nand")
    assert orders.read_bytes() == b"unfinished business\n"
    os.close(copy)
    assert orders.read_bytes() == b"unfinished business\nand\n"


def test_who_looks_after_the_release_sees_it(mount: Mount, orders: Path) -> None:
    """The release handler appends before its first await, so that `printf n >> p; tail -n1 p`
    sees it.
    """
    text = b""
    for number in range(100):
        append(orders, b"%d" % number)
        text += b"%d\n" % number
        assert orders.read_bytes() == text
    assert mount.run('printf 100 >> "$F"; tail -n1 "$F"', F=orders) == b"100\n"


def test_an_orderly_shutdown_makes_it_a_record(own: Mount) -> None:
    """… or at orderly shutdown, it becomes a record …"""
    orders = own.topic()
    with opened_longer_than_mounted(orders) as fd:
        os.write(fd, b"complete\nunfinished")
        own.stop()
        fails(errno.ENOTCONN, os.write, fd, b"too late\n")
    own.start()
    assert orders.read_bytes() == b"complete\nunfinished\n"


def test_a_kill_loses_it_but_no_complete_line(own: Mount) -> None:
    """… it is lost only with the daemon's death, which a complete line is not.

    When `write()` has returned n, the n bytes' complete lines are in the log, readable …, and
    survive the daemon's death …
    """
    orders = own.topic()
    with opened_longer_than_mounted(orders) as fd:
        for number in range(50):
            os.write(fd, b"line %d\n" % number)
        os.write(fd, b"unfinished")
        own.kill()
    own.start()
    assert orders.read_bytes() == b"".join(b"line %d\n" % number for number in range(50))


# -- fsync ---------------------------------------------------------------------------------------


def flush_only_when_asked(mount: Mount, orders: Path) -> None:
    mount.run('echo flush.ms=9223372036854775807 >> "$T/.config"', T=orders.parent)


def test_fsync(mount: Mount, orders: Path) -> None:
    """`fsync` … make them survive the machine's: the recovery point has moved when it returns."""
    flush_only_when_asked(mount, orders)
    with opened(orders) as fd:
        os.write(fd, b"one\ntwo\n")
        assert offsets(orders)["recovery_point"] == 0
        os.fsync(fd)
        assert offsets(orders)["recovery_point"] == 2
        os.write(fd, b"three\n")
        os.fdatasync(fd)
        assert offsets(orders)["recovery_point"] == 3
    append(orders, b"four\n")
    mount.run('sync "$F"', F=orders)
    assert offsets(orders)["recovery_point"] == 4


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_o_sync(mount: Mount, orders: Path, flag: int) -> None:
    """`fsync`, O_SYNC and O_DSYNC (no FSYNC arrives for these: take them from the open flags and
    flush before replying) …
    """
    flush_only_when_asked(mount, orders)
    with opened(orders, APPEND | flag) as fd:
        for number in range(3):
            os.write(fd, b"line\nrest")
            assert offsets(orders)["recovery_point"] == number + 1


def test_an_fsync_that_fails_is_told(steered_mount: SteeredMount, steered_orders: Path) -> None:
    """EIO … from the disk: fsync returns it, and why is a line in the log."""
    log = f"{steered_orders.parent.name}-0/00000000000000000000.log"
    flush_only_when_asked(steered_mount, steered_orders)
    with opened(steered_orders) as fd:
        os.write(fd, b"line\n")
        steered_mount.daemon.fail("fdatasync", log, "EIO")
        fails(errno.EIO, os.fsync, fd)
    assert offsets(steered_orders)["recovery_point"] == 0
    assert "00000000000000000000.log" in steered_mount.events()
    assert steered_orders.read_bytes() == b"line\n"


@pytest.mark.parametrize(("flag", "messages"), [(os.O_SYNC, 1000), (0, 1)])
def test_a_write_whose_flush_fails_keeps_its_records(
    steered_mount: SteeredMount, steered_orders: Path, flag: int, messages: int
) -> None:
    log = f"{steered_orders.parent.name}-0/00000000000000000000.log"
    flush_only_when_asked(steered_mount, steered_orders)
    with open(steered_orders.parent / ".config", "a") as config:
        config.write(f"flush.messages={messages}\n")
    with opened(steered_orders, APPEND | flag) as fd:
        steered_mount.daemon.fail("fdatasync", log, "EIO")
        fails(errno.EIO, os.write, fd, b"line\n")
    assert f"write of {steered_orders.parent.name}/0: " in steered_mount.events()
    assert steered_orders.read_bytes() == b"line\n"


# -- what is refused while writing ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "unseen"), [(1_500_000, b""), (3_000_000, b"its end\n")], ids=["two pieces", "three"]
)
def test_a_record_that_is_too_large_for_one_request(mount: Mount, size: int, unseen: bytes) -> None:
    """A line over `max.message.bytes` fails with EMSGSIZE, and no part of it becomes a record.

    The kernel splits the write into pieces. The daemon accepts the first piece, so the write ends
    with a short count. When the program writes the rest, that write fails.

    Of three pieces, the third with the newline never arrives. The daemon takes the next bytes up to
    a newline as the rest of the line, and drops them.
    """
    orders = new_topic(mount)
    with opened(orders) as fd:
        write_all(fd, b"one\n")
        fails(errno.EMSGSIZE, write_all, fd, b"x" * size + b"\n")
        assert orders.read_bytes() == b"one\n"
        write_all(fd, unseen + b"two\n")
    assert orders.read_bytes() == b"one\ntwo\n"
    with opened(orders) as fd:
        fails(errno.EMSGSIZE, write_all, fd, b"x" * size + b"\nthree\nfour\n")
        write_all(fd, unseen + b"five\n")
    assert orders.read_bytes() == b"one\ntwo\nfive\n"


def test_a_write_in_pieces_keeps_the_earlier_ones(
    steered_mount: SteeredMount, steered_orders: Path
) -> None:
    """(of a write in pieces the earlier ones stay: a short count, as POSIX has it)"""
    lines = b"".join(b"%099d\n" % number for number in range(25_000))
    name = f"{steered_orders.parent.name}-0/00000000000000000000.log"
    with opened(steered_orders) as fd:
        os.write(fd, b"-" * 99 + b"\n")
        steered_mount.daemon.fail("pwrite", name, "ENOSPC", 1, 1)
        written = os.write(fd, lines)
        assert 0 < written < len(lines)
        shown = steered_orders.read_bytes()[100:]
        assert shown == lines[: written - written % 100]
        write_all(fd, lines[written:])
    assert steered_orders.read_bytes()[100:] == lines


def test_a_read_only_mount(own: Mount) -> None:
    """EROFS a read-only mount …"""
    orders = own.topic()
    append(orders, b"one\n")
    own.restart("ro")
    fails(errno.EROFS, os.open, orders, APPEND)
    fails(errno.EROFS, os.open, orders.parent / "1", APPEND | os.O_CREAT)
    fails(errno.EROFS, os.mkdir, own / "another")
    fails(errno.EROFS, os.rmdir, orders.parent)
    fails(errno.EROFS, os.chmod, orders, 0o600)
    assert orders.read_bytes() == b"one\n"


# -- several writers -----------------------------------------------------------------------------


def test_writers_of_one_file_never_interleave_inside_a_write(mount: Mount, orders: Path) -> None:
    """Lines always stay whole; writers of one file never interleave inside a `write()` …"""
    script = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n"
        "for n in range(8):\n"
        "    data = b''.join(b'%s %d %d\\n' % (sys.argv[2].encode(), n, k) for k in range(3000))\n"
        "    while data: data = data[os.write(fd, data):]\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(orders), name]) for name in "abcd"
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    blocks: list[tuple[bytes, bytes]] = []
    expected = 0
    for line in orders.read_bytes().splitlines():
        name, write, number = line.split()
        if int(number) == 0:
            assert expected in (0, 3000)
            blocks.append((name, write))
            expected = 0
        assert (name, write) == blocks[-1]
        assert int(number) == expected
        expected += 1
    assert len(blocks) == 32
    for name in (b"a", b"b", b"c", b"d"):
        assert [int(write) for who, write in blocks if who == name] == list(range(8))
