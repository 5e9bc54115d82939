"""Reading a log: by offset, by time, record by record, for either isolation.

What a consumer of isolation ``read_committed`` (the default here) gets ends at the last stable
offset and leaves out what aborted transactions wrote; ``read_uncommitted`` goes to the log end.
Neither shows control records (``UnifiedLog.read``, ``UnifiedLog.fetchOffsetByTimestamp``).

The tuple of segments is replaced as a whole, so that whoever reads from another thread keeps a
consistent one; so is what is known of aborted transactions.

Not here: who changes any of this (``log``).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from storage.errors import CorruptRecord, InvalidRecord, OffsetOutOfRange
from storage.index.txn_index import TxnEntry
from storage.producer_state import ProducerState
from storage.record.batch import BatchHeader, Buffer, Record, decode_plain, parse_header
from storage.segment import Segment

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

_CHUNK_BYTES = 64 * 1024


class LogReader:
    """The part of a log that reads.  Offsets count records, timestamps are in ms since 1970."""

    directory: str
    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    producers: ProducerState

    def __init__(self) -> None:
        # Of some segments, unless they are others by now: (first, last offset) of every aborted
        # transaction, by producer, in rising order.  The number changes with each one added.
        self._aborted: tuple[tuple[Segment, ...], dict[int, list[tuple[int, int]]]] = ((), {})
        self._aborted_version = 0
        self._aborted_lock = threading.Lock()

    # -- bounds --------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Without replicas the log end."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; where none is open, the log end."""
        first = self.producers.first_undecided_offset
        return self.log_end_offset if first is None else max(first, self.log_start_offset)

    def _bound(self, isolation: Isolation) -> int:
        if isolation == "read_committed":
            return self.last_stable_offset
        return self.high_watermark

    # -- transactions --------------------------------------------------------------------------

    def aborted_transactions(self) -> list[TxnEntry]:
        """Every aborted transaction of the segments, in the order of their markers.

        Any thread may ask.  OSError from the disk.
        """
        return [entry for segment in self.segments for entry in segment.aborted]

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a transaction that this producer wrote ``offset`` in has been aborted.

        Any thread may ask; the first to do so reads the transaction indexes (OSError).
        """
        segments, aborted = self._aborted
        if segments is not self.segments:
            aborted = self._load_aborted()
        spans = aborted.get(producer_id)
        if spans is None:
            return False
        number = bisect_right(spans, offset, key=lambda span: span[0]) - 1
        return number >= 0 and offset <= spans[number][1]

    def _load_aborted(self) -> dict[int, list[tuple[int, int]]]:
        version, segments = self._aborted_version, self.segments
        aborted: dict[int, list[tuple[int, int]]] = {}
        for segment in segments:
            for entry in segment.aborted:
                spans = aborted.setdefault(entry.producer_id, [])
                spans.append((entry.first_offset, entry.last_offset))
        with self._aborted_lock:
            if version == self._aborted_version:
                self._aborted = segments, aborted
        return aborted

    def _remember_aborted(self, entry: TxnEntry) -> None:
        """This entry was added to a transaction index, behind all others."""
        with self._aborted_lock:
            self._aborted_version += 1
            _, aborted = self._aborted
            spans = aborted.get(entry.producer_id, [])
            aborted[entry.producer_id] = [*spans, (entry.first_offset, entry.last_offset)]

    # -- by offset -----------------------------------------------------------------------------

    @staticmethod
    def _segment_number(segments: tuple[Segment, ...], offset: int) -> int:
        return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

    def _segments_from(self, offset: int) -> Iterable[Segment]:
        segments = self.segments
        return segments[max(self._segment_number(segments, offset), 0) :]

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        isolation: Isolation = "read_committed",
    ) -> bytes:
        """Whole segment bytes from the batch that holds ``offset``, at most ``max_bytes``.

        The first batch is returned whole even if it is larger (unless ``at_least_one`` is false);
        the last one may be cut; the first may begin before ``offset``; no read crosses a segment
        (``LocalLog.read``, ``LogSegment.read``).  Nothing lies at or above the isolation's bound,
        and nothing is left out below it: control batches and aborted ones are for the reader to
        skip.  Empty from the bound on.  OffsetOutOfRange outside of log start..log end.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                offset, self.log_start_offset, self.log_end_offset, path=self.directory
            )
        if offset >= self._bound(isolation):
            return b""
        committed = isolation == "read_committed"
        for segment in self._segments_from(offset):
            found = segment.locate(offset)
            if found is None:
                continue
            position, header = found
            end = segment.stable_size if committed else segment.size
            length = max(max_bytes, header.size if at_least_one else 0)
            return segment.read_at(position, max(min(length, end - position), 0))
        return b""

    def records(
        self, offset: int | None = None, isolation: Isolation = "read_committed"
    ) -> Iterator[Record]:
        """Every record from ``offset`` (default: the log start) to the isolation's bound as it is.

        Control records are left out, with ``read_committed`` aborted ones too.  OffsetOutOfRange
        as ``read``; CorruptRecord where a batch is damaged.
        """
        at = self.log_start_offset if offset is None else offset
        end = self._bound(isolation)
        if not self.log_start_offset <= at <= self.log_end_offset:
            raise OffsetOutOfRange(
                at, self.log_start_offset, self.log_end_offset, path=self.directory
            )
        for segment in self._segments_from(at):
            if segment.base_offset >= end:
                return
            found = segment.locate(at)
            if found is None:
                continue
            for made, header in plain_batches(segment, found[0], segment.size):
                if header.base_offset >= end:
                    return
                if header.is_control or self._is_hidden(header, isolation):
                    continue
                for record in decode_plain(made):
                    if at <= record.offset < end:
                        yield record

    def _is_hidden(self, header: BatchHeader, isolation: Isolation) -> bool:
        return (
            header.is_transactional
            and isolation == "read_committed"
            and self.is_aborted(header.producer_id, header.base_offset)
        )

    # -- by time -------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = "read_committed"
    ) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with a timestamp ≥ ``timestamp_ms``, or None.

        Only the first segment that can hold it is searched (``UnifiedLog.searchOffsetInLocalLog``,
        ``LogSegment.findOffsetByTimestamp``), and what is found at or above the isolation's bound
        is nothing.  As in Kafka, a control record or an aborted one counts.

        In a log of Kafka 0.7 only files have a time: the start of the newest one that was last
        written at or before ``timestamp_ms`` (0.7.2: ``Log.getOffsetsBefore``).
        """
        if self.segments[0].always_expand:
            for segment in reversed(self.segments):
                if segment.largest_timestamp <= timestamp_ms:
                    return segment.largest_timestamp, segment.base_offset
            return None
        for segment in self.segments:
            if segment.largest_timestamp >= timestamp_ms:
                found = self._search_segment(segment, timestamp_ms)
                return found if found is not None and found[1] < self._bound(isolation) else None
        return None

    def _search_segment(self, segment: Segment, timestamp_ms: int) -> tuple[int, int] | None:
        _, offset = segment.time_index.lookup(timestamp_ms)
        start = self.log_start_offset
        _, position = segment.offset_index.lookup(max(offset, start))
        for at, header in segment.batches(position):
            if header.max_timestamp < timestamp_ms or header.last_offset < start:
                continue
            made, _ = next(plain_batches(segment, at, at + header.size))
            for record in decode_plain(made):
                if record.timestamp >= timestamp_ms and record.offset >= start:
                    return record.timestamp, record.offset
        return None

    def list_offsets(
        self, timestamp_ms: int, isolation: Isolation = "read_committed"
    ) -> tuple[int, int]:
        """(timestamp, offset) as Kafka's ListOffsets answers; (-1, -1) for none.

        ``EARLIEST`` (-2), ``LATEST`` (-1) and ``MAX_TIMESTAMP`` (-3) besides times in ms.
        """
        if timestamp_ms == EARLIEST:
            return -1, self.log_start_offset
        if timestamp_ms == LATEST:
            return -1, self._bound(isolation)
        if timestamp_ms == MAX_TIMESTAMP:
            return self._newest_record()
        if timestamp_ms < 0:
            raise InvalidRecord(f"{timestamp_ms} is no timestamp", path=self.directory)
        return self.offset_for_timestamp(timestamp_ms, isolation) or (-1, -1)

    def _newest_record(self) -> tuple[int, int]:
        newest = max(self.segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp < 0:
            return -1, -1
        return self._search_segment(newest, newest.max_timestamp) or (-1, -1)


def plain_batches(
    segment: Segment, position: int, end: int
) -> Iterator[tuple[Buffer, BatchHeader]]:
    """The plain form and its header of each batch from ``position``, where one begins, to ``end``.

    CorruptRecord, with path and position in the log, where a batch is damaged.
    """
    wanted = _CHUNK_BYTES
    while position < end:
        data = segment.read_at(position, min(wanted, end - position))
        at = 0
        while at < len(data):
            try:
                made, size = segment.expand(data, at, len(data), position + at)
            except CorruptRecord as error:
                raise CorruptRecord(
                    error.message,
                    path=segment.log_path,
                    position=position + at,
                    offset=error.offset,
                ) from None
            if not made:
                break
            yield made, parse_header(made)
            at += size
        else:
            position += at
            wanted = _CHUNK_BYTES
            continue
        if position + at + size > end:
            return
        position += at
        wanted = max(size, _CHUNK_BYTES)
