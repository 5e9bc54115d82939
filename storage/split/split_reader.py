"""Reads a split: decodes batches to columns, from a directory that another process writes.

The directory's owner may roll, delete or clean segments meanwhile. If a segment is missing, or
removed during the read, the reader looks for it again, from the offset that it has reached. It uses
a position, from the split or from an index, only if a sound batch at it begins at or before the
wanted offset.

`read_split` yields `Columns`, each of one row or more, in the order of offsets, timestamps in µs.
Control records and those of aborted transactions are skipped. Every CRC is checked, except for
batches that a condition excludes by their headers.

Works on any `Files` that can list a directory and read: no maps, no locks. Not here: planning
(`split`), finding segments (`split_finder`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from storage import paths
from storage.byte_source import ByteSource, FileSource
from storage.errors import CorruptRecord, OffsetOutOfRange, SegmentGone
from storage.files import Files
from storage.index.index import OFFSET, Index
from storage.record._batch import walk_batches
from storage.record.columns._columns import AbortedSpans, Columns, decode_columns
from storage.record.columns._predicate import Predicate
from storage.record.header import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    Buffer,
    size_at,
)
from storage.segment.batch_check import sound_batch
from storage.segment.walk import Walk, buffered
from storage.split.split_finder import Finder, Patience, Place, Split

# Fits into the processor's cache.
CHUNK_BYTES = 1024 * 1024
# Bytes of decompressed batches that are in memory at once, unless one is larger.
_PLAIN_BYTES = 32 * 1024 * 1024
_GONE = (errno.ENOENT, errno.ESTALE)

Seen: TypeAlias = Callable[[memoryview, int, int], None]


class Wanted(NamedTuple):
    """The columns to decode."""

    keys: bool = True
    values: bool = True
    headers: bool = True
    offsets: bool = True
    timestamps: bool = True
    timestamp_types: bool = True


def read_split(
    files: Files,
    split: Split,
    wanted: Wanted | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    seen: Seen = lambda data, position, size: None,
    predicate: Predicate | None = None,
) -> Iterator[Columns]:
    """Yield the records of a split, some `chunk_bytes` of log at a time.

    `predicate`: only records for which it is true; columns without rows are yielded, too, because
    they count the decoded records.

    `seen(data, position, size)` is called before columns are yielded, with their batches: whole and
    consecutive, perhaps some from before the split among them. It is not called for segments that
    do not hold batches. Errors: OffsetOutOfRange if the first records were deleted (retention), or
    the log ends before the split does; CorruptRecord with path, position and offset;
    UnknownTopicOrPartition if the directory was deleted; SegmentGone if a cleaner was stopped in
    the middle; OSError.
    """
    sound = split
    if split.lost is not None:
        path, lost = split.lost
        end = max(min(lost.first_offset, split.to_offset), split.from_offset)
        before = tuple(base for base in split.segments if base < lost.first_offset)
        sound = split._replace(to_offset=end, segments=before)
    yield from _Reader(files, sound, wanted or Wanted(), chunk_bytes, seen, predicate).run()
    if split.lost is not None and lost.first_offset < split.to_offset:
        raise lost.error(path)


class _Reader:
    """Reads one split; `next_offset`: the first offset that was not read."""

    def __init__(
        self,
        files: Files,
        split: Split,
        wanted: Wanted,
        chunk_bytes: int,
        seen: Seen,
        predicate: Predicate | None,
    ) -> None:
        self._files = files
        self._split = split
        self._finder = Finder(files, split)
        self._wanted = wanted
        self._window_bytes = max(chunk_bytes, HEADER_SIZE)
        self._seen = seen
        self._predicate = predicate
        self._aborted = AbortedSpans(split.aborted)
        self.next_offset = split.from_offset

    def run(self) -> Iterator[Columns]:
        patience = Patience()
        failure: SegmentGone | None = None
        while self.next_offset < self._split.to_offset:
            before = self.next_offset
            place = self._finder.find(self.next_offset, refresh=failure is not None)
            try:
                yield from self._read(place)
                failure = None
            except SegmentGone as error:
                failure = error
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                failure = SegmentGone(
                    "this segment is listed but does not exist", path=place.path, offset=before
                )
            if self.next_offset > before:
                patience = Patience()
            elif failure is not None and not patience.wait():
                raise failure

    # -- a segment -----------------------------------------------------------------------------

    def _read(self, place: Place) -> Iterator[Columns]:
        """Read the segment from `next_offset` on."""
        fd = self._files.open(place.path, os.O_RDONLY)
        try:
            self._finder.check_topic()
            source = FileSource(self._files, fd, place.path)
            yield from self._windows(fd, place, self._start(source, place))
        finally:
            self._files.close(fd)
        if self.next_offset >= self._split.to_offset:
            return
        if place.following == self.next_offset:
            return
        # Either there is no record up to the next segment, or the list was out of date, and the
        # rest lies in segments that are not in it.
        now = self._finder.find(self.next_offset, refresh=True)
        if now.base_offset != place.base_offset:
            return
        if now.following is not None:
            if place.following is not None:
                self.next_offset = max(self.next_offset, now.following)
            return
        raise OffsetOutOfRange(
            self._split.to_offset, now.log_start, self.next_offset, path=self._split.directory
        )

    def _start(self, source: ByteSource, place: Place) -> int:
        """Return the position of a batch at or before the record at `next_offset`."""
        offset = self.next_offset
        if offset <= place.base_offset:
            return 0
        if place.entries is not None:
            try:
                place.entries.set_size(source.size())
                return place.entries.position_before(offset)
            finally:
                place.entries.close_descriptors()
        split = self._split
        planned = (split.base_offset, split.from_offset) == (place.base_offset, offset)
        if planned and (
            self._is_before(source, split.position, offset, offset - 1)
            or self._is_before(source, split.position, offset, offset)
        ):
            return split.position
        named, position = self._indexed(place, offset)
        return position if self._is_before(source, position, offset, named) else 0

    def _indexed(self, place: Place, offset: int) -> tuple[int, int]:
        """Return the offset and the position of a batch by the index, or zeros."""
        path = place.path.removesuffix(paths.LOG) + paths.INDEX
        try:
            index = Index.of_file(self._files, OFFSET, path, place.base_offset, is_active=True)
            with contextlib.closing(index):
                named, position = index.lookup(offset)
            return named, max(position, 0)
        except (OSError, SegmentGone):
            return 0, 0

    def _is_before(self, source: ByteSource, position: int, offset: int, named: int) -> bool:
        """Return whether a sound batch at the position begins at or before `offset` and includes
        the offset `named`, as no CRC covers its base offset.

        A wrapper's offset is that of its last record, so this is enough for a wrapper, too.
        """
        if position == 0:
            return True
        header = sound_batch(source, position, source.size())
        if header is None or not 0 <= header.base_offset <= offset:
            return False
        return header.magic < MAGIC or header.base_offset <= named <= header.last_offset

    def _windows(self, fd: int, place: Place, position: int) -> Iterator[Columns]:
        """Decode the file from `position` on to the split's end, or to its last whole batch."""
        decode = self._decode if place.entries is None else self._decode_entries
        lowest = place.base_offset
        limit = paths.MAX_OFFSET if place.following is None else place.following
        walk = Walk(
            buffered(self._files, fd).read, position, self._files.size(fd), self._window_bytes
        )
        for data in walk:
            # Its writer may be running.
            walk.end = self._files.size(fd)
            start, at = walk.position, 0
            while at < len(data):
                first = lowest
                try:
                    columns, size, lowest, ended = decode(data, at, place, start + at, lowest)
                except CorruptRecord as error:
                    raise self._located(error, place, start) from None
                if lowest > limit:
                    limit = self._confirmed(fd, place, start + at, lowest - 1)
                at += size
                if ended and lowest < self._split.to_offset:
                    # A batch lies after the split, unless its base offset is damaged.
                    base = int.from_bytes(data[at : at + 8], "big", signed=True)
                    if base >= limit:
                        self._confirmed(fd, place, start + at, base)
                    self._check_gap(fd, place, start + at, lowest)
                    lowest = self._split.to_offset
                if ended and size and place.entries is None:
                    self._check_last(fd, place, data[at - size : at], start + at - size, first)
                self.next_offset = max(self.next_offset, lowest)
                if columns.rows or columns.judged:
                    yield columns
                if ended:
                    return
                if not size:
                    break
            walk.position += at
            if place.entries is not None and not at:
                walk.needed = min(len(data) + self._window_bytes, walk.end - start)
        if place.following is not None and walk.position < self._files.size(fd):
            torn = CorruptRecord("the last batch is incomplete")
            raise self._located(torn, place, walk.position)

    def _confirmed(self, fd: int, place: Place, position: int, offset: int) -> int:
        """Return a limit for offsets, if one at `position` is not below the next listed segment's.

        Errors: CorruptRecord (no CRC covers a base offset), unless the list is older than the open
        file, or the file is not in the log any more.
        """
        following = self._finder.following(place.base_offset)
        if following is None or offset < following:
            return paths.MAX_OFFSET if following is None else following
        try:
            now, then = self._files.file_stat(place.path), self._files.descriptor_stat(fd)
        except FileNotFoundError:
            return paths.MAX_OFFSET
        if (now.st_dev, now.st_ino, now.st_size) != (then.st_dev, then.st_ino, then.st_size):
            return paths.MAX_OFFSET
        raise CorruptRecord(
            f"offset {offset} is not below the next segment's, {following}",
            path=place.path,
            position=position,
            offset=offset,
        )

    def _check_gap(self, fd: int, place: Place, position: int, lowest: int) -> None:
        """Check whether records that the split lacks may be in the batch at `position`, which
        claims to lie after the split. A cleaner may have removed the records, too. Errors:
        CorruptRecord.
        """
        size = size_at(self._files.pread(fd, LOG_OVERHEAD, position), 0)
        data = self._files.pread(fd, min(size, self._files.size(fd) - position), position)
        limit = paths.MAX_OFFSET if place.following is None else place.following
        taken, _, _, _, reason, _ = walk_batches(data, len(data), place.base_offset, lowest, limit)
        if not taken:
            raise CorruptRecord(
                f"it may hold offsets up to {self._split.to_offset - 1}: {reason or 'cut off'}",
                path=place.path,
                position=position,
                offset=lowest,
            )
        self._check_last(fd, place, data, position, lowest)

    def _check_last(self, fd: int, place: Place, data: Buffer, position: int, lowest: int) -> None:
        """Check the base offset of the last batch in `data` by the next batch. `data` lies at
        `position`; its offsets are not below `lowest`. Errors: CorruptRecord.
        """
        base_offset, most = place.base_offset, paths.MAX_OFFSET
        _, last, before, after, _, _ = walk_batches(data, len(data), base_offset, lowest, most)
        behind = position + len(data)
        frame = self._files.pread(fd, LOG_OVERHEAD, behind)
        if last < 0 or len(frame) < LOG_OVERHEAD:
            return
        base = int.from_bytes(frame[:8], "big", signed=True)
        said = int.from_bytes(data[last : last + 8], "big", signed=True)
        if not before <= base < after or base - before < after - said:
            return
        following = self._files.pread(fd, max(size_at(frame, 0), 0), behind)
        if walk_batches(following, len(following), base_offset, before, most)[0]:
            raise CorruptRecord(
                f"base offset {said} is not below the next batch's, {base}",
                path=place.path,
                position=position + last,
                offset=before,
            )

    def _decode(
        self, data: memoryview, at: int, place: Place, position: int, lowest: int
    ) -> tuple[Columns, int, int, bool]:
        """Decode the batches from `data[at]` on, which lies at `position` of the file.

        Return the columns, the number of their bytes, the next offset, and whether the split ends
        there.
        """
        columns = decode_columns(
            *(data, at, len(data) - at),
            from_offset=self.next_offset,
            to_offset=self._split.to_offset,
            **self._wanted._asdict(),
            timestamps_us=True,
            aborted=self._aborted,
            predicate=self._predicate,
            check_crc=True,
            stop=True,
            lowest_offset=lowest,
            plain_bytes=_PLAIN_BYTES,
        )
        self._seen(data, at, columns.consumed)
        return columns, columns.consumed, columns.next_offset, columns.ended

    def _decode_entries(
        self, data: memoryview, at: int, place: Place, position: int, lowest: int
    ) -> tuple[Columns, int, int, bool]:
        """Decode entries of a segment whose file does not hold batches: its offsets are positions.

        Return the columns, the number of their bytes, the next offset, and whether the split ends
        there.
        """
        assert place.entries is not None
        lowest = start = place.base_offset + position
        plain = bytearray()
        while lowest < self._split.to_offset and len(plain) < _PLAIN_BYTES:
            made, taken = place.entries.expand(data, at, len(data), lowest - place.base_offset)
            if not made:
                break
            plain += made
            at += taken
            lowest += taken
        columns = decode_columns(
            *(plain, 0, len(plain)),
            from_offset=self.next_offset,
            to_offset=self._split.to_offset,
            **self._wanted._asdict(),
            timestamps_us=True,
            predicate=self._predicate,
            without_times=True,
        )
        return columns, lowest - start, lowest, lowest >= self._split.to_offset

    def _located(self, error: CorruptRecord, place: Place, position: int) -> CorruptRecord:
        """Return the same error with its place in the file."""
        return CorruptRecord(
            error.message,
            path=place.path,
            position=position + (error.position or 0),
            offset=self.next_offset if error.offset is None else error.offset,
        )
