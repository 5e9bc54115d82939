"""Appending to a partition: "Appending" of the contract."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
from pathlib import Path

import pytest

from storage import LogManager, Record
from storage.segment.reader import SegmentReader
from tests.mount.contract.conftest import flush_only_when_asked, new_topic
from tests.mount.contract.writing import APPEND, append, offsets, opened, write_all
from tests.mount.mounting import Mount, fails
from tests.mount.steering import SteeredMount


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
    fd = os.open(orders, APPEND)
    os.write(fd, b"complete\nunfinished")
    own.stop()
    fails(errno.ENOTCONN, os.write, fd, b"too late\n")
    fails(errno.ENOTCONN, os.close, fd)
    own.start()
    assert orders.read_bytes() == b"complete\nunfinished\n"


# -- fsync ---------------------------------------------------------------------------------------


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


# -- what is refused while writing ---------------------------------------------------------------


@pytest.mark.parametrize("size", [1_500_000, 3_000_000], ids=["two pieces", "three"])
def test_a_record_that_is_too_large_for_one_request(mount: Mount, size: int) -> None:
    """A line over `max.message.bytes` fails with EMSGSIZE, and no part of it becomes a record.

    The kernel splits the write into pieces. The daemon accepts the first piece, so the write ends
    with a short count. When the program writes the rest, that write fails.

    Of three pieces, the third with the newline never arrives. The next `write()` begins a line.
    """
    orders = new_topic(mount)
    with opened(orders) as fd:
        write_all(fd, b"one\n")
        fails(errno.EMSGSIZE, write_all, fd, b"x" * size + b"\n")
        assert orders.read_bytes() == b"one\n"
        write_all(fd, b"two\n")
    assert orders.read_bytes() == b"one\ntwo\n"
    with opened(orders) as fd:
        fails(errno.EMSGSIZE, write_all, fd, b"x" * size + b"\nthree\nfour\n")
        write_all(fd, b"five\n")
    assert orders.read_bytes() == b"one\ntwo\nfive\n"


def test_no_line_is_dropped_after_a_large_write_that_failed(mount: Mount) -> None:
    """When `write()` has returned n, the complete lines of the first n bytes are in the log."""
    topic = new_topic(mount).parent
    with opened(topic / ".jsonl/0") as fd:
        lines = b'{"value":"x"}\n' * 150_000
        fails(errno.EINVAL, os.write, fd, b"not JSON\n" + lines)
        assert os.write(fd, b'{"value":"next"}\n') == 17
    assert (topic / "0").read_bytes() == b"next\n"


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
