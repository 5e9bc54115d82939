"""Helpers for tests of cleaning: write keyed records to small segments, and clean them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from storage import Log, LogManager, Record, encode
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.log.append import append_batches
from storage.record.plain import recompress
from storage.task import Task
from tests.storage.logs import NOW_MS, opened, write_settings

Pair = tuple[bytes | None, bytes | None]


class Clock:
    """The manager's clock, which a test sets."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@contextlib.contextmanager
def compacted(
    data: Path, *, files: Files | None = None, clock: Clock | None = None, **settings: object
) -> Iterator[tuple[LogManager, Log]]:
    """A directory with the compacted topic ``t``; all of it is checked at the end."""
    write_settings(
        data, log_cleanup_policy="compact", **{"log_index_size_max_bytes": 4096, **settings}
    )
    with opened(data, files=files, clock_ms=clock or Clock()) as manager:
        if "t" not in manager.topics:
            manager.create_topic("t", 1)
        yield manager, manager.log("t", 0)


def keyed(pairs: Sequence[Pair], timestamp_ms: int = NOW_MS, codec: int = 0) -> bytearray:
    """One batch of these keys and values."""
    records = [Record(n, timestamp_ms, 0, key, value) for n, (key, value) in enumerate(pairs)]
    return bytearray(recompress(encode(records), codec))


def put(log: Log, *pairs: Pair, timestamp_ms: int = NOW_MS, codec: int = 0) -> int:
    """Append one batch; returns its first offset."""
    batch = keyed(pairs, timestamp_ms, codec)
    return append_batches(log, batch, now_ns=timestamp_ms * 1_000_000)[0].base_offset


def roll(log: Log, now_ms: int = NOW_MS) -> None:
    assert log.roll(now_ms)


def clean(manager: LogManager, log: Log, task: Task | None = None) -> Cleaned:
    """One round, which must have something to do."""
    cleaned = LogCleaner(manager).clean(log, task or Task())
    assert cleaned is not None
    return cleaned


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records that a reader gets."""
    return [(record.offset, record.key, record.value) for record in log.records()]
