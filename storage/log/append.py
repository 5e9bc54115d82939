"""Appending to a log: assigns offsets, rolls, and tells what its listeners must know.

Invariants: offsets are dense within what is appended here (``UnifiedLog.append``); an append is in
the file before anything tells of it, and a refused one leaves nothing behind.

Not here: what batches must be like (``validator``), what producers may do (``producer_state``),
when to flush.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from storage import paths
from storage.counters import LogCounters
from storage.errors import (
    CutShort,
    InvalidRecord,
    InvalidTxnState,
    LogClosed,
    ReadOnlyLog,
    RecordTooLarge,
)
from storage.log.listener import LogListener
from storage.log.read import LogReader
from storage.log.validator import (
    Admitted,
    admitted,
    check_keys,
    check_not_ahead,
    rewrites,
    rewritten,
)
from storage.record._batch import assign_offsets
from storage.record.batch import BatchHeader, Buffer, parse_header
from storage.record.control import ABORT, COMMIT, Marker, encode_marker, parse_marker
from storage.segment.segment import MAX_OFFSET_SPAN, MAX_SEGMENT_BYTES, BatchEntry, Segment
from storage.settings.config import LogConfig
from storage.state import checkpoint
from storage.state.producer_state import ProducerBatch, StagedBatches

Prepared = tuple[bytearray, list[BatchEntry]]
"""Batches that have their offsets, and an entry for each."""


class Appended(NamedTuple):
    """One batch that was given to ``append_batches``, and the offsets that it has in the log.

    ``duplicate``: its producer had written it before; nothing was written, and the offsets are
    those of then.
    """

    base_offset: int
    last_offset: int
    duplicate: bool


def _check_last_offset(first: int, last_offset: int) -> None:
    """InvalidRecord where a log would end behind the largest offset that there is."""
    # In 64 bits what is too large is negative.
    if not first <= last_offset < paths.MAX_OFFSET:
        raise InvalidRecord(
            f"from offset {first} on there is no room for it: a log ends at {paths.MAX_OFFSET}"
        )


class AppendingLog(LogReader):
    """The part of a log that appends.  Offsets count records, sizes are in bytes.

    A ``Log`` is what listeners are told of: there is no other subclass.
    """

    config: LogConfig
    listeners: list[LogListener]
    epochs: list[tuple[int, int]]
    epochs_dirty: bool
    # How often the names in the directory have changed; the count that a flush has covered.
    directory_changes = 0
    _directory_synced = 0
    # Measures intervals and delays, in ms.
    monotonic_ms: Callable[[], int]
    # Since when there is something to flush, by that; None where there is nothing.
    dirty_since_ms: int | None
    # Since when the active segment is that, by the same clock.
    _active_since_ms: int
    recovery_point: int
    flush_error: OSError | None
    # Where a log ends that was flushed further: up to where it was. 0: it was not.
    lost_end = 0
    counters: LogCounters

    def __init__(self, config: LogConfig) -> None:
        super().__init__()
        self._configure(config)

    def _configure(self, config: LogConfig) -> None:
        """These are the topic's settings from now on."""
        self.config = config
        self._roll_after_ms = self._draw_roll_time()
        # Whether there is more to an append than the common checks.
        self._is_special = config.is_compacted or rewrites(config)

    def distrust(self, error: OSError) -> None:
        """Its files are not what was written to them: it takes nothing until ``rescue``."""
        raise NotImplementedError

    def check_active(self) -> None:
        """CutShort where somebody has cut the active segment's file; OSError."""
        try:
            self.active.check_whole()
        except CutShort as error:
            self.distrust(error)
            raise

    def flush(self) -> None:
        """fsync what lies behind the recovery point, and move it to the log end."""
        raise NotImplementedError

    def _mark_dirty(self) -> None:
        """There is something to flush, from now on."""
        raise NotImplementedError

    @property
    def directory_dirty(self) -> bool:
        """Whether names in the directory have to be synced."""
        return self.directory_changes != self._directory_synced

    @directory_dirty.setter
    def directory_dirty(self, dirty: bool) -> None:
        if dirty:
            self.directory_changes += 1
        else:
            self._directory_synced = self.directory_changes

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self.segments[-1]

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends carry: the last one of the checkpoint, else 0."""
        return self.epochs[-1][0] if self.epochs else 0

    @property
    def flush_due(self) -> bool:
        """Whether flush.messages asks for a flush now."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    # -- appending -----------------------------------------------------------------------------

    def append(self, batches: bytearray, *, now_ns: int, defer_flush: bool = False) -> int:
        """Append batches that were made here, with new offsets; returns the first one.

        ``batches``: uncompressed v2 batches without producers, back to back; base offsets and
        leader epoch are written into them in place, where the topic's compression.type and
        message.timestamp.type leave them as they are.  ``now_ns``: wall time in ns.
        ``defer_flush``: the caller looks at ``flush_due`` itself.

        What ``prepared`` refuses, and OSError from the disk; nothing is appended then.
        """
        first = self.append_prepared(self.prepared(batches, now_ns=now_ns), now_ns=now_ns)
        if not defer_flush and self.flush_due:
            self.flush()
        return first

    def prepared(self, batches: bytearray, *, now_ns: int) -> Prepared:
        """Batches for ``append`` as they will be stored, if nothing else is appended before.

        So that those of several logs can be looked at before the first one is written to.

        RecordTooLarge over max.message.bytes, InvalidTimestamp, InvalidRecord for a record without
        a key in a compacted topic, and what a log is that takes nothing: LogClosed, ReadOnlyLog,
        OSError after a failed fsync.
        """
        if self.closed or self.read_only or self.flush_error is not None or self.lost_end:
            self._check_writable()
        self.files.check_room()
        config = self.config
        now_ms = now_ns // 1_000_000
        if self._is_special:
            if config.is_compacted:
                check_keys(batches, 0, len(batches))
            batches = rewritten(batches, config, now_ms)
        epochs = self.epochs
        entries = assign_offsets(batches, self.log_end_offset, epochs[-1][0] if epochs else 0)
        _check_last_offset(self.log_end_offset, entries[-1][2])
        limit = config.max_message_bytes
        latest = now_ms + config.message_timestamp_after_max_ms
        for entry in entries:
            if entry[1] > limit:
                raise RecordTooLarge(entry[1], limit)
            if entry[3] > latest:
                check_not_ahead(entry[3], config, now_ms)
        return batches, entries

    def append_prepared(self, prepared: Prepared, *, now_ns: int) -> int:
        """Append what ``prepared`` has given; returns the first offset.  OSError from the disk.

        The caller looks at ``flush_due``.
        """
        batches, entries = prepared
        first = self.log_end_offset
        self._append_entries(batches, entries, first, now_ns)
        return first

    def append_batches(
        self,
        batches: Buffer,
        *,
        now_ns: int,
        trusted: dict[int, int] | None = None,
        defer_flush: bool = False,
        checked: Iterable[Admitted] | None = None,
    ) -> list[Appended]:
        """Append whole batches from elsewhere, of any format and kind, with new offsets.

        What is asked of a batch says ``validator.admitted``, what of a producer's next one
        ``producer_state``: a duplicate is not written again, an old epoch and a gap in the
        sequences are refused.  A gap is let through where the producer's previous batch in the log
        came through the same handle: ``trusted`` is the handle's memory of that, by producer id
        the last offset of the last batch that it brought; it is kept up to date here.
        ``checked``: what ``admitted`` has made of these batches by the settings of now, if it was
        asked before: that takes as long as decoding them, and may be done in any thread.

        InvalidRecord and its kinds (OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState,
        InvalidTimestamp), RecordTooLarge, OSError; nothing of ``batches`` is appended then.
        """
        self._check_writable()
        self.files.check_room()
        outcome: list[Appended] = []
        data = bytearray()
        staged = self.producers.stage()
        written: list[ProducerBatch] = []
        # What the handle will remember if all goes well; without one no gap is let through.
        memory = None if trusted is None else dict(trusted)
        if checked is None:
            checked = admitted(batches, self.config, now_ns // 1_000_000)
        for batch in checked:
            next_offset = written[-1].last_offset + 1 if written else self.log_end_offset
            facts = _facts(batch.header, next_offset, len(data), batch.marker)
            duplicate = self._duplicate(staged, facts, memory)
            outcome.append(duplicate or Appended(facts.base_offset, facts.last_offset, False))
            if duplicate is None:
                staged.add(facts)
                written.append(facts)
                data += batch.data
                if facts.last_offset - self.log_end_offset > MAX_OFFSET_SPAN:
                    # They would go into one segment.
                    reason = f"batches of more than {MAX_OFFSET_SPAN} offsets"
                    raise InvalidRecord(f"{reason}: append fewer at a time")
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
        follows = False
        if producer is not None:
            if facts.marker_type < 0 and (earlier := producer.duplicate(facts)) is not None:
                if trusted is not None and earlier is producer.batches[-1]:
                    trusted[facts.producer_id] = earlier.last_offset
                return Appended(earlier.first_offset, earlier.last_offset, True)
            # A batch of another handle, or one that only a snapshot knows, breaks the chain.
            follows = trusted is not None and trusted.get(facts.producer_id) == producer.last_offset
            producer.check(facts, follows=follows)
        if trusted is not None:
            if facts.marker_type < 0:
                trusted[facts.producer_id] = facts.last_offset
            elif producer is None or (follows and facts.producer_epoch != producer.epoch):
                # The chain goes on, though a new epoch has no batch yet.
                trusted[facts.producer_id] = -1
        return None

    def abort_transaction(self, producer_id: int, now_ns: int) -> int:
        """Write the ABORT marker of a transaction that nobody will end; returns its offset.

        InvalidTxnState where the producer is unknown or has none open; OSError from the disk.
        """
        return self._end_transaction(producer_id, ABORT, now_ns)

    def commit_transaction(self, producer_id: int, now_ns: int) -> int:
        """Write the COMMIT marker of a transaction whose coordinator we are; as the other one."""
        return self._end_transaction(producer_id, COMMIT, now_ns)

    def _end_transaction(self, producer_id: int, kind: int, now_ns: int) -> int:
        self._check_writable()
        producer = self.producers.get(producer_id)
        if producer is None or not producer.in_transaction:
            reason = "unknown here" if producer is None else "no transaction is open"
            raise InvalidTxnState(reason, producer_id, path=self.directory)
        offset = self.log_end_offset
        batch = encode_marker(
            kind,
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
        self.files.check_room()
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
        epochs = list(self.epochs)
        for entry in entries:
            each = parse_header(batches, entry[0])
            if each.leader_epoch > (epochs[-1][0] if epochs else -1):
                checkpoint.begin_epoch(epochs, each.leader_epoch, each.base_offset)
        self._append_entries(batches, entries, header.base_offset, now_ns, staged, written)
        if epochs != self.epochs and epochs:
            # What we append ourselves carries the last one.
            self.epochs = epochs
            self.epochs_dirty = True

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
        _check_last_offset(first, last_offset)
        active = self.segments[-1]
        # Those that keep their offsets may lie too far behind the base of an empty segment too.
        is_far = last_offset - active.base_offset > MAX_OFFSET_SPAN
        if is_far or (active.size and self._should_roll(active, batches, entries)):
            # No gap between two segments, if the new one reaches as far.
            too_far = last_offset - self.log_end_offset > MAX_OFFSET_SPAN
            base = first if too_far else self.log_end_offset
            self.check_active()
            active = self._roll(base, now_ns // 1_000_000)
        undecided = self.producers.first_undecided_offset
        try:
            if staged is None:
                position = active.append(batches, entries, now_ns)
            else:
                position = self._append_staged(active, batches, entries, now_ns, staged, written)
        except CutShort as error:
            self.distrust(error)
            raise
        if undecided is None and (staged is None or self.producers.first_undecided_offset is None):
            active.stable_size = active.size
        self.log_end_offset = last_offset + 1
        counters = self.counters
        counters.records_appended += last_offset + 1 - first
        counters.batches_appended += len(entries)
        counters.bytes_appended += len(batches)
        if not self.epochs:
            # The first leader epoch (``LeaderEpochFileCache.assign``).  The next flush writes it;
            # until then recovery reads it off the batches.
            self.epochs = [(0, first)]
            self.epochs_dirty = True
        if self.dirty_since_ms is None:
            self._mark_dirty()
        stabilized = staged is not None and self._settle(undecided, first)
        for listener in self.listeners:
            listener.appended(self, active, position, batches)  # type: ignore[arg-type]
        if stabilized:
            for listener in self.listeners:
                listener.stabilized(self)  # type: ignore[arg-type]

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
                self._forget_aborted()
            raise
        if staged.aborted and not known:
            self.directory_dirty = True
        self._take_over(active, position, staged, written)
        return position

    def _check_writable(self) -> None:
        """LogClosed, ReadOnlyLog; OSError where an fsync has failed, or the log's end was lost."""
        if self.closed:
            raise LogClosed("this log has been closed", path=self.directory)
        if self.read_only:
            raise ReadOnlyLog("this log was opened read-only", path=self.directory)
        if self.flush_error is not None:
            reason = (
                f"{self.why_distrusted}; nothing is taken until what should have been written is "
                "on the disk"
            )
            raise OSError(errno.EIO, reason, self.directory)
        if self.lost_end:
            raise OSError(errno.EIO, self.what_is_lost, self.directory)

    @property
    def why_distrusted(self) -> str:
        """What ``flush_error`` says."""
        error = self.flush_error
        if isinstance(error, CutShort):
            return f"{error.strerror} ({error.filename})"
        return f"an fsync has failed ({error})"

    @property
    def what_is_lost(self) -> str:
        """Of a log whose end was lost, what is gone and what to do."""
        return (
            f"offsets {self.log_end_offset} to {self.lost_end - 1} were flushed and are gone; "
            "nothing is taken, so that they are not given out again, until they are back (kafkafs "
            "repair --salvage, a backup) or kafkafs repair --accept-loss"
        )

    # -- rolling -------------------------------------------------------------------------------

    def _draw_roll_time(self) -> int:
        """How long the active segment may span, in ms; the jitter is drawn once per segment."""
        config = self.config
        limit = config.segment_ms
        if config.is_compacted:
            limit = min(limit, config.max_compaction_lag_ms)
        bound = min(config.segment_jitter_ms, config.segment_ms)
        return limit - (random.randrange(bound) if bound > 0 else 0)

    def _should_roll(self, active: Segment, batches: bytearray, entries: list[BatchEntry]) -> bool:
        """``LogSegment.shouldRoll``, for an active segment that holds something."""
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

    def roll(self, now_ms: int) -> bool:
        """Close the active segment and begin a new one at the log end.

        False where the active segment is empty already.  OSError from the disk: nothing changed.
        """
        self._check_writable()
        self.check_active()
        return self.close_active(now_ms)

    def close_active(self, now_ms: int) -> bool:
        """The same of a log that takes nothing now, or whose active segment somebody has cut."""
        if not self.active.size:
            return False
        self._roll(self.log_end_offset, now_ms)
        return True

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        # In this order: where a new segment is in sight, the one before it is complete.
        sealed = self.segments[-1]
        sealed.seal()
        try:
            self._write_snapshot(base_offset)
            active = Segment.create(
                self.files, self.directory, base_offset, self.config, now_ms=now_ms
            )
        except OSError:
            # What was made of the new one, and removed, shall not come back.
            self.directory_dirty = True
            sealed.unseal()
            raise
        self.segments = (*self.segments, active)
        self._active_since_ms = self.monotonic_ms()
        replaced = self._replace_snapshot(base_offset)
        if replaced is not None:
            with contextlib.suppress(OSError):
                self.files.unlink(replaced)
        self.directory_dirty = True
        self._roll_after_ms = self._draw_roll_time()
        self.counters.rolls += 1
        if self.dirty_since_ms is None:
            self._mark_dirty()
        for listener in self.listeners:
            listener.rolled(self, sealed, active)  # type: ignore[arg-type]
        return active


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
