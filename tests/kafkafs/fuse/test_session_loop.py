"""The session loop: its two parts alone, and its promises through a real mount."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from kafkafs.fuse import session_loop
from kafkafs.fuse.session_loop import BargingLock, Spinner, install
from tests.kafkafs.fuse.conftest import BareMount
from tests.waits import HANG_S

Mount = Callable[..., BareMount]


# -- the lock ------------------------------------------------------------------------------------


@trio.testing.trio_test
async def test_a_free_lock_is_taken_without_a_checkpoint() -> None:
    lock = BargingLock()
    with trio.testing.assert_no_checkpoints():
        for _ in range(3):
            async with lock:
                pass


@trio.testing.trio_test
async def test_who_releases_may_take_the_lock_again_before_the_one_it_woke() -> None:
    lock = BargingLock()
    order: list[str] = []

    async def waiter() -> None:
        async with lock:
            order.append("waiter")

    async with trio.open_nursery() as nursery:
        async with lock:
            nursery.start_soon(waiter)
            await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            async with lock:
                order.append("releaser")
                await trio.testing.wait_all_tasks_blocked()
    assert order == ["releaser", "releaser", "releaser", "waiter"]


@trio.testing.trio_test
async def test_the_lock_is_never_held_twice_and_no_waiter_is_lost() -> None:
    lock = BargingLock()
    held = 0
    done = 0

    async def worker(rounds: int) -> None:
        nonlocal held, done
        for number in range(rounds):
            async with lock:
                held += 1
                assert held == 1
                if number % 3:
                    await trio.lowlevel.checkpoint()
                held -= 1
            if number % 4 == 0:
                await trio.lowlevel.checkpoint()
        done += 1

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            for rounds in range(1, 30):
                nursery.start_soon(worker, rounds)
    assert done == 29


@trio.testing.trio_test
async def test_a_waiter_that_is_cancelled_leaves_the_lock_to_the_others() -> None:
    lock = BargingLock()
    took: list[int] = []

    async def waiter(number: int, scope: trio.CancelScope) -> None:
        with scope:
            async with lock:
                took.append(number)

    scopes = [trio.CancelScope() for _ in range(4)]
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery, lock:
            for number, scope in enumerate(scopes):
                nursery.start_soon(waiter, number, scope)
            await trio.testing.wait_all_tasks_blocked()
            scopes[0].cancel()
            scopes[2].cancel()
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(took) == [1, 3]


# -- the spinner ---------------------------------------------------------------------------------


@contextmanager
def a_pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@trio.testing.trio_test
async def test_a_readable_descriptor_is_found_without_sleeping() -> None:
    spinner = Spinner()
    with a_pipe() as (reader, writer):
        os.write(writer, b"x")
        for _ in range(1000):
            await spinner.wait_readable(reader)
    assert spinner.sleeps == 0


class Clock:
    """Time that passes by being looked at: 10 µs each time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10e-6
        return self.now


async def visits_in(spinner: Spinner, reader: int, clock: Clock, seconds: float) -> int:
    """How often the scheduler is visited while requests keep coming."""
    before, end = spinner.visits, clock.now + seconds
    while clock.now < end:
        await spinner.wait_readable(reader)
    return spinner.visits - before


@trio.testing.trio_test
async def test_while_requests_keep_coming_the_scheduler_is_visited_every_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(session_loop, "perf_counter", clock)
    spinner = Spinner()
    with a_pipe() as (reader, writer):
        os.write(writer, b"x")
        assert 900 <= await visits_in(spinner, reader, clock, 1.0) <= 1001


@trio.testing.trio_test
async def test_the_scheduler_is_visited_more_often_while_a_request_waits_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(session_loop, "perf_counter", clock)
    spinner = Spinner()
    with a_pipe() as (reader, writer):
        os.write(writer, b"x")
        with spinner.elsewhere():
            with spinner.elsewhere():
                assert 4000 <= await visits_in(spinner, reader, clock, 1.0) <= 5001
            assert 4000 <= await visits_in(spinner, reader, clock, 1.0) <= 5001
        assert 900 <= await visits_in(spinner, reader, clock, 1.0) <= 1001


@trio.testing.trio_test
async def test_without_requests_it_sleeps_in_trio() -> None:
    spinner = Spinner()
    with a_pipe() as (reader, writer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spinner.wait_readable, reader)
            await trio.testing.wait_all_tasks_blocked()
            assert spinner.sleeps == 1
            os.write(writer, b"x")


@trio.testing.trio_test
async def test_cancellation_is_seen_while_requests_keep_coming() -> None:
    spinner = Spinner()
    with a_pipe() as (reader, writer):
        os.write(writer, b"x")
        with trio.fail_after(HANG_S), trio.move_on_after(0.01) as scope:
            while True:
                await spinner.wait_readable(reader)
    assert scope.cancelled_caught


@trio.testing.trio_test
async def test_a_descriptor_above_what_select_can_name() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with a_pipe() as (reader, writer):
            high = os.dup2(reader, 1500)
            try:
                os.write(writer, b"x")
                await Spinner().wait_readable(high)
            finally:
                os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- installing ----------------------------------------------------------------------------------


def test_installing_replaces_two_names_and_nothing_else() -> None:
    module = SimpleNamespace(trio=trio, __version__="3.5.0")
    said: list[str] = []
    spinner = Spinner()
    assert install(module, spinner, said.append)
    assert said == []
    assert module.trio.Lock is BargingLock
    assert module.trio.lowlevel.wait_readable == spinner.wait_readable
    assert module.trio.open_nursery is trio.open_nursery
    assert module.trio.lowlevel.notify_closing is trio.lowlevel.notify_closing


def test_a_pyfuse3_without_the_attribute_is_left_alone_with_one_line() -> None:
    module = SimpleNamespace(__version__="9.9")
    said: list[str] = []
    assert not install(module, Spinner(), said.append)
    assert said == ["pyfuse3 9.9 has no attribute 'trio': using the slower loop of pyfuse3"]
    assert not hasattr(module, "trio")


# -- through a mount -----------------------------------------------------------------------------


@contextmanager
def pouring(path: Path) -> Iterator[list[int]]:
    """Requests without pause from another thread; yields the count of those answered so far.

    Ends with the block, or with the first request that fails.
    """
    answered = [0]
    going = threading.Event()
    stop = threading.Event()

    def pour() -> None:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            while not stop.is_set():
                os.write(descriptor, b"x" * 100)
                answered[0] += 1
                if answered[0] == 100:
                    going.set()
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        assert going.wait(HANG_S)
        yield answered
    finally:
        stop.set()
        thread.join()


def test_a_sleeping_task_wakes_in_time_under_full_load(bare_mount: Mount) -> None:
    mount = bare_mount("--watch")
    with pouring(mount.path / "file") as answered:
        end = time.monotonic() + 1
        while time.monotonic() < end or answered[0] < 2000:
            os.stat(mount.path)
    facts = mount.unmounted()
    late_ms = facts["late_ms"]
    assert len(late_ms) > 20
    assert statistics.median(late_ms) < 5
    assert statistics.quantiles(late_ms, n=10)[-1] < 25
    assert facts["sleeps"] < facts["requests"] / 2


def test_an_idle_daemon_uses_no_processor_time(bare_mount: Mount) -> None:
    mount = bare_mount()
    with pouring(mount.path / "file"):
        pass
    status = Path(f"/proc/{mount.process.pid}/stat")

    def processor_s() -> float:
        fields = status.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = processor_s()
    time.sleep(1)  # what is measured is this second
    assert processor_s() - before <= 0.03
    mount.unmounted()


def test_requests_that_wait_in_threads_are_answered_under_full_load(bare_mount: Mount) -> None:
    mount = bare_mount("--slow", "20")
    with pouring(mount.path / "file") as answered:
        before = answered[0]
        with open(mount.path / "slow", "wb", buffering=0) as slow:
            took_s = []
            for _ in range(10):
                start = time.perf_counter()
                slow.write(b"x")
                took_s.append(time.perf_counter() - start)
        during = answered[0] - before
    mount.unmounted()
    assert min(took_s) >= 0.02
    assert statistics.median(took_s) < 0.06
    assert during > 10 * len(took_s)


def test_slow_requests_wait_side_by_side(bare_mount: Mount) -> None:
    mount = bare_mount("--slow", "200")

    def read() -> None:
        with open(mount.path / "slow", "rb", buffering=0) as slow:
            slow.read(1)

    threads = [threading.Thread(target=read) for _ in range(20)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() - start < 20 * 0.2 / 2
    mount.unmounted()


def test_cancellation_while_requests_pour_in(bare_mount: Mount) -> None:
    mount = bare_mount()
    with pouring(mount.path / "file"):
        descriptor = os.open(mount.path / "cancel", os.O_WRONLY)
        # The request that cancels may be answered or cut off itself.
        with contextlib.suppress(OSError):
            os.write(descriptor, b"x")
        with contextlib.suppress(OSError):
            os.close(descriptor)
        facts = mount.ended()
    assert facts["cancelled"]


def test_unmounting_while_requests_pour_in(bare_mount: Mount) -> None:
    mount = bare_mount()
    with pouring(mount.path / "file") as answered:
        subprocess.run(["fusermount3", "-uz", str(mount.path)], check=True)
        before = answered[0]
        while answered[0] < before + 1000:
            assert mount.process.poll() is None
            time.sleep(0)
    facts = mount.ended()
    assert not facts["cancelled"]


def test_the_fall_back_serves_too(bare_mount: Mount) -> None:
    mount = bare_mount("--without-trio")
    with pouring(mount.path / "file"):
        pass
    facts = mount.unmounted()
    assert facts["requests"] >= 100
    assert facts["visits"] == 0
    assert len(facts["said"]) == 1
