"""The end of a partition that another process writes: its appends and truncations.

The tail remembers the headers, with their CRCs, of some batches that were read. If one of them is
no longer in the file, the log was truncated, at the earliest after the last one that is.

Not here: names, and segments before the last one (`follow`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from storage import paths
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.files import Files
from storage.log.log import Log
from storage.record._batch import Rebuild
from storage.record.header import (
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    size_at,
)
from storage.recovery.producers import replay
from storage.recovery.promises import PartitionFiles, Promises
from storage.recovery.segment import Loaded
from storage.segment.damage import sound_size
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.state.producer_state import ProducerBatch, ProducerState, ProducerUpdate

_CHUNK_BYTES = 4 * 1024 * 1024
# The time that a look reads, in seconds.
_LOOK_S = 0.25
# Remembered batches of the active segment, for finding a truncation.
_MARKS = 64


_Marks = tuple[tuple[int, bytes], ...]


class FileReplaced(Exception):  # noqa: N818 - nothing is wrong
    """The file was replaced or changed during the look: look again."""


class LogTail:
    """The part of a log's active segment that was read; `limit` as in `LogFollower`."""

    def __init__(
        self, log: Log, clock_ns: Callable[[], int], limit: Callable[[], int] | None
    ) -> None:
        self.log = log
        self._clock_ns = clock_ns
        # The end of the writer's removals and cleanings: the log does not end before it.
        self.decided = 0
        self.limit = None if limit is None else lambda: max(limit(), self.decided)
        # Size and mtime of the active log when all of it was read.
        self.seen: tuple[int, int] | None = None
        # The active segment and (position, header) of batches of it, ascending, up to the last one
        # that was read. One tuple, because `intact` is thread-safe.
        self._marked: tuple[Segment, _Marks] = (log.active, ())

    def begin_segment(self) -> None:
        """Forget the remembered batches: the log has another active segment."""
        self.seen = None
        self._marked = self.log.active, ()

    def mark_last(self) -> None:
        """Remember the last batch of the active segment."""
        active = self.log.active
        self.begin_segment()
        try:
            reader = SegmentReader(active)
            last = reader.last_batch() if active.holds_batches else None
            if last is not None:
                at, header = last
                mark = (at, reader.read(at, min(header.size, HEADER_SIZE)))
                self._marked = active, (mark,)
        except (StorageError, OSError):
            # It was truncated meanwhile: the next look detects that.
            self._marked = active, ((0, bytes(LOG_OVERHEAD)),)

    def intact(self) -> bool:
        """Return whether the last batch that was read is unchanged. Thread-safe.

        If the name has another file now, the one that was read was not truncated.
        """
        active, marks = self._marked
        try:
            found = self.log.files.file_stat(active.log_path)
            if not is_of(active, found, self.log.files):
                if active.identity is None:
                    return True
                found = active.log_stat()
            elif (found.st_size, found.st_mtime_ns) == self.seen:
                return True
            return found.st_size >= active.size and self._stands(active, marks[-1:])
        except (FileNotFoundError, SegmentGone):
            # The whole file was replaced or removed: an open descriptor has the old bytes.
            return True

    @staticmethod
    def _stands(segment: Segment, marks: tuple[tuple[int, bytes], ...]) -> bool:
        try:
            source = segment.source()
            return all(
                sound_size(segment.damages, at, len(header), segment.log_path) == len(header)
                and source.read_at(at, len(header)) == header
                for at, header in marks
            )
        except CorruptRecord:
            return False

    def is_cut(self, active: Segment, now: os.stat_result) -> bool:
        """Return whether the writer has truncated the active segment; `now`: its stat."""
        return now.st_size < active.size or not self._stands(active, self._marked[1][-1:])

    def drain(self) -> None:
        """Read the active log to its end. Errors: FileReplaced if that takes too long."""
        active = self.log.active
        until = time.monotonic() + _LOOK_S
        while self._extend(active):
            if time.monotonic() >= until:
                raise FileReplaced

    def _extend(self, segment: Segment) -> bool:
        """Add the next whole batches with a correct CRC, some MiB at most; return False: none."""
        found = segment.log_stat()
        size = found.st_size
        if size <= segment.size:
            return False
        reader = SegmentReader(segment)
        data = reader.read(segment.size, min(size - segment.size, _CHUNK_BYTES))
        needed = size_at(data, 0)
        if len(data) < needed <= size - segment.size:
            data = reader.read(segment.size, needed)
        if self.limit is not None:
            data = data[: _below(data, self.limit())]
        rebuild = Rebuild(
            segment.base_offset,
            self.log.config.index_interval_bytes,
            position=segment.size,
            next_offset=segment.next_offset,
            max_timestamp=segment.max_timestamp,
            max_timestamp_offset=segment.max_timestamp_offset,
        )
        taken = rebuild.feed(data, len(data), segment.size)
        if not taken:
            return False
        at = rebuild.last_batch_position
        mark = (at, data[at - segment.size :][:HEADER_SIZE][: rebuild.position - at])
        marks = self._marked[1]
        if len(marks) >= _MARKS:
            # Keep every other one of the older half.
            marks = (*marks[: _MARKS // 2 : 2], *marks[_MARKS // 2 :])
        self._marked = segment, (*marks, mark)
        summary = SegmentSummary.of(rebuild, rebuild.position, found.st_mtime_ns)
        if segment.size:
            summary = summary._replace(first_timestamp=segment.first_timestamp)
        # The log computes its stable part.
        segment.restore(summary, stable_size=segment.stable_size)
        segment.forget_indexes()
        producers = [ProducerBatch._make(fields) for fields in rebuild.producers]
        self._append(segment, data[:taken], producers)
        return True

    def _append(self, segment: Segment, data: bytes, producers: list[ProducerBatch]) -> None:
        """Add `data`, whole batches at the end of `segment`, to the log.

        `producers`: those of the batches that have one, with positions in the segment's file.
        """
        log = self.log
        undecided = log.producers.first_undecided_offset
        if producers:
            update = ProducerUpdate(log.producers)
            for facts in producers:
                update.add(facts)
            for aborted in update.aborted:
                segment.txn_index.observe(aborted)
            log.transactions.store_producers(segment, 0, update)
        if undecided is None and log.producers.first_undecided_offset is None:
            segment.stable_size = segment.size
        log_end = log.log_end_offset
        log.sync_with_writer(log_end=segment.next_offset)
        stabilized = bool(producers) and log.transactions.update_stable_sizes(undecided, log_end)
        for listener in log.listeners:
            listener.appended(log, segment, segment.size - len(data), data)
        if stabilized:
            for listener in log.listeners:
                listener.stabilized(log)

    def raise_if_corrupt(self, active: Segment) -> None:
        """Check the end of a followed segment. Errors: CorruptRecord if it is no batch."""
        start = SegmentReader(active).read(active.size, 1)
        beyond = self.limit is not None and self.log.log_end_offset >= self.limit()
        if beyond or not any(start):
            return
        raise CorruptRecord(
            "no complete batch with a valid CRC, although the log continues in another segment",
            path=active.log_path,
            position=active.size,
            offset=active.next_offset,
        )

    def end_of_same(self, old: Segment, new: Segment) -> tuple[int, int]:
        """Return the offset and position up to which two segments are known to be equal."""
        nothing = old.base_offset, 0
        if old.base_offset != new.base_offset or old.identity != new.identity:
            return nothing
        if old.sealed:
            same = (old.size, old.mtime_ns) == (new.size, new.mtime_ns)
            return (new.next_offset, new.size) if same else nothing
        for position, header in reversed(self._marked[1]):
            if position + len(header) <= new.size and self._stands(new, ((position, header),)):
                batch = next(SegmentReader(new).batches(position), None)
                if batch is not None:
                    return batch[1].last_offset + 1, position + batch[1].size
        return nothing

    def first_undecided_at(self, offset: int, size: int, segments: Sequence[Segment]) -> int | None:
        """Return the first offset of the oldest transaction that is open at an offset, which is the
        position `size` of the last of these segments, the first ones of the log; None: none is.
        """
        *others, last = segments
        if not size:
            return self.producers_of(others).first_undecided_offset if others else None
        whole = last.size, last.next_offset
        last.size, last.next_offset = size, offset
        try:
            return self.producers_of(segments).first_undecided_offset
        finally:
            last.size, last.next_offset = whole

    def below_limit(
        self,
        limit: int,
        segments: Sequence[Segment],
        log_start: int,
        producers: ProducerState,
    ) -> tuple[Sequence[Segment], ProducerState]:
        """Return the segments of a log that was just loaded, and its producers, before the first
        batch that reaches `limit`.

        The batch of the log start, and all before it, are not hidden: no records above the high
        watermark can be deleted, even if the writer last recorded a lower one.
        """
        if segments[-1].next_offset <= max(limit, log_start):
            return segments, producers
        count = sum(segment.base_offset <= max(limit, log_start) for segment in segments)
        segments = segments[: max(count, 1)]
        active = segments[-1]
        size, next_offset, newest, newest_at = 0, active.base_offset, -1, active.base_offset
        for position, header in SegmentReader(active).batches():
            if header.last_offset >= limit and header.base_offset >= log_start:
                break
            size, next_offset = position + header.size, header.last_offset + 1
            if header.max_timestamp > newest:
                newest, newest_at = header.max_timestamp, header.last_offset
        first = active.first_timestamp if size else -1
        active.restore(SegmentSummary(size, next_offset, active.mtime_ns, first, newest, newest_at))
        active.close_descriptors()
        # Transactions that begin or end after the log end are read again when the end moves.
        return segments, self.producers_of(segments)

    def producers_of(self, segments: Iterable[Segment]) -> ProducerState:
        """Return the state of the producers at the end of `segments`, the first ones of the log."""
        names = set(self.log.files.names(self.log.directory))
        return replay(self.files_of_log(), [Loaded(each) for each in segments], names)[0]

    def files_of_log(self, log_start: int = 0) -> PartitionFiles:
        """Return the files for loading segments. Their writer is running: it trusts indexes.

        `log_start`: the manifest's entries below it do not count. A broker updates no manifest.
        """
        log = self.log
        broker = os.path.join(os.path.dirname(log.directory), paths.META_PROPERTIES)
        has_manifest = log.has_manifest and not log.files.exists(broker)
        promises = Promises(
            clean=True,
            log_start=log_start,
            manifest_below=paths.MAX_OFFSET if has_manifest else None,
            may_have_gaps=log.may_have_gaps,
        )
        return PartitionFiles(log.files, log.directory, log.config, promises, writable=False)


def is_of(segment: Segment, found: os.stat_result, files: Files, path: str | None = None) -> bool:
    """Return whether the file with the stat `found`, at `path` or the segment's name, is the
    segment's.
    """
    identity = segment.identity
    if identity is None or identity[:2] != (found.st_dev, found.st_ino):
        return False
    # While it is open, no other file has its inode.
    if segment.fd >= 0:
        return True
    try:
        return files.born_ns(path or segment.log_path) == identity[2]
    except FileNotFoundError:
        return False


def _below(data: bytes, limit: int) -> int:
    """Return the bytes of these batches before the first one that reaches `limit`."""
    at = 0
    while (read := at + LAST_OFFSET_DELTA_POSITION + 4) <= len(data):
        last = int.from_bytes(data[at : at + 8], "big", signed=True)
        if data[at + MAGIC_POSITION] == MAGIC:
            last += int.from_bytes(data[read - 4 : read], "big", signed=True)
        size = size_at(data, at)
        if last >= limit or size <= LOG_OVERHEAD:
            break
        at += size
    return min(at, len(data))
