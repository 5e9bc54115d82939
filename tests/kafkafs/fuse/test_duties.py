"""Background work continues by itself after it has failed once, twice or for many turns.

It fails with each error that it can meet. The tests set the clock.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
import trio
import trio.testing

from kafkafs.fuse.housekeeping import TICK_S
from kafkafs.fuse.schedule import CLEAN_AGAIN_S, RETRY_S, SETTLE_S
from storage import Record, encode, paths
from storage.files import Files
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.room import Room
from storage.state import checkpoint_file
from storage.task import Task
from tests.kafkafs.fuse import worlds
from tests.kafkafs.fuse.worlds import in_world
from tests.no_threads import no_free_threads
from tests.storage.logs import append, remove_head, values
from tests.storage.staging import staged

TURNS = 30
FOR_EVER = 1 << 62
NEVER = 2**31 - 1


class BadDisk(Files):
    """The calls of one method on paths that end so fail, while there are failures left."""

    def __init__(self) -> None:
        self.operation = ""
        self.suffix = ""
        self.error = 0
        self.left = 0
        self.failures = 0
        self._paths: dict[int, str] = {}

    def fail(self, operation: str, suffix: str, error: int, times: int) -> None:
        self.operation, self.suffix, self.error, self.left = operation, suffix, error, times

    def _enter(self, operation: str, path: str) -> None:
        if self.left and operation == self.operation and path.endswith(self.suffix):
            self.left -= 1
            self.failures += 1
            raise OSError(self.error, os.strerror(self.error), path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._enter("open", path)
        fd = super().open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._enter("pwrite", self._paths[fd])
        super().pwrite(fd, data, position)

    def preadv_once(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._enter("preadv_once", self._paths[fd])
        return super().preadv_once(fd, buffer, position)

    def ftruncate(self, fd: int, size: int) -> None:
        self._enter("ftruncate", self._paths[fd])
        super().ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self._enter("fdatasync", self._paths[fd])
        super().fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        self._enter("sync_directory", path)
        super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        super().unlink(path)

    def rmdir(self, path: str) -> None:
        self._enter("rmdir", path)
        super().rmdir(path)


class World(worlds.World):
    """All that the daemon does by the clock, over a bad disk."""

    settings: ClassVar[dict[str, object]] = {
        "log_initial_task_delay_ms": 1000,
        "log_retention_check_interval_ms": 10_000,
        "log_cleaner_backoff_ms": 10_000,
        "log_segment_delete_delay_ms": 2_000,
        "kafkafs_check_interval_ms": 10_000,
        "log_flush_offset_checkpoint_interval_ms": 10_000,
    }

    def __init__(self, data: Path, clock: trio.testing.MockClock) -> None:
        self.disk = BadDisk()
        super().__init__(data, clock, self.disk)
        # Which would help a duty or two.
        self.disk.room = Room()

    async def start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.workers.run)
        nursery.start_soon(self.schedule.run)
        nursery.start_soon(self.ticks.run)
        await self.pass_s(0)
        # By then it is known what others have written here: nothing.
        await self.pass_s(TICK_S)

    def append(self, log: Log, count: int = 1) -> None:
        append(log, *[b"x" * 100] * count, timestamp_ms=self.now_ms())

    async def pass_s(self, seconds: float) -> None:
        """Time passes at once, and what was due is done when this returns."""
        self.clock.jump(seconds)
        limiters = [
            trio.to_thread.current_default_thread_limiter(),
            *(self.operations._syncers, self.operations._readers),
        ]
        while True:
            await trio.testing.wait_all_tasks_blocked()
            busy = any(limiter.borrowed_tokens for limiter in limiters)
            if not (busy or self.workers._tasks or self.tree.mount.jobs.running):
                return
            # Threads are at work. Their end, or this time, goes on.
            await trio.testing.wait_all_tasks_blocked(0.001)


class Duty(NamedTuple):
    """`begin` makes something to be done and returns whether it is done by now. It is done every
    `turn_s`; the `operation` on what ends in `suffix` fails. `longest_s`: the longest pause.
    """

    name: str
    begin: Callable[[World], Callable[[], bool]]
    operation: str
    suffix: str
    errors: tuple[int, ...]
    turn_s: float
    longest_s: float


def a_flush(world: World) -> Callable[[], bool]:
    log = world.topic()
    world.append(log)
    return lambda: log.durability.recovery_point == 1


def a_checkpoint(world: World) -> Callable[[], bool]:
    log = world.topic()
    world.append(log)
    path = str(world.data / paths.RECOVERY_POINTS)

    def is_done() -> bool:
        return checkpoint_file.read_offsets(Files(), path).get(("a", 0)) == 1

    return is_done


def a_snapshot(world: World) -> Callable[[], bool]:
    log = world.topic()
    world.append(log)
    path = world.data / "a-0" / paths.file_name(1, paths.SNAPSHOT)
    return lambda: path.exists() and path.stat().st_size > 0


def something_old(world: World) -> Callable[[], bool]:
    log = world.topic(retention_bytes=0)
    world.append(log)
    log.roll(world.now_ms())
    return lambda: log.log_start_offset == 1


def something_dirty(world: World) -> Callable[[], bool]:
    log = world.topic(cleanup_policy="compact")
    for value in (b"old", b"new"):
        batch = encode([Record(0, world.now_ms(), 0, b"key", value)])
        log.append(bytearray(batch), now_ns=world.now_ms() * 1_000_000)
    log.roll(world.now_ms())
    return lambda: values(log) == [b"new"]


def something_new(world: World) -> Callable[[], bool]:
    log = world.topic()
    world.append(log)
    return lambda: world.tree.mount.checker.checked_ms(log) > 0


def something_sealed(world: World) -> Callable[[], bool]:
    log = world.topic()
    world.append(log)
    log.roll(world.now_ms())
    # Others open the same file.
    log.flush()
    world.tree.mount.checker.run_newest(Task())
    return lambda: world.tree.mount.checker._bytes_sealed.get(log, 0) > 0


def something_deleted(world: World) -> Callable[[], bool]:
    log = world.topic()
    for _ in range(3):
        world.append(log)
        log.roll(world.now_ms())
    remove_head(log, 2, world.monotonic_ms())
    return lambda: not list((world.data / "a-0").glob("*.deleted"))


def a_deleted_topic(world: World) -> Callable[[], bool]:
    world.append(world.topic())
    world.manager.delete_topic("a")
    return lambda: not list(world.data.glob("a-0*"))


def something_measured(world: World) -> Callable[[], bool]:
    log = world.topic()
    world.tree.partitions.of(log).text(world.tree.mount.views[0])
    world.append(log, 50)
    return lambda: bool(list((world.data / "a-0").glob("*.lines")))


def something_shown(world: World) -> Callable[[], bool]:
    log = world.topic()
    partition = world.tree.partitions.of(log)
    partition.nonce()
    world.append(log)
    log.roll(world.now_ms())
    return lambda: log.history.counted == 2


NO_ROOM = (errno.ENOSPC, errno.EIO)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENOMEM)
LOG_STARTS = paths.LOG_STARTS + ".tmp"
POINTS = paths.RECOVERY_POINTS + ".tmp"
EPOCHS = paths.LEADER_EPOCH_CHECKPOINT + ".tmp"
REMOVAL = "removal of what was deleted"
SAVING = "saving of line indexes"
DUTIES = [
    Duty("flush", a_flush, "sync_directory", "a-0", (*NO_DESCRIPTOR, errno.EIO), 1, 16),
    Duty("flush", a_flush, "pwrite", EPOCHS, NO_ROOM, 1, 16),
    Duty("flush", a_flush, "fdatasync", ".log", NO_ROOM, 1, 16),
    Duty("checkpoint", a_checkpoint, "pwrite", POINTS, NO_ROOM, 10, 10),
    Duty("checkpoint", a_checkpoint, "open", POINTS, NO_DESCRIPTOR, 10, 10),
    Duty("checkpoint", a_checkpoint, "rename", paths.RECOVERY_POINTS, (errno.EROFS,), 10, 10),
    Duty("checkpoint", a_snapshot, "pwrite", paths.SNAPSHOT, NO_ROOM, 10, 10),
    Duty("checkpoint", a_snapshot, "open", paths.SNAPSHOT, NO_DESCRIPTOR, 10, 10),
    Duty("retention", something_old, "pwrite", LOG_STARTS, NO_ROOM, 10, 10),
    Duty("retention", something_old, "open", LOG_STARTS, NO_DESCRIPTOR, 10, 10),
    Duty("compaction", something_dirty, "pwrite", ".cleaned", NO_ROOM, 15, CLEAN_AGAIN_S[1]),
    # (Not EMFILE: other segments then close descriptors, and the file is opened.)
    Duty("compaction", something_dirty, "open", ".cleaned", (errno.ENOMEM,), 15, CLEAN_AGAIN_S[1]),
    Duty("check of newest segments", something_new, "open", ".log", NO_DESCRIPTOR, 10, 10),
    Duty("check of sealed segments", something_sealed, "open", "0.log", NO_DESCRIPTOR, 10, 10),
    Duty(REMOVAL, something_deleted, "unlink", ".deleted", (errno.EIO, errno.EROFS), 5, 5),
    Duty(REMOVAL, a_deleted_topic, "rmdir", "-delete", (errno.EIO, errno.EBUSY), 5, 5),
    Duty(REMOVAL, a_deleted_topic, "unlink", ".log", (errno.EIO, errno.EPERM), 5, 5),
    Duty(SAVING, something_measured, "pwrite", ".lines", NO_ROOM, 1, 1),
    Duty(SAVING, something_measured, "open", ".lines", NO_DESCRIPTOR, 1, 1),
    Duty("saving of the history", something_shown, "pwrite", ".history.tmp", NO_ROOM, 1, 1),
]
#: One for each thing to be done.
KINDS = list({duty.begin: duty for duty in DUTIES}.values())
#: Each duty fails for many turns with its first error, and once or twice with the other one.
CASES = [
    pytest.param(
        *(duty, error, times),
        id=f"{duty.name}-{duty.operation}-{duty.suffix}-{errno.errorcode[error]}-{times}",
    )
    for n, duty in enumerate(DUTIES)
    for error, times in zip(duty.errors, (TURNS, 1 + n % 2, 2 - n % 2), strict=False)
]


def lines(world: World, part: str) -> list[str]:
    return [line for line in world.said if part in line]


@pytest.mark.parametrize(("duty", "error", "times"), CASES)
def test_it_goes_on_when_what_was_wrong_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duty: Duty, error: int, times: int
) -> None:
    monkeypatch.setattr("kafkafs.tree.partition.partitions.SAVE_BYTES", 1000)
    # Others write the same files.
    interval_ms = 10_000 if duty.name == "checkpoint" else NEVER

    @in_world(World, log_flush_offset_checkpoint_interval_ms=interval_ms)
    async def test(world: World) -> None:
        is_done = duty.begin(world)
        world.disk.fail(duty.operation, duty.suffix, error, FOR_EVER if times == TURNS else times)
        if times == TURNS:
            for _ in range(TURNS):
                await world.pass_s(duty.turn_s)
            assert world.disk.failures > 1
            if duty.longest_s > duty.turn_s:
                assert world.disk.failures < TURNS / 2, "the pauses grow"
            assert len(lines(world, " failed, will retry: ")) == 1, world.said
            assert world.manager.duties.failing[duty.name] == 1
            world.disk.left = 0
        # A flush or cleaning that fails for the second time waits for longer.
        for _ in range(round(2 * duty.longest_s / duty.turn_s) + 4):
            await world.pass_s(duty.turn_s)
            if lines(world, " works again"):
                break
        await world.pass_s(duty.longest_s)
        assert not world.disk.left
        assert is_done()
        (failing,) = lines(world, " failed, will retry: ")
        assert duty.name in failing
        assert os.strerror(error) in failing
        assert len(lines(world, " works again")) == 1, world.said
        assert world.manager.duties.failures[duty.name] >= 1
        assert world.manager.duties.failing[duty.name] == 0

    test(tmp_path)


@pytest.mark.parametrize("duty", KINDS, ids=lambda duty: duty.begin.__name__)
@in_world(World)
async def test_it_goes_on_when_there_are_threads_again(
    world: World, monkeypatch: pytest.MonkeyPatch, duty: Duty
) -> None:
    monkeypatch.setattr("kafkafs.tree.partition.partitions.SAVE_BYTES", 1000)
    with no_free_threads():
        is_done = duty.begin(world)
        for _ in range(3):
            await world.pass_s(duty.turn_s)
    for _ in range(round(2 * duty.longest_s / duty.turn_s) + 4):
        await world.pass_s(max(duty.turn_s, RETRY_S))
    assert is_done()
    failing = lines(world, " failed, will retry: ")
    assert len(failing) == len(lines(world, " works again")) > 0, world.said
    assert all(line.endswith("cannot start a thread") for line in failing), world.said
    assert not any(world.manager.duties.failing.values())


@in_world(World)
async def test_an_adoption_whose_marker_found_no_room_is_ended(world: World) -> None:
    """Nobody asks for its batch again, nor for another one."""

    class NoMoreRoom(LogListener[Log]):
        """Behind the batch, for its marker."""

        def appended(self, *_: object) -> None:
            world.disk.fail("pwrite", ".log", errno.ENOSPC, 1)

    log, full = world.topic(), NoMoreRoom()
    log.listeners.append(full)
    request = staged(Files(), str(world.data), "q", 0, {("a", 0): [[b"1", b"2"]]})
    world.manager.adopter.adopt(request, Task(), world.tree.mount.clock_ns)
    log.listeners.remove(full)
    assert world.disk.failures == 1
    assert values(log) == []
    await world.pass_s(SETTLE_S)
    assert values(log) == [b"1", b"2"]
