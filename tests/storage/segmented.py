"""Logs of small segments, and what tests of retention ask of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from storage import Log, LogManager
from storage.directory.retain import Retained, retain
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from tests.storage.logs import NOW_MS, append

T = TypeVar("T")
DAY_MS = 86_400_000
FOREVER = {"retention.ms": "-1"}


def segmented(manager: LogManager, topic: str = "t", count: int = 4, **settings: str) -> Log:
    """A log of ``count`` segments with two records each, a day apart from segment to segment."""
    log = manager.create_topic(topic, 1).partitions[0]
    given = {name.replace("_", "."): value for name, value in settings.items()}
    manager.change_topic_settings(topic, {**FOREVER, **given})
    fill(log, count)
    return log


def fill(log: Log, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        if number:
            log.roll(NOW_MS + number * DAY_MS)
        append(log, b"a%d" % number, b"b%d" % number, timestamp_ms=NOW_MS + number * DAY_MS)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def names(log: Log, suffix: str = "") -> list[str]:
    return sorted(name for name in os.listdir(log.directory) if name.endswith(suffix))


def log_starts(manager: LogManager) -> dict[tuple[str, int], int]:
    path = os.path.join(manager.path, "log-start-offset-checkpoint")
    return read_offsets(manager.files, path)


def run(manager: LogManager, now_ms: int, task: Task | None = None) -> Retained:
    return retain(manager, list(manager.logs()), task or Task(), now_ms)


@contextlib.contextmanager
def crashing(data: Path) -> Iterator[LogManager]:
    """A directory that nobody closes."""
    manager = LogManager.open(str(data), clock_ms=lambda: NOW_MS)
    try:
        yield manager
    finally:
        manager.abandon()


class Turns:
    """An owner that lets something happen before one of its turns."""

    def __init__(self, number: int, happens: Callable[[], object]) -> None:
        self.left = number
        self.happens = happens

    def __call__(self, function: Callable[[], T], /) -> T:
        if not self.left:
            self.happens()
        self.left -= 1
        return function()
