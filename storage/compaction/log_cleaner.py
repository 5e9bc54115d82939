"""The cleaner of a data directory: which log is next, and up to where each has been cleaned.

``cleaner-offset-checkpoint`` in the data directory has, of each log that was cleaned, the offset
from which on it is dirty (``LogManager.cleaner_offsets``).  It is written when a round is over, so
it never claims too much.

Invariant: one log is cleaned at a time, in the caller's worker thread; what others have cleaned is
put in by any.  Everything else here is the owner's.  A log that could not be cleaned is tried
again when the caller says: Kafka's waits for a restart
(``LogCleanerManager.markPartitionUncleanable``).

Not here: the cleaning itself (``cleaner``), threads and schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from storage.compaction import cleaner
from storage.compaction._offset_map import OffsetMap
from storage.compaction.cleanable import CleanableRange, cleanable
from storage.compaction.cleaner import Cleaned
from storage.compaction.shared import swap_in
from storage.compaction.shared.swap_request import SwapRequest
from storage.directory.manager import LogManager
from storage.errors import StorageError, SwapRefused, TaskCancelled
from storage.log.log import Log
from storage.task import Task


class LogCleaner:
    """See the module.  ``uncleanable``: why each of these logs could not be cleaned when that was
    tried last; the manager's, as whoever puts in what others have cleaned has a cleaner of his own.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.uncleanable = manager.uncleanable
        self.cleaning: Log | None = None
        self.counters = manager.cleaner_counters

    # -- what there is to do -------------------------------------------------------------------

    def first_dirty(self, log: Log) -> int | None:
        """The offset from which on a log is dirty; None: it has never been cleaned."""
        return self._manager.cleaner_offsets.get((log.topic, log.partition))

    def plan(self, log: Log, now_ms: int) -> CleanableRange:
        """What of a log can be cleaned now."""
        return cleanable(
            log.segments,
            log.config,
            self.first_dirty(log),
            log_start=log.log_start_offset,
            last_stable=log.last_stable_offset,
            log_end=log.log_end_offset,
            now_ms=now_ms,
        )

    def filthiest(self, now_ms: int, waiting: Collection[Log] = ()) -> Log | None:
        """The compacted log to be cleaned next: of those that are due the one with the largest
        share of dirty bytes (``grabFilthiestCompactedLog``), but for ``waiting`` ones.
        """
        due = []
        for log in self._manager.topics.compacted:
            if log.closed or log.cleaning or log in waiting:
                continue
            if log.config.may_be_cleaned:
                plan = self.plan(log, now_ms)
                if plan.is_due(log.config):
                    due.append((plan.ratio, log))
        return max(due, key=lambda item: item[0])[1] if due else None

    # -- doing it ------------------------------------------------------------------------------

    def clean(self, log: Log, task: Task) -> Cleaned | None:
        """Clean one log as far as one map reaches, due or not; in a worker thread.

        None where there is nothing: no sealed segment that may be cleaned, a cleanup.policy without
        compact, settings that are not known, or others' round that is just being put in.  What was
        clean already loses tombstones and markers whose horizon has passed.  TaskCancelled, also
        where compact is taken out of it meanwhile: all is as it was.
        StorageError, OSError: the same, and the log is ``uncleanable`` until it succeeds.
        """
        return self._with(log, task, self._clean)

    def clean_all(self, log: Log, task: Task) -> list[Cleaned]:
        """Clean one log to its end: where the map was full, the next round goes on behind it.

        As ``clean``, of which each round is one.
        """
        rounds: list[Cleaned] = []
        while (cleaned := self.clean(log, task)) is not None:
            rounds.append(cleaned)
            if not cleaned.map_full:
                break
        return rounds

    def preview(self, log: Log, task: Task) -> Cleaned | None:
        """What ``clean`` would do now; changes nothing.  The same errors."""
        return self._with(log, task, self._preview)

    def swap_in(self, request: SwapRequest, task: Task) -> Cleaned:
        """Put in what another process has cleaned of a log; in a worker thread, at any time.

        SwapRefused, UnknownTopicOrPartition, StorageError, OSError: nothing has changed, and the
        request's files are gone.  TaskCancelled: the same, but they may be there still.
        """
        log, plan = task.by_owner(lambda: self._begin_swap(request))
        if plan is None:
            # What the round that is under way puts in was not read.
            swap_in.discard(log, request)
            raise SwapRefused(f"{log.topic}-{log.partition} is being cleaned: clean it again")
        try:
            old = swap_in.old_segments(log, plan, request)
            if old is not None:
                self._write_down(log, request.first_dirty_offset, task)
                if request.new:
                    swap_in.swap_in(log, old, request, task)
            cleaned = swap_in.cleaned_of(request)
            if old is not None or (self.first_dirty(log) or 0) < cleaned.end_offset:
                self._checkpoint(log, cleaned.end_offset, task)
        except TaskCancelled:
            raise
        except (StorageError, OSError) as error:
            swap_in.discard(log, request)
            if log.closed:
                raise TaskCancelled("the topic has been deleted") from error
            raise
        finally:
            task.by_owner(lambda: self._end_swap(log))
        if old is not None:
            # It can be cleaned, whatever was wrong when it could not.
            self.uncleanable.pop(log, None)
            self._count(cleaned)
        return cleaned

    def _begin_swap(self, request: SwapRequest) -> tuple[Log, CleanableRange | None]:
        log = self._manager.log(request.topic, request.partition)
        if log.cleaning:
            return log, None
        log.cleaning = True
        return log, self.plan(log, self._manager.clock_ms())

    def _end_swap(self, log: Log) -> None:
        log.cleaning = False

    def _with(
        self, log: Log, task: Task, work: Callable[[Log, CleanableRange, Task, int], Cleaned]
    ) -> Cleaned | None:
        plan = task.by_owner(lambda: self._begin(log))
        if plan is None:
            return None
        try:
            return work(log, plan, task, self._manager.clock_ms())
        finally:
            task.by_owner(lambda: self._end(log))

    def _begin(self, log: Log) -> CleanableRange | None:
        if log.cleaning:
            # Others' round is being put in; one of our own there is only one of at a time.
            return None
        plan = self.plan(log, self._manager.clock_ms())
        if plan.first_uncleanable_offset <= log.segments[0].base_offset or log.closed:
            return None
        if not log.config.may_be_cleaned:
            # It was when this was asked for.
            return None
        log.cleaning = True
        self.cleaning = log
        return plan

    def _end(self, log: Log) -> None:
        log.cleaning = False
        self.cleaning = None

    def _clean(self, log: Log, plan: CleanableRange, task: Task, now_ms: int) -> Cleaned:
        offset_map = self._offset_map(plan)
        try:
            self._write_down(log, plan.first_dirty_offset, task)
            cleaned = cleaner.clean(log, plan, task, now_ms=now_ms, offset_map=offset_map)
            self._checkpoint(log, cleaned.end_offset, task)
        except TaskCancelled:
            raise
        except (StorageError, OSError) as error:
            if log.closed:
                raise TaskCancelled("the topic has been deleted") from error
            self.uncleanable[log] = str(error)
            raise
        self.counters.map_fill = cleaned.map_keys / max(offset_map.usable, 1)
        self._count(cleaned)
        return cleaned

    def _count(self, cleaned: Cleaned) -> None:
        """By the worker, of which there is one."""
        counters = self.counters
        counters.bytes_read += cleaned.bytes_before
        counters.bytes_written += cleaned.bytes_after
        counters.records_read += cleaned.records_read
        counters.records_kept += cleaned.records_kept
        counters.elapsed_ms += cleaned.elapsed_ms
        counters.rounds += 1

    def _preview(self, log: Log, plan: CleanableRange, task: Task, now_ms: int) -> Cleaned:
        return cleaner.preview(log, plan, task, now_ms=now_ms, offset_map=self._offset_map(plan))

    def _offset_map(self, plan: CleanableRange) -> OffsetMap:
        """An empty map of log.cleaner.dedupe.buffer.size, or of what this round can need."""
        broker = self._manager.settings.broker
        return OffsetMap(
            broker.log_cleaner_dedupe_buffer_size,
            broker.log_cleaner_io_buffer_load_factor,
            most=max(plan.first_uncleanable_offset - plan.first_dirty_offset, 1),
        )

    def _write_down(self, log: Log, first_dirty_offset: int, task: Task) -> None:
        """From now on the log may have holes, as a start has to know that finds any.

        Below the recovery point only: what is found to be missing behind that was lost.
        """
        log.flush(task.by_owner)
        known = self.first_dirty(log)
        self._checkpoint(log, first_dirty_offset if known is None else known, task)

    def _checkpoint(self, log: Log, offset: int, task: Task) -> None:
        """A log is clean up to ``offset``; durable (``updateCheckpoints``)."""

        def start() -> Callable[[], None]:
            if not log.closed:
                self._manager.cleaner_offsets[log.topic, log.partition] = offset
            return self._manager.start_checkpoint(snapshots=False)

        task.by_owner(start)()
