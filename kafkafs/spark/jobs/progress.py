"""How far Spark is with a job, in tasks (`kafkafs.progress`).

A thread asks the session's status tracker for the tasks of the job's group. Spark learns stage by
stage how many there are, so the total grows. A session without a tracker (Spark Connect) shows
nothing. An exception cancels the group's tasks, so none runs on after a Ctrl-C.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.progress import LINE_S, PATIENCE_S, Bar, on_stderr
from storage.errors import NoThread
from storage.threads import start

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

#: How often the bar moves, in seconds.
BAR_S = 0.2
_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class Tasks(NamedTuple):
    """How many tasks are done, and how many Spark knows of so far."""

    done: int
    total: int


def tasks_of(tracker: StatusTracker, groups: tuple[str, ...]) -> Tasks:
    """The tasks of the jobs of these groups, each stage once."""
    done = total = 0
    stages: set[int] = set()
    for group in groups:
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages.update(info.stageIds if info is not None else ())
    for stage in stages:
        # Spark knows nothing of a stage that it skipped, or that ended long ago.
        of_stage = tracker.getStageInfo(stage)
        if of_stage is not None:
            done += of_stage.numCompletedTasks
            total += of_stage.numTasks
    return Tasks(done, total)


class Working:
    """What the bar shows: the name of the work, and the job groups whose tasks it counts."""

    def __init__(self, what: str, group: str) -> None:
        self.what = what
        self.groups: tuple[str, ...] = (group,)

    def say(self, what: str) -> None:
        """Name the work from now on."""
        self.what = what

    def also(self, group: str) -> None:
        """Count this job group's tasks too, such as a streaming query's (its run id)."""
        self.groups += (group,)


@contextmanager
def working(session: SparkSession, what: str) -> Iterator[Working]:
    """Show the progress of the jobs that this thread starts inside; `what` names them."""
    context = _context(session)
    group = f"kafkafs-{uuid.uuid4()}"
    work = Working(what, group)
    if context is None:
        yield work
        return
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(group, what, interruptOnCancel=True)
    watcher = _Watcher(context.statusTracker(), work)
    with suppress(NoThread):
        start(watcher)
    try:
        yield work
    except BaseException:
        for each in work.groups:
            with suppress(Exception):  # what it was ended by matters more
                context.cancelJobGroup(each)
        raise
    finally:
        watcher.end()
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]


def _context(session: SparkSession) -> SparkContext | None:
    try:
        return session.sparkContext
    except Exception:  # Spark Connect has none, and says so in a way of its own
        return None


class _Watcher(threading.Thread):
    def __init__(self, tracker: StatusTracker, work: Working) -> None:
        super().__init__(name="spark-progress", daemon=True)
        self._tracker = tracker
        self._work = work
        self._ended = threading.Event()
        self._progress = on_stderr()

    def run(self) -> None:
        if self._ended.wait(PATIENCE_S):
            return
        on_terminal = isinstance(self._progress, Bar)
        while not self._ended.wait(BAR_S if on_terminal else LINE_S):
            try:
                tasks = tasks_of(self._tracker, self._work.groups)
            except Exception:  # the session is being stopped
                return
            if on_terminal or tasks.total:
                self._progress.show(self._work.what, tasks.done, tasks.total, "tasks")

    def end(self) -> None:
        """Take the bar away."""
        self._ended.set()
        if self.ident is not None:  # it was started
            self.join()
        self._progress.end()
