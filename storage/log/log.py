"""One partition's log: its segments, its offsets, and the deletion and replacement of segments.

The segments are a tuple in order of base offset; the last one is active. The tuple is replaced as a
whole (copy-on-write), so that another thread reads a consistent one.

Invariants: log start ≤ last stable ≤ high watermark ≤ log end; recovery point ≤ log end; an append
is in the file before a listener is called.

One thread owns a log: only it appends and changes the list of segments. Thread-safe are
`FlushPlan.run`, reads that hold a segment's lease, and methods whose docstrings say so.

A log has parts, each in a module: `reader` (`read`), `transactions`, `snapshots` of its producers,
`epochs`, `durability` (`flush`), `manifest`, `append_queue`.

Not here: appends of producers (`append`), which segments are deleted (`retention`,
`compaction`), the state after a crash (`recovery`), other partitions (`manager`).
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar, TypeVarTuple

from storage import paths
from storage.errors import CorruptCheckpoint, CorruptRecord, CutShort, LogClosed, StorageError
from storage.log.assign import Assigned, with_checked_offsets
from storage.log.epochs import LeaderEpochs
from storage.log.flush import Durability
from storage.log.group import LogGroup
from storage.log.manifest import SegmentManifest
from storage.log.read import Isolation, Reader
from storage.log.snapshots import ProducerSnapshots
from storage.log.state import LogState
from storage.log.transactions import Transactions
from storage.log.validator import check_keys, converted, converts
from storage.record.batch import Record
from storage.record.header import Buffer, parse_header
from storage.recovery.partition import Recovered
from storage.recovery.promises import PartitionFiles
from storage.segment.damage import Damage
from storage.segment.reader import SegmentReader
from storage.segment.segment import MAX_OFFSET_SPAN, MAX_SEGMENT_BYTES, Segment
from storage.segment.writer import BatchEntry, SegmentWriter
from storage.settings.config import LogConfig
from storage.state import gaps_file
from storage.state.gaps_file import Gap
from storage.state.history import FILE_NAME as HISTORY_FILE
from storage.state.history import History
from storage.state.history_file import Sizes
from storage.state.producer_state import ProducerState
from storage.state.tiered import first_offset
from storage.task import OnLogThread, directly

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Replacement(NamedTuple):
    """A swap of segments whose files may not have their final names. `is_done`: the log has `new`;
    else it has `old`, and a restart may carry the swap out.
    """

    old: Sequence[Segment]
    new: Sequence[Segment]
    is_done: bool


class Log(LogState):
    """One partition's log."""

    def __init__(
        self,
        opened: PartitionFiles,
        topic: str,
        partition: int,
        topic_id: str,
        recovered: Recovered,
        group: LogGroup[Log],
        *,
        created_ns: int,
        epochs: list[tuple[int, int]],
        was_closed: bool,
        tiered: str | None = None,
        checkpointed_start: int | None = None,
    ) -> None:
        config, promises = opened.config, opened.promises
        super().__init__(
            *(opened.files, opened.directory, topic, partition, config),
            *(recovered.segments, recovered.producers, group),
            log_start=promises.log_start,
            read_only=not opened.writable,
            tiered=tiered,
        )
        self.monotonic_ms = group.monotonic_ms
        self.counters = group.counters
        self.listeners = group.listeners
        self.topic_id = topic_id
        # When the partition was made, in ns since 1970.
        self.created_ns = created_ns
        self.may_have_gaps = promises.may_have_gaps or config.is_compacted
        # Whether a deletion is renaming the directory: other threads may find no files there.
        self.deleting = False
        # By appends, since the log was opened.
        self.bytes_appended = 0
        # Whether a cleaner is running: the segments that it may replace stay until it is done.
        self.cleaning = False
        # The last swap, until its files have their final names: no other one may begin.
        self.replacement: Replacement | None = None
        # A broker's topic: the log's line in the checkpoint of log starts; None: it has none.
        self.checkpointed_start = checkpointed_start
        # Offsets to which the log start is about to move.
        self.pending_log_starts: list[int] = []
        self._active_since_ms = self.monotonic_ms()
        self._roll_after_ms = self._draw_roll_time()
        # Whether the settings ask for more than the common checks of an append.
        self._converts = config.is_compacted or converts(config)
        self.epochs = LeaderEpochs(epochs)
        self.snapshots = ProducerSnapshots(
            self, recovered.snapshot_offset, recovered.unsynced_snapshots
        )
        is_whole = promises.clean and not recovered.damaged
        point = self.log_end_offset if is_whole else promises.flushed_to
        point = min(max(point, self.log_start_offset), self.log_end_offset)
        self.durability = Durability(
            self,
            self.epochs,
            self.snapshots,
            point,
            recovery_point_is_reliable=promises.recovery_point_is_reliable,
        )
        # After a crash, a power cut may restore names that recovery has removed, and take new ones.
        self.durability.directory_unsynced = opened.writable and (
            not promises.clean or bool(recovered.unsynced_snapshots)
        )
        self.transactions = Transactions(self)
        self.reader = Reader(self, self.transactions)
        # Whether the last writer closed the directory cleanly.
        self._was_closed = was_closed
        # Whether the log ends before its files do. The incomplete last write of a killed writer
        # does not count: it was never shown.
        self._was_cut = recovered.damaged and not recovered.torn
        # Whether recovery has found that flushed records are missing at the end. Unlike `lost_end`,
        # it stays after the loss is accepted.
        self._has_lost_end = False
        self.has_manifest = recovered.manifest is not None
        self.manifest = SegmentManifest(self, recovered.manifest)
        self._history: History | None = None
        # The directory of a read-only log's history.
        self.history_directory: str | None = None
        if self.producers.first_undecided_offset is not None:
            self.transactions.stabilize()
        if point < self.log_end_offset and not self.read_only:
            self.durability.mark_unflushed()

    # -- facts ---------------------------------------------------------------------------------

    @property
    def remote_log_start(self) -> int | None:
        """The first remote offset of a tiered topic's log, if it is below the first local
        segment.
        """
        if self.tiered is None:
            return None
        start = first_offset(self.checkpointed_start, self.epochs.entries)
        return None if start is None or start >= self.segments[0].base_offset else start

    @property
    def may_be_cleaned(self) -> bool:
        """Whether a cleaner may rewrite the log; False for a tiered topic."""
        return self.tiered is None and self.config.may_be_cleaned

    @property
    def may_be_repacked(self) -> bool:
        """Whether the batches of sealed segments may be joined; False for a tiered topic."""
        return self.tiered is None and self.config.may_be_repacked

    @property
    def has_words(self) -> bool:
        """Whether sealed segments get a `.words` file; False for a tiered topic."""
        return self.tiered is None and self.config.has_words

    @property
    def history(self) -> History:
        """The partition's history, read at its first use by one thread at a time."""
        return self._history or self.load_history()

    def load_history(self) -> History:
        """Read the history, unless that was done; write a writable one, too. Errors: OSError."""
        if self._history is None:
            self._history = History.load(
                self.files,
                self.directory,
                self.segments,
                writable=not self.read_only,
                clean=self._was_closed,
                cut=self._was_cut,
                lost_end=self._has_lost_end,
                log_start=self.log_start_offset,
                aside=self.history_directory,
                flushed_end=lambda: self.durability.recovery_point,
                stable_end=lambda: self.last_stable_offset,
            )
        return self._history

    # -- the gaps of a mirror ------------------------------------------------------------------

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps that a mirror has found, also another process, in that order. Thread-safe.

        Errors: OSError.
        """
        try:
            return gaps_file.read(self.files, self.directory)
        except CorruptCheckpoint:
            return (Gap(gaps_file.UNREADABLE, -1, -1, -1),)

    def note_gaps(self, *gaps: Gap) -> list[Gap]:
        """Add gaps, durably, except those of a kind and offsets that are there; return the new
        ones.

        Errors: those of `check_writable`, OSError.
        """
        self.check_writable()
        return gaps_file.add(self.files, self.directory, gaps)

    # -- appending ----------------------------------------------------------------------------

    def append(self, batches: bytearray, *, now_ns: int, defer_flush: bool = False) -> int:
        """Append batches that this process made, with new offsets; return the first offset.

        `batches`: uncompressed v2 batches without producers, back to back. Base offsets and leader
        epoch are written into them in place, or into a copy if the topic is compacted or its
        settings convert batches. `now_ns`: wall time in ns. `defer_flush`: the caller checks
        `flush_due` itself. Errors: those of `Log.assign`, and OSError from the disk; nothing is
        appended. Those of `flush` if a flush was due: the batches are appended.
        """
        first = self.append_assigned(self.assign(batches, now_ns=now_ns), now_ns)
        if not defer_flush and self.durability.flush_due:
            self.flush()
        return first

    def assign(self, batches: bytearray, *, now_ns: int) -> Assigned:
        """Check batches for `append`, and assign the offsets that follow the log end.

        The offsets are valid until the next append. So the batches of several logs can be checked
        before any is written. Errors: RecordTooLarge over max.message.bytes, InvalidTimestamp,
        InvalidRecord for a record without a key in a compacted topic; those of `check_writable`;
        OSError on a full disk.
        """
        self.check_writable()
        self.files.check_room()
        config, now_ms = self.config, now_ns // 1_000_000
        if self._converts:
            if config.is_compacted:
                check_keys(batches, 0, len(batches))
            batches = converted(batches, config, now_ms)
        first = self.log_end_offset
        return with_checked_offsets(batches, config, first, self.epochs.latest, now_ms)

    def append_assigned(self, assigned: Assigned, now_ns: int) -> int:
        """Write batches whose offsets begin at or above the log end; return the first offset.

        The caller calls `check_writable` before, and checks `flush_due` after. Errors: OSError from
        the disk, CorruptRecord as in `Transactions.append`, LogClosed if the topic was deleted
        meanwhile. Then no batch is written, but the log may have rolled.
        """
        batches, entries, first, update = assigned
        last_offset = entries[-1][2]
        clock_ns = self.group.append_clock_ns
        started_ns = 0 if clock_ns is None else clock_ns()
        active = self.segments[-1]
        # An empty segment, too: batches that keep their offsets may lie too far above its base.
        is_far = last_offset - active.base_offset > MAX_OFFSET_SPAN
        rolls = is_far or (active.size and self._should_roll(active, batches, entries))
        if rolls or not active.size:
            active = self._prepare_segment(first, last_offset, now_ns, rolls=bool(rolls))
        undecided = self.producers.first_undecided_offset
        try:
            if update is not None:
                position = self.transactions.append(active, batches, entries, now_ns, update)
            elif self.append_queue.in_use:
                append = self.writer.append
                position = self.off_log_thread(active, append, batches, entries, now_ns)
            else:
                position = self.writer.append(batches, entries, now_ns)
        except CutShort as error:
            self.durability.refuse_appends(error)
            raise
        finally:
            if clock_ns is not None:
                self.append_queue.note_duration(clock_ns() - started_ns)
        # No transaction was open before, and none is now: all bytes are stable.
        if undecided is None and (update is None or self.producers.first_undecided_offset is None):
            active.stable_size = active.size
        self.log_end_offset = last_offset + 1
        counters = self.counters
        counters.records_appended += last_offset + 1 - first
        counters.batches_appended += len(entries)
        counters.bytes_appended += len(batches)
        self.bytes_appended += len(batches)
        if not self.epochs.entries:
            self.epochs.assign([parse_header(batches)])
        if self.durability.unflushed_since_ms is None:
            self.durability.mark_unflushed()
        stabilized = False
        if update is not None:
            if update.aborted and len(update.aborted) == len(active.aborted):
                # The append has created the file of the transaction index.
                self.durability.directory_unsynced = True
            stabilized = self.transactions.update_stable_sizes(undecided, first)
        for listener in self.listeners:
            listener.appended(self, active, position, batches)
        if stabilized:
            for listener in self.listeners:
                listener.stabilized(self)
        return first

    # -- flushing, reading ---------------------------------------------------------------------

    def flush(self, on_log_thread: OnLogThread = directly) -> None:
        """Sync the log from the recovery point on, and move the recovery point; see
        `Durability.flush`.
        """
        self.durability.flush(on_log_thread)

    def read(
        self, offset: int, max_bytes: int, *, isolation: Isolation = "read_committed"
    ) -> bytes:
        """Return the log's bytes from the batch of `offset` on; see `Reader.read`."""
        return self.reader.read(offset, max_bytes, isolation=isolation)

    def records(
        self, offset: int | None = None, isolation: Isolation = "read_committed"
    ) -> Iterator[Record]:
        """Yield the records from `offset` on; see `Reader.records`."""
        return self.reader.records(offset, isolation)

    # -- checks --------------------------------------------------------------------------------

    def check_active(self) -> None:
        """Check the active segment's file. Errors: CutShort if it was truncated; OSError."""
        try:
            self.active.check_whole()
        except CutShort as error:
            self.durability.refuse_appends(error)
            raise

    # -- rolling -------------------------------------------------------------------------------

    def _prepare_segment(
        self, first: int, last_offset: int, now_ns: int, *, rolls: bool
    ) -> Segment:
        """Prepare the active segment for its first batches, `first` to `last_offset`; return it.

        `rolls`: begin a new segment. If that cannot begin at the log end, it begins at `first`, and
        the log end moves there, even if the append then fails. Errors: LogClosed, CorruptRecord,
        OSError (CutShort).
        """
        if rolls:
            self.check_active()
        if last_offset - self.durability.recovery_point > MAX_OFFSET_SPAN:
            # Recovery sees no loss in a gap of offsets that no segment can span (`recovery`):
            # nothing before it may be lost once this batch is there. That takes two billion
            # unflushed offsets, so this may wait.
            self.off_log_thread(self.active, self.durability.sync_at_once)
        if rolls:
            # No gap between two segments, if the new one can span it.
            too_far = last_offset - self.log_end_offset > MAX_OFFSET_SPAN
            base = first if too_far else self.log_end_offset
            self._roll(base, now_ns // 1_000_000)
        return self.active

    def _draw_roll_time(self) -> int:
        """Return the active segment's largest age, in ms; the jitter is drawn once per segment."""
        config = self.config
        limit = config.segment_ms
        if config.is_compacted:
            limit = min(limit, config.max_compaction_lag_ms)
        bound = min(config.segment_jitter_ms, config.segment_ms)
        return limit - (random.randrange(bound) if bound > 0 else 0)

    def _should_roll(self, active: Segment, batches: Buffer, entries: list[BatchEntry]) -> bool:
        """Return whether an active segment with records must roll (`LogSegment.shouldRoll`)."""
        config = self.config
        size = active.size + len(batches)
        if size > config.segment_bytes or size > MAX_SEGMENT_BYTES:
            return True
        if active.index_full or active.damages:
            return True
        if active.first_timestamp >= 0:
            newest = entries[0][3] if len(entries) == 1 else max(entry[3] for entry in entries)
            waited = newest - active.first_timestamp
        else:
            waited = self.monotonic_ms() - self._active_since_ms
        return waited > self._roll_after_ms

    def has_outgrown(self, now_ms: int) -> bool:
        """Return whether the active segment is larger or older than the settings allow.

        The next append rolls it then. `now_ms`: wall clock.
        """
        active = self.active
        if not active.size:
            return False
        if active.first_timestamp >= 0:
            waited = now_ms - active.first_timestamp
        else:
            waited = self.monotonic_ms() - self._active_since_ms
        return active.size > self.config.segment_bytes or waited > self._roll_after_ms

    def roll(self, now_ms: int) -> bool:
        """Seal the active segment and begin a new one at the log end.

        Return False if the active segment is empty. Errors: OSError from the disk; nothing has
        changed.
        """
        self.check_writable()
        self.check_active()
        return self.roll_unchecked(now_ms)

    def roll_unchecked(self, now_ms: int) -> bool:
        """Roll, even if the log takes no appends or its active segment's file was truncated.
        Errors: MustQueue as in `AppendQueue.check_may_append`, those of `roll`.
        """
        self.append_queue.check_may_append()
        if not self.active.size:
            return False
        self._roll(self.log_end_offset, now_ms)
        return True

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        # In this order: a reader that sees the new segment finds the old one sealed.
        sealed, sealing = self.segments[-1], self.writer
        producers = self.producers.encode()
        self.off_log_thread(sealed, sealing.seal)
        try:
            writer = self.off_log_thread(
                sealed, self._begin_segment, base_offset, producers, now_ms
            )
        except OSError:
            # Removed files of the new one must not return.
            self.durability.directory_unsynced = True
            sealing.unseal()
            raise
        active = writer.segment
        if self.closed:
            # The topic was deleted meanwhile.
            active.close()
            raise LogClosed("this log has been closed", path=self.directory)
        self.segments, self.writer = (*self.segments, active), writer
        # Even if nothing can be written to the new segment.
        self.log_end_offset = base_offset
        self._active_since_ms = self.monotonic_ms()
        replaced = self.snapshots.set_newest(base_offset)
        if replaced is not None:
            with contextlib.suppress(OSError):
                self.files.unlink(replaced)
        self.durability.directory_unsynced = True
        self._roll_after_ms = self._draw_roll_time()
        self.counters.rolls += 1
        self.durability.mark_unflushed()
        for listener in self.listeners:
            listener.rolled(self, sealed, active)
        return active

    def _begin_segment(self, base_offset: int, producers: bytes, now_ms: int) -> SegmentWriter:
        self.snapshots.write(base_offset, producers)
        where = self.files, self.directory, base_offset, self.config
        return SegmentWriter.begin(Segment.create(*where, now_ms=now_ms))

    # -- losses --------------------------------------------------------------------------------

    @property
    def flushed_end(self) -> int | None:
        """The log's recovery point for the checkpoint, also of a lost end; None: it has none."""
        if not self.durability.recovery_point_is_reliable and not self.lost_end:
            return None
        return max(self.durability.recovery_point, self.lost_end)

    def note_lost_end(self, flushed_end: int) -> None:
        """Refuse appends: the log was flushed up to `flushed_end` and ends before it."""
        assert flushed_end > self.log_end_offset
        self.lost_end = flushed_end
        self._has_lost_end = True
        self._was_cut = True

    @property
    def _lost(self) -> list[tuple[Segment, Damage]]:
        """The sealed segments with a missing or truncated file, and their lost ranges."""
        return [(each, each.lost) for each in self.segments[:-1] if each.lost]

    @property
    def losses(self) -> list[str]:
        """A line for each range that was lost, not deleted."""
        lines = [segment.loss for segment, _ in self._lost]
        return [*lines, self.what_is_lost] if self.lost_end else lines

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """First and last offset of each range that was lost, not deleted."""
        ranges = [(lost.first_offset, segment.next_offset - 1) for segment, lost in self._lost]
        return [*ranges, (self.log_end_offset, self.lost_end - 1)] if self.lost_end else ranges

    def accept_loss(self) -> None:
        """Give up the lost ranges: the next append gets the offsets of the lost end; between
        segments and at the head a gap stays, as after compaction.
        """
        self.lost_end = 0
        for segment, _ in self._lost:
            if self.files.exists(segment.log_path):
                SegmentReader(segment).check(0, segment.damages[-1].start)
                segment.accept_size()
        self.segments = tuple(each for each in self.segments if not each.is_lost)
        if self.log_start_offset < self.segments[0].base_offset:
            self._move_log_start(self.segments[0].base_offset)

    # -- deletion and replacement --------------------------------------------------------------

    @property
    def log_start_for_checkpoint(self) -> int | None:
        """The log's entry in the checkpoint of log starts.

        None if the first segment's base offset equals the log start (also the pending one:
        `pending_log_starts`), no segment is retired, and no swap or rename is unfinished: a restart
        then finds the log start without an entry. A log without records has an entry: its first
        batch may begin below the log start. An entry of a broker's topic stays, and changes only
        when the log start moves.
        """
        if self.checkpointed_start is not None:
            return max([self.checkpointed_start, *self.pending_log_starts])
        start = max([self.log_start_offset, *self.pending_log_starts])
        is_renamed = self.replacement is None and not self.durability.directory_unsynced
        certain = is_renamed and not self.retired
        certain = certain and not self.pending_log_starts and self.last_written.size > 0
        return None if start == self.segments[0].base_offset and certain else start or None

    def raise_log_start(self, offset: int) -> None:
        """Delete the records below `offset` (`UnifiedLog.maybeIncrementLogStartOffset`).

        Segments without other records stay until retention removes them. Errors: those of
        `check_writable`; BlockingIOError: prepare it (again) with `prepare_replacement`.
        """
        self.check_writable()
        assert self.log_start_offset < offset <= self.high_watermark
        for listener in self.listeners:
            listener.moving_log_start(self, offset)
        self.begin_at(offset)

    def begin_at(self, offset: int) -> None:
        """Set the log start inside of the first segment: records below it are deleted, or the first
        batch of a new log begins there.
        """
        self._move_log_start(offset)
        self.log_start_moved()

    def log_start_moved(self) -> None:
        """Inform the listeners that the log start lies inside a segment now."""
        for listener in self.listeners:
            listener.log_start_moved(self)

    def _move_log_start(self, offset: int) -> None:
        """Move the log start up to `offset`, and with it the recovery point and the epochs."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            if self.checkpointed_start is not None:
                self.checkpointed_start = offset
        durability = self.durability
        durability.recovery_point = max(durability.recovery_point, self.log_start_offset)
        self.epochs.truncate_from_start(self.log_start_offset)

    def prepare_replacement(
        self, old: Sequence[Segment], new: Sequence[Segment], *, log_start: int = 0
    ) -> Callable[[], None]:
        """Prepare the replacement of `old`, segments from the log's head on, by `new`.

        If `new` is empty, `old` is removed; if both are empty, only the log start moves.
        `log_start`: the log start afterwards, unless it is the first segment's or unchanged. Both
        can be read; the files of `new` may have any names. This runs on the log thread and returns
        a thread-safe function that writes the history of shown text, so that the change itself
        need not wait. If records of an open transaction are deleted, the function only measures
        the text, and the change writes the history. Call it before any rename or checkpoint that a
        restart would act on. If it raises OSError or StorageError, the change must not happen now.
        If a prepared change is given up, call `end_change`. A change without preparation writes the
        history when it is carried out.
        """
        first = (*new, *self.segments[len(old) :])[0].base_offset
        start = max(self.log_start_offset, first, log_start)
        assert start <= self.log_end_offset, "the log start is above the log end"
        writers = [listener.preparing(self, old, new, start) for listener in self.listeners]

        def write_all() -> None:
            for write in writers:
                if write is not None:
                    write()

        return write_all

    def end_change(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """End a prepared change that no restart would carry out. Thread-safe."""
        for listener in self.listeners:
            listener.change_ended(self, old, new)

    def give_up_repack(self) -> None:
        """End a prepared repack, if there is one, that no restart would carry out. Thread-safe."""
        if self._history is not None:
            self._history.end_repack(is_done=False)

    def remove_head(self, count: int, now_ms: int) -> tuple[Segment, ...]:
        """Remove the first `count` segments (never the active one) from the log; return them.

        The log start moves to the next segment. The caller renames their files at once
        (`rename_to_deleted`); `release_retired` releases them file.delete.delay.ms after `now_ms`
        (monotonic).
        """
        self.check_writable()
        assert 0 < count < len(self.segments)
        removed = self.segments[:count]
        for listener in self.listeners:
            listener.removing(self, removed)
        self.manifest.withdraw(removed)
        # In this order another thread finds every aborted transaction at any moment.
        self.release_later(removed, now_ms)
        self.segments = self.segments[count:]
        self.manifest.reinstate(removed)
        self._move_log_start(self.segments[0].base_offset)
        self.counters.retentions += 1
        self.counters.segments_deleted += count
        self.counters.bytes_deleted += sum(segment.size for segment in removed)
        if self.producers.first_undecided_offset is not None:
            self.transactions.stabilize()
        return removed

    def rename_to_deleted(self, segments: Iterable[Segment]) -> None:
        """Rename the existing files of removed segments."""
        self.durability.directory_unsynced = True
        # The next flush makes it durable.
        self.durability.mark_unflushed()
        for segment in segments:
            segment.leave(paths.DELETED)

    def replace(self, old: Sequence[Segment], new: Sequence[Segment], now_ms: int) -> None:
        """Replace `old` by `new`, sealed segments in a row.

        Readers may continue in the old ones until file.delete.delay.ms after `now_ms` (monotonic).
        The caller then renames the old files (`rename_to_deleted`), syncs the directory, and
        renames the files of `new` (`finish_replacement`).
        """
        self.check_writable()
        first = self.segments.index(old[0])
        end = first + len(old)
        assert self.segments[first:end] == tuple(old)
        assert end < len(self.segments), "the active segment is not deleted"
        for listener in self.listeners:
            listener.swapping(self, old, new)
        # In this order another thread finds every aborted transaction at any moment.
        self.release_later(old, now_ms)
        self.segments = (*self.segments[:first], *new, *self.segments[end:])
        self.manifest.reinstate(old)
        self.may_have_gaps = True
        for listener in self.listeners:
            listener.swapped(self, old, new)

    def repack(self, old: Segment, new: Segment, now_ms: int) -> None:
        """Replace a sealed segment by `new`, the same records in other batches, as `replace` does.

        `History.begin_repack` was called before.
        """
        self.check_writable()
        number = self.segments.index(old)
        assert number < len(self.segments) - 1, "the active segment is not replaced"
        self.history.check_repack()
        for listener in self.listeners:
            listener.repacking(self, (old,), (new,))
        # In this order another thread finds every aborted transaction at any moment.
        self.release_later((old,), now_ms)
        self.segments = (*self.segments[:number], new, *self.segments[number + 1 :])
        self.manifest.reinstate((old,))
        self.counters.segments_repacked += 1
        self.counters.repacked_bytes_before += old.size
        self.counters.repacked_bytes_after += new.size
        for listener in self.listeners:
            listener.repacked(self, (old,), (new,))
        self.history.end_repack(is_done=True)

    def finish_replacement(self, new: Segment) -> None:
        """Rename a replacement's files to the log's names; the old ones' renames are durable."""
        # (Retention may have deleted it.)
        if new.suffix == paths.SWAP and not new.deleted:
            new.set_suffix("")
        self.durability.directory_unsynced = True

    def release_later(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Retire segments: they are released file.delete.delay.ms after `now_ms` (monotonic)."""
        due_ms = now_ms + self.config.file_delete_delay_ms
        self.retired = [*self.retired, *((due_ms, segment) for segment in segments)]

    def release_retired(self, now_ms: int, most: int | None = None) -> list[str]:
        """Release retired segments after their delay, `most` at a time; return the paths to
        remove.
        """
        doomed: list[str] = []
        left = len(self.retired) if most is None else most
        waiting: list[tuple[int, Segment]] = []
        bases = {segment.base_offset for segment in self.segments}
        replaced = frozenset() if self.replacement is None else frozenset(self.replacement.old)
        for due_ms, segment in self.retired:
            # Its swap has to rename it, or a restart would find it beside the new one.
            is_named = not segment.deleted and segment in replaced
            if not left or due_ms > now_ms or segment.leases or is_named:
                waiting.append((due_ms, segment))
                continue
            left -= 1
            for listener in self.listeners:
                listener.removed(self, segment)
            doomed += segment.let_go()
            if segment.base_offset not in bases:
                # (A cleaned segment has the base of the one that it replaces.)
                bases.add(segment.base_offset)
                # Another process may have built the words while the files were renamed.
                name = paths.file_name(segment.base_offset, paths.WORDS)
                words = os.path.join(self.directory, name)
                snapshot = self.snapshots.path(segment.base_offset)
                doomed += filter(self.files.exists, (words, snapshot))
        self.retired = waiting
        return doomed

    def age_descriptors(self) -> bool:
        """Close files that were not used since the last call; return whether any stay open."""
        stay = False
        for segment in self.segments:
            if segment.is_open:
                # With a lease, another thread may be appending to it.
                if segment.recently_used or segment.is_unsynced or segment.leases:
                    segment.recently_used = False
                    stay = True
                    continue
                if segment is self.active:
                    self.writer.rest()
                if not segment.evict():
                    stay = True
        return stay

    # -- truncation (`truncate`) ---------------------------------------------------------------

    def begin_truncation(self, end: int, *, is_empty: bool) -> None:
        """Lower the recovery point to `end`, where the log is about to end; write, durably, that
        the shown text does not continue.

        `is_empty`: no record stays, so that no segment has the log start until it is lowered.
        """
        path = os.path.join(self.directory, HISTORY_FILE)
        if self._history is not None or self.files.exists(path):
            self.history.truncate(self.segments, self.log_start_offset, end)
            self.save_history()
        self.durability.lower_recovery_point(end)
        if is_empty:
            self.pending_log_starts.append(self.log_start_offset)

    def lower_log_start(self, offset: int, write_checkpoints: Callable[[int], None]) -> None:
        """Move the log start down, durably, after all records were removed. Errors: OSError;
        nothing has changed.
        """
        before = self.log_start_offset, self.checkpointed_start
        self.log_start_offset = offset
        if self.checkpointed_start is not None:
            self.checkpointed_start = min(self.checkpointed_start, offset)
        self.pending_log_starts[:] = [offset]
        try:
            write_checkpoints(offset)
        except BaseException:
            self.log_start_offset, self.checkpointed_start = before
            raise

    def take_over(self, recovered: Recovered) -> None:
        """Continue with segments that were loaded again, after the end of the log was removed."""
        self.segments = tuple(recovered.segments)
        self.writer = SegmentWriter(self.active)
        self.producers = recovered.producers
        self.pending_log_starts.clear()
        self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.log_end_offset = max(self.active.next_offset, self.log_start_offset)
        self.snapshots.replace(recovered.snapshot_offset, recovered.unsynced_snapshots)
        self.epochs.truncate_from_end(self.log_end_offset)
        self._active_since_ms = self.monotonic_ms()
        self._roll_after_ms = self._draw_roll_time()
        self.durability.lower_recovery_point(self.log_end_offset)
        self.durability.directory_unsynced = True
        self.durability.mark_unflushed()
        self.transactions.forget_from((each for _, each in self.retired), self.log_end_offset)
        self.transactions.producers_replaced()
        # A history that is read later must not trust the active segment.
        self._was_cut = True
        if self._history is not None:
            # Inodes with the nonces drawn before the removal may show removed records.
            self._history.truncate(self.segments, self.log_start_offset, self.log_end_offset)

    def save_history(self) -> None:
        """Write the history, if it was read, durably. Errors: OSError."""
        if self._history is not None:
            self._history.save(self.segments, self.log_start_offset)

    # -- changes by another process (`storage.follow`) -----------------------------------------

    def sync_with_writer(
        self,
        *,
        segments: Sequence[Segment] | None = None,
        log_start: int | None = None,
        log_end: int | None = None,
        producers: ProducerState | None = None,
    ) -> None:
        """Apply the changes of another process, which writes this log. None: unchanged.

        The caller updates the stable sizes, and calls the listeners.
        """
        if segments is not None:
            self.segments = tuple(segments)
        if log_start is not None:
            self.log_start_offset = log_start
        if log_end is not None:
            self.log_end_offset = log_end
        if producers is not None:
            self.producers = producers

    def take_segments(
        self,
        segments: Sequence[Segment],
        left: Sequence[Segment],
        *,
        log_start: int | None = None,
        log_end: int | None = None,
        producers: ProducerState | None = None,
    ) -> None:
        """Replace the list of segments, as another process did, and compute the stable sizes.

        `left`: the segments that leave the log. `producers`: as of the log end, if the log had not
        all records of `segments`. The caller calls the listeners. Errors: OSError, StorageError;
        nothing has changed.
        """
        before = self.segments, self.retired, self.producers
        offsets = self.log_start_offset, self.log_end_offset
        # In this order another thread finds every aborted transaction at any moment.
        self.release_later(left, self.monotonic_ms())
        self.sync_with_writer(
            segments=segments, log_start=log_start, log_end=log_end, producers=producers
        )
        try:
            if producers is not None:
                self.transactions.producers_replaced()
            elif self.producers.first_undecided_offset is not None:
                self.transactions.stabilize()
        except (OSError, StorageError):
            self.segments, self.retired, self.producers = before
            self.log_start_offset, self.log_end_offset = offsets
            if self._history is not None:
                # A listener may have announced the change.
                self._history.give_up_ahead()
            raise

    def take_repacked(
        self,
        old: Sequence[Segment],
        new: Sequence[Segment],
        sizes: Sizes,
        producers: ProducerState | None,
    ) -> None:
        """Replace each of `old` by one of `new`, as another process has repacked them.

        `sizes`: those that the process has recorded. `producers`: as of the log end, if not all of
        the last one was read; `new` has the rest. Errors: OSError, StorageError; nothing has
        changed.
        """
        new_of = dict(zip(old, new, strict=True))
        if self._history is not None:
            self._history.begin_repacked(sizes)
        try:
            for listener in self.listeners:
                listener.repacking(self, old, new)
            segments = [new_of.get(segment, segment) for segment in self.segments]
            self.take_segments(segments, old, producers=producers)
            for listener in self.listeners:
                listener.repacked(self, old, new)
        finally:
            self.give_up_repack()

    # -- settings, end -------------------------------------------------------------------------

    def set_config(self, config: LogConfig) -> None:
        """Apply new settings of the topic, from the next append on."""
        self.config = config
        self._roll_after_ms = self._draw_roll_time()
        self._converts = config.is_compacted or converts(config)
        for segment in self.segments:
            segment.config = config

    def relocate(self, directory: str) -> None:
        """Note that the partition's directory was renamed (topic deletion)."""
        self.directory = directory
        for segment in (*self.segments, *(segment for _, segment in self.retired)):
            segment.relocate(directory)
        if self._history is not None:
            self._history.relocate(directory)

    def mark_topic_deleted(self, due_ms: int) -> None:
        """Refuse appends, as the topic was deleted; reads continue until `due_ms`."""
        self.closed = True
        self.deleting = False
        self.retired = [*self.retired, *((due_ms, segment) for segment in self.segments)]
        for listener in self.listeners:
            listener.retired(self)

    def end_reading(self) -> bool:
        """Let all reads fail with SegmentGone from now on: the topic is about to be undeleted, and
        its files will have another log. Return False while a thread still uses them.
        """
        segments = [segment for _, segment in self.retired]
        for segment in segments:
            segment.end_reading()
        return not (self.cleaning or any(segment.leases for segment in segments))

    def release_all(self, most: int | None = None) -> bool:
        """Release a deleted partition's segments, `most` at a time; return False if any is left."""
        left = [segment for _, segment in self.retired]
        if any(segment.leases for segment in left):
            return False
        for segment in left[:most]:
            for listener in self.listeners:
                listener.removed(self, segment)
            segment.let_go()
        self.retired = self.retired[len(left[:most]) :]
        return not self.retired

    def close(self) -> None:
        """Flush, trim the files, write the last snapshot, release all files (clean stop)."""
        if self.closed:
            return
        if not self.read_only and not self.lost_end:
            self.writer.trim()
            self.snapshots.write_last()
            self.durability.directory_unsynced = True
            with contextlib.suppress(CorruptRecord):
                # A sealed segment's file was deleted: the manifest informs the next start.
                self.flush()
            self.manifest.save()
        path = os.path.join(self.directory, HISTORY_FILE)
        if self._history is not None:
            self._history.give_up_ahead()
            self._history.save(self.segments, self.log_start_offset)
        elif not (self._was_closed or self.read_only) and self.files.exists(path):
            # The next start would not know that flushed records may have been lost.
            history = self.load_history()
            if history.is_marked:
                history.save(self.segments, self.log_start_offset)
        self.abandon()

    def abandon(self) -> None:
        """Release all files and write nothing, as after a crash."""
        self.closed = True
        for _, segment in self.retired:
            # Its files may be deleted, with their directory.
            segment.let_go()
        for segment in self.segments:
            segment.close()

    # -- faults --------------------------------------------------------------------------------

    def note_damage(self, segment: Segment, found: Iterable[Damage], now_ms: int) -> int:
        """Record damage of `segment`; return the number of new damaged ranges.

        Reading them fails from now on. Nothing is appended after them: the log rolls if `segment`
        is the active one. Errors: OSError if it cannot; call it again.
        """
        if self.closed:
            return 0
        if segment is self.active:
            self.append_queue.check_may_append()
        SegmentReader(segment).add_damages(found)
        places = segment.damages
        new_count = sum(place not in segment.reported_damages for place in places)
        if new_count:
            segment.reported_damages = places
            self.counters.damages += new_count
            for listener in self.listeners:
                listener.damaged(self, segment)
        is_written = not self.read_only and not self.lost_end
        if segment.damages and segment is self.active and is_written:
            self.roll(now_ms)
        return new_count
