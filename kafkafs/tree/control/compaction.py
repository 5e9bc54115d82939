"""`.control/compaction`: cleans a topic now, or shows what that would do.

`run`, `run N`, `dry-run`, `dry-run N`, `cancel`. A run cleans all dirty segments, however small, in
as many rounds as the offset map needs; retention follows, as after a compaction by the clock. Where
one partition fails, the others are cleaned. Reading then shows the figures of all partitions
together, and a row for each. A topic whose cleanup.policy does not have `compact` is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import CANCEL, DRY_RUN, RUN, parse
from kafkafs.tree.control.job_file import JobCommand, JobFile, table
from kafkafs.tree.control.retention import delete_old
from kafkafs.tree.jobs import JobResult, JobWork
from storage.compaction.cleaner import Cleaned
from storage.directory.manager import Topic
from storage.errors import StorageError, TaskCancelled
from storage.log.log import Log
from storage.settings.config import format_value
from storage.task import Task

NAME = "compaction"
_COLUMNS = (
    ("partition", 10),
    ("first_dirty", 20),
    ("clean_up_to", 20),
    ("segments_before", 15),
    ("segments_after", 15),
    ("bytes_before", 20),
    ("bytes_after", 20),
    ("records_read", 20),
    ("records_kept", 20),
)


def _parse_command(mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
    command = parse(lines, [RUN, DRY_RUN, CANCEL], topic.partitions)
    if command is None:
        return None
    if command.verb == CANCEL:
        return JobCommand(command.text, None)
    why_kept = mount.manager.settings.why_kept(topic.name)
    if why_kept is not None:
        raise OSError(errno.EPERM, why_kept)
    config = mount.manager.settings.log_config(topic.name)
    if not config.is_compacted:
        policy = format_value(config.cleanup_policy)
        raise OSError(errno.EINVAL, f"cleanup.policy is {policy}, without compact")
    logs = [topic.partitions[number] for number in command.partitions]
    work = _run_of(mount, logs) if command.verb == RUN else _preview_of(mount, logs)
    return JobCommand(command.text, work)


def cleaning_of(mount: MountContext, logs: Sequence[Log]) -> JobWork:
    """The work of a cleaning of logs of one topic."""

    def work(task: Task) -> JobResult:
        cleaner = mount.cleaner
        rounds: list[tuple[Log, Cleaned]] = []
        fault: Exception | None = None
        for log in logs:
            try:
                rounds += [(log, cleaned) for cleaned in cleaner.clean_all(log, task)]
            except TaskCancelled:
                raise
            except (StorageError, OSError) as error:
                fault = fault or error
            else:
                # It can be, whatever was wrong when it could not.
                cleaner.uncleanable.pop(log, None)
        return _report_of(rounds)._replace(fault=fault)

    return work


def _run_of(mount: MountContext, logs: Sequence[Log]) -> JobWork:
    """The work of a run that was asked for: cleaning, and then retention."""
    clean = cleaning_of(mount, logs)

    def work(task: Task) -> JobResult:
        report = clean(task)
        retained = delete_old(mount, logs, task)
        if retained.idle and retained.fault is None:
            return report
        facts = [(f"deleted_{name}", value) for name, value in retained.facts]
        return report._replace(facts=[*report.facts, *facts], fault=report.fault or retained.fault)

    return work


def _preview_of(mount: MountContext, logs: Sequence[Log]) -> JobWork:
    """The work of a dry-run."""

    def work(task: Task) -> JobResult:
        preview = mount.cleaner.preview
        rounds = [(log, cleaned) for log in logs if (cleaned := preview(log, task)) is not None]
        return _report_of(rounds)

    return work


def _report_of(rounds: Sequence[tuple[Log, Cleaned]]) -> JobResult:
    """The figures of rounds of cleaning."""

    def total(name: str) -> int:
        return sum(getattr(cleaned, name) for _, cleaned in rounds)

    facts: list[tuple[str, object]] = [
        ("partitions", len({log for log, _ in rounds})),
        ("rounds", len(rounds)),
        ("segments_before", total("segments_before")),
        ("segments_after", total("segments_after")),
        ("bytes_before", total("bytes_before")),
        ("bytes_after", total("bytes_after")),
        ("records_read", total("records_read")),
        ("records_kept", total("records_kept")),
        ("records_dropped", total("records_dropped")),
        ("dropped_superseded", total("records_superseded")),
        ("dropped_without_key", total("records_invalid")),
        ("dropped_aborted", total("records_aborted")),
        ("dropped_markers", total("markers")),
        ("map_keys", total("map_keys")),
        ("map_full", str(any(cleaned.map_full for _, cleaned in rounds)).lower()),
        ("elapsed_ms", total("elapsed_ms")),
    ]
    rows = [
        (
            log.partition,
            cleaned.first_dirty_offset,
            cleaned.end_offset,
            cleaned.segments_before,
            cleaned.segments_after,
            cleaned.bytes_before,
            cleaned.bytes_after,
            cleaned.records_read,
            cleaned.records_kept,
        )
        for log, cleaned in rounds
    ]
    return JobResult(facts, table(_COLUMNS, rows), idle=not rounds)


def bytes_per_second(mount: MountContext) -> float:
    """How fast a cleaner may go through a log."""
    return mount.manager.settings.broker.log_cleaner_io_max_bytes_per_second


def _uncleanable(mount: MountContext, topic: Topic) -> list[tuple[str, object]]:
    """The partitions whose last cleaning has failed."""
    return [
        ("uncleanable", f"{log.partition} {why}")
        for log, why in sorted(
            mount.cleaner.uncleanable.items(), key=lambda item: item[0].partition
        )
        if topic.partitions.get(log.partition) is log
    ]


COMPACTION = JobFile(NAME, _parse_command, awaited=False, rate=bytes_per_second, facts=_uncleanable)
