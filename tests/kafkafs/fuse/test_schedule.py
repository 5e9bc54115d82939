"""Scheduled cleaning: which logs are cleaned and when, on a clock that the tests set.

Tests through a mount: tests/mount/contract/test_schedule.py.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import trio
import trio.testing

from kafkafs.fuse.schedule import RETRY_S
from storage import Record, encode, paths
from storage.files import Files
from storage.groups.offset_records import Committed
from storage.log.log import Log
from storage.words.words import Words
from tests.kafkafs.fuse import worlds
from tests.kafkafs.fuse.worlds import in_world
from tests.storage.handed import write_broker
from tests.storage.logs import append, values
from tests.waits import HANG_S


class Refusing(Files):
    """A disk that takes no new files with `part` in their names while `is_broken`."""

    part, error, is_broken, tries = "none", errno.EIO, False, 0

    def refuse(self, part: str, error: int = errno.EIO) -> None:
        self.part, self.error, self.is_broken = part, error, True

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if self.part in path and flags & os.O_CREAT:
            self.tries += 1
            if self.is_broken:
                raise OSError(self.error, os.strerror(self.error), path)
        return super().open(path, flags, mode)


class World(worlds.World):
    """The workers and the schedule. Seconds pass when the test says so."""

    settings: ClassVar[dict[str, object]] = {
        "log_initial_task_delay_ms": 30_000,
        "log_retention_check_interval_ms": 300_000,
        "log_cleaner_backoff_ms": 15_000,
    }

    def __init__(self, data: Path, clock: trio.testing.MockClock) -> None:
        self._other_threads = set(threading.enumerate())
        self.disk = Refusing()
        super().__init__(data, clock, self.disk)

    async def start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.workers.run)
        nursery.start_soon(self.schedule.run)
        await self.pass_s(0)

    def old(self, log: Log) -> None:
        """A sealed segment of a record."""
        append(log, b"x", timestamp_ms=self.now_ms())
        log.roll(self.now_ms())

    def dirty(self, log: Log) -> None:
        """A sealed segment in which one of two records may go."""
        records = [Record(n, self.now_ms(), 0, b"key", b"%d" % n) for n in (0, 1)]
        log.append(bytearray(encode(records)), now_ns=self.now_ms() * 1_000_000)
        log.roll(self.now_ms())

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, and wait until all work that is due is done.

        Worker threads take real time. The clock stands still meanwhile.
        """
        # A turn that still runs would begin its pause after the jump, and never end it.
        await self._rest()
        self.clock.jump(seconds)
        await self._rest()

    async def _rest(self) -> None:
        """Return when no job, no duty and no other call in a thread runs."""
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked(0.01)
            while self.tree.mount.jobs.running or self._threads_run():
                await trio.testing.wait_all_tasks_blocked(0.001)

    def _threads_run(self) -> bool:
        """Trio keeps idle threads, under this name."""
        threads = set(threading.enumerate()) - self._other_threads
        return not all(thread.name.startswith("Trio thread") for thread in threads)


async def comes(holds: Callable[[], bool]) -> None:
    """A thread does it, in real time."""
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, "that never came to be"
        await trio.lowlevel.checkpoint()
        await trio.to_thread.run_sync(lambda: None)


@in_world(World)
async def test_retention_after_the_first_delay_and_then_at_each_interval(world: World) -> None:
    log = world.topic("a", retention_bytes=0)
    world.old(log)
    await world.pass_s(29)
    assert len(values(log)) == 1
    await world.pass_s(2)
    await comes(lambda: values(log) == [])
    world.old(log)
    await world.pass_s(290)
    assert len(values(log)) == 1
    await world.pass_s(10)
    await comes(lambda: values(log) == [])


@in_world(World)
async def test_compaction_begins_at_once_and_pauses_where_there_is_nothing(world: World) -> None:
    log = world.topic("a", cleanup_policy="compact")
    world.dirty(log)
    await world.pass_s(14)
    await world.pass_s(2)
    await comes(lambda: values(log) == [b"1"])


@in_world(World)
async def test_the_dirtiest_first_and_then_the_next_without_a_pause(world: World) -> None:
    half = world.topic("half", cleanup_policy="compact", min_cleanable_dirty_ratio=0.4)
    whole = world.topic("whole", cleanup_policy="compact")
    world.dirty(half)
    await world.pass_s(16)
    await comes(lambda: values(half) == [b"1"])
    for log in (half, whole):
        world.dirty(log)
    await world.pass_s(16)
    await comes(lambda: values(half) == values(whole) == [b"1"])
    cleaned = [line for line in world.said if "compaction: the clock: done" in line]
    assert [line.partition("/")[0] for line in cleaned] == ["half", "whole", "half"]


@in_world(World)
async def test_compacted_topics_get_their_retention_with_the_cleaners_turns(world: World) -> None:
    both = world.topic("both", cleanup_policy="compact,delete", retention_bytes=0)
    plain = world.topic("plain", retention_bytes=0)
    world.dirty(both)
    world.old(plain)
    await world.pass_s(16)
    await comes(lambda: values(both) == [])
    assert len(values(plain)) == 1


@in_world(World, log_cleaner_enable="false")
async def test_without_the_cleaner_they_get_it_with_the_others(world: World) -> None:
    both = world.topic("both", cleanup_policy="compact,delete", retention_bytes=0)
    world.dirty(both)
    await world.pass_s(29)
    assert len(values(both)) == 2
    await world.pass_s(2)
    await comes(lambda: values(both) == [])
    assert not [line for line in world.said if "compaction" in line]


@in_world(World)
async def test_sealed_segments_are_repacked_again_and_again(world: World) -> None:
    log = world.topic("a", kafkafs_repack="zstd")

    def fill(count: int) -> int:
        for _ in range(count):
            append(log, b"the same words in each line", timestamp_ms=world.now_ms())
        log.roll(world.now_ms())
        return log.segments[-2].size

    sizes = [fill(20)]
    await world.pass_s(31)
    await comes(lambda: log.segments[0].size < sizes[0])
    for number in range(1, 3):
        sizes.append(fill(20 + number))
        await world.pass_s(6)
        await comes(lambda number=number: log.segments[number].size < sizes[number])  # type: ignore[misc]
    assert values(log) == [b"the same words in each line"] * 63
    await comes(lambda: len(world.said) == 3)
    after = [segment.size for segment in log.segments]
    assert world.said == [
        f"a/0: repacked 1 segment: {sizes[number]} bytes became {after[number]}"
        for number in range(3)
    ]


@in_world(World)
async def test_a_swap_is_finished_although_repacking_was_switched_off(world: World) -> None:
    log = world.topic("a", kafkafs_repack="zstd")
    for _ in range(20):
        append(log, b"the same words in each line", timestamp_ms=world.now_ms())
    log.roll(world.now_ms())
    old = log.segments[0]
    obstacle = Path(f"{old.file_path(paths.INDEX)}.deleted", "file")
    obstacle.parent.mkdir()
    obstacle.touch()
    await world.pass_s(31)
    await world.pass_s(16)
    assert log.segments[0] is not old
    assert log.segments[0].log_path.endswith(".swap")
    world.manager.change_topic_settings("a", {"kafkafs.repack": "off"})
    obstacle.unlink()
    obstacle.parent.rmdir()
    await world.pass_s(31)
    assert log.segments[0].log_path.endswith(".log")
    assert os.path.exists(log.segments[0].log_path)
    assert old.log_path.endswith(".deleted")
    assert world.manager.duties.failing == {"end of a swap": 0, "repacking": 0}


@in_world(World)
async def test_a_segment_that_would_not_become_smaller_is_read_once(world: World) -> None:
    log = world.topic("a", kafkafs_repack="zstd")
    append(log, os.urandom(300_000), timestamp_ms=world.now_ms())
    log.roll(world.now_ms())
    partition = world.tree.partitions.of(log)
    partition.nonce()
    partition.text(world.tree.mount.views[0]).measure(time.monotonic() + 10)
    for _ in range(2):
        world.tree.partitions.housekeeping()
    # Retention may have the log at the first turn.
    await world.pass_s(31)
    await world.pass_s(16)
    world.tree.partitions.housekeeping()
    # A restart after a kill has this line.
    history = Path(log.directory, "kafkafs.history").read_text()
    assert "repacked-below 1\n" in history


def words_of(log: Log) -> list[int]:
    """Return the base offsets of the sealed segments with a valid `.words` file."""
    return [
        each.base_offset
        for each in log.segments[:-1]
        if Words.open(each, each.file_path(paths.WORDS)) is not None
    ]


@in_world(World)
async def test_words_are_built_for_each_segment_as_it_is_in_the_end(world: World) -> None:
    logs = [
        world.topic("plain", kafkafs_words="words"),
        world.topic("repacked", kafkafs_words="words", kafkafs_repack="zstd"),
        world.topic("compacted", kafkafs_words="words", cleanup_policy="compact"),
    ]
    without = world.topic("without")
    for log in (*logs, without):
        for _ in range(20):
            records = [Record(0, world.now_ms(), 0, b"key", b"the same words in each line")]
            log.append(bytearray(encode(records)), now_ns=world.now_ms() * 1_000_000)
        log.roll(world.now_ms())
    before = {log: log.segments[0] for log in logs}
    # A round of the cleaner may swap a segment while its words are built.
    for _ in range(4):
        await world.pass_s(31)
    assert [words_of(log) for log in logs] == [[0], [0], [log.segments[0].base_offset]]
    assert [log.segments[0] is before[log] for log in logs] == [True, False, False]
    assert words_of(without) == []
    world.old(logs[0])
    await world.pass_s(6)
    assert words_of(logs[0]) == [0, 20]
    assert not [line for line in world.said if "words" in line]


@in_world(World)
async def test_a_segment_without_room_does_not_stop_the_repacking_of_others(world: World) -> None:
    world.disk.refuse(f"{0:020}.log.cleaned", errno.ENOSPC)
    log = world.topic("a", kafkafs_repack="zstd")
    for _ in range(2):
        for _ in range(20):
            append(log, b"the same words in each line", timestamp_ms=world.now_ms())
        log.roll(world.now_ms())
    before = [segment.size for segment in log.segments]
    await world.pass_s(31)
    await comes(lambda: world.manager.duties.failing["repacking"] == 1)
    after = [segment.size for segment in log.segments]
    assert before[0] == after[0]
    assert f"a/0: repacked 1 segment: {before[1]} bytes became {after[1]}" in world.said
    world.disk.is_broken = False
    await world.pass_s(301)
    assert log.segments[0].size < before[0]
    assert world.manager.duties.failing["repacking"] == 0


@pytest.mark.parametrize(
    ("duty", "part", "setting", "off"),
    [
        ("building of words", ".words", ("kafkafs.words", "words"), "off"),
        ("repacking", ".cleaned", ("kafkafs.repack", "zstd"), "off"),
        ("compaction", ".cleaned", ("cleanup.policy", "compact"), "delete"),
        ("retention", "log-start-offset-checkpoint", ("retention.bytes", "0"), "-1"),
    ],
)
@in_world(World)
async def test_a_duty_does_not_fail_any_more_when_it_is_switched_off(
    world: World, duty: str, part: str, setting: tuple[str, str], off: str
) -> None:
    world.dirty(world.topic("a", **dict([setting])))
    # The checkpoint of a new partition has been written.
    world.manager.checkpoint()
    world.disk.refuse(part)
    await world.pass_s(31)
    assert world.manager.duties.failing[duty] == 1
    world.manager.change_topic_settings("a", {setting[0]: off})
    await world.pass_s(301)
    assert world.manager.duties.failing[duty] == 0
    assert not world.tree.mount.cleaner.uncleanable
    world.disk.is_broken = False


@in_world(World)
async def test_retention_that_fails_stays_failed_while_looking_fails_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError

    world.old(world.topic("a", retention_bytes=0))
    world.manager.checkpoint()
    world.disk.refuse("log-start-offset-checkpoint")
    await world.pass_s(31)
    assert world.manager.duties.failing["retention"] == 1
    monkeypatch.setattr("kafkafs.fuse.schedule.plan_retention", broken)
    await world.pass_s(301)
    assert world.manager.duties.failing["retention"] == 1
    monkeypatch.undo()
    world.disk.is_broken = False


@pytest.mark.parametrize("error", [errno.EROFS, errno.EIO, errno.ENOSPC])
@in_world(World)
async def test_a_disk_that_takes_no_words_is_named_once_and_asked_again_later(
    world: World, error: int
) -> None:
    world.disk.refuse(".words", error)
    log = world.topic("a", kafkafs_words="words")
    world.old(log)
    await world.pass_s(31)
    for _ in range(40):
        await world.pass_s(6)
    # After 15, 30, 60 and 120 seconds.
    assert 4 <= world.disk.tries <= 6
    assert len([line for line in world.said if "building of words failed" in line]) == 1
    assert append(log, b"appends go on") == 1
    world.disk.is_broken = False
    await world.pass_s(600)
    await world.pass_s(6)
    assert words_of(log) == [0]
    assert "works again" in world.said[-1]


@in_world(World, lambda data: write_broker(data, {"t": 1}))
async def test_the_words_of_a_brokers_topic_are_not_built(world: World) -> None:
    log = world.manager.log("t", 0)
    world.manager.change_topic_settings("t", {"kafkafs.words": "words"})
    world.old(log)
    await world.pass_s(31)
    await world.pass_s(6)
    assert words_of(log) == []


@in_world(World)
async def test_a_policy_that_fails_is_named_once_and_nobody_else_suffers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = world.data.parent
    information = place / "scheduled-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: scheduled\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[kafkafs.retention]\nbad = scheduled_bad:bad\n")
    (place / "scheduled_bad.py").write_text(
        "def bad(argument):\n"
        "    def policy(facts, config, now_ms):\n"
        "        raise RuntimeError('is broken')\n"
        "    return policy\n"
    )
    monkeypatch.syspath_prepend(place)
    broken = world.topic("a", kafkafs_retention_policy="bad")
    other = world.topic("b", retention_bytes=0)
    for _ in range(3):
        world.old(broken)
        world.old(other)
        await world.pass_s(301)
        await comes(lambda: values(other) == [])
    assert len(values(broken)) == 3
    assert [line for line in world.said if "is broken" in line] == [
        "a/0: retention policy bad failed, so it deletes nothing: RuntimeError: is broken"
    ]


@in_world(World)
async def test_what_nobody_foresaw_is_a_line_and_is_tried_again(world: World) -> None:
    log = world.topic("a", cleanup_policy="compact")
    world.dirty(log)
    filthiest = world.tree.mount.cleaner.filthiest

    def broken(*_: object) -> Log | None:
        raise ZeroDivisionError

    vars(world.tree.mount.cleaner)["filthiest"] = broken
    await world.pass_s(16)
    await comes(lambda: len(world.said) == 1)
    why = "by the clock: compaction failed, will retry: unexpected error\n    Traceback"
    assert world.said[0].startswith(why)
    vars(world.tree.mount.cleaner)["filthiest"] = filthiest
    await world.pass_s(RETRY_S + 1)
    await comes(lambda: values(log) == [b"1"])


@in_world(World, offsets_topic_num_partitions=2, offsets_retention_minutes=15)
async def test_positions_that_are_over_are_taken_back(world: World) -> None:
    world.topic("a")
    groups = world.manager.groups
    groups.commit("g", "a", {0: Committed(0)})
    await world.pass_s(599)
    await world.pass_s(2)
    assert groups.names() == ["g"]
    groups.commit("h", "a", {0: Committed(0)})
    await world.pass_s(600)
    await comes(lambda: groups.names() == ["h"])
    assert world.said == []
