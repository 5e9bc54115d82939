"""A tree whose own process truncates a log: no reader gets new records for removed ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage.errors import SegmentGone
from storage.files import Files
from storage.log.append import append_as_follower
from tests.kafkafs.trees import a_tree, read
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_MS, NOW_NS, append, batch


@pytest.mark.parametrize("log_start", [0, 3])
@pytest.mark.parametrize("offset", [5, 4, 2, 0])
def test_files_show_what_is_left(tmp_path: Path, offset: int, log_start: int) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        log = tree.log()
        for number in range(6):
            append(log, b"%d" % number)
            if number % 2:
                log.roll(NOW_MS)
        if log_start:
            log.raise_log_start(log_start)
        names = ("t/0", "t/.follow/0")
        nodes = [tree.node(name) for name in names]
        handles = [tree.open(node) for node in nodes]
        assert read(handles[0]) == read(handles[1])
        tree.manager.truncate(log, offset)
        left = b"".join(b"%d\n" % number for number in range(log_start, offset))
        assert tree.read("t/0") == left
        append_as_follower(log, at(batch([b"new"]), log.log_end_offset, 3), NOW_NS)
        for name, node, handle in zip(names, nodes, handles, strict=True):
            assert tree.read(name) == left + b"new\n"
            assert tree.node(name) is not node
            with pytest.raises(SegmentGone):
                read(handle, len(left), 2)


class FullHistories(Files):
    """A disk with room for `left` histories."""

    left = 1 << 30

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        if path.endswith("kafkafs.history"):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().replace_atomically(path, data, sync=sync)


class Woken:
    """A process in poll(2)."""

    count = 0

    def notify(self) -> None:
        self.count += 1


def test_names_lead_to_what_is_left_if_the_history_has_no_room(tmp_path: Path) -> None:
    files = FullHistories()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        log = tree.log()
        append(log, b"0")
        append(log, b"1")
        file = tree.file()
        handle = tree.open(file)
        assert read(handle) == b"0\n1\n"
        waiter = Woken()
        tree.fs.partitions.of(log).polled(handle, waiter)
        tree.notices.clear()
        # That which is written before the removal.
        files.left = 1
        with pytest.raises(OSError, match="No space"):
            tree.manager.truncate(log, 1)
        assert tree.notices.names == 1
        assert waiter.count == 1
        assert tree.read("t/0") == b"0\n"
        assert tree.file() is not file
        files.left = 1 << 30
