"""The texts of `.meta/N`: the state of a partition's log, stable enough for awk.

`offsets` has `name value` lines, and a line for each gap. The others begin with a line of column
names, and right-align each number in a column of fixed width: so the size of a table is known at
once, and a read makes only the lines that it returns. A log may have any number of segments and
producers, so a worker thread makes all of these texts, but `offsets` only if there are gaps.
Timestamps are milliseconds since 1970. -1 stands for none, of timestamps, offsets and sequences.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kafkafs.tree.files.text_file import Content, text_table
from kafkafs.tree.partition.partition_text import PartitionText
from storage import paths
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.waiting import before_waiting

_SEGMENT_COLUMNS = (
    ("base_offset", 20),
    ("next_offset", 20),
    ("bytes", 11),
    ("records", 11),
    ("index_entries", 14),
    ("index_fill", 11),
    ("timeindex_entries", 18),
    ("first_timestamp", 20),
    ("last_timestamp", 20),
    ("state", 14),
)


_PRODUCER_COLUMNS = (
    ("producer_id", 20),
    ("epoch", 6),
    ("last_sequence", 13),
    ("last_offset", 20),
    ("last_timestamp", 20),
    ("coordinator_epoch", 17),
    ("transaction_first_offset", 24),
)
_TXN_COLUMNS = (
    ("producer_id", 20),
    ("first_offset", 20),
    ("last_offset", 20),
    ("last_stable_offset", 20),
)


class EntryLayout(NamedTuple):
    """One kind of index file and the table that shows it."""

    suffix: str
    entry: struct.Struct
    columns: tuple[tuple[str, int], tuple[str, int]]
    offset_field: int
    """The field that is relative to the segment's base offset."""


OFFSET_INDEX = EntryLayout(paths.INDEX, struct.Struct(">ii"), (("offset", 20), ("position", 11)), 0)
TIME_INDEX = EntryLayout(
    paths.TIMEINDEX, struct.Struct(">qi"), (("timestamp", 20), ("offset", 20)), 1
)


def offsets(log: Log) -> str:
    """The offsets that mark the log's state, and the gaps of a mirror. `remote_log_start`: only
    where a tiered topic's log begins earlier in remote storage.
    """
    facts = (
        ("log_start", log.log_start_offset),
        ("log_end", log.log_end_offset),
        ("last_stable", log.last_stable_offset),
        ("high_watermark", log.high_watermark),
        ("recovery_point", log.durability.recovery_point),
        ("remote_log_start", log.remote_log_start),
    )
    lines = [f"{name} {value}\n" for name, value in facts if value is not None]
    return "".join([*lines, *(f"gap {gap}\n" for gap in log.gaps)])


def segments(log: Log, values: PartitionText) -> str:
    """A line for each segment, retired ones included; `records` as the view `values` counts them,
    -1 for a retired one.

    `state` is active, sealed, damaged (`storage.segment.damage`) or being_deleted.
    """
    rows = []
    # A segment may retire between the two looks.
    known = {*log.segments, *(segment for _, segment in log.retired)}
    for segment in sorted(known, key=lambda segment: segment.base_offset):
        extent = values.extent_of(segment)
        entries = entry_count(log, segment, OFFSET_INDEX)
        fill = 100 * entries * OFFSET_INDEX.entry.size / log.config.segment_index_bytes
        row = (
            segment.base_offset,
            segment.next_offset,
            segment.size,
            extent.records if extent is not None else -1,
            entries,
            f"{fill:.1f}%",
            entry_count(log, segment, TIME_INDEX),
            segment.first_timestamp,
            segment.max_timestamp,
            _state(segment),
        )
        rows.append(row)
    return "".join(f"{line}\n" for line in text_table(_SEGMENT_COLUMNS, rows))


def _state(segment: Segment) -> str:
    if segment.deleted:
        return "being_deleted"
    if segment.damages:
        return "damaged"
    return "sealed" if segment.sealed else "active"


def entry_count(log: Log, segment: Segment, layout: EntryLayout) -> int:
    """Entries in an index file: a sealed segment's by its length."""
    if segment is log.active:
        index = segment.offset_index if layout is OFFSET_INDEX else segment.time_index
        return index.count
    try:
        size = log.files.file_stat(segment.file_path(layout.suffix)).st_size
    except FileNotFoundError:
        return 0
    return size // layout.entry.size


class Table:
    """A header line and columns of numbers; a read makes only the lines that it returns."""

    __slots__ = ("_count", "_header", "_line", "_width")

    def __init__(self, columns: Sequence[tuple[str, int]], count: int) -> None:
        self._count = count
        self._header = " ".join(f"{name:>{width}}" for name, width in columns).encode() + b"\n"
        self._line = " ".join(f"%{width}d" for _, width in columns).encode() + b"\n"
        self._width = len(self._header)

    def __len__(self) -> int:
        return self._width * (1 + self._count)

    def read(self, position: int, size: int) -> bytes:
        """These bytes of the table. BlockingIOError where it would wait and may not."""
        end = min(position + size, len(self))
        if position >= end:
            return b""
        # Line 0 is the header, line n + 1 the entry n.
        first, last = position // self._width, (end - 1) // self._width
        lines = [self._header] if first == 0 else []
        lines += self._lines(max(first - 1, 0), last)
        text = b"".join(lines)
        return text[position - first * self._width : end - first * self._width]

    def _lines(self, start: int, end: int) -> list[bytes]:
        """The lines of the entries from number `start` on, below `end`."""
        raise NotImplementedError


class Rows(Table):
    """Rows that are there: `Content`."""

    __slots__ = ("_rows",)

    def __init__(self, columns: Sequence[tuple[str, int]], rows: Sequence[tuple[int, ...]]) -> None:
        super().__init__(columns, len(rows))
        self._rows = rows

    def _lines(self, start: int, end: int) -> list[bytes]:
        return [self._line % row for row in self._rows[start:end]]


def producers(log: Log) -> Content:
    """A line per producer that the log remembers, and the first offset of its open transaction."""
    before_waiting()
    known = sorted(log.producers, key=lambda producer: producer.producer_id)
    return Rows(
        _PRODUCER_COLUMNS,
        [
            (
                producer.producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_offset,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )
            for producer in known
        ],
    )


def aborted_transactions(log: Log) -> Content:
    """A line per aborted transaction."""
    before_waiting()
    return Rows(_TXN_COLUMNS, log.transactions.aborted())


class EntryTable(Table):
    """`Content`: every entry of one kind of index, by segments. Reading waits for the disk."""

    __slots__ = ("_ends", "_layout", "_log", "_segments")

    def __init__(self, log: Log, layout: EntryLayout) -> None:
        """The entries of the log as it is now."""
        before_waiting()
        self._log = log
        self._layout = layout
        self._segments = log.segments
        counts = [entry_count(log, segment, layout) for segment in self._segments]
        self._ends = list(accumulate(counts))
        super().__init__(layout.columns, self._ends[-1])

    def _lines(self, start: int, end: int) -> list[bytes]:
        if start < end:
            before_waiting()
        lines: list[bytes] = []
        while start + len(lines) < end:
            lines += self._entries(start + len(lines), end)
        return lines

    def _entries(self, number: int, end: int) -> list[bytes]:
        """The lines of the entries from `number` on, below `end`, that one segment has."""
        at = bisect_right(self._ends, number)
        start = self._ends[at - 1] if at else 0
        count = min(end, self._ends[at]) - number
        segment, layout = self._segments[at], self._layout
        files, entry, line = self._log.files, layout.entry, self._line
        with files.held_open(segment.file_path(layout.suffix)) as fd:
            data = files.pread(fd, count * entry.size, (number - start) * entry.size)
        data = data.ljust(count * entry.size, b"\0")
        base = segment.base_offset
        if layout.offset_field == 0:
            return [line % (base + first, second) for first, second in entry.iter_unpack(data)]
        return [line % (first, base + second) for first, second in entry.iter_unpack(data)]
