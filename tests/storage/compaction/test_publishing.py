"""A cleaning renames its files in several steps, and other operations run in between."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from storage import Log, LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.errors import TaskCancelled
from storage.log.listener import LogListener
from storage.segment.segment import Segment
from storage.task import RENAMED_PER_CALL, Task
from tests.storage.compaction.cleaned import clean, compacted, contents, put, roll
from tests.storage.logs import NOW_MS
from tests.storage.segmented import Turns

T = TypeVar("T")
COUNT = RENAMED_PER_CALL + 2


class FullDisk(LogListener[Log]):
    """Has to write down what changes, and cannot."""

    def preparing(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None]:
        def write() -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return write


class Between:
    """An owner that lets something happen before each of its turns."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens

    def __call__(self, function: Callable[[], T], /) -> T:
        self.happens()
        return function()


def fill(log: Log) -> None:
    """A log of as many sealed segments, which cleaning makes one."""
    for number in range(COUNT):
        put(log, (b"a", b"%d" % number))
        roll(log)


def test_files_are_renamed_some_at_a_time(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        deleted: list[int] = []
        old = log.segments[:-1]
        count = Between(lambda: deleted.append(sum(segment.deleted for segment in old)))
        assert clean(manager, log, Task(count)).segments_after == 1
        steps = [after - before for before, after in itertools.pairwise(deleted)]
        assert max(steps) == RENAMED_PER_CALL
        assert deleted[-1] == COUNT


def remove(manager: LogManager) -> None:
    while (unlink := manager.deleted.remove(2 * NOW_MS)) is not None:
        unlink()


def test_deleted_files_go_while_others_are_being_renamed(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        clean(manager, log, Task(Between(lambda: remove(manager))))
        expected = [(COUNT - 1, b"a", b"%d" % (COUNT - 1))]
        assert contents(log) == expected
        remove(manager)
        assert contents(log) == expected
        assert not [name for name in os.listdir(log.directory) if "deleted" in name]
        assert not log.retired
    with compacted(tmp_path) as (_, log):
        assert contents(log) == expected


@pytest.mark.parametrize("replaced", [1, RENAMED_PER_CALL + 1])
def test_the_topic_is_deleted_while_files_are_being_renamed(tmp_path: Path, replaced: int) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        old = log.segments[:-1]

        def delete() -> None:
            if "t" in manager.topics and sum(segment.deleted for segment in old) >= replaced:
                manager.delete_topic("t")

        cleaner = LogCleaner(manager)
        with contextlib.suppress(TaskCancelled):
            cleaner.clean(log, Task(Between(delete)))
        assert "t" not in manager.topics
        assert not cleaner.uncleanable
        # Nothing is left to be flushed of it.
        assert log not in manager.due_flushes(2 * NOW_MS)
        remove(manager)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("t")]
        manager.create_topic("t", 1)


def test_cleanup_policy_loses_compact_while_it_is_cleaned(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        before = contents(log)
        manager.change_topic_settings("t", {"cleanup.policy": "compact"})
        manager.checkpoint()
        files = sorted(os.listdir(log.directory))
        cleaner = LogCleaner(manager)
        change = Turns(1, lambda: manager.change_topic_settings("t", {"cleanup.policy": "delete"}))
        with pytest.raises(TaskCancelled):
            cleaner.clean(log, Task(change))
        assert contents(log) == before
        assert sorted(os.listdir(log.directory)) == files
        assert not cleaner.uncleanable
        assert cleaner.clean(log, Task()) is None, "nor does one begin that has waited"
        manager.change_topic_settings("t", {"cleanup.policy": "compact,delete"})
        assert clean(manager, log).segments_after == 1


def test_what_changes_cannot_be_written_down(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        before = contents(log)
        manager.checkpoint()
        files = sorted(os.listdir(log.directory))
        listener = FullDisk()
        log.listeners.append(listener)
        with pytest.raises(OSError, match="No space left"):
            clean(manager, log)
        assert contents(log) == before
        assert sorted(os.listdir(log.directory)) == files
        log.listeners.remove(listener)
        assert clean(manager, log).segments_after == 1


def test_a_cleaned_segment_keeps_the_snapshot_at_its_base(tmp_path: Path) -> None:
    """The files go of what it has taken the place of, which began there too."""
    with compacted(tmp_path) as (manager, log):
        manager.change_topic_settings("t", {"internal.segment.bytes": "1024"})
        for number in range(3):
            put(log, (b"%d" % number, b"x" * 500), (b"same", b"y" * 200))
            roll(log)
        bases = [segment.base_offset for segment in log.segments[1:]]
        assert clean(manager, log).segments_after > 1
        remove(manager)
        assert log.retired == []
        left = [segment.base_offset for segment in log.segments[1:]]
        assert len(left) > 1
        assert set(left) <= set(bases)
        for base in left:
            assert os.path.exists(log.snapshots.path(base))
