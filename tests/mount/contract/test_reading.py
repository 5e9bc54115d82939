"""Reading a partition: "Reading" of the contract."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.steering import SteeredMount, steered
from tests.storage.logs import append


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"line number %d\n" % number for number in range(start, end))


# -- the bytes -----------------------------------------------------------------------------------


def test_byte_0_is_the_record_at_the_log_start(
    steered_mount: SteeredMount, steered_orders: Path
) -> None:
    """Byte 0 is the first byte of the record at the log start (or where the name says)."""
    orders, topic = steered_orders, steered_orders.parent.name
    steered_mount.run('seq 3 >> "$F"', F=orders)
    steered_mount.daemon.roll(topic)
    steered_mount.run('seq 4 6 >> "$F"', F=orders)
    assert orders.read_bytes() == b"1\n2\n3\n4\n5\n6\n"
    steered_mount.daemon.remove_head(topic, 1)
    assert orders.read_bytes() == b"4\n5\n6\n"
    assert orders.stat().st_size == 6


def test_each_record_is_its_text_and_a_newline(tmp_path: Path) -> None:
    """Each record is its rendered text and a newline.

    `values`: value bytes; null value = empty line. The plain view … is lossy only in that a value
    holding a newline shows as two lines.
    """
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        append(log, b"text", None, b"", b"two\nlines", b"\xff\x00 bytes", b"ends with \n")
    with mounted(tmp_path) as mount:
        shown = b"text\n\n\ntwo\nlines\n\xff\x00 bytes\nends with \n\n"
        assert (mount / "orders" / "0").read_bytes() == shown
        assert (mount / "orders" / "0").stat().st_size == len(shown)


def test_a_new_partition_is_an_empty_file(mount: Mount, orders: Path) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    assert orders.stat().st_size == 0
    assert orders.read_bytes() == b""
    assert mount.run('cat "$F"; tail -n5 "$F"; wc -c < "$F"', F=orders) == b"0\n"


def test_st_size_is_exact(mount: Mount, orders: Path) -> None:
    """`st_size` is exact, always …: `cat`, `wc -c`, `tail -c`, `less`, `rsync`, `dd skip=`
    agree.
    """
    seed = random.Random(7)
    for _ in range(5):
        with open(orders, "ab", buffering=0) as file:
            for _ in range(seed.randrange(1, 40)):
                file.write(seed.randbytes(seed.randrange(300)).replace(b"\n", b"") + b"\n")
        size = orders.stat().st_size
        content = mount.run('cat "$F"', F=orders)
        assert len(content) == size
        assert mount.run('wc -c < "$F"', F=orders) == b"%d\n" % size
        assert mount.run('tail -c 100 "$F"', F=orders) == content[-100:]
        assert mount.run('tail -c +11 "$F"', F=orders) == content[10:]
        assert mount.run('dd if="$F" bs=7 skip=3 status=none', F=orders) == content[21:]
        assert mount.run('head -c -5 "$F"', F=orders) == content[:-5]
        assert mount.run('LESSOPEN= less -f "$F" | cat', F=orders) == content
        assert mount.run('rsync "$F" "$T/copy"; cat "$T/copy"', F=orders, T=mount.data.parent) == (
            content
        )
        assert os.stat(mount.data.parent / "copy").st_size == size


def test_any_read_is_a_slice_of_the_whole(steered_mount: SteeredMount) -> None:
    """A read at view position P finds its record …: at any position, over segments and batches."""
    orders = new_topic(steered_mount)
    expected = b""
    seed = random.Random(11)
    for number in range(12):
        lines = b"".join(
            seed.randbytes(seed.choice((0, 5, 100, 4000))).replace(b"\n", b"n") + b"\n"
            for _ in range(seed.randrange(1, 30))
        )
        with open(orders, "ab", buffering=0) as file:
            file.write(lines)
        expected += lines
        if number % 4 == 3:
            steered_mount.daemon.roll(orders.parent.name)
    # O_DIRECT comes to the daemon with exactly these positions and sizes.
    fd = os.open(orders, os.O_RDONLY | os.O_DIRECT)
    try:
        for _ in range(150):
            position = seed.randrange(len(expected) + 10)
            size = seed.choice((1, 7, 300, 4096, 20000))
            assert os.pread(fd, size, position) == expected[position : position + size]
        assert os.pread(fd, 10, len(expected)) == b""
        assert os.pread(fd, 10, len(expected) + (1 << 40)) == b""
    finally:
        os.close(fd)
    assert orders.read_bytes() == expected


def test_seek_and_map(orders: Path) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    orders_content = numbered(0, 3000)
    with open(orders, "ab") as file:
        file.write(orders_content)
    with open(orders, "rb") as file:
        assert file.seek(-5, os.SEEK_END) == len(orders_content) - 5
        assert file.read() == orders_content[-5:]
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == orders_content
        # What is read past the page cache cannot share its pages; programs then read.
        with pytest.raises(OSError, match="No such device"):
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def test_a_file_grows_under_a_reader(orders: Path) -> None:
    """An open file shows what is appended after it was opened, as any file does."""
    with open(orders, "rb", buffering=0) as reader:
        assert reader.read() == b""
        for number in range(5):
            with open(orders, "ab") as writer:
                writer.write(b"%d\n" % number)
            assert reader.read() == b"%d\n" % number
            assert os.fstat(reader.fileno()).st_size == 2 * number + 2
        assert reader.read() == b""


# -- what a read costs ---------------------------------------------------------------------------


def test_the_cost_of_a_read_does_not_grow_with_its_position(steered_mount: SteeredMount) -> None:
    """A read at view position P finds its record through a sparse view index …; cost does not
    grow with P.
    """
    orders = new_topic(steered_mount)
    content = b"".join(b"%0999d\n" % number for number in range(6000))
    with open(orders, "ab", buffering=0) as file:
        for start in range(0, len(content), 500_000):
            file.write(content[start : start + 500_000])
        os.fsync(file.fileno())
    fd = os.open(orders, os.O_RDONLY | os.O_DIRECT)
    try:
        os.pread(fd, 4096, 0)
        steered_mount.daemon.bytes_read()
        cost = {}
        for position in (0, 600_000, 3_000_000, 5_990_000):
            assert os.pread(fd, 4096, position) == content[position : position + 4096]
            cost[position] = steered_mount.daemon.bytes_read()
    finally:
        os.close(fd)
    # What is asked for, the 4 KiB between two entries of the view index, the records' edges.
    assert max(cost.values()) < 4096 + 4096 + 2 * 1100 + 1024, cost


# -- directories that others have written --------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A data directory in Kafka's format that kafkafs has never shown: no view indexes."""
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        for topic, records in (("large", 3000), ("small", 20)):
            log = manager.create_topic(topic, 1).partitions[0]
            for start in range(0, records, 10):
                append(log, *[b"record %d" % number for number in range(start, start + 10)])
                if start == records // 2:
                    log.roll(1_700_000_000_000)
    return data


def content(records: int) -> bytes:
    return b"".join(b"record %d\n" % number for number in range(records))


def test_a_copied_directory_is_measured(foreign: Path) -> None:
    """On a directory that we have not written (… or a copied one) a partition is measured once …;
    `open` and `stat` of a partition wait for its measurement …
    """
    with mounted(foreign.parent) as mount:
        for topic, records in (("small", 20), ("large", 3000)):
            assert (mount / topic / "0").stat().st_size == len(content(records))
            assert (mount / topic / "0").read_bytes() == content(records)


def test_a_measurement_is_kept(foreign: Path) -> None:
    """… a partition is measured *once* …: a later mount reads no log for it."""
    with mounted(foreign.parent) as mount:
        assert (mount / "large" / "0").stat().st_size == len(content(3000))
    with steered(foreign.parent) as again:
        again.daemon.bytes_read()
        assert (again / "large" / "0").stat().st_size == len(content(3000))
        # Of 70 KB only the last 4 KiB of each segment, against which its index is checked, and
        # what lies behind the last entry of the log's offset index: that is checked, as whatever
        # is read first, and then read.
        assert again.daemon.bytes_read() < 4 * 4096


def test_view_indexes_are_disposable(own: Mount) -> None:
    """A lost, damaged or foreign view index changes nothing that is shown."""
    orders = own.topic()
    expected = numbered(0, 2000)
    with open(orders, "ab") as file:
        file.write(expected)
    inode = orders.stat().st_ino
    for damage in (Path.unlink, lambda path: os.truncate(path, 130), flip):
        own.stop()
        lines = list((own.data / "orders-0").glob("*.lines"))
        assert lines
        for path in lines:
            damage(path)
        own.start()
        assert orders.read_bytes() == expected
        assert orders.stat().st_size == len(expected)
        assert orders.stat().st_ino == inode


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def measuring(foreign: Path) -> Iterator[SteeredMount]:
    """A mount of it in which the disk answers no read of `large` while it is held."""
    with steered(foreign.parent) as mount:
        yield mount


def test_ls_does_not_wait_for_a_measurement(measuring: SteeredMount) -> None:
    """… a plain `ls` does not (readdirplus gives a size that is not too large, with attribute
    timeout 0).
    """
    large = measuring / "large" / "0"
    with measuring.held("preadv", "large-0/00000000000000000000.log") as hold:
        # Whoever comes first measures: the background or this.
        waiting = threading.Thread(target=large.stat)
        waiting.start()
        hold.wait()
        with os.scandir(measuring / "large") as entries:
            assert [entry.name for entry in entries] == ["0"]
        assert os.listdir(measuring.path) == ["large", "small"]
        assert (measuring / "small" / "0").stat().st_size == len(content(20))
        hold.release()
        waiting.join()
    assert large.stat().st_size == len(content(3000))


def test_stat_and_open_give_up_with_eagain(measuring: SteeredMount) -> None:
    """`open` and `stat` of a partition wait for its measurement, 10 s at most (then EAGAIN, with
    how far it is in `.kafkafs/log`) …
    """
    large = measuring / "large" / "0"
    measuring.daemon.patience(0.2)
    with measuring.held("preadv", "large-0/00000000000000000000.log") as hold:
        waiting = threading.Thread(target=stat_or_not, args=(large,))
        waiting.start()
        hold.wait()
        fails(errno.EAGAIN, os.stat, large)
        fails(errno.EAGAIN, os.open, large, os.O_RDONLY)
        size = sum(path.stat().st_size for path in (measuring.data / "large-0").glob("*.log"))
        assert f"large/0: indexed 0 of {size} bytes" in measuring.events()
        hold.release()
        waiting.join()
    measuring.daemon.patience(10)
    assert large.stat().st_size == len(content(3000))


def stat_or_not(path: Path) -> None:
    try:
        path.stat()
    except BlockingIOError:
        return


def test_a_read_only_mount_keeps_its_measurements_elsewhere(foreign: Path) -> None:
    """… kept in the cache directory … writes nothing into it (view indexes go to the cache
    directory).
    """
    before = snapshot(foreign)
    with mounted(foreign.parent, "ro") as mount:
        assert (mount / "large" / "0").read_bytes() == content(3000)
        assert (mount / "small" / "0").stat().st_size == len(content(20))
    assert snapshot(foreign) == before
    assert len(list((foreign.parent / "cache").rglob("*.lines"))) == 3, "one segment is empty"


def snapshot(data: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(data)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


# -- what stat says ------------------------------------------------------------------------------


def test_st_mtime_is_the_time_of_the_last_append(own: Mount) -> None:
    """`st_mtime` is the time of the last append …"""
    import time

    orders = own.topic()
    # The clock of files, which moves with the kernel's tick (CLOCK_REALTIME_COARSE).
    before = time.clock_gettime_ns(5)
    own.run("echo one >> orders/0")
    after = time.time_ns()
    modified = orders.stat().st_mtime_ns
    assert before <= modified <= after
    orders.read_bytes()
    own.run("touch orders/0; : >> orders/0")
    assert orders.stat().st_mtime_ns == modified
    own.restart()
    # A file system keeps what it can: ext4 nanoseconds, others less.
    assert abs(orders.stat().st_mtime_ns - modified) < 1_000_000_000
    own.kill()
    own.start()
    assert abs(orders.stat().st_mtime_ns - modified) < 1_000_000_000


def test_st_blocks_is_the_disk_really_used(steered_mount: SteeredMount) -> None:
    """… `st_blocks` the disk really used, so `du` tells the truth."""
    orders = new_topic(steered_mount)
    topic = orders.parent.name
    with open(orders, "ab") as file:
        file.write(b"x" * 100 + b"\n")
    assert orders.stat().st_blocks == 8
    for _ in range(3):
        with open(orders, "ab") as file:
            file.write(numbered(0, 5000))
        steered_mount.daemon.roll(topic)
    on_disk = [
        path.stat()
        for path in (steered_mount.data / f"{topic}-0").iterdir()
        if path.suffix in (".log", ".index", ".timeindex")
    ]
    used = sum(found.st_blocks for found in on_disk)
    # Of the active segment the pre-sized, empty indexes do not count.
    assert abs(orders.stat().st_blocks - used) <= 16
    assert steered_mount.run('du -k "$F" | cut -f1', F=orders) == (
        b"%d\n" % (orders.stat().st_blocks // 2)
    )
