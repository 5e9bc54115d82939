"""Snapshots and ranges whose end is reached: they never change, so the page cache keeps them."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.contract.test_caching import Metrics
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.steering import SteeredMount


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"line number %d\n" % number for number in range(start, end))


def snapshot(path: Path, view: str = "") -> Path:
    """The snapshot's name of a partition's file."""
    return path.parent / view / ".snapshot" / path.name


def elsewhere(script: str, *arguments: object) -> bytes:
    """Run a Python script in another process; its output."""
    command = [sys.executable, "-c", f"import os, sys\n{script}", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True).stdout


# -- who gets which ------------------------------------------------------------------------------

APPEND_ELSEWHERE = """
import subprocess
def append(path):
    subprocess.run(["bash", "-c", 'echo more >> "$0"', path], check=True)
"""

STAT_AND_OPEN = f"""{APPEND_ELSEWHERE}
import threading
name, appended = sys.argv[1:3]
found = os.stat(name)
append(appended)
opened = []
def read():
    with open(name, "rb") as file:
        opened.append((os.fstat(file.fileno()).st_ino, len(file.read())))
for _ in range(2):
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
assert opened[0] == (found.st_ino, found.st_size), opened
assert opened[1] != opened[0] and opened[1][1] == found.st_size + 5, opened
"""


@pytest.mark.parametrize("name", [".snapshot/0", "0@..end", ".jsonl/.snapshot/0"])
def test_a_stat_and_the_open_after_it_agree(orders: Path, name: str) -> None:
    """… also where another thread of the process opens it, and only until it is opened."""
    append(orders, numbered(0, 10))
    script = STAT_AND_OPEN
    if "jsonl" in name:
        script = script.replace("== found.st_size + 5", "> found.st_size")
    elsewhere(script, orders.parent / name, orders)


def test_a_listing_and_the_open_after_it_agree(orders: Path) -> None:
    append(orders, numbered(0, 10))
    elsewhere(
        APPEND_ELSEWHERE
        + """
with os.scandir(sys.argv[1]) as entries:
    found = {entry.name: entry.inode() for entry in entries}
append(sys.argv[2])
with open(sys.argv[1] + "/0") as file:
    assert os.fstat(file.fileno()).st_ino == found["0"]
with open(sys.argv[1] + "/0") as file:
    assert os.fstat(file.fileno()).st_ino != found["0"]
""",
        snapshot(orders).parent,
        orders,
    )


def test_another_process_gets_what_is_there(orders: Path) -> None:
    append(orders, numbered(0, 10))
    path = snapshot(orders)
    size = path.stat().st_size
    elsewhere(f"{APPEND_ELSEWHERE}\nappend(sys.argv[1])", orders)
    assert int(elsewhere("print(os.stat(sys.argv[1]).st_size)", path)) == size + 5
    assert path.stat().st_size == size
    assert path.stat().st_size == size
    path.read_bytes()
    assert path.stat().st_size == size + 5


@pytest.mark.parametrize("name", [".snapshot/0", "0@..end", "0@2..end", ".jsonl/.snapshot/0"])
def test_who_appends_sees_it(orders: Path, name: str) -> None:
    """… also right after a look at the name."""
    append(orders, numbered(0, 10))
    path = orders.parent / name
    for _ in range(3):
        found = path.stat()
        append(orders, b"more\n")
        with open(path, "rb") as file:
            assert os.fstat(file.fileno()).st_ino != found.st_ino
            assert len(file.read()) > found.st_size
        os.listdir(path.parent)
        before = path.stat().st_size
        append(orders, b"more\n")
        assert path.stat().st_size > before


# -- what the page cache keeps -------------------------------------------------------------------


def big(own: Mount, size: int = 4 << 20) -> tuple[Path, bytes]:
    orders = own.topic()
    data = numbered(0, size // 15)
    append(orders, data)
    return orders, data


@pytest.mark.parametrize("options", [(), ("isolation=read_uncommitted",)])
def test_what_was_read_once_is_not_read_again(tmp_path: Path, options: tuple[str, ...]) -> None:
    with mounted(tmp_path, *options) as mount:
        orders, data = big(mount)
        asked = Metrics(mount)
        for name in (".snapshot/0", ".snapshot/0", "0@..end", f"0@0..{len(data.splitlines())}"):
            path = orders.parent / name
            read = mount.run('dd bs=4k status=none if="$P"', P=path)
            assert read == data
            counted = asked()
            if name == ".snapshot/0" and path == snapshot(orders) and counted.get("read", 0) > 2:
                continue
            # That of the metrics, and no attributes for each read.
            assert counted.get("read", 0) <= 2, name
            assert counted.get("getattr", 0) <= 4, name
        # An append beside it drops nothing of what is open.
        with open(snapshot(orders), "rb", buffering=0) as file:
            append(orders, b"more\n")
            asked()
            while file.read(4096):
                pass
            counted = asked()
            assert counted.get("read", 0) <= 2
            assert counted.get("getattr", 0) <= 4


def test_it_can_be_mapped(own: Mount) -> None:
    orders, data = big(own)
    with open(snapshot(orders), "rb") as file:
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
            append(orders, b"more\n")
            assert shared[:] == data
        with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as private:
            private[:4] = b"LINE"
            assert private[4:] == data[4:]
        assert file.read() == data


def test_the_pages_of_a_range_that_has_grown_are_dropped(own: Mount) -> None:
    """A private mapping and sendfile put the end of a growing file into the page cache, followed
    by zeros.
    """
    orders = own.topic()
    append(orders, numbered(0, 10))
    path = orders.parent / "0@0..20"
    for is_open in (True, False):
        first = os.open(path, os.O_RDONLY)
        with mmap.mmap(first, 0, mmap.MAP_PRIVATE) as mapped:
            assert mapped[:10]
        if not is_open:
            os.close(first)
        append(orders, numbered(10, 20) if is_open else b"")
        for _ in range(2):
            with open(path, "rb") as file:
                assert file.read() == numbered(0, 20)
                with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
                    assert shared[:] == numbered(0, 20)
        if is_open:
            os.close(first)
    with (
        open(snapshot(orders), "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared,
    ):
        assert shared[:] == numbered(0, 20)


def test_chmod_reaches_an_open_one(orders: Path) -> None:
    append(orders, numbered(0, 10))
    with open(snapshot(orders), "rb") as file:
        for _ in range(2):
            assert os.fstat(file.fileno()).st_mode & 0o777 == orders.stat().st_mode & 0o777
            assert snapshot(orders).stat().st_mode == orders.stat().st_mode
            os.chmod(orders, 0o600)
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


# -- what it refuses -----------------------------------------------------------------------------


def test_it_cannot_be_written(mount: Mount, orders: Path) -> None:
    append(orders, numbered(0, 10))
    for path in (snapshot(orders), orders.parent / "0@2..4"):
        before = path.read_bytes()
        for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            fails(errno.EROFS, os.open, path, flags)
        fails(errno.EROFS, os.open, path, os.O_RDONLY | os.O_TRUNC)
        fails(errno.EROFS, os.truncate, path, 0)
        fails(errno.EPERM, os.chmod, path, 0o600)
        fails(errno.EPERM, os.unlink, path)
        path.touch()
        assert path.read_bytes() == before
    directory = snapshot(orders).parent
    fails(errno.EROFS, os.open, directory / "1", os.O_WRONLY | os.O_CREAT)
    assert f"open of {orders.parent.name}" in mount.events()
    fails(errno.EPERM, os.mkdir, directory / "x")


# -- when the past changes -----------------------------------------------------------------------


def test_retention_beside_an_open_one(steered_mount: SteeredMount, steered_orders: Path) -> None:
    """It reads what it showed until the files are deleted, and then no other bytes."""
    daemon, long, topic = steered_mount.daemon, steered_orders, steered_orders.parent.name
    append(long, numbered(0, 70_000))  # more than is kept in memory
    daemon.roll(topic)
    append(long, numbered(70_000, 71_000))
    data = numbered(0, 71_000)
    with open(snapshot(long), "rb", buffering=0) as file:
        assert file.read(10_000) == data[:10_000]
        inode = os.fstat(file.fileno()).st_ino
        daemon.remove_head(topic, 1)
        assert file.read(300_000) == data[10_000:310_000]
        assert snapshot(long).stat().st_ino != inode
        assert snapshot(long).read_bytes() == numbered(70_000, 71_000)
        assert os.pread(file.fileno(), len(data), 0) == data
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        daemon.delete_retired()
        fails(errno.ESTALE, os.pread, file.fileno(), 10_000, 0)
        assert os.pread(file.fileno(), len(data), len(data) - 1_000) == data[-1_000:]
        assert os.fstat(file.fileno()).st_size == len(data)
