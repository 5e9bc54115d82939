"""Copies records of a cluster into windows: data directories with some MiB of one partition.

A window has the batches as the broker has sent them. So all code that reads a log reads a window.
The window of a read_committed reader ends with a marker for each transaction that is open in it:
the outcome is known, but the broker's own marker may lie behind the window.

A window is deleted as soon as its records are printed. `Windows` has its directories in the cache
of the user, and deletes what processes have left there that were killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.errors import BrokerError, BrokerUnreachable
from kafka_client.fetch import NO_EPOCH, Fetched, Position
from kafka_client.requests import EARLIEST, Offset, list_offsets
from kafkafs.cli.common.clusters import reason_of
from kafkafs.cli.common.mount_files import READ_COMMITTED, opened_tree
from kafkafs.tree.context import cache_root
from storage.record.control import ABORT, COMMIT, encode_marker, parse_marker
from storage.record.header import (
    FLAGS_POSITION,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
    size_at,
)

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem

#: A window is complete at this size. Two of them may be on the disk.
WINDOW_BYTES: Final = 24 << 20
_FETCH_BYTES: Final = 4 << 20
# A few offsets, and the size of a fetch for them.
_FEW: Final = 1000
_FEW_BYTES: Final = 256 << 10
_OFFSET_OUT_OF_RANGE: Final = 1
# A directory that is as new as this may not be locked yet.
_UNLOCKED_S: Final = 60


class Span(NamedTuple):
    """Offsets of a partition. `end` is exclusive; None: all that will be appended, too."""

    start: int
    end: int | None


class Window(NamedTuple):
    """A directory with the records of a partition from one offset up to another."""

    path: str
    partition: TopicPartition
    start: int
    end: int
    isolation: str

    @property
    def points(self) -> str:
        return f"{self.start}..{self.end}"

    @contextmanager
    def deleted_after(self) -> Iterator[FileSystem]:
        """Yield the tree, and delete the window after the block."""
        try:
            cache = os.path.join(self.path, ".cache")
            with opened_tree(self.path, self.isolation, cache) as tree:
                yield tree
        finally:
            shutil.rmtree(self.path)


class Windows:
    """Reads a cluster. `report` gets the reason where records are missing.

    `directory` is the place of the windows, `count` the number that have begun. Not thread-safe.
    """

    def __init__(
        self, cluster: Cluster, directory: str, isolation: str, report: Callable[[object], None]
    ) -> None:
        self.cluster = cluster
        self.isolation = isolation
        self.report = report
        self._directory = directory
        self.count = 0
        # A topic that is deleted and created again is another topic.
        self._topic_ids: dict[str, bytes] = {}

    @property
    def committed(self) -> bool:
        return self.isolation == READ_COMMITTED

    def of(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Window]:
        """Yield the windows of spans. The caller deletes them.

        A span ends at the high watermark (read_committed: the last stable offset) or before it, or
        has no end. Errors: ClientError, OSError.
        """
        left = {each: _Part(*span) for each, span in spans.items() if span.start != span.end}
        is_short = all(end is not None and end - start <= _FEW for start, end in spans.values())
        while left:
            yield from self._read(left, _FEW_BYTES if is_short else _FETCH_BYTES)

    def _read(self, left: dict[TopicPartition, _Part], fetch_bytes: int) -> Iterator[Window]:
        """Read on until nothing is left, or another consumer is needed.

        Partitions move on as they are read. They leave `left` at their end and at an error.
        """
        ends = {each: part.end for each, part in left.items() if part.end is not None}
        writers: dict[TopicPartition, _Writer] = {}
        unreachable: BrokerUnreachable | None = None
        is_over = False
        with Consumer(
            self.cluster,
            {each: self._position(each, part) for each, part in left.items()},
            ends,
            committed=self.committed,
            max_bytes=fetch_bytes,
            partition_bytes=fetch_bytes,
        ) as consumer:
            while not is_over and not consumer.is_done:
                is_quiet = True
                for each in consumer.poll():
                    is_quiet = False
                    part = left[each.partition]
                    if each.error is not None or each.diverging is not None:
                        is_over = True
                        if isinstance(each.error, BrokerUnreachable):
                            unreachable = each.error
                        else:
                            self._failed(each, left)
                        continue
                    if each.records:
                        writer = writers.get(each.partition)
                        if writer is None:
                            writer = writers[each.partition] = self._writer(each.partition, part)
                        writer.add(each)
                        part.start, part.epoch = each.next_offset, writer.epoch
                        if writer.size >= WINDOW_BYTES:
                            yield writers.pop(each.partition).window()
                    if part.end is not None and (not each.records or part.start >= part.end):
                        # Without records, none are left before the end, as after compaction.
                        consumer.drop(each.partition)
                        del left[each.partition]
                if is_quiet and ends and not consumer.is_waiting:
                    # A session leaves out a partition without records: ask in another one.
                    is_over = True
                if not ends:
                    for writer in writers.values():
                        yield writer.window()
                    writers.clear()
        for writer in writers.values():
            yield writer.window()
        if unreachable is not None:
            raise unreachable

    def _position(self, partition: TopicPartition, part: _Part) -> Position:
        topic = partition.topic
        topic_id = self._topic_ids.setdefault(topic, self.cluster.metadata.topics[topic].id)
        return Position(part.start, part.epoch, topic_id=topic_id)

    def _writer(self, partition: TopicPartition, part: _Part) -> _Writer:
        self.count += 1
        path = os.path.join(self._directory, str(self.count))
        return _Writer(path, partition, part, self.isolation)

    def _failed(self, each: Fetched, left: dict[TopicPartition, _Part]) -> None:
        """Report why records are missing. The partition may go on after them."""
        partition, error = each.partition, each.error
        part = left.pop(partition)
        if isinstance(error, BrokerError) and error.code == _OFFSET_OUT_OF_RANGE:
            first = list_offsets(self.cluster, {partition: EARLIEST})[partition]
            if isinstance(first, Offset) and first.offset > part.start:
                gap_end = first.offset if part.end is None else min(first.offset, part.end)
                self.report(
                    f"{partition}: offsets {part.start} to {gap_end - 1} were deleted in the"
                    " cluster before they were read"
                )
                if part.end is None or first.offset < part.end:
                    left[partition] = _Part(first.offset, part.end)
                return
        if error is not None:
            self.report(reason_of(partition, error))
            return
        assert each.diverging is not None
        self.report(
            f"{partition}: the cluster has lost records that were read (an unclean election): its"
            f" log differs from offset {each.diverging[1]} on"
        )


@dataclass
class _Part:
    """The rest of a span, and the leader epoch of the last batch that was read."""

    start: int
    end: int | None
    epoch: int = NO_EPOCH


class _Writer:
    """Writes one window."""

    def __init__(self, path: str, partition: TopicPartition, part: _Part, isolation: str) -> None:
        self._path = path
        self._partition = partition
        self._start = self._next_offset = part.start
        self._end = part.end
        self._isolation = isolation
        self._log = os.path.join(path, f"{partition.topic}-{partition.partition}")
        os.makedirs(self._log)
        self._file: BinaryIO | None = None
        self.size = 0
        self.epoch = NO_EPOCH
        # The last batch of open transactions, and the markers so far, by producer.
        self._open: dict[int, BatchHeader] = {}
        self._ended: dict[int, int] = {}
        self._aborted: set[tuple[int, int]] = set()

    def add(self, each: Fetched) -> None:
        """Append the batches of an answer. Errors: OSError, CorruptRecord."""
        records = each.records
        if self._file is None:
            base = min(parse_header(records).base_offset, self._start)
            path = os.path.join(self._log, f"{base:020}.log")
            self._file = open(path, "wb")  # noqa: SIM115 - `window` closes it
        at = last = 0
        while at < len(records):
            # Most batches have no transaction: read one byte of them, not the header.
            is_v2 = records[at + MAGIC_POSITION] == MAGIC
            if is_v2 and records[at + FLAGS_POSITION] & TRANSACTIONAL_BIT:
                self._note(parse_header(records, at), records, at)
            last = at
            at += size_at(records, at)
        self.epoch = parse_header(records, last).leader_epoch
        self._aborted.update(each.aborted)
        self._file.write(records)
        self.size += len(records)
        self._next_offset = each.next_offset

    def _note(self, header: BatchHeader, records: memoryview, at: int) -> None:
        if not header.is_control:
            self._open[header.producer_id] = header
        elif header.records_count and parse_marker(records, at) is not None:
            self._open.pop(header.producer_id, None)
            self._ended[header.producer_id] = header.base_offset

    def window(self) -> Window:
        """Complete the window. Errors: OSError."""
        assert self._file is not None
        if self._isolation == READ_COMMITTED:
            for number, header in enumerate(self._open.values()):
                self._file.write(self._marker(header, self._next_offset + number))
        self._file.close()
        end = self._next_offset if self._end is None else min(self._next_offset, self._end)
        return Window(self._path, self._partition, self._start, end, self._isolation)

    def _marker(self, last: BatchHeader, offset: int) -> bytearray:
        """Return the marker for a transaction whose last batch in the window is given."""
        producer, begin = last.producer_id, self._ended.get(last.producer_id, -1)
        is_aborted = any(
            each == producer and begin < first <= last.last_offset for each, first in self._aborted
        )
        return encode_marker(
            *(ABORT if is_aborted else COMMIT, producer, last.producer_epoch, 0),
            *(offset, last.max_timestamp, self.epoch),
        )


@contextmanager
def scratch_directory() -> Iterator[str]:
    """Yield an empty directory in the user's cache, and delete it at the end.

    Others there whose process has ended are deleted first. Errors: OSError.
    """
    root = os.path.join(cache_root(), "clusters")
    os.makedirs(root, mode=0o700, exist_ok=True)
    for name in os.listdir(root):
        _delete_unused(os.path.join(root, name))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    path = tempfile.mkdtemp(dir=root)
    fd = os.open(path, os.O_RDONLY)
    try:
        # The lock says that the process runs.
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _delete_unused(path: str) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            if time.time() - os.fstat(fd).st_mtime > _UNLOCKED_S:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        finally:
            os.close(fd)
