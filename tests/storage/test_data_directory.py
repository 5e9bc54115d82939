"""Opening a directory to read it while a cleaner gives its new segments their names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from storage import Log, LogManager
from storage.task import Task
from tests.storage.compaction.cleaned import clean, compacted, contents, put, roll

T = TypeVar("T")


def is_swapping(log: Log) -> bool:
    """Whether the first segment has no log of its own name."""
    names = os.listdir(log.directory)
    return f"{0:020}.log.swap" in names and f"{0:020}.log" not in names


def test_who_opens_it_meanwhile_misses_nothing(tmp_path: Path) -> None:
    seen: list[list[tuple[int, bytes | None, bytes | None]]] = []

    def look() -> None:
        with LogManager.open(str(tmp_path), read_only=True) as reader:
            assert reader.faults == []
            seen.append(contents(reader.log("t", 0)))

    with compacted(tmp_path) as (manager, log):
        for value in (b"1", b"2", b"3"):
            put(log, (b"a", value))
            roll(log)
        readers: list[threading.Thread] = []

        def by_owner(function: Callable[[], T]) -> T:
            outcome = function()
            if not readers and is_swapping(log):
                readers.append(threading.Thread(target=look))
                readers[0].start()
            return outcome

        clean(manager, log, Task(by_owner))
        (reader,) = readers
        reader.join()
        assert seen == [[(2, b"a", b"3")]]


def test_what_a_stopped_cleaner_has_not_named_is_told_to_who_only_reads(tmp_path: Path) -> None:
    with compacted(tmp_path) as (_, log):
        for value in (b"1", b"2"):
            put(log, (b"a", value))
            roll(log)
    for path in (tmp_path / "t-0").glob(f"{0:020}.*"):
        path.rename(f"{path}.swap")
    with LogManager.open(str(tmp_path), read_only=True) as reader:
        assert contents(reader.log("t", 0)) == [(1, b"a", b"2")]
        assert [fault for fault in reader.faults if "opened for writing" in fault]
    with compacted(tmp_path) as (_, log):
        assert [record[0] for record in contents(log)] == [0, 1]
