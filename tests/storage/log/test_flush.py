"""Flushes beside appends and rolls: what was acknowledged as flushed survives a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.files import Files
from storage.log.append import append_as_follower
from storage.record._batch import assign_offsets
from storage.state import checkpoint_file
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, opened_log, sizes_of, values
from tests.storage.transactions import Client, new_log


def test_a_roll_during_a_flush_has_its_directory_synced_by_the_next(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log = manager.create_topic("t", 1).partitions[0]
    log.flush()
    append(log, b"a")
    log.roll(NOW_MS)
    append(log, b"b")
    plan = log.durability.start_flush()
    plan.run()
    log.roll(NOW_MS)
    append(log, b"c")
    plan.finish()
    log.flush()
    assert not log.durability.directory_unsynced
    disk.materialise(0)
    with LogManager.open(str(tmp_path)) as again:
        assert values(again.log("t", 0)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_segment_that_is_sealed_behind_a_flush_is_so_after_the_next(
    tmp_path: Path, seed: int, fails: bool
) -> None:
    """All of its records are flushed already. Only the ends of its files are new.

    `fails`: the next flush fails, and the log is rescued.
    """
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log = new_log(
        manager, index_interval_bytes=100, internal_segment_bytes=5000, preallocate="true"
    )
    append(log, b"0", timestamp_ms=NOW_MS)
    log.roll(NOW_MS)
    for number in range(1, 6):
        append(log, b"%d" % number, timestamp_ms=NOW_MS + number)
    log.flush()
    log.roll(NOW_MS)
    append(log, b"6", timestamp_ms=NOW_MS + 6)
    if fails:
        disk.fail_next("fdatasync", errno.EIO, suffix=f"{1:020}.log")
        with pytest.raises(OSError, match="Input/output error"):
            log.flush()
        manager.rescue(log, Task())
    else:
        log.flush()
    assert log.durability.recovery_point == 7
    manager.checkpoint()
    sizes = sizes_of(log.segments[1])
    disk.materialise(seed)
    assert sizes_of(log.segments[1]) == sizes
    with opened_log(tmp_path) as log:
        assert [log.reader.offset_for_timestamp(NOW_MS + n) for n in range(7)] == [
            (NOW_MS + n, n) for n in range(7)
        ]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_sync_that_has_written_nothing_is_repeated(tmp_path: Path, is_sealed: bool) -> None:
    """The kernel had no memory for it."""
    disk = SimulatedDisk(str(tmp_path))
    with opened_log(tmp_path, disk) as log:
        append(log, b"a")
        if is_sealed:
            log.roll(NOW_MS)
        disk.fail_next("fdatasync", errno.ENOMEM, suffix=".log")
        with pytest.raises(OSError, match="Cannot allocate memory"):
            log.flush()
        log.flush()
        assert log.durability.recovery_point == 1
        assert log.flush_error is None


@pytest.mark.parametrize("seed", [-2, -1, 0])
def test_the_first_transaction_that_is_aborted_stays_so(tmp_path: Path, seed: int) -> None:
    """A segment has no transaction index before. A start reads only later batches."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log = new_log(manager, index_interval_bytes=0)
    append(log, b"a")
    log.flush()
    client = Client(log, 7)
    client.send(b"x")
    client.abort()
    append(log, b"b")
    append(log, b"c")
    log.flush()
    manager.checkpoint()
    disk.materialise(seed)
    # A broker does not read the flushed part of the log again.
    assert Path(log.active.file_path(paths.TXNINDEX)).exists()
    with opened(tmp_path) as again:
        assert values(again.log("t", 0)) == [b"a", b"b", b"c"]


def test_epochs_of_an_older_flush_do_not_replace_those_of_a_later_one(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"a")
        older = log.durability.start_flush()
        led = batch([b"b"])
        assign_offsets(led, 1, 5)
        append_as_follower(log, led, NOW_NS)
        later = log.durability.start_flush()
        later.run()
        older.run()
        older.finish()
        later.finish()
        path = tmp_path / "t-0" / paths.LEADER_EPOCH_CHECKPOINT
        assert checkpoint_file.read_epochs(manager.files, str(path)) == [(0, 0), (5, 1)]
        assert not log.epochs.is_unflushed


@pytest.mark.parametrize("seed", range(6))
def test_a_partition_that_was_created_later_survives_with_what_was_flushed(
    tmp_path: Path, seed: int
) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    manager.create_topic("t", 1)
    log = manager.create_partition("t", 1)
    append(log, b"a")
    log.flush()
    disk.materialise(seed)
    with opened(tmp_path) as again:
        assert values(again.log("t", 1)) == [b"a"]


@pytest.mark.parametrize("seed", range(6))
def test_a_topic_that_was_deleted_does_not_come_back(tmp_path: Path, seed: int) -> None:
    """No checkpoint has ever named it. The file for its restoration cannot be written."""
    disk = SimulatedDisk(str(tmp_path))
    disk.fail_next("open", errno.EIO, suffix=f"{paths.DELETION}.tmp", times=-1)
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    manager.create_topic("t", 2)
    manager.delete_topic("t")
    disk.materialise(seed)
    with opened(tmp_path) as again:
        assert "t" not in again.topics


def test_what_logs_have_done_is_counted(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS) as manager:
        log, other = manager.create_topic("t", 2).partitions.values()
        counters = manager.log_group.counters
        append(log, b"a", b"b")
        append(other, b"c")
        log.roll(NOW_MS)
        assert (counters.records_appended, counters.batches_appended, counters.rolls) == (3, 2, 1)
        assert counters.bytes_appended == log.size + other.size
        log.flush()
        assert (counters.flushes.count, counters.flush_failures) == (1, 0)
        assert counters.flushes.total_ns > 0
        # A deletion takes nothing from what was appended.
        size = counters.bytes_appended
        manager.delete_topic("t")
        assert counters.bytes_appended == size


def test_thousands_of_sealed_segments_are_flushed_by_few_descriptors(tmp_path: Path) -> None:
    """As of a copied directory without checkpoints, or where segments are tiny."""

    class Counting(Files):
        most = 0

        def fdatasync(self, fd: int) -> None:
            self.most = max(self.most, len(os.listdir("/proc/self/fd")))
            super().fdatasync(fd)

    files = Counting()
    with opened(tmp_path, files=files) as manager:
        manager.create_topic("t", 1)
        log = manager.log("t", 0)
        for number in range(50):
            append(log, b"%d" % number)
            log.roll(NOW_MS)
            log.segments[-2].close_descriptors()
        append(log, b"last")
        before = len(os.listdir("/proc/self/fd"))
        log.flush()
        assert log.durability.recovery_point == 51
        assert files.most <= before + 10
        assert len(os.listdir("/proc/self/fd")) <= before + 5
