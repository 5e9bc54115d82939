"""Records for which a condition holds: the option `--where`, how they are found, and their text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kafkafs.cli.common.mount_files import find, patiently
from kafkafs.cli.common.views import path_in_topic

if TYPE_CHECKING:
    from kafkafs.tree.files.view_file import ViewFile
    from kafkafs.tree.filesystem import FileSystem
    from kafkafs.views import TextView
    from kafkafs.views._measure import Cursor
    from storage.condition.condition import Condition
    from storage.errors import CorruptRecord
    from storage.log.read import Isolation
    from storage.record.header import Buffer

_F = TypeVar("_F", bound=Callable[..., Any])

_TEXT_BYTES = 64 << 10

Report = Callable[["CorruptRecord"], object]
"""Gets damage; the search continues after it."""


def _parsed(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    from storage.condition.parse import InvalidCondition, parse

    try:
        return parse(text)
    except InvalidCondition as error:
        raise click.BadParameter(str(error)) from None


def where_option(function: _F) -> _F:
    """The option `--where`; the parameter `where` is a Condition, or None."""
    return click.option(
        "--where",
        metavar="CONDITION",
        callback=_parsed,
        help="Select records by a condition, such as `key = 'alice' and timestamp >= '-15m'`.",
    )(function)


class Scan(NamedTuple):
    """A search for records. `total`: the number of offsets to search; 0: not known.

    `batches` yields how many of them have been searched, and a plain batch of records for which the
    condition holds, or None. Errors: StorageError, OSError.

    `bytes_for` returns about how many bytes of log a search of the same offsets for a condition
    reads. Errors: OSError.
    """

    total: int
    batches: Iterator[tuple[int, Buffer | None]]
    bytes_for: Callable[[Condition], int] = lambda _: 0


def scan(
    tree: FileSystem,
    topic: str,
    number: int,
    view: str,
    points: str,
    condition: Condition,
    report: Report | None = None,
) -> Scan:
    """Search a partition between two points, `START..END`. Without `report`, damage is an error.

    Errors: StorageError, OSError.
    """
    from kafkafs.tree.files.view_file import ViewFile
    from storage.errors import CorruptRecord, SegmentGone
    from storage.record.columns._predicate import kept
    from storage.split.narrow import bytes_of, narrowed

    left = condition.of_partition(topic, number)
    if left.is_impossible:
        return Scan(0, iter(()))
    node = find(tree, topic, *path_in_topic(view, str(number)))
    assert isinstance(node, ViewFile)
    partition = node.partition
    log, predicate = partition.log, left.predicate()
    cache = tree.mount.cache_directory(log)
    isolation: Isolation = "read_committed" if node.text.view.committed else "read_uncommitted"
    # Another process may have removed segments since the directory was opened.
    partition.look()
    start, end = patiently(partial(_offsets, tree, node, points))
    at = start

    def batches() -> Iterator[tuple[int, Buffer | None]]:
        nonlocal at
        failed = None
        while True:
            segments = log.segments
            try:
                for first, behind in narrowed(log, at, end, left, cache):
                    at = first
                    if first == behind:
                        yield at - start, None
                        continue
                    for batch, header in log.reader.batches(first, behind, isolation):
                        # Batches without records to show may lie before this one.
                        at = max(at, header.base_offset)
                        some = kept(batch, predicate, first, behind, header.magic == 0)
                        at = header.last_offset + 1
                        yield at - start, some
                at = end
                return
            except SegmentGone:
                partition.look()
                if log.segments is segments:
                    raise
                at = max(at, log.log_start_offset)
            except CorruptRecord as error:
                if report is None or (at, error.position) == failed:
                    raise
                failed = at, error.position
                at = log.reader.next_readable(at, error)
                error.path = error.path or log.directory
                report(error)

    def bytes_for(other: Condition) -> int:
        ranges = narrowed(log, start, end, other.of_partition(topic, number), cache)
        return sum(bytes_of(log, *each) for each in ranges)

    return Scan(max(end - start, 0), batches(), bytes_for)


def _offsets(tree: FileSystem, file: ViewFile, points: str) -> tuple[int, int]:
    """Return the offsets of two points, `START..END`. Errors: StorageError, OSError."""
    from kafkafs.tree.files.start_names import parse_start_name
    from kafkafs.tree.files.start_points import end_of, of_group, start_offset

    partition, shown = file.partition, file.text
    parsed = parse_start_name(f"{partition.log.partition}@{points}", time.time_ns() // 1_000_000)
    assert parsed is not None
    first = of_group(tree.partitions, partition, parsed.start)
    last = of_group(tree.partitions, partition, parsed.end)
    assert first is not None
    start = start_offset(partition, shown, first, strict=False)
    end = end_of(partition, shown, last).offset
    return start, shown.bound if end is None else min(end, shown.bound)


def first_records(batch: Buffer, count: int) -> Buffer:
    """Return a plain batch with only its first records, `count` of them. Errors: CorruptRecord."""
    from storage.condition.intervals import HIGHEST
    from storage.record.columns._predicate import Predicate, kept

    some = kept(batch, Predicate(("every",)), 0, HIGHEST, most=count)
    assert some is not None
    return some


def text_of(view: TextView, batch: Buffer) -> bytes:
    """Return the text of plain batches."""
    from kafkafs.views._measure import Cursor, unfilled

    out = unfilled(_TEXT_BYTES)
    return b"".join(map(bytes, rendered(view, batch, Cursor(0), out)))


def rendered(view: TextView, data: Buffer, cursor: Cursor, out: bytearray) -> Iterator[memoryview]:
    """Yield the text of batches from the cursor on, in `out`. Each is valid until the next one.

    The text ends before a batch that is not plain. Errors: CorruptRecord.
    """
    shown, size = memoryview(out), len(data)
    done = len(out)
    while done:
        done, _ = view.render(data, 0, size, cursor, out, 0, len(out), 0)
        if done:
            yield shown[:done]
