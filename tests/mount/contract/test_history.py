"""One inode shows one history: "Content never changes under a reader" of the contract."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.tree.partition.generations import KEPT
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails
from tests.mount.programs import Running, inotify_left, program
from tests.mount.steering import SteeredMount
from tests.waits import until

LINE = 20
"""Bytes of each line that `lines` makes."""


def lines(start: int, end: int) -> bytes:
    """Numbered lines; those with an odd number are marked."""
    return b"".join(
        b"%06d %s\n" % (number, b"odd line ..." if number % 2 else b"even line ..")
        for number in range(start, end)
    )


class Orders:
    """A partition, and what happens to it."""

    def __init__(self, mount: SteeredMount) -> None:
        self.mount = mount
        self.path = new_topic(mount)
        self.topic = self.path.parent.name
        self.end = 0

    def append(self, count: int) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(lines(self.end, self.end + count))
        self.end += count

    def segment(self, count: int) -> None:
        """A sealed segment more."""
        self.append(count)
        self.roll()

    def roll(self) -> None:
        self.mount.daemon.roll(self.topic)

    def remove_head(self, count: int = 1) -> None:
        self.mount.daemon.remove_head(self.topic, count)

    def clean(self, count: int) -> None:
        """Compaction of the first segments: the odd lines go."""
        self.mount.daemon.clean(self.topic, count, "odd")

    def delete(self) -> None:
        """file.delete.delay.ms has passed."""
        self.mount.daemon.delete_retired()

    @property
    def inode(self) -> int:
        return self.path.stat().st_ino

    @contextlib.contextmanager
    def opened(self, flags: int = 0) -> Iterator[int]:
        fd = os.open(self.path, os.O_RDONLY | flags)
        try:
            yield fd
        finally:
            os.close(fd)


@pytest.fixture
def orders(steered_mount: SteeredMount) -> Orders:
    return Orders(steered_mount)


def whole(fd: int) -> bytes:
    """All that a descriptor shows."""
    return os.pread(fd, os.fstat(fd).st_size + 1, 0)


# -- one inode, one history ----------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
def test_bytes_never_change_and_the_size_never_shrinks(orders: Orders, flags: int) -> None:
    """One inode shows one history: bytes below its size never change and the size never shrinks.

    An old inode that is still open goes on growing with new appends … across roll, retention and
    compaction. It reads replaced or deleted segments until `file.delete.delay.ms` has passed …
    """
    orders.append(30)
    with orders.opened(flags) as fd:

        def check() -> None:
            assert os.fstat(fd).st_size == orders.end * LINE
            assert whole(fd) == lines(0, orders.end)

        check()
        for _ in range(3):
            orders.roll()
            check()
            orders.append(30)
            check()
        orders.remove_head()
        check()
        orders.append(5)
        check()
        orders.roll()
        orders.clean(2)
        check()
        orders.append(5)
        check()
        orders.remove_head()
        check()
        orders.append(5)
        check()


def test_a_new_inode_under_the_name(orders: Orders) -> None:
    """If retention deletes segments or compaction rewrites them, the name gets a new inode.

    This happens once per run, and invalidates the kernel's cached entry.
    """
    for _ in range(5):
        orders.segment(10)
    orders.append(10)
    seen = [orders.inode]
    assert orders.path.read_bytes() == lines(0, 60)

    orders.remove_head(2)
    seen.append(orders.inode)
    assert orders.path.stat().st_size == 40 * LINE
    assert orders.path.read_bytes() == lines(20, 60)
    assert orders.inode == seen[-1], "once per run"

    orders.clean(2)
    seen.append(orders.inode)
    even = b"".join(lines(number, number + 1) for number in range(20, 40, 2))
    assert orders.path.read_bytes() == even + lines(40, 60)
    assert orders.path.stat().st_size == len(even) + 20 * LINE
    assert orders.inode == seen[-1], "once per run"

    orders.remove_head(1)
    seen.append(orders.inode)
    assert orders.path.read_bytes() == lines(40, 60)
    assert len(set(seen)) == 4


# -- deleted bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
def test_bytes_that_are_gone_are_estale(orders: Orders, flags: int) -> None:
    """A read of deleted bytes fails with ESTALE, and never returns zeros or other bytes."""
    count = 2 * KEPT // LINE
    orders.segment(count)
    orders.append(10)
    with orders.opened(flags) as fd:
        orders.remove_head()
        assert os.pread(fd, 100, 0) == lines(0, 5)
        orders.delete()
        # Not where the kernel has still the page of the read above.
        for position in (1 << 18, KEPT // 2 + 7):
            fails(errno.ESTALE, os.pread, fd, 100, position)
        # The other bytes can be read, and the file grows.
        assert os.pread(fd, 1000, count * LINE) == lines(count, count + 10)
        orders.append(1)
        assert os.pread(fd, 100, (count + 10) * LINE) == lines(count + 10, count + 11)
        assert os.fstat(fd).st_size == orders.end * LINE
        assert "ESTALE" in orders.mount.events() or "deleted" in orders.mount.events()


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
def test_the_megabyte_before_a_cut_is_kept(orders: Orders, flags: int) -> None:
    """(The kernel reads whole pages, and ahead: keep the rendered megabyte before such a cut, so
    that a reader positioned after it is not hurt.)
    """
    count = 2 * KEPT // LINE
    orders.segment(count)
    orders.append(1000)
    cut = count * LINE
    with orders.opened(flags) as fd:
        orders.remove_head()
        orders.delete()
        assert os.pread(fd, 100, cut) == lines(count, count + 5)
        expected = lines(0, orders.end)
        for position in (cut - 1, cut - 4096, cut - KEPT + 1, cut - KEPT):
            assert os.pread(fd, 5000, position) == expected[position : position + 5000]
        assert os.pread(fd, KEPT, cut - 1000) == expected[cut - 1000 :]
    with orders.opened(os.O_DIRECT) as fd:
        assert whole(fd) == lines(count, orders.end)


def test_a_reader_whose_page_holds_the_cut(orders: Orders) -> None:
    """… a reader positioned after it is not hurt: also one that has read nothing yet."""
    orders.segment(123)
    orders.append(200)
    with open(orders.path, "rb") as file:
        orders.remove_head()
        orders.delete()
        file.seek(123 * LINE)
        assert file.read() == lines(123, 323)


# -- tail ----------------------------------------------------------------------------------------


class Tail:
    """A running `tail`; its lines are waited for."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            ["tail", "-s", "0.02", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        )

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read(self, size: int) -> bytes:
        """The next `size` bytes of its output; fewer if they do not come."""
        assert self.process.stdout is not None
        data = b""
        while len(data) < size:
            ready, _, _ = select.select([self.process.stdout.fileno()], [], [], 20)
            if not ready or not (more := os.read(self.process.stdout.fileno(), size - len(data))):
                break
            data += more
        return data

    def says(self) -> bytes:
        """The next line on standard error."""
        assert self.process.stderr is not None
        said = b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stderr.fileno()], [], [], 20)
            assert ready, said
            said += os.read(self.process.stderr.fileno(), 1)
        return said


def test_tail_capital_f_starts_over_when_the_head_is_dropped(orders: Orders) -> None:
    """`tail -F` reopens by name: after the head was dropped it says "has been replaced" and prints
    what is retained once more …
    """
    orders.segment(10)
    orders.append(5)
    with Tail("-F", "-n", "+1", "--max-unchanged-stats=1", orders.path) as tail:
        assert tail.read(15 * LINE) == lines(0, 15)
        orders.roll()
        orders.append(5)
        assert tail.read(5 * LINE) == lines(15, 20), "a roll changes nothing"
        orders.remove_head()
        assert b"has been replaced" in tail.says()
        assert tail.read(10 * LINE) == lines(10, 20)
        orders.append(5)
        assert tail.read(5 * LINE) == lines(20, 25)


# -- st_ino over mounts --------------------------------------------------------------------------


def test_a_recovery_that_cuts_makes_a_new_history(own: Mount) -> None:
    """If recovery truncates the log, the name gets a new inode."""
    orders = own.topic()
    own.run("for n in 1 2 3; do echo record $n >> orders/0; done")
    before = orders.stat().st_ino
    own.kill()
    log = own.data / "orders-0" / "00000000000000000000.log"
    # Of the last batch: one that has its length was written whole, and shown.
    log.write_bytes(log.read_bytes()[:-3] + b"\xff\xff\xff")
    own.start()
    assert orders.read_bytes() == b"record 1\nrecord 2\n"
    after = orders.stat().st_ino
    assert after != before
    assert "00000000000000000000.log" in own.events(), "what was cut is a line in the log"
    own.run("echo another >> orders/0")
    own.restart()
    assert orders.stat().st_ino == after
    assert orders.read_bytes() == b"record 1\nrecord 2\nanother\n"


def test_an_old_file_has_no_link_and_its_watchers_hear_of_it(steered_mount: SteeredMount) -> None:
    """… once the kernel has asked for its attributes, as fstat of who has it open does."""
    inotify_left()
    orders = Orders(steered_mount)
    orders.segment(5)
    orders.append(5)
    steered_mount.daemon.rest()
    with open(orders.path, "rb", buffering=0) as old:
        assert os.fstat(old.fileno()).st_nlink == 1
        with Running([program("inotifywait"), "-m", "--format", "%e", orders.path]) as watcher:
            until(lambda: "Watches established" in watcher.errors())
            orders.remove_head()
            assert orders.path.stat().st_nlink == 1
            assert os.fstat(old.fileno()).st_nlink == 0
            assert os.fstat(old.fileno()).st_ino != orders.path.stat().st_ino
            old.close()
            watcher.wait(lambda data: b"DELETE_SELF" in data)


def identity(path: Path) -> tuple[int, int, bytes]:
    return path.stat().st_ino, path.stat().st_size, path.read_bytes()


def test_a_cut_history_stays_over_a_remount(tmp_path: Path) -> None:
    """… is kept on disk beside a fingerprint of the segments: the same after a remount …, also
    after retention and compaction.
    """
    from tests.mount.steering import steered

    with steered(tmp_path) as mount:
        orders = Orders(mount)
        for _ in range(4):
            orders.segment(10)
        orders.append(10)
        orders.remove_head()
        orders.clean(2)
        before = identity(orders.path)
        mount.restart()
        assert identity(orders.path) == before
        mount.kill()
        mount.start()
        assert identity(orders.path) == before
