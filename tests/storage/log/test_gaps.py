"""The gaps of a log stay with its directory, whatever happens to its records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.errors import LogClosed, ReadOnlyLog
from storage.log.append import append_as_follower
from storage.state.gaps_file import FILE_NAME, Gap
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, remove_head, sweep, values

FIRST = Gap("deleted", 2, 9, NOW_MS)
SECOND = Gap("missing", 12, 19, NOW_MS + 1)


def a_mirrored(manager: LogManager) -> Log:
    """A log with two gaps, in three segments."""
    log = manager.create_topic("t", 1).partitions[0]
    for offset, gap in ((0, None), (10, FIRST), (20, SECOND)):
        if gap is not None:
            log.note_gaps(gap)
            log.roll(NOW_MS)
        append_as_follower(log, at(batch([b"%d" % offset, b"x"]), offset), NOW_NS)
    return log


def test_another_process_sees_each_gap_once_it_is_written(tmp_path: Path) -> None:
    with opened(tmp_path) as manager, LogManager.open(str(tmp_path), read_only=True) as empty:
        assert not empty.topics
        log = manager.create_topic("t", 1).partitions[0]
        with LogManager.open(str(tmp_path), read_only=True) as other:
            theirs = other.log("t", 0)
            for count in range(3):
                assert log.gaps == theirs.gaps == (FIRST, SECOND)[:count]
                log.note_gaps((FIRST, SECOND)[count % 2])
            with pytest.raises(ReadOnlyLog):
                theirs.note_gaps(FIRST)
    with pytest.raises(LogClosed):
        log.note_gaps(FIRST)


def test_truncation_and_retention_keep_them(tmp_path: Path) -> None:
    """Also if all records around a gap are removed, or get their offsets again."""
    with opened(tmp_path) as manager:
        log = a_mirrored(manager)
        manager.truncate(log, 12)
        append_as_follower(log, at(batch([b"new"] * 4), 12, 1), NOW_NS)
        assert values(log)[-1] == b"new"
        assert log.gaps == (FIRST, SECOND)
        remove_head(log, 1, NOW_MS)
        log.raise_log_start(12)
        assert log.gaps == (FIRST, SECOND)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        manager.truncate(log, 0)
        manager.start_at(log, 100)
        assert log.gaps == (FIRST, SECOND)


def test_a_deleted_topic_keeps_them_until_it_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = a_mirrored(manager)
        topic_id = log.topic_id
        manager.delete_topic("t")
        assert log.gaps == (FIRST, SECOND)
        assert manager.create_topic("t", 1).partitions[0].gaps == ()
        manager.delete_topic("t")
    with opened(tmp_path) as manager:
        manager.undelete_topic("t", topic_id)
        assert manager.log("t", 0).gaps == (FIRST, SECOND)
        manager.delete_topic("t")
    with opened(tmp_path, clock_ms=lambda: NOW_MS + 10**10) as manager:
        assert sweep(manager, NOW_MS + 10**10)
        assert not list(tmp_path.rglob(FILE_NAME))


@pytest.mark.parametrize("content", [b"deleted 2 9", b"rubbish\n", b"", b"\0" * 50, None])
def test_a_file_that_cannot_be_read_hides_no_record(tmp_path: Path, content: bytes | None) -> None:
    with opened(tmp_path) as manager:
        a_mirrored(manager)
    path = tmp_path / "t-0" / FILE_NAME
    path.unlink()
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert len(values(log)) == 6
        append(log, b"more")
        log.note_gaps(SECOND)
        assert log.gaps == (SECOND,)
        assert (tmp_path / "t-0" / f"{FILE_NAME}{paths.BAD}").exists()
