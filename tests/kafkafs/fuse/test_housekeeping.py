"""The periodic work of the daemon, on a clock that the tests set."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
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
from tests.kafkafs.fuse import worlds
from tests.kafkafs.fuse.worlds import in_world
from tests.storage.logs import append


class BadDisk(Files):
    """Refuses every fsync of data while `bad`, and counts them."""

    bad = False
    syncs = 0

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        if self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


class World(worlds.World):
    """Ticks over a bad disk. Seconds pass when the test says so."""

    def __init__(self, data: Path, clock: trio.testing.MockClock) -> None:
        self.disk = BadDisk()
        super().__init__(data, clock, self.disk)

    async def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.ticks.run)
        await trio.testing.wait_all_tasks_blocked()

    def append(self, topic: str) -> None:
        append(self.manager.log(topic, 0), b"x", timestamp_ms=self.now_ms())

    def recovery_point(self, topic: str) -> int:
        return self.manager.log(topic, 0).durability.recovery_point

    def directories(self) -> list[str]:
        return [entry.name for entry in self.data.iterdir() if entry.is_dir()]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Worker threads take real time, for which the clock stands still."""
        while not holds():
            await trio.testing.wait_all_tasks_blocked(0.001)

    async def pass_s(self, seconds: float) -> None:
        """Let time pass in steps. After each step, wait until all tasks are blocked again."""
        for _ in range(round(seconds / 0.05)):
            self.clock.jump(0.05)
            await trio.testing.wait_all_tasks_blocked()


@in_world(World)
async def test_what_was_appended_is_flushed_when_it_is_due(world: World) -> None:
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


@pytest.mark.parametrize("hours", [-1, 24])
@in_world(World)
async def test_who_sets_the_clock_moves_no_flush(world: World, hours: int) -> None:
    world.manager.create_topic("a")
    world.append("a")
    world.wall_ms += hours * 3_600_000
    await world.pass_s(0.7)
    assert world.recovery_point("a") == 0
    await world.pass_s(0.5)
    await world.until(lambda: world.recovery_point("a") == 1)


@pytest.mark.parametrize("hours", [-1, 0, 24])
@in_world(World, log_segment_delete_delay_ms=10_000)
async def test_a_deleted_topic_goes_from_the_disk_after_its_delay(world: World, hours: int) -> None:
    """Also where somebody sets the clock."""
    world.manager.create_topic("a")
    world.manager.delete_topic("a")
    world.wall_ms += hours * 3_600_000
    await world.pass_s(9)
    assert len(world.directories()) == 1
    await world.pass_s(7)
    await world.until(lambda: not world.directories())


@in_world(World, log_flush_interval_ms=10)
async def test_a_short_interval_is_met_within_a_quarter_of_a_second(world: World) -> None:
    world.manager.create_topic("a")
    await world.pass_s(1)
    world.append("a")
    await world.pass_s(0.3)
    await world.until(lambda: world.recovery_point("a") == 1)


@in_world(World)
async def test_a_flush_that_fails_is_one_line_and_the_others_go_on(world: World) -> None:
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


@pytest.mark.parametrize("name", ["start_checkpoint", "sweep"])
@in_world(World, log_flush_offset_checkpoint_interval_ms=10_000)
async def test_who_walks_over_topics_waits_for_a_change_of_the_tree(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A thread that makes or deletes a topic has the lock meanwhile."""
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


@in_world(World, log_flush_offset_checkpoint_interval_ms=10_000)
async def test_checkpoints_are_written_on_their_interval(world: World) -> None:
    path = str(world.data / "recovery-point-offset-checkpoint")
    world.manager.create_topic("a")
    world.append("a")
    await world.pass_s(1.1)
    await world.until(lambda: world.recovery_point("a") == 1)
    assert not os.path.exists(path)
    await world.pass_s(9)
    await world.until(lambda: os.path.exists(path))
    assert checkpoint_file.read_offsets(world.disk, path) == {("a", 0): 1}


@in_world(World, log_flush_interval_ms=2**63 - 1)
async def test_everything_is_flushed_at_the_end(world: World) -> None:
    for topic in ("a", "b", "c"):
        world.manager.create_topic(topic)
        world.append(topic)
    await world.ticks.flush_all()
    assert [world.recovery_point(topic) for topic in ("a", "b", "c")] == [1, 1, 1]


@in_world(World)
async def test_a_bug_in_the_periodic_work_is_a_line_with_its_traceback(world: World) -> None:
    def tick() -> None:
        raise RuntimeError("nobody foresaw this")

    world.tree.partitions.tick = tick  # type: ignore[method-assign]
    await world.pass_s(2.2)
    assert len(world.said) == 1
    why = "saving of what is shown failed, will retry: unexpected error\n    Traceback"
    assert world.said[0].startswith(why)


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
