"""One partition: assigns offsets, appends, rolls, reads, flushes.

A log is a tuple of segments in order of base offset; the last one is active.  The tuple is replaced
as a whole (copy-on-write), so that whoever reads from another thread keeps a consistent one.

Invariants: log start ≤ last stable ≤ high watermark ≤ log end; recovery point ≤ log end; offsets
are dense within what was appended here (``UnifiedLog.append``); an append is in the file before
anything tells of it, and a refused one leaves nothing behind.

One thread owns a log.  Only ``FlushPlan.run`` and reads that hold a segment's lease may run
elsewhere.

Not here: what is deleted or cleaned (``retention``, ``compaction``), what a crash left behind
(``recovery``), the other partitions (``manager``).
"""

from __future__ import annotations

import errno
import os
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from storage import paths
from storage.check import check_segment
from storage.config import LogConfig
from storage.errors import (
    InvalidRecord,
    LogClosed,
    OffsetOutOfRange,
    ReadOnlyLog,
    RecordTooLarge,
)
from storage.files import Files
from storage.flush import FlushPlan
from storage.history import History
from storage.listener import LogListener
from storage.producer_state import EMPTY_SNAPSHOT
from storage.record._batch import assign_offsets
from storage.record.batch import Record, decode, parse_header
from storage.recovery import Recovered, extend
from storage.segment import MAX_OFFSET_SPAN, MAX_SEGMENT_BYTES, BatchEntry, Segment

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3


class Log:
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
        self.epochs = epochs
        self.epochs_dirty = False
        self.epochs_lock = threading.Lock()
        self.directory_dirty = False
        self.dirty_since_ms: int | None = None
        self._dirty = dirty if dirty is not None else set()
        self._recovered_clean = clean
        self._was_cut = recovered.damaged
        self._history: History | None = None
        self._roll_after_ms = self._draw_roll_time()
        if self.recovery_point < self.log_end_offset and not read_only:
            self._mark_dirty(0)

    # -- facts ---------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self.segments[-1]

    @property
    def high_watermark(self) -> int:
        """Without replicas the log end."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """No transaction is open: the log end."""
        return self.log_end_offset

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
            )
        return self._history

    def __repr__(self) -> str:
        return f"<Log {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>"

    # -- appending -----------------------------------------------------------------------------

    def append(self, batches: bytearray, *, now_ns: int, defer_flush: bool = False) -> int:
        """Append ready batches with new offsets; returns the first one.

        ``batches``: uncompressed v2 batches back to back; base offsets and leader epoch are
        written into them in place.  ``now_ns``: wall time in ns.  ``defer_flush``: the caller
        looks at ``flush_due`` itself.

        RecordTooLarge over max.message.bytes, InvalidRecord for a record without a key in a
        compacted topic, OSError from the disk; nothing is appended then.
        """
        if self.closed or self.read_only or self.flush_error is not None:
            self._check_writable()
        first = self.log_end_offset
        entries = assign_offsets(batches, first, self.leader_epoch)
        limit = self.config.max_message_bytes
        for entry in entries:
            if entry[1] > limit:
                raise RecordTooLarge(entry[1], limit)
        if self.config.is_compacted:
            self._check_keys(batches, entries)
        self._append_entries(batches, entries, first, now_ns)
        if not defer_flush and self.flush_due:
            self.flush()
        return first

    def append_as_follower(
        self, batches: bytearray, entries: list[BatchEntry], now_ns: int
    ) -> None:
        """Append batches that keep their offsets, which must not lie below the log end.

        Gaps are allowed (``UnifiedLog.appendAsFollower``).  OSError from the disk.
        """
        self._check_writable()
        header = parse_header(batches, 0)
        if header.base_offset < self.log_end_offset:
            raise InvalidRecord(
                f"offset {header.base_offset} is below the log end {self.log_end_offset}",
                path=self.directory,
                offset=header.base_offset,
            )
        self._append_entries(batches, entries, header.base_offset, now_ns)

    def _append_entries(
        self, batches: bytearray, entries: list[BatchEntry], first: int, now_ns: int
    ) -> None:
        last_offset = entries[-1][2]
        active = self.segments[-1]
        if active.size and self._should_roll(active, batches, entries, now_ns):
            active = self._roll(first, now_ns // 1_000_000)
        position = active.append(batches, entries, now_ns)
        self.log_end_offset = last_offset + 1
        if not self.epochs:
            # The first leader epoch (``LeaderEpochFileCache.assign``).  The next flush writes it;
            # until then recovery reads it off the batches.
            self.epochs = [(0, first)]
            self.epochs_dirty = True
        if self.dirty_since_ms is None:
            self._mark_dirty(now_ns // 1_000_000)
        for listener in self.listeners:
            listener.appended(self, active, position, batches)

    def _check_writable(self) -> None:
        if self.closed:
            raise LogClosed("this log has been closed", path=self.directory)
        if self.read_only:
            raise ReadOnlyLog("this log was opened read-only", path=self.directory)
        if self.flush_error is not None:
            reason = f"an fsync has failed ({self.flush_error}); nothing is taken until a restart"
            raise OSError(errno.EIO, reason, self.directory)

    def _check_keys(self, batches: bytearray, entries: list[BatchEntry]) -> None:
        """A compacted topic takes no record without a key (``LogValidator``)."""
        for position, _, _, _ in entries:
            for record in decode(batches, position):
                if record.key is None:
                    raise InvalidRecord(
                        "a topic whose cleanup.policy has compact takes no record without a key",
                        path=self.directory,
                    )

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
        self.directory_dirty = True
        self._roll_after_ms = self._draw_roll_time()
        if self.dirty_since_ms is None:
            self._mark_dirty(now_ms)
        for listener in self.listeners:
            listener.rolled(self, sealed, active)
        return active

    def _write_snapshot(self, offset: int) -> None:
        """The state of the producers up to ``offset``: there are none (``takeSnapshot``)."""
        path = os.path.join(self.directory, paths.file_name(offset, paths.SNAPSHOT))
        fd = self.files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.files.pwrite(fd, EMPTY_SNAPSHOT, 0)
        finally:
            self.files.close(fd)

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

    def _segments_from(self, offset: int) -> Iterable[Segment]:
        segments = self.segments
        return segments[max(self._segment_number(segments, offset), 0) :]

    # -- reading -------------------------------------------------------------------------------

    @staticmethod
    def _segment_number(segments: tuple[Segment, ...], offset: int) -> int:
        return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> bytes:
        """Whole segment bytes from the batch that holds ``offset``, at most ``max_bytes``.

        The first batch is returned whole even if it is larger (unless ``at_least_one`` is false);
        the last one may be cut; the first may begin before ``offset``; no read crosses a segment
        (``LocalLog.read``, ``LogSegment.read``).  Empty at the log end.  OffsetOutOfRange outside
        of log start..log end.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                offset, self.log_start_offset, self.log_end_offset, path=self.directory
            )
        if offset == self.last_stable_offset:
            return b""
        segments = self.segments
        for segment in segments[max(self._segment_number(segments, offset), 0) :]:
            found = segment.locate(offset)
            if found is None:
                continue
            position, header = found
            length = max(max_bytes, header.size if at_least_one else 0)
            return segment.read_at(position, min(length, segment.size - position))
        return b""

    def records(self, offset: int | None = None) -> Iterator[Record]:
        """Every record from ``offset`` (default: the log start) to the log end as it is now.

        OffsetOutOfRange as ``read``; CorruptRecord where a batch is damaged.
        """
        at = self.log_start_offset if offset is None else offset
        end = self.last_stable_offset
        if not self.log_start_offset <= at <= end:
            raise OffsetOutOfRange(at, self.log_start_offset, end, path=self.directory)
        segments = self.segments
        for segment in segments[max(self._segment_number(segments, at), 0) :]:
            found = segment.locate(at)
            if found is None:
                continue
            for position, header in segment.batches(found[0]):
                for record in decode(segment.read_at(position, header.size), 0):
                    if at <= record.offset < end:
                        yield record

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with a timestamp ≥ ``timestamp_ms``, or None.

        Only the first segment that can hold it is searched (``UnifiedLog.searchOffsetInLocalLog``,
        ``LogSegment.findOffsetByTimestamp``).
        """
        for segment in self.segments:
            if segment.largest_timestamp >= timestamp_ms:
                return self._search_segment(segment, timestamp_ms)
        return None

    def _search_segment(self, segment: Segment, timestamp_ms: int) -> tuple[int, int] | None:
        _, offset = segment.time_index.lookup(timestamp_ms)
        start = self.log_start_offset
        _, position = segment.offset_index.lookup(max(offset, start))
        for at, header in segment.batches(position):
            if header.max_timestamp < timestamp_ms or header.last_offset < start:
                continue
            for record in decode(segment.read_at(at, header.size), 0):
                if record.timestamp >= timestamp_ms and record.offset >= start:
                    return record.timestamp, record.offset
        return None

    def list_offsets(self, timestamp_ms: int) -> tuple[int, int]:
        """(timestamp, offset) as Kafka's ListOffsets answers; (-1, -1) for none.

        ``EARLIEST`` (-2), ``LATEST`` (-1) and ``MAX_TIMESTAMP`` (-3) besides times in ms.
        """
        if timestamp_ms == EARLIEST:
            return -1, self.log_start_offset
        if timestamp_ms == LATEST:
            return -1, self.last_stable_offset
        if timestamp_ms == MAX_TIMESTAMP:
            return self._newest_record()
        if timestamp_ms < 0:
            raise InvalidRecord(f"{timestamp_ms} is no timestamp", path=self.directory)
        return self.offset_for_timestamp(timestamp_ms) or (-1, -1)

    def _newest_record(self) -> tuple[int, int]:
        newest = max(self.segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp < 0:
            return -1, -1
        return self._search_segment(newest, newest.max_timestamp) or (-1, -1)

    # -- another process's log -----------------------------------------------------------------

    def refresh(self) -> bool:
        """See what the writer of a log that is open read-only has appended since.

        Whether there was anything.  Costs two stats where there was not.  What the writer cuts,
        cleans or deletes is not followed.  UnsupportedFormat, OSError.
        """
        assert self.read_only
        before = self.log_end_offset
        while True:
            active = self.active
            position = active.size
            data = extend(self.files, active, self.config.index_interval_bytes)
            if data:
                self.log_end_offset = active.next_offset
                for listener in self.listeners:
                    listener.appended(self, active, position, data)
                continue
            following = Segment(
                self.files,
                self.directory,
                active.next_offset,
                self.config,
                writable=False,
                created_ms=active.created_ms,
            )
            if not active.size or not self.files.exists(following.log_path):
                return self.log_end_offset > before
            active.close_descriptors()
            active.sealed = True
            self.segments = (*self.segments, following)
            for listener in self.listeners:
                listener.rolled(self, active, following)

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
