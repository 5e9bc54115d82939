"""`.control/flush`: fsync, and the recovery point moves to the log end.

`run`, `run N` or `N`. Where one partition fails, the others are flushed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import RUN, parse
from kafkafs.tree.control.job_file import JobCommand, JobFile
from kafkafs.tree.jobs import JobResult
from storage.directory.manager import Topic
from storage.errors import LogClosed
from storage.log.log import Log
from storage.task import Task


def _parse_command(mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
    command = parse(lines, [RUN], topic.partitions, bare=True)
    if command is None:
        return None
    logs = [topic.partitions[number] for number in command.partitions]

    def work(task: Task) -> JobResult:
        task.begin("flushing", 0)
        failed: OSError | None = None
        for log in logs:
            task.check()
            try:
                _flush(log, task)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return JobResult([("partitions", len(logs))])

    return JobCommand(command.text, work)


def _flush(log: Log, task: Task) -> None:
    if log.closed:
        raise LogClosed("the topic is deleted")
    log.flush(task.by_owner)


FLUSH = JobFile("flush", _parse_command, awaited=True)
