"""`kafkafs retain DATA_DIR`: applies retention to a data directory that is not mounted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli import one_line_errors, say
from kafkafs.cli.addresses import Place, check_places, data_dir_argument, logs_at, places_argument
from kafkafs.cli.progress import opening_shown

if TYPE_CHECKING:
    from storage.directory.manager import LogManager
    from storage.directory.retain import RetentionPlan
    from storage.log.log import Log


@click.command("retain")
@data_dir_argument()
@places_argument
@click.option("--dry-run", is_flag=True, help="Only say what would go, and why.")
def command(data_dir: str, places: Sequence[Place], dry_run: bool) -> None:
    """Delete old segments of DATA_DIR, which must not be mounted, as retention would now.

    By retention.ms, retention.bytes and the log start, or by kafkafs.retention.policy. Without
    TOPIC: of all topics. One line a partition that loses segments. The files are gone when the
    command ends: file.delete.delay.ms is for readers of a mount.

    With --dry-run one line a segment: partition, base offset, bytes, and why it would go. That
    takes no lock and changes nothing. Records are counted by their offsets.

    Exits with 1 where a partition failed; the others had their turn. Ctrl-C leaves the other
    partitions as they were.
    """
    from storage.directory.manager import LogManager
    from storage.directory.retain import plan_retention

    with one_line_errors():
        check_places(data_dir, places)
    with (
        one_line_errors(),
        opening_shown() as progress,
        LogManager.open(data_dir, read_only=dry_run, progress=progress) as manager,
    ):
        logs = logs_at(manager, places)
        if dry_run:
            # Opening for writing prints these lines already.
            for line in manager.kept_topics():
                say(f"kafkafs: {line}", err=True)
        now_ms = manager.clock_ms()
        plans = [plan_retention(log, now_ms) for log in logs]
        notes = _preview(plans) if dry_run else _retain(manager, plans, now_ms)
    for note in notes:
        say(f"kafkafs: {note}", err=True)
    if notes:
        sys.exit(1)


def _preview(plans: Sequence[RetentionPlan]) -> list[str]:
    """Print what retention would delete; returns the faults."""
    from kafkafs.tree.control.retention import totals

    for plan in plans:
        for segment, why in plan.doomed:
            say(f"{_name(plan.log)} {segment.base_offset} {segment.size} {why}")
    segments, size, offsets = totals(plans)
    say(f"{segments} segments with {size} bytes and {offsets} records would go")
    return [f"{_name(plan.log)}: {plan.fault}" for plan in plans if plan.fault is not None]


def _retain(manager: LogManager, plans: Sequence[RetentionPlan], now_ms: int) -> list[str]:
    """Delete, and print what was deleted; returns the faults."""
    from kafkafs.cli.progress import long_work
    from kafkafs.tree.partition.partitions import keeping_history
    from storage.directory.retain import remove_now, retain

    logs = [plan.log for plan in plans]
    before = {log: log.log_start_offset for log in logs}
    with keeping_history(manager), long_work() as task:
        try:
            done = retain(manager, logs, task, now_ms)
        finally:
            for log in logs:
                remove_now(log)
    for plan in plans:
        log = plan.log
        if plan.doomed and plan.doomed[0].segment.base_offset < log.segments[0].base_offset:
            say(
                f"{_name(log)}: {len(plan.doomed)} segments with {plan.size} bytes and"
                f" {log.log_start_offset - before[log]} records went,"
                f" it starts at offset {log.log_start_offset}"
            )
    say(f"{done.segments} segments with {done.size} bytes and {done.offsets} records went")
    return done.notes


def _name(log: Log) -> str:
    return f"{log.topic}:{log.partition}"
