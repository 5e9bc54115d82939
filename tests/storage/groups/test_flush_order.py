"""A commit is on the disk when its records are, and not before."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.groups.offset_records import Committed
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.groups.records import positions
from tests.storage.logs import NOW_MS, append, write_settings


class Open:
    """A directory on a simulated disk, with a log that has records that are not flushed."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.disk = SimulatedDisk(str(data))
        self.manager = LogManager.open(str(data), files=self.disk, clock_ms=lambda: NOW_MS)
        self.log: Log = self.manager.log("orders", 0)
        self.offsets: Log = self.manager.log("__consumer_offsets", 0)
        append(self.log, b"x", b"y", b"z")

    def commit(self, at: int) -> None:
        self.manager.groups.commit("g", "orders", {0: Committed(at)})

    def again(self) -> dict[tuple[str, int], int]:
        """The positions that are there after a power cut that loses all that was not synced."""
        self.disk.kill()
        self.disk.materialise(0)
        with LogManager.open(str(self.data), clock_ms=lambda: NOW_MS) as manager:
            return positions(manager, "g")


@pytest.fixture
def there(tmp_path: Path) -> Open:
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        manager.create_topic("orders")
        manager.groups.prepare()
    return Open(tmp_path)


def test_what_is_flushed_is_not_flushed_again(there: Open) -> None:
    there.log.flush()
    append(there.log, b"later")
    there.commit(3)
    there.offsets.flush()
    assert there.log.durability.recovery_point == 3


def test_no_commit_without_its_records(there: Open) -> None:
    there.commit(3)
    there.disk.fail_next("fdatasync", errno.EIO, suffix="orders-0/00000000000000000000.log")
    with pytest.raises(OSError, match="Input/output"):
        there.offsets.flush()
    assert there.offsets.durability.recovery_point == 0
    with pytest.raises(OSError, match="fsync failed"):
        there.offsets.flush()
    there.manager.rescue(there.log, Task())
    there.offsets.flush()
    assert there.again() == {("orders", 0): 3}


def test_a_topic_that_is_deleted_holds_up_nobody(there: Open) -> None:
    there.commit(3)
    there.manager.delete_topic("orders")
    there.offsets.flush()
    assert there.offsets.durability.recovery_point == 1


def test_where_the_records_cannot_be_closed_the_commit_is_not_flushed(there: Open) -> None:
    there.commit(3)
    there.disk.fail_next("fdatasync", errno.EIO, suffix="orders-0/00000000000000000000.log")
    with pytest.raises(OSError, match="Input/output"):
        there.manager.close()
    assert there.again() == {}
