"""The cleaner of a data directory: chooses the next log, and records how far each was cleaned.

`cleaner-offset-checkpoint` in the data directory has the first dirty offset of each cleaned log
(`Checkpoints.cleaned`). A round writes it before it changes the log, with the still valid offset,
and after it, with the new one. So it is never too high.

Invariant: a cleaner cleans one log at a time, in its caller's worker thread (`clean_all`,
`preview`); any worker thread may swap in segments that other processes have cleaned. The choice of
the next log (`plan`, `filthiest`, `first_dirty`) runs on the log thread. The caller decides when to
retry a log that could not be cleaned; Kafka's cleaner waits for a restart
(`LogCleanerManager.markPartitionUncleanable`).

Damage ends the part of a log that can be cleaned. If a round meets damage, it starts again without
that segment and all following ones, and logs one line. The log is due again only if there is
something to clean before the damage.

Not here: the cleaning itself (`cleaner`), threads and schedules.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator

from storage.compaction import cleaner, swap_in
from storage.compaction._offset_map import OffsetMap
from storage.compaction.cleanable import CleanableRange, cleanable, first_damaged
from storage.compaction.cleaner import Cleaned
from storage.compaction.replacing import finish_last, prepare, publish
from storage.compaction.swap_request import SwapRequest
from storage.errors import CorruptRecord, StorageError, SwapRefused, TaskCancelled
from storage.log.log import Log
from storage.manager import LogManager
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.task import Task

_log = logging.getLogger(__name__)


class LogCleaner:
    """Cleans the logs of one directory. `uncleanable`: why the last cleaning of each of these logs
    failed; it belongs to the manager, as there may be several cleaners, one for each swap.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.uncleanable = manager.uncleanable
        self.counters = manager.cleaner_counters
        # The damaged segment of each log before which cleaning ends, as it was last reported.
        self._left_out: dict[Log, Segment] = {}

    # -- planning ------------------------------------------------------------------------------

    def first_dirty(self, log: Log) -> int | None:
        """Return the first dirty offset of a log; None: it was never cleaned."""
        return self._manager.checkpoints.cleaned.get((log.topic, log.partition))

    def plan(self, log: Log, now_ms: int) -> CleanableRange:
        """Return the range of a log that can be cleaned now."""
        return cleanable(
            log.segments,
            log.config,
            self.first_dirty(log),
            log_start=log.log_start_offset,
            decided_end=log.decided_end,
            log_end=log.log_end_offset,
            now_ms=now_ms,
        )

    def filthiest(self, now_ms: int, waiting: Collection[Log] = ()) -> Log | None:
        """Return the next log to clean: of the due logs except `waiting`, the one with the largest
        share of dirty bytes (`grabFilthiestCompactedLog`). Forget why a log that is not due could
        not be cleaned.
        """
        due = []
        for log in self._manager.topics.compacted:
            if log.closed or log.cleaning:
                continue
            self._note_left_out(log)
            plan = self.plan(log, now_ms)
            is_due = plan.is_due(log.config) or log.replacement is not None
            if not (is_due and log.may_be_cleaned):
                if log not in self._left_out:
                    self.uncleanable.pop(log, None)
            elif log not in waiting:
                due.append((plan.ratio, log))
        return max(due, key=lambda item: item[0])[1] if due else None

    # -- cleaning ------------------------------------------------------------------------------

    def clean(self, log: Log, task: Task) -> Cleaned | None:
        """Clean one log as far as one map reaches, due or not. Runs on a worker thread.

        Return None if nothing can be done: there is no sealed segment that may be cleaned,
        cleanup.policy is without compact, settings are not known, or a swap of segments from
        another process is running. The clean part also loses tombstones and markers whose horizon
        has passed. Errors: TaskCancelled, also if compact was removed from the policy meanwhile;
        StorageError, OSError: the log is `uncleanable` until a cleaning succeeds. Nothing has
        changed.
        """
        while True:
            with self._held(log, task) as plan:
                cleaned = None if plan is None else self._clean(log, plan, task)
            task.on_log_thread(lambda: self._note_left_out(log))
            if plan is None or cleaned is not None:
                return cleaned

    def clean_all(self, log: Log, task: Task) -> list[Cleaned]:
        """Clean one log to its end: if the map was full, `clean` again."""
        rounds: list[Cleaned] = []
        while (cleaned := self.clean(log, task)) is not None:
            rounds.append(cleaned)
            if not cleaned.map_full:
                break
        return rounds

    def preview(self, log: Log, task: Task) -> Cleaned | None:
        """Return the result of `clean` now; change nothing. Errors: those of `clean`."""
        with self._held(log, task) as plan:
            if plan is None:
                return None
            now_ms, offset_map = self._manager.clock_ms(), self._offset_map(plan)
            with cleaner.leased(log, plan, task) as sources:
                return cleaner.run(sources, plan, task, now_ms, offset_map)

    def swap_in(self, request: SwapRequest, task: Task) -> Cleaned:
        """Swap in segments that another process has cleaned. Runs on a worker thread, at any time.

        Errors: SwapRefused, UnknownTopicOrPartition, StorageError, OSError; nothing has changed,
        and the request's files are deleted. TaskCancelled: the same, but the files may still exist.
        """
        log = task.on_log_thread(lambda: self._manager.log(request.topic, request.partition))
        log.check_not_read_only()
        with self._held(log, task, for_swap=True) as plan:
            if plan is None:
                swap_in.discard(log, request)
                # The running cleaner replaces segments that the author of the request has read.
                raise SwapRefused(
                    f"{log.topic}-{log.partition} is being compacted: compact it again later"
                )
            try:
                finish_last(log, task)
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
        if old is not None:
            # Since it was cleaned, the earlier error does not count.
            self.uncleanable.pop(log, None)
            self._count(cleaned)
        return cleaned

    @contextlib.contextmanager
    def _held(
        self, log: Log, task: Task, *, for_swap: bool = False
    ) -> Iterator[CleanableRange | None]:
        """Exclude other cleaners and retention from a log; yield the range that can be cleaned.

        Yields None if another cleaner is cleaning the log; also, unless `for_swap`, if nothing in
        the log can be cleaned now.
        """

        def begin() -> CleanableRange | None:
            plan = self.plan(log, self._manager.clock_ms())
            if log.cleaning:
                return None
            has_work = plan.first_uncleanable_offset > log.segments[0].base_offset
            has_work |= log.replacement is not None
            if not for_swap and (log.closed or not has_work or not log.may_be_cleaned):
                return None
            log.cleaning = True
            return plan

        def end() -> None:
            log.cleaning = False

        plan = task.on_log_thread(begin)
        try:
            yield plan
        finally:
            if plan is not None:
                task.on_log_thread(end)

    def note_cleaned(self, log: Log) -> None:
        """Forget why a log could not be cleaned, unless damage still excludes a part of it."""
        self.uncleanable.pop(log, None)
        self._note_left_out(log)

    def damage_of(self, log: Log) -> CorruptRecord | None:
        """Return the damage before which the cleaning of a log ends, or None."""
        damaged = first_damaged(log.segments)
        return None if damaged is None else damaged.damages[0].error(damaged.log_path)

    def _note_left_out(self, log: Log) -> None:
        """Log one line if damage excludes a part of a log from cleaning."""
        damaged = first_damaged(log.segments)
        known = self._left_out.pop(log, None)
        if damaged is None:
            if known is not None:
                self.uncleanable.pop(log, None)
            return
        self._left_out[log] = damaged
        reason = f"{self.damage_of(log)}; compaction ends before this segment"
        self.uncleanable[log] = reason
        if known is not damaged:
            _log.warning("%s: %s", log.name, reason)

    def _clean(self, log: Log, plan: CleanableRange, task: Task) -> Cleaned | None:
        """Clean a log; return None if the range has to be found again: the round met unknown
        damage, or has finished the last swap only.
        """
        now_ms, offset_map = self._manager.clock_ms(), self._offset_map(plan)
        try:
            is_unfinished = log.replacement is not None
            finish_last(log, task)
            if is_unfinished:
                return None
            with cleaner.leased(log, plan, task) as sources:
                cleaned, new = cleaner.write(
                    *(log.files, log.directory, sources, plan, task),
                    now_ms=now_ms,
                    offset_map=offset_map,
                )
                old = sources.segments[: cleaned.segments_before]
                try:
                    self._write_down(log, plan.first_dirty_offset, task)
                    if new:
                        prepare(log, old, new, task)
                except BaseException:
                    cleaner.discard(new)
                    raise
                if new:
                    publish(log, old, new, task)
            self._checkpoint(log, cleaned.end_offset, task)
        except TaskCancelled:
            raise
        except (StorageError, OSError) as error:
            if log.closed:
                raise TaskCancelled("the topic has been deleted") from error
            if isinstance(error, CorruptRecord) and self._finds_damage(log, error):
                return None
            self.uncleanable[log] = str(error)
            raise
        self.counters.map_fill = cleaned.map_keys / max(offset_map.usable, 1)
        self._count(cleaned)
        return cleaned

    def _finds_damage(self, log: Log, error: CorruptRecord) -> bool:
        """Return whether the segment of an error has damage that was not known."""
        known = first_damaged(log.segments)
        for segment in log.segments[:-1]:
            if segment.log_path == error.path:
                SegmentReader(segment).check_again(0, segment.size)
        return first_damaged(log.segments) is not known

    def _count(self, cleaned: Cleaned) -> None:
        """Count a round; only one worker thread at a time."""
        counters = self.counters
        counters.bytes_read += cleaned.bytes_before
        counters.bytes_written += cleaned.bytes_after
        counters.records_read += cleaned.records_read
        counters.records_kept += cleaned.records_kept
        counters.elapsed_ms += cleaned.elapsed_ms
        counters.rounds += 1

    def _offset_map(self, plan: CleanableRange) -> OffsetMap:
        """Return an empty map of log.cleaner.dedupe.buffer.size, or smaller if that suffices."""
        broker = self._manager.settings.broker
        return OffsetMap(
            broker.log_cleaner_dedupe_buffer_size,
            broker.log_cleaner_io_buffer_load_factor,
            most=plan.most_keys,
        )

    def _write_down(self, log: Log, first_dirty_offset: int, task: Task) -> None:
        """Record that a cleaner may leave gaps in the log from now on.

        A start accepts gaps as a cleaner's only below the recovery point; gaps above it count as
        lost records. Also, a dropped record may have its later one above the recovery point. So the
        log is flushed first.
        """
        log.flush(task.on_log_thread)
        known = self.first_dirty(log)
        self._checkpoint(log, first_dirty_offset if known is None else known, task)

    def _checkpoint(self, log: Log, offset: int, task: Task) -> None:
        """Record durably that a log is clean up to `offset` (`updateCheckpoints`)."""

        def note() -> None:
            if not log.closed:
                self._manager.checkpoints.cleaned[log.topic, log.partition] = offset
            self._manager.note([log])

        task.on_log_thread(note)
        self._manager.write_checkpoints()
