"""Reads a split: batches to columns, from a directory that another process writes.

Segments are found by their names.  Meanwhile their owner may have rolled, deleted or cleaned them,
and a swap leaves short moments in which a name is missing: what is not found, or goes while it is
read, is looked for again, from the offset that was reached.  A position, from the split or from an
index, counts where a sound batch lies there that begins at or before the offset that is looked for.

The protocol: ``read_split`` yields ``Columns`` (``record._columns`` describes the buffers), each of
one row or more, in the order of offsets, timestamps in µs.  Control records and those of aborted
transactions are left out; every CRC is checked.

Works on any ``Files`` that can list a directory and read: no maps, no locks.  Not here: planning
(``split``).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from storage import paths
from storage.errors import CorruptRecord, OffsetOutOfRange, SegmentGone, UnknownTopicOrPartition
from storage.files import ByteSource, Files, FileSource
from storage.index.offset_index import OffsetIndex
from storage.old_segment import is_old, step_to
from storage.record._batch import find_next_batch
from storage.record._columns import AbortedSpans, Columns, decode_columns
from storage.record.header import HEADER_SIZE, parse_header
from storage.record.legacy_07 import plain_07

CHUNK_BYTES = 4 * 1024 * 1024
# Plain forms of compressed batches that are in memory at once, unless one is larger.
_PLAIN_BYTES = 32 * 1024 * 1024
# How long a cleaner may take to name what it puts into the log, and how often one looks.
_SWAP_S = 1.0
_LOOK_S = 0.005
# Of a batch that is larger than this the header has to do, to see whether a position fits.
_CHECKED_BYTES = 16 * 1024 * 1024
# How often in a row a file goes between being listed and being read.
_TRIES = 20
_GONE = (errno.ENOENT, errno.ESTALE)


Seen: TypeAlias = Callable[[bytearray, int, int], None]


class AbortedSpan(NamedTuple):
    """Between these offsets, both included, a producer's transactional records are aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


class Split(NamedTuple):
    """A piece of a partition: the offsets from ``from_offset`` to before ``to_offset``.

    ``directory`` is the partition's.  At planning a batch began at ``position`` of the log with
    ``base_offset``, and no record of the piece lay before it; ``size``: bytes of log, about.
    ``aborted``: what of it is not to be read; empty where uncommitted records are wanted.
    """

    topic: str
    partition: int
    directory: str
    base_offset: int
    position: int
    size: int
    from_offset: int
    to_offset: int
    aborted: tuple[AbortedSpan, ...] = ()


class Wanted(NamedTuple):
    """Which columns are decoded."""

    keys: bool = True
    values: bool = True
    headers: bool = True
    offsets: bool = True
    timestamps: bool = True
    timestamp_types: bool = True


class _Place(NamedTuple):
    """The segment that holds an offset; ``following``: the next one's base offset, if there is one.

    ``is_old``: of Kafka 0.7; ``log_start``: the first segment's base offset.
    """

    path: str
    base_offset: int
    following: int | None
    is_old: bool
    log_start: int


def read_split(
    files: Files,
    split: Split,
    wanted: Wanted | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    seen: Seen = lambda data, position, size: None,
) -> Iterator[Columns]:
    """The records of a split, some ``chunk_bytes`` of log at a time.

    ``seen`` is told of the batches that columns were made of, before those are yielded: whole and
    back to back at ``data[position : position + size]``, perhaps some of before the split among
    them.  Of format 0.7 it is not told.
    OffsetOutOfRange where the first ones are gone (retention), or the log ends before the split
    does; CorruptRecord with path, position and offset; UnknownTopicOrPartition where the directory
    is gone; SegmentGone where a cleaner was stopped in the middle; OSError.
    """
    reader = _Reader(files, split, wanted or Wanted(), chunk_bytes, seen)
    return reader.run()


class _Reader:
    """See the module.  ``next_offset``: all before it has been read."""

    def __init__(
        self, files: Files, split: Split, wanted: Wanted, chunk_bytes: int, seen: Seen
    ) -> None:
        self._files = files
        self._split = split
        self._wanted = wanted
        self._chunk_bytes = max(chunk_bytes, HEADER_SIZE)
        self._seen = seen
        self._aborted = AbortedSpans(split.aborted)
        self._buffer = bytearray(0)
        self.next_offset = split.from_offset

    def run(self) -> Iterator[Columns]:
        tries = 0
        while self.next_offset < self._split.to_offset:
            before = self.next_offset
            place = self._find()
            try:
                yield from self._read(place)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            if self.next_offset > before:
                tries = 0
                continue
            tries += 1
            if tries == _TRIES:
                raise SegmentGone(
                    "this segment was listed but cannot be read: it goes each time",
                    path=place.path,
                    offset=self.next_offset,
                )
            time.sleep(_LOOK_S)

    # -- the directory -------------------------------------------------------------------------

    def _find(self) -> _Place:
        """The segment that holds the next offset, by a fresh look at the directory."""
        directory = self._split.directory
        logs, old = self._settled_logs()
        number = sum(base <= self.next_offset for base, _ in logs) - 1
        if number < 0:
            raise OffsetOutOfRange(
                self.next_offset, logs[0][0], self._split.to_offset, path=directory
            )
        base, name = logs[number]
        following = logs[number + 1][0] if number + 1 < len(logs) else None
        return _Place(os.path.join(directory, name), base, following, old, logs[0][0])

    def _settled_logs(self) -> tuple[list[tuple[int, str]], bool]:
        """(base offset, name) of each segment, once no cleaner is about to change those that count.

        And whether they are of Kafka 0.7.
        """
        directory = self._split.directory
        end = time.monotonic() + _SWAP_S
        while True:
            try:
                names = [name for name, _ in self._files.scan(directory)]
            except FileNotFoundError:
                raise UnknownTopicOrPartition("the partition is gone", path=directory) from None
            old = is_old(names)
            logs = _logs(names, old)
            if not logs:
                raise UnknownTopicOrPartition("the partition has no segments", path=directory)
            swapped = [name for name in names if self._may_concern(name, logs[-1][0])]
            if not swapped:
                return logs, old
            if time.monotonic() > end:
                raise SegmentGone(
                    "a cleaner that was stopped has not given all segments their names: open the "
                    "directory for writing, and read it again",
                    path=os.path.join(directory, swapped[0]),
                    offset=self.next_offset,
                )
            time.sleep(_LOOK_S)

    def _may_concern(self, name: str, last: int) -> bool:
        """Whether a file is put into the log where the split reads on; never behind all others."""
        if not name.endswith(paths.LOG + paths.SWAP) or self.next_offset >= last:
            return False
        return (paths.base_offset_of(name) or 0) < self._split.to_offset

    # -- a segment -----------------------------------------------------------------------------

    def _read(self, place: _Place) -> Iterator[Columns]:
        """What the segment has from the next offset on, which moves along."""
        fd = self._files.open(place.path, os.O_RDONLY)
        try:
            source = FileSource(self._files, fd, place.path)
            yield from self._chunks(fd, place, self._start(source, place))
        finally:
            self._files.close(fd)
        if self.next_offset >= self._split.to_offset:
            return
        if place.following is not None:
            self.next_offset = max(self.next_offset, place.following)
            return
        now = self._find()
        if (now.base_offset, now.following) == (place.base_offset, None):
            raise OffsetOutOfRange(
                self._split.to_offset, now.log_start, self.next_offset, path=self._split.directory
            )
        # It was rolled meanwhile: the same offset once more.

    def _start(self, source: ByteSource, place: _Place) -> int:
        """Where a batch begins that no record from the next offset on lies before."""
        offset = self.next_offset
        if offset <= place.base_offset:
            return 0
        if place.is_old:
            return step_to(source, 0, offset - place.base_offset, source.size())
        split = self._split
        planned = (split.base_offset, split.from_offset) == (place.base_offset, offset)
        if planned and self._is_before(source, split.position, offset):
            return split.position
        position = self._indexed(place, offset)
        return position if self._is_before(source, position, offset) else 0

    def _indexed(self, place: _Place, offset: int) -> int:
        """Where the index says that a batch lies; 0 where it says nothing."""
        path = place.path.removesuffix(paths.LOG) + paths.INDEX
        try:
            index = OffsetIndex(
                *(self._files, path, place.base_offset, 0),
                writable=False,
                mapped=False,
                ignore_zero_tail=True,
            )
            try:
                return max(index.lookup(offset)[1], 0)
            finally:
                index.close()
        except (OSError, SegmentGone):
            return 0

    def _is_before(self, source: ByteSource, position: int, offset: int) -> bool:
        """Whether a sound batch lies there that begins at or before the offset.

        A wrapper's offset is that of its last record, so this is enough for one, too.
        """
        if position == 0:
            return True
        data = source.read_at(position, HEADER_SIZE)
        try:
            header = parse_header(data)
        except CorruptRecord:
            return False
        if not 0 <= header.base_offset <= offset or header.size > source.size() - position:
            return False
        if header.size > _CHECKED_BYTES:
            return True
        return find_next_batch(source.read_at(position, header.size), 0, 0) == 0

    def _chunks(self, fd: int, place: _Place, position: int) -> Iterator[Columns]:
        """Decode the file from ``position`` on to the split's end, or to its last whole batch."""
        decode = self._decode_old if place.is_old else self._decode
        lowest = place.base_offset
        used = 0  # bytes of the buffer, which lie at `position`
        while True:
            self._make_room(used)
            with memoryview(self._buffer) as view, view[used:] as free:
                count = self._files.preadv(fd, free, position + used)
            used += count
            at = 0
            while at < used:
                try:
                    columns, size, lowest, ended = decode(place, position, at, used - at, lowest)
                except CorruptRecord as error:
                    raise self._located(error, place, position) from None
                at += size
                self.next_offset = max(self.next_offset, lowest)
                if columns.rows:
                    yield columns
                if ended:
                    self._end(place, position, at)
                    return
                if not size:
                    break
            if not count:
                if at < used and place.following is not None:
                    raise self._located(CorruptRecord("the last batch is incomplete"), place, at)
                return
            self._buffer[: used - at] = self._buffer[at:used]
            position += at
            used -= at

    def _make_room(self, used: int) -> None:
        """For a chunk, or for more of a batch that is larger."""
        if used == len(self._buffer):
            self._buffer.extend(bytes(max(self._chunk_bytes, used)))

    def _end(self, place: _Place, position: int, at: int) -> None:
        """A batch lies behind the split.  No CRC covers its base offset, which may be damaged."""
        if self.next_offset < self._split.to_offset and not place.is_old:
            base = int.from_bytes(self._buffer[at : at + 8], "big", signed=True)
            following = self._find().following
            if following is not None and base >= following:
                raise CorruptRecord(
                    f"offset {base} is not below the next segment's, {following}",
                    path=place.path,
                    position=position + at,
                    offset=self.next_offset,
                )
        self.next_offset = self._split.to_offset

    def _decode(
        self, place: _Place, position: int, at: int, size: int, lowest: int
    ) -> tuple[Columns, int, int, bool]:
        """(columns, bytes they were made of, the offset behind them, whether the split ends)."""
        columns = decode_columns(
            *(self._buffer, at, size),
            from_offset=self.next_offset,
            to_offset=self._split.to_offset,
            **self._wanted._asdict(),
            timestamps_us=True,
            aborted=self._aborted,
            check_crc=True,
            stop=True,
            lowest_offset=lowest,
            plain_bytes=_PLAIN_BYTES,
        )
        self._seen(self._buffer, at, columns.consumed)
        return columns, columns.consumed, columns.next_offset, columns.ended

    def _decode_old(
        self, place: _Place, position: int, at: int, size: int, lowest: int
    ) -> tuple[Columns, int, int, bool]:
        """The same of format 0.7, whose offsets are positions."""
        end = at + size
        start = place.base_offset + position + at
        lowest = start
        plain = bytearray()
        while lowest < self._split.to_offset and len(plain) < _PLAIN_BYTES:
            made, taken = plain_07(self._buffer, at, end, lowest)
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
            without_times=True,
        )
        return columns, lowest - start, lowest, lowest >= self._split.to_offset

    def _located(self, error: CorruptRecord, place: _Place, position: int) -> CorruptRecord:
        """The same error with where it is in the file."""
        return CorruptRecord(
            error.message,
            path=place.path,
            position=position + (error.position or 0),
            offset=self.next_offset if error.offset is None else error.offset,
        )


def _logs(names: Iterable[str], old: bool) -> list[tuple[int, str]]:
    """(base offset, name) of the segments among these files; ``old``: of Kafka 0.7's."""
    found: list[tuple[int, str]] = []
    for name in names:
        base = paths.old_base_offset_of(name) if old else paths.base_offset_of(name)
        if base is not None and (old or name == paths.file_name(base, paths.LOG)):
            found.append((base, name))
    return sorted(found)
