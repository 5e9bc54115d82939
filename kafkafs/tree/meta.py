"""What `.meta/N` shows: the state of a partition's log as text, stable enough for awk.

`offsets` is `name value` lines. The others begin with a line of column names, and each number is
right-aligned in a column of fixed width: so a table of any length has an exact size at once, and
only the lines that are read are made. Timestamps are milliseconds since 1970, -1 where there is
none.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.tree.virtual_file import Content, Text
from storage import paths
from storage.log import Log
from storage.segment import Segment

if TYPE_CHECKING:
    from kafkafs.tree.partition_view import PartitionView

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


class EntryLayout(NamedTuple):
    """One kind of index file and the table that shows it."""

    suffix: str
    entry: struct.Struct
    columns: tuple[tuple[str, int], tuple[str, int]]
    offset_field: int
    """Which field is relative to the segment's base offset."""


OFFSET_INDEX = EntryLayout(paths.INDEX, struct.Struct(">ii"), (("offset", 20), ("position", 11)), 0)
TIME_INDEX = EntryLayout(
    paths.TIMEINDEX, struct.Struct(">qi"), (("timestamp", 20), ("offset", 20)), 1
)


def offsets(log: Log) -> Content:
    """The offsets that mark the log's state."""
    facts = (
        ("log_start", log.log_start_offset),
        ("log_end", log.log_end_offset),
        ("last_stable", log.last_stable_offset),
        ("high_watermark", log.high_watermark),
        ("recovery_point", log.recovery_point),
    )
    return Text("".join(f"{name} {value}\n" for name, value in facts))


def segments(log: Log, values: PartitionView) -> Content:
    """A line per segment, also of those that wait for deletion; records as `values` shows them.

    The records of a segment that has left the log are -1: they are no longer counted.
    """
    rows = [_row([name for name, _ in _SEGMENT_COLUMNS])]
    retired = [segment for _, segment in log.retired]
    for segment in sorted((*retired, *log.segments), key=lambda segment: segment.base_offset):
        piece = values.piece_of(segment)
        entries = entry_count(log, segment, OFFSET_INDEX)
        fill = 100 * entries * OFFSET_INDEX.entry.size / log.config.segment_index_bytes
        row = (
            segment.base_offset,
            segment.next_offset,
            segment.size,
            piece.records if piece is not None else -1,
            entries,
            f"{fill:.1f}%",
            entry_count(log, segment, TIME_INDEX),
            segment.first_timestamp,
            segment.max_timestamp,
            _state(segment),
        )
        rows.append(_row(row))
    return Text("".join(rows))


def _row(values: Sequence[object]) -> str:
    columns = zip(values, _SEGMENT_COLUMNS, strict=True)
    return " ".join(f"{value:>{width}}" for value, (_, width) in columns) + "\n"


def _state(segment: Segment) -> str:
    if segment.deleted:
        return "being_deleted"
    return "sealed" if segment.sealed else "active"


def entry_count(log: Log, segment: Segment, layout: EntryLayout) -> int:
    """Entries in an index file: of a sealed segment by its length, of the active one as it knows.

    On the owner's thread only.
    """
    if segment is log.active:
        index = segment.offset_index if layout is OFFSET_INDEX else segment.time_index
        return index.count
    try:
        size = log.files.file_stat(segment.file_path(layout.suffix)).st_size
    except FileNotFoundError:
        return 0
    return size // layout.entry.size


class EntryTable:
    """Every entry of one kind of index of a log, in order of the segments: `Content`."""

    __slots__ = ("_ends", "_header", "_layout", "_line", "_log", "_segments", "_width")

    def __init__(self, log: Log, layout: EntryLayout) -> None:
        """As the log is now, on the owner's thread."""
        self._log = log
        self._layout = layout
        columns = layout.columns
        self._header = " ".join(f"{name:>{width}}" for name, width in columns).encode() + b"\n"
        self._line = " ".join(f"%{width}d" for _, width in columns).encode() + b"\n"
        self._width = len(self._header)
        self._segments = log.segments
        counts = [entry_count(log, segment, layout) for segment in self._segments]
        self._ends = list(accumulate(counts))

    def __len__(self) -> int:
        return self._width * (1 + self._ends[-1])

    def read(self, position: int, size: int, wait: bool) -> bytes:
        """The lines that hold these bytes, made from the files. Waits for the disk."""
        end = min(position + size, len(self))
        if position >= end:
            return b""
        if not wait:
            raise BlockingIOError
        # Line 0 is the header, line n + 1 the entry n.
        first, last = position // self._width, (end - 1) // self._width
        lines = [self._header] if first == 0 else []
        number = max(first - 1, 0)
        while number < last:
            entries = self._entries(number, last)
            lines += entries
            number += len(entries)
        text = b"".join(lines)
        return text[position - first * self._width : end - first * self._width]

    def _entries(self, number: int, end: int) -> list[bytes]:
        """Lines of entries from `number` on, below `end`, of one segment."""
        at = bisect_right(self._ends, number)
        start = self._ends[at - 1] if at else 0
        count = min(end, self._ends[at]) - number
        segment, layout = self._segments[at], self._layout
        files, entry, line = self._log.files, layout.entry, self._line
        fd = files.open(segment.file_path(layout.suffix), os.O_RDONLY)
        try:
            data = files.pread(fd, count * entry.size, (number - start) * entry.size)
        finally:
            files.close(fd)
        data = data.ljust(count * entry.size, b"\0")
        base = segment.base_offset
        if layout.offset_field == 0:
            return [line % (base + first, second) for first, second in entry.iter_unpack(data)]
        return [line % (first, base + second) for first, second in entry.iter_unpack(data)]
