"""Jobs: work that outlives the request that began it.

A job works on one topic (a compaction, a flush, a verification). A file in `.control` begins it, or
the clock. A job without a topic carries out a request to the owner of the directory; there may be
many, and their starter reports the end. Any thread may read a job's fields; `Job` says which thread
changes them.

`Jobs` has the jobs that have not ended, and the last one of each kind and topic. `runner` runs
them: the mount sets one with threads (`kafkafs.fuse.threads`); before, `start` runs a job at once.

Rules: control files begin one job of a kind and topic at a time; a job of the clock may come on
top, and waits for its turn. After `close` no job begins.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafkafs.tree.events import Events, mark_logged
from storage.errors import StorageError, TaskCancelled, reason_of
from storage.manager import Topic
from storage.task import OnLogThread, Task, directly


class JobKind(NamedTuple):
    """One kind of job. `name` is that of its control file, or of the request.

    `runs_alone`: one job of this kind runs at a time. `is_long`: its thread has a low priority, so
    that it gives way to requests.
    """

    name: str
    runs_alone: bool = False
    is_long: bool = False


class JobState(StrEnum):
    """The state of a job; the last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobResult(NamedTuple):
    """The result of a job's work.

    `facts` are names with values; `table` has a header line and rows. `idle`: there was nothing to
    do, and a job of the clock is forgotten. `fault`: the error of a part that failed; the job has
    failed then.
    """

    facts: Sequence[tuple[str, object]] = ()
    table: Sequence[str] = ()
    idle: bool = False
    fault: Exception | None = None


JobWork = Callable[[Task], JobResult]
"""Runs in a worker thread. StorageError, OSError, TaskCancelled."""


@dataclass(eq=False)
class Job:
    """One job. The loop thread changes it; `carry_out` and `fail` run in a worker thread.

    `command` is the control file's line. Times are ms since 1970, 0 while unknown.
    """

    kind: JobKind
    topic: Topic | None
    command: str
    scheduled: bool
    task: Task
    work: JobWork
    state: JobState = JobState.QUEUED
    outcome: JobState = JobState.CANCELLED
    """The state that it gets at its end."""
    result: JobResult = field(default_factory=JobResult)
    error: Exception | None = None
    """Why it failed."""
    started_ms: int = 0
    ended_ms: int = 0
    interrupt: Callable[[], None] = lambda: None
    """Cancel the job while it is queued; set by the runner."""
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.state not in (JobState.QUEUED, JobState.RUNNING)

    @property
    def reason(self) -> str:
        """Why it failed, in words."""
        error = self.error
        if error is None:
            return ""
        is_foreseen = isinstance(error, OSError | StorageError)
        return reason_of(error) if is_foreseen else f"unexpected error: {error!r}"

    def cancel(self) -> None:
        """Stop the job at its next step. On the owner's thread."""
        self.task.cancel()
        self.interrupt()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the owner's thread when the job ends; at once if it has ended."""
        if self.ended:
            callback()
        else:
            self.callbacks.append(callback)

    def carry_out(self) -> None:
        """Do the work."""
        try:
            self.task.check()
            self.result = self.work(self.task)
            self.error = self.result.fault
            self.outcome = JobState.DONE if self.error is None else JobState.FAILED
        except TaskCancelled:
            self.outcome = JobState.CANCELLED
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Mark the job as failed with `error`."""
        self.error = error
        self.outcome = JobState.FAILED


class Jobs:
    """See the module."""

    def __init__(self, clock_ms: Callable[[], int], events: Events) -> None:
        self._clock_ms = clock_ms
        self._events = events
        self._active: list[Job] = []
        self._last: dict[tuple[JobKind, str, str], Job] = {}
        self.closed = False
        self.on_log_thread: OnLogThread = directly
        """Runs a task's function on the owner's thread."""
        self.runner: Callable[[Job], None] = self._run_here
        """Called on the owner's thread: has `started`, the job's `carry_out` and `ended` called."""

    # -- looking -------------------------------------------------------------------------------

    def active(self, kind: JobKind, topic: Topic) -> Job | None:
        """The job that has not ended: a control file's, else the clock's.

        A writer who waits for its job must not take the end of the clock's job for it.
        """
        found = [job for job in self._active if job.kind == kind and job.topic is topic]
        return min(found, key=lambda job: job.scheduled, default=None)

    def last(self, kind: JobKind, topic: Topic) -> Job | None:
        """The job that has ended last."""
        return self._last.get((kind, topic.name, topic.id))

    @property
    def running(self) -> Sequence[Job]:
        """All jobs that have not ended."""
        return tuple(self._active)

    # -- beginning and ending ------------------------------------------------------------------

    def start(
        self,
        kind: JobKind,
        topic: Topic | None,
        command: str,
        work: JobWork,
        *,
        scheduled: bool = False,
        bytes_per_second: float | None = None,
    ) -> Job:
        """Begin a job, or queue it. ESHUTDOWN; EBUSY where a control file has begun one already."""
        if self.closed:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        for job in self._active if topic is not None and not scheduled else ():
            if job.kind == kind and job.topic is topic and not job.scheduled:
                raise OSError(errno.EBUSY, f"{job.command!r} is already {job.state}")
        task = Task(self.on_log_thread, bytes_per_second=bytes_per_second)
        job = Job(kind, topic, command, scheduled, task, work)
        self._active.append(job)
        self.runner(job)
        return job

    def started(self, job: Job) -> None:
        """The runner begins a job."""
        job.state = JobState.RUNNING
        job.started_ms = self._clock_ms()

    def ended(self, job: Job) -> None:
        """A job has ended, with or without success; one that was never begun is cancelled."""
        self._active.remove(job)
        job.ended_ms = self._clock_ms()
        job.started_ms = job.started_ms or job.ended_ms
        job.state = job.outcome
        callbacks, job.callbacks = job.callbacks, []
        for callback in callbacks:
            callback()
        idle = job.scheduled and job.state is JobState.DONE and job.result.idle
        # A deleted topic has no partitions.
        if job.topic is not None and job.topic.partitions and not idle:
            self._last[job.kind, job.topic.name, job.topic.id] = job
            if not (job.scheduled and job.state is JobState.FAILED):
                # A failed job of the clock is a failed duty, which writes one line of its own.
                self._say_outcome(job, job.topic)

    def _say_outcome(self, job: Job, topic: Topic) -> None:
        by = "the clock" if job.scheduled else job.command
        what = f"{topic.name}/.control/{job.kind.name}: {by}: {job.state}"
        if job.error is None or isinstance(job.error, StorageError | OSError):
            facts = [job.reason] if job.error else []
            facts += [f"{name} {value}" for name, value in job.result.facts]
            say = self._events if job.scheduled or job.error else self._events.of_request
            say(f"{what}: {', '.join(facts)}" if facts else what)
        else:
            lines = "".join(traceback.format_exception(job.error))
            self._events(f"{what}: unexpected error", lines)
        if job.error is not None:
            mark_logged(job.error)

    def cancel(self, kind: JobKind, topic: Topic) -> list[Job]:
        """Stop all jobs of a kind and topic; returns them."""
        found = [job for job in self._active if job.kind == kind and job.topic is topic]
        for job in found:
            job.cancel()
        return found

    def drop_topic(self, topic: Topic) -> None:
        """Stop all jobs of a topic and forget the ended ones: it is being deleted. Any thread."""
        for job in list(self._active):
            if job.topic is topic:
                job.task.cancel()
        for kind, *where in list(self._last):
            if where == [topic.name, topic.id]:
                self._last.pop((kind, topic.name, topic.id), None)

    def close(self) -> None:
        """Stop all jobs, and begin no more. On the owner's thread."""
        self.closed = True
        for job in list(self._active):
            job.cancel()

    def _run_here(self, job: Job) -> None:
        self.started(job)
        job.carry_out()
        self.ended(job)
