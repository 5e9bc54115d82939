"""A crash at every file operation while segments are repacked.

Wherever it stops, the log has the same records, and every name but those of stored bytes leads to
the same inode with the same text: a shipper goes on at its position. So it is if the disk has
failed before, and the same process repacks again.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import LogManager, Record, encode
from storage.compaction.repack import Repacked, repack_all
from storage.files import Files
from storage.task import Task
from storage.verify.verify import verify
from tests.crash import moments
from tests.crash.failing_disk import FailingDisk, left_by_a_swap
from tests.crash.moments import Found, Stops, Unsynced, after_reboot, chosen_numbers
from tests.kafkafs.trees import Tree, in_thread
from tests.storage.logs import NOW_MS, NOW_NS

FOLLOWED = ("t/.follow/0", "t/.ship/0")
KEPT = (*FOLLOWED, "t/0", "t/.kv/0", "t/.jsonl/0", "t/0@1..6", "t/.jsonl/0@start")


class Stage(NamedTuple):
    """The number of appended records, and of those that were flushed."""

    records: int = 0
    flushed: int = 0


class Life(moments.Life):
    """Writes and repacks a log, and notes the facts that each stage must keep."""

    kinds = (".swap",)

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.stage = Stage()
        self.inodes: dict[str, int] = {}

    def build(self) -> None:
        self.data.mkdir()
        with LogManager.open(str(self.data)) as manager:
            manager.create_topic("t", 1)
            manager.change_topic_settings("t", {"segment.index.bytes": "4096"})
            manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
        self.mount(Files())
        for _ in range(2):
            self.segment()
        self.inodes = inodes_of(self.tree)
        self.tree.stop()

    def mount(self, files: Files) -> None:
        self.tree = Tree(self.data, files=files)

    def expected(self) -> tuple[object, ...]:
        return (self.stage,)

    def segment(self) -> None:
        """Four records more, a batch each, and a new segment."""
        log = self.tree.log()
        for _ in range(4):
            number = log.log_end_offset
            record = Record(0, NOW_MS + number, 0, b"k%d" % number, value_of(number))
            log.append(bytearray(encode([record])), now_ns=NOW_NS)
            self.stage = self.stage._replace(records=number + 1)
        self.tree.roll()

    def flush(self) -> None:
        self.tree.log().flush()
        self.stage = self.stage._replace(flushed=self.stage.records)
        self.tree.fs.partitions.housekeeping()

    def repack(self, count: int) -> None:
        self.flush()
        done = self.repack_due()
        assert len(done) == count
        assert all(isinstance(each, Repacked) for each in done)

    def repack_due(self) -> list[Repacked]:
        log = self.tree.log()
        return in_thread(lambda: repack_all(log, NOW_MS, Task()))

    def run(self, files: Files) -> None:
        self.mount(files)
        assert inodes_of(self.tree) == self.inodes
        self.repack(2)
        self.segment()
        self.repack(1)
        assert inodes_of(self.tree) == self.inodes
        self.tree.fs.partitions.housekeeping()
        self.tree.delete_files()
        self.tree.stop()
        self.stage = self.stage._replace(flushed=self.stage.records)

    def check(self, path: Path, found: Found) -> None:
        (stage,) = found.expected
        if not found.lost:
            assert verify(str(path)).faults == []
            with LogManager.open(str(path), read_only=True) as reader:
                shown = [record.offset for record in reader.log("t", 0).records()]
            assert shown[: stage.records] == list(range(stage.records))
        tree = Tree(path, files=Unsynced())
        log = tree.log()
        end = log.log_end_offset
        assert end >= (stage.flushed if found.lost else stage.records)
        records = [(r.offset, r.timestamp, r.key, r.value) for r in log.records()]
        assert records == [(n, NOW_MS + n, b"k%d" % n, value_of(n)) for n in range(end)]
        # In another boot only shippers go on.
        names = FOLLOWED if found.lost else KEPT
        assert inodes_of(tree, names) == {name: self.inodes[name] for name in names}
        text = b"".join(value_of(number) + b"\n" for number in range(end))
        assert tree.read("t/0") == text
        assert tree.read("t/.follow/0") == text
        for position in range(0, len(text), 97):
            assert tree.read("t/.follow/0", position) == text[position:]
        assert b"".join(log.read(o, 1 << 20) for o in bases(tree)) == tree.read("t/.batches/0")
        left = [each.name for each in (path / "t-0").iterdir()]
        assert not [n for n in left if n.endswith((".cleaned", ".swap", ".deleted"))]
        tree.stop()


def bases(tree: Tree) -> list[int]:
    return [each.base_offset for each in tree.log().segments if each.size]


def value_of(number: int) -> bytes:
    return b"%d " % number + b"the same words in each line " * 4


def inodes_of(tree: Tree, names: Sequence[str] = KEPT) -> dict[str, int]:
    return {name: tree.node(name).inode for name in names}


def test_a_kill_and_a_power_cut_at_every_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "data")
    life.stops((0, 2)).judge(after_reboot(life.check, monkeypatch), tmp_path / "found")


def test_a_kill_while_the_same_process_repacks_again(tmp_path: Path) -> None:
    built = Life(tmp_path / "built")
    built.build()
    tried: set[tuple[frozenset[str], bool]] = set()
    for error in (errno.EROFS, errno.EIO):
        repack_again_after(built, error, tmp_path, tried)
    assert len(tried) > 6


def repack_again_after(
    built: Life, error: int, tmp_path: Path, tried: set[tuple[frozenset[str], bool]]
) -> None:
    for at in chosen_numbers():
        life = copy.copy(built)
        life.data = tmp_path / "data"
        shutil.rmtree(life.data, ignore_errors=True)
        shutil.copytree(built.data, life.data)
        stops = Stops(life.data, expected=life.expected, new_disk=FailingDisk)
        disk = stops.disk
        assert isinstance(disk, FailingDisk)
        life.mount(disk)
        life.flush()
        log = life.tree.log()
        disk.fail_from_now(error, at)
        with contextlib.suppress(OSError):
            life.repack_due()
        disk.fail_at = 0
        if not disk.failed:
            break
        names = left_by_a_swap(life.data / "t-0")
        # Only the names decide how it goes on.
        state = names, log.replacement is not None and log.replacement.is_done
        if names and state not in tried and log.flush_error is None:
            tried.add(state)
            disk.armed = True
            try:
                life.repack_due()
                assert log.replacement is None
                life.tree.manager.abandon()
                stops.end()
                stops.judge(life.check, tmp_path / "found")
            except BaseException as caught:
                caught.add_note(f"{os.strerror(error)} at {at}: {disk.failed}")
                raise
        else:
            life.tree.manager.abandon()
