"""Compaction on Spark: keeps the latest record of each key, in logs of any size.

The job writes the bytes that the daemon's cleaner would write at that moment. Records keep their
offsets. Tasks read segment files and write new ones beside them. They pass hashes and offsets of
keys to other tasks, but no values. Then the owner of the directory (the daemon that has it mounted,
or this process) swaps the new segments in, all of a partition at once. The owner refuses this if
the log has changed since the tasks read it.

Tasks of three kinds follow each other (`compact_tasks`): they scan ranges of segments, merge keys
in buckets, and write groups of segments. `storage.compaction.shared.plan.Limits` bounds a task's
memory, however many keys there are.

Executors write to the directory, under the same path as the driver.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from kafkafs.quantities import Size
from kafkafs.spark.jobs.compact_tasks import (
    OutputKind,
    TaskOutput,
    WorkUnit,
    by_group,
    keep_groups,
    merge_buckets,
    plan_work,
    scan_ranges,
)
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport, Table
from kafkafs.spark.jobs.selection import EVERYTHING, Selection, data_location
from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.owner_client import OwnerNotReached, ask_owner, check_owner
from storage.adopt.staged import parse_name
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.shared.plan import Limits, SharedRound, plan
from storage.compaction.shared.round import Kept, finished, openings_of
from storage.compaction.shared.swap_in import cleaned_of
from storage.compaction.transactions import Met, OpenAtStart
from storage.errors import InvalidConfig, StorageError
from storage.files import Files
from storage.owner.request_kinds import SWAP

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

    from kafkafs.spark.location.location import Location

_SEGMENTS = ("segments_before", "segments_after")
_SIZES = ("bytes_before", "bytes_after")
_COUNTS = ("records_read", "records_kept")
# Figures of the report, and their fields in the owner's answer.
_DROPPED = {
    "records_dropped": "records_dropped",
    "dropped_superseded": "records_superseded",
    "dropped_without_key": "records_invalid",
    "dropped_aborted": "records_aborted",
    "dropped_markers": "markers",
    "keys": "map_keys",
}


def run(
    session: SparkSession,
    path: str,
    selection: Selection = EVERYTHING,
    *,
    only_due: bool = False,
    dry_run: bool = False,
    limits: Limits | None = None,
    now_ms: int | None = None,
) -> JobReport:
    """Clean the partitions of compacted topics that can be cleaned.

    `only_due`: only those that min.cleanable.dirty.ratio or max.compaction.lag.ms make due.
    `dry_run`: write nothing. `now_ms`: the time for settings and delete horizons; None: now. A
    partition that cannot be cleaned does not change, and is a fault of the report.

    Errors: OSError, StorageError; OwnerNotReached if the owner takes no requests; Spark's errors.
    """
    started = time.monotonic()
    limits = limits or Limits(parallel=session.sparkContext.defaultParallelism)
    work = Compaction(session, path, dry_run)
    work.plan(
        selection, only_due, limits, time.time_ns() // 1_000_000 if now_ms is None else now_ms
    )
    try:
        if work.rounds:
            with working(session, "compacting"):
                work.clean()
                work.swap(started)
    finally:
        work.tidy()
    return _report_of(work, time.monotonic() - started)


def check(path: str, selection: Selection) -> Location:
    """Check the directory and the selection, without Spark. Errors: those of `run`."""
    where = data_location(path)
    if not where.is_local:
        raise InvalidConfig(f"{where}: compaction needs a local directory, not an object store")
    return selection.check(where)


@dataclass(slots=True)
class CompactionRound:
    """A partition's round, with the answers of the tasks and of the owner.

    `is_asked`: the owner has the request, and has not answered yet.
    """

    shared: SharedRound
    keys: int = 0
    met: dict[int, list[tuple[int, Met]]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    is_failed: bool = False
    is_asked: bool = False
    cleaned: Cleaned | None = None


@dataclass(slots=True)
class Compaction:
    """One run."""

    session: SparkSession
    path: str
    dry_run: bool
    rounds: list[CompactionRound] = field(default_factory=list)
    job: str = field(default_factory=lambda: f"compact.{uuid.uuid4().hex}")
    faults: list[str] = field(default_factory=list)

    def plan(self, selection: Selection, only_due: bool, limits: Limits, now_ms: int) -> None:
        """Plan the rounds, all with one secret for the hashes of keys."""
        where = check(self.path, selection)
        self.path = where.path
        if not self.dry_run:
            check_owner(where.path)
        secret = os.urandom(16)
        with FollowedDirectory(where, selection.wants_topic) as opened:
            cleaner = LogCleaner(opened.manager)
            for log in selection.logs(opened.manager):
                if not log.config.is_compacted:
                    continue
                why_kept = opened.manager.why_kept(log.topic)
                if why_kept is not None:
                    self.faults.append(f"{log.topic}-{log.partition}: {why_kept}")
                    continue
                try:
                    cleanable = cleaner.plan(log, now_ms)
                    if only_due and not cleanable.is_due(log.config):
                        continue
                    shared = plan(log, cleanable, now_ms=now_ms, secret=secret, limits=limits)
                except (StorageError, OSError) as error:
                    self.faults.append(f"{log.topic}-{log.partition}: {error}")
                    continue
                if shared is not None:
                    self.rounds.append(CompactionRound(shared))

    # -- Spark's part --------------------------------------------------------------------------

    def clean(self) -> None:
        """Run all tasks. Afterwards the rounds have the number of kept records of each group."""
        from pyspark import StorageLevel

        context = self.session.sparkContext
        work = plan_work([each.shared for each in self.rounds], self.job)
        broadcast = context.broadcast(work)
        scanned: RDD[tuple[int, TaskOutput]] = context.parallelize(
            range(len(work.ranges)), len(work.ranges)
        ).flatMap(partial(scan_ranges, broadcast))
        merged: RDD[TaskOutput] = (
            scanned.partitionBy(len(work.buckets), _same)
            .mapPartitions(partial(merge_buckets, broadcast))
            .persist(StorageLevel.MEMORY_AND_DISK)
        )
        try:
            self._take(merged.filter(_is_for_driver).collect())
            opened = context.broadcast(self._openings())
            write = partial(keep_groups, broadcast, opened, not self.dry_run)
            kept = (
                merged.mapPartitions(partial(by_group, broadcast))
                .partitionBy(len(work.groups), _same)
                .mapPartitionsWithIndex(write)
                .collect()
            )
        finally:
            merged.unpersist()
            broadcast.unpersist()
        self._take(kept)

    def _take(self, outputs: Iterable[TaskOutput]) -> None:
        """Add the outputs of the tasks to the rounds."""
        for number, kind, at, data in outputs:
            each = self.rounds[number]
            if kind == OutputKind.FAULT:
                self._fail(each, data)
            elif kind == OutputKind.KEYS:
                each.keys += data
            elif kind == OutputKind.MET:
                each.met[at] = data
            else:
                each.kept.append(data)

    def _openings(self) -> dict[WorkUnit, OpenAtStart]:
        """Return the state of transactions at the start of each group."""
        return {
            WorkUnit(number, group): opening
            for number, each in enumerate(self.rounds)
            if not each.is_failed
            for group, opening in enumerate(
                openings_of(each.shared, [met for at in sorted(each.met) for met in each.met[at]])
            )
        }

    def _fail(self, failed: CompactionRound, reason: str) -> None:
        if not failed.is_failed:
            failed.is_failed = True
            self.faults.append(f"{failed.shared.topic}-{failed.shared.partition}: {reason}")

    # -- the owner's part ----------------------------------------------------------------------

    def swap(self, started: float) -> None:
        """Ask the owner to swap the new segments in, partition by partition."""
        unreached = ""
        for each in self.rounds:
            if unreached:
                self._fail(each, unreached)
            if each.is_failed:
                continue
            elapsed_ms = int((time.monotonic() - started) * 1000)
            request = finished(
                each.shared, self.job, each.kept, keys=each.keys, elapsed_ms=elapsed_ms
            )
            if self.dry_run:
                each.cleaned = replace(
                    cleaned_of(request),
                    segments_after=sum(kept.made for kept in each.kept),
                    bytes_after=sum(kept.bytes_kept for kept in each.kept),
                )
                continue
            # Until it answers, the owner may use the files: `tidy` must not remove them.
            each.is_asked = True
            try:
                each.cleaned = ask_owner(self.path, SWAP, request)
            except (StorageError, OSError) as error:
                self._fail(each, str(error))
                if isinstance(error, OwnerNotReached):
                    unreached = str(error)
            each.is_asked = False

    def tidy(self) -> None:
        """Remove the files of failed rounds and of extra attempts, which are not swapped in."""
        if self.dry_run:
            return
        for directory in (each.shared.directory for each in self.rounds if not each.is_asked):
            with suppress(OSError):
                files = Files(os.path.dirname(directory))
                for name, _ in files.scan(directory):
                    staged = parse_name(name)
                    if staged is not None and staged.query.endswith(f".{self.job}"):
                        files.unlink(os.path.join(directory, name))


def _same(number: int) -> int:
    """Return the partitioner: an output's key is the number of its task."""
    return number


def _is_for_driver(output: TaskOutput) -> bool:
    return output.kind in (OutputKind.MET, OutputKind.KEYS, OutputKind.FAULT)


def _report_of(work: Compaction, seconds: float) -> JobReport:
    report = JobReport("compact", is_dry_run=work.dry_run, faults=work.faults)
    columns = ("topic", "partition", "first_dirty", "clean_up_to", *_SEGMENTS, *_SIZES, *_COUNTS)
    table = Table("partitions", columns)
    done: list[Cleaned] = []
    for each in work.rounds:
        if (cleaned := each.cleaned) is not None:
            done.append(cleaned)
            first = (each.shared.topic, each.shared.partition)
            offsets = (cleaned.first_dirty_offset, cleaned.end_offset)
            segments = (getattr(cleaned, name) for name in _SEGMENTS)
            sizes = (Size(getattr(cleaned, name)) for name in _SIZES)
            counts = (getattr(cleaned, name) for name in _COUNTS)
            table.rows.append((*first, *offsets, *segments, *sizes, *counts))
    if table.rows:
        report.tables.append(table)

    def total(name: str) -> int:
        return sum(getattr(cleaned, name) for cleaned in done)

    report.figures = {
        **{name: total(name) for name in _SEGMENTS},
        **{name: Size(total(name)) for name in _SIZES},
        "partitions": len(done),
        **{name: total(name) for name in _COUNTS},
        **{name: total(field) for name, field in _DROPPED.items()},
        "seconds": round(seconds, 3),
        "faults": len(work.faults),
    }
    if not work.rounds and not work.faults:
        report.notes.append("nothing to compact")
    return report
