"""Reads a log: by offset, by time, record by record, for either isolation.

A consumer of isolation `read_committed` (the default here) gets the records below the last stable
offset, without those of aborted transactions; `read_uncommitted` reads to the log end. Neither
shows control records (`UnifiedLog.read`, `UnifiedLog.fetchOffsetByTimestamp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from storage.errors import CorruptRecord, OffsetOutOfRange
from storage.log.state import LogState
from storage.log.transactions import Transactions
from storage.record._seek import find_record
from storage.record.batch import Record, decode_plain
from storage.record.header import MAGIC_POSITION, BatchHeader, Buffer, parse_header
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.walk import Walk

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

_WINDOW_BYTES = 64 * 1024


class Reader:
    """Reads one log. Offsets count records, timestamps are in ms since 1970."""

    def __init__(self, log: LogState, transactions: Transactions) -> None:
        self._log = log
        self._transactions = transactions

    def _bound(self, isolation: Isolation) -> int:
        if isolation == "read_committed":
            return self._log.last_stable_offset
        return self._log.high_watermark

    def _check_within(self, offset: int) -> None:
        log = self._log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise OffsetOutOfRange(
                offset, log.log_start_offset, log.log_end_offset, path=log.directory
            )

    # -- by offset -----------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> bytes:
        """Return whole segment bytes from the batch of `offset` on, at most `max_bytes`.

        The first batch is returned whole even if it is larger, and may begin before `offset`; the
        last one may be cut; no read crosses a segment (`LocalLog.read`, `LogSegment.read`). Nothing
        lies at or above the isolation's bound, and nothing is left out below it: the reader skips
        control batches and aborted ones. Empty from the bound on. Errors: OffsetOutOfRange outside
        of log start..log end.
        """
        self._check_within(offset)
        if offset >= self._bound(isolation):
            return b""
        committed = isolation == "read_committed"
        for segment in self._log.segments_from(offset):
            reader = SegmentReader(segment)
            found = reader.locate(max(offset, segment.base_offset))
            if found is None:
                continue
            position, header = found
            end = segment.stable_size if committed else segment.size
            length = min(max(max_bytes, header.size), end - position)
            if length <= 0:
                return b""
            return reader.read(position, length)
        return b""

    def records(
        self, offset: int | None = None, isolation: Isolation = "read_committed"
    ) -> Iterator[Record]:
        """Yield every record from `offset` (default: the log start) to the present bound of the
        isolation.

        Control records are skipped, with `read_committed` aborted ones too. Errors:
        OffsetOutOfRange as in `read`; CorruptRecord for a damaged batch.
        """
        at = self._log.log_start_offset if offset is None else offset
        end = self._bound(isolation)
        for made, _ in self.batches(at, end, isolation):
            for record in decode_plain(made):
                if at <= record.offset < end:
                    yield record

    def batches(
        self, start: int, end: int, isolation: Isolation = "read_committed"
    ) -> Iterator[tuple[Buffer, BatchHeader]]:
        """Yield the batches with records from `start` to before `end` in plain form. The first and
        the last may have other records, too. Bytes after the last of these records are not checked.
        Errors: those of `records`.
        """
        self._check_within(start)
        end = min(end, self._bound(isolation))
        if start >= end:
            # (A batch may begin before the log start, and its transaction be open.)
            return
        for segment in self._log.segments_from(start):
            if segment.base_offset >= end:
                return
            found = SegmentReader(segment).locate(max(start, segment.base_offset))
            if found is None:
                continue
            for made, header in plain_batches(segment, found[0], segment.size):
                if header.base_offset >= end:
                    # The bound, or a damaged offset of this segment: no CRC covers them.
                    break
                if not header.is_control and not self._is_hidden(header, isolation):
                    yield made, header
                if header.last_offset >= end - 1:
                    # The next one may need another read.
                    break

    def next_readable(self, offset: int, error: CorruptRecord) -> int:
        """Return the offset behind the damage that a read from `offset` has met: that of the next
        batch. An error without a path is of a record of the batch at `offset`.

        Errors: those of `records`.
        """
        offset = max(offset, error.offset or 0)
        segments = self._log.segments_from(offset)
        # The read has met nothing else in the segments before the damaged one.
        paths = [segment.log_path for segment in segments]
        first = paths.index(error.path) if error.path in paths else 0
        for segment in segments[first:]:
            # Positions in different segments cannot be compared.
            damaged = error.position if error.path == segment.log_path else None
            reader = SegmentReader(segment)
            for position, header in reader.batches(segment.position_before(offset)):
                if header.last_offset < offset or (damaged is not None and position < damaged):
                    continue
                if error.path is None or position == damaged:
                    return header.last_offset + 1
                return max(header.base_offset, offset)
        return self._log.log_end_offset

    def _is_hidden(self, header: BatchHeader, isolation: Isolation) -> bool:
        return (
            header.is_transactional
            and isolation == "read_committed"
            and self._transactions.is_aborted(header.producer_id, header.base_offset)
        )

    # -- by time -------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = "read_committed"
    ) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record with a timestamp ≥ `timestamp_ms`, or
        None.

        A record at or above the isolation's bound does not count. As in Kafka, control records and
        aborted ones count. Segments below the log start that are still to be deleted are skipped.

        Kafka searches only the first segment that may have it, by the largest timestamp or the
        file's mtime (`UnifiedLog.searchOffsetInLocalLog`). It finds none if that timestamp is the
        file's, is of a record below the log start, or of an empty batch that a cleaner has kept.

        In a log of Kafka 0.7 only files have a time: the start of the newest one that was last
        written at or before `timestamp_ms` (0.7.2: `Log.getOffsetsBefore`).
        """
        if not self._log.segments[0].holds_batches:
            for segment in reversed(self._log.segments):
                if segment.largest_timestamp <= timestamp_ms:
                    return segment.largest_timestamp, segment.base_offset
            return None
        for segment in self._log.segments:
            if (
                segment.next_offset <= self._log.log_start_offset
                and segment is not self._log.segments[-1]
            ):
                continue
            if segment.max_timestamp >= timestamp_ms:
                found = self._search_segment(segment, timestamp_ms)
                if found is not None:
                    return found if found[1] < self._bound(isolation) else None
        return None

    def _search_segment(self, segment: Segment, timestamp_ms: int) -> tuple[int, int] | None:
        start = self._log.log_start_offset
        reader = SegmentReader(segment)
        segment.lease()
        try:
            position = reader.position_before_time(timestamp_ms)
            position = max(position, segment.position_before(start))
            for at, header in reader.batches(position):
                if header.max_timestamp < timestamp_ms or header.last_offset < start:
                    continue
                found = self._find(reader, at, header, timestamp_ms)
                if found is not None:
                    return found[2], found[1]
            return None
        finally:
            segment.release()

    def _find(
        self, reader: SegmentReader, at: int, header: BatchHeader, timestamp_ms: int
    ) -> tuple[int, int, int] | None:
        """Return the first record of a batch that is not too old, in the form of `find_record`."""
        data = reader.read(at, header.size)
        try:
            made, _ = reader.shared_form(data, 0, len(data), at)
        except CorruptRecord as error:
            error.path, error.position = reader.segment.log_path, at
            raise
        return find_record(made, offset=self._log.log_start_offset, timestamp=timestamp_ms)


def plain_batches(
    segment: Segment, position: int, end: int
) -> Iterator[tuple[Buffer, BatchHeader]]:
    """Yield the plain form and its header of each batch from `position`, a batch's start, to `end`.

    The header has the magic of the stored batch, 0 for an entry of Kafka 0.7. Errors:
    CorruptRecord, with path and position in the log, for a damaged batch.
    """
    walk = Walk(SegmentReader(segment).read_batches, position, end, _WINDOW_BYTES)
    for data in walk:
        start, at = walk.position, 0
        while at < len(data):
            try:
                made, size = segment.expand(data, at, len(data), start + at)
            except CorruptRecord as error:
                raise CorruptRecord(
                    error.message,
                    path=segment.log_path,
                    position=start + at,
                    offset=error.offset,
                ) from None
            if not made:
                walk.needed = size
                break
            magic = data[at + MAGIC_POSITION] if segment.holds_batches else 0
            yield made, parse_header(made)._replace(magic=magic)
            at += size
        walk.position += at
