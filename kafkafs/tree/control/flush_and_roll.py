"""`.control/flush`: fsync, and the recovery point moves to the log end. Where one partition fails,
the others are flushed.

`.control/roll`: closes active segments. An active segment without records stays as it is. On a full
disk a roll takes the reserve: retention deletes closed segments only.

Both take `run`, `run N` or `N`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import RUN
from kafkafs.tree.control.job_file import JobFile
from kafkafs.tree.jobs import JobKind, JobResult
from storage.errors import LogClosed
from storage.log.log import Log
from storage.task import Task


def _flush(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    task.begin("flushing", 0)
    failed: OSError | None = None
    for log in logs:
        task.check()
        if log.closed:
            raise LogClosed("the topic is deleted")
        try:
            log.flush(task.on_log_thread)
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return JobResult([("partitions", len(logs))])


def _roll(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    task.begin("rolling", 0)
    rolled = 0
    for log in logs:
        task.check()
        rolled += task.on_log_thread(partial(_roll_log, log, mount.manager.clock_ms()))
    return JobResult([("partitions", len(logs)), ("rolled", rolled)])


def _roll_log(log: Log, now_ms: int) -> bool:
    # A topic may be deleted meanwhile.
    return not log.closed and log.files.with_reserve(lambda: log.roll(now_ms))


FLUSH = JobFile(JobKind("flush"), {RUN: _flush}, bare=True, awaited=True)
ROLL = JobFile(JobKind("roll"), {RUN: _roll}, bare=True, awaited=True)
