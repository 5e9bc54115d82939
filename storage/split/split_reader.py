"""Reads a split: decodes batches to columns, from a directory that another process writes.

The directory's owner may roll, delete or clean segments meanwhile. If a segment is missing, or
removed during the read, the reader looks for it again, from the offset that it has reached. It uses
a position, from the split or from an index, only if a sound batch at it begins at or before the
wanted offset.

`read_split` yields `Columns` in the order of offsets, timestamps in µs.
Control records and those of aborted transactions are skipped. `SegmentReader` checks every batch
that is read, also one that a condition then excludes by its header. If the log ends inside a batch,
it ends too early; other damage is CorruptRecord.

Works on any `Files` that can list a directory and read: no maps, no locks. Not here: planning
(`split`), finding segments (`split_finder`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

from storage.errors import CorruptRecord, OffsetOutOfRange, SegmentGone
from storage.files import Files
from storage.record.columns._columns import AbortedSpans, Columns, decode_columns
from storage.record.columns._predicate import Predicate
from storage.record.header import FRAME_SIZE, HEADER_SIZE, LOG_OVERHEAD, size_at
from storage.segment.batch_check import CHECKED_BYTES
from storage.segment.reader import SegmentReader, Start
from storage.segment.segment import Segment
from storage.segment.walk import Walk, buffered
from storage.split.split_finder import Finder, Patience, Place, Split

# Fits into the processor's cache.
CHUNK_BYTES = 1024 * 1024
# Bytes of decompressed batches that are in memory at once, unless one is larger.
_PLAIN_BYTES = 32 * 1024 * 1024
_GONE = (errno.ENOENT, errno.ESTALE)


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
    predicate: Predicate | None = None,
) -> Iterator[Columns]:
    """Yield the records of a split, some `chunk_bytes` of log at a time.

    `predicate`: only records for which it is true. Columns without rows are yielded, too, because
    they count batches and decoded records.

    Errors: OffsetOutOfRange if the first records were deleted (retention), or the log ends before
    the split does; CorruptRecord with path, position and offset; UnknownTopicOrPartition if the
    directory was deleted; SegmentGone if a cleaner was stopped in the middle; OSError.
    """
    sound = split
    if split.lost is not None:
        path, lost = split.lost
        end = max(min(lost.first_offset, split.to_offset), split.from_offset)
        before = tuple(base for base in split.segments if base < lost.first_offset)
        sound = split._replace(to_offset=end, segments=before)
    yield from _Reader(files, sound, wanted or Wanted(), chunk_bytes, predicate).run()
    if split.lost is not None and lost.first_offset < split.to_offset:
        raise lost.error(path)


class _Window:
    """Reads the log of a segment from `start` on, each byte once, and checks it.

    The check of a batch needs the start of the next one, too. The next window begins with it.
    """

    def __init__(self, files: Files, place: Place, start: Start) -> None:
        self._place = place
        self._reader = SegmentReader(place.segment)
        self._source = buffered(files, place.segment.log_fd())
        self._start: Start | None = start

    def read(self, position: int, size: int) -> memoryview:
        """Return the sound bytes from `position` on: `size`, or one batch, or what is left.

        Errors: CorruptRecord, SegmentGone, OSError.
        """
        segment, source = self._place.segment, self._source
        data = source.read(position, size)
        if segment.holds_batches and len(data) >= LOG_OVERHEAD:
            needed = min(size_at(data, 0) + FRAME_SIZE, segment.size - position)
            if len(data) < needed <= CHECKED_BYTES:
                data = source.read(position, needed)
        start, self._start = self._start, None
        try:
            return data[: self._reader.sound_part(data, position, start)]
        except CorruptRecord:
            if self._place.following is None and self._is_cut(data, position):
                return data[:0]
            raise

    def _is_cut(self, data: memoryview, position: int) -> bool:
        """Return whether the file ends inside the batch that starts with `data`."""
        segment = self._place.segment
        if not segment.damages or segment.damages[-1].end < segment.size:
            return False  # the size of the batch is wrong, and others follow
        end = segment.disk.size(segment.log_fd())
        return len(data) < LOG_OVERHEAD or position + size_at(data, 0) > end


class _Reader:
    """Reads one split; `next_offset`: the first offset that was not read."""

    def __init__(
        self,
        files: Files,
        split: Split,
        wanted: Wanted,
        chunk_bytes: int,
        predicate: Predicate | None,
    ) -> None:
        self._files = files
        self._split = split
        self._finder = Finder(files, split)
        self._wanted = wanted
        self._window_bytes = max(chunk_bytes, HEADER_SIZE)
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
                    "this segment is listed but does not exist",
                    path=place.segment.log_path,
                    offset=before,
                )
            if self.next_offset > before:
                patience = Patience()
            elif failure is not None and not patience.wait():
                raise failure

    # -- a segment -----------------------------------------------------------------------------

    def _read(self, place: Place) -> Iterator[Columns]:
        """Read the segment from `next_offset` on."""
        segment = place.segment
        try:
            place.open()
            self._finder.check_topic()
            yield from self._windows(place)
        finally:
            segment.close()
        if self.next_offset >= self._split.to_offset:
            return
        if place.following == self.next_offset:
            return
        # Either there is no record up to the next segment, or the list was out of date, and the
        # rest lies in segments that are not in it.
        now = self._finder.find(self.next_offset, refresh=True)
        if now.segment.base_offset != segment.base_offset:
            return
        if now.following is not None:
            if place.following is not None:
                # A cleaner may have merged the listed next segment into this one meanwhile.
                following = min(place.following, now.following)
                self.next_offset = max(self.next_offset, following)
            return
        raise OffsetOutOfRange(
            self._split.to_offset, now.log_start, self.next_offset, path=self._split.directory
        )

    def _start(self, segment: Segment) -> Start:
        """Return the start of a batch at or before the record at `next_offset`."""
        offset, base, split = self.next_offset, segment.base_offset, self._split
        if offset > base and not segment.holds_batches:
            return segment.position_before(offset), base, base
        if offset > base:
            if split.position and (split.base_offset, split.from_offset) == (base, offset):
                for named in (offset - 1, offset):
                    if segment.can_name(named, split.position):
                        return split.position, base, named
            named, position = segment.offset_index.lookup(offset)
            if position and segment.can_name(named, position):
                return position, base, named
        return 0, base, base

    def _windows(self, place: Place) -> Iterator[Columns]:
        """Decode the segment from `next_offset` on to the split's end, or to its last batch."""
        segment, to_offset = place.segment, self._split.to_offset
        start = self._start(segment)
        window = _Window(self._files, place, start)
        walk = Walk(window.read, start[0], segment.size, self._window_bytes)
        for data in walk:
            at = 0
            while at < len(data):
                try:
                    if segment.holds_batches:
                        columns, size, reached = self._decode(data, at)
                    else:
                        entries = data, at, segment, walk.position + at
                        columns, size, reached = self._decode_entries(*entries)
                except CorruptRecord as error:
                    raise self._located(error, segment, walk.position) from None
                at += size
                self.next_offset = max(self.next_offset, reached)
                if size:
                    yield columns
                if reached >= to_offset:
                    return
                if not size:
                    break
            walk.position += at
            if not segment.holds_batches and not at:
                walk.needed = min(len(data) + self._window_bytes, walk.end - walk.position)
        if place.following is not None and walk.position < segment.size:
            torn = CorruptRecord("the last batch is incomplete")
            raise self._located(torn, segment, walk.position)

    def _decode(self, data: memoryview, at: int) -> tuple[Columns, int, int]:
        """Decode the batches from `data[at]` on.

        Return the columns, the number of their bytes, and the next offset, which is the split's end
        if no record of the split follows.
        """
        columns = decode_columns(
            *(data, at, len(data) - at),
            from_offset=self.next_offset,
            to_offset=self._split.to_offset,
            **self._wanted._asdict(),
            timestamps_us=True,
            aborted=self._aborted,
            predicate=self._predicate,
            stop=True,
            plain_bytes=_PLAIN_BYTES,
        )
        reached = self._split.to_offset if columns.ended else columns.next_offset
        return columns, columns.consumed, reached

    def _decode_entries(
        self, data: memoryview, at: int, segment: Segment, position: int
    ) -> tuple[Columns, int, int]:
        """Decode entries of a segment whose file does not hold batches: its offsets are positions.

        `position`: of `data[at]` in the file. Return as `_decode`.
        """
        lowest = start = segment.base_offset + position
        plain = bytearray()
        while lowest < self._split.to_offset and len(plain) < _PLAIN_BYTES:
            made, taken = segment.expand(data, at, len(data), lowest - segment.base_offset)
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
        return columns, lowest - start, lowest

    def _located(self, error: CorruptRecord, segment: Segment, position: int) -> CorruptRecord:
        """Return the same error with its place in the file."""
        return CorruptRecord(
            error.message,
            path=segment.log_path,
            position=position + (error.position or 0),
            offset=self.next_offset if error.offset is None else error.offset,
        )
