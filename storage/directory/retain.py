"""Carries out retention: removes segments from the head of logs, and moves log starts.

In this order, which a crash may interrupt at any point:

1. `plan_retention` decides by facts in memory and reads no log. The log thread checks that the plan
   still fits, and rolls a log if all its segments expire.
2. A worker thread flushes the log below the new log start, prepares the history of shown text
   (`Log.prepare_replacement`), and writes the new log start to its checkpoint, durably. After a
   crash from here on, the records are deleted.
3. The log thread removes the segments from the log. Their files get the suffix `.deleted`, some at
   a time. They are removed after file.delete.delay.ms (`LogManager.sweep`), with the snapshots of
   producers at their bases.

If a plan no longer fits at step 3, because the log was deleted or a cleaner is running, the log
waits for the next run. An error of one log does not affect the others.

Not here: the rules and policies, which only decide (`storage.retention`), and the schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from storage import paths
from storage.directory.data_directory import DataDirectory
from storage.directory.mirror import is_mirror
from storage.directory.topics import TopicPartition
from storage.errors import (
    LogClosed,
    OffsetOutOfRange,
    PolicyViolation,
    SegmentGone,
    StorageError,
    TaskCancelled,
)
from storage.log.log import Log
from storage.retention.retention import (
    Decision,
    Doomed,
    Effect,
    LogFacts,
    SegmentFacts,
    decide,
    effects,
)
from storage.segment.segment import Segment
from storage.settings.config import LONG_MAX, LogConfig
from storage.state import point_file
from storage.task import Task, in_chunks

HIGH_WATERMARK = -1
"""The offset of `delete_records` that stands for the high watermark."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The expired part of one log: `doomed`, which are its `segments`.

    `offsets`: the number of deleted offsets, including transaction markers and gaps of compaction.
    `rolls`: all segments expire, so a new one is begun first. `fault`: why the topic's policy does
    not count.
    """

    log: Log
    config: LogConfig
    segments: tuple[Segment, ...]
    doomed: tuple[Doomed, ...]
    facts: LogFacts
    now_ms: int
    rolls: bool
    fault: str | None

    @property
    def fits(self) -> bool:
        """Whether the settings, and the expired segments, are still those of the plan."""
        log, segments = self.log, self.segments
        if log.config is not self.config or log.segments[: len(segments)] != segments:
            return False
        # Only an active segment grows.
        return not self.rolls or self.doomed[-1].segment == _facts(
            log.active, log.log_end_offset, is_active=True
        )

    @property
    def size(self) -> int:
        """The bytes of the expired `.log` files."""
        return sum(segment.size for segment, _ in self.doomed)

    @property
    def log_start(self) -> int:
        """The log start offset afterwards."""
        after = self.doomed[-1].segment.next_offset if self.doomed else 0
        return max(self.facts.log_start_offset, after)

    @property
    def effects(self) -> list[Effect]:
        """The effect of each setting; none for a tiered topic or a failed policy."""
        if self.fault is not None or self.log.tiered is not None:
            return []
        return effects(self.facts, self.config, self.now_ms)

    @property
    def offsets(self) -> int:
        return self.log_start - self.facts.log_start_offset


@dataclass(slots=True)
class Retained:
    """The outcome of one run. `notes`: one line for each problem, with the partition."""

    logs: int = 0
    segments: int = 0
    size: int = 0
    offsets: int = 0
    cleaning: int = 0
    """Logs skipped because a cleaner is running."""
    notes: list[str] = field(default_factory=list)


def _facts(segment: Segment, end: int, *, is_active: bool) -> SegmentFacts:
    return SegmentFacts(
        segment.base_offset,
        end,
        segment.size,
        segment.largest_timestamp,
        segment.mtime_ns // 1_000_000,
        is_active,
    )


def kept_starts(directory: DataDirectory) -> Mapping[TopicPartition, int]:
    """Return the offsets from which on named restore points of a mirror keep the records of
    partitions. Errors: CorruptCheckpoint, OSError.
    """
    files, path = directory.files, directory.path
    if not is_mirror(files, path):
        return {}
    return point_file.kept_starts(files, path)


def plan_retention(log: Log, now_ms: int, kept: Mapping[TopicPartition, int]) -> RetentionPlan:
    """Return the plan of this log's retention; an empty one for a tiered topic.

    `kept`: see `kept_starts`. Changes nothing and reads nothing. Thread-safe.
    """
    config, segments = log.config, log.segments
    ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset]
    facts = LogFacts(
        tuple(
            _facts(segment, end, is_active=segment is segments[-1])
            for segment, end in zip(segments, ends, strict=True)
        ),
        log.log_start_offset,
        log.high_watermark,
        kept.get((log.topic, log.partition), paths.MAX_OFFSET),
    )
    decision = decide(facts, config, now_ms) if log.tiered is None else Decision(())
    count = len(decision.doomed)
    return RetentionPlan(
        log,
        config,
        segments[:count],
        decision.doomed,
        facts,
        now_ms,
        rolls=count == len(facts.segments),
        fault=decision.fault,
    )


# -- retention -----------------------------------------------------------------------------------


def retain(
    directory: DataDirectory, logs: Iterable[Log], task: Task, now_ms: int | None = None
) -> Retained:
    """Apply retention to `logs` now. Runs on a worker thread.

    An error of one log becomes a note of the outcome. Errors: TaskCancelled between two logs;
    those of `kept_starts`, OSError if the log starts cannot be written; nothing was deleted.
    """
    now = directory.clock_ms() if now_ms is None else now_ms
    kept = kept_starts(directory)
    outcome = Retained()
    task.begin("looking for expired segments", 0)
    advances: list[_LogStartAdvance] = []
    try:
        for log in logs:
            task.check()
            with _noted(outcome, log):
                # Off the log thread, since a user's policy may take long.
                plan = plan_retention(log, now, kept)
                advance = task.on_log_thread(partial(_begin, plan, now, outcome, kept))
                if advance is not None:
                    advances.append(advance)
        flushed = []
        for advance in advances:
            task.check()
            with _noted(outcome, advance.log):
                advance.write_down(task)
                flushed.append(advance)
        if flushed:
            # A point may have been named meanwhile.
            kept = kept_starts(directory)
            flushed = [advance for advance in flushed if advance.fits(kept)]
        if flushed:
            task.begin("deleting", sum(advance.size for advance in flushed))
            directory.checkpoint_logs([advance.log for advance in flushed], task)
        for advance in flushed:
            with _noted(outcome, advance.log):
                _delete(advance, task, now, outcome, kept)
    finally:
        _end(directory, advances, task)
    return outcome


def _begin(
    plan: RetentionPlan, now_ms: int, outcome: Retained, kept: Mapping[TopicPartition, int]
) -> _LogStartAdvance | None:
    """Check on the log thread that the plan still fits, and that the log is free."""
    log = plan.log
    if log.closed:
        return None
    log.append_queue.check_may_append()
    outcome.logs += 1
    if log.cleaning:
        outcome.cleaning += 1
        return None
    if not plan.fits:
        plan = plan_retention(log, now_ms, kept)
    if plan.fault is not None:
        outcome.notes.append(f"{log.topic}-{log.partition}: {plan.fault}")
    if not plan.doomed:
        return None
    if plan.rolls:
        log.files.with_reserve(lambda: log.roll(now_ms))
    return _LogStartAdvance(log, len(plan.doomed), plan.log_start)


def _delete(
    advance: _LogStartAdvance,
    task: Task,
    now_ms: int,
    outcome: Retained,
    kept: Mapping[TopicPartition, int],
) -> None:
    """Remove the segments in chunks on the log thread."""
    log, start = advance.log, advance.log.log_start_offset

    def detach() -> tuple[Segment, ...]:
        # A cleaner may be running, or have run.
        outcome.cleaning += log.cleaning
        if log.closed or log.cleaning or log.segments[: len(advance.segments)] != advance.segments:
            return ()
        # Other settings may keep the segments.
        changed = log.config is not advance.config
        if changed and len(plan_retention(log, now_ms, kept).doomed) < len(advance.segments):
            return ()
        return log.remove_head(len(advance.segments), log.monotonic_ms())

    removed = task.on_log_thread(detach)
    for some in in_chunks(removed):
        task.on_log_thread(partial(log.rename_to_deleted, some))
        size = sum(segment.size for segment in some)
        outcome.segments += len(some)
        outcome.size += size
        task.done += size
    if removed:
        outcome.offsets += log.log_start_offset - start
        task.advance(0)


@contextlib.contextmanager
def _noted(outcome: Retained, log: Log) -> Iterator[None]:
    """Make an error in this block a note of the outcome."""
    try:
        yield
    except TaskCancelled:
        raise
    except (OSError, StorageError) as error:
        # (Unless the log was deleted meanwhile.)
        if not log.closed:
            outcome.notes.append(f"{log.topic}-{log.partition}: {error}")


class _LogStartAdvance:
    """A log start that is about to move past `count` expired segments, or past none.

    The log thread makes it and calls `end`. The next checkpoint after `write_down` has the log
    start.
    """

    def __init__(self, log: Log, count: int, log_start: int) -> None:
        self.log = log
        self.segments = log.segments[:count]
        self.log_start = log_start
        self.config = log.config
        self._is_intended = False
        self._is_let_go = False

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def write_down(self, task: Task) -> None:
        """Flush the log below the log start, and prepare the history of shown text: a restart
        deletes below a log start in the checkpoint. Runs on a worker thread.
        """
        log = self.log
        # After the deletion only the snapshots have the producers of these records.
        if task.on_log_thread(
            lambda: log.durability.recovery_point < self.log_start or bool(log.snapshots.unsynced)
        ):
            log.flush(task.on_log_thread)
        self.prepare(task)
        log.manifest.withdraw(self.segments)
        self._is_let_go = True
        task.on_log_thread(self._intend)

    def prepare(self, task: Task) -> None:
        """Prepare the history of shown text. Runs on a worker thread."""
        task.on_log_thread(self._prepare)()

    def _prepare(self) -> Callable[[], None]:
        if self.log.closed:
            return lambda: None
        if self.log.segments[: len(self.segments)] != self.segments:
            raise SegmentGone("its segments were replaced meanwhile")
        return self.log.prepare_replacement(self.segments, (), log_start=self.log_start)

    def _intend(self) -> None:
        self._is_intended = True
        self.log.pending_log_starts.append(self.log_start)

    def end(self, directory: DataDirectory) -> None:
        """End the advance, whether it was carried out or given up."""
        self.log.end_change(self.segments, ())
        if self._is_let_go:
            self.log.manifest.reinstate(self.segments)
        if self._is_intended:
            self.log.pending_log_starts.remove(self.log_start)
            directory.note([self.log])

    def fits(self, kept: Mapping[TopicPartition, int]) -> bool:
        """Whether it removes no records that are kept (`kept_starts`)."""
        kept_from = kept.get((self.log.topic, self.log.partition), paths.MAX_OFFSET)
        return self.log_start <= max(self.log.log_start_offset, kept_from)

    @property
    def is_given_up(self) -> bool:
        """Whether a checkpoint may have the log start though the log does not begin there."""
        return self._is_intended and self.log.log_start_offset < self.log_start


def _end(directory: DataDirectory, advances: Sequence[_LogStartAdvance], task: Task) -> None:
    """End advances. Some records may stay after all: no checkpoint may have a log start above
    them.
    """
    for advance in advances:
        task.on_log_thread(partial(advance.end, directory))
    if any(advance.is_given_up for advance in advances):
        directory.write_checkpoints()


def remove_now(log: Log) -> None:
    """Remove a log's deleted files without delay, unless another process has the directory."""
    for path in log.release_retired(LONG_MAX):
        # Line indexes and words may be removed at any moment.
        with contextlib.suppress(FileNotFoundError):
            log.files.unlink(path)


# -- delete-records ------------------------------------------------------------------------------


def delete_records(
    directory: DataDirectory,
    log: Log,
    offset: int,
    task: Task,
    kept: Mapping[TopicPartition, int] | None = None,
) -> int:
    """Move the log start up to `offset` (`HIGH_WATERMARK`: as far as possible); return it. Runs on
    a worker thread.

    Durable when it returns. An offset at or below the log start changes nothing. Records of named
    restore points stay; `kept`: those of `kept_starts`, if the caller has them. The next `retain`
    deletes segments that lie below the log start. If the active segment does, it is rolled for
    that, but not in a broker's log. Errors: OffsetOutOfRange above the high watermark or below -1,
    PolicyViolation if cleanup.policy is only compact (`Partition.deleteRecordsOnLeader`) and for
    the topic of committed offsets, OSError and other StorageErrors; BlockingIOError if large
    transactions keep ending.
    """
    if kept is None:
        kept = kept_starts(directory)
    kept_from = kept.get((log.topic, log.partition), paths.MAX_OFFSET)
    advance = task.on_log_thread(lambda: _begin_advance(directory, log, offset, kept_from))
    if advance is None:
        return log.log_start_offset

    def carry_out() -> int:
        if log.closed:
            raise LogClosed("this log has been closed", path=log.directory)
        if log.log_start_offset < advance.log_start:
            log.raise_log_start(advance.log_start)
        return log.log_start_offset

    try:
        advance.write_down(task)
        # A point may have been named meanwhile.
        if not advance.fits(kept_starts(directory)):
            return log.log_start_offset
        directory.checkpoint_logs([log], task)
        try:
            return task.on_log_thread(carry_out)
        except BlockingIOError:
            # A large transaction has ended since: this thread measures its text.
            advance.prepare(task)
            return task.on_log_thread(carry_out)
    finally:
        _end(directory, [advance], task)


def _begin_advance(
    directory: DataDirectory, log: Log, offset: int, kept_from: int
) -> _LogStartAdvance | None:
    """Return the advance for `delete_records`; None if it changes nothing."""
    if log.closed:
        raise LogClosed("this log has been closed", path=log.directory)
    log.check_not_read_only()
    paths.check_may_change(log.topic)
    if log.config.cleanup_policy == ("compact",):
        raise PolicyViolation(
            "the topic is compacted only (cleanup.policy=compact): its records cannot be deleted",
            path=log.directory,
        )
    end = log.high_watermark
    wanted = end if offset == HIGH_WATERMARK else offset
    if not 0 <= wanted <= end:
        raise OffsetOutOfRange(wanted, log.log_start_offset, end, path=log.directory)
    wanted = min(wanted, kept_from)
    if wanted <= log.log_start_offset:
        return None
    if wanted == log.log_end_offset and not directory.settings.is_brokers_topic(log.topic):
        # Retention deletes sealed segments. If there is no room for a new one, this one stays.
        with contextlib.suppress(OSError):
            log.files.with_reserve(lambda: log.roll(directory.clock_ms()))
    return _LogStartAdvance(log, 0, wanted)
