"""Shows the progress of a job, in tasks (`kafkafs.progress`).

A thread asks the session's status tracker for the tasks of the job's groups. Spark creates tasks
stage by stage, so the total grows. A session without a tracker (Spark Connect) shows nothing. An
exception cancels the groups' tasks, so that none continues after Ctrl-C.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kafkafs.progress import LINE_S, PATIENCE_S, Bar, on_stderr
from storage.errors import NoThread
from storage.threads import start

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

#: The time between two changes of the bar, in seconds.
BAR_S = 0.2
_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class TaskProgress(threading.Thread):
    """Shows the number of finished tasks of the job groups `groups`, and the name of the work.

    The job may change `groups` and `what`: the group of a streaming query is its run id.
    """

    def __init__(self, what: str) -> None:
        super().__init__(name="spark-progress", daemon=True)
        self.what = what
        self.groups = [f"kafkafs-{uuid.uuid4()}"]
        self._ended = threading.Event()

    def watch(self, tracker: StatusTracker) -> None:
        """Begin, unless the system has no thread left."""
        self._tracker = tracker
        self._shown = on_stderr()
        with suppress(NoThread):
            start(self)

    def run(self) -> None:
        if self._ended.wait(PATIENCE_S):
            return
        on_terminal = isinstance(self._shown, Bar)
        while not self._ended.wait(BAR_S if on_terminal else LINE_S):
            try:
                done, total = self._count()
            except Exception:  # the session is being stopped
                return
            if on_terminal or total:
                self._shown.show(self.what, done, total, "tasks")

    def _count(self) -> tuple[int, int]:
        """Return the number of finished tasks and of all known tasks; each stage counts once."""
        jobs = [job for group in self.groups for job in self._tracker.getJobIdsForGroup(group)]
        stages = {
            stage
            for job in jobs
            if (info := self._tracker.getJobInfo(job)) is not None
            for stage in info.stageIds
        }
        # Spark has no information about a stage that it skipped, or that ended long ago.
        known = [found for stage in stages if (found := self._tracker.getStageInfo(stage))]
        return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)

    def end(self) -> None:
        """Remove the bar."""
        self._ended.set()
        if self.ident is not None:  # it was started
            self.join()
        self._shown.close()


@contextmanager
def working(session: SparkSession, what: str) -> Iterator[TaskProgress]:
    """Show the progress of the jobs that this thread starts inside; `what` names them."""
    context = _context(session)
    progress = TaskProgress(what)
    if context is None:
        yield progress
        return
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(progress.groups[0], what, interruptOnCancel=True)
    progress.watch(context.statusTracker())
    try:
        yield progress
    except BaseException:
        for each in progress.groups:
            with suppress(Exception):  # the first exception matters more
                context.cancelJobGroup(each)
        raise
    finally:
        progress.end()
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]


def _context(session: SparkSession) -> SparkContext | None:
    try:
        return session.sparkContext
    except Exception:  # Spark Connect has none, and raises errors of its own
        return None
