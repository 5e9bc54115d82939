"""One partition: assigns offsets, appends, rolls, flushes, keeps producers and transactions.

A log is a tuple of segments in order of base offset; the last one is active.  The tuple is replaced
as a whole (copy-on-write), so that whoever reads from another thread keeps a consistent one.

Invariants: log start ≤ last stable ≤ high watermark ≤ log end; recovery point ≤ log end; offsets
are dense within what was appended here (``UnifiedLog.append``); an append is in the file before
anything tells of it, and a refused one leaves nothing behind; an aborted transaction is in its
index before the last stable offset passes it.

One thread owns a log.  Only ``FlushPlan.run`` and reads that hold a segment's lease may run
elsewhere.

Not here: reading (``read``), what batches must be like (``validator``), what is deleted or cleaned
(``retention``, ``compaction``), what a crash left behind (``recovery``), the other partitions
(``manager``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage import paths
from storage.check import check_segment
from storage.config import LogConfig
from storage.errors import (
    InvalidRecord,
    InvalidTxnState,
    LogClosed,
    ReadOnlyLog,
    RecordTooLarge,
)
from storage.files import Files
from storage.flush import FlushPlan
from storage.history import History
from storage.listener import LogListener
from storage.producer_state import ProducerBatch, StagedBatches
from storage.read import LogReader
from storage.record._batch import assign_offsets
from storage.record.batch import BatchHeader, Buffer, parse_header
from storage.record.control import ABORT, Marker, encode_marker, parse_marker
from storage.recovery import Recovered
from storage.segment import MAX_OFFSET_SPAN, MAX_SEGMENT_BYTES, BatchEntry, Segment
from storage.validator import admitted, check_keys, check_not_ahead, rewrites, rewritten


class Appended(NamedTuple):
    """One batch that was given to ``append_batches``, and the offsets that it has in the log.

    ``duplicate``: its producer had written it before; nothing was written, and the offsets are
    those of then.
    """

    base_offset: int
    last_offset: int
    duplicate: bool


class Log(LogReader):
    """One partition's log.  Offsets count records, sizes are in bytes, times in ms since 1970."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic: str,
        partition: int,
        topic_id: str,
        config: LogConfig,
        recovered: Recovered,
        *,
        log_start: int,
        recovery_point: int,
        epochs: list[tuple[int, int]],
        clean: bool,
        read_only: bool,
        dirty: set[Log] | None = None,
    ) -> None:
        super().__init__()
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.read_only = read_only
        self.closed = False
        self.flush_error: OSError | None = None
        self.listeners: list[LogListener] = []
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        self.retired: list[tuple[int, Segment]] = []
        self.log_start_offset = max(log_start, self.segments[0].base_offset)
        self.log_end_offset = self.segments[-1].next_offset
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.producers = recovered.producers
        # Where open transactions begin: segment and position, by first offset.
        self._undecided: dict[int, tuple[Segment, int]] = {}
        # Up to where the newest snapshot of the producers on disk speaks.
        self.snapshot_offset = recovered.snapshot_offset
        self.epochs = epochs
        self.epochs_dirty = False
        self.epochs_lock = threading.Lock()
        self.directory_dirty = False
        self.dirty_since_ms: int | None = None
        self._dirty = dirty if dirty is not None else set()
        self._recovered_clean = clean
        self._was_cut = recovered.damaged
        self._history: History | None = None
        # Where the history of a log that is read-only is kept instead.
        self.history_directory: str | None = None
        self._roll_after_ms = self._draw_roll_time()
        self._rewrites = rewrites(config)
        if self.producers.first_undecided_offset is not None:
            self.stabilize()
        if self.recovery_point < self.log_end_offset and not read_only:
            self._mark_dirty(0)

    # -- facts ---------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self.segments[-1]

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends carry: the last one of the checkpoint, else 0."""
        return self.epochs[-1][0] if self.epochs else 0

    @property
    def size(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self.segments)

    @property
    def history(self) -> History:
        """The partition's history, read when first asked for."""
        if self._history is None:
            self._history = History.load(
                self.files,
                self.directory,
                self.segments,
                writable=not self.read_only,
                clean=self._recovered_clean,
                cut=self._was_cut,
                aside=self.history_directory,
            )
        return self._history

    def __repr__(self) -> str:
        return f"<Log {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>"

    # -- appending -----------------------------------------------------------------------------

    def append(self, batches: bytearray, *, now_ns: int, defer_flush: bool = False) -> int:
        """Append batches that were made here, with new offsets; returns the first one.

        ``batches``: uncompressed v2 batches without producers, back to back; base offsets and
        leader epoch are written into them in place, where the topic's compression.type and
        message.timestamp.type leave them as they are.  ``now_ns``: wall time in ns.
        ``defer_flush``: the caller looks at ``flush_due`` itself.

        RecordTooLarge over max.message.bytes, InvalidTimestamp, InvalidRecord for a record without
        a key in a compacted topic, OSError from the disk; nothing is appended then.
        """
        if self.closed or self.read_only or self.flush_error is not None:
            self._check_writable()
        config = self.config
        now_ms = now_ns // 1_000_000
        if config.is_compacted:
            check_keys(batches, 0, len(batches))
        if self._rewrites:
            batches = rewritten(batches, config, now_ms)
        first = self.log_end_offset
        epochs = self.epochs
        entries = assign_offsets(batches, first, epochs[-1][0] if epochs else 0)
        limit = config.max_message_bytes
        latest = now_ms + config.message_timestamp_after_max_ms
        for entry in entries:
            if entry[1] > limit:
                raise RecordTooLarge(entry[1], limit)
            if entry[3] > latest:
                check_not_ahead(entry[3], config, now_ms)
        self._append_entries(batches, entries, first, now_ns)
        if not defer_flush and self.log_end_offset - self.recovery_point >= config.flush_messages:
            self.flush()
        return first

    def append_batches(
        self,
        batches: Buffer,
        *,
        now_ns: int,
        trusted: dict[int, int] | None = None,
        defer_flush: bool = False,
    ) -> list[Appended]:
        """Append whole batches from elsewhere, of any format and kind, with new offsets.

        What is asked of a batch says ``validator.admitted``, what of a producer's next one
        ``producer_state``: a duplicate is not written again, an old epoch and a gap in the
        sequences are refused.  A gap is let through where the producer's previous batch in the log
        came through the same handle: ``trusted`` is the handle's memory of that, by producer id
        the last offset of the last batch that it brought; it is kept up to date here.

        InvalidRecord and its kinds (OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState,
        InvalidTimestamp), RecordTooLarge, OSError; nothing of ``batches`` is appended then.
        """
        self._check_writable()
        outcome: list[Appended] = []
        data = bytearray()
        staged = self.producers.stage()
        written: list[ProducerBatch] = []
        # What the handle will remember if all goes well; without one no gap is let through.
        memory = None if trusted is None else dict(trusted)
        for batch in admitted(batches, self.config, now_ns // 1_000_000):
            next_offset = written[-1].last_offset + 1 if written else self.log_end_offset
            facts = _facts(batch.header, next_offset, len(data), batch.marker)
            duplicate = self._duplicate(staged, facts, memory)
            outcome.append(duplicate or Appended(facts.base_offset, facts.last_offset, False))
            if duplicate is None:
                staged.add(facts)
                written.append(facts)
                data += batch.data
        if written:
            entries = assign_offsets(data, self.log_end_offset, self.leader_epoch)
            self._append_entries(data, entries, self.log_end_offset, now_ns, staged, written)
        if trusted is not None and memory is not None:
            trusted.update(memory)
        if written and not defer_flush and self.flush_due:
            self.flush()
        return outcome

    def _duplicate(
        self, staged: StagedBatches, facts: ProducerBatch, trusted: dict[int, int] | None
    ) -> Appended | None:
        """Whether this batch is in the log already; what its producer may not write is refused."""
        if not facts.counts:
            return None
        producer = staged.get(facts.producer_id)
        if producer is not None:
            if facts.marker_type < 0 and (earlier := producer.duplicate(facts)) is not None:
                if trusted is not None and earlier is producer.batches[-1]:
                    trusted[facts.producer_id] = earlier.last_offset
                return Appended(earlier.first_offset, earlier.last_offset, True)
            # A batch of another handle, or one that only a snapshot knows, breaks the chain.
            follows = (
                trusted is not None
                and bool(producer.batches)
                and trusted.get(facts.producer_id) == producer.last_offset
            )
            producer.check(facts, follows=follows)
        if trusted is not None and facts.marker_type < 0:
            trusted[facts.producer_id] = facts.last_offset
        return None

    def abort_transaction(self, producer_id: int, now_ns: int) -> int:
        """Write the ABORT marker of a transaction that nobody will end; returns its offset.

        InvalidTxnState where the producer is unknown or has none open; OSError from the disk.
        """
        self._check_writable()
        producer = self.producers.get(producer_id)
        if producer is None or not producer.in_transaction:
            reason = "unknown here" if producer is None else "no transaction is open"
            raise InvalidTxnState(reason, producer_id, path=self.directory)
        offset = self.log_end_offset
        batch = encode_marker(
            ABORT,
            producer_id=producer_id,
            epoch=producer.epoch,
            coordinator_epoch=max(producer.coordinator_epoch, 0),
            offset=offset,
            timestamp_ms=now_ns // 1_000_000,
            leader_epoch=self.leader_epoch,
        )
        entries = assign_offsets(batch, offset, self.leader_epoch)
        facts = _facts(parse_header(batch), offset, 0, parse_marker(batch))
        staged = self.producers.stage()
        staged.add(facts)
        self._append_entries(batch, entries, offset, now_ns, staged, [facts])
        return offset

    def append_as_follower(
        self, batches: bytearray, entries: list[BatchEntry], now_ns: int
    ) -> None:
        """Append batches that keep their offsets, which must not lie below the log end.

        Gaps are allowed, of offsets and of sequences (``UnifiedLog.appendAsFollower``).  OSError
        from the disk.
        """
        self._check_writable()
        header = parse_header(batches, 0)
        if header.base_offset < self.log_end_offset:
            raise InvalidRecord(
                f"offset {header.base_offset} is below the log end {self.log_end_offset}",
                path=self.directory,
                offset=header.base_offset,
            )
        staged = self.producers.stage()
        written = [facts_of(batches, entry[0]) for entry in entries]
        for facts in written:
            staged.add(facts)
        self._append_entries(batches, entries, header.base_offset, now_ns, staged, written)

    def _append_entries(
        self,
        batches: bytearray,
        entries: list[BatchEntry],
        first: int,
        now_ns: int,
        staged: StagedBatches | None = None,
        written: Sequence[ProducerBatch] = (),
    ) -> None:
        last_offset = entries[-1][2]
        active = self.segments[-1]
        if active.size and self._should_roll(active, batches, entries, now_ns):
            active = self._roll(first, now_ns // 1_000_000)
        undecided = self.producers.first_undecided_offset
        if staged is None:
            position = active.append(batches, entries, now_ns)
        else:
            position = self._append_staged(active, batches, entries, now_ns, staged, written)
        if undecided is None and (staged is None or self.producers.first_undecided_offset is None):
            active.stable_size = active.size
        self.log_end_offset = last_offset + 1
        if not self.epochs:
            # The first leader epoch (``LeaderEpochFileCache.assign``).  The next flush writes it;
            # until then recovery reads it off the batches.
            self.epochs = [(0, first)]
            self.epochs_dirty = True
        if self.dirty_since_ms is None:
            self._mark_dirty(now_ns // 1_000_000)
        stabilized = staged is not None and self._settle(undecided)
        for listener in self.listeners:
            listener.appended(self, active, position, batches)
        if stabilized:
            for listener in self.listeners:
                listener.stabilized(self)

    def _append_staged(
        self,
        active: Segment,
        batches: bytearray,
        entries: list[BatchEntry],
        now_ns: int,
        staged: StagedBatches,
        written: Sequence[ProducerBatch],
    ) -> int:
        """Append batches of producers; what they say of transactions becomes known with them."""
        known = len(active.aborted) if staged.aborted else 0
        try:
            for aborted in staged.aborted:
                active.txn_index.append(aborted)
            position = active.append(batches, entries, now_ns)
        except OSError:
            if staged.aborted:
                active.txn_index.truncate_to(known)
            raise
        if staged.aborted and not known:
            self.directory_dirty = True
        self._take_over(active, position, staged, written)
        return position

    def _take_over(
        self,
        segment: Segment,
        position: int,
        staged: StagedBatches,
        written: Sequence[ProducerBatch],
    ) -> None:
        """Batches of producers are in ``segment`` from ``position`` on."""
        for aborted in staged.aborted:
            self._remember_aborted(aborted)
        for facts in written:
            if facts.is_transactional_data:
                self._undecided.setdefault(facts.base_offset, (segment, position + facts.position))
        staged.commit()
        self._undecided = {
            first: place
            for first in self.producers.undecided_offsets
            if (place := self._undecided.get(first)) is not None
        }

    def _settle(self, undecided: int | None) -> bool:
        """Keep the stable sizes right; ``undecided`` was the first undecided offset before.

        Whether data that was held back is stable now.
        """
        if self.producers.first_undecided_offset == undecided:
            return False
        self.stabilize()
        return undecided is not None

    def stabilize(self) -> None:
        """Work out every segment's stable size anew.

        Reads the log where it is not known where the oldest open transaction begins (OSError,
        CorruptRecord).
        """
        place = self._first_unstable()
        for segment in reversed(self.segments):
            if place is not None and segment.base_offset > place[0].base_offset:
                segment.stable_size = 0
            elif place is not None and segment is place[0]:
                segment.stable_size = place[1]
            elif segment.size and segment.stable_size == segment.size:
                return
            else:
                segment.stable_size = segment.size

    def _first_unstable(self) -> tuple[Segment, int] | None:
        """Segment and position of the batch that holds the last stable offset, if one does."""
        first = self.producers.first_undecided_offset
        if first is None:
            return None
        offset = self.last_stable_offset
        place = self._undecided.get(offset)
        if place is not None and place[0] in self.segments:
            return place
        for segment in self._segments_from(offset):
            found = segment.locate(offset)
            if found is not None:
                self._undecided[offset] = segment, found[0]
                return segment, found[0]
        return None

    def _check_writable(self) -> None:
        if self.closed:
            raise LogClosed("this log has been closed", path=self.directory)
        if self.read_only:
            raise ReadOnlyLog("this log was opened read-only", path=self.directory)
        if self.flush_error is not None:
            reason = f"an fsync has failed ({self.flush_error}); nothing is taken until a restart"
            raise OSError(errno.EIO, reason, self.directory)

    def _mark_dirty(self, now_ms: int) -> None:
        self.dirty_since_ms = now_ms
        self._dirty.add(self)

    # -- rolling -------------------------------------------------------------------------------

    def _draw_roll_time(self) -> int:
        """How long the active segment may span, in ms; the jitter is drawn once per segment."""
        config = self.config
        limit = config.segment_ms
        if config.is_compacted:
            limit = min(limit, config.max_compaction_lag_ms)
        bound = min(config.segment_jitter_ms, config.segment_ms)
        return limit - (random.randrange(bound) if bound > 0 else 0)

    def _should_roll(
        self, active: Segment, batches: bytearray, entries: list[BatchEntry], now_ns: int
    ) -> bool:
        """``LogSegment.shouldRoll``, for an active segment that holds something."""
        config = self.config
        size = active.size + len(batches)
        if size > config.segment_bytes or size > MAX_SEGMENT_BYTES:
            return True
        if entries[-1][2] - active.base_offset > MAX_OFFSET_SPAN:
            return True
        if active.index_full:
            return True
        if active.first_timestamp >= 0:
            newest = entries[0][3] if len(entries) == 1 else max(entry[3] for entry in entries)
            waited = newest - active.first_timestamp
        else:
            waited = now_ns // 1_000_000 - active.created_ms
        return waited > self._roll_after_ms

    def roll(self, now_ms: int) -> bool:
        """Close the active segment and begin a new one at the log end.

        False where the active segment is empty already.  OSError from the disk: nothing changed.
        """
        self._check_writable()
        if not self.active.size:
            return False
        self._roll(self.log_end_offset, now_ms)
        return True

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        sealed = self.segments[-1]
        active = Segment.create(self.files, self.directory, base_offset, self.config, now_ms=now_ms)
        try:
            self._write_snapshot(base_offset)
            sealed.seal()
        except OSError:
            active.discard()
            raise
        self.segments = (*self.segments, active)
        replaced = self._replace_snapshot(base_offset)
        if replaced is not None:
            with contextlib.suppress(OSError):
                self.files.unlink(replaced)
        self.directory_dirty = True
        self._roll_after_ms = self._draw_roll_time()
        if self.dirty_since_ms is None:
            self._mark_dirty(now_ms)
        for listener in self.listeners:
            listener.rolled(self, sealed, active)
        return active

    # -- snapshots of the producers ------------------------------------------------------------

    def _write_snapshot(self, offset: int) -> None:
        """The state of the producers up to ``offset``, the log's end (``takeSnapshot``)."""
        _write_small(self.files, self._snapshot_path(offset), self.producers.encode())

    def _snapshot_path(self, offset: int) -> str:
        return os.path.join(self.directory, paths.file_name(offset, paths.SNAPSHOT))

    def _replace_snapshot(self, offset: int) -> str | None:
        """The newest snapshot is to be that of ``offset``; the path of the one to remove then.

        Those where a segment begins stay.
        """
        before, self.snapshot_offset = self.snapshot_offset, offset
        if before in {-1, offset, *(segment.base_offset for segment in self.segments)}:
            return None
        return self._snapshot_path(before)

    def start_snapshot(self) -> Callable[[], None] | None:
        """What is known of the producers now, as a function that writes it down (any thread).

        None where the log has not grown since the last snapshot.  After a crash a log with such a
        snapshot need not be read from its segment's start.
        """
        offset = self.log_end_offset
        if self.read_only or self.closed or offset == self.snapshot_offset:
            return None
        path, data = self._snapshot_path(offset), self.producers.encode()
        replaced = self._replace_snapshot(offset)

        def write() -> None:
            # A partition that was deleted meanwhile needs none.
            with contextlib.suppress(FileNotFoundError):
                _write_small(self.files, path, data)
                if replaced is not None:
                    self.files.unlink(replaced)

        return write

    # -- flushing ------------------------------------------------------------------------------

    @property
    def flush_due(self) -> bool:
        """Whether flush.messages asks for a flush now."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def start_flush(self) -> FlushPlan:
        """Plan the flush of everything appended so far.  The caller must ``finish`` it."""
        self._check_writable()
        since = [
            segment
            for segment in self._segments_from(self.recovery_point)
            if segment.next_offset > self.recovery_point or segment is self.segments[-1]
        ]
        for segment in since:
            segment.open_all()
        return FlushPlan(self, since, self.files)

    def flush(self) -> None:
        """fsync what lies behind the recovery point, and move it to the log end."""
        plan = self.start_flush()
        try:
            plan.run()
        finally:
            plan.finish()

    def flushed_to(self, offset: int, *, directory: bool, epochs: bool) -> None:
        """A flush has made everything below ``offset`` durable."""
        assert offset <= self.log_end_offset
        self.recovery_point = max(self.recovery_point, offset)
        if directory:
            self.directory_dirty = False
        if epochs:
            self.epochs_dirty = False
        if self.recovery_point == self.log_end_offset:
            self.dirty_since_ms = None
            self._dirty.discard(self)

    # -- another process's log -----------------------------------------------------------------

    def observe(
        self, segment: Segment, position: int, data: bytes, producers: Sequence[ProducerBatch]
    ) -> None:
        """The process whose log this is has appended ``data``, whole batches, to ``segment``.

        ``producers``: those of the batches that have one, with positions in the segment's file.
        """
        assert self.read_only
        undecided = self.producers.first_undecided_offset
        if producers:
            staged = self.producers.stage()
            for facts in producers:
                staged.add(facts)
            for aborted in staged.aborted:
                segment.txn_index.observe(aborted)
            self._take_over(segment, 0, staged, producers)
        if undecided is None and self.producers.first_undecided_offset is None:
            segment.stable_size = segment.size
        self.log_end_offset = segment.next_offset
        stabilized = bool(producers) and self._settle(undecided)
        for listener in self.listeners:
            listener.appended(self, segment, position, data)
        if stabilized:
            for listener in self.listeners:
                listener.stabilized(self)

    def replace_head(
        self, count: int, segments: Sequence[Segment], retired: Sequence[Segment], due_ms: int
    ) -> None:
        """``segments`` are there instead of the first ``count``; ``retired`` go at ``due_ms``."""
        assert self.read_only
        self.segments = (*segments, *self.segments[count:])
        self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self.retired += [(due_ms, segment) for segment in retired]
        if self.producers.first_undecided_offset is not None:
            self.stabilize()

    def replace_end(self, segments: tuple[Segment, ...], recovered: Recovered) -> None:
        """The process whose log this is has cut it: ``segments`` are as they were loaded anew."""
        assert self.read_only
        self.segments = segments
        self.log_end_offset = self.active.next_offset
        self.producers = recovered.producers
        self._undecided.clear()
        self.stabilize()

    # -- what the past loses -------------------------------------------------------------------

    def remove_head(self, count: int, now_ms: int) -> None:
        """Delete the first ``count`` segments (never the active one); the log start moves.

        Their files are renamed at once; ``release_retired`` lets go of them when
        file.delete.delay.ms is over.
        """
        self._check_writable()
        assert 0 < count < len(self.segments)
        removed = self.segments[:count]
        for listener in self.listeners:
            listener.removing(self, removed)
        remaining = self.segments[count:]
        self.segments = remaining
        self.log_start_offset = max(self.log_start_offset, remaining[0].base_offset)
        for segment in removed:
            segment.mark_deleted()
            self.retired.append((now_ms + self.config.file_delete_delay_ms, segment))
        if self.producers.first_undecided_offset is not None:
            self.stabilize()
        self.directory_dirty = True

    def release_retired(self, now_ms: int) -> list[str]:
        """Let go of retired segments whose delay is over; the paths that can be removed now."""
        doomed: list[str] = []
        waiting: list[tuple[int, Segment]] = []
        for due_ms, segment in self.retired:
            if due_ms > now_ms or segment.leased:
                waiting.append((due_ms, segment))
                continue
            for listener in self.listeners:
                listener.removed(self, segment)
            doomed += segment.vanish()
            if all(segment.base_offset != other.base_offset for other in self.segments):
                snapshot = self._snapshot_path(segment.base_offset)
                doomed += [snapshot] if self.files.exists(snapshot) else []
        self.retired = waiting
        return doomed

    def age_descriptors(self) -> None:
        """Close the files of segments that were not used since the last call."""
        for segment in self.segments:
            if segment.is_open:
                if segment.recently_used:
                    segment.recently_used = False
                else:
                    segment.close_descriptors()

    # -- settings, end -------------------------------------------------------------------------

    def set_config(self, config: LogConfig) -> None:
        """New settings of the topic, valid from the next append on."""
        self.config = config
        self._roll_after_ms = self._draw_roll_time()
        self._rewrites = rewrites(config)
        for segment in self.segments:
            segment.set_config(config)

    def relocate(self, directory: str) -> None:
        """The partition's directory was renamed (topic deletion)."""
        self.directory = directory
        for segment in (*self.segments, *(segment for _, segment in self.retired)):
            segment.relocate(directory)
        if self._history is not None:
            self._history.relocate(directory)

    def retire(self, due_ms: int) -> None:
        """The topic was deleted: no more appends; reading ends when the files go at ``due_ms``."""
        self.closed = True
        self.retired = [(due_ms, segment) for segment in self.segments]

    def release_all(self) -> bool:
        """Let go of every file of a deleted partition.  False while somebody reads one."""
        if any(segment.leased for segment in self.segments):
            return False
        for segment in self.segments:
            for listener in self.listeners:
                listener.removed(self, segment)
            segment.vanish()
        return True

    def close(self) -> None:
        """Flush, trim the files, write the last snapshot, release everything (clean stop)."""
        if self.closed:
            return
        if not self.read_only:
            self.active.trim()
            self._write_snapshot(self.log_end_offset)
            self.snapshot_offset = self.log_end_offset
            self._drop_old_snapshots()
            self.directory_dirty = True
            self.flush()
            if self._history is not None:
                self._history.save(self.segments)
        self.abandon()

    def abandon(self) -> None:
        """Release everything and write nothing, as a crash would."""
        self.closed = True
        for segment in (*self.segments, *(segment for _, segment in self.retired)):
            segment.close()

    def _drop_old_snapshots(self) -> None:
        keep = {segment.base_offset for segment in self.segments} | {self.log_end_offset}
        for name, is_directory in self.files.scan(self.directory):
            if name.endswith(paths.SNAPSHOT) and not is_directory:
                offset = paths.base_offset_of(name)
                if offset is not None and offset not in keep:
                    self.files.unlink(os.path.join(self.directory, name))

    # -- looking for faults --------------------------------------------------------------------

    def check(self, report: Callable[[str], None] | None = None) -> list[str]:
        """Read the whole partition and name every fault: batches, offsets, indexes, bounds."""
        faults: list[str] = []
        if not self.segments[0].base_offset <= self.log_start_offset <= self.log_end_offset:
            faults.append(f"{self.directory}: log start {self.log_start_offset} outside the log")
        if not self.recovery_point <= self.log_end_offset:
            faults.append(f"{self.directory}: recovery point {self.recovery_point} > log end")
        following = [*(s.base_offset for s in self.segments[1:]), self.log_end_offset]
        for segment, end in zip(self.segments, following, strict=True):
            faults += check_segment(segment, end, self.config.index_interval_bytes)
        if report is not None:
            for fault in faults:
                report(fault)
        return faults


def _write_small(files: Files, path: str, data: bytes) -> None:
    """Write a file that has a checksum: torn, it is as if it were not there."""
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        files.pwrite(fd, data, 0)
    finally:
        files.close(fd)


def facts_of(batches: Buffer, at: int) -> ProducerBatch:
    """What the v2 batch at ``batches[at:]``, whose position that is, says of its producer."""
    header = parse_header(batches, at)
    marker = None
    if header.is_control and header.is_transactional:
        marker = parse_marker(batches, at)
    return _facts(header, header.base_offset, at, marker)


def _facts(
    header: BatchHeader, base_offset: int, position: int, marker: Marker | None
) -> ProducerBatch:
    return ProducerBatch(
        base_offset,
        base_offset + header.last_offset_delta,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.attributes,
        header.max_timestamp,
        position,
        -1 if marker is None else marker.type,
        -1 if marker is None else marker.coordinator_epoch,
    )
