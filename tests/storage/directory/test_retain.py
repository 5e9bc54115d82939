"""Retention on real directories: what goes, when it is durable, restarts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from storage import Log, LogManager
from storage.directory.deleted import SWEPT_AT_ONCE
from storage.directory.retain import Retained, delete_records, plan_retention, remove_now, retain
from storage.errors import (
    InvalidConfig,
    TaskCancelled,
)
from storage.files import Files
from storage.segment.reader import SegmentReader
from storage.state.checkpoint_file import read_epochs, write_epochs
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import (
    NOW_MS,
    CountedReads,
    append,
    batch,
    opened,
    sweep,
    values,
    write_settings,
)
from tests.storage.segmented import (
    DAY_MS,
    Turns,
    bases,
    crashing,
    fill,
    log_starts,
    names,
    run,
    segmented,
)

T = TypeVar("T")

# -- retention -----------------------------------------------------------------------------------


def test_old_segments_go_and_stay_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_ms=str(2 * DAY_MS))
        plan = plan_retention(log, NOW_MS + 4 * DAY_MS, {})
        assert [doomed.segment.base_offset for doomed in plan.doomed] == [0, 2]
        assert (plan.offsets, plan.log_start, plan.rolls, plan.fault) == (4, 4, False, None)
        assert plan.size == sum(segment.size for segment in log.segments[:2])
        assert bases(log) == [0, 2, 4, 6], "a plan changes nothing"
        done = run(manager, NOW_MS + 4 * DAY_MS)
        assert done == Retained(logs=1, segments=2, size=plan.size, offsets=4)
        assert (bases(log), log.log_start_offset) == ([4, 6], 4)
        assert values(log) == [b"a2", b"b2", b"a3", b"b3"]
        assert manager.log_group.counters.segments_deleted == 2
        assert manager.log_group.counters.bytes_deleted == plan.size
        assert run(manager, NOW_MS + 4 * DAY_MS) == Retained(logs=1)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (bases(log), log.log_start_offset) == ([4, 6], 4)
        assert names(log, ".deleted") == []


def test_files_are_renamed_and_go_when_their_delay_is_over(tmp_path: Path) -> None:
    now = NOW_MS + 9 * DAY_MS
    with opened(tmp_path, clock_ms=lambda: now) as manager:
        log = segmented(manager, retention_bytes="1", file_delete_delay_ms="500")
        first = log.segments[0]
        assert run(manager, now).segments == 3
        stem = f"{0:020}"
        assert {f"{stem}.log.deleted", f"{stem}.index.deleted"} <= set(names(log))
        assert not [name for name in names(log) if name in (f"{stem}.log", f"{stem}.index")]
        assert f"{2:020}.snapshot" in names(log)
        first.lease()
        for moment in (now + 499, now + 500, now + 501):
            sweep(manager, moment)
            left = {int(name.split(".")[0]) for name in names(log, ".deleted")}
            # One that is being read stays until it no longer is.
            assert left == ({0, 2, 4} if moment < now + 500 else {0})
        assert next(SegmentReader(first).batches())[1].base_offset == 0
        first.release()
        assert sweep(manager, now + 502)
        assert names(log, ".deleted") == []
        assert names(log, ".snapshot") == [f"{6:020}.snapshot"]


def test_many_are_removed_some_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, count=2 * SWEPT_AT_ONCE + 2, retention_bytes="1")
        assert run(manager, NOW_MS).segments == 2 * SWEPT_AT_ONCE + 1
        left = []
        while (remove := manager.deleted.remove(2 * NOW_MS)) is not None:
            remove()
            left.append(len(names(log, ".log.deleted")))
        assert left == [SWEPT_AT_ONCE + 1, 1, 0]
        assert names(log, ".deleted") == []


def test_when_all_goes_a_new_segment_is_begun_first(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_ms="1")
        plan = plan_retention(log, NOW_MS + 9 * DAY_MS, {})
        assert (plan.rolls, len(plan.doomed), plan.log_start) == (True, 4, 8)
        done = run(manager, NOW_MS + 9 * DAY_MS)
        assert (done.segments, done.offsets) == (4, 8)
        assert (bases(log), log.log_start_offset, log.log_end_offset) == ([8], 8, 8)
        assert values(log) == []
        assert run(manager, NOW_MS + 99 * DAY_MS).segments == 0, "an empty one stays"
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (8, 8)
        assert append(log, b"next") == 8


def test_leader_epochs_are_cut_at_the_log_start(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_bytes="100000")
        path = os.path.join(log.directory, "leader-epoch-checkpoint")
    write_epochs(Files(), path, [(0, 0), (3, 1), (4, 4), (7, 5)])
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        manager.change_topic_settings(
            "t", {"retention.bytes": str(sum(s.size for s in log.segments[2:]))}
        )
        assert run(manager, NOW_MS).segments == 2
        assert log.epochs.entries == [(4, 4), (7, 5)]
        log.flush()
        assert read_epochs(Files(), path) == [(4, 4), (7, 5)]
        assert delete_records(manager, log, 7, Task()) == 7
        assert log.epochs.entries == [(7, 7)]
        assert delete_records(manager, log, 8, Task()) == 8
    assert read_epochs(Files(), path) == [(7, 8)]
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).epochs.entries == [(7, 8)]
        assert manager.log("t", 0).epochs.latest == 7


@pytest.mark.parametrize("clean", [True, False])
def test_records_without_timestamps_go_by_the_files_time(tmp_path: Path, clean: bool) -> None:
    def append_untimed(log: Log, now_ms: int) -> None:
        log.append(batch([b"x"], timestamp_ms=-1), now_ns=now_ms * 1_000_000)

    with opened(tmp_path) if clean else crashing(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"retention.ms": "1000"})
        append_untimed(log, NOW_MS)
        append_untimed(log, NOW_MS + 5)
        log.roll(NOW_MS + 100)
        append_untimed(log, NOW_MS + 200)
        assert [s.largest_timestamp for s in log.segments] == [NOW_MS + 5, NOW_MS + 200]
        assert plan_retention(log, NOW_MS + 1005, {}).doomed == ()
        assert len(plan_retention(log, NOW_MS + 1006, {}).doomed) == 1
        if not clean:
            log.flush()
            manager.checkpoint()
        else:
            log.roll(NOW_MS + 300)
            append_untimed(log, NOW_MS + 400)
    for number, base in enumerate(bases(log)):
        path = Path(log.directory) / f"{base:020}.log"
        os.utime(path, ns=(0, (NOW_MS + 3 * number) * 1_000_000 + 999_999))
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        expected = [NOW_MS, NOW_MS + 3, NOW_MS + 6][: len(log.segments)]
        assert [segment.largest_timestamp for segment in log.segments] == expected
        assert [segment.max_timestamp for segment in log.segments] == [-1] * len(expected)
        append_untimed(log, NOW_MS + 50)
        assert log.active.largest_timestamp == NOW_MS + 50
        assert len(plan_retention(log, NOW_MS + 1003, {}).doomed) == 1


def test_planning_looks_into_no_file(tmp_path: Path) -> None:
    write_settings(tmp_path, log_retention_ms=2 * DAY_MS, num_partitions=20)
    with opened(tmp_path) as manager:
        for log in manager.create_topic("t").partitions.values():
            fill(log, 3)
    files = CountedReads()
    with opened(tmp_path, files) as manager:
        before = files.operations
        plans = [plan_retention(log, NOW_MS + 4 * DAY_MS, {}) for log in manager.logs()]
        assert [plan.offsets for plan in plans] == [4] * 20
        assert retain(manager, manager.logs(), Task(), NOW_MS).segments == 0
        assert files.operations == before


def test_the_log_start_is_written_down_until_the_files_are_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_bytes="1")
        run(manager, NOW_MS)
        assert log.durability.recovery_point == 8, (
            "what only its snapshot will know was flushed before"
        )
        assert log_starts(manager) == {("t", 0): 6}
        # Until a crash can no longer bring the old files back.
        manager.checkpoint()
        assert log_starts(manager) == {("t", 0): 6}
        remove_now(log)
        log.flush()
        manager.checkpoint()
        assert log_starts(manager) == {}


def copies(log: Log) -> dict[str, bytes]:
    return {name: (Path(log.directory) / name).read_bytes() for name in names(log)}


@pytest.mark.parametrize("back", [(0,), (2,), (0, 4), (0, 2, 4)])
def test_a_deletion_that_was_half_done_is_finished(tmp_path: Path, back: tuple[int, ...]) -> None:
    """The machine dies before the disk knows of all the renames, in whatever order it had them."""
    with crashing(tmp_path) as manager:
        log = segmented(manager, retention_bytes="1")
        before = copies(log)
        run(manager, NOW_MS)
    for name, data in before.items():
        if name.endswith((".log", ".index")) and int(name.split(".")[0]) in back:
            (Path(log.directory) / name).write_bytes(data)
            (Path(log.directory) / f"{name}.deleted").unlink()
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (bases(log), log.log_start_offset) == ([6], 6)
        assert values(log) == [b"a3", b"b3"]
        assert manager.cuts == []
        assert {int(name.split(".")[0]) for name in names(log) if name[0] == "0"} == {6}


def test_a_policy_that_is_not_installed_any_more_is_noted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        segmented(manager, "u", retention_bytes="1")
        log.config = replace(log.config, kafkafs_retention_policy="gone")
        done = run(manager, NOW_MS)
        (note,) = done.notes
        assert note.startswith("t-0: retention policy gone failed, so it deletes nothing: ")
        assert (done.logs, done.segments) == (2, 3)
        assert bases(log) == [0, 2, 4, 6]


def test_an_error_of_one_log_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = segmented(manager, retention_bytes="1")
        segmented(manager, "u", retention_bytes="1")
        disk.fail_next("rename", errno.EIO, suffix=f"t-0/{0:020}.log")
        done = run(manager, NOW_MS)
        assert bases(manager.log("u", 0)) == [6]
        assert len(done.notes) == 1
        assert done.notes[0].startswith("t-0: ")
        assert "Input/output error" in done.notes[0]
        assert (bases(log), values(log)) == ([6], [b"a3", b"b3"])
    # A segment that could not be renamed does not come back.
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [b"a3", b"b3"]
        assert manager.log("t", 0).log_start_offset == 6


def test_a_log_that_is_being_cleaned_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_bytes="1")
        log.cleaning = True
        assert run(manager, NOW_MS) == Retained(logs=1, cleaning=1)

        def begin_cleaning() -> None:
            log.cleaning = True

        log.cleaning = False
        done = run(manager, NOW_MS, Task(Turns(5, begin_cleaning)))
        assert log.cleaning
        assert (done.segments, done.cleaning, bases(log)) == (0, 1, [0, 2, 4, 6])
        manager.checkpoint()
        assert log_starts(manager) == {}
        log.cleaning = False
        assert run(manager, NOW_MS).segments == 3


@pytest.mark.parametrize("turn", range(1, 8))
def test_a_topic_that_is_deleted_meanwhile(tmp_path: Path, turn: int) -> None:
    with opened(tmp_path) as manager:
        segmented(manager, retention_bytes="1", file_delete_delay_ms="0")
        done = run(manager, NOW_MS, Task(Turns(turn, lambda: manager.delete_topic("t"))))
        assert done.notes == []
        assert manager.topics == {}
        assert sweep(manager, 2 * NOW_MS)
        assert log_starts(manager) == {}
        assert [name for name in os.listdir(tmp_path) if name.startswith("t-0")] == []


@pytest.mark.parametrize("turn", range(1, 8))
def test_segments_that_are_replaced_meanwhile(tmp_path: Path, turn: int) -> None:
    """As by a compaction, which is a job of its own."""
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_bytes="1")
        task = Task(Turns(turn, lambda: log.remove_head(2, log.monotonic_ms())))
        assert run(manager, NOW_MS, task).notes in (
            [],
            ["t-0: its segments were replaced meanwhile"],
        )
        assert values(log)[-2:] == [b"a3", b"b3"]
        assert run(manager, NOW_MS).notes == []
        assert bases(log) == [6]


def test_what_is_appended_while_it_is_being_planned_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, count=2, retention_ms="5", segment_ms=str(7 * DAY_MS))
        now = NOW_MS + 3 * DAY_MS
        task = Task(Turns(0, lambda: append(log, b"fresh", timestamp_ms=now)))
        done = run(manager, now, task)
        assert (done.segments, bases(log)) == (1, [2])
        assert values(log) == [b"a1", b"b1", b"fresh"]


@pytest.mark.parametrize("turn", range(6))
def test_settings_that_change_before_it_is_deleted_count_too(tmp_path: Path, turn: int) -> None:
    with crashing(tmp_path) as manager:
        log = segmented(manager, retention_bytes="1")
        keep = Turns(turn, lambda: manager.change_topic_settings("t", {"retention.bytes": "-1"}))
        assert run(manager, NOW_MS, Task(keep)).segments == 0
        assert bases(log) == [0, 2, 4, 6]
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0))[0] == b"a0"


def test_what_is_appended_while_all_of_it_goes_comes_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_ms="5")
        late = Turns(1, lambda: append(log, b"late", timestamp_ms=NOW_MS))
        done = run(manager, NOW_MS + 9 * DAY_MS, Task(late))
        assert (done.segments, bases(log), values(log)) == (4, [8], [b"late"])


def test_cancelled_after_the_deletion_from_one_of_two_logs(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        first, second = (segmented(manager, name, retention_ms=str(2 * DAY_MS)) for name in "ab")
        task = Task()

        def on_log_thread(function: Callable[[], T], /) -> T:
            if first.log_start_offset:
                task.cancel()
            return function()

        task.on_log_thread = on_log_thread
        with pytest.raises(TaskCancelled):
            run(manager, NOW_MS + 4 * DAY_MS, task)
        assert (first.log_start_offset, second.log_start_offset) == (4, 0)
        assert log_starts(manager) == {("a", 0): 4}


def test_cancelled_before_anything_was_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, retention_bytes="1")
        task = Task()
        task.on_log_thread = Turns(1, task.cancel)
        with pytest.raises(TaskCancelled):
            run(manager, NOW_MS, task)
        assert bases(log) == [0, 2, 4, 6]
        manager.checkpoint()
        assert log_starts(manager) == {}


# -- settings ------------------------------------------------------------------------------------


def test_a_policy_must_be_there_when_it_is_set_and_when_it_is_loaded(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, kafkafs_retention_policy="mtime:7")
        assert log.config.kafkafs_retention_policy == "mtime:7"
        for text in (
            "mtime",
            "mtime:",
            "mtime:-1",
            "mtime:1w",
            "mtime:x",
            "none",
            "kafka:",
            "kafka:1",
        ):
            with pytest.raises(InvalidConfig, match="retention policy"):
                manager.change_topic_settings("t", {"kafkafs.retention.policy": text})
        assert log.config.kafkafs_retention_policy == "mtime:7"
    path = tmp_path / "t-0" / "kafkafs-topic.properties"
    path.write_text(path.read_text().replace("mtime:7", "mtime:x"))
    with pytest.raises(InvalidConfig, match=r"mtime:x.*, topic t"):
        LogManager.open(str(tmp_path))
    with LogManager.open(str(tmp_path), read_only=True) as reader:
        plan = plan_retention(reader.log("t", 0), NOW_MS, {})
        assert plan.doomed == ()
        assert plan.fault is not None
    path.unlink()
    write_settings(tmp_path, kafkafs_retention_policy="none")
    with pytest.raises(InvalidConfig, match=r"unknown retention policy 'none'.*kafkafs.properties"):
        LogManager.open(str(tmp_path))


def test_the_articles_policy_by_the_files_time(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager, kafkafs_retention_policy="mtime:2")
    for number, base in enumerate(bases(log)):
        os.utime(Path(log.directory) / f"{base:020}.log", (0, (NOW_MS // 1000) + number * 86_400))
    with opened(tmp_path) as manager:
        done = run(manager, NOW_MS + 4 * DAY_MS)
        assert (done.segments, bases(manager.log("t", 0))) == (2, [4, 6])
