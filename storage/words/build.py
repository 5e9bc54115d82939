"""Builds the `.words` file of a sealed segment (`layout`).

It has the words of aborted transactions, too, but not those of control records. Building takes up
to 60 MB of memory beside a batch in plain form.
"""

from __future__ import annotations

import struct
from os import urandom

from storage.errors import CorruptRecord
from storage.record.crc import crc32c
from storage.record.header import Buffer
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.walk import WINDOW_BYTES, Buffered, Walk
from storage.task import Task
from storage.words._words import MOST_BLOCKS, MOST_ENTRIES, PartBuilder
from storage.words.layout import (
    BLOCK_BYTES,
    HEADER_SIZE,
    MAGIC,
    PART,
    VERSION,
    Header,
    Part,
    batch_header,
    end_of_log,
)


def build(segment: Segment, path: str, task: Task) -> int:
    """Write the words of a sealed segment to `path`; return the size of that file.

    The caller leases the segment. Errors: CorruptRecord if a batch is damaged or cannot be read,
    OSError, SegmentGone, TaskCancelled; a file at `path` stays as it was.
    """
    task.begin("indexing words", segment.size)
    log_end = end_of_log(segment)
    with segment.disk.replacing(path) as fd:
        builder = _Builder(segment, fd)
        walk = Walk(Buffered(SegmentReader(segment).raw).read, 0, segment.size, WINDOW_BYTES)
        last = 0
        for data in walk:
            at = 0
            while at < len(data):
                position = walk.position + at
                try:
                    plain, size = segment.expand(data, at, len(data), position)
                    if not plain:
                        walk.needed = 0 if at else size
                        break
                    builder.add(plain)
                except CorruptRecord as error:
                    error.path, error.position = segment.log_path, position
                    raise
                # The next batch finds the memory of this one.
                del plain
                last, at = position, at + size
                task.advance(size)
            walk.position += at
        if walk.position < segment.size:
            reason = "a batch is truncated"
            raise CorruptRecord(reason, path=segment.log_path, position=walk.position)
        # A run of small messages was expanded as one batch.
        last = max((at for at, _ in segment.headers(last, segment.size)), default=last)
        return builder.end(last, batch_header(segment, last) + log_end)


class _Builder:
    """Writes a `.words` file of a segment's batches."""

    def __init__(self, segment: Segment, fd: int) -> None:
        self._segment = segment
        self._fd = fd
        self._position = HEADER_SIZE
        random = urandom(16)
        self._secret = int.from_bytes(random[:8]), int.from_bytes(random[8:])
        self._entries = PartBuilder(*self._secret, segment.base_offset)
        self._block_bytes = 0
        self._part_blocks = 0
        self._nexts: list[int] = []
        self._parts: list[Part] = []

    def add(self, plain: Buffer) -> None:
        """Add the next batch, in plain form. Errors: CorruptRecord, OSError."""
        self._entries.read(plain)
        if self._entries.next_offset > self._segment.next_offset:
            raise CorruptRecord("the batch exceeds the offsets of the segment")
        self._block_bytes += len(plain)
        if self._block_bytes >= BLOCK_BYTES:
            self._end_block()

    def _end_block(self) -> None:
        entries = self._entries
        count, following = entries.block_count, entries.next_offset
        if self._part_blocks == MOST_BLOCKS or entries.count + (count or 0) > MOST_ENTRIES:
            self._end_part()
        entries.end_block(self._part_blocks)
        self._part_blocks += 1
        self._nexts.append(~following if count is None else following)
        self._block_bytes = 0

    def _end_part(self) -> None:
        if not self._part_blocks:
            return
        start = self._position
        pages, directory, buckets = self._entries.end(start)
        self._write(pages)
        self._parts.append(Part(start, self._position, self._part_blocks, buckets))
        self._write(directory)
        self._part_blocks = 0

    def end(self, last_batch: int, checked: bytes) -> int:
        """Write the rest; return the file's size. `checked`: the bytes of log that the header's CRC
        covers. Errors: OSError.
        """
        if self._block_bytes:
            self._end_block()
        self._end_part()
        index = struct.pack(f"<{len(self._nexts)}q", *self._nexts)
        index += b"".join(PART.pack(*part) for part in self._parts)
        header = Header(
            MAGIC,
            VERSION,
            crc32c(checked),
            self._segment.base_offset,
            self._segment.size,
            last_batch,
            *self._secret,
            self._position,
            len(self._nexts),
            len(self._parts),
            crc32c(index),
        )
        self._write(index)
        self._segment.disk.pwrite(self._fd, header.packed(), 0)
        return self._position

    def _write(self, data: bytes | bytearray) -> None:
        self._segment.disk.pwrite(self._fd, data, self._position)
        self._position += len(data)
