"""A crash, or an error of the disk, at every file operation of a chmod of a topic or a partition.

Wherever it stops, no file can be read by more users than the settings let that are written down,
and a chmod that was refused leaves the files as they were.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from storage.modes import of_directory, of_file
from tests.crash.disk import Crashed, SimulatedDisk
from tests.crash.failing_disk import FailingDisk
from tests.storage.logs import NOW_MS, append

PARTITIONS = 2
CHANGES = [
    (None, 0o755, 0o700),
    (None, 0o700, 0o755),
    (None, 0o750, 0o705),
    (1, 0o600, 0o644),
    (1, 0o644, 0o600),
    (1, 0o640, 0o604),
]


def build(data: Path, partition: int | None, mode: int) -> None:
    data.mkdir()
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        manager.create_topic("t", PARTITIONS, owner=(os.getuid(), os.getgid(), 0o755))
        for log in manager.logs():
            append(log, b"a", b"b")
        manager.set_owner("t", partition, (os.getuid(), os.getgid(), mode))


def modes(data: Path) -> Iterator[tuple[int, int, int]]:
    """(mode, that of the topic, that of the partition) of each directory and file."""
    with LogManager.open(str(data), read_only=True, clock_ms=lambda: NOW_MS) as manager:
        settings = manager.settings
        topic = settings.get_owner("t", None)
        assert topic is not None
        for log in manager.logs():
            partition = settings.partition_owner("t", log.partition)
            assert partition is not None
            for path in (Path(log.directory), *Path(log.directory).iterdir()):
                yield path.stat().st_mode & 0o777, topic[2], partition[2]


def check(data: Path, *, exactly: bool) -> None:
    uid, gid = os.getuid(), os.getgid()
    found = list(modes(data))
    assert len(found) > 8
    for mode, topic, partition in found:
        directory = of_directory(uid, gid, (topic, uid, gid), (partition, uid, gid))
        wanted = {directory, of_file(directory)}
        assert any(mode & ~each == 0 for each in wanted), (oct(mode), oct(topic), oct(partition))
        assert not exactly or mode in wanted, (oct(mode), oct(topic), oct(partition))


@pytest.mark.parametrize(("partition", "before", "after"), CHANGES)
def test_a_crash(tmp_path: Path, partition: int | None, before: int, after: int) -> None:
    stops = 0
    while True:
        data = tmp_path / f"{stops}"
        build(data, partition, before)
        disk = SimulatedDisk(str(data))
        manager = LogManager.open(str(data), files=disk, clock_ms=lambda: NOW_MS)
        disk.crash_after(stops + 1)
        try:
            manager.set_owner("t", partition, (os.getuid(), os.getgid(), after))
        except Crashed:
            disk.kill()
            check(data, exactly=False)
            stops += 1
            continue
        disk.kill()
        check(data, exactly=True)
        assert stops > 5
        return


@pytest.mark.parametrize(("partition", "before", "after"), CHANGES)
def test_an_error(tmp_path: Path, partition: int | None, before: int, after: int) -> None:
    build(tmp_path / "data", partition, before)
    disk = FailingDisk(str(tmp_path / "data"))
    with LogManager.open(str(tmp_path / "data"), files=disk, clock_ms=lambda: NOW_MS) as manager:
        disk.fail_next("open", errno.EIO, suffix="kafkafs-topic.properties.tmp")
        with pytest.raises(OSError, match="Input/output error"):
            manager.set_owner("t", partition, (os.getuid(), os.getgid(), after))
    check(tmp_path / "data", exactly=True)


def test_a_file_system_without_modes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Topics and partitions are made and changed there as anywhere; a line says what is missing."""
    (tmp_path / "data").mkdir()
    disk = FailingDisk(str(tmp_path / "data"))
    owner = os.getuid(), os.getgid(), 0o755
    with LogManager.open(str(tmp_path / "data"), files=disk, clock_ms=lambda: NOW_MS) as manager:
        disk.fail_next("chmod", errno.EPERM, times=100)
        manager.create_topic("t", PARTITIONS, owner=owner)
        manager.create_partition("t", PARTITIONS, owner=owner)
        manager.set_owner("t", None, owner)
        assert (
            caplog.text.count("the modes of its files were not changed: Operation not permitted")
            > 3
        )
        assert len(manager.topic("t").partitions) == PARTITIONS + 1
    check(tmp_path / "data", exactly=False)
