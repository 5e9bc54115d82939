"""Appending to a partition: "Appending" of the contract."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record
from storage.segment.reader import SegmentReader
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import APPEND, append, opened, write_all
from tests.mount.mounting import Mount, fails, mounted, needs_root
from tests.mount.steering import SteeredMount

LIMIT = 1048588
"""max.message.bytes"""


@contextlib.contextmanager
def opened_longer_than_mounted(path: Path) -> Iterator[int]:
    """A descriptor that leads nowhere any more when it is closed."""
    fd = os.open(path, APPEND)
    yield fd
    fails(errno.ENOTCONN, os.close, fd)


def offsets(path: Path) -> dict[str, int]:
    """`.meta/N/offsets` of a partition."""
    lines = (path.parent / ".meta" / path.name / "offsets").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


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


def values(mount: Mount, path: Path) -> list[bytes | None]:
    return [record.value for batch in batches(mount, path) for record in batch]


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


def test_reading_and_appending_through_one_descriptor(orders: Path) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    with opened(orders, os.O_RDWR | os.O_APPEND) as fd:
        os.write(fd, b"one\n")
        assert os.pread(fd, 100, 0) == b"one\n"
        os.write(fd, b"two\n")
        assert os.pread(fd, 100, 2) == b"e\ntwo\n"
        assert os.lseek(fd, 0, os.SEEK_END) == 8
    with opened(orders) as fd:
        fails(errno.EBADF, os.read, fd, 1)


# -- lines and records ---------------------------------------------------------------------------


def test_each_complete_line_is_one_record(mount: Mount, orders: Path) -> None:
    """Each complete line is one record; the newline is not part of it."""
    append(orders, b"one\n\n  two \r\n\x00\xff\n\t\n")
    assert values(mount, orders) == [b"one", b"", b"  two \r", b"\x00\xff", b"\t"]
    assert orders.read_bytes() == b"one\n\n  two \r\n\x00\xff\n\t\n"
    assert offsets(orders)["log_end"] == 5
    assert all(record.key is None for batch in batches(mount, orders) for record in batch)
    append(orders, b"")
    assert offsets(orders)["log_end"] == 5


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


def test_several_batches_where_one_would_be_too_large(mount: Mount, orders: Path) -> None:
    """… or several where one would exceed `max.message.bytes` …"""
    mount.run('echo max.message.bytes=1000 >> "$T/.config"', T=orders.parent)
    content = b"".join(b"%099d\n" % number for number in range(100))
    append(orders, content)
    found = batches(mount, orders)
    assert len(found) > 10
    assert orders.read_bytes() == content
    with LogManager.open(str(mount.data), read_only=True) as manager:
        active = manager.log(orders.parent.name, 0).active
        assert max(header.size for _, header in SegmentReader(active).batches()) <= 1000


def test_a_large_write_arrives_in_pieces(mount: Mount, orders: Path) -> None:
    """… a larger or scattered one arrives in pieces …. Lines always stay whole …"""
    lines = b"".join(b"%08d %s\n" % (number, b"x" * (number % 300)) for number in range(40_000))
    with opened(orders) as fd:
        assert os.write(fd, lines) == len(lines)
        buffers = [b"scattered ", b"over ", b"buffers\n", b"and\n"] * 100
        assert os.writev(fd, buffers) == len(b"".join(buffers))
    assert orders.read_bytes() == lines + b"".join(buffers)
    assert offsets(orders)["log_end"] == 40_000 + 200


def test_the_unfinished_line_stays_with_the_handle(mount: Mount, orders: Path) -> None:
    """The rest without a newline stays with the handle and is joined with the next write."""
    with opened(orders) as fd:
        for piece in (b"a", b"b", b"c\nd", b"", b"e\n", b"f"):
            os.write(fd, piece)
        assert values(mount, orders) == [b"abc", b"de"]
        assert orders.read_bytes() == b"abc\nde\n"
    assert orders.read_bytes() == b"abc\nde\nf\n"
    assert values(mount, orders) == [b"abc", b"de", b"f"]


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


def test_a_line_that_several_programs_write(mount: Mount, orders: Path) -> None:
    """(`{ echo -n a; cmd; echo b; } >> f` is one line `ab`)."""
    mount.run('{ echo -n a; true; /bin/true; (exit 0); echo b; } >> "$F"', F=orders)
    assert orders.read_bytes() == b"ab\n"
    mount.run('{ printf a; (printf b); env printf c; } >> "$F"', F=orders)
    assert orders.read_bytes() == b"ab\nabc\n"


def test_who_looks_after_the_release_sees_it(mount: Mount, orders: Path) -> None:
    """The release handler appends before its first await, so that `printf n >> p; tail -n1 p`
    sees it.
    """
    for number in range(30):
        command = 'printf "$N" >> "$F"; tail -n1 "$F"'
        assert mount.run(command, F=orders, N=number) == b"%d\n" % number


def test_it_never_mixes_with_another_handle_s(orders: Path) -> None:
    """It never mixes with another handle's …"""
    with opened(orders) as first, opened(orders) as second:
        os.write(first, b"fi")
        os.write(second, b"sec")
        os.write(first, b"rst\nfirst's")
        os.write(second, b"ond\nsecond's")
        assert orders.read_bytes() == b"first\nsecond\n"
    assert sorted(orders.read_bytes().split(b"\n")) == [
        b"",
        b"first",
        b"first's",
        b"second",
        b"second's",
    ]


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


def test_a_line_is_readable_when_its_write_has_returned(orders: Path) -> None:
    """When `write()` has returned n, the n bytes' complete lines are in the log, readable …"""
    with opened(orders) as writer, opened(orders, os.O_RDONLY) as reader:
        for number in range(300):
            line = b"%04d\n" % number
            assert os.write(writer, line) == 5
            assert os.pread(reader, 10, 5 * number) == line


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


def test_flush_messages(mount: Mount, orders: Path) -> None:
    """… `flush.messages` … make them survive the machine's."""
    flush_only_when_asked(mount, orders)
    mount.run('echo flush.messages=3 >> "$T/.config"', T=orders.parent)
    with opened(orders) as fd:
        os.write(fd, b"1\n2\n")
        assert offsets(orders)["recovery_point"] == 0
        os.write(fd, b"3\n")
        assert offsets(orders)["recovery_point"] == 3
        os.write(fd, b"4\n5\n6\n7\n")
        assert offsets(orders)["recovery_point"] == 7


def test_flush_ms(steered_mount: SteeredMount, steered_orders: Path) -> None:
    """… and `flush.ms` make them survive the machine's."""
    log = f"{steered_orders.parent.name}-0/00000000000000000000.log"
    steered_mount.run('echo flush.ms=1 >> "$T/.config"', T=steered_orders.parent)
    with steered_mount.held("fdatasync", log) as hold:
        append(steered_orders, b"one\n")
        # It is flushed by itself, and only then the recovery point moves.
        hold.wait()
        assert offsets(steered_orders)["recovery_point"] == 0
    with steered_mount.held("fdatasync", log) as hold:
        append(steered_orders, b"two\n")
        hold.wait()
        assert offsets(steered_orders)["recovery_point"] == 1


@pytest.mark.parametrize("how", ["O_SYNC", "fsync", "flush.messages"])
def test_no_reply_before_the_disk_has_it(steered_mount: SteeredMount, how: str) -> None:
    """… flush before replying …"""
    orders = new_topic(steered_mount)
    flush_only_when_asked(steered_mount, orders)
    if how == "flush.messages":
        steered_mount.run('echo flush.messages=1 >> "$T/.config"', T=orders.parent)
    happened: list[str] = []

    def write() -> None:
        with opened(orders, APPEND | (os.O_SYNC if how == "O_SYNC" else 0)) as fd:
            os.write(fd, b"line\n")
            if how == "fsync":
                os.fsync(fd)
            happened.append("answered")

    log = f"{orders.parent.name}-0/00000000000000000000.log"
    with steered_mount.held("fdatasync", log) as hold:
        writing = threading.Thread(target=write)
        writing.start()
        hold.wait()
        for _ in range(20):
            assert orders.read_bytes() == b"line\n", "it is there to be read already"
        happened.append("released")
        hold.release()
        writing.join()
    assert happened == ["released", "answered"]


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


def test_a_record_that_is_too_large(mount: Mount, orders: Path) -> None:
    """EMSGSIZE a record over `max.message.bytes` (the handle then discards through its newline, so
    that the remainder never becomes a record) …
    """
    mount.run('echo max.message.bytes=1000 >> "$T/.config"', T=orders.parent)
    with opened(orders) as fd:
        os.write(fd, b"one\n")
        fails(errno.EMSGSIZE, os.write, fd, b"x" * 990 + b"\n")
        os.write(fd, b"two\n")
        fails(errno.EMSGSIZE, os.write, fd, b"x" * 990)
        os.write(fd, b"more of the same line")
        os.write(fd, b"and its end\nthree\n")
        os.write(fd, b"four, ")
        fails(errno.EMSGSIZE, os.write, fd, b"x" * 990)
        os.write(fd, b"y\nfive\n")
    assert orders.read_bytes() == b"one\ntwo\nthree\nfive\n"
    append(orders, b"x" * 900 + b"\n")


def test_an_error_appends_nothing_of_that_request(mount: Mount, orders: Path) -> None:
    """An error appends nothing of that request …"""
    mount.run('echo max.message.bytes=1000 >> "$T/.config"', T=orders.parent)
    with opened(orders) as fd:
        fails(errno.EMSGSIZE, os.write, fd, b"good\n" + b"x" * 2000 + b"\ngood too\n")
        fails(errno.EMSGSIZE, os.write, fd, b"good\n" + b"x" * 2000)
        os.write(fd, b"end of it\nlast\n")
    assert orders.read_bytes() == b"last\n"


@pytest.mark.parametrize(
    ("size", "unseen"), [(1_500_000, b""), (3_000_000, b"its end\n")], ids=["two pieces", "three"]
)
def test_a_record_that_is_too_large_for_one_request(mount: Mount, size: int, unseen: bytes) -> None:
    """EMSGSIZE a record over `max.message.bytes` … (of a write in pieces the earlier ones stay: a
    short count, as POSIX has it): who goes on after the short count is told, and no rest of the
    line becomes a record.

    Of three pieces the third, with the newline, never comes: what comes next is taken for it.
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


def test_what_was_refused_comes_again(mount: Mount, orders: Path) -> None:
    """Once more the same is refused once more, and taken when it fits."""
    config = orders.parent / ".config"
    mount.run('echo max.message.bytes=1000 >> "$F"', F=config)
    with opened(orders) as fd:
        for _ in range(3):
            fails(errno.EMSGSIZE, os.write, fd, b"x" * 2000)
        os.write(fd, b" the end of it\n")
        for _ in range(3):
            fails(errno.EMSGSIZE, os.write, fd, b"x" * 2000 + b"\n")
        mount.run('echo max.message.bytes= >> "$F"', F=config)
        os.write(fd, b"x" * 2000 + b"\n")
    assert orders.read_bytes() == b"x" * 2000 + b"\n"


def test_the_largest_record(mount: Mount, orders: Path) -> None:
    """max.message.bytes counts the batch; a record of a mebibyte fits into the default."""
    # The batch's header; the record's lengths (3 bytes each), and 5 more.
    largest = LIMIT - 61 - 11
    with opened(orders) as fd:
        write_all(fd, b"x" * largest + b"\n")
        fails(errno.EMSGSIZE, write_all, fd, b"x" * (largest + 1) + b"\n")
    assert orders.stat().st_size == largest + 1


def test_a_record_without_a_key_in_a_compacted_topic(mount: Mount, orders: Path) -> None:
    """EINVAL a line that …: a compacted topic takes no record without a key. Flush only checks
    that it would be accepted, and returns the errno.
    """
    mount.run('echo cleanup.policy=compact >> "$T/.config"', T=orders.parent)
    with opened(orders) as fd:
        fails(errno.EINVAL, os.write, fd, b"no key\n")
    fd = os.open(orders, APPEND)
    os.write(fd, b"unfinished")
    fails(errno.EINVAL, os.close, fd)
    assert orders.read_bytes() == b""
    assert offsets(orders)["log_end"] == 0


def test_flush_appends_nothing(orders: Path) -> None:
    """Flush only checks that it would be accepted …"""
    with opened(orders) as fd:
        os.write(fd, b"x")
        for _ in range(5):
            os.close(os.dup(fd))
        assert offsets(orders)["log_end"] == 0
    assert orders.read_bytes() == b"x\n"


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO"])
def test_an_error_of_the_disk(steered_mount: SteeredMount, error: str) -> None:
    """ENOSPC/EDQUOT/EIO from the disk (the segment is cut back to its last good batch) …"""
    orders = new_topic(steered_mount)
    name = f"{orders.parent.name}-0/00000000000000000000.log"
    on_disk = steered_mount.data / name
    number = getattr(errno, error)
    with opened(orders) as fd:
        os.write(fd, b"one\ntw")
        size = on_disk.stat().st_size
        steered_mount.daemon.fail("pwrite", name, error)
        fails(number, os.write, fd, b"o\nthree\n")
        assert on_disk.stat().st_size == size
        assert orders.stat().st_size == 4
        # The same write can be tried again.
        os.write(fd, b"o\nthree\n")
    assert orders.read_bytes() == b"one\ntwo\nthree\n"
    topic = orders.parent.name
    assert f"{topic}/0: append refused: {os.strerror(number)}" in steered_mount.events()


@needs_root
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """ENOSPC … (the segment is cut back …): on a real disk that is full, and then is not."""
    (tmp_path / "data").mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(tmp_path / "data")], check=True
    )
    try:
        with mounted(tmp_path) as mount:
            orders = mount.topic()
            filler = mount.data / "filler"
            append(orders, b"one\n")
            with opened(filler, os.O_WRONLY | os.O_CREAT) as fd:
                fails(errno.ENOSPC, write_all, fd, bytes(4 << 20))
            with opened(orders) as fd:
                fails(errno.ENOSPC, write_all, fd, b"x" * 100_000 + b"\n")
            assert orders.read_bytes() == b"one\n"
            filler.unlink()
            append(orders, b"two\n")
            assert orders.read_bytes() == b"one\ntwo\n"
            mount.stop()
    finally:
        subprocess.run(["umount", str(tmp_path / "data")], check=True)


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


def test_while_stopping(steered_mount: SteeredMount) -> None:
    """ESHUTDOWN while stopping."""
    from tests.mount.steering import steered

    base = steered_mount.data.parent / "stopping"
    base.mkdir()
    with steered(base) as mount:
        orders = mount.topic()
        flush_only_when_asked(mount, orders)
        log = "orders-0/00000000000000000000.log"
        with mount.held("fdatasync", log) as hold:
            with opened(orders) as fd:
                os.write(fd, b"one\nunfinished")
                assert mount.process is not None
                mount.process.terminate()
                # The last flush is held: everything is served, but no new work.
                hold.wait()
                fails(errno.ESHUTDOWN, os.write, fd, b"two\n")
                assert orders.read_bytes() == b"one\nunfinished\n"
            hold.release_for_the_end()
        mount.wait()
        mount.start()
        assert orders.read_bytes() == b"one\nunfinished\n"


def test_the_last_errors_are_lines_in_the_log(mount: Mount, orders: Path) -> None:
    """The last errors, with topic, partition, line number and reason, are lines in
    `.kafkafs/log`.
    """
    topic = orders.parent.name
    (orders.parent / "1").touch()
    mount.run('echo max.message.bytes=1000 >> "$T/.config"', T=orders.parent)
    before = mount.events()
    with opened(orders.parent / "1") as fd:
        fails(errno.EMSGSIZE, os.write, fd, b"good\ngood\n" + b"x" * 2000 + b"\n")
    line = mount.events().removeprefix(before)
    assert line.count("\n") == 1
    assert f"{topic}/1" in line
    assert "line 3" in line
    assert "max.message.bytes" in line
    assert "1000" in line


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
