"""A crash at every single file operation of a log's life; then what a restart finds.

The life: create, append, roll, flush, checkpoint, remove a head, close, reopen, append, close.
After a kill everything acknowledged is there.  After a power cut, with any subset of what was not
synced lost, everything acknowledged as *flushed* is there, and what follows it is a prefix of what
was appended: offsets dense, CRCs right, every index equal to a rebuilt one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Log, LogManager
from tests.crash.disk import Crashed, SimulatedDisk
from tests.storage.logs import NOW_MS, append, opened


class Life:
    """Runs the life on a disk, and remembers what it was told."""

    def __init__(self, data: Path, disk: SimulatedDisk) -> None:
        self.data = data
        self.disk = disk
        self.issued: list[bytes] = []
        self.acknowledged = 0
        self.flushed = 0
        self.starts = {0}

    def append(self, log: Log, count: int, size: int = 40) -> None:
        for _ in range(count):
            values = [b"%d " % (len(self.issued) + n) + b"x" * size for n in range(2)]
            self.issued += values
            append(log, *values, timestamp_ms=NOW_MS + len(self.issued))
            self.acknowledged += 2

    def flush(self, log: Log) -> None:
        end = self.acknowledged
        log.flush()
        self.flushed = end

    def open(self) -> LogManager:
        return LogManager.open(str(self.data), files=self.disk)

    def close(self, manager: LogManager) -> None:
        manager.close()
        self.flushed = self.acknowledged

    def run(self) -> None:
        manager = self.open()
        log = manager.create_topic("t", 1).partitions[0]
        manager.set_topic_setting("t", "internal.segment.bytes", "700")
        manager.set_topic_setting("t", "index.interval.bytes", "150")
        manager.set_topic_setting("t", "file.delete.delay.ms", "0")
        self.append(log, 6)
        self.flush(log)
        manager.checkpoint()
        self.append(log, 3, size=2500)
        log.roll(NOW_MS)
        self.append(log, 2)
        _ = log.history
        self.close(manager)
        manager = self.open()
        log = manager.log("t", 0)
        self.append(log, 5)
        log.age_descriptors()
        log.age_descriptors()
        self.append(log, 2)
        self.flush(log)
        # Head segments go one by one: a crash may leave the second.
        self.starts = {segment.base_offset for segment in log.segments[:3]}
        log.remove_head(2, NOW_MS)
        self.append(log, 1)
        remove = manager.sweep(NOW_MS)
        assert remove is not None
        remove()
        manager.checkpoint()
        self.append(log, 1)
        self.close(manager)


def journal(tmp_path: Path) -> list[str]:
    """Every operation of the whole life, named."""
    data = tmp_path / "whole"
    data.mkdir()
    disk = SimulatedDisk(str(data))
    Life(data, disk).run()
    disk.kill()
    return disk.journal


def crash(
    tmp_path: Path, at: int, torn: bool, then: Callable[[SimulatedDisk], None]
) -> tuple[Life, Path]:
    data = tmp_path / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    disk = SimulatedDisk(str(data), crash_at=at, torn=torn)
    life = Life(data, disk)
    try:
        life.run()
    except Crashed:
        then(disk)
    else:
        disk.kill()
        pytest.fail("the life ended before the crash")
    return life, data


def check(life: Life, data: Path, at_least: int) -> None:
    with opened(data) as manager:
        topic = manager.topics.get("t")
        if topic is None:
            assert at_least == 0
            return
        log = topic.partitions[0]
        found = list(log.records())
        start = log.log_start_offset
        assert start in life.starts
        assert [record.offset for record in found] == list(range(start, log.log_end_offset))
        assert [record.value for record in found] == life.issued[start : log.log_end_offset]
        assert log.log_end_offset >= at_least
        append(log, b"goes on")
    with opened(data) as manager:
        assert list(manager.log("t", 0).records())[-1].value == b"goes on"


def test_a_kill_at_every_operation(tmp_path: Path) -> None:
    for at, operation in enumerate(journal(tmp_path), 1):
        for torn in (False, True) if " pwrite " in operation else (False,):
            life, data = crash(tmp_path, at, torn, SimulatedDisk.kill)
            check(life, data, life.acknowledged)


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_every_operation(tmp_path: Path, seed: int) -> None:
    for at in range(1, len(journal(tmp_path)) + 1):
        life, data = crash(tmp_path, at, seed % 2 == 1, lambda disk: disk.materialise(seed))
        check(life, data, life.flushed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 60))
def test_power_cuts_of_many_kinds(tmp_path: Path, seed: int) -> None:
    for at in range(1, len(journal(tmp_path)) + 1):
        life, data = crash(tmp_path, at, seed % 2 == 1, lambda disk: disk.materialise(seed))
        check(life, data, life.flushed)


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_during_recovery(tmp_path: Path, seed: int) -> None:
    """Recovery itself is interrupted at each of its operations, and then runs once more."""
    total = len(journal(tmp_path))
    for at in range(7, total, max(total // 12, 1)):
        step = 1
        while True:
            life, data = crash(tmp_path, at, True, lambda disk: disk.materialise(seed))
            disk = SimulatedDisk(str(data), crash_at=step, torn=True)
            try:
                LogManager.open(str(data), files=disk)
            except Crashed:
                disk.materialise(seed + 1)
                check(life, data, life.flushed)
                step += 1
            else:
                disk.kill()
                break
