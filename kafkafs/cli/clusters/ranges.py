"""Finds the offsets of `@START..END` in a cluster. `start_names` has the grammar.

The offsets are those that a data directory with the same records has. A time is looked up by the
broker. To count the last records, the end of the log is read, since offsets have gaps. The pieces
that are read are also printed, unless they are large.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import click

from kafka_client.cluster import TopicPartition
from kafka_client.errors import ClientError
from kafka_client.requests import EARLIEST, LATEST, Committed, fetch_committed, list_offsets
from kafkafs.cli.clusters.pieces import ClusterReader, Piece, Span
from kafkafs.cli.clusters.text import batches_of
from kafkafs.cli.common.clusters import offsets_of
from kafkafs.tree.files import start_names
from kafkafs.tree.files.group_names import group_name
from kafkafs.tree.files.start_names import Edge, OfGroup, Point, StartName
from storage.record.batch import decode_plain
from storage.record.header import parse_header
from storage.record.plain import first_offset

_MORE: Final = 16
# As much is kept of what was read to count records.
_KEPT_BYTES: Final = 16 << 20


def parsed_range(text: str | None, *, follow: bool) -> StartName:
    """Parse the text after the @. Errors: ClickException."""
    if text is None:
        return StartName("0", Edge.START, None)
    parsed = start_names.parse_start_name(f"0@{text}", time.time_ns() // 1_000_000)
    if parsed is None:
        raise click.BadParameter(f"{text!r} is not a valid start or range (START or START..END)")
    if follow and parsed.end is not None:
        raise click.UsageError(f"-f prints all later records, so a range has no end: {text!r}")
    return parsed


def spans(
    reader: ClusterReader, wanted: Sequence[tuple[TopicPartition, str | None]], *, follow: bool
) -> list[tuple[TopicPartition, Span]]:
    """Return the offsets of ranges. A partition whose offsets cannot be read is reported.

    `follow`: the spans have no end. Errors: ClientError.
    """
    starts = offsets_of(reader.cluster, [each for each, _ in wanted], EARLIEST, reader.report)
    bounds = offsets_of(
        *(reader.cluster, list(starts), LATEST, reader.report), committed=reader.committed
    )
    found: list[tuple[TopicPartition, Span]] = []
    for each, text in wanted:
        if each not in bounds:
            continue
        name, first = parsed_range(text, follow=follow), starts[each]
        log = _Log(reader, each, first, max(bounds[each], first))
        start = log.offset_of(name.start)
        pieces = log.pieces if isinstance(name.start, start_names.Last) else []
        end = None if follow else log.offset_of(name.end or Edge.END)
        found.append((each, _span(start, end, pieces)))
    return found


def _span(start: int, end: int | None, pieces: Sequence[Piece]) -> Span:
    """Return a span. `pieces`: what has been read, up to the end of the log."""
    if end is not None and end <= start:
        return Span(start, start)
    inside = [
        piece._replace(
            start=max(piece.start, start), end=piece.end if end is None else min(piece.end, end)
        )
        for piece in pieces
    ]
    return Span(start, end, tuple(piece for piece in inside if piece.start < piece.end))


class _Log:
    """A partition from its log start up to where its records are visible now."""

    def __init__(
        self, reader: ClusterReader, partition: TopicPartition, first: int, bound: int
    ) -> None:
        self._reader = reader
        self._partition = partition
        self._first = first
        self._bound = bound
        # The pieces up to the end that were read to count records; empty if they are large.
        self.pieces: list[Piece] = []
        self._room = _KEPT_BYTES

    def offset_of(self, point: Point) -> int:
        """Return the offset of a point, within the log. Errors: ClientError, OSError."""
        return min(max(self._offset_of(point), self._first), self._bound)

    def _offset_of(self, point: Point) -> int:
        if isinstance(point, start_names.Offset):
            return point.offset
        if isinstance(point, start_names.Time):
            return self._offset_of_time(point.timestamp_ms)
        if isinstance(point, start_names.Last):
            return self._offset_of_last(point.records)
        if isinstance(point, OfGroup):
            return self._offset_of_group(group_name(point.spelt) or point.spelt)
        return self._first if point is Edge.START else self._bound

    def _offset_of_time(self, timestamp_ms: int) -> int:
        wanted = {self._partition: timestamp_ms}
        found = list_offsets(self._reader.cluster, wanted, committed=self._reader.committed)[
            self._partition
        ]
        if isinstance(found, ClientError):
            raise found
        return self._bound if found.offset < 0 else found.offset

    def _offset_of_group(self, group: str) -> int:
        found = fetch_committed(self._reader.cluster, group).get(self._partition)
        if isinstance(found, ClientError):
            raise found
        return found.offset if isinstance(found, Committed) else self._first

    def _offset_of_last(self, count: int) -> int:
        """Read backwards, in larger and larger steps, until `count` records are there."""
        self.pieces, self._room = [], _KEPT_BYTES
        start, step, left = self._bound, count, count
        while left > 0 and start > self._first:
            start, offsets = self._read(max(start - step, self._first), start)
            for each in reversed(offsets):
                left -= len(each)
                if left <= 0:
                    return each[-left]
            step *= _MORE
        return start

    def _read(self, start: int, end: int) -> tuple[int, list[Sequence[int]]]:
        """Return the offsets of the records that are shown, batch by batch. Keep the pieces.

        The first batch may begin before the start. Return that offset, too: a batch must not be in
        two pieces.
        """
        offsets: list[Sequence[int]] = []
        pieces: list[Piece] = []
        for piece in self._reader.pieces({self._partition: Span(start, end)}):
            if piece.start == start:
                records = piece.fetched.records
                base = first_offset(records, parse_header(records))
                start = max(min(start, base), self._first)
                piece = piece._replace(start=start)
            self._room -= len(piece.fetched.records)
            if self._room >= 0:
                copy = replace(piece.fetched, records=memoryview(bytes(piece.fetched.records)))
                pieces.append(piece._replace(fetched=copy))
            for batch in batches_of(piece):
                header = parse_header(batch)
                if header.records_count == header.last_offset_delta + 1:
                    offsets.append(range(header.base_offset, header.last_offset + 1))
                else:
                    offsets.append([record.offset for record in decode_plain(batch)])
        self.pieces = pieces + self.pieces if self._room >= 0 else []
        return start, offsets
