"""Compaction on Spark: keeps the latest record of each key, with a task for each partition.

A task runs the cleaner of the daemon on a partition's segments, and writes new segments beside
them. Records keep their offsets. Then the owner of the directory (the daemon that has it mounted,
or this process) swaps the new segments in, all of a round at once. The owner refuses this if the
log has changed since the task read it.

The broker's setting `log.cleaner.dedupe.buffer.size` limits the memory of a task's offset map. If a
map is full, its round ends there, and the partition gets another round.

Executors write to the directory, under the same path as the driver.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.quantities import Size
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport, Table
from kafkafs.spark.jobs.selection import EVERYTHING, Selection, data_location
from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.owner_client import OwnerNotReached, ask_owner, check_owner
from storage.adopt.staged import parse_name
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.staged_round import StagedRound, clean, plan, preview
from storage.compaction.swap_request import SwapRequest
from storage.errors import InvalidConfig, StorageError
from storage.files import Files
from storage.owner.request_kinds import SWAP
from storage.task import Task

if TYPE_CHECKING:
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
    now_ms: int | None = None,
) -> JobReport:
    """Clean the partitions of compacted topics that can be cleaned.

    `only_due`: only those that min.cleanable.dirty.ratio or max.compaction.lag.ms make due.
    `dry_run`: write nothing. `now_ms`: the time for settings and delete horizons; None: now. A
    partition that cannot be cleaned does not change, and is a fault of the report.

    Errors: OSError, StorageError; OwnerNotReached if the owner takes no requests; Spark's errors.
    """
    started = time.monotonic()
    where = check(path, selection)
    if not dry_run:
        check_owner(where.path)
    work = Compaction(session, where.path, dry_run, only_due, now_ms)
    rounds = work.plan(selection)
    try:
        while rounds:
            with working(session, "compacting"):
                unfinished = work.swap(rounds, work.clean(rounds))
            rounds = work.plan(Selection(unfinished)) if unfinished and not dry_run else []
    finally:
        work.tidy()
    return _report_of(work, time.monotonic() - started)


def check(path: str, selection: Selection) -> Location:
    """Check the directory and the selection, without Spark. Errors: those of `run`."""
    where = data_location(path)
    if not where.is_local:
        raise InvalidConfig(f"{where}: compaction needs a local directory, not an object store")
    return selection.check(where)


class TaskOutput(NamedTuple):
    """The outcome of a round; without `cleaned`, the `fault` of its partition.

    `request`: what the owner is to do; None in a dry run.
    """

    cleaned: Cleaned | None = None
    request: SwapRequest | None = None
    fault: str = ""


@dataclass(slots=True)
class Compaction:
    """One run. `done`: the rounds so far, by topic and partition."""

    session: SparkSession
    path: str
    dry_run: bool = False
    only_due: bool = False
    now_ms: int | None = None
    job: str = field(default_factory=lambda: f"compact.{uuid.uuid4().hex}")
    done: list[tuple[str, int, Cleaned]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    # The partitions' directories, where tasks may have left files.
    _directories: set[str] = field(default_factory=set)

    def plan(self, selection: Selection) -> list[StagedRound]:
        """Plan a round of each partition that can be cleaned, the largest first."""
        now_ms = time.time_ns() // 1_000_000 if self.now_ms is None else self.now_ms
        rounds = []
        with FollowedDirectory(data_location(self.path), selection.wants_topic) as opened:
            manager = opened.manager
            cleaner = LogCleaner(manager)
            for log in selection.logs(manager):
                if not log.config.is_compacted:
                    continue
                why_no_deletion = manager.why_no_deletion(log.topic)
                if why_no_deletion is not None:
                    self.faults.append(f"{log.topic}-{log.partition}: {why_no_deletion}")
                    continue
                try:
                    cleanable = cleaner.plan(log, now_ms)
                    if self.only_due and not cleanable.is_due(log.config):
                        continue
                    planned = plan(log, cleanable, manager.settings.broker, now_ms)
                except (StorageError, OSError) as error:
                    self.faults.append(f"{log.topic}-{log.partition}: {error}")
                    continue
                if planned is not None:
                    rounds.append(planned)
        return sorted(rounds, key=lambda each: each.size, reverse=True)

    def clean(self, rounds: Sequence[StagedRound]) -> list[TaskOutput]:
        """Run a task for each round."""
        self._directories.update(each.directory for each in rounds)
        task = partial(_clean, None if self.dry_run else self.job)
        return self.session.sparkContext.parallelize(rounds, len(rounds)).map(task).collect()

    def swap(
        self, rounds: Sequence[StagedRound], outputs: Sequence[TaskOutput]
    ) -> tuple[tuple[str, int], ...]:
        """Ask the owner to swap the new segments in, partition by partition.

        Return the partitions that need another round, because their offset map was full.
        """
        unreached = ""
        unfinished = []
        for planned, (cleaned, request, fault) in zip(rounds, outputs, strict=True):
            place = planned.topic, planned.partition
            fault = fault or unreached
            if request is not None and not fault:
                # Until it answers, the owner may use the files: `tidy` must not remove them.
                self._directories.remove(planned.directory)
                try:
                    ask_owner(self.path, SWAP, request)
                except (StorageError, OSError) as error:
                    fault = str(error)
                    if isinstance(error, OwnerNotReached):
                        unreached = fault
                self._directories.add(planned.directory)
            if fault or cleaned is None:
                self.faults.append(f"{planned.topic}-{planned.partition}: {fault}")
                continue
            self.done.append((*place, cleaned))
            if cleaned.map_full:
                unfinished.append(place)
        return tuple(unfinished)

    def tidy(self) -> None:
        """Remove the files of failed rounds and of extra attempts, which are not swapped in."""
        if self.dry_run:
            return
        for directory in self._directories:
            with suppress(OSError):
                files = Files(os.path.dirname(directory))
                for name in files.names(directory):
                    staged = parse_name(name)
                    if staged is not None and staged.query.endswith(f".{self.job}"):
                        files.unlink(os.path.join(directory, name))


def _clean(job: str | None, planned: StagedRound) -> TaskOutput:
    """Run a round in a task; `job`: the name in its files; None: write nothing."""
    from pyspark import TaskContext

    files = Files(os.path.dirname(planned.directory))
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    try:
        if job is None:
            return TaskOutput(preview(planned, files, Task()))
        return TaskOutput(*clean(planned, files, Task(), job=job, attempt=attempt))
    except FileNotFoundError as error:
        gone = f"{error.filename} no longer exists: the log was compacted or deleted meanwhile"
        return TaskOutput(fault=gone)
    except (StorageError, OSError) as error:
        return TaskOutput(fault=str(error))


def _report_of(work: Compaction, seconds: float) -> JobReport:
    report = JobReport("compact", is_dry_run=work.dry_run, faults=sorted(work.faults))
    columns = ("topic", "partition", "first_dirty", "clean_up_to", *_SEGMENTS, *_SIZES, *_COUNTS)
    table = Table("partitions", columns)
    done = sorted(work.done, key=lambda each: each[:2])
    for topic, partition, cleaned in done:
        offsets = (cleaned.first_dirty_offset, cleaned.end_offset)
        segments = (getattr(cleaned, name) for name in _SEGMENTS)
        sizes = (Size(getattr(cleaned, name)) for name in _SIZES)
        counts = (getattr(cleaned, name) for name in _COUNTS)
        table.rows.append((topic, partition, *offsets, *segments, *sizes, *counts))
    if table.rows:
        report.tables.append(table)

    def total(name: str) -> int:
        return sum(getattr(cleaned, name) for _, _, cleaned in done)

    report.figures = {
        **{name: total(name) for name in _SEGMENTS},
        **{name: Size(total(name)) for name in _SIZES},
        "partitions": len({each[:2] for each in done}),
        "rounds": len(done),
        **{name: total(name) for name in _COUNTS},
        **{name: total(field) for name, field in _DROPPED.items()},
        "seconds": round(seconds, 3),
        "faults": len(work.faults),
    }
    if work.dry_run:
        report.notes += [
            f"{topic}-{partition}: the offset map is too small for all keys: only the first round "
            "is counted"
            for topic, partition, cleaned in done
            if cleaned.map_full
        ]
    if not done and not work.faults:
        report.notes.append("nothing to compact")
    return report
