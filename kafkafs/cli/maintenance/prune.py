"""`kafkafs prune`: deletes what retention would delete, now."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    Address,
    Place,
    check_address,
    logs_argument,
    logs_at,
    mount_to_change,
    partitions_at,
    report_faults,
    report_unknown_settings,
    tiered_topics,
)
from kafkafs.cli.common.ending import end, warn
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import long_work, opened
from kafkafs.quantities import Size, Value
from storage.plural import counted

if TYPE_CHECKING:
    from storage.directory.retain import RetentionPlan
    from storage.manager import LogManager


@click.command("prune", epilog=examples("kafkafs prune --dry-run data", "kafkafs prune mnt/orders"))
@logs_argument()
@click.option(
    "--dry-run",
    is_flag=True,
    help=(
        "Only print each segment that would be deleted: partition, base offset, size, reason. "
        "prune then takes no lock."
    ),
)
@output_options(
    "`dry_run`, `segments`, `bytes`, `records`, and the lists `partitions` and `frees`", sizes=True
)
def command(logs: Address, dry_run: bool, out: Output) -> None:
    """Delete the segments that retention would delete now.

    Retention deletes whole segments: those that exceed retention.ms or retention.bytes, and those
    before the log start (the first offset of the log). The setting kafkafs.retention.policy can set
    another rule. Without TOPIC, prune works on all topics. It prints a line for each partition from
    which it deletes segments. prune calculates the number of deleted records from the offsets.

    For each partition with data, another line shows how many bytes each setting alone would free,
    and when. An example: `orders:1: 336B are in 4 segments; retention.bytes=1 frees 252B now`.

    If DATA is mounted, the daemon deletes the segments. If DATA is not mounted, it must not be in
    use. prune then deletes the files at once: the delay of file.delete.delay.ms is only for readers
    of a mount. prune also works on a full disk.

    If prune fails for a partition, it continues with the others, and the exit status is 3. Ctrl-C
    leaves unfinished partitions as they were.
    """
    report = _Report(out)
    check_address(logs)
    mount = None if dry_run else mount_to_change(logs)
    if mount is None:
        _prune_here(logs, report, dry_run=dry_run)
    else:
        _have_pruned(mount, logs, report)
    report.end(dry_run=dry_run)


class _Report:
    """Prints what is deleted from each partition, and collects it for `--json`."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self._lines: list[dict[str, Value]] = []
        self._frees: list[dict[str, Value]] = []
        self._sums = Counter(segments=0, bytes=0, records=0)

    def would_go(self, plan: RetentionPlan) -> None:
        topic, partition = plan.log.topic, plan.log.partition
        name = f"{topic}:{partition}"
        for segment, why in plan.doomed:
            offset, size = segment.base_offset, Size(segment.size)
            self.out.say(f"{name} {offset} {self.out.text(size)} {why}")
            line: dict[str, Value] = {"topic": topic, "partition": partition, "base_offset": offset}
            self._lines.append({**line, "bytes": size, "reason": why})
        self._sums.update(segments=len(plan.doomed), bytes=plan.size, records=plan.offsets)
        if plan.fault is not None:
            self.out.report(f"{name}: {plan.fault}", path=f"{topic}-{partition}")

    def went(self, topic: str, partition: int, figures: Mapping[str, int], start: int) -> None:
        """`figures`: `segments`, `bytes` and `records`. `start`: the new log start."""
        self.out.say(
            f"{topic}:{partition}: deleted {self._sum(figures)}; the log now starts at offset "
            f"{start}"
        )
        self._lines.append({"topic": topic, "partition": partition, **figures, "log_start": start})
        self._sums.update(figures)

    def frees(self, topic: str, partition: int, text: str) -> None:
        """`text`: how many bytes each setting frees."""
        self._frees.append({"topic": topic, "partition": partition, "frees": text})

    def plan_frees(self, plan: RetentionPlan) -> None:
        """`frees` of a log that has bytes."""
        from kafkafs.tree.control.retention import freed_text

        if plan.log.size:
            self.frees(plan.log.topic, plan.log.partition, freed_text(plan))

    def _sum(self, figures: Mapping[str, int]) -> str:
        what = f"{self.out.size(figures['bytes'])}, {counted(figures['records'], 'record')}"
        return f"{counted(figures['segments'], 'segment')} ({what})"

    def end(self, *, dry_run: bool) -> None:
        """Print the sums, and exit if a partition failed."""
        done = "would delete" if dry_run else "deleted"
        for each in self._frees:
            self.out.say(f"{each['topic']}:{each['partition']}: {each['frees']}")
        self.out.say(f"{done} {self._sum(self._sums)}")
        lists = {"partitions": self._lines, "frees": self._frees}
        self.out.json({"dry_run": dry_run, **self._sums, **lists})
        end(failed=self.out.has_failed)


def _prune_here(logs: Address, report: _Report, *, dry_run: bool) -> None:
    """Delete from the logs of a directory that no process has open, or look at any."""
    from storage.directory.retain import kept_starts, plan_retention

    with opened(logs.data_dir, read_only=dry_run, keeps_faulty=True) as manager:
        found = logs_at(manager, logs.places)
        report_faults(manager, report.out, logs.wants)
        report_unknown_settings(manager, logs, report.out)
        now_ms = manager.clock_ms()
        kept = kept_starts(manager)
        plans = [plan_retention(log, now_ms, kept) for log in found]
        if not dry_run:
            _delete(manager, plans, logs.places, now_ms, report)
            return
        # Opening for writing prints these lines already. Nothing is deleted beside a writer.
        for line in [] if manager.lock.is_locked() else manager.kept_topics():
            warn(line)
        for plan in plans:
            report.would_go(plan)
            report.plan_frees(plan)


def _delete(
    manager: LogManager,
    plans: Sequence[RetentionPlan],
    places: Sequence[Place],
    now_ms: int,
    report: _Report,
) -> None:
    from kafkafs.tree.partition.partitions import keeping_history
    from storage.directory.retain import kept_starts, plan_retention, remove_now, retain

    logs = [plan.log for plan in plans]
    before = {log: log.log_start_offset for log in logs}
    with keeping_history(manager), long_work() as task:
        try:
            done = retain(manager, logs, task, now_ms)
        finally:
            for log in logs:
                remove_now(log)
    for plan in plans:
        log, start = plan.log, plan.log.log_start_offset
        if plan.doomed and plan.doomed[0].segment.base_offset < log.segments[0].base_offset:
            figures = {"segments": len(plan.doomed), "bytes": plan.size}
            figures["records"] = start - before[log]
            report.went(log.topic, log.partition, figures, start)
    kept = kept_starts(manager)
    for log in logs:
        report.plan_frees(plan_retention(log, now_ms, kept))
    for note in done.notes:
        report.out.report(note)
    for topic in dict.fromkeys(topic for topic, _ in places):
        line = manager.tiered.line(topic)
        if line is not None:
            report.out.report(line)


def _have_pruned(mount: str, logs: Address, report: _Report) -> None:
    """Have the daemon of a mount delete from the logs."""
    from kafkafs.cli.common.daemon_jobs import run_jobs

    kept: dict[str, str] = {}
    wanted = []
    tiered = tiered_topics(logs)
    for topic, partition in partitions_at(logs):
        if not logs.places and (why := tiered.line(topic)):
            kept[topic] = why
        else:
            wanted.append((topic, partition))
    for topic, partition, facts in run_jobs(mount, "retention", wanted, report.out):
        figures = {name: int(facts[name]) for name in ("segments", "bytes", "records")}
        if figures["segments"]:
            path = os.path.join(mount, topic, str(partition))
            start = int(os.getxattr(path, "user.kafkafs.log_start"))
            report.went(topic, partition, figures, start)
        if "frees" in facts:
            report.frees(topic, partition, facts["frees"].partition(" ")[2])
        if "kept" in facts:
            kept[topic] = facts["kept"]
    for topic, why in kept.items():
        warn(f"topic {topic}: nothing is deleted: {why}")
