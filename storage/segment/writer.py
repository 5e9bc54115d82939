"""Appends batches to the active segment, and seals it (Kafka's `LogSegment`).

A batch gets an index entry if more than `index.interval.bytes` lie between the start of the last
indexed batch, or of the segment, and its own; so the first batch never does. Unlike Kafka's, a
writer that continues takes the distance from the last entry. So an index equals one that is rebuilt
with the same interval.

One thread uses a writer at a time; others may read and flush the segment meanwhile.

Not here: assigning offsets (`log.assign`), when to roll (`log`), the transaction index
(`log.transactions`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from storage.errors import CorruptRecord, SegmentGone
from storage.segment.cut import cut_end
from storage.segment.segment import Segment

BatchEntry = tuple[int, int, int, int]
"""One batch of an append: (position in the appended bytes, size in bytes, last offset, largest
timestamp in ms).
"""


class SegmentWriter:
    """Appends to one segment, and seals it. A new writer may continue where another one stopped."""

    __slots__ = ("_bytes_since_index_entry", "_cut_pending", "_is_prepared", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        # Whether the indexes are pre-sized.
        self._is_prepared = False
        self._bytes_since_index_entry = 0
        # Whether the bytes of a failed append are still in the file.
        self._cut_pending = False

    @classmethod
    def begin(cls, segment: Segment) -> SegmentWriter:
        """Return the writer of a new segment, and pre-size its indexes. Errors: OSError; no file is
        left.
        """
        writer = cls(segment)
        try:
            writer._prepare()
        except OSError:
            segment.discard()
            raise
        return writer

    def _prepare(self) -> None:
        """Open the three files and pre-size the indexes (`OffsetIndex.java`)."""
        segment = self.segment
        segment.log_fd_to_write()
        indexes = segment.offset_index, segment.time_index
        for index in indexes:
            index.presize()
        last = segment.offset_index.last_entry
        self._bytes_since_index_entry = segment.size - (last[1] if last else 0)
        segment.index_full = any(index.is_full for index in indexes)
        self._is_prepared = True

    def append(
        self, data: bytes | bytearray | memoryview, batches: Sequence[BatchEntry], now_ns: int
    ) -> int:
        """Append `data`, batches with assigned offsets, and index them (`LogSegment.append`).

        `batches` describes each of them. Return their file position. Errors: OSError, and the file
        gets its former size back; CutShort if another process has truncated it; CorruptRecord if it
        is missing; SegmentGone.
        """
        segment = self.segment
        assert not segment.sealed
        if not self._is_prepared:
            self._prepare()
        disk, start = segment.disk, segment.size
        fd = segment.fd
        if fd < 0:
            fd = segment.log_fd_to_write()
        if disk.size(fd) < start:
            raise segment.cut_short()
        if self._cut_pending:
            disk.ftruncate(fd, start)
            self._cut_pending = False
        try:
            disk.pwrite(fd, data, start)
        except OSError:
            self._cut_back(start)
            raise
        first = batches[0]
        if start == 0:
            segment.first_timestamp = first[3]
        interval = segment.config.index_interval_bytes
        if (
            len(batches) == 1
            and self._bytes_since_index_entry <= interval
            and first[3] <= segment.max_timestamp
        ):
            # The common append: one small batch, nothing to index.
            self._bytes_since_index_entry += first[1]
        else:
            self._index(batches, start, interval)
        segment.size = start + len(data)
        segment.next_offset = batches[-1][2] + 1
        segment.mtime_ns = now_ns
        if segment.fd < 0:
            # An eviction in another thread saw no unsynced bytes. It has to stay open until a sync.
            segment.fd = fd
        segment.is_dated = False
        return start

    def _index(self, batches: Sequence[BatchEntry], start: int, interval: int) -> None:
        segment = self.segment
        offset_index, time_index = segment.offset_index, segment.time_index
        largest, largest_offset = segment.max_timestamp, segment.max_timestamp_offset
        since = self._bytes_since_index_entry
        try:
            for position, size, last_offset, max_timestamp in batches:
                if max_timestamp > largest:
                    largest, largest_offset = max_timestamp, last_offset
                if since > interval:
                    offset_index.append(last_offset, start + position)
                    time_index.append(largest, largest_offset)
                    since = 0
                since += size
        except OSError:
            self._cut_back(start)
            for index in (offset_index, time_index):
                # If this fails, too, recovery finds an entry without a batch.
                with contextlib.suppress(OSError, SegmentGone):
                    index.truncate_to_offset(segment.next_offset)
            raise
        segment.max_timestamp, segment.max_timestamp_offset = largest, largest_offset
        self._bytes_since_index_entry = since
        segment.index_full = offset_index.is_full or time_index.is_full

    def _cut_back(self, size: int) -> None:
        """Cut a failed append off the file; if that fails, the next append cuts it off."""
        segment = self.segment
        segment.is_dated = False
        try:
            segment.disk.ftruncate(segment.log_fd_to_write(), size)
        except (OSError, CorruptRecord):
            self._cut_pending = True

    def rest(self) -> None:
        """Cut the indexes of an idle segment to their entries until the next append
        (`Log.age_descriptors`). Errors: OSError.
        """
        if self._is_prepared:
            self._is_prepared = False
            self.segment.offset_index.trim()
            self.segment.time_index.trim()

    def trim(self) -> None:
        """Write the final time entry, and cut the files to the used part
        (`onBecomeInactiveSegment`).

        Errors: OSError; appends continue as before.
        """
        segment = self.segment
        fd = segment.log_fd_to_write()
        try:
            segment.time_index.append(segment.max_timestamp, segment.max_timestamp_offset)
            segment.offset_index.trim()
            segment.time_index.trim()
            segment.txn_index.trim()
            # A file that another process has truncated is not filled up with zeros.
            if segment.disk.size(fd) > segment.size:
                cut_end(segment.disk, fd, segment.log_path, segment.size)
        except OSError:
            self._drop_final_entry()
            raise
        self._is_prepared = False

    def seal(self) -> None:
        """Trim the files, and allow no more appends. Errors: OSError."""
        segment = self.segment
        assert segment.writable
        assert not segment.sealed
        self.trim()
        if segment.told_ns and not segment.is_dated:
            segment.date(segment.told_ns + 1)
        segment.sealed = True
        # Most reads will come from the disk, not from the page cache.
        segment.checked_ranges.forget_written(segment.size)

    def unseal(self) -> None:
        """Undo `seal`. Errors: OSError from the disk."""
        self.segment.sealed = False
        self._drop_final_entry()

    def _drop_final_entry(self) -> None:
        """Drop the time index's last entry if no entry of the offset index goes with it."""
        segment = self.segment
        last = segment.offset_index.last_entry
        segment.time_index.truncate_to_offset(last[0] + 1 if last else segment.base_offset)
