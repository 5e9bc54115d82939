"""A crash at every file operation of a repair that cuts a flushed log and salvages what follows.

After each crash, another repair restores the same records.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import LogManager
from storage.files import Files
from storage.log.salvage import salvage
from tests.crash.disk import Crashed, SimulatedDisk
from tests.storage.logs import (
    NOW_MS,
    NOW_NS,
    append,
    log_file,
    opened,
    overwrite,
    values,
    write_settings,
)


def build(data: Path) -> list[bytes]:
    """Two flushed segments, with damage across two batches of the first one; return the others."""
    data.mkdir()
    write_settings(data, log_index_interval_bytes=150)
    lines = [b"%d" % n + b"x" * 40 for n in range(9)]
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for n, line in enumerate(lines):
            if n == 7:
                log.roll(NOW_MS)
            append(log, line)
    path = log_file(data, 0)
    overwrite(path, path.stat().st_size // 7 * 2 - 10, bytes(40))
    return lines


def repair(data: Path, files: Files) -> None:
    with LogManager.open(str(data), files=files, verify=True) as manager:
        salvage(manager.log("t", 0), NOW_NS)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_repair_is_repeated(tmp_path: Path, seed: int | None) -> None:
    """``seed``: of a power cut; None: the process is killed."""
    data = tmp_path / "data"
    lines = build(data)
    repair(data, Files())
    with opened(data) as manager:
        expected = values(manager.log("t", 0))
    assert expected[0] == lines[0]
    assert expected[-2:] == lines[-2:]
    assert len(expected) > 5
    is_ended, count = False, 0
    while not is_ended:
        shutil.rmtree(data)
        build(data)
        disk = SimulatedDisk(str(data))
        disk.crash_after(count)
        try:
            repair(data, disk)
            is_ended = True
        except Crashed:
            count += 1
        if seed is None:
            disk.kill()
        else:
            disk.materialise(seed)
        repair(data, Files())
        with opened(data) as manager:
            assert values(manager.log("t", 0)) == expected, count
    assert count > 50
