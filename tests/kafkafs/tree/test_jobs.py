"""Jobs: what there is, what may begin, how it ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

import pytest

from kafkafs.tree.control.flush_and_roll import FLUSH, ROLL
from kafkafs.tree.events import Events
from kafkafs.tree.jobs import Job, JobResult, Jobs, JobState
from storage.errors import InvalidRecord
from storage.manager import Topic
from storage.task import Task


class World:
    """Jobs that begin and end when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.waiting: list[Job] = []
        self.events = Events(lambda: self.now_ms)
        self.jobs = Jobs(lambda: self.now_ms, self.events)
        # A topic has partitions as long as it is not deleted.
        self.topic = Topic("orders", "id-1", dict.fromkeys([0]))  # type: ignore[arg-type]
        self.other = Topic("others", "id-2", dict.fromkeys([0]))  # type: ignore[arg-type]

    def said(self) -> str:
        """Return the log of events without the times."""
        return "".join(line.partition(" ")[2] for line in self.events.text().splitlines(True))

    def hold(self) -> None:
        self.jobs.runner = self.waiting.append

    def run(self) -> Job:
        """The first one that waits."""
        job = self.waiting.pop(0)
        self.jobs.started(job)
        job.carry_out()
        self.jobs.ended(job)
        return job

    def start(
        self, work: Callable[[Task], JobResult] = lambda task: JobResult(), **more: bool
    ) -> Job:
        return self.jobs.start(FLUSH.kind, self.topic, "run", work, **more)


def refused(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=r".") as found:
        call()
    assert found.value.errno == number


def test_a_job_is_carried_out_by_who_starts_it_where_nobody_else_does() -> None:
    world = World()
    threads: list[threading.Thread] = []

    def work(task: Task) -> JobResult:
        threads.append(threading.current_thread())
        world.now_ms += 5
        return JobResult([("segments", 3)], ["a table"])

    job = world.start(work)
    assert threads == [threading.current_thread()]
    assert (job.state, job.started_ms, job.ended_ms) == (JobState.DONE, 1000, 1005)
    assert world.jobs.last(FLUSH.kind, world.topic) is job
    assert world.jobs.active(FLUSH.kind, world.topic) is None
    assert world.jobs.last(FLUSH.kind, world.other) is None
    assert world.jobs.last(ROLL.kind, world.topic) is None
    assert world.said() == "orders/.control/flush: run: done: segments 3\n"


def test_one_at_a_time_of_a_kind_and_topic() -> None:
    world = World()
    world.hold()
    first = world.start()
    assert world.jobs.active(FLUSH.kind, world.topic) is first
    assert first.state is JobState.QUEUED
    refused(errno.EBUSY, world.start)
    world.jobs.start(ROLL.kind, world.topic, "run", lambda task: JobResult())
    world.jobs.start(FLUSH.kind, world.other, "run", lambda task: JobResult())
    assert world.run() is first
    world.start()


def test_what_the_clock_begins_comes_on_top() -> None:
    world = World()
    world.hold()
    scheduled = world.start(scheduled=True)
    world.jobs.started(scheduled)
    assert world.jobs.active(FLUSH.kind, world.topic) is scheduled
    asked = world.start()
    assert asked.state is JobState.QUEUED
    assert world.jobs.active(FLUSH.kind, world.topic) is asked, "what somebody waits for"
    world.start(scheduled=True)
    assert world.jobs.active(FLUSH.kind, world.topic) is asked


def test_what_the_clock_has_found_nothing_to_do_for_is_not_remembered() -> None:
    world = World()
    done = world.start(lambda task: JobResult([("segments", 1)]), scheduled=True)
    world.start(lambda task: JobResult(idle=True), scheduled=True)
    assert world.jobs.last(FLUSH.kind, world.topic) is done
    asked = world.start(lambda task: JobResult(idle=True))
    assert world.jobs.last(FLUSH.kind, world.topic) is asked


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, "Input/output error", "/x/0.log"), "Input/output error (/x/0.log)"),
        (InvalidRecord("is wrong", offset=7), "is wrong (offset 7)"),
    ],
)
def test_a_job_that_fails(error: Exception, reason: str) -> None:
    world = World()

    def work(task: Task) -> JobResult:
        raise error

    job = world.start(work)
    assert (job.state, job.error, job.reason) == (JobState.FAILED, error, reason)
    assert world.said() == f"orders/.control/flush: run: failed: {reason}\n"


def test_a_bug_of_ours_is_a_line_with_its_traceback() -> None:
    world = World()
    job = world.start(lambda task: JobResult([("never", 1 // 0)]))
    assert job.state is JobState.FAILED
    assert "ZeroDivisionError" in job.reason
    assert "unexpected error\n    Traceback" in world.events.text()


def test_cancelling_what_runs_and_what_waits() -> None:
    world = World()
    world.hold()
    interrupted: list[str] = []
    asked = world.start()
    asked.interrupt = lambda: interrupted.append("asked")
    scheduled = world.start(scheduled=True)
    other = world.jobs.start(FLUSH.kind, world.other, "run", lambda task: JobResult())
    assert world.jobs.cancel(FLUSH.kind, world.topic) == [asked, scheduled]
    assert interrupted == ["asked"]
    assert world.run().state is JobState.CANCELLED
    world.jobs.ended(scheduled)
    assert scheduled.state is JobState.CANCELLED, "it was never begun"
    assert world.jobs.cancel(FLUSH.kind, world.topic) == []
    assert not other.task.cancelled


def test_a_cancelled_job_ends_at_its_next_step() -> None:
    world = World()
    steps: list[int] = []

    def work(task: Task) -> JobResult:
        task.begin("counting", 100)
        for step in range(10):
            steps.append(step)
            if step == 3:
                world.jobs.cancel(FLUSH.kind, world.topic)
            task.advance(10)
        return JobResult()

    job = world.start(work)
    assert (job.state, steps, job.task.done) == (JobState.CANCELLED, [0, 1, 2, 3], 40)
    assert world.said() == "orders/.control/flush: run: cancelled\n"


def test_who_waits_for_the_end_is_told_once() -> None:
    world = World()
    world.hold()
    job = world.start()
    told: Sequence[str] = (calls := [])
    job.when_ended(lambda: calls.append("before"))
    assert not told
    world.run()
    job.when_ended(lambda: calls.append("after"))
    assert told == ["before", "after"]


def test_nothing_begins_after_the_end() -> None:
    world = World()
    world.hold()
    job = world.start()
    world.jobs.close()
    assert job.task.cancelled
    refused(errno.ESHUTDOWN, world.start)
    refused(errno.ESHUTDOWN, lambda: world.start(scheduled=True))


def test_nothing_is_remembered_of_a_deleted_topic() -> None:
    world = World()
    world.start()
    world.hold()
    job = world.start()
    world.jobs.drop_topic(world.topic)
    world.topic.partitions.clear()
    assert job.task.cancelled
    assert world.jobs.last(FLUSH.kind, world.topic) is None
    world.run()
    assert world.jobs.last(FLUSH.kind, world.topic) is None
