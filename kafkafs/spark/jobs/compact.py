"""Compaction on Spark: keeps of each key the latest record, in logs of any size.

The job writes the bytes that the mount's own cleaner would write at that moment; each record that
stays keeps its offset. Tasks read segment files and write new ones beside them. Hashes and offsets
of keys go from task to task, values never do. Then the owner of the directory (the daemon that has
it mounted, or this process) swaps the new segments in, all of a partition at once. It refuses if
the log has changed since the tasks read it.

There are three stages (`compact_tasks`): tasks scan ranges of segments, merge keys in buckets, and
write groups of segments. `storage.compaction.shared.plan.Limits` bounds a task's memory, however
many keys there are.

Executors write to the directory, under the same path as the driver.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from kafkafs.spark.jobs.choice import EVERYTHING, Choice, data_location
from kafkafs.spark.jobs.compact_tasks import (
    Item,
    ItemKind,
    RoundPart,
    Shares,
    bundled,
    by_group,
    keep_groups,
    merge_buckets,
    scan_ranges,
)
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport, Table, total
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

    from kafkafs.spark.location.followed_directory import Location

# A task has at least this many bytes of work.
_LEAST_BYTES = 8 << 20
_COLUMNS = (
    *("topic", "partition", "first_dirty", "clean_up_to"),
    *("segments_before", "segments_after", "bytes_before", "bytes_after"),
    *("records_read", "records_kept"),
)


def run(
    session: SparkSession,
    path: str,
    choice: Choice = EVERYTHING,
    *,
    only_due: bool = False,
    dry_run: bool = False,
    limits: Limits | None = None,
    now_ms: int | None = None,
) -> JobReport:
    """Clean the partitions of compacted topics that can be cleaned.

    `only_due`: only those that min.cleanable.dirty.ratio or max.compaction.lag.ms make due.
    `dry_run`: write nothing. `now_ms`: the time for settings and delete horizons, else the clock's.
    A partition that cannot be cleaned stays as it is and is a fault of the report. OSError,
    StorageError, OwnerNotReached if the owner takes no requests; Spark's own errors.
    """
    started = time.monotonic()
    limits = limits or Limits(parallel=session.sparkContext.defaultParallelism)
    work = Compaction(session, path, dry_run)
    work.plan(choice, only_due, limits, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    try:
        if work.rounds:
            with working(session, "compacting"):
                work.clean()
                work.swap(started)
    finally:
        work.tidy()
    return _report_of(work, time.monotonic() - started)


def check(path: str, choice: Choice) -> Location:
    """Check the directory and the choice, without Spark. Raises as `run`."""
    where = data_location(path)
    if not where.is_local:
        raise InvalidConfig(f"{where}: only a directory can be compacted, no object store")
    choice.check(where.files(), where.path)
    return where


@dataclass(slots=True)
class Compaction:
    """One run. `kept` (by group), `keys` (their number) and `cleaned` are by number of the round.

    `failed`: rounds with a fault. `asking`: the round that the owner has not answered for yet.
    """

    session: SparkSession
    path: str
    dry_run: bool
    rounds: list[SharedRound] = field(default_factory=list)
    job: str = field(default_factory=lambda: f"compact.{uuid.uuid4().hex}")
    faults: list[str] = field(default_factory=list)
    kept: dict[int, list[Kept]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    asking: int | None = None
    cleaned: dict[int, Cleaned] = field(default_factory=dict)

    def plan(self, choice: Choice, only_due: bool, limits: Limits, now_ms: int) -> None:
        """Plan the rounds, all with one secret for the hashes of keys."""
        where = check(self.path, choice)
        self.path = where.path
        if not self.dry_run:
            check_owner(where.path)
        secret = os.urandom(16)
        with FollowedDirectory(where, choice.wants_topic) as opened:
            cleaner = LogCleaner(opened.manager)
            for log in sorted(opened.manager.logs(), key=lambda log: (log.topic, log.partition)):
                if not choice.wants(log.topic, log.partition) or not log.config.is_compacted:
                    continue
                why_kept = opened.manager.settings.why_kept(log.topic)
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
                    self.rounds.append(shared)

    # -- Spark's part --------------------------------------------------------------------------

    def clean(self) -> None:
        """Run all stages; put what each group has kept into `kept`."""
        from pyspark import StorageLevel

        context = self.session.sparkContext
        shares = _shares(self.rounds, self.job)
        broadcast = context.broadcast(shares)
        scanned: RDD[tuple[int, Item]] = context.parallelize(
            range(len(shares.ranges)), len(shares.ranges)
        ).flatMap(partial(scan_ranges, broadcast))
        merged: RDD[Item] = (
            scanned.partitionBy(len(shares.buckets), _same)
            .mapPartitions(partial(merge_buckets, broadcast))
            .persist(StorageLevel.MEMORY_AND_DISK)
        )
        try:
            openings = self._openings(merged.filter(_is_for_driver).collect())
            opened = context.broadcast(openings)
            write = partial(keep_groups, broadcast, opened, not self.dry_run)
            kept = (
                merged.mapPartitions(partial(by_group, broadcast))
                .partitionBy(len(shares.groups), _same)
                .mapPartitionsWithIndex(write)
                .collect()
            )
        finally:
            merged.unpersist()
            broadcast.unpersist()
        for item in kept:
            if item.kind == ItemKind.FAULT:
                self._fail(item.round, item.data.decode())
            else:
                self.kept.setdefault(item.round, []).append(pickle.loads(item.data))

    def _openings(self, items: Sequence[Item]) -> dict[RoundPart, OpenAtStart]:
        """The openings of groups, by group; take keys and faults out of the items."""
        met: dict[int, dict[int, list[tuple[int, Met]]]] = {}
        for item in items:
            if item.kind == ItemKind.FAULT:
                self._fail(item.round, item.data.decode())
            elif item.kind == ItemKind.KEYS:
                count = int.from_bytes(item.data, "little")
                self.keys[item.round] = self.keys.get(item.round, 0) + count
            else:
                met.setdefault(item.round, {})[item.number] = pickle.loads(item.data)
        openings: dict[RoundPart, OpenAtStart] = {}
        for number, ranges in met.items():
            if number in self.failed:
                continue
            in_order = [each for at in sorted(ranges) for each in ranges[at]]
            for group, opening in enumerate(openings_of(self.rounds[number], in_order)):
                openings[RoundPart(number, group)] = opening
        return openings

    def _fail(self, number: int, reason: str) -> None:
        shared = self.rounds[number]
        if number not in self.failed:
            self.failed.add(number)
            self.faults.append(f"{shared.topic}-{shared.partition}: {reason}")

    # -- the owner's part ----------------------------------------------------------------------

    def swap(self, started: float) -> None:
        """Ask the owner to swap the new segments in, partition by partition."""
        unreached = ""
        for number, shared in enumerate(self.rounds):
            if unreached:
                self._fail(number, unreached)
            if number in self.failed:
                continue
            elapsed_ms = int((time.monotonic() - started) * 1000)
            request = finished(
                shared,
                self.job,
                self.kept[number],
                keys=self.keys.get(number, 0),
                elapsed_ms=elapsed_ms,
            )
            if self.dry_run:
                kept = self.kept[number]
                self.cleaned[number] = replace(
                    cleaned_of(request),
                    segments_after=sum(each.made for each in kept),
                    bytes_after=sum(each.bytes_kept for each in kept),
                )
                continue
            # Until it answers, the owner may use the files: `tidy` must not remove them.
            self.asking = number
            try:
                self.cleaned[number] = ask_owner(self.path, SWAP, request)
            except (StorageError, OSError) as error:
                self._fail(number, str(error))
                if isinstance(error, OwnerNotReached):
                    unreached = str(error)
            self.asking = None

    def tidy(self) -> None:
        """Remove the job's files that are not swapped in: of failed rounds, of extra attempts."""
        if self.dry_run:
            return
        for number, shared in enumerate(self.rounds):
            if number == self.asking:
                continue
            with suppress(OSError):
                files = Files(os.path.dirname(shared.directory))
                for name, _ in files.scan(shared.directory):
                    staged = parse_name(name)
                    if staged is not None and staged.query.endswith(f".{self.job}"):
                        files.unlink(os.path.join(shared.directory, name))


def _same(number: int) -> int:
    """The partitioner: an item's key is the number of its task."""
    return number


def _is_for_driver(item: Item) -> bool:
    return item.kind in (ItemKind.MET, ItemKind.KEYS, ItemKind.FAULT)


def _shares(rounds: Sequence[SharedRound], job: str) -> Shares:
    """Divide the work among tasks; small ranges, buckets and groups share a task."""

    def parts(
        numbers: Callable[[SharedRound], Iterable[tuple[int, int]]],
    ) -> Iterator[tuple[RoundPart, int]]:
        for number, shared in enumerate(rounds):
            for at, size in numbers(shared):
                yield RoundPart(number, at), size

    def ranges(shared: SharedRound) -> Iterator[tuple[int, int]]:
        for number, pieces in enumerate(shared.ranges):
            yield number, sum(piece.end - piece.position for piece in pieces)

    def buckets(shared: SharedRound) -> Iterator[tuple[int, int]]:
        for number in range(shared.buckets):
            yield number, shared.size // shared.buckets

    def groups(shared: SharedRound) -> Iterator[tuple[int, int]]:
        for group in range(len(shared.firsts)):
            yield group, sum(shared.segments[number].size for number in shared.members(group))

    return Shares(
        tuple(rounds),
        job,
        bundled(list(parts(ranges)), _LEAST_BYTES),
        bundled(list(parts(buckets)), _LEAST_BYTES),
        bundled(list(parts(groups)), _LEAST_BYTES),
    )


def _report_of(work: Compaction, seconds: float) -> JobReport:
    report = JobReport("compact", is_dry_run=work.dry_run, faults=work.faults)
    table = Table("partitions", _COLUMNS)
    for number, cleaned in sorted(work.cleaned.items()):
        shared = work.rounds[number]
        facts = (
            *(cleaned.first_dirty_offset, cleaned.end_offset),
            *(cleaned.segments_before, cleaned.segments_after),
            *(cleaned.bytes_before, cleaned.bytes_after),
            *(cleaned.records_read, cleaned.records_kept),
        )
        table.rows.append((shared.topic, shared.partition, *facts))
    if table.rows:
        report.tables.append(table)
    done = work.cleaned.values()
    for name in ("segments_before", "segments_after", "bytes_before", "bytes_after"):
        report.figures[name] = total([getattr(cleaned, name) for cleaned in done])
    report.figures.update(
        partitions=len(work.cleaned),
        records_read=total([cleaned.records_read for cleaned in done]),
        records_kept=total([cleaned.records_kept for cleaned in done]),
        records_dropped=total([cleaned.records_dropped for cleaned in done]),
        dropped_superseded=total([cleaned.records_superseded for cleaned in done]),
        dropped_without_key=total([cleaned.records_invalid for cleaned in done]),
        dropped_aborted=total([cleaned.records_aborted for cleaned in done]),
        dropped_markers=total([cleaned.markers for cleaned in done]),
        keys=total([cleaned.map_keys for cleaned in done]),
        seconds=round(seconds, 3),
        faults=len(work.faults),
    )
    if not work.rounds and not work.faults:
        report.notes.append("there is nothing that can be cleaned")
    return report
