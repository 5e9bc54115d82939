"""The flush of a log, and the part of it that is on the disk.

A flush has three steps, so that its fsyncs can run in a thread that may wait: the log thread starts
it, any thread runs it, the log thread finishes it. A slow disk then delays neither readers nor
appends to other logs.

Plans of one log run one at a time. Linux reports a failed write once per open file: while one
plan's thread is about to note the failure, the fsync of another would succeed and prove nothing.

Invariant: the recovery point moves only over records that every fsync has confirmed
(`UnifiedLog.flush`).

Not here: when to flush (`manager.due_flushes`), the repair after a failed fsync (`rescue`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence

from storage import paths
from storage.errors import CorruptRecord
from storage.log.epochs import LeaderEpochs
from storage.log.snapshots import ProducerSnapshots
from storage.log.state import LogState
from storage.segment.segment import NOT_SYNCED, Segment
from storage.task import OnLogThread, directly


class Durability:
    """The part of a log that is on the disk, and whether its files can be trusted.

    `recovery_point`: everything below this offset is on the disk. `recovery_point_is_reliable`:
    whether a checkpoint may have the recovery point. If a checkpoint has it, the next start treats
    a gap between segments above it as loss. A log that came without such a line, or that is checked
    as a whole, may have gaps that a cleaner left: no checkpoint has its recovery point until this
    process has flushed the log. `unflushed_since_ms`: since when there is something to flush, by
    the monotonic clock, or None.
    """

    def __init__(
        self,
        log: LogState,
        epochs: LeaderEpochs,
        snapshots: ProducerSnapshots,
        recovery_point: int,
        *,
        recovery_point_is_reliable: bool,
    ) -> None:
        self._log = log
        self.epochs = epochs
        self.snapshots = snapshots
        self.recovery_point = recovery_point
        self.recovery_point_is_reliable = (
            recovery_point_is_reliable or recovery_point == log.log_end_offset
        )
        self.unflushed_since_ms: int | None = None
        # The offsets up to which other logs have to be flushed before this one (`require_flushed`).
        self._after: dict[Durability, int] = {}
        # Held by a worker thread while it runs a plan; the log thread never waits for it.
        self.running = threading.Lock()
        # The number of the last plan that started, and of the last one that ran.
        self.plans_started = 0
        self.newest_synced = 0
        # The number of changes of names in the directory, and of those that a flush has synced.
        self.directory_changes = 0
        self._directory_synced = 0

    @property
    def directory_unsynced(self) -> bool:
        """Whether names in the directory have to be synced."""
        return self.directory_changes != self._directory_synced

    @directory_unsynced.setter
    def directory_unsynced(self, unsynced: bool) -> None:
        if unsynced:
            self.directory_changes += 1
        else:
            self._directory_synced = self.directory_changes

    @property
    def flush_due(self) -> bool:
        """Whether flush.messages requires a flush now."""
        log = self._log
        return log.log_end_offset - self.recovery_point >= log.config.flush_messages

    def is_due(self, now_ms: int) -> bool:
        """Return whether flush.ms requires a flush now (monotonic clock), or an fsync has
        failed.
        """
        since_ms = self.unflushed_since_ms
        return since_ms is not None and (
            self._log.flush_error is not None or now_ms - since_ms >= self._log.config.flush_ms
        )

    def mark_unflushed(self) -> None:
        """Let the next flush write, even if nothing was appended."""
        if self.unflushed_since_ms is None and not self._log.closed:
            self.unflushed_since_ms = self._log.group.monotonic_ms()
            self._log.group.unflushed.add(self._log)

    # -- flushing ------------------------------------------------------------------------------

    def start_flush(self) -> FlushPlan:
        """Plan the flush of everything appended so far. The caller must `finish` it."""
        log = self._log
        log.check_writable()
        since = self._since_flush
        if since[-1] is log.active:
            log.active.open_to_sync()
        return FlushPlan(log, self, since, self._start_before())

    def require_flushed(self, other: Durability, offset: int) -> None:
        """Require other records to be flushed first, because records here refer to them."""
        self._after[other] = max(self._after.get(other, 0), offset)

    def _start_before(self) -> list[FlushPlan]:
        """Plan the flushes of the logs that have to be flushed before this one."""
        self._after = {
            each: offset for each, offset in self._after.items() if each.must_flush(offset)
        }
        plans: list[FlushPlan] = []
        try:
            for each in self._after:
                plans.append(each.start_flush())
        except BaseException:
            for plan in plans:
                plan.finish()
            raise
        return plans

    def flush_before(self, on_log_thread: OnLogThread = directly) -> None:
        """Flush the logs that have to be flushed before this one. Runs on a worker thread."""
        for each, offset in list(self._after.items()):
            if each.must_flush(offset):
                each.flush(on_log_thread)

    def must_flush(self, offset: int) -> bool:
        """Return whether records below `offset` still have to be flushed."""
        return not self._log.closed and self.recovery_point < min(offset, self._log.log_end_offset)

    @property
    def _since_flush(self) -> list[Segment]:
        log = self._log
        return [
            segment
            # Also the segment that ends there: it may have been sealed since.
            for segment in log.segments_from(max(self.recovery_point - 1, 0))
            if segment.next_offset >= self.recovery_point or segment is log.active
        ]

    def sync_at_once(self) -> None:
        """Sync all appended records on the log thread, which waits for it. The recovery point
        stays. Errors: OSError, CorruptRecord as in `FlushPlan.run`.
        """
        self._log.active.open_to_sync()
        with self.fsyncs():
            for segment in self._since_flush:
                segment.sync()
        self._log.files.sync_directory(self._log.directory)

    @contextlib.contextmanager
    def fsyncs(self) -> Iterator[None]:
        """Note the error of an fsync in this block that fails."""
        try:
            yield
        except OSError as error:
            if error.errno not in NOT_SYNCED:
                self.note_flush_error(error)
            raise

    def flush(self, on_log_thread: OnLogThread = directly) -> None:
        """Sync the log from the recovery point on, and move the recovery point; in a worker with
        `on_log_thread`.
        """
        plan = on_log_thread(self.start_flush)
        try:
            plan.run()
        finally:
            on_log_thread(plan.finish)

    def move_recovery_point(self, offset: int) -> None:
        """Move the recovery point: everything below `offset` is durable.

        Does nothing after a failed fsync: `rescue` begins at the recovery point.
        """
        assert offset <= self._log.log_end_offset
        if self._log.flush_error is not None:
            return
        self.recovery_point = max(self.recovery_point, offset)
        self.recovery_point_is_reliable = True
        if self.recovery_point == self._log.log_end_offset:
            self.unflushed_since_ms = None
            self._log.group.unflushed.discard(self._log)

    def lower_recovery_point(self, offset: int) -> None:
        """Move the recovery point down: records from `offset` on are about to be removed."""
        self.recovery_point = min(self.recovery_point, offset)

    # -- flush errors --------------------------------------------------------------------------

    def note_flush_error(self, error: OSError) -> None:
        """Record, also in a file for the next start, that the files may lack written bytes.

        Thread-safe; then call `mark_unflushed` on the log thread.
        """
        self._log.flush_error = error
        path = os.path.join(self._log.directory, paths.UNSYNCED)
        files = self._log.files
        with contextlib.suppress(OSError):
            files.close(files.open(path, os.O_WRONLY | os.O_CREAT))

    def refuse_appends(self, error: OSError) -> None:
        """Refuse appends until `rescue` has rewritten the files."""
        self.note_flush_error(error)
        self.mark_unflushed()

    def restore_flush_error(self) -> None:
        """Refuse appends: an fsync had failed before the last start, and no rescue was finished."""
        log = self._log
        reason = "an fsync failed before the last start"
        log.flush_error = OSError(errno.EIO, reason, log.directory)
        self.recovery_point = min(self.recovery_point, log.log_end_offset)
        self.mark_unflushed()


def run_all(plans: Sequence[FlushPlan]) -> None:
    """Run plans, also after one has failed; then raise the first error."""
    failed: Exception | None = None
    for plan in plans:
        try:
            plan.run()
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed


class FlushPlan:
    """One flush. `finish` must follow `run`, also after an error."""

    def __init__(
        self,
        log: LogState,
        durability: Durability,
        segments: list[Segment],
        before: Sequence[FlushPlan],
    ) -> None:
        """`before`: the flushes that come first."""
        self._log = log
        self._before = before
        self._durability = durability
        durability.plans_started += 1
        self._number = durability.plans_started
        self._segments = segments
        self._target = log.log_end_offset
        self._directory = log.directory if durability.directory_unsynced else None
        self._directory_changes = durability.directory_changes
        self._epochs = durability.epochs.entries if durability.epochs.is_unflushed else None
        self._snapshots = list(durability.snapshots.unsynced)
        self.done = False
        self._ns = 0
        for segment in segments:
            segment.lease()

    def run(self) -> None:
        """Sync every segment from the recovery point on, snapshots, epochs, the directory.

        Waits while another plan of the log runs. If one that started later has succeeded, it has
        synced all bytes of this one, and newer epochs.

        After a failed fsync the log takes no appends until `rescue` is done: the kernel has dropped
        the bytes that it could not write, so that a later fsync which succeeds would prove nothing.
        A checkpoint that could not be replaced is written again, and the fsync of a directory
        repeated: its names are in the file system's journal, which ends at such an error. Errors:
        OSError, also if the fsync of another plan has failed. CorruptRecord if the file of a sealed
        segment was deleted: all else is flushed, and the next flush continues without it. If a
        flush that comes first raises, this one has not begun.
        """
        for plan in self._before:
            plan.run()
        durability = self._durability
        with durability.running:
            self._log.check_no_flush_error()
            if self._number < durability.newest_synced:
                self.done = True
                return
            started = time.perf_counter_ns()
            try:
                self._sync_all()
            finally:
                self._ns = time.perf_counter_ns() - started

    def _sync_all(self) -> None:
        gone: CorruptRecord | None = None
        with self._durability.fsyncs():
            for segment in self._segments:
                try:
                    segment.sync()
                except CorruptRecord as error:
                    if not segment.is_lost:
                        raise
                    gone = error
        for offset in self._snapshots:
            self._sync_snapshot(offset)
        files = self._log.files
        if self._epochs is not None:
            self._durability.epochs.write(files, self._log.directory, self._epochs)
        if self._directory is not None:
            files.sync_directory(self._directory)
        self.done = True
        self._durability.newest_synced = self._number
        if gone is not None:
            raise gone

    def _sync_snapshot(self, offset: int) -> None:
        """Sync a snapshot, which may be the only record of some producers."""
        files, path = self._log.files, self._durability.snapshots.path(offset)
        # It is missing if its segment has been deleted meanwhile.
        with (
            contextlib.suppress(FileNotFoundError),
            files.held_open(path) as fd,
            self._durability.fsyncs(),
        ):
            files.fdatasync(fd)

    def finish(self) -> None:
        """Move the recovery point if everything was written, and release the segments."""
        for plan in self._before:
            plan.finish()
        for segment in self._segments:
            segment.release()
        self._segments = []
        log, durability = self._log, self._durability
        if not self.done:
            log.group.counters.flush_failures += 1
            durability.mark_unflushed()
            return
        log.group.counters.flushes.add(self._ns)
        if self._directory is not None and self._directory_changes == durability.directory_changes:
            durability.directory_unsynced = False
        if self._epochs is not None:
            durability.epochs.written(self._epochs)
        durability.move_recovery_point(self._target)
        durability.snapshots.unsynced.difference_update(self._snapshots)
