"""`.control/retention`: applies retention by time, size and log start now, or says what would go.

`run`, `run N`, `dry-run`, `dry-run N`. Reading shows for each partition how many bytes each setting
frees now, and when it frees the next ones. After a dry-run it lists every segment that would go,
and why. Records are counted by their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kafkafs.quantities import human_size, local_time
from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import DRY_RUN, RUN
from kafkafs.tree.control.job_file import JobFile
from kafkafs.tree.files.text_file import text_table
from kafkafs.tree.jobs import JobKind, JobResult
from storage.directory.retain import RetentionPlan, kept_starts, plan_retention, retain
from storage.errors import StorageError
from storage.log.log import Log
from storage.plural import counted
from storage.retention.retention import Effect, deletes_by_limits
from storage.settings.config import format_value
from storage.task import Task

KIND = JobKind("retention", runs_alone=True)
_COLUMNS = (
    ("partition", 10),
    ("base_offset", 20),
    ("next_offset", 20),
    ("bytes", 20),
    ("records", 20),
    ("why", 0),
)


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
    now_ms, kept = mount.manager.clock_ms(), kept_starts(mount.manager)
    for log in logs:
        task.check()
        if not log.closed and log.size:
            plan = task.on_log_thread(partial(plan_retention, log, now_ms, kept))
            facts.append(("frees", _frees(plan)))
    fault = StorageError("; ".join(done.notes)) if done.notes else None
    return JobResult(facts, idle=not done.segments, fault=fault)


def _kept(mount: MountContext, logs: Sequence[Log]) -> list[tuple[str, object]]:
    """Why nothing of the logs' topic may be deleted, if so."""
    why = mount.manager.why_no_deletion(logs[0].topic) if logs else None
    return [] if why is None else [("kept", why)]


def _frees(plan: RetentionPlan) -> str:
    return f"{plan.log.partition} {freed_text(plan)}"


def freed_text(plan: RetentionPlan) -> str:
    """How many bytes of a log each setting frees now, and when it frees the next ones."""
    segments = plan.facts.segments
    size = sum(segment.size for segment in segments)
    held = [segment for segment in segments if segment.size]
    if held == [segments[-1]]:
        where = f"all {human_size(size)} are in the newest segment"
    else:
        where = f"{human_size(size)} are in {counted(len(held), 'segment')}"
    return "; ".join([where, *map(_effect_text, plan.effects), *_without_effect(plan)])


def _effect_text(effect: Effect) -> str:
    parts = [f"{human_size(effect.size)} now"] if effect.size else []
    if effect.next_ms is not None:
        parts.append(f"{human_size(effect.next_size)} at {local_time(effect.next_ms)}")
    elif effect.next_after is not None:
        after = f"once {human_size(effect.next_after)} more are appended"
        parts.append(f"{human_size(effect.next_size)} {after}")
    if not parts:
        return f"{effect.setting} frees nothing"
    return f"{effect.setting} frees {', '.join(parts)}"


def _without_effect(plan: RetentionPlan) -> list[str]:
    """Why age and size delete nothing, if so."""
    config = plan.config
    if plan.log.tiered is not None:
        return ["kafkafs deletes nothing of a tiered topic"]
    if plan.fault is not None:
        return [plan.fault]
    if config.unknown:
        return [f"{', '.join(config.unknown)} are unknown settings"]
    if "delete" not in config.cleanup_policy:
        return [
            f"cleanup.policy={format_value(config.cleanup_policy)} deletes nothing by age or size"
        ]
    has_limit = config.retention_bytes >= 0 or config.retention_ms >= 0
    if has_limit or not deletes_by_limits(config):
        return []
    return ["retention.bytes and retention.ms are not set: nothing is freed"]


def totals(plans: Sequence[RetentionPlan]) -> tuple[int, int, int]:
    """How many segments, bytes and offsets retention would delete."""
    return (
        sum(len(plan.doomed) for plan in plans),
        sum(plan.size for plan in plans),
        sum(plan.offsets for plan in plans),
    )


def _preview(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    task.begin("planning", 0)
    now_ms, kept = mount.manager.clock_ms(), kept_starts(mount.manager)
    rows: list[tuple[object, ...]] = []
    plans = []
    notes: list[str] = []
    for log in logs:
        task.check()
        plan = task.on_log_thread(partial(plan_retention, log, now_ms, kept))
        plans.append(plan)
        if plan.fault is not None:
            notes.append(f"note {log.topic}/{log.partition}: {plan.fault}")
        for segment, why in plan.doomed:
            base, end = segment.base_offset, segment.next_offset
            records = end - max(base, log.log_start_offset)
            rows.append((log.partition, base, end, segment.size, max(records, 0), why))
    facts: list[tuple[str, object]] = [("partitions", len(logs))]
    facts += zip(("segments", "bytes", "records"), totals(plans), strict=True)
    facts += _kept(mount, logs)
    facts += [("frees", _frees(plan)) for plan in plans if plan.log.size]
    return JobResult(facts, [*notes, *text_table(_COLUMNS, rows)])


RETENTION = JobFile(KIND, {RUN: delete_old, DRY_RUN: _preview}, awaited=True)
