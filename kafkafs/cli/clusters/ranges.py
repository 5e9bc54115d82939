"""Finds the offsets of `@START..END` in a cluster. `start_names` has the grammar.

The offsets are those that a data directory with the same records has. A time is looked up by the
broker. To count the last records, the end of the log is read, since offsets have gaps.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import click

from kafka_client.cluster import TopicPartition
from kafka_client.errors import ClientError
from kafka_client.requests import (
    EARLIEST,
    LATEST,
    Committed,
    fetch_committed,
    list_offsets,
)
from kafkafs.cli.clusters.windows import Span, Window, Windows
from kafkafs.cli.common.clusters import offsets_of
from kafkafs.cli.common.mount_files import MountFiles
from kafkafs.cli.common.views import path_in_topic
from kafkafs.tree.files import start_names
from kafkafs.tree.files.group_names import group_name
from kafkafs.tree.files.start_names import Edge, OfGroup, Point, StartName

_OFFSET: Final = re.compile(rb'^\{"offset":(\d+)', re.M)
_READ_BYTES: Final = 1 << 20
_MORE: Final = 16


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
    windows: Windows, wanted: Sequence[tuple[TopicPartition, str | None]], *, follow: bool
) -> list[tuple[TopicPartition, Span]]:
    """Return the offsets of ranges. A partition whose offsets cannot be read is reported.

    `follow`: the spans have no end. Errors: ClientError.
    """
    starts = offsets_of(windows.cluster, [each for each, _ in wanted], EARLIEST, windows.report)
    bounds = offsets_of(
        *(windows.cluster, list(starts), LATEST, windows.report), committed=windows.committed
    )
    found: list[tuple[TopicPartition, Span]] = []
    for each, text in wanted:
        if each not in bounds:
            continue
        name, first = parsed_range(text, follow=follow), starts[each]
        log = _Log(windows, each, first, max(bounds[each], first))
        start = log.offset_of(name.start)
        end = None if follow else log.offset_of(name.end or Edge.END)
        found.append((each, Span(start if end is None else min(start, end), end)))
    return found


class _Log:
    """A partition from its log start up to where its records are visible now."""

    def __init__(self, windows: Windows, partition: TopicPartition, first: int, bound: int) -> None:
        self._windows = windows
        self._partition = partition
        self._first = first
        self._bound = bound

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
        found = list_offsets(self._windows.cluster, wanted, committed=self._windows.committed)[
            self._partition
        ]
        if isinstance(found, ClientError):
            raise found
        return self._bound if found.offset < 0 else found.offset

    def _offset_of_group(self, group: str) -> int:
        found = fetch_committed(self._windows.cluster, group).get(self._partition)
        if isinstance(found, ClientError):
            raise found
        return found.offset if isinstance(found, Committed) else self._first

    def _offset_of_last(self, count: int) -> int:
        """Read backwards, in larger and larger steps, until `count` records are there."""
        if not count:
            return self._bound
        step = count
        while True:
            start = max(self._bound - step, self._first)
            offsets: deque[int] = deque(maxlen=count)
            span = {self._partition: Span(start, self._bound)}
            for window in self._windows.of(span):
                for text in lines_of(window):
                    offsets.extend(map(int, _OFFSET.findall(text)))
            if len(offsets) == count:
                return offsets[0]
            if start == self._first:
                return self._first
            step *= _MORE


def lines_of(window: Window) -> Iterator[bytes]:
    """Yield the `jsonl` text of a window, in pieces of whole lines. The window is deleted."""
    name = f"{window.partition.partition}@{window.points}"
    with (
        window.deleted_after() as tree,
        MountFiles(tree).opened(window.partition.topic, *path_in_topic("jsonl", name)) as read,
    ):
        position, rest = 0, b""
        while data := read(position, _READ_BYTES):
            position += len(data)
            whole, newline, rest = (rest + data).rpartition(b"\n")
            yield whole + newline
