"""Snapshots and ranges whose end is reached: they never change, so the page cache keeps them."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.contract.test_caching import Metrics
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.steering import SteeredMount

VIEWS = ["", ".kv", ".jsonl", ".batches"]


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"line number %d\n" % number for number in range(start, end))


def snapshot(path: Path, view: str = "") -> Path:
    """The snapshot's name of a partition's file."""
    return path.parent / view / ".snapshot" / path.name


def elsewhere(script: str, *arguments: object) -> bytes:
    """Run a Python script in another process; its output."""
    command = [sys.executable, "-c", f"import os, sys\n{script}", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True).stdout


# -- what it shows -------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_a_snapshot_never_grows(mount: Mount, orders: Path, view: str) -> None:
    append(orders, numbered(0, 1000))
    live = orders.parent / view / "0"
    before = live.read_bytes()
    with open(snapshot(orders, view), "rb", buffering=0) as file:
        append(orders, numbered(1000, 2000))
        assert file.read() == before
        assert os.fstat(file.fileno()).st_size == len(before)
        assert os.pread(file.fileno(), 100, len(before) - 50) == before[-50:]
        # The process that has appended sees it.
        after = live.read_bytes()
        assert len(after) > len(before)
        assert snapshot(orders, view).read_bytes() == after
        assert mount.run('cat "$S"', S=snapshot(orders, view)) == after
        assert os.fstat(file.fileno()).st_size == len(before)


def test_a_range_from_the_start_to_the_end_is_a_snapshot(orders: Path) -> None:
    append(orders, numbered(0, 10))
    names = [snapshot(orders), orders.parent / "0@..end", orders.parent / "0@start..end"]
    inodes = [elsewhere("print(os.stat(sys.argv[1]).st_ino)", name) for name in names]
    assert len(set(inodes)) == 1
    with open(names[1], "rb"):
        append(orders, numbered(10, 11))
        assert [name.read_bytes() for name in names] == [numbered(0, 11)] * 3


def test_a_range_to_the_end_is_one_too(orders: Path) -> None:
    """… as it is when the name is looked up, also while another one of that name is open."""
    append(orders, numbered(0, 10))
    name = orders.parent / "0@4..end"
    with open(name, "rb", buffering=0) as file:
        before = file.read()
        assert before.endswith(numbered(9, 10))
        append(orders, numbered(10, 12))
        assert name.read_bytes().endswith(numbered(9, 12))
        assert elsewhere("print(os.stat(sys.argv[1]).st_ino)", name) != b"%d\n" % (
            os.fstat(file.fileno()).st_ino
        )
        assert os.pread(file.fileno(), 1 << 16, 0) == before


@pytest.mark.parametrize("view", VIEWS)
def test_its_directory_lists_the_partitions(mount: Mount, view: str) -> None:
    orders = new_topic(mount, partitions=3)
    for number in range(3):
        append(orders.parent / str(number), numbered(number, 10))
    directory = snapshot(orders, view).parent
    assert mount.run('ls -a "$D"', D=directory).split() == [b"0", b"1", b"2"]
    assert ".snapshot" not in os.listdir(directory.parent)
    assert not (directory / "3").exists()
    assert not (directory / "0@0").exists()
    assert not (directory / "0@..end").exists()
    assert not (orders.parent / ".follow" / ".snapshot").exists()
    live = mount.run('cat "$D"/[0-9]', D=orders.parent / view)
    assert mount.run('cat "$D"/*', D=directory) == live


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


def test_while_nothing_is_appended_it_is_one_file(own: Mount) -> None:
    orders = own.topic()
    append(orders, numbered(0, 100))
    path = snapshot(orders)

    def found() -> list[bytes]:
        ask = "found = os.stat(sys.argv[1]); print(found.st_ino, found.st_mtime_ns, found.st_size)"
        return [elsewhere(ask, snapshot(orders, view)) for view in VIEWS]

    first = found()
    assert len(set(first)) == 4
    assert found() == first
    own.restart()
    assert found() == first
    append(orders, b"x\n")
    assert not set(found()) & set(first)
    range_ = orders.parent / "0@0..100"
    ask = "found = os.stat(sys.argv[1]); print(found.st_ino, found.st_mtime_ns, found.st_size)"
    assert elsewhere(ask, range_) == first[0]
    assert path.exists()


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


def test_compaction_beside_an_open_one(steered_mount: SteeredMount, steered_orders: Path) -> None:
    daemon, topic = steered_mount.daemon, steered_orders.parent.name
    append(steered_orders, numbered(0, 10_000))
    daemon.roll(topic)
    append(steered_orders, numbered(10_000, 11_000))
    data = numbered(0, 11_000)
    with open(snapshot(steered_orders), "rb", buffering=0) as file:
        inode = os.fstat(file.fileno()).st_ino
        daemon.clean(topic, 1, "1")
        assert snapshot(steered_orders).stat().st_ino != inode
        cleaned = snapshot(steered_orders).read_bytes()
        assert cleaned == steered_orders.read_bytes()
        assert len(cleaned) < len(data)
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
            assert shared[:] == data
