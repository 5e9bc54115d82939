"""The files that a kill leaves, as ``verify`` sees them before the next start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import LogManager
from storage.verify.verify import verify
from tests.storage.logs import NOW_MS, append, flip


def _killed(data: Path) -> Path:
    """Return the directory of a partition of three segments. The first one is flushed."""
    manager = LogManager.open(str(data))
    log = manager.create_topic("t", 1).partitions[0]
    manager.change_topic_settings("t", {"index.interval.bytes": "100"})
    for n in range(18):
        if n in (6, 12):
            log.roll(NOW_MS)
        append(log, b"%d" % n, timestamp_ms=NOW_MS + n)
        if n == 8:
            log.flush()
            manager.checkpoint()
    manager.abandon()
    return data / "t-0"


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\1\0"])
def test_a_snapshot_that_was_not_flushed(tmp_path: Path, content: bytes) -> None:
    (_killed(tmp_path) / f"{12:020d}.snapshot").write_bytes(content)
    report = verify(str(tmp_path))
    assert report.faults == []
    assert any("rebuilds it" in str(fault) for fault in report.left_over)


@pytest.mark.parametrize("base", [0, 6, 12])
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_an_index_that_was_not_trimmed(tmp_path: Path, base: int, kind: str) -> None:
    """A start rebuilds no index below the recovery point just because it is not trimmed."""
    path = _killed(tmp_path) / f"{base:020d}{kind}"
    os.truncate(path, 12 * 1000)
    report = verify(str(tmp_path))
    assert bool(report.faults) == (base == 0)
    assert any("rebuilds it" in str(fault) for fault in report.left_over) == (base == 6)


def test_damage_is_damage_after_a_kill_too(tmp_path: Path) -> None:
    for base in (0, 6, 12):
        (tmp_path / str(base)).mkdir()
        path = _killed(tmp_path / str(base))
        log = path / f"{base:020d}.log"
        flip(log, 100)
        assert verify(str(path.parent)).faults
