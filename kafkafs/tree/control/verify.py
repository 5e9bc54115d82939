"""`.control/verify`: checks every batch and every index entry of a topic.

`run`, `run N`, `cancel`. Reading lists the faults that the last run has found, a line each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkafs.tree.control.commands import CANCEL, RUN, parse
from kafkafs.tree.control.job_file import Control, Request
from kafkafs.tree.jobs import Report
from storage.log import Log
from storage.task import Task

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from storage.manager import Topic

#: The facts that are lines of a list, of which there may be any number.
_LISTED = "fault"


def _judge(fs: FileSystem, topic: Topic, lines: Sequence[str]) -> Request | None:
    command = parse(lines, [RUN, CANCEL], topic.partitions)
    if command is None:
        return None
    if command.verb == CANCEL:
        return Request(command.text, None)
    logs = [topic.partitions[number] for number in command.partitions]

    def work(task: Task) -> Report:
        told = _verify(logs, task)
        facts = [(name, value) for name, value in told if name != _LISTED]
        return Report(facts, [f"{name} {value}" for name, value in told if name == _LISTED])

    return Request(command.text, work)


def _verify(logs: Sequence[Log], task: Task) -> list[tuple[str, object]]:
    task.begin("checking", sum(log.size for log in logs))
    faults: list[str] = []
    for log in logs:
        task.check()
        faults += log.check()
        task.advance(log.size)
    return [("faults", len(faults)), *((_LISTED, fault) for fault in faults)]


VERIFY = Control("verify", _judge, awaited=False)
