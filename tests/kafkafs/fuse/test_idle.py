"""A daemon with nothing to do does as much for many partitions as for few: it looks at none."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import trio
import trio.testing

from kafkafs.fuse.housekeeping import NEVER_MS, Housekeeping
from kafkafs.fuse.operations import Operations
from kafkafs.fuse.schedule import Schedule
from kafkafs.fuse.session_loop import Spinner
from kafkafs.fuse.threads import JobThreads
from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.partition.partition import FOLLOW_TURNS
from storage.manager import LogManager
from tests.storage.logs import append, write_settings

ROOT = Path(__file__).parents[3]
OURS = (f"{ROOT}/storage/", f"{ROOT}/kafkafs/")
PARTITIONS = 4
WALKS_S = 10_000
"""The interval of the tasks that look at all logs, in seconds: none is due during a test."""


@contextmanager
def calls() -> Iterator[Counter[str]]:
    """Counts the calls of our own functions, in all threads that begin meanwhile, too."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(OURS):
            counted[f"{path.rpartition('/')[2]} {frame.f_code.co_qualname}"] += 1

    before = sys.getprofile()
    # Collect the garbage of other tests now, and not while calls are counted.
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    threading.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        gc.enable()


def made(data: Path, topics: int) -> None:
    data.mkdir()
    write_settings(
        data,
        log_initial_task_delay_ms=WALKS_S * 1000,
        log_flush_offset_checkpoint_interval_ms=WALKS_S * 1000,
        kafkafs_check_interval_ms=WALKS_S * 1000,
        kafkafs_reserve_bytes=0,
    )
    with LogManager.open(str(data)) as manager:
        for number in range(topics):
            for log in manager.create_topic(f"t{number}", PARTITIONS).partitions.values():
                append(log, b"record")


def calls_of_a_minute(data: Path, *, follows: bool) -> Counter[str]:
    """Count the calls in a daemon during a minute without requests.

    Some time before, the test reads each partition. It also appends to each, unless the daemon
    follows another writer.
    """
    clock = trio.testing.MockClock()
    found: list[Counter[str]] = []

    async def main() -> None:
        threads = trio.to_thread.current_default_thread_limiter()

        async def pass_s(seconds: int) -> None:
            for _ in range(seconds * 4):
                clock.jump(0.25)
                await trio.testing.wait_all_tasks_blocked()
                # Worker threads take real time, for which the clock stands still.
                while threads.borrowed_tokens:
                    await trio.testing.wait_all_tasks_blocked(0.001)
                await trio.testing.wait_all_tasks_blocked()

        def now_ms() -> int:
            return round(clock.current_time() * 1000)

        manager = LogManager.open(
            str(data), clock_ms=lambda: 10**12 + now_ms(), monotonic_ms=now_ms, read_only=follows
        )
        tree = FileSystem(MountContext(manager, MountOptions(read_only=follows), follows=follows))
        operations = Operations(tree, Spinner(), lambda: None)
        workers = JobThreads(tree.mount, operations.turns)
        async with trio.open_nursery() as nursery:
            await nursery.start(workers.run)
            nursery.start_soon(Housekeeping(tree, operations).run)
            if not follows:
                nursery.start_soon(Schedule(tree, workers).run)
            for log in manager.logs():
                partition = tree.partitions.of(log)
                partition.nonce()
                partition.text(tree.mount.views[0]).generation()
                partition.follow()
                if not follows:
                    append(log, b"more", timestamp_ms=10**12)
            # All is flushed, closed, measured, and not followed any more.
            await pass_s(FOLLOW_TURNS + 20)
            # Flushes have threads of their own, and take real time.
            while manager.due_flushes(NEVER_MS):
                await pass_s(1)
            await pass_s(1)
            with calls() as counted:
                await pass_s(60)
            found.append(counted)
            nursery.cancel_scope.cancel()
        tree.stop()
        manager.close()

    trio.run(main, clock=clock)
    return found[0]


@pytest.mark.parametrize("follows", [False, True])
def test_a_minute_of_rest_costs_the_same_with_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made(tmp_path / "few", 1)
    made(tmp_path / "many", 12)
    few = calls_of_a_minute(tmp_path / "few", follows=follows)
    many = calls_of_a_minute(tmp_path / "many", follows=follows)
    assert few
    assert few["partitions.py Partitions.tick"] == 60
    assert many - few == Counter()
