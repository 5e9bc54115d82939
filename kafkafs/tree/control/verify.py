"""`.control/verify`: checks every batch and every index entry of a topic.

`run`, `run N`, `cancel`. Reading lists the faults that the last run has found, a line each, and
between what goes on and how the last one ended what the checker (`log_checker`) knows:

    checker_checked         since when all that was appended is read back, ms; -1: not yet
    checker_checked_bytes   read back since the mount, some perhaps repeatedly
    checker_damages         damaged places, and of each
    checker_damage          partition, offsets, reason, file, position
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import CANCEL, RUN
from kafkafs.tree.control.job_file import JobFile
from kafkafs.tree.jobs import JobKind, JobResult
from storage.log.log import Log
from storage.manager import Topic
from storage.task import Task
from storage.verify.log_checker import checker_facts
from storage.verify.verify_log import verify_logs

#: The name of the facts that are faults, one for each fault.
_LISTED = "fault"


def _verify(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    found = verify_logs(logs, task)
    facts = [(name, value) for name, value in found if name != _LISTED]
    return JobResult(facts, [f"{name} {value}" for name, value in found if name == _LISTED])


def _facts(mount: MountContext, topic: Topic) -> list[tuple[str, object]]:
    facts = checker_facts(mount.checker, list(topic.partitions.values()))
    return [(f"checker_{name}", value) for name, value in facts]


VERIFY = JobFile(
    JobKind("verify", runs_alone=True, is_long=True),
    {RUN: _verify, CANCEL: None},
    writes=False,
    facts=_facts,
)
