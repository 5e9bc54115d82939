"""A request that waits for a disk (fsync, a cold read, a measurement) delays no other request.

A test blocks a disk operation. The daemon must answer all other requests before the test releases
the operation. If the operation stays blocked for long, the test fails.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.contract.conftest import flush_only_when_asked, new_topic
from tests.mount.contract.writing import append
from tests.mount.steering import SteeredMount, steered
from tests.storage.logs import append as append_records

LOG = "00000000000000000000.log"


def log_name(path: Path) -> str:
    """How the paths of a partition's log end."""
    return f"{path.parent.name}-{path.name}/{LOG}"


@pytest.fixture
def orders(steered_mount: SteeredMount) -> Path:
    orders = new_topic(steered_mount)
    flush_only_when_asked(steered_mount, orders)
    append(orders, b"one\n")
    return orders


@contextlib.contextmanager
def stuck(
    mount: SteeredMount, operation: str, suffix: str, function: Callable[[], object]
) -> Iterator[list[object]]:
    """Run a function in a thread, which gets stuck in an operation of the disk.

    It waits there until the block ends; what it returned is in the list afterwards.
    """
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    with mount.held(operation, suffix) as hold:
        thread.start()
        try:
            hold.wait()
            yield results
            assert not results
        finally:
            hold.release()
            thread.join()
    assert len(results) == 1


def everything_else_goes_on(mount: SteeredMount, other: Path) -> None:
    """Requests of all kinds that have nothing to do with who waits."""
    size = other.stat().st_size
    append(other, b"another\n")
    assert other.stat().st_size == size + 8
    assert other.read_bytes().endswith(b"another\n")
    fd = os.open(other, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"more\n")
    os.fsync(fd)
    os.close(fd)
    assert (other.parent / ".meta" / "0" / "offsets").read_bytes()
    assert (mount / ".kafkafs" / "log").read_bytes() is not None
    assert other.parent.name in os.listdir(mount.path)
    topic = new_topic(mount).parent
    topic.chmod(0o700)
    topic.rmdir()
    os.statvfs(mount.path)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- fsync ---------------------------------------------------------------------------------------


def test_a_slow_fsync_delays_no_read_and_no_other_partition(
    steered_mount: SteeredMount, orders: Path, other: Path
) -> None:
    """A slow fsync delays only appends to the same file, because the kernel blocks these."""
    with stuck(steered_mount, "fdatasync", log_name(orders), lambda: sync(orders)):
        everything_else_goes_on(steered_mount, other)
        # Reads of the same partition are not delayed …
        assert orders.read_bytes() == b"one\n"
        assert orders.stat().st_size == 4
        assert (orders.parent / ".raw" / "0" / LOG).read_bytes()
        assert "recovery_point 0\n" in (orders.parent / ".meta/0/offsets").read_text()
        # … and neither is another partition of the same topic.
        (orders.parent / "1").touch()
        append(orders.parent / "1", b"beside\n")
        assert (orders.parent / "1").read_bytes() == b"beside\n"
    assert "recovery_point 1\n" in (orders.parent / ".meta/0/offsets").read_text()


def test_a_slow_fsync_through_another_descriptor_delays_no_append(
    steered_mount: SteeredMount, orders: Path
) -> None:
    """An append during an fsync is not covered by the fsync, and the daemon does not delay it.

    (The kernel locks the inode during an fsync. This one goes through `.raw`, which is another
    inode.)
    """
    with stuck(
        steered_mount,
        "fdatasync",
        log_name(orders),
        lambda: sync(orders.parent / ".raw" / "0" / LOG),
    ):
        append(orders, b"two\n")
        assert orders.read_bytes() == b"one\ntwo\n"
    assert "recovery_point 1\n" in (orders.parent / ".meta/0/offsets").read_text()
    sync(orders)
    assert "recovery_point 2\n" in (orders.parent / ".meta/0/offsets").read_text()


def test_a_slow_flush_by_the_clock(steered_mount: SteeredMount, orders: Path, other: Path) -> None:
    """… also where the daemon flushes by itself (`flush.ms`): not even appends to the same file."""
    with steered_mount.held("fdatasync", log_name(orders)) as hold:
        steered_mount.run('echo flush.ms=1 >> "$T/.config"', T=orders.parent)
        append(orders, b"two\n")
        hold.wait()
        append(orders, b"three\n")
        assert orders.read_bytes() == b"one\ntwo\nthree\n"
        everything_else_goes_on(steered_mount, other)


def test_many_slow_fsyncs(steered_mount: SteeredMount, other: Path) -> None:
    """… however many partitions flush at once: more than there are threads for reading."""
    partitions = []
    for _ in range(4):
        first = new_topic(steered_mount)
        flush_only_when_asked(steered_mount, first)
        for number in range(10):
            partition = first.parent / str(number)
            append_or_create(partition, b"line\n")
            partitions.append(partition)
    with contextlib.ExitStack() as stack:
        for partition in partitions:
            synced = functools.partial(sync, partition)
            stack.enter_context(stuck(steered_mount, "fdatasync", log_name(partition), synced))
        everything_else_goes_on(steered_mount, other)
        steered_mount.daemon.fail("preadv_nowait", log_name(other), "EAGAIN")
        assert other.read_bytes(), "a cold read has threads of its own"


def append_or_create(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


# -- reading -------------------------------------------------------------------------------------


def test_a_cold_read_delays_nobody(steered_mount: SteeredMount, orders: Path, other: Path) -> None:
    """A read of data outside the page cache delays no other request."""
    steered_mount.daemon.fail("preadv_nowait", log_name(orders), "EAGAIN")
    with stuck(steered_mount, "preadv", log_name(orders), orders.read_bytes) as read:
        everything_else_goes_on(steered_mount, other)
        # An append to the partition and reads from the page cache are not delayed either.
        append(orders, b"two\n")
        with open(orders, "rb") as file:
            assert file.read() == b"one\ntwo\n"
    assert read[0] in (b"one\n", b"one\ntwo\n")


def test_cold_reads_of_one_descriptor(steered_mount: SteeredMount, orders: Path) -> None:
    """Two threads that read through one descriptor get each what it asked for."""
    append(orders, b"two\nthree\n")
    fd = os.open(orders, os.O_RDONLY)
    try:
        steered_mount.daemon.fail("preadv_nowait", log_name(orders), "EAGAIN")
        with stuck(steered_mount, "preadv", log_name(orders), lambda: os.pread(fd, 4, 0)) as first:
            assert os.pread(fd, 4, 4) == b"two\n"
            assert os.pread(fd, 6, 8) == b"three\n"
        assert first == [b"one\n"]
        assert os.pread(fd, 6, 8) == b"three\n"
    finally:
        os.close(fd)


def test_a_slow_index_delays_nobody(steered_mount: SteeredMount, orders: Path, other: Path) -> None:
    """… nor does a table of `.meta`, which is read from the index files."""
    steered_mount.daemon.roll(orders.parent.name)
    append(orders, b"two\n")
    name = log_name(orders).replace(".log", ".timeindex")
    with stuck(
        steered_mount, "pread", name, (orders.parent / ".meta" / "0" / "timeindex").read_bytes
    ) as read:
        everything_else_goes_on(steered_mount, other)
        append(orders, b"three\n")
        assert orders.read_bytes() == b"one\ntwo\nthree\n"
    assert isinstance(read[0], bytes)
    assert len(read[0].splitlines()) == 2


# -- measuring -----------------------------------------------------------------------------------


def test_measuring_delays_nobody(tmp_path: Path) -> None:
    """Measuring a partition delays no other request."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        for topic in ("large", "other"):
            append_records(manager.create_topic(topic, 1).partitions[0], b"record")
    with steered(tmp_path) as mount:
        large, other = mount / "large" / "0", mount / "other" / "0"
        flush_only_when_asked(mount, other)
        # The lookup has the last batch checked, when it is first read; it does not measure.
        path = os.open(large, os.O_PATH)
        with stuck(mount, "preadv", f"large-0/{LOG}", functools.partial(os.fstat, path)):
            everything_else_goes_on(mount, other)
            # Nor an append to it, which needs no measurement but that of opening.
            assert os.listdir(large.parent) == ["0"]
            assert (large.parent / ".meta" / "0" / "offsets").read_bytes()
            assert (large.parent / ".raw" / "0" / LOG).stat().st_size
        os.close(path)
        assert large.read_bytes() == b"record\n"


def test_a_first_lookup_delays_only_its_own_topic(tmp_path: Path) -> None:
    """It reads the last batch, by which the history is known again, in a thread. Meanwhile the
    kernel lets nobody look up or list names in that directory.
    """
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        for topic in ("large", "other"):
            append_records(manager.create_topic(topic, 1).partitions[0], b"record")
    with steered(tmp_path) as mount:
        large, other = mount / "large" / "0", mount / "other" / "0"
        flush_only_when_asked(mount, other)
        with stuck(mount, "preadv", f"large-0/{LOG}", large.stat):
            everything_else_goes_on(mount, other)
        assert large.read_bytes() == b"record\n"


# -- changes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["mkdir", "touch", "rmdir", "chmod", "config"])
def test_a_slow_change_of_the_tree_delays_no_data(
    steered_mount: SteeredMount, orders: Path, other: Path, change: str
) -> None:
    """Making and removing topics, partitions and settings waits for the disk: reads and appends
    do not wait for that.
    """
    topic = orders.parent
    doings: dict[str, tuple[Callable[[], object], str, str]] = {
        "mkdir": (Path(f"{topic}-2").mkdir, "fsync", "-delete/partition.metadata.tmp"),
        "touch": ((topic / "1").touch, "fsync", f"{topic.name}-1/partition.metadata.tmp"),
        "rmdir": (topic.rmdir, "rename", "-delete"),
        "chmod": (lambda: topic.chmod(0o700), "fsync", "kafkafs-topic.properties.tmp"),
        "config": (
            lambda: (topic / ".config").write_text("retention.ms=1\n"),
            "fsync",
            "kafkafs-topic.properties.tmp",
        ),
    }
    doing, operation, suffix = doings[change]
    fd = os.open(other, os.O_RDWR | os.O_APPEND)
    try:
        with stuck(steered_mount, operation, suffix, doing):
            os.write(fd, b"meanwhile\n")
            assert os.pread(fd, 100, 0) == b"first\nmeanwhile\n"
            assert os.fstat(fd).st_size == 16
            os.fsync(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("command", ["retention", "delete-records"])
def test_what_is_written_down_before_the_past_changes_keeps_nobody_waiting(
    steered_mount: SteeredMount, orders: Path, other: Path, command: str
) -> None:
    """The history is written before records are deleted; meanwhile the log is read and grows.

    Only `.follow` waits before it shows what is not flushed, as it writes the same file for that.
    """
    follow = orders.parent / ".follow" / orders.name
    assert follow.read_bytes() == b"one\n"
    steered_mount.daemon.roll(orders.parent.name)
    append(orders, b"two\n")
    # The history counts the sealed segment here, and not during the command below.
    steered_mount.daemon.keep_text()
    append(orders.parent / ".config", b"retention.bytes=1\n")
    line = b"run\n" if command == "retention" else b"0 1\n"
    history = f"{orders.parent.name}-{orders.name}/kafkafs.history.tmp"
    control = orders.parent / ".control" / command
    with stuck(steered_mount, "fsync", history, functools.partial(append, control, line)):
        append(orders, b"three\n")
        assert orders.read_bytes() == b"one\ntwo\nthree\n"
        everything_else_goes_on(steered_mount, other)
    assert orders.read_bytes() == b"two\nthree\n"
    assert follow.stat().st_size == len(b"one\ntwo\nthree\n")
    assert os.getxattr(follow, "user.kafkafs.first_position") == b"4"
