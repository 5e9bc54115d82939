"""Joins the small batches of a sealed segment into larger ones (`kafkafs.repack`).

A log that is written line by line has a batch for each line, which no codec makes smaller. A
repacked segment has the same records at the same offsets. Neighbours are joined, up to 256 KiB of
plain bytes and `max.message.bytes`, if they are v2 batches of one leader epoch and timestamp type,
without a producer, a transaction, control records or a delete horizon; with LogAppendTime they must
have the same append time. Every other batch, one that is joined with none, and one with records
that cannot be read, is copied byte for byte. So a repacked segment has nothing to join.

The new segment replaces the old one under its own base offset (`replacing`), with the old mtime.
Its text is the same, so this is no change of the past (`state.history`). If it is not smaller, or
does not fit into one segment, the old one stays.

Threads: `repack` runs on a worker thread. It reads under a lease, and changes the log through
`task.on_log_thread` only.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from storage import paths
from storage.compaction._join import Joiner
from storage.compaction.group_writer import GroupWriter
from storage.compaction.passes import WINDOW_BYTES
from storage.compaction.replacing import finish_last, publish_by
from storage.errors import CorruptRecord, StorageError, TaskCancelled
from storage.log.log import Log
from storage.record._batch import walk_batches
from storage.record.compression import codec_number
from storage.record.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    MAGIC,
    BatchHeader,
    Buffer,
    parse_header,
)
from storage.record.plain import compressed
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.walk import Buffered, Walk
from storage.segment.writer import BatchEntry
from storage.settings.config import LogConfig
from storage.task import Task

_log = logging.getLogger(__name__)

PLAIN_BYTES = 256 << 10
"""The most plain bytes of a joined batch."""

_LEVELS = {
    "gzip": "compression_gzip_level",
    "lz4": "compression_lz4_level",
    "zstd": "compression_zstd_level",
}


class Repacked(NamedTuple):
    """Bytes of a segment's log before and after."""

    bytes_before: int
    bytes_after: int


class Joining:
    """Writes the batches of a segment, joined, with a `GroupWriter`.

    `joined`: batches that became part of another one. `unreadable`: why the first batch was copied
    whose records cannot be read though its CRC is right; None: there is none. `finished`: the new
    segment is as large as the old one, so the rest is left out.
    """

    def __init__(self, writer: GroupWriter, config: LogConfig, old: Segment) -> None:
        self.finished = False
        self.joined = 0
        self.unreadable: CorruptRecord | None = None
        self._writer = writer
        self._old = old
        self._next_offset = old.base_offset
        # Of transactions with markers in the segment, by marker.
        self._aborted = list(old.aborted)
        self._codec = codec_number(config.kafkafs_repack)
        level = _LEVELS.get(config.kafkafs_repack)
        self._level = None if level is None else getattr(config, level)
        self._joiner = Joiner(min(PLAIN_BYTES, config.max_message_bytes))
        # The kind of the batches in the joiner, and the stored form of the only one.
        self._kind: tuple[int, int, int] | None = None
        self._stored = b""
        self._out = bytearray()
        self._entries: list[BatchEntry] = []

    def take(self, data: memoryview) -> int:
        """Take the sound batches at the start of `data`, the log's bytes after those that were
        taken before; return the number of their bytes. Errors: OSError, CorruptRecord.
        """
        old = self._old
        taken, _, _, self._next_offset, _, _ = walk_batches(
            data, len(data), old.base_offset, self._next_offset, old.next_offset
        )
        at = 0
        while at < taken:
            header = parse_header(data[at:taken])
            self._take_batch(bytes(data[at : at + header.size]), header)
            at += header.size
        if len(self._out) >= WINDOW_BYTES:
            self._write()
        return taken

    def _take_batch(self, stored: bytes, header: BatchHeader) -> None:
        kind = _kind(header)
        plain: Buffer = b""
        try:
            if kind is not None:
                plain, _ = self._old.expand(stored, 0, len(stored), 0)
                if kind == self._kind and self._joiner.add(plain):
                    return
        except CorruptRecord as error:
            self._note_unreadable(error, header)
            kind = None
        # (An error of the last batch's compression is not of this batch.)
        self._end_batch()
        try:
            if kind is not None:
                self._joiner.add(plain)
        except CorruptRecord as error:
            self._note_unreadable(error, header)
            kind = None
        if kind is None:
            self._put(stored, header)
        else:
            self._kind, self._stored = kind, stored

    def _note_unreadable(self, error: CorruptRecord, header: BatchHeader) -> None:
        if self.unreadable is None:
            self.unreadable = CorruptRecord(
                error.message, path=self._old.log_path, offset=header.base_offset
            )

    def end(self) -> None:
        """Write the rest. Errors: OSError, CorruptRecord."""
        self._end_batch()
        self._write()

    def _end_batch(self) -> None:
        if self._kind is None:
            return
        self._kind = None
        count, stored = self._joiner.count, self._stored
        made = self._joiner.take()
        if count > 1:
            self.joined += count - 1
            stored = compressed(made, self._codec, self._level)
        self._put(stored, parse_header(stored))

    def _put(self, stored: bytes, header: BatchHeader) -> None:
        entry = (len(self._out), len(stored), header.last_offset, header.max_timestamp)
        self._entries.append(entry)
        self._out += stored

    def _write(self) -> None:
        if not self._entries:
            return
        last = self._entries[-1][2]
        count = sum(entry.last_offset <= last for entry in self._aborted)
        aborted, self._aborted = self._aborted[:count], self._aborted[count:]
        self._writer.append(self._out, self._entries, aborted)
        self.finished = sum(each.size for each in self._writer.segments) >= self._old.size
        self._out, self._entries = bytearray(), []


def _kind(header: BatchHeader) -> tuple[int, int, int] | None:
    """Return what batches must have in common to be joined; None: it is joined with none."""
    if header.magic != MAGIC or header.records_count <= 0:
        return None
    # (A foreign batch without a producer may have an epoch or a sequence.)
    if (header.producer_id, header.producer_epoch, header.base_sequence) != (-1, -1, -1):
        return None
    if header.attributes & ~(CODEC_BITS | APPEND_TIME_BIT):
        return None
    append_time = header.attributes & APPEND_TIME_BIT
    return header.leader_epoch, append_time, header.max_timestamp if append_time else 0


def due(log: Log) -> list[Segment]:
    """Return the segments of a log that nobody has tried to repack, or had no room, in order.

    Their records are all decided. The first call reads the history.
    """
    if log.closed or log.read_only or not log.may_be_repacked:
        return []
    history, decided = log.history, log.decided_end
    return [
        segment
        for segment, following in itertools.pairwise(log.segments)
        if following.base_offset <= decided and history.is_repack_due(segment.base_offset)
    ]


def repack_all(log: Log, now_ms: int, task: Task) -> list[Repacked]:
    """Repack each segment that is `due`, the oldest first; one with damage, or that is refused with
    CorruptRecord, stays as it is. One without room stays due.

    Errors: those of `repack`, CorruptRecord only for damage in another segment; OSError (ENOSPC)
    when all were tried. The other errors concern the disk or the log, so no other segment is tried;
    the remaining ones are due the next time.
    """
    done: list[Repacked] = []
    no_room: OSError | None = None
    for segment in task.on_log_thread(lambda: due(log)):
        try:
            outcome = repack(log, segment, now_ms, task)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            no_room = error
        else:
            if outcome is not None:
                done.append(outcome)
    if no_room is not None:
        raise no_room
    return done


def repack(log: Log, segment: Segment, now_ms: int, task: Task) -> Repacked | None:
    """Repack a sealed segment of a log; None: it stays as it is, because that is no gain, or it is
    damaged. Note in the history that it was tried, or that it had no room.

    `now_ms`: wall time. Errors: TaskCancelled, also if the settings or the log have changed
    meanwhile; CorruptRecord if another segment is damaged, BlockingIOError if another change is
    being made: try again later; OSError, StorageError. The log has the old segment then, unless
    only the names of the new one's files are not final yet.
    """
    # (A truncation waits until the history has the note: it may give the offset to other records.)
    with _held(log, segment, task) as config:
        note = partial(log.history.note_repacked, segment.base_offset)
        try:
            outcome = None
            if not segment.damages:
                outcome = _repack(log, segment, config, now_ms, task)
        except CorruptRecord as error:
            if paths.base_offset_of(os.path.basename(error.path or "")) != segment.base_offset:
                raise
            if not segment.damages:
                _log.warning("%s: the segment is not repacked: %s", log.name, error)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                note(is_postponed=True)
            raise
        note()
    return outcome


def _repack(
    log: Log, segment: Segment, config: LogConfig, now_ms: int, task: Task
) -> Repacked | None:
    try:
        finish_last(log, task)
        # The new segment takes no room from appends.
        log.files.check_room()
        log.files.check_free(log.directory, 2 * segment.size)
        new = _joined(log, segment, config, now_ms, task)
        if new is None:
            return None
        _swap(log, segment, new, task)
    except TaskCancelled:
        raise
    except (StorageError, OSError) as error:
        if log.closed:
            raise TaskCancelled("the topic has been deleted") from error
        if isinstance(error, CorruptRecord):
            SegmentReader(segment).check_again(0, segment.size)
        raise
    return Repacked(segment.size, new.size)


@contextlib.contextmanager
def _held(log: Log, segment: Segment, task: Task) -> Iterator[LogConfig]:
    """Exclude cleaners and retention from the log, and lease the segment. Yield the settings, which
    allow it.
    """

    def begin() -> LogConfig:
        _check_may(log)
        if log.cleaning or segment not in log.segments[:-1]:
            raise TaskCancelled("the log is being changed")
        segment.lease()
        log.cleaning = True
        return log.config

    def end() -> None:
        log.cleaning = False
        segment.release()

    config = task.on_log_thread(begin)
    try:
        yield config
    finally:
        task.on_log_thread(end)


def _check_may(log: Log) -> None:
    """Check that the log may be repacked. Errors: TaskCancelled."""
    if log.closed or log.read_only or not log.may_be_repacked:
        raise TaskCancelled("the settings of the topic no longer allow it")


def _joined(log: Log, old: Segment, config: LogConfig, now_ms: int, task: Task) -> Segment | None:
    """Write a segment with the joined batches, durably; None: it would be no gain."""
    following = log.segments[log.segments.index(old) + 1].base_offset
    task.begin("repacking", old.size)
    writer = GroupWriter(
        *(log.files, log.directory, old.base_offset, config), now_ms=now_ms, pace=task.pace
    )
    try:
        joining = Joining(writer, config, old)
        _join(old, joining, task)
        if joining.unreadable is not None:
            _log.warning("%s: a batch cannot be read: %s", log.name, joining.unreadable)
        if joining.joined and len(writer.segments) == 1 and not joining.finished:
            writer.end(min(old.next_offset, following), old.mtime_ns)
            return writer.segments[0]
    except BaseException:
        for each in writer.segments:
            each.discard()
        raise
    for each in writer.segments:
        each.discard()
    return None


def _join(old: Segment, joining: Joining, task: Task) -> None:
    walk = Walk(Buffered(SegmentReader(old).raw).read, 0, old.size, WINDOW_BYTES)
    for data in walk:
        taken = joining.take(data)
        walk.position += taken
        task.advance(taken)
        if joining.finished:
            return
    if walk.position < old.size:
        reason = "a batch is damaged or truncated"
        raise CorruptRecord(reason, path=old.log_path, position=walk.position)
    joining.end()


def _swap(log: Log, old: Segment, new: Segment, task: Task) -> None:
    try:
        try:
            _prepare(log, old, new, task)
        except BaseException:
            new.discard()
            raise
        _replace(log, old, new, task)
    finally:
        for listener in log.listeners:
            listener.repack_ended(log)


def _prepare(log: Log, old: Segment, new: Segment, task: Task) -> None:
    """Make all durable that a restart needs, whether it finds the old segment or the new one."""

    def prepare() -> list[Callable[[], None] | None]:
        _check_may(log)
        return [listener.preparing_repack(log, old, new) for listener in log.listeners]

    task.begin("replacing", 0)
    log.flush(task.on_log_thread)
    for write in task.on_log_thread(prepare):
        if write is not None:
            write()
    log.files.sync_directory(log.directory)
    segments = task.on_log_thread(lambda: log.segments)
    active = segments[-1]
    active.lease()
    try:
        log.history.begin_repack(segments, old, new)
    finally:
        active.release()


def _replace(log: Log, old: Segment, new: Segment, task: Task) -> None:
    def replace() -> None:
        _check_may(log)
        log.repack(old, new, log.monotonic_ms())

    publish_by(replace, log, (old,), (new,), task)
