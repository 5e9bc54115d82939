"""Logs whose splits are read, and what a reader of them gets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from storage import Log, LogManager
from storage.files import Files
from storage.log.read import Isolation
from storage.split.split import plan_splits
from storage.split.split_finder import Split
from storage.split.split_reader import read_split
from tests.oracle import Shown
from tests.storage.compaction.cleaned import Clock
from tests.storage.logs import NOW_MS, append, write_settings
from tests.storage.record.columns.test__columns import shown

COMMITTED: Isolation = "read_committed"
UNCOMMITTED: Isolation = "read_uncommitted"
EVERYTHING = 1 << 40


def plan(
    log: Log,
    first: int | None = None,
    end: int | None = None,
    target: int = EVERYTHING,
    isolation: Isolation = COMMITTED,
    first_bytes: int | None = None,
) -> list[Split]:
    """Splits of the whole log, or of a part of it."""
    bound = log.last_stable_offset if isolation == COMMITTED else log.log_end_offset
    return plan_splits(
        log,
        log.log_start_offset if first is None else first,
        bound if end is None else end,
        target_bytes=target,
        isolation=isolation,
        first_bytes=first_bytes,
    )


def read(split: Split, files: Files | None = None, chunk_bytes: int = 4 << 20) -> list[Shown]:
    found: list[Shown] = []
    for columns in read_split(files or Files(), split, chunk_bytes=chunk_bytes):
        found += shown(columns, 1000)
    for row in found:
        # In plain forms, which others read, v0 has a type.
        assert row.timestamp_type >= 0 or row.timestamp == -1
        row.timestamp_type = max(row.timestamp_type, 0)
    return found


def read_all(splits: list[Split], chunk_bytes: int = 4 << 20) -> list[Shown]:
    return [row for split in splits for row in read(split, chunk_bytes=chunk_bytes)]


def records(log: Log, first: int, end: int, isolation: Isolation = COMMITTED) -> list[Shown]:
    """Return the records that a reader of the log gets from `first` to before `end`."""
    return [
        Shown(
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            list(record.headers) or None,
        )
        for record in log.records(first, isolation)
        if record.offset < end
    ]


@contextlib.contextmanager
def a_log(data: Path, clock: Clock | None = None, **given: object) -> Iterator[Log]:
    """A log whose batches nearly all have index entries."""
    write_settings(data, **{"log_index_interval_bytes": 1, **given})
    with LogManager.open(str(data), clock_ms=clock or Clock()) as manager:
        yield manager.create_topic("t", 1).partitions[0]


def lines(log: Log, count: int, size: int = 90) -> None:
    for number in range(count):
        append(log, *(b"%d.%d" % (number, n) + b"x" * size for n in range(10)))


def check_splits(splits: list[Split], first: int, end: int) -> None:
    """One behind the other, with some bytes each; outside of them there is no batch."""
    at = first
    for split in splits:
        assert split.size > 0
        assert at == split.from_offset < split.to_offset <= end
        at = split.to_offset
    assert at == end or not splits


def segmented_log(log: Log, count: int = 3) -> None:
    for _ in range(count):
        lines(log, 3)
        log.roll(NOW_MS)
    lines(log, 3)
