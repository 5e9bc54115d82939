"""Orphans go by their age, and nothing else goes with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import TaskCancelled
from storage.manager import LogManager
from storage.owner.staged_orphans import Removed, UnderWay, remove_orphans
from storage.task import Task
from storage.verify.verify import verify
from tests.storage.logs import NOW_MS, append, opened, write_settings

DAY_MS = 86_400_000
STAGED = "q-1-0-0.staged"
OTHERS = (
    *("q-1-0.staged", ".staged", "q-1-0-0.staged.tmp", "q-1-0-x.staged", "notes", "q.log"),
    *("00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp"),
)


def left(path: Path, age_ms: int, content: bytes = b"12345") -> Path:
    path.write_bytes(content)
    ns = (NOW_MS - age_ms) * 1_000_000
    os.utime(path, ns=(ns, ns))
    return path


def removed(manager: LogManager, under_way: UnderWay = lambda *_: False) -> Removed:
    manager.clock_ms = lambda: NOW_MS
    return remove_orphans(manager, Task(), under_way)


def test_by_age(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 2).partitions[1]
        append(log, b"1")
        others = [left(tmp_path / "t-0" / name, 10 * DAY_MS) for name in OTHERS]
        others.append(left(tmp_path / STAGED, 10 * DAY_MS))
        (tmp_path / "t-0" / "q-1-0-5.staged").mkdir()
        young = left(tmp_path / "t-1" / "q-1-0-1.staged", DAY_MS)
        ahead = left(tmp_path / "t-1" / "q-1-0-2.staged", -DAY_MS)
        old = [left(tmp_path / f"t-{n}" / STAGED, DAY_MS + 1, b"x" * (n + 1)) for n in (0, 1)]
        assert removed(manager) == Removed(2, 3)
        assert not any(path.exists() for path in old)
        assert all(path.exists() for path in [*others, young, ahead])
        assert removed(manager) == Removed()
        assert log.log_end_offset == 1
        for path in others:
            path.unlink()


@pytest.mark.parametrize(
    ("retention_ms", "age_ms", "goes"),
    [(1000, 1000, False), (1000, 1001, True), (-1, 1000 * DAY_MS, False)],
)
def test_how_old_is_a_setting(tmp_path: Path, retention_ms: int, age_ms: int, goes: bool) -> None:
    write_settings(tmp_path, kafkafs_staged_retention_ms=retention_ms)
    with opened(tmp_path) as manager:
        manager.create_topic("t", 1)
        path = left(tmp_path / "t-0" / STAGED, age_ms)
        assert removed(manager).files == goes
        assert path.exists() != goes


def test_not_what_is_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
        kept = left(tmp_path / "t-0" / STAGED, 2 * DAY_MS)
        left(tmp_path / "t-1" / STAGED, 2 * DAY_MS)
        assert removed(manager, lambda *file: file == ("t", 0, STAGED)).files == 1
        assert kept.exists()


def test_one_that_cannot_be_looked_into_keeps_no_other(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 3)
        left(tmp_path / "t-2" / STAGED, 2 * DAY_MS)
        real = manager.log("t", 0).directory
        manager.log("t", 0).directory = str(tmp_path / "gone")
        broken = tmp_path / "broken"
        broken.touch()
        manager.log("t", 1).directory = str(broken)
        with pytest.raises(NotADirectoryError):
            removed(manager)
        manager.log("t", 0).directory = real
        manager.log("t", 1).directory = str(tmp_path / "t-1")
        assert not (tmp_path / "t-2" / STAGED).exists()


def test_cancelled(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 1)
        path = left(tmp_path / "t-0" / STAGED, 2 * DAY_MS)
        task = Task()
        task.cancel()
        with pytest.raises(TaskCancelled):
            remove_orphans(manager, task, lambda *_: False)
        assert path.exists()


def test_a_staged_file_is_no_fault(tmp_path: Path) -> None:
    """Nor is what the daemon and adoptions keep beside the partitions."""
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"1", b"2")
    left(tmp_path / "t-0" / STAGED, 0)
    left(tmp_path / "kafkafs.owner", 0)
    report = verify(str(tmp_path))
    assert (report.faults, report.records) == ([], 2)
    assert [Path(fault.path).name for fault in report.left_over] == [STAGED]
    with opened(tmp_path) as manager:
        assert list(manager.topics) == ["t"]
        assert not manager.skipped
        assert manager.faults == []
    assert (tmp_path / "t-0" / STAGED).exists()
