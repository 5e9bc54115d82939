"""Opening a directory to read it while a cleaner gives its new segments their names."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from storage import Log, LogManager
from storage.follow.follow_directory import DirectoryFollower
from tests.crash.moments import Found, Stops, Unsynced
from tests.storage.compaction.cleaned import Clock, clean, compacted, contents, put, roll
from tests.storage.transactions import Client

T = TypeVar("T")


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
