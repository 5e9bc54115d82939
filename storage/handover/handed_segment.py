"""Puts one segment into a broker's directory: reads its log, and rebuilds its indexes.

Every batch is checked (size, CRC, ascending offsets), so that a broker gets whole batches only. A
cluster assigns leader epochs: those above 0 become 0, so that no follower or consumer meets an
epoch that is still unknown in the broker's metadata. No CRC covers them. Records of groups change
for the broker (`group_records`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.handover import group_records
from storage.index import txn_index
from storage.index.txn_index import TxnEntry
from storage.record._batch import Rebuild
from storage.record.header import MAGIC, MAGIC_POSITION, size_at
from storage.segment.segment import Segment
from storage.segment.walk import feed, sealed_times
from storage.state.producer_state import ProducerBatch, ProducerState
from storage.task import Task

_EPOCH = slice(12, 16)


class Part(NamedTuple):
    """The head of a segment that is handed over: its first `size` bytes, up to the offset `end`."""

    segment: Segment
    size: int
    end: int


class Receiver(NamedTuple):
    """The target directory, and the user who has to own the files."""

    files: Files
    directory: str
    uid: int
    gid: int

    def path(self, base_offset: int, suffix: str) -> str:
        return os.path.join(self.directory, paths.file_name(base_offset, suffix))

    def own(self, path: str) -> None:
        """Give a new file to that user."""
        if self.uid != os.geteuid():
            self.files.chown(path, self.uid, self.gid)

    @contextlib.contextmanager
    def created(self, path: str) -> Iterator[int]:
        """Make a file, and let the block write it; then it is durable except its name."""
        with self.files.held_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            self.own(path)
            yield fd
            self.files.fsync(fd)

    def put(self, path: str, data: bytes | bytearray) -> None:
        """Make a file with these bytes, durable except its name."""
        with self.created(path) as fd:
            if data:
                self.files.pwrite(fd, data, 0)


def hand_segment(
    part: Part,
    receiver: Receiver,
    interval: int,
    *,
    may_link: bool,
    task: Task,
    ids: Mapping[bytes, bytes] | None,
    producers: ProducerState,
) -> tuple[bool, int | None]:
    """Put a segment's log and indexes there, durable except their names.

    `interval`: index.interval.bytes. `may_link`: link the log, which is not written any more,
    instead of copying it, unless it has to change or has another owner. `ids`: for records of
    groups, ids of topics and their replacements; None: other records. `producers` get the batches.

    Return whether both sides share the log's file now, and the offset of the first batch with a
    leader epoch, or None. Errors: CorruptRecord, HandoverRefused, TaskCancelled, OSError.
    """
    files, segment = receiver.files, part.segment
    path = receiver.path(segment.base_offset, paths.LOG)
    rebuild = None
    if may_link and ids is None and _is_linkable(files, part, receiver):
        rebuild = _read(files, part, interval, task, None, ids)
        if _has_other_epochs(rebuild):
            rebuild = None
        else:
            files.link(segment.log_path, path)
    linked = rebuild is not None
    if rebuild is None:
        with receiver.created(path) as fd:
            rebuild = _read(files, part, interval, task, fd, ids)
        # Retention uses it for records without timestamps.
        files.utime_ns(path, segment.mtime_ns)
    aborted = [entry for entry in segment.aborted if entry.last_offset < part.end]
    _put_indexes(receiver, rebuild, aborted)
    for fields in rebuild.producers:
        producers.apply(ProducerBatch(*fields))
    epochs = rebuild.epochs
    return linked, epochs[0][1] if epochs else None


def put_segment(
    receiver: Receiver, batches: bytearray, base: int, interval: int, producers: ProducerState
) -> None:
    """Put a segment with these new batches there, durable except the names of its files."""
    rebuild = Rebuild(base, interval)
    rebuild.feed(batches, len(batches), 0)
    assert rebuild.fault is None
    receiver.put(receiver.path(base, paths.LOG), batches)
    entries = (producers.apply(ProducerBatch(*fields)) for fields in rebuild.producers)
    _put_indexes(receiver, rebuild, [entry for entry in entries if entry is not None])


def _put_indexes(receiver: Receiver, rebuild: Rebuild, aborted: Sequence[TxnEntry]) -> None:
    base = rebuild.base_offset
    receiver.put(receiver.path(base, paths.INDEX), rebuild.offset_entries)
    receiver.put(receiver.path(base, paths.TIMEINDEX), sealed_times(rebuild))
    if aborted:
        receiver.put(receiver.path(base, paths.TXNINDEX), txn_index.encode(aborted))


def _is_linkable(files: Files, part: Part, receiver: Receiver) -> bool:
    stat = files.file_stat(part.segment.log_path)
    return stat.st_uid == receiver.uid and stat.st_size == part.size


def _has_other_epochs(rebuild: Rebuild) -> bool:
    return bool(rebuild.epochs) and rebuild.epochs[-1][0] > 0


def _read(
    files: Files,
    part: Part,
    interval: int,
    task: Task,
    target: int | None,
    ids: Mapping[bytes, bytes] | None,
) -> Rebuild:
    """Walk a log, and write it to `target` as the broker gets it."""
    segment = part.segment
    rebuild = Rebuild(segment.base_offset, interval)
    with files.held_open(segment.log_path) as fd:
        for chunk, taken, start in feed(files, fd, part.size, rebuild):
            if target is not None and taken:
                if _has_other_epochs(rebuild):
                    _clear_epochs(chunk, taken)
                if ids is not None:
                    group_records.change(chunk, taken, ids, segment.log_path)
                files.pwrite(target, chunk[:taken], start)
            task.advance(taken)
    reason = rebuild.fault
    if reason is None and rebuild.position != part.size:
        reason = "a batch is truncated"
    if reason is None and rebuild.next_offset > part.end:
        reason = f"it ends at offset {rebuild.next_offset}, but the next segment begins earlier"
    if reason is not None:
        raise CorruptRecord(reason, path=segment.log_path, position=rebuild.position)
    return rebuild


def _clear_epochs(data: memoryview, end: int) -> None:
    """Set the leader epochs of whole, valid batches to 0."""
    at = 0
    while at < end:
        if data[at + MAGIC_POSITION] == MAGIC:
            data[at + _EPOCH.start : at + _EPOCH.stop] = bytes(4)
        at += size_at(data, at)
