"""Reading a partition: "Reading" of the contract."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import mounted
from tests.mount.steering import SteeredMount, steered
from tests.storage.logs import append


def numbered(start: int, end: int) -> bytes:
    return b"".join(b"line number %d\n" % number for number in range(start, end))


# -- the bytes -----------------------------------------------------------------------------------


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
        # A file that bypasses the page cache cannot share pages; programs then read.
        with pytest.raises(OSError, match="No such device"):
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


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
    # The requested bytes, the 4 KiB between two entries of the view index, the records' edges.
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


def test_a_measurement_is_kept(foreign: Path) -> None:
    """… a partition is measured *once* …: a later mount reads no log for it."""
    with mounted(foreign.parent) as mount:
        assert (mount / "large" / "0").stat().st_size == len(content(3000))
    with steered(foreign.parent) as again:
        again.daemon.bytes_read()
        assert (again / "large" / "0").stat().st_size == len(content(3000))
        # The log has 70 KB. The mount reads the last 4 KiB of each segment, to check its index, and
        # the records after the last entry of the offset index: once to check them, as at every
        # first read, and once more to use them.
        assert again.daemon.bytes_read() < 4 * 4096


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
        # The background or this thread measures, whichever comes first.
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
