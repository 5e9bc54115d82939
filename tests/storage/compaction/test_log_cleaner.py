"""Which log is cleaned next, and what is remembered of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage import LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.state import checkpoint_file
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.compaction.cleaned import Clock, clean, compacted, contents, put, roll
from tests.storage.logs import NOW_MS, write_settings


def test_the_filthiest_log_that_is_due(tmp_path: Path) -> None:
    clock = Clock()
    with compacted(tmp_path, clock=clock) as (manager, log):
        manager.create_topic("u", 2)
        manager.create_topic("deleted", 1)
        manager.change_topic_settings("deleted", {"cleanup.policy": "delete"})
        cleaner = LogCleaner(manager)
        assert cleaner.filthiest(NOW_MS) is None
        little, much = manager.log("u", 0), manager.log("u", 1)
        put(manager.log("deleted", 0), (b"a", b"1"))
        roll(manager.log("deleted", 0))
        for each in (log, little, much):
            put(each, (b"a", b"1" * 1000))
            roll(each)
            clean(manager, each)
        put(little, (b"a", b"1" * 500))
        put(much, (b"a", b"1" * 2000))
        assert cleaner.filthiest(NOW_MS) is None, "the active segment does not count"
        roll(little)
        roll(much)
        assert cleaner.plan(little, NOW_MS).ratio < 0.5 < cleaner.plan(much, NOW_MS).ratio
        assert cleaner.filthiest(NOW_MS) is much
        clean(manager, much)
        assert cleaner.filthiest(NOW_MS) is None
        # A part that has waited too long is due, however small it is.
        manager.change_topic_settings("u", {"max.compaction.lag.ms": "1000"})
        clock.now_ms += 1001
        assert cleaner.filthiest(clock.now_ms) is little


def test_a_preview_tells_what_cleaning_does_and_changes_nothing(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        for number in range(100):
            put(log, (b"%d" % (number % 7), b"x"), (b"a", None))
            if number % 30 == 29:
                roll(log)
        before, segments = contents(log), log.segments
        cleaner = LogCleaner(manager)
        expected = cleaner.preview(log, Task())
        assert log.segments is segments
        assert contents(log) == before
        assert cleaner.first_dirty(log) is None
        cleaned = cleaner.clean(log, Task())
        assert expected is not None
        assert cleaned is not None
        for name in ("end_offset", "records_read", "records_kept", "segments_after", "map_keys"):
            assert getattr(expected, name) == getattr(cleaned, name)
        assert cleaned.bytes_after == sum(segment.size for segment in log.segments[:-1])
        assert expected.bytes_after == cleaned.bytes_after


def test_the_checkpoint_is_kafka_s_and_survives(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", b"1"), (b"a", b"2"))
        roll(log)
        clean(manager, log)
        path = tmp_path / "cleaner-offset-checkpoint"
        assert path.read_text() == "0\n1\nt 0 2\n"
        assert checkpoint_file.read_offsets(Files(), str(path)) == {("t", 0): 2}
    with compacted(tmp_path) as (manager, log):
        assert LogCleaner(manager).first_dirty(log) == 2
        assert log.may_have_gaps


def test_what_is_written_where_a_crash_has_cut_is_dirty(tmp_path: Path) -> None:
    """A broker's cleaner flushes nothing where it changes nothing."""
    clock = Clock()
    write_settings(tmp_path, log_cleanup_policy="compact")
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = manager.create_topic("t", 1).partitions[0]
    put(log, (b"a", b"1"))
    put(log, (b"b", b"2"))
    roll(log)
    disk.materialise(0)
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    with compacted(tmp_path, clock=clock) as (manager, log):
        assert log.log_end_offset == 0
        put(log, (b"a", b"3"), (b"a", None))
        roll(log)
        put(log, (b"c", b"4"))
        roll(log)
        for _ in range(2):
            clean(manager, log)
            clock.now_ms += log.config.delete_retention_ms
        assert contents(log) == [(2, b"c", b"4")]


def test_what_failed_is_told_and_stays_dirty(tmp_path: Path) -> None:
    """Also after a kill: what nobody has cleaned is cleaned the next time."""
    write_settings(tmp_path, log_cleanup_policy="compact")
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=Clock())
    log = manager.create_topic("t", 1).partitions[0]
    for number in range(3):
        put(log, (b"a", b"%d" % number))
        roll(log)
    cleaner = LogCleaner(manager)
    disk.fail_next("pwrite", errno.EIO, suffix=".log.cleaned")
    with pytest.raises(OSError, match="Input/output error"):
        cleaner.clean(log, Task())
    ((failed, reason),) = cleaner.uncleanable.items()
    assert failed is log
    assert reason.startswith("[Errno 5] Input/output error")
    assert [value for *_, value in contents(log)] == [b"0", b"1", b"2"]
    assert cleaner.filthiest(NOW_MS) is log
    assert cleaner.filthiest(NOW_MS, {log}) is None
    assert log in cleaner.uncleanable
    manager.change_topic_settings("t", {"min.cleanable.dirty.ratio": "1"})
    assert cleaner.filthiest(NOW_MS) is None
    assert not cleaner.uncleanable, "nobody tries again"
    disk.kill()
    with compacted(tmp_path) as (manager, log):
        cleaned = clean(manager, log)
        assert (cleaned.first_dirty_offset, cleaned.end_offset) == (0, 3)
        assert [value for *_, value in contents(log)] == [b"2"]
