"""The tasks of a compaction: they scan ranges, merge buckets and write groups of segments.

Each kind of task passes `TaskOutput`s to the next. A task has several small ranges, buckets or
groups, of any rounds. A fault of a log (damage, a replaced file) is an output, too: it ends its
round and no other.

`storage.compaction.shared.round` does the work, and `compact` orders the tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import KeyMerge, Superseded
from storage.compaction.shared.plan import SharedRound
from storage.compaction.shared.round import keep, new_superseded, scan
from storage.compaction.shared.swap_request import staged_suffix
from storage.compaction.transactions import OpenAtStart
from storage.errors import StorageError
from storage.files import Files
from storage.task import Task

if TYPE_CHECKING:
    from pyspark import Broadcast

# A map's memory grows with its keys.
_UNLIMITED = 1 << 46
# A task has at least this many bytes of work.
_LEAST_BYTES = 8 << 20


class OutputKind(IntEnum):
    """The meaning of an output's data."""

    DIRTY = 0  # bytes: a bucket's keys; CLEAN too
    CLEAN = 1
    SUPERSEDED = 2  # bytes: offsets in a group
    MET = 3  # by group, the transactions in a range
    KEYS = 4  # the number of a bucket's keys
    KEPT = 5  # the kept records of a group
    FAULT = 6  # the reason


class TaskOutput(NamedTuple):
    """The output of a task. `number`: that of a bucket, range or group of the round."""

    round: int
    kind: OutputKind
    number: int
    data: Any


class WorkUnit(NamedTuple):
    """A range, bucket or group of a round."""

    round: int
    number: int


class WorkPlan(NamedTuple):
    """The input of all tasks: the numbers of the `ranges`, `buckets` and `groups` of each."""

    rounds: tuple[SharedRound, ...]
    job: str
    ranges: tuple[tuple[WorkUnit, ...], ...]
    buckets: tuple[tuple[WorkUnit, ...], ...]
    groups: tuple[tuple[WorkUnit, ...], ...]


def plan_work(rounds: Sequence[SharedRound], job: str) -> WorkPlan:
    """Divide the work among tasks; small ranges, buckets and groups share a task."""
    ranges: list[tuple[WorkUnit, int]] = []
    buckets: list[tuple[WorkUnit, int]] = []
    groups: list[tuple[WorkUnit, int]] = []
    for number, shared in enumerate(rounds):
        for at, parts in enumerate(shared.ranges):
            size = sum(part.end - part.position for part in parts)
            ranges.append((WorkUnit(number, at), size))
        for at in range(shared.buckets):
            buckets.append((WorkUnit(number, at), shared.size // shared.buckets))
        for at in range(len(shared.firsts)):
            size = sum(shared.segments[member].size for member in shared.members(at))
            groups.append((WorkUnit(number, at), size))
    return WorkPlan(tuple(rounds), job, _bundled(ranges), _bundled(buckets), _bundled(groups))


def _bundled(sizes: Iterable[tuple[WorkUnit, int]]) -> tuple[tuple[WorkUnit, ...], ...]:
    """Bundle (unit, bytes) in order, so that each task has enough work."""
    bundles: list[list[WorkUnit]] = []
    weight = _LEAST_BYTES
    for unit, size in sizes:
        if weight >= _LEAST_BYTES:
            bundles.append([])
            weight = 0
        bundles[-1].append(unit)
        weight += size
    return tuple(map(tuple, bundles))


def _task_of(bundles: Sequence[Sequence[WorkUnit]]) -> dict[WorkUnit, int]:
    return {unit: task for task, units in enumerate(bundles) for unit in units}


def _files(shared: SharedRound) -> Files:
    """Return the files of the data directory that has the round's partition."""
    return Files(os.path.dirname(shared.directory))


def scan_ranges(broadcast: Broadcast[WorkPlan], task: int) -> Iterator[tuple[int, TaskOutput]]:
    """Scan the ranges of a task: (merging task, output). Any task takes one without a bucket."""
    plan = broadcast.value
    tasks = _task_of(plan.buckets)
    for number, at in plan.ranges[task]:
        shared = plan.rounds[number]
        anyone = tasks[WorkUnit(number, 0)]
        try:
            scanned = scan(shared, at, _files(shared), Task())
        except (StorageError, OSError) as error:
            yield anyone, _fault(number, at, error)
            continue
        for kind, keys in ((OutputKind.DIRTY, scanned.dirty), (OutputKind.CLEAN, scanned.clean)):
            for bucket, data in enumerate(keys):
                if data:
                    yield tasks[WorkUnit(number, bucket)], TaskOutput(number, kind, bucket, data)
        for group, data in scanned.superseded:
            yield anyone, TaskOutput(number, OutputKind.SUPERSEDED, group, data)
        yield anyone, TaskOutput(number, OutputKind.MET, at, scanned.met)


def merge_buckets(
    broadcast: Broadcast[WorkPlan], outputs: Iterable[tuple[int, TaskOutput]]
) -> Iterator[TaskOutput]:
    """Merge the buckets of a task, and pass on all other outputs."""
    rounds = broadcast.value.rounds
    merges: dict[WorkUnit, KeyMerge] = {}
    clean: list[tuple[WorkUnit, bytes]] = []
    for _, output in outputs:
        if output.kind not in (OutputKind.DIRTY, OutputKind.CLEAN):
            yield output
            continue
        unit = WorkUnit(output.round, output.number)
        if unit not in merges:
            merges[unit] = KeyMerge(OffsetMap(_UNLIMITED), rounds[unit.round].buckets)
        if output.kind == OutputKind.DIRTY:
            merges[unit].add_dirty(output.data)
        else:
            clean.append((unit, output.data))
    for unit, data in clean:
        merges[unit].add_clean(data)
    for (number, bucket), merge in merges.items():
        try:
            found = merge.superseded_by_group(rounds[number].group_bounds)
        except StorageError as error:
            yield _fault(number, bucket, error)
            continue
        for group, data in found:
            yield TaskOutput(number, OutputKind.SUPERSEDED, group, data)
        yield TaskOutput(number, OutputKind.KEYS, bucket, merge.keys)


def by_group(
    broadcast: Broadcast[WorkPlan], outputs: Iterable[TaskOutput]
) -> Iterator[tuple[int, TaskOutput]]:
    """Yield the superseded offsets for the groups: (writing task, output)."""
    tasks = _task_of(broadcast.value.groups)
    for output in outputs:
        if output.kind == OutputKind.SUPERSEDED:
            yield tasks[WorkUnit(output.round, output.number)], output


def keep_groups(
    broadcast: Broadcast[WorkPlan],
    openings: Broadcast[dict[WorkUnit, OpenAtStart]],
    writes: bool,
    task: int,
    outputs: Iterable[tuple[int, TaskOutput]],
) -> Iterator[TaskOutput]:
    """Write the groups of a task or, without `writes`, count what would stay.

    `openings` has all groups of the rounds without a fault.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    plan = broadcast.value
    superseded: dict[WorkUnit, Superseded] = {}
    for _, (number, _, group, data) in outputs:
        unit = WorkUnit(number, group)
        if unit not in superseded:
            superseded[unit] = new_superseded(plan.rounds[number], group)
        superseded[unit].add(data)
    for unit in plan.groups[task]:
        opening = openings.value.get(unit)
        if opening is None:
            continue
        number, group = unit
        shared = plan.rounds[number]
        suffix = staged_suffix(plan.job, group, attempt) if writes else None
        gone = superseded.pop(unit, None) or new_superseded(shared, group)
        try:
            kept = keep(shared, group, opening, gone, _files(shared), Task(), suffix)
        except (StorageError, OSError) as error:
            yield _fault(number, group, error)
        else:
            yield TaskOutput(number, OutputKind.KEPT, group, kept)


def _fault(number: int, at: int, error: Exception) -> TaskOutput:
    reason = str(error)
    if isinstance(error, FileNotFoundError):
        reason = f"{error.filename} no longer exists: the log was compacted or deleted meanwhile"
    return TaskOutput(number, OutputKind.FAULT, at, reason)
