"""Opening a directory to read it while a cleaner gives its new segments their names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from storage import Log, LogManager, paths
from storage.follow.follow_directory import DirectoryFollower
from storage.task import Task
from tests.crash.moments import Found, Stops, Unsynced
from tests.storage.compaction.cleaned import Clock, clean, compacted, contents, put, roll
from tests.storage.logs import opened
from tests.storage.transactions import Client

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

        def on_log_thread(function: Callable[[], T]) -> T:
            outcome = function()
            if not readers and is_swapping(log):
                readers.append(threading.Thread(target=look))
                readers[0].start()
            return outcome

        clean(manager, log, Task(on_log_thread))
        (reader,) = readers
        reader.join()
        assert seen == [[(2, b"a", b"3")]]


def everything(log: Log) -> tuple[object, ...]:
    committed = list(log.records(isolation="read_committed"))
    uncommitted = list(log.records(isolation="read_uncommitted"))
    return log.log_start_offset, log.log_end_offset, committed, uncommitted


def test_who_only_reads_sees_what_a_stopped_cleaner_would_have_made(tmp_path: Path) -> None:
    """Wherever it was stopped, the same as who finishes its swap."""
    data = tmp_path / "data"
    data.mkdir()
    with compacted(data) as (manager, log):
        manager.change_topic_settings("t", {"internal.segment.bytes": "600"})
        for number in range(2):
            client = Client(log, 7 + number)
            for value in (b"1", b"2"):
                put(log, (b"a%d" % number, value), (b"b", value * 20))
                client.send(b"aborted", transactional=True)
            client.abort()
            put(log, (b"b", b"again %d" % number))
            roll(log)
    stops = Stops(data)
    manager = LogManager.open(str(data), files=stops.disk, clock_ms=Clock())
    clean(manager, manager.log("t", 0))
    stops.end()
    seen: set[str] = set()

    def check(path: Path, _found: Found) -> None:
        names = {each.name for each in (path / "t-0").iterdir()}
        seen.update(name for name in names if name.endswith(".swap"))
        with LogManager.open(str(path), read_only=True, clock_ms=Clock()) as reader:
            assert reader.faults == []
            shown = everything(reader.log("t", 0))
        assert {each.name for each in (path / "t-0").iterdir()} == names
        with LogManager.open(str(path), files=Unsynced(), clock_ms=Clock()) as finished:
            assert shown == everything(finished.log("t", 0))

    stops.judge(check, tmp_path / "found")
    kinds = {name.partition(".")[2] for name in seen}
    assert kinds >= {"log.swap", "index.swap", "timeindex.swap", "txnindex.swap"}
    assert len({name for name in seen if name.endswith(".log.swap")}) > 1


def test_what_is_open_to_be_read_when_the_swap_is_finished(tmp_path: Path) -> None:
    with compacted(tmp_path) as (_, log):
        for value in (b"1", b"2"):
            put(log, (b"a", value))
            roll(log)
    for path in (tmp_path / "t-0").glob(f"{0:020}.*"):
        if not path.name.endswith("snapshot"):
            path.rename(f"{path}.swap")
    with LogManager.open(str(tmp_path), read_only=True) as reader:
        log = reader.log("t", 0)
        assert contents(log) == [(0, b"a", b"1"), (1, b"a", b"2")]
        DirectoryFollower(reader).look(log)
        with compacted(tmp_path):
            pass
        log.age_descriptors()
        log.age_descriptors()
        DirectoryFollower(reader).look(log)
        assert contents(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_a_topic_with_the_id_and_the_settings_of_a_cluster(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        topic = manager.create_mirrored_topic(
            "a", "AAECAwQFBgcICQoLDA0ODw", 2, {"retention.ms": "-1"}
        )
        assert manager.settings.log_config("a").retention_ms == -1
        manager.create_mirrored_topic(paths.CONSUMER_OFFSETS, None, 3, {})
        assert manager.topics[paths.CONSUMER_OFFSETS].numbers == [0, 1, 2]
        for number in (0, 1):
            path = tmp_path / f"a-{number}" / paths.PARTITION_METADATA
            assert path.read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    with opened(tmp_path) as manager:
        assert manager.topics["a"].id == topic.id == "AAECAwQFBgcICQoLDA0ODw"
