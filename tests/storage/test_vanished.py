"""The file of a segment goes while its own writer has the log open."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.errors import CorruptRecord
from storage.log.rescue import rescue
from storage.task import Task
from storage.verify.log_checker import LogChecker
from tests.storage.logs import NOW_MS, append, log_file, readable
from tests.storage.state.test_segment_manifest import BASES, LINES, fill, opened_with_faults, vanish


def vanished(data: Path) -> tuple[LogManager, Log]:
    """Four segments of three records. None is flushed. The file of the second one is deleted."""
    manager = opened_with_faults(data)
    log = manager.create_topic("t", 1).partitions[0]
    for n, line in enumerate(LINES):
        if n in BASES[1:]:
            log.roll(NOW_MS)
        append(log, line, timestamp_ms=NOW_MS + n)
    for segment in log.segments[:-1]:
        segment.close_descriptors()
    vanish(data, 3)
    return manager, log


def test_before_it_was_flushed(tmp_path: Path) -> None:
    """A flush says it once and goes on without it; the next start misses it, and cuts nothing."""
    manager, log = vanished(tmp_path)
    with pytest.raises(CorruptRecord, match="offsets 3 to 5 are damaged: the file is missing"):
        log.flush()
    assert log.durability.recovery_point == log.log_end_offset
    assert log.flush_error is None
    log.flush()
    manager.checkpoint()
    expected = [*LINES[:3], None, None, None, *LINES[6:]]
    assert readable(log) == expected
    (said,) = log.losses
    manager.abandon()
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    assert log.losses == [said]
    assert readable(log) == expected
    manager.close()


def test_a_clean_stop_writes_it_down(tmp_path: Path) -> None:
    vanished(tmp_path)[0].close()
    manager = opened_with_faults(tmp_path)
    assert len(manager.log("t", 0).losses) == 1
    assert readable(manager.log("t", 0)) == [*LINES[:3], None, None, None, *LINES[6:]]
    manager.close()


def test_its_indexes_go_alone(tmp_path: Path) -> None:
    """Lookups read the log instead."""
    fill(tmp_path)
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    for path in (tmp_path / "t-0").glob("*3.*index"):
        path.unlink()
    assert readable(log) == LINES
    assert log.reader.offset_for_timestamp(NOW_MS + 4) == (NOW_MS + 4, 4)
    assert log.losses == []
    manager.close()


def test_the_active_one(tmp_path: Path) -> None:
    """Nothing is appended where it was, and its offsets are not given out again."""
    fill(tmp_path)
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    log_file(tmp_path, 9).unlink()
    with pytest.raises(CorruptRecord, match="the file is missing, its size was"):
        append(log, b"other", timestamp_ms=NOW_MS)
    assert log.log_end_offset == len(LINES)
    assert not log_file(tmp_path, 9).exists()
    manager.abandon()
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    assert log.lost_ranges == [(9, 11)]
    manager.close()


def test_a_directory_that_was_renamed_has_lost_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        next(log.records(3))
    (tmp_path / "elsewhere").rename(tmp_path / "t-0")
    assert readable(log) == LINES
    assert log.losses == []
    manager.close()


def test_the_checker_goes_on(tmp_path: Path) -> None:
    """It is found when it is read back, counted once, and what comes behind is read back, too."""
    fill(tmp_path)
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    checker = LogChecker(manager.logs, lambda: NOW_MS)
    checker.run_newest(Task())
    vanish(tmp_path, 3)
    for _ in range(2):
        checker.run_sealed(Task())
        checker.run_newest(Task())
        assert log.lost_ranges == [(3, 5)]
        assert log.counters.damages == 1
    append(log, b"more", timestamp_ms=NOW_MS)
    log.roll(NOW_MS)
    log.segments[-2].close_descriptors()
    vanish(tmp_path, 9)
    append(log, b"behind", timestamp_ms=NOW_MS)
    checker.run_newest(Task())
    assert log.lost_ranges == [(3, 5), (9, 12)]
    assert checker.checked_ms(log) == NOW_MS
    checked = checker.bytes_checked(log)
    append(log, b"further", timestamp_ms=NOW_MS)
    checker.run_newest(Task())
    assert checker.bytes_checked(log) > checked
    manager.close()


def test_the_active_one_while_it_is_open(tmp_path: Path) -> None:
    """Records flushed to the deleted file are lost. The next start knows it and refuses appends."""
    fill(tmp_path)
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    append(log, b"before", timestamp_ms=NOW_MS)
    log_file(tmp_path, 9).unlink()
    append(log, b"behind", timestamp_ms=NOW_MS)
    assert readable(log) == [*LINES, b"before", b"behind"]
    log.flush()
    manager.checkpoint()
    manager.abandon()
    manager = opened_with_faults(tmp_path)
    log = manager.log("t", 0)
    assert log.lost_ranges == [(9, 13)]
    with pytest.raises(OSError, match="so that these offsets are not reused"):
        append(log, b"other", timestamp_ms=NOW_MS)
    manager.close()


def test_the_active_one_is_sealed_while_it_is_open(tmp_path: Path) -> None:
    """A flush fails if the file of a segment is deleted; `rescue` writes a new file for it."""
    manager = opened_with_faults(tmp_path)
    log = manager.create_topic("t", 1).partitions[0]
    append(log, LINES[0], timestamp_ms=NOW_MS)
    log_file(tmp_path, 0).unlink()
    append(log, LINES[1], timestamp_ms=NOW_MS)
    log.roll(NOW_MS)
    append(log, LINES[2], timestamp_ms=NOW_MS)
    with pytest.raises(FileNotFoundError):
        log.flush()
    rescue(log, Task(), NOW_MS)
    assert log_file(tmp_path, 0).exists()
    manager.abandon()
    manager = opened_with_faults(tmp_path)
    assert readable(manager.log("t", 0)) == LINES[:3]
    manager.close()
