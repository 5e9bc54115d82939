"""Work that goes on after the request which asked for it: what there is, how far it is, its end.

A job is one piece of work on one topic (a cleaning, a flush, a verification): asked for through a
file in `.control`, or begun by the clock. One of no topic is what the owner of the directory was
asked for: there may be many, and who has begun it tells of its end. Whoever wants to know reads its
fields, from any thread; they are changed where `Job` says.

`Jobs` knows, for every kind and topic, what has not ended yet and how the last one ended. How jobs
run is decided by `runner`, which the mount replaces by one with threads: until then a job is
carried out at once, by who starts it.

Rules: of what was asked for, one job of a kind and topic at a time; what the clock begins may come
on top, and waits for its turn. After `close` nothing begins any more.

Not here: threads (`kafkafs.fuse.workers`), what the work is (`kafkafs.tree.control`).
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from storage.directory.manager import Topic
from storage.errors import StorageError, TaskCancelled
from storage.task import ByOwner, Task, call


class State(StrEnum):
    """Of a job. The last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Report(NamedTuple):
    """What work has to tell when it is done.

    `facts` are names with values, `table` lines: a header and rows in its columns. `idle`: there
    was nothing to do; what the clock began is not remembered then. `fault`: what could not be done
    of it, so that it has failed.
    """

    facts: Sequence[tuple[str, object]] = ()
    table: Sequence[str] = ()
    idle: bool = False
    fault: Exception | None = None


Work = Callable[[Task], Report]
"""In a worker thread. StorageError or OSError where it fails; TaskCancelled."""


class Job:
    """One piece of work. `begin` and `end` are the owner's, `carry_out` a worker thread's.

    `command` is what was asked for, in the control file's words. Times are ms since 1970, 0 before
    they are known.
    """

    def __init__(
        self,
        kind: str,
        topic: Topic | None,
        command: str,
        work: Work,
        task: Task,
        *,
        scheduled: bool,
    ) -> None:
        self.kind = kind
        self.topic = topic
        self.command = command
        self.scheduled = scheduled
        self.task = task
        self.state = State.QUEUED
        self.report = Report()
        self.error: Exception | None = None
        """Why it failed."""
        self.started_ms = 0
        self.ended_ms = 0
        self.interrupt: Callable[[], None] = lambda: None
        """Has it end at once where it waits for its turn; set by the runner."""
        self._work = work
        self._outcome = State.CANCELLED
        self._when_ended: list[Callable[[], None]] = []

    @property
    def ended(self) -> bool:
        return self.state not in (State.QUEUED, State.RUNNING)

    @property
    def reason(self) -> str:
        """Why it failed, in words."""
        error = self.error
        if error is None:
            return ""
        if isinstance(error, OSError):
            where = f" ({error.filename})" if error.filename else ""
            return f"{error.strerror}{where}"
        return str(error) if isinstance(error, StorageError) else f"unforeseen: {error!r}"

    def cancel(self) -> None:
        """Have it stop. On the owner's thread."""
        self.task.cancel()
        self.interrupt()

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Have `tell` called on the owner's thread when it has ended, at once if it has."""
        if self.ended:
            tell()
        else:
            self._when_ended.append(tell)

    def begin(self, now_ms: int) -> None:
        """Its turn has come."""
        self.state = State.RUNNING
        self.started_ms = now_ms

    def carry_out(self) -> None:
        """The work itself."""
        try:
            self.task.check()
            self.report = self._work(self.task)
            self.error = self.report.fault
            self._outcome = State.DONE if self.error is None else State.FAILED
        except TaskCancelled:
            self._outcome = State.CANCELLED
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """It will end so."""
        self.error = error
        self._outcome = State.FAILED

    def end(self, now_ms: int) -> None:
        """It is over; where it was never begun, it was cancelled."""
        self.ended_ms = now_ms
        self.started_ms = self.started_ms or now_ms
        self.state = self._outcome
        waiting, self._when_ended = self._when_ended, []
        for tell in waiting:
            tell()


class Jobs:
    """See the module. `say` takes lines for the log."""

    def __init__(self, clock_ms: Callable[[], int], say: Callable[[str], None]) -> None:
        self._clock_ms = clock_ms
        self._say = say
        self._active: list[Job] = []
        self._last: dict[tuple[str, str, str], Job] = {}
        self.closed = False
        self.by_owner: ByOwner = call
        """How tasks reach the owner's thread."""
        self.runner: Callable[[Job], None] = self._run_here
        """Called on the owner's thread: sees to it that the job's `begin` (`started`), `carry_out`
        and end (`ended`) are called."""

    # -- what there is -------------------------------------------------------------------------

    def active(self, kind: str, topic: Topic) -> Job | None:
        """What has not ended yet: what was asked for, else what the clock has begun.

        Who has asked and waits for the end shall not take another one's end for it.
        """
        found = [job for job in self._active if job.kind == kind and job.topic is topic]
        return min(found, key=lambda job: job.scheduled, default=None)

    def last(self, kind: str, topic: Topic) -> Job | None:
        """The one that has ended last."""
        return self._last.get((kind, topic.name, topic.id))

    @property
    def running(self) -> Sequence[Job]:
        """All that have not ended."""
        return tuple(self._active)

    # -- beginning and ending ------------------------------------------------------------------

    def check(self, kind: str, topic: Topic | None) -> None:
        """Whether one could be started that is asked for. OSError: ESHUTDOWN, EBUSY."""
        if self.closed:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        for job in self._active if topic is not None else ():
            if job.kind == kind and job.topic is topic and not job.scheduled:
                raise OSError(errno.EBUSY, f"{job.command!r} is {job.state} already")

    def start(
        self,
        kind: str,
        topic: Topic | None,
        command: str,
        work: Work,
        *,
        scheduled: bool = False,
        bytes_per_second: float | None = None,
    ) -> Job:
        """Begin work, or have it wait for its turn. OSError as `check`."""
        if not scheduled or self.closed:
            self.check(kind, topic)
        task = Task(self.by_owner, bytes_per_second=bytes_per_second)
        job = Job(kind, topic, command, work, task, scheduled=scheduled)
        self._active.append(job)
        self.runner(job)
        return job

    def started(self, job: Job) -> None:
        """The runner begins with a job."""
        job.begin(self._clock_ms())

    def ended(self, job: Job) -> None:
        """A job that was started is over, however it went."""
        self._active.remove(job)
        job.end(self._clock_ms())
        idle = job.scheduled and job.state is State.DONE and job.report.idle
        # A topic that is deleted has no partitions any more.
        if job.topic is not None and job.topic.partitions and not idle:
            self._last[job.kind, job.topic.name, job.topic.id] = job
            if not (job.scheduled and job.state is State.FAILED):
                # What the clock begins and fails is a duty, of which a line is said once.
                self._say_outcome(job, job.topic)

    def _say_outcome(self, job: Job, topic: Topic) -> None:
        by = "the clock" if job.scheduled else job.command
        what = f"{topic.name}/.control/{job.kind}: {by}: {job.state}"
        if job.error is None or isinstance(job.error, StorageError | OSError):
            told = [job.reason] if job.error else []
            told += [f"{name} {value}" for name, value in job.report.facts]
            self._say(f"{what}: {', '.join(told)}" if told else what)
        else:
            lines = "".join(traceback.format_exception(job.error)).rstrip()
            self._say(f"{what}, unforeseen\n{lines}")

    def cancel(self, kind: str, topic: Topic) -> list[Job]:
        """Tell all of a kind and topic to stop; which those are."""
        found = [job for job in self._active if job.kind == kind and job.topic is topic]
        for job in found:
            job.cancel()
        return found

    def drop_topic(self, topic: Topic) -> None:
        """The topic is being deleted: what runs on it stops, what was is forgotten. Any thread."""
        for job in list(self._active):
            if job.topic is topic:
                job.task.cancel()
        for kind, *where in list(self._last):
            if where == [topic.name, topic.id]:
                self._last.pop((kind, topic.name, topic.id), None)

    def close(self) -> None:
        """No more jobs; those that there are stop. On the owner's thread."""
        self.closed = True
        for job in list(self._active):
            job.cancel()

    def _run_here(self, job: Job) -> None:
        self.started(job)
        job.carry_out()
        self.ended(job)
