"""`.follow` on a disk that loses what was not flushed, while the machine stays up.

Each loss is real: the test kills the daemon, and mounts the file system again as its device was at
an earlier moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.file_systems import LossyDisk, lossy_disk
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, check_data
from tests.waits import until

MIB = 1 << 20
SHOWN = "shown-above"
"""The line of a history that says that `.follow` has shown what was not flushed."""


class Shop:
    """A mount on a disk that loses writes; `orders/0` is flushed only by fsync."""

    def __init__(self, disk: LossyDisk, base: Path) -> None:
        self.disk = disk
        self.mount = Mount(base)
        self.mount.data.rmdir()
        self.mount.data = disk.path / "data"
        self.mount.data.mkdir()
        self.mount.start()
        self.path = self.mount.topic("orders")
        append(self.path.parent / ".config", b"flush.ms=86400000\n")
        self.follow = self.path.parent / ".follow" / "0"
        self.history = self.mount.data / "orders-0" / "kafkafs.history"

    def flush(self) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.fsync(fd)
        os.close(fd)

    def is_marked(self) -> bool:
        return SHOWN in self.history.read_text()

    def wait_until_unmarked(self) -> None:
        """Wait until the line is removed from the history, also on the device."""
        until(lambda: not self.is_marked())
        # The daemon renames the file first. A copy of the device could miss the rename.
        fd = os.open(self.history.parent, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def lose(self) -> None:
        """Kill the daemon, and lose what the device was not given when `remember` was called."""
        self.mount.kill()
        self.disk.lose()
        self.mount.start()

    @property
    def inode(self) -> int:
        return self.follow.stat().st_ino


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with lossy_disk(tmp_path, 64 * MIB) as disk:
        shop = Shop(disk, tmp_path)
        try:
            yield shop
            shop.mount.stop()
        finally:
            shop.mount.end()
        check_data(shop.mount.data)


@pytest.mark.parametrize("by", ["read", "stat"])
def test_lost_positions_that_were_shown_get_another_inode(shop: Shop, by: str) -> None:
    append(shop.path, b"kept\n")
    assert shop.follow.read_bytes() == b"kept\n"
    shop.flush()
    shop.wait_until_unmarked()
    inode = shop.inode
    append(shop.path, b"not flushed\n")
    assert not shop.is_marked()
    if by == "read":
        assert shop.follow.read_bytes() == b"kept\nnot flushed\n"
    else:
        assert shop.follow.stat().st_size == 17
    assert shop.is_marked()
    # The kernel may have written what there is by now, and nothing that comes later.
    shop.disk.remember()
    append(shop.path, b"lost\n")
    assert shop.follow.stat().st_size == 22
    shop.lose()
    append(shop.path, b"other\n")
    assert shop.inode != inode
    assert shop.follow.read_bytes() in (b"kept\nother\n", b"kept\nnot flushed\nother\n")


def test_lost_positions_that_nobody_was_shown_are_given_to_other_lines(shop: Shop) -> None:
    append(shop.path, b"kept\n")
    assert shop.follow.read_bytes() == b"kept\n"
    shop.flush()
    shop.wait_until_unmarked()
    inode = shop.inode
    shop.disk.remember()
    append(shop.path, b"lost\n")
    assert shop.path.read_bytes() == b"kept\nlost\n"
    shop.lose()
    assert shop.follow.read_bytes() == b"kept\n"
    append(shop.path, b"other\n")
    assert shop.inode == inode
    assert shop.follow.read_bytes() == b"kept\nother\n"


def test_nothing_changes_where_all_was_flushed(shop: Shop) -> None:
    """… and after a kill alone: what was shown is in memory."""
    append(shop.path, b"one\n")
    inode = shop.inode
    assert shop.follow.read_bytes() == b"one\n"
    shop.mount.kill()
    shop.mount.start()
    assert shop.inode == inode
    assert shop.follow.read_bytes() == b"one\n"
    shop.flush()
    shop.wait_until_unmarked()
    shop.disk.remember()
    shop.lose()
    assert shop.inode == inode
    assert shop.follow.read_bytes() == b"one\n"
