"""Threads for long work: turns, the owner's thread, the end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import trio
import trio.testing

from kafkafs.fuse.threads import NICE, SHORT
from kafkafs.tree.control.compaction import COMPACTION
from kafkafs.tree.control.flush_and_roll import FLUSH, ROLL
from kafkafs.tree.control.retention import RETENTION
from kafkafs.tree.control.verify import VERIFY
from kafkafs.tree.jobs import Job, JobKind, JobResult, JobState
from kafkafs.tree.owner.owner_requests import JOB_KINDS
from storage.errors import TaskCancelled
from storage.owner.request_kinds import ADOPT, SWAP
from storage.task import Task
from tests.kafkafs.fuse import worlds
from tests.kafkafs.fuse.worlds import in_world
from tests.waits import HANG_S

TOPICS = 1 + SHORT


class World(worlds.World):
    """Topics `t0`, `t1`, … and workers."""

    rate = 1

    async def start(self, nursery: trio.Nursery) -> None:
        self.topics = [self.manager.create_topic(f"t{number}") for number in range(TOPICS)]
        await nursery.start(self.workers.run)

    def begin(self, kind: JobKind, work: Callable[[Task], object], topic: int = 0) -> Job:
        def reported(task: Task) -> JobResult:
            work(task)
            return JobResult()

        return self.tree.mount.jobs.start(kind, self.topics[topic], "run", reported)

    @staticmethod
    async def ended(job: Job) -> JobState:
        event = trio.Event()
        job.when_ended(event.set)
        with trio.fail_after(HANG_S):
            await event.wait()
        return job.state


class Held:
    """Work that ends when `release` is set or its task is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()

    def __call__(self, task: Task) -> None:
        self.begun.set()
        while not self.release.wait(0.001):
            task.check()

    async def wait(self) -> None:
        await trio.to_thread.run_sync(self.begun.wait, abandon_on_cancel=True)


@in_world(World)
async def test_work_runs_elsewhere_and_changes_logs_here(world: World) -> None:
    here = threading.current_thread()
    seen: list[threading.Thread] = []

    def work(task: Task) -> None:
        seen.append(threading.current_thread())
        task.on_log_thread(lambda: seen.append(threading.current_thread()))

    job = world.begin(FLUSH.kind, work)
    assert job.state is JobState.QUEUED
    assert await world.ended(job) is JobState.DONE
    assert seen[0] is not here
    assert seen[1] is here


@in_world(World)
async def test_the_owner_is_reached_between_changes_of_the_tree(world: World) -> None:
    done: list[str] = []
    async with world.operations.structural:
        job = world.begin(ROLL.kind, lambda task: task.on_log_thread(lambda: done.append("work")))
        await trio.testing.wait_all_tasks_blocked(0.05)
        done.append("change")
    assert await world.ended(job) is JobState.DONE
    assert done == ["change", "work"]


@in_world(World)
async def test_what_the_owner_refuses_is_raised_in_the_work(world: World) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    job = world.begin(ROLL.kind, lambda task: task.on_log_thread(refuse))
    assert await world.ended(job) is JobState.FAILED
    assert job.reason == "No space left on device"


@in_world(World)
async def test_one_cleaning_at_a_time_in_the_order_of_asking(world: World) -> None:
    order: list[int] = []
    first = Held()
    jobs = [world.begin(COMPACTION.kind, first, 0)]
    await first.wait()
    jobs += [
        world.begin(COMPACTION.kind, lambda task, n=n: order.append(n), n)  # type: ignore[misc]
        for n in (1, 2)
    ]
    await trio.testing.wait_all_tasks_blocked()
    assert [job.state for job in jobs] == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
    # Another kind of work does not wait for it.
    assert await world.ended(world.begin(FLUSH.kind, lambda task: None)) is JobState.DONE
    first.release.set()
    for job in jobs:
        assert await world.ended(job) is JobState.DONE
    assert order == [1, 2]


@in_world(World)
async def test_the_kind_says_that_a_job_runs_alone_and_gives_way(world: World) -> None:
    """Whatever its name is."""
    kind = JobKind("renamed", runs_alone=True, is_long=True)
    first = Held()
    nice: list[int] = []

    def note(task: Task) -> None:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    jobs = [world.begin(kind, first, 0)]
    await first.wait()
    jobs.append(world.begin(kind, note, 1))
    await trio.testing.wait_all_tasks_blocked()
    assert [job.state for job in jobs] == [JobState.RUNNING, JobState.QUEUED]
    first.release.set()
    for job in jobs:
        assert await world.ended(job) is JobState.DONE
    assert nice[0] >= NICE


@in_world(World)
async def test_short_work_side_by_side_but_not_without_limit(world: World) -> None:
    works = [Held() for _ in range(SHORT + 1)]
    jobs = [world.begin(FLUSH.kind, work, number) for number, work in enumerate(works)]
    for work in works[:-1]:
        await work.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert jobs[-1].state is JobState.QUEUED
    works[3].release.set()
    await works[-1].wait()
    for work in works:
        work.release.set()
    for job in jobs:
        assert await world.ended(job) is JobState.DONE


@in_world(World)
async def test_a_long_swap_holds_up_no_adoption(world: World) -> None:
    swap = Held()
    swapping = world.begin(JOB_KINDS[SWAP.name], swap)
    await swap.wait()
    adopting = Held()
    adopted = world.begin(JOB_KINDS[ADOPT.name], adopting)
    await adopting.wait()
    waiting = world.begin(JOB_KINDS[ADOPT.name], lambda task: None, topic=1)
    adopting.release.set()
    assert await world.ended(adopted) is JobState.DONE
    assert await world.ended(waiting) is JobState.DONE
    assert swapping.state is JobState.RUNNING
    swap.release.set()
    assert await world.ended(swapping) is JobState.DONE


@in_world(World)
async def test_what_waits_for_its_turn_is_cancelled_at_once(world: World) -> None:
    first = Held()
    running = world.begin(VERIFY.kind, first, 0)
    await first.wait()
    waiting = world.begin(VERIFY.kind, lambda task: None, 1)
    world.tree.mount.jobs.cancel(VERIFY.kind, world.topics[1])
    assert await world.ended(waiting) is JobState.CANCELLED
    assert running.state is JobState.RUNNING
    world.tree.mount.jobs.cancel(VERIFY.kind, world.topics[0])
    assert await world.ended(running) is JobState.CANCELLED


def test_at_the_end_all_of_it_is_stopped_and_waited_for(tmp_path: Path) -> None:
    jobs: list[Job] = []
    steps: list[str] = []

    class Cleaning(Held):
        def __call__(self, task: Task) -> None:
            try:
                super().__call__(task)
            except TaskCancelled:
                # Taking it back needs the owner too.
                task.on_log_thread(lambda: steps.append("taken back"))
                raise

    @in_world(World)
    async def test(world: World) -> None:
        works = [Cleaning(), Cleaning()]
        jobs.append(world.begin(COMPACTION.kind, works[0], 0))
        jobs.append(world.begin(RETENTION.kind, works[1], 1))
        jobs.append(world.begin(COMPACTION.kind, lambda task: steps.append("never"), 1))
        for work in works:
            await work.wait()

    test(tmp_path)
    assert [job.state for job in jobs] == [JobState.CANCELLED] * 3
    assert steps == ["taken back"] * 2


@in_world(World)
async def test_stopping_in_order(world: World) -> None:
    work = Held()
    job = world.begin(COMPACTION.kind, work)
    await work.wait()
    world.workers.stop()
    await world.workers.stopped()
    assert job.state is JobState.CANCELLED


@in_world(World)
async def test_what_goes_on_by_itself(world: World) -> None:
    seen: list[object] = []

    def work(task: Task) -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        seen.append(task.on_log_thread(lambda: "by owner"))

    await world.workers.background("checking", work)
    ours = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert seen == [max(ours, NICE), "by owner"]

    def broken(task: Task) -> None:
        raise ZeroDivisionError

    await world.workers.background("checking", broken)
    (said,) = world.said
    assert said.startswith("checking failed, will retry: unexpected error\n    Traceback")


@in_world(World)
async def test_what_goes_on_by_itself_stops_at_the_end(world: World) -> None:
    ended: list[str] = []
    work = Held()

    def noted(task: Task) -> None:
        try:
            work(task)
        finally:
            ended.append("stopped")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.workers.background, "checking", noted)
        await work.wait()
        world.workers.stop()
    assert ended == ["stopped"]
    assert world.said == []
