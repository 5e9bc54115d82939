"""The newest record of each key in one partition of `__consumer_offsets`.

The log is read once from its start, later from the end of the previous read. Only the newest values
are kept, as they are stored, by group and key; `group` decodes them.

Records of a transaction count from its COMMIT marker on, but in the order of their own offsets: a
record that was written after them and before the marker is newer
(`OffsetMetadataManager.replayEndTransactionMarker`). Below the last stable offset the log knows the
aborted transactions.

Invariant: `groups` has all records below `next_offset`, and no other. So after an error a read
continues from there.

Not here: locks (one thread at a time reads), other partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from storage.errors import CorruptRecord
from storage.groups.offset_records import group_of, name_text, partition_for, same_key
from storage.log.log import Log
from storage.log.read import plain_batches
from storage.record.batch import Record, decode_plain
from storage.record.columns._columns import (
    AbortedSpans,
    Columns,
    VariableColumn,
    decode_columns,
)
from storage.record.control import COMMIT, parse_marker
from storage.record.header import BatchHeader, Buffer
from storage.segment.reader import SegmentReader

_log = logging.getLogger(__name__)

_WINDOW_BYTES = 1 << 20

_Pending = dict[bytes, tuple[int, bytes | None]]


class GroupRecords:
    """The newest values of one group, by `same_key`. `changed`: the keys with new values."""

    __slots__ = ("changed", "newest")

    def __init__(self) -> None:
        self.newest: dict[bytes, bytes] = {}
        self.changed: set[bytes] = set()


class OffsetsLog:
    """The table of one partition. `groups`: by the names in keys."""

    def __init__(self, log: Log, count: int, start: int | None = None) -> None:
        """`count`: the number of the topic's partitions, if it is known. `start`: the first offset
        to read, by default the log start.
        """
        self.log = log
        self.count = count
        self.misplaced: bytes | None = None
        """A group that would be in another partition if the topic had only `count`: it has more."""
        self.groups: dict[bytes, GroupRecords] = {}
        self.next_offset = self._start = log.log_start_offset if start is None else start
        # Records of open transactions, by producer: the offset and value of each key's last one.
        self._open: dict[int, _Pending] = {}
        self._size_read = 0
        # Whether the log has to be read again from its start.
        self._is_stale = False

    @property
    def is_read(self) -> bool:
        """Whether all records were read."""
        return self.next_offset == self.log.log_end_offset

    @property
    def is_stale(self) -> bool:
        """Whether the log has to be read again from its start."""
        log = self.log
        has_lost = log.log_start_offset > self._start
        return self._is_stale or has_lost or self.next_offset > log.log_end_offset

    def replaced(self, end: int) -> None:
        """Note that the log below `end` lost records, maybe tombstones. Thread-safe."""
        self._is_stale = self._is_stale or self.next_offset < end

    @property
    def unread_bytes(self) -> int:
        """The approximate number of bytes to read."""
        return self.log.size - self._size_read if self.next_offset else self.log.size

    def read_on(self) -> None:
        """Read new records. Errors: SegmentGone, OSError; BlockingIOError if it may not wait."""
        log = self.log
        end, size = log.log_end_offset, log.size
        stable = log.last_stable_offset
        self.next_offset = max(self.next_offset, log.log_start_offset)
        if not self._open and log.size - self._size_read > _WINDOW_BYTES:
            self._read_stable(stable)
        for data, header in _batches(log, self.next_offset, end):
            self._take(data, header, stable)
            self.next_offset = header.last_offset + 1
        self.next_offset = max(self.next_offset, end)
        self._size_read = size

    def _read_stable(self, stable: int) -> None:
        """Read up to the last stable offset, many batches at a time.

        In one window, only the last record of each key is decoded. Reading stops before damage.
        """
        aborted = AbortedSpans(
            (each.producer_id, each.first_offset, each.last_offset)
            for each in self.log.transactions.aborted()
        )
        while self.next_offset < stable:
            try:
                data = self.log.read(self.next_offset, _WINDOW_BYTES)
                if not data:
                    return
                columns = decode_columns(
                    *(data, 0, len(data)),
                    from_offset=self.next_offset,
                    to_offset=stable,
                    offsets=False,
                    timestamps=False,
                    aborted=aborted,
                )
            except CorruptRecord:
                return
            for key, value in _newest(columns):
                self._set(key, value, self.next_offset)
            self.next_offset = columns.next_offset

    def _take(self, data: Buffer, header: BatchHeader, stable: int) -> None:
        producer = header.producer_id
        if header.is_control:
            marker = parse_marker(data)
            if marker is not None:
                self._end(producer, committed=marker.type == COMMIT)
            return
        records = [each for each in decode_plain(data) if each.offset >= self.next_offset]
        if not header.is_transactional:
            for record in records:
                self._put(record)
        elif header.base_offset >= stable:
            pending = self._open.setdefault(producer, {})
            for record in records:
                if record.key is not None:
                    pending[same_key(record.key)] = record.offset, record.value
        elif not self.log.transactions.is_aborted(producer, header.base_offset):
            for record in records:
                self._put(record)

    def _end(self, producer: int, *, committed: bool) -> None:
        """Apply or drop the records of a transaction that has ended."""
        pending = self._open.pop(producer, {})
        if committed:
            for key, (offset, value) in pending.items():
                self._set(key, value, offset)

    def _put(self, record: Record) -> None:
        if record.key is not None:
            self._set(same_key(record.key), record.value, record.offset)

    def _set(self, key: bytes, value: bytes | None, offset: int) -> None:
        """Apply a record: it replaces earlier ones of open transactions."""
        for pending in self._open.values():
            if key in pending and pending[key][0] < offset:
                del pending[key]
        name = group_of(key)
        if name is None:
            return
        group = self.groups.get(name)
        if group is None:
            if value is None:
                return
            group = self.groups[name] = GroupRecords()
            if partition_for(name_text(name), self.count) != self.log.partition:
                self.misplaced = name
        if value is None:
            group.newest.pop(key, None)
        else:
            group.newest[key] = value
        group.changed.add(key)


def _newest(columns: Columns) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the last value of each key; records without a key are left out."""
    assert columns.keys is not None
    assert columns.values is not None
    keys, values = _rows(columns.keys), _rows(columns.values)
    found = map(keys, range(columns.rows))
    rows = {same_key(key): row for row, key in enumerate(found) if key is not None}
    for key, row in rows.items():
        yield key, values(row)


def _rows(column: VariableColumn) -> Callable[[int], bytes | None]:
    positions, block = memoryview(column.positions).cast("i"), bytes(column.block)
    validity = column.validity if column.nulls else None

    def row(number: int) -> bytes | None:
        if validity is not None and not validity[number >> 3] >> (number & 7) & 1:
            return None
        return block[positions[number] : positions[number + 1]]

    return row


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[Buffer, BatchHeader]]:
    """Yield the batches that have something between these offsets.

    Batches after damage in a segment are skipped. Then the groups fall back to earlier offsets, and
    read records again.
    """
    for segment in log.segments_from(start):
        if segment.base_offset >= end:
            return
        try:
            found = SegmentReader(segment).locate(max(start, segment.base_offset))
            if found is None:
                continue
            for data, header in plain_batches(segment, found[0], segment.size):
                if header.base_offset < end and header.last_offset >= start:
                    yield data, header
        except CorruptRecord as error:
            _log.warning(
                "%s: cannot read the committed offsets after this point: %s", log.name, error
            )
