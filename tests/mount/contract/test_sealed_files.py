"""Logs of sealed segments in `.raw`: "A file that cannot grow keeps its pages" in the contract."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.broker_files import BrokerDirectory
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails
from tests.mount.steering import SteeredMount

FIRST = "00000000000000000000.log"


@pytest.fixture
def orders(steered_orders: Path) -> Path:
    return steered_orders


@pytest.fixture
def sealed(steered_mount: SteeredMount, orders: Path) -> Path:
    """The log of a sealed segment; another one follows, which is empty."""
    append(orders, b"a line of the first segment\n" * 20_000)
    steered_mount.daemon.roll(orders.parent.name)
    return raw(orders)


def raw(orders: Path, name: str = FIRST) -> Path:
    return orders.parent / ".raw" / "0" / name


def on_disk(mount: Mount, orders: Path, name: str = FIRST) -> bytes:
    return (mount.data / f"{orders.parent.name}-0" / name).read_bytes()


def spliced(fd: int) -> bytes:
    """A file's bytes as splice(2) gives them, through the page cache."""
    got = b""
    source, target = os.pipe()
    try:
        while count := os.splice(fd, target, 1 << 16, offset_src=len(got)):
            got += os.read(source, count)
    finally:
        os.close(source)
        os.close(target)
    return got


def mapped(fd: int, flags: int) -> bytes:
    with mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ) as pages:
        return pages[:]


def answer(read: Callable[..., bytes], *arguments: object) -> bytes | int | None:
    """The bytes that a call reads, or its errno."""
    try:
        return read(*arguments)
    except OSError as error:
        return error.errno


def test_a_second_reader_asks_for_nothing(
    steered_mount: SteeredMount, orders: Path, sealed: Path
) -> None:
    """By read, pread, splice and maps, while the partition grows."""
    content = on_disk(steered_mount, orders)
    assert sealed.read_bytes() == content
    with open(orders, "ab", buffering=0) as writer, open(sealed, "rb", buffering=0) as opened:
        writer.write(b"x\n")
        os.fstat(opened.fileno())
        # The attributes that came with the name are kept for a second only.
        while steered_mount.daemon.requests().get("getattr"):
            os.fstat(opened.fileno())
        for _ in range(5):
            writer.write(b"x\n")
            with open(sealed, "rb", buffering=0) as reader:
                # An open asks for its directory's mode.
                steered_mount.daemon.requests()
                fd = reader.fileno()
                assert os.fstat(fd).st_size == len(content)
                assert reader.readall() == content
                assert os.pread(fd, 1000, 77_777) == content[77_777:78_777]
                assert spliced(fd) == content
                assert mapped(fd, mmap.MAP_SHARED) == content
                assert mapped(fd, mmap.MAP_PRIVATE) == content
                assert steered_mount.daemon.requests() == {}
    assert raw(orders, "00000000000000020000.log").read_bytes()
    assert steered_mount.daemon.requests().get("read"), "this test sees reads"


def test_a_log_that_is_sealed_while_it_is_open(steered_mount: SteeredMount, orders: Path) -> None:
    """Pages that were cached while it grew, with zeros after its end, are dropped."""
    with open(raw(orders), "rb", buffering=0) as early:
        for number in range(100):
            append(orders, b"%d\n" % number)
            mapped(early.fileno(), mmap.MAP_PRIVATE)
            spliced(early.fileno())
        steered_mount.daemon.roll(orders.parent.name)
        content = on_disk(steered_mount, orders)
        for _ in range(3):
            with open(raw(orders), "rb", buffering=0) as reader:
                assert reader.read() == content
                assert mapped(reader.fileno(), mmap.MAP_SHARED) == content
                assert spliced(reader.fileno()) == content
        assert early.read() == content
        append(orders, b"more\n")
        assert raw(orders).read_bytes() == content == on_disk(steered_mount, orders)


def test_sizes_when_a_log_at_rest_is_rolled(steered_mount: SteeredMount, orders: Path) -> None:
    """A roll trims the indexes, whose size the kernel was given while nothing was appended."""
    append(orders, b"a line\n" * 5000)
    steered_mount.daemon.rest()
    index = raw(orders, "00000000000000000000.index")
    before = index.stat().st_size
    with open(index, "rb", buffering=0) as opened:
        steered_mount.daemon.requests()
        os.fstat(opened.fileno())
        # The attributes that came with the name are kept for a second only.
        while steered_mount.daemon.requests().get("getattr"):
            os.fstat(opened.fileno())
        steered_mount.daemon.roll(orders.parent.name)
        size = len(on_disk(steered_mount, orders, index.name))
        assert size < before
        assert os.fstat(opened.fileno()).st_size == size


def test_it_stays_readable_when_its_segment_goes(
    steered_mount: SteeredMount, orders: Path, sealed: Path
) -> None:
    append(orders, b"kept\n")
    content = on_disk(steered_mount, orders)
    with open(sealed, "rb", buffering=0) as reader:
        fd = reader.fileno()
        half = os.pread(fd, len(content) // 2, 0)
        steered_mount.daemon.remove_head(orders.parent.name, 1)
        steered_mount.daemon.delete_retired()
        assert not sealed.exists()
        assert half + os.pread(fd, len(content), len(half)) == content
        assert os.fstat(fd).st_size == len(content)
        assert os.fstat(fd).st_nlink == 0
        assert mapped(fd, mmap.MAP_SHARED) == content


def test_what_replaces_it_is_read_instead(
    steered_mount: SteeredMount, orders: Path, sealed: Path
) -> None:
    """Compaction, again and again: the disk may give a new file the inode of a deleted one."""
    append(orders, b"".join(b"line %d\n" % number for number in range(3000)))
    steered_mount.daemon.roll(orders.parent.name)
    append(orders, b"active\n")
    for number in range(4):
        before = on_disk(steered_mount, orders)
        assert sealed.read_bytes() == before
        with open(sealed, "rb", buffering=0) as old:
            steered_mount.daemon.clean(orders.parent.name, 1 if number else 2, f"{number}")
            after = on_disk(steered_mount, orders)
            assert after != before
            assert sealed.read_bytes() == sealed.read_bytes() == after
            with open(sealed, "rb", buffering=0) as new:
                assert mapped(new.fileno(), mmap.MAP_SHARED) == after
            assert old.read() == before
        steered_mount.daemon.delete_retired()


def test_an_error_of_the_disk_stays_one(
    steered_mount: SteeredMount, orders: Path, sealed: Path
) -> None:
    """… and leaves nothing in the page cache."""
    content = on_disk(steered_mount, orders)
    append(orders, b"active\n")

    steered_mount.daemon.fail("preadv_nowait", FIRST, "EIO", 20)
    assert set(iter(partial(answer, sealed.read_bytes), content)) == {errno.EIO}
    assert sealed.read_bytes() == content


# -- beside a broker -----------------------------------------------------------------------------


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[tuple[Mount, BrokerDirectory]]:
    """A read-only mount beside a broker."""
    mount = Mount(tmp_path, ["ro"])
    broker = BrokerDirectory(mount.data)
    broker.hold_lock()
    try:
        yield mount, broker
    finally:
        mount.end()
        broker.release_lock()


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_sealed_log_that_a_broker_cuts_and_lets_grow_again(
    beside: tuple[Mount, BrokerDirectory], is_seen: bool
) -> None:
    """It is another file once it is sealed again. `is_seen`: somebody looks at it in between."""
    mount, broker = beside
    partition = broker.partition()
    for number in range(1000):
        partition.append(b"value %d" % number * 100)
    partition.roll()
    partition.append(b"active")
    mount.start()
    path = mount.path / "t" / ".raw" / "0" / FIRST
    disk = partition.directory / FIRST
    before = disk.read_bytes()
    far = len(before) * 3 // 4
    with open(path, "rb", buffering=0) as early:
        fd = early.fileno()
        assert os.pread(fd, 1000, 0) == before[:1000]
        first = os.fstat(fd)
        partition.truncate(100)
        if is_seen:
            assert path.read_bytes() == disk.read_bytes()
            assert path.stat().st_ino != first.st_ino
        for number in range(2000):
            partition.append(b"instead %d" % number * 100)
        partition.roll()
        partition.append(b"active")
        fails(errno.ESTALE, os.pread, fd, 1000, far)
        after = disk.read_bytes()
        for _ in range(2):
            with open(path, "rb", buffering=0) as late:
                found = os.fstat(late.fileno())
                assert (found.st_size, found.st_nlink) == (len(after), 1)
                assert found.st_ino == path.stat().st_ino != first.st_ino
                assert late.readall() == mapped(late.fileno(), mmap.MAP_SHARED) == after
            fails(errno.ESTALE, os.pread, fd, 1000, far)
            now = os.fstat(fd)
            assert (now.st_ino, now.st_size) == (first.st_ino, first.st_size)
