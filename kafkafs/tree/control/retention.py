"""`.control/retention`: applies retention by time, size and log start now, or says what would go.

`run`, `run N`, `dry-run`, `dry-run N`. Reading after a dry-run lists every segment that would go,
and why. Records are counted by their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import DRY_RUN, RUN, parse
from kafkafs.tree.control.job_file import JobCommand, JobFile, table
from kafkafs.tree.jobs import JobResult, JobWork
from storage.directory.manager import Topic
from storage.directory.retain import plan_retention, retain
from storage.errors import StorageError
from storage.log.log import Log
from storage.task import Task

NAME = "retention"
_COLUMNS = (
    ("partition", 10),
    ("base_offset", 20),
    ("next_offset", 20),
    ("bytes", 20),
    ("records", 20),
    ("why", 0),
)


def _parse_command(mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
    command = parse(lines, [RUN, DRY_RUN], topic.partitions)
    if command is None:
        return None
    logs = [topic.partitions[number] for number in command.partitions]
    work = retention_of(mount, logs) if command.verb == RUN else _preview_of(mount, logs)
    return JobCommand(command.text, work)


def retention_of(mount: MountContext, logs: Sequence[Log]) -> JobWork:
    """The work of a run over logs of one topic."""
    return lambda task: delete_old(mount, logs, task)


def delete_old(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    """Apply retention; reports the deletions. `idle` where nothing was deleted."""
    task.begin("deleting", 0)
    done = retain(mount.manager, logs, task)
    facts: list[tuple[str, object]] = [
        ("partitions", done.logs),
        ("segments", done.segments),
        ("bytes", done.size),
        ("records", done.offsets),
        ("being_cleaned", done.cleaning),
    ]
    facts += _kept(mount, logs)
    fault = StorageError("; ".join(done.notes)) if done.notes else None
    return JobResult(facts, idle=not done.segments, fault=fault)


def _kept(mount: MountContext, logs: Sequence[Log]) -> list[tuple[str, object]]:
    """Why nothing of the logs' topic may be deleted, if so."""
    why = mount.manager.settings.why_kept(logs[0].topic) if logs else None
    return [] if why is None else [("kept", why)]


def _preview_of(mount: MountContext, logs: Sequence[Log]) -> JobWork:
    def work(task: Task) -> JobResult:
        task.begin("planning", 0)
        now_ms = mount.manager.clock_ms()
        rows: list[tuple[object, ...]] = []
        segments = size = offsets = 0
        notes: list[str] = []
        for log in logs:
            task.check()
            plan = task.by_owner(partial(plan_retention, log, now_ms))
            segments += len(plan.doomed)
            size += plan.size
            offsets += plan.offsets
            if plan.fault is not None:
                notes.append(f"note {log.topic}/{log.partition}: {plan.fault}")
            for segment, why in plan.doomed:
                base, end = segment.base_offset, segment.next_offset
                records = end - max(base, log.log_start_offset)
                rows.append((log.partition, base, end, segment.size, max(records, 0), why))
        facts: list[tuple[str, object]] = [
            ("partitions", len(logs)),
            ("segments", segments),
            ("bytes", size),
            ("records", offsets),
            *_kept(mount, logs),
        ]
        return JobResult(facts, [*notes, *table(_COLUMNS, rows)])

    return work


RETENTION = JobFile(NAME, _parse_command, awaited=True)
