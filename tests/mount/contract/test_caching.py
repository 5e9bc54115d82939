"""The kernel's caches and the notices to the kernel: "Kernel caches" of the contract."""

from __future__ import annotations

import errno
import mmap
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.programs import Running, inotify_left, program
from tests.mount.steering import SteeredMount, steered
from tests.waits import until


@pytest.fixture
def orders(steered_orders: Path) -> Path:
    return steered_orders


def numbered(count: int) -> bytes:
    return b"".join(b"line number %d\n" % number for number in range(count))


def drop_pages(path: Path) -> None:
    """Let the kernel forget the pages of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class Asked:
    """The requests of the kernel since the last call."""

    def __init__(self, mount: SteeredMount) -> None:
        self._mount = mount
        mount.daemon.requests()

    def __call__(self, name: str) -> int:
        return int(self._mount.daemon.requests().get(name, 0))


class Metrics:
    """How many requests of each kind the daemon has counted since the last question."""

    def __init__(self, mount: Mount) -> None:
        self._path = mount / ".kafkafs/metrics"
        self._before: dict[str, int] = {}
        self()

    def __call__(self) -> dict[str, int]:
        text = self._path.read_text()
        found = re.findall(r'kafkafs_requests_total\{[^}]*"(\w+)"[^}]*\} (\d+)', text)
        now = {name: int(count) for name, count in found}
        since = {name: count - self._before.get(name, 0) for name, count in now.items()}
        self._before = now
        return since


# -- what is kept --------------------------------------------------------------------------------


def test_attributes_are_asked_for_once(steered_mount: SteeredMount, orders: Path) -> None:
    """… read handles have … attributes a long timeout (1 h) …"""
    append(orders, numbered(10))
    steered_mount.daemon.rest()
    size = orders.stat().st_size
    asked = Asked(steered_mount)
    for _ in range(20):
        assert orders.stat().st_size == size
        assert orders.parent.stat()
    assert steered_mount.daemon.requests() == {}
    append(orders, b"one more\n")
    steered_mount.daemon.rest()
    orders.stat()
    steered_mount.daemon.requests()
    for _ in range(20):
        assert orders.stat().st_size == size + 9
    assert asked("getattr") == 0


def test_attributes_are_not_kept_after_a_change_of_the_mode(own: Mount) -> None:
    """… since the kernel uses the old mode for a moment where it may keep the new one."""
    orders = own.topic()
    asked = Metrics(own)
    for path in (orders, orders.parent):
        path.chmod(0o700)
        asked()
        for _ in range(100):
            assert (orders.parent / ".jsonl/0").stat()
        assert asked()["getattr"] >= 100


def test_appends_by_opening_ask_for_no_attributes(own: Mount) -> None:
    """`echo x >> 0`, again and again: who opens a file that he has appended to need not ask whether
    he may.
    """
    orders = own.topic()
    asked = Metrics(own)
    for _ in range(100):
        fd = os.open(orders, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"x\n")
        os.close(fd)
    counted = asked()
    assert counted["write"] == 100
    # Some for the metrics' own file, and what came with the name is kept for a second.
    assert counted["getattr"] <= 5
    # Somebody looks, once: that costs his own questions, no more.
    with open(orders, "rb") as reader:
        assert reader.read() == b"x\n" * 100
    asked()
    for _ in range(100):
        fd = os.open(orders, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"x\n")
        os.close(fd)
    assert asked()["getattr"] <= 5
    # Beside an open appender, too.
    with open(orders, "ab", buffering=0) as writer:
        asked()
        for _ in range(100):
            writer.write(b"x\n")
            os.close(os.open(orders, os.O_RDONLY))
        assert asked()["getattr"] <= 5


def test_a_read_does_not_ask_for_attributes(steered_mount: SteeredMount, orders: Path) -> None:
    """… with timeout 0 each read() asks for the attributes first …: here none does."""
    append(orders, numbered(20_000))
    with open(orders, "rb", buffering=0) as file:
        asked = Asked(steered_mount)
        while file.read(4096):
            pass
    assert asked("getattr") == 0


@pytest.fixture(scope="module")
def unchanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteeredMount]:
    """A read-only mount of a directory that nobody writes to: `orders/0` has `numbered(20_000)`."""
    base = tmp_path_factory.mktemp("unchanging")
    with mounted(base) as mount:
        append(mount.topic("orders"), numbered(20_000))
    with steered(base, "ro") as mount:
        yield mount


@pytest.mark.parametrize("name", ["0", ".raw/0/00000000000000000000.log"])
def test_pages_are_kept_between_opens(unchanging: SteeredMount, name: str) -> None:
    """… read handles have keep_cache …: what nothing was appended to is not read again.

    Where something may be appended, reads pass the cache by (`kafkafs/decisions`).
    """
    path = unchanging / "orders" / name
    content = path.read_bytes()
    asked = Asked(unchanging)
    for _ in range(3):
        assert path.read_bytes() == content
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map:
            assert map[:] == content
    assert asked("read") == 0
    drop_pages(path)
    assert path.read_bytes() == content
    assert asked("read") > 0, "this test sees reads"


# -- notices -------------------------------------------------------------------------------------


def test_sizes_are_exact_at_once(steered_mount: SteeredMount, orders: Path) -> None:
    """So before an append is answered, every *other* inode of that partition which the kernel
    knows (… older generations … `.raw`, `.meta`) gets `invalidate_inode(attr_only=True)` …

    `st_size` is exact, always (the plain view at once …).
    """
    topic = orders.parent
    append(orders, b"x" * 99 + b"\n")
    steered_mount.daemon.roll(topic.name)
    append(orders, b"x" * 99 + b"\n")
    older = os.open(orders, os.O_RDONLY)
    steered_mount.daemon.remove_head(topic.name, 1)
    raw = topic / ".raw" / "0" / "00000000000000000001.log"
    on_disk = steered_mount.data / f"{topic.name}-0" / raw.name
    offsets = topic / ".meta" / "0" / "offsets"
    try:
        shown = 100
        writer = os.open(orders, os.O_WRONLY | os.O_APPEND)
        for number in range(30):
            # All are in the kernel's cache.
            modified = orders.stat().st_mtime_ns
            os.fstat(older), raw.stat(), offsets.stat()
            line = b"y" * number + b"\n"
            os.write(writer, line)
            shown += len(line)
            assert os.fstat(older).st_size == shown + 100
            assert orders.stat().st_size == shown
            assert os.fstat(writer).st_size == shown
            assert raw.stat().st_size == on_disk.stat().st_size
            assert offsets.stat().st_size == len(offsets.read_bytes())
            assert f"log_end {number + 3}\n" in offsets.read_text()
            assert orders.stat().st_mtime_ns > modified
            assert os.fstat(older).st_mtime_ns == orders.stat().st_mtime_ns
            assert raw.stat().st_mtime_ns >= orders.stat().st_mtime_ns
        os.close(writer)
    finally:
        os.close(older)


def test_bytes_are_right_at_once(steered_mount: SteeredMount, orders: Path) -> None:
    """No read is stale after an append through another handle: cached pages that grow, maps."""
    content = b""
    reader = os.open(orders, os.O_RDONLY)
    raw = os.open(orders.parent / ".raw" / "0" / "00000000000000000000.log", os.O_RDONLY)
    on_disk = steered_mount.data / f"{orders.parent.name}-0" / "00000000000000000000.log"
    try:
        for number in range(50):
            append(orders, b"%d\n" % number)
            content += b"%d\n" % number
            assert os.pread(reader, 10_000, 0) == content
            assert os.pread(raw, 100_000, 0) == on_disk.read_bytes()
            assert orders.read_bytes() == content
            private = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ}
            with mmap.mmap(reader, 0, **private) as mapped:
                assert mapped[:] == content
    finally:
        os.close(reader)
        os.close(raw)


def test_the_written_inode_while_a_line_is_unfinished(orders: Path) -> None:
    """… the written one too where the kernel's guess is wrong: … when what is rendered differs
    from what was written …
    """
    with open(orders, "ab", buffering=0) as writer:
        writer.write(b"unfinished")
        assert os.fstat(writer.fileno()).st_size == orders.stat().st_size == 0
        writer.write(b" line\nand")
        assert os.fstat(writer.fileno()).st_size == orders.stat().st_size == 16
        assert orders.read_bytes() == b"unfinished line\n"
        writer.write(b" more")
        assert orders.stat().st_size == 16


def test_the_written_inode_at_release(orders: Path) -> None:
    """… the written one too where the kernel's guess is wrong: at release …"""
    for number in range(20):
        with open(orders, "ab", buffering=0) as writer:
            writer.write(b"no newline")
            assert orders.stat().st_size == 11 * number
        assert orders.stat().st_size == 11 * (number + 1)
        assert orders.read_bytes() == b"no newline\n" * (number + 1)


def test_a_refused_write_leaves_the_size(orders: Path) -> None:
    """… where the kernel's guess is wrong: nothing was appended."""
    append(orders, b"one\n")
    with open(orders, "ab", buffering=0) as writer:
        # Each is one request, wherever its bytes lie in memory.
        part = b"x" * 1_000_000
        assert writer.write(part) == len(part)
        fails(errno.EMSGSIZE, writer.write, part)
        assert orders.stat().st_size == 4
        writer.write(b"x" * 100 + b"\ntwo\n")
    assert orders.read_bytes() == b"one\ntwo\n"
    assert orders.stat().st_size == 8


# -- new histories -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["epochs", "no-epochs"])
def named_mount(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SteeredMount]:
    """On a kernel that takes notices about names, and on one that does not."""
    with steered(tmp_path_factory.mktemp("named"), epochs=request.param) as started:
        yield started


@pytest.mark.parametrize("view", ["", ".batches/"])
def test_the_name_leads_elsewhere_at_once(named_mount: SteeredMount, view: str) -> None:
    """… publishes a *new* inode under the name …: once the write that does it is answered, nobody
    finds the old one any more.
    """
    orders = new_topic(named_mount)
    topic = orders.parent
    for number in range(5):
        append(orders, b"%d\n" % number)
        named_mount.daemon.roll(topic.name)
    append(orders, b"last\n")
    for number in range(1, 6):
        shown = topic / f"{view}0"
        before = shown.stat().st_ino, orders.stat().st_ino
        (topic / ".remove-head").write_text("1\n")
        assert shown.stat().st_ino != before[0]
        assert orders.stat().st_ino != before[1]
        assert orders.read_bytes().splitlines()[0] == (b"%d" % number if number < 5 else b"last")


def test_who_stands_in_a_topic_stays_there(named_mount: SteeredMount) -> None:
    """The working directory keeps its name when all names are looked up again."""
    orders = new_topic(named_mount)
    append(orders, b"one\n")
    named_mount.daemon.roll(orders.parent.name)
    append(orders, b"two\n")
    script = "cat 0; echo 1 > .remove-head; cat 0; stat 0 > /dev/null; pwd -P; /bin/pwd"
    done = subprocess.run(
        ["bash", "-c", script], cwd=orders.parent, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["one", "two", "two", *[str(orders.parent)] * 2]


def test_the_name_is_asked_for_again_only_where_that_is_needed(named_mount: SteeredMount) -> None:
    """Names that go away are dropped … where the kernel has it, else they have entry timeout 0."""
    orders = new_topic(named_mount)
    orders.stat()
    named_mount.daemon.requests()
    for _ in range(10):
        orders.stat()
    assert named_mount.daemon.requests().get("lookup", 0) == (0 if named_mount.epochs else 10)


def test_an_old_file_has_no_link_and_its_watchers_hear_of_it(
    steered_mount: SteeredMount, orders: Path
) -> None:
    """… once the kernel has asked for its attributes, as fstat of who has it open does."""
    inotify_left()
    append(orders, b"one\n")
    steered_mount.daemon.roll(orders.parent.name)
    append(orders, b"two\n")
    steered_mount.daemon.rest()
    with open(orders, "rb", buffering=0) as old:
        assert os.fstat(old.fileno()).st_nlink == 1
        with Running([program("inotifywait"), "-m", "--format", "%e", orders]) as watcher:
            until(lambda: "Watches established" in watcher.errors())
            steered_mount.daemon.remove_head(orders.parent.name, 1)
            assert orders.stat().st_nlink == 1
            assert os.fstat(old.fileno()).st_nlink == 0
            old.close()
            watcher.wait(lambda data: b"DELETE_SELF" in data)


# -- what programs read and write by -------------------------------------------------------------


def test_programs_read_a_partition_by_the_megabyte(mount: Mount, orders: Path) -> None:
    """`st_blksize` is what programs should read by (1 MiB), as each read is a request.

    A smaller file is not said to have one block: of such a one `tail -c` reads all.
    """
    assert orders.stat().st_blksize == 4096
    text = numbered(300_000)
    append(orders, text)
    for name in ("0", ".kv/0", ".follow/0", "0@start", "0@0..400000"):
        assert (orders.parent / name).stat().st_blksize == 1 << 20, name
    # A read through the page cache is no request.
    for name in (".snapshot/0", ".kv/.snapshot/0", "0@0..200000"):
        assert (orders.parent / name).stat().st_blksize == 128 << 10, name
    for name in ("0@0..1", ".config", ".control/verify", ".meta/0/offsets", "."):
        assert (orders.parent / name).stat().st_blksize == 4096, name
    asked = Metrics(mount)
    with orders.open("rb") as file:
        assert sum(map(len, file)) == len(text)
    # Each whole megabyte, the rest, and the end.
    assert asked()["read"] <= len(text) // (1 << 20) + 3
