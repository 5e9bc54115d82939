"""A deletion makes its facts durable in order: a power cut follows right after each.

Nothing is appended or flushed afterwards that would make up for what was left out.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.directory.retain import delete_records, retain
from storage.log.append import append_batches
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, append, clock_ms, opened, values
from tests.storage.transactions import produced

SEEDS = range(30)


def fill(data: Path) -> None:
    """All is flushed, and nothing expires by itself."""
    with opened(data) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"file.delete.delay.ms": "0"})
        append_batches(log, produced([b"0", b"1"], 7, 0), now_ns=NOW_MS * 1_000_000)


def delete_all(manager: LogManager) -> None:
    """The whole of the log goes by its age; a new segment was begun for that."""
    manager.change_topic_settings("t", {"retention.ms": "0"})
    outcome = retain(manager, manager.logs(), Task(), NOW_MS + 10)
    assert outcome.segments == 1
    assert outcome.notes == []


def roll_during_a_flush(manager: LogManager) -> None:
    log = manager.log("t", 0)
    plan = log.durability.start_flush()
    plan.run()
    log.roll(NOW_MS)
    plan.finish()
    delete_all(manager)


def delete_for_good(manager: LogManager) -> None:
    """The files are deleted, the directory is not synced, and the checkpoint is written again.

    The log has a record, since the checkpoint always names the start of a log without records.
    """
    delete_all(manager)
    sweep = manager.sweep(NOW_MS + 10)
    assert sweep is not None
    sweep()
    append(manager.log("t", 0), b"2")
    manager.checkpoint()


def after_power_cuts(
    tmp_path: Path, live: Callable[[LogManager], None], check: Callable[[Log, int], None]
) -> None:
    """Judge the log after each of several power cuts at the end of ``live``."""
    (tmp_path / "built").mkdir()
    fill(tmp_path / "built")
    for seed in SEEDS:
        data = Path(shutil.copytree(tmp_path / "built", tmp_path / "data"))
        disk = SimulatedDisk(str(data))
        live(LogManager.open(str(data), files=disk, clock_ms=clock_ms))
        disk.materialise(seed)
        with opened(data) as manager:
            check(manager.log("t", 0), seed)
        shutil.rmtree(data)


@pytest.mark.parametrize("live", [delete_all, roll_during_a_flush])
def test_the_producers_of_what_is_deleted_are_known(
    tmp_path: Path, live: Callable[[LogManager], None]
) -> None:
    """All had been flushed before the roll: only the snapshot that it wrote had not."""

    def check(log: Log, seed: int) -> None:
        again = produced([b"0", b"1"], 7, 0)
        ((first, last, duplicate),) = append_batches(log, again, now_ns=NOW_MS * 1_000_000)
        assert (first, last, duplicate) == (0, 1, True), seed

    after_power_cuts(tmp_path, live, check)


def test_a_checkpoint_beside_a_deletion_names_the_log_start(tmp_path: Path) -> None:
    """It comes between two turns of the owner: the segments have left the log, and their files
    still have their names when the process is killed.
    """
    fill(tmp_path)
    manager = LogManager.open(str(tmp_path), clock_ms=clock_ms)
    log = manager.log("t", 0)
    log.roll(NOW_MS)
    append(log, b"2")
    log.flush()
    log.remove_head(1, NOW_MS)
    assert not log.durability.directory_unsynced
    manager.checkpoint()
    manager.abandon()
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert log.log_start_offset == 2
        assert [segment.base_offset for segment in log.segments] == [2]
        assert [record.value for record in log.records()] == [b"2"]


def test_what_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    def check(log: Log, seed: int) -> None:
        assert log.log_start_offset == 2, seed

    after_power_cuts(tmp_path, delete_for_good, check)


def test_a_flush_that_fails_is_counted(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=clock_ms)
    log = manager.create_topic("t", 1).partitions[0]
    counters = manager.log_group.counters
    append(log, b"1")
    log.flush()
    assert (counters.flushes.count, counters.flush_failures) == (1, 0)
    append(log, b"2")
    disk.fail_next("sync_directory", errno.EMFILE)
    log.roll(NOW_MS)
    with pytest.raises(OSError, match="Too many open files"):
        log.flush()
    assert (counters.flushes.count, counters.flush_failures) == (1, 1)
    log.flush()
    assert (counters.flushes.count, counters.flush_failures) == (2, 1)
    manager.close()


def test_deleted_records_stay_deleted_after_a_second_power_cut(tmp_path: Path) -> None:
    """The first start after one removes their segment. The checkpoint then omits the log start,
    because it is the base offset of the first segment."""
    for seed in SEEDS:
        data = tmp_path / "data"
        data.mkdir()
        disk = SimulatedDisk(str(data))
        manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"0")
        assert delete_records(manager, log, log.log_end_offset, Task()) == 1
        log.roll(NOW_MS)
        log.flush()
        for _ in range(2):
            disk.materialise(seed)
            disk = SimulatedDisk(str(data))
            manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
            log = manager.log("t", 0)
            assert log.log_start_offset == 1, seed
            assert values(log) == [], seed
        disk.kill()
        shutil.rmtree(data)
