"""`.control/roll`: closes active segments.

`run`, `run N` or `N`. An active segment without records stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import RUN, parse
from kafkafs.tree.control.job_file import JobCommand, JobFile
from kafkafs.tree.jobs import JobResult
from storage.directory.manager import Topic
from storage.log.log import Log
from storage.task import Task


def _parse_command(mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
    command = parse(lines, [RUN], topic.partitions, bare=True)
    if command is None:
        return None
    logs = [topic.partitions[number] for number in command.partitions]
    clock_ms = mount.manager.clock_ms

    def work(task: Task) -> JobResult:
        task.begin("rolling", 0)
        rolled = 0
        for log in logs:
            task.check()
            rolled += task.by_owner(partial(_roll, log, clock_ms()))
        return JobResult([("partitions", len(logs)), ("rolled", rolled)])

    return JobCommand(command.text, work)


def _roll(log: Log, now_ms: int) -> bool:
    # A topic may be deleted meanwhile.
    return not log.closed and log.roll(now_ms)


ROLL = JobFile("roll", _parse_command, awaited=True)
