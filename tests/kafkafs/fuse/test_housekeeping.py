"""The periodic work of the daemon, on a clock that the tests set."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from kafkafs.fuse.housekeeping import Housekeeping
from kafkafs.fuse.operations import Operations
from kafkafs.fuse.session_loop import Spinner
from kafkafs.tree.context import MountContext
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from storage.files import Files
from storage.manager import LogManager
from storage.state import checkpoint_file
from tests.storage.logs import append, write_settings


class BadDisk(Files):
    """Refuses every fsync of data while `bad`, and counts them."""

    bad = False
    syncs = 0

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        if self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


class World:
    """A data directory on a bad disk, and ticks over it. Seconds pass when the test says so."""

    def __init__(self, data: Path, disk: BadDisk, clock: trio.testing.MockClock) -> None:
        self.disk = disk
        self.clock = clock
        self.said: list[str] = []
        self.wall_ms = 1_700_000_000_000
        self.manager = LogManager.open(
            str(data), files=disk, clock_ms=self.now_ms, monotonic_ms=self.monotonic_ms
        )
        events = Events(self.now_ms)
        events.forward = self.said.append
        self.tree = FileSystem(MountContext(self.manager, events=events))
        self.operations = Operations(self.tree, Spinner(), lambda: None)
        self.ticks = Housekeeping(self.tree, self.operations)

    def now_ms(self) -> int:
        return self.wall_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(self.clock.current_time() * 1000)

    def append(self, topic: str) -> None:
        append(self.manager.log(topic, 0), b"x", timestamp_ms=self.now_ms())

    def recovery_point(self, topic: str) -> int:
        return self.manager.log(topic, 0).durability.recovery_point

    async def until(self, holds: Callable[[], bool]) -> None:
        """Worker threads take real time, for which the clock stands still."""
        while not holds():
            await trio.testing.wait_all_tasks_blocked(0.001)

    async def pass_s(self, seconds: float) -> None:
        """Let time pass in steps. After each step, wait until all tasks are blocked again."""
        for _ in range(round(seconds / 0.05)):
            self.clock.jump(0.05)
            await trio.testing.wait_all_tasks_blocked()


def in_world(
    data: Path, test: Callable[[World], Awaitable[None]], settings: dict[str, object] | None = None
) -> None:
    write_settings(data, **(settings or {}))
    clock = trio.testing.MockClock()

    @asynccontextmanager
    async def running(world: World) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.ticks.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    async def main() -> None:
        world = World(data, BadDisk(), clock)
        try:
            async with running(world):
                await test(world)
        finally:
            world.disk.bad = False
            world.manager.abandon()

    trio.run(main, clock=clock)


def test_what_was_appended_is_flushed_when_it_is_due(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manager.create_topic("a")
        world.append("a")
        await world.pass_s(0.9)
        assert world.recovery_point("a") == 0
        world.append("a")
        await world.pass_s(0.15)
        await world.until(lambda: world.recovery_point("a") == 2)
        syncs = world.disk.syncs
        await world.pass_s(3)
        assert world.disk.syncs == syncs

    in_world(tmp_path, test)


@pytest.mark.parametrize("hours", [-1, 24])
def test_who_sets_the_clock_moves_no_flush(tmp_path: Path, hours: int) -> None:
    async def test(world: World) -> None:
        world.manager.create_topic("a")
        world.append("a")
        world.wall_ms += hours * 3_600_000
        await world.pass_s(0.7)
        assert world.recovery_point("a") == 0
        await world.pass_s(0.5)
        await world.until(lambda: world.recovery_point("a") == 1)

    in_world(tmp_path, test)


@pytest.mark.parametrize("hours", [-1, 24])
def test_who_sets_the_clock_keeps_nothing_deleted_and_removes_nothing(
    tmp_path: Path, hours: int
) -> None:
    def directories() -> list[str]:
        return [entry.name for entry in tmp_path.iterdir() if entry.is_dir()]

    async def test(world: World) -> None:
        world.manager.create_topic("a")
        world.manager.delete_topic("a")
        world.wall_ms += hours * 3_600_000
        await world.pass_s(9)
        assert len(directories()) == 1
        await world.pass_s(7)
        await world.until(lambda: not directories())

    in_world(tmp_path, test, {"log_segment_delete_delay_ms": 10_000})


def test_a_short_interval_is_met_within_a_quarter_of_a_second(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manager.create_topic("a")
        await world.pass_s(1)
        world.append("a")
        await world.pass_s(0.3)
        await world.until(lambda: world.recovery_point("a") == 1)

    in_world(tmp_path, test, {"log_flush_interval_ms": 10})


def test_a_flush_that_fails_is_one_line_and_the_others_go_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manager.create_topic("a")
        world.manager.create_topic("b")
        world.append("a")
        world.disk.bad = True
        await world.pass_s(1.1)
        await world.until(lambda: bool(world.said))
        world.disk.bad = False
        world.append("b")
        await world.pass_s(5)
        await world.until(lambda: world.recovery_point("b") == 1)
        await world.until(lambda: world.recovery_point("a") == 1)
        await world.until(lambda: len(world.said) == 2)
        assert "Input/output error" in world.said[0]
        assert world.said[1] == "a/0: flush works again"

    in_world(tmp_path, test)


@pytest.mark.parametrize("name", ["start_checkpoint", "sweep"])
def test_who_walks_over_topics_waits_for_a_change_of_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A thread that makes or deletes a topic has the lock meanwhile."""

    async def test(world: World) -> None:
        begun: list[tuple[object, ...]] = []
        walk = getattr(world.manager, name)

        def walked(*arguments: object) -> object:
            begun.append(arguments)
            return walk(*arguments)

        monkeypatch.setattr(world.manager, name, walked)
        async with world.operations.structural:
            await world.pass_s(21)
            assert begun == []
        await world.until(lambda: bool(begun))

    in_world(tmp_path, test, {"log_flush_offset_checkpoint_interval_ms": 10_000})


def test_checkpoints_are_written_on_their_interval(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")

    async def test(world: World) -> None:
        world.manager.create_topic("a")
        world.append("a")
        await world.pass_s(1.1)
        await world.until(lambda: world.recovery_point("a") == 1)
        assert not os.path.exists(path)
        await world.pass_s(9)
        await world.until(lambda: os.path.exists(path))
        assert checkpoint_file.read_offsets(world.disk, path) == {("a", 0): 1}

    in_world(tmp_path, test, {"log_flush_offset_checkpoint_interval_ms": 10_000})


def test_a_deleted_topic_goes_from_the_disk_after_its_delay(tmp_path: Path) -> None:
    def directories() -> list[str]:
        return [entry.name for entry in tmp_path.iterdir() if entry.is_dir()]

    async def test(world: World) -> None:
        world.manager.create_topic("a")
        world.manager.delete_topic("a")
        await world.pass_s(9)
        assert len(directories()) == 1
        await world.pass_s(7)
        await world.until(lambda: not directories())

    in_world(tmp_path, test, {"log_segment_delete_delay_ms": 10_000})


def test_everything_is_flushed_at_the_end(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for topic in ("a", "b", "c"):
            world.manager.create_topic(topic)
            world.append(topic)
        await world.ticks.flush_all()
        assert [world.recovery_point(topic) for topic in ("a", "b", "c")] == [1, 1, 1]

    in_world(tmp_path, test, {"log_flush_interval_ms": 2**63 - 1})


def test_a_bug_in_the_periodic_work_is_a_line_with_its_traceback(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        def tick() -> None:
            raise RuntimeError("nobody foresaw this")

        world.tree.partitions.tick = tick  # type: ignore[method-assign]
        await world.pass_s(2.2)
        assert len(world.said) == 1
        why = "saving of what is shown failed, will retry: unexpected error\n    Traceback"
        assert world.said[0].startswith(why)

    in_world(tmp_path, test)


def test_a_read_only_directory_is_left_alone(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        manager.create_topic("a")
        append(manager.log("a", 0), b"x")
    before = sorted(entry.name for entry in tmp_path.iterdir())

    async def main() -> None:
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            events = Events(lambda: 0)
            tree = FileSystem(MountContext(manager, events=events))
            operations = Operations(tree, Spinner(), lambda: None)
            with trio.move_on_after(20):
                await Housekeeping(tree, operations).run()
            assert events.text() == ""

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
