"""A mirror writes the line indexes of sealed segments. A read-only mount needs to measure none."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from kafkafs.line_index import SegmentLines
from kafkafs.mirror import line_indexes
from kafkafs.mirror.line_indexes import LineIndexes
from storage import Log, LogManager, paths
from storage.log.append import append_as_follower
from storage.record.control import ABORT, COMMIT
from storage.room import Room
from tests.kafkafs.mirror.fake_source import Run, Source, SourceLog, SourceTopic
from tests.kafkafs.trees import Following, Tree
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_MS, NOW_NS, batch, opened, remove_head
from tests.storage.transactions import marker, produced

SMALL = {"internal.segment.bytes": "300", "index.interval.bytes": "100"}


def index_all(indexes: LineIndexes) -> None:
    """Index all segments that can be indexed now."""
    while indexes.run():
        indexes._worker.join()


def index(indexes: LineIndexes, count: int) -> None:
    """Try to index `count` segments, one after the other."""
    for _ in range(count):
        assert indexes.run()
        indexes._worker.join()


def indexed(log: Log) -> list[int]:
    """The base offsets of the line indexes beside a log."""
    return sorted(
        int(path.name.partition(".")[0]) for path in Path(log.directory).glob(f"*{paths.LINES}")
    )


def sealed(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments[:-1]]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    with opened(tmp_path) as manager:
        yield manager


@pytest.fixture
def log(manager: LogManager) -> Log:
    return manager.create_mirrored_topic("t", None, 1, SMALL).partitions[0]


def put(log: Log, count: int = 20) -> None:
    for _ in range(count):
        append_as_follower(log, at(batch([b"x" * 50]), log.log_end_offset, 0), NOW_NS)


def test_a_segment_is_indexed_when_it_is_rolled(log: Log, manager: LogManager) -> None:
    """Those that the mirror finds at its start, too. Topics of Kafka need no index."""
    put(log)
    offsets = manager.create_mirrored_topic(paths.CONSUMER_OFFSETS, None, 1, SMALL).partitions[0]
    put(offsets)
    before = sealed(log)
    with closing(LineIndexes(manager)) as indexes:
        index_all(indexes)
        assert indexed(log) == before != []
        put(log, 10)
        put(offsets)
        index_all(indexes)
        assert indexed(log) == sealed(log) != before
    assert indexed(offsets) == []


def test_the_last_one_that_was_rolled_is_the_first(log: Log, manager: LogManager) -> None:
    put(log)
    with closing(LineIndexes(manager)) as indexes:
        put(log)
        for count in (1, 2, 3):
            index(indexes, 1)
            assert indexed(log) == sealed(log)[-count:]


def test_a_segment_waits_for_the_end_of_its_transaction(log: Log, manager: LogManager) -> None:
    with closing(LineIndexes(manager)) as indexes:
        put(log)
        first = log.log_end_offset
        ours = produced([b"t"], 7, 0, transactional=True)
        append_as_follower(log, at(ours, first, 0), NOW_NS)
        put(log)
        index_all(indexes)
        shown = [segment.base_offset for segment in log.segments if segment.next_offset <= first]
        assert indexed(log) == shown
        append_as_follower(log, at(marker(7, 0), log.log_end_offset, 0), NOW_NS)
        index_all(indexes)
        assert indexed(log) == sealed(log)
    check(indexes, log, hidden=[first])


def check(indexes: LineIndexes, log: Log, hidden: list[int]) -> None:
    """A mount that begins now counts all records of closed segments but the hidden ones."""
    for segment in log.segments[:-1]:
        lines = SegmentLines(
            indexes._store,
            segment,
            indexes._view,
            log.transactions.is_aborted,
            aborted_across=log.transactions.aborted_across,
        )
        lines.measure()
        offsets = range(segment.base_offset, segment.next_offset)
        assert lines.records == len(offsets) - sum(offset in offsets for offset in hidden)


class Full(Room):
    """A part of the reserve is used."""

    def check(self) -> None:
        raise OSError(errno.ENOSPC, "full")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The worker measures nothing, until this is undone."""
    with monkeypatch.context() as patch:
        patch.setattr(line_indexes, "_SLICE_S", -1)
        yield patch


def test_a_truncation_waits_for_the_worker(
    log: Log, manager: LogManager, held: pytest.MonkeyPatch
) -> None:
    """It is at the segment whose end is cut off."""
    put(log)
    last = log.segments[-2]
    with closing(LineIndexes(manager)) as indexes:
        indexes.run()
        assert indexes._worker.is_alive()
        manager.truncate(log, last.base_offset + 1)
        assert not indexes._worker.is_alive()
        assert log.active.base_offset == last.base_offset
        held.undo()
        index_all(indexes)
        assert indexed(log) == sealed(log)
        put(log)
        index_all(indexes)
        assert indexed(log) == sealed(log)


def test_an_index_leaves_with_its_records(log: Log, manager: LogManager) -> None:
    put(log)
    with closing(LineIndexes(manager)) as indexes:
        index_all(indexes)
        before, last = log.segments[-3:-1]
        manager.truncate(log, before.base_offset + 1)
        assert indexed(log) == sealed(log)
        kept = {path.name for path in Path(log.directory).glob(f"*{paths.DIVERGED}")}
        assert paths.file_name(last.base_offset, ".lines.diverged") in kept
        first = log.segments[0]
        remove_head(log, 1, NOW_MS)
        assert indexed(log) == sealed(log)
        assert Path(first.file_path(paths.LINES)).exists()
        assert first.file_path(paths.LINES) in log.release_retired(1 << 62)


def put_transaction(log: Log) -> tuple[int, int]:
    """Append a transaction that ends some segments later; return the offsets of its record and of
    its marker, which is not there yet.
    """
    put(log)
    first = log.log_end_offset
    append_as_follower(log, at(produced([b"t"], 7, 0, transactional=True), first, 0), NOW_NS)
    put(log)
    return first, log.log_end_offset


@pytest.mark.parametrize("at_boundary", [False, True])
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_segment_is_indexed_again_if_its_transaction_has_another_outcome(
    log: Log, manager: LogManager, kind: int, at_boundary: bool
) -> None:
    """A truncation removes the marker, and the new leader has the other one."""
    first, end = put_transaction(log)
    append_as_follower(log, at(marker(7, kind), end, 0), NOW_NS)
    put(log)
    with closing(LineIndexes(manager)) as indexes:
        index_all(indexes)
        assert indexed(log) == sealed(log)
        (ours,) = (each for each in log.segments if each.base_offset <= first < each.next_offset)
        index = Path(ours.file_path(paths.LINES))
        before = index.read_bytes()
        manager.truncate(log, ours.next_offset if at_boundary else end)
        end = log.log_end_offset
        append_as_follower(log, at(marker(7, ABORT + COMMIT - kind), end, 0), NOW_NS)
        put(log)
        index_all(indexes)
        assert index.read_bytes() != before
        check(indexes, log, hidden=[end, *[first] * (kind == COMMIT)])


def test_the_segment_that_is_indexed_may_be_deleted(
    log: Log, manager: LogManager, held: pytest.MonkeyPatch
) -> None:
    put(log)
    first = log.segments[0]
    with closing(LineIndexes(manager)) as indexes:
        del indexes._waiting[1:]
        indexes.run()
        remove_head(log, 2, NOW_MS)
        held.undo()
        indexes._worker.join()
        assert Path(first.file_path(paths.LINES)).exists()
        assert indexed(log) == []
        assert first.file_path(paths.LINES) in log.release_retired(1 << 62)
    assert manager.duties.failing == {}


def test_a_damaged_segment_is_read_once(log: Log, manager: LogManager) -> None:
    """Its index is not saved."""
    put(log)
    damaged = log.segments[0]
    path = Path(damaged.log_path)
    good = path.read_bytes()
    path.write_bytes(good[:100] + b"!" + good[101:])
    with closing(LineIndexes(manager)) as indexes:
        index_all(indexes)
        assert damaged.damages
        assert indexed(log) == sealed(log)[1:]
    path.write_bytes(good)
    damaged.damages = ()


def test_a_mirror_that_ends_waits_for_no_index(
    log: Log, manager: LogManager, held: pytest.MonkeyPatch
) -> None:
    """The next start writes it."""
    put(log)
    with closing(LineIndexes(manager)) as indexes:
        indexes.run()
        assert indexes._worker.is_alive()
    assert indexed(log) == []
    held.undo()
    with closing(LineIndexes(manager)) as indexes:
        index_all(indexes)
    assert indexed(log) == sealed(log)


def test_no_index_takes_the_room_of_the_reserve(log: Log, manager: LogManager) -> None:
    put(log)
    manager.files.room = Full()
    failed = Event()
    manager.duties.say = lambda *_: failed.set()
    with closing(LineIndexes(manager)) as indexes:
        indexes.run()
        failed.wait()
        # It pauses. The end of this block ends the pause.
        assert indexes.run()
        assert indexes._worker.is_alive()
    assert indexed(log) == []
    assert sum(manager.duties.failing.values()) == 1


def test_an_index_that_fails_is_written_later(
    log: Log, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_indexes, "_PAUSE_S", 0)
    put(log)
    room, manager.files.room = manager.files.room, Full()
    with closing(LineIndexes(manager)) as indexes:
        index(indexes, len(log.segments) + 2)
        assert indexed(log) == []
        manager.files.room = room
        index_all(indexes)
    assert indexed(log) == sealed(log)
    assert sum(manager.duties.failing.values()) == 0


def test_a_segment_that_cannot_be_indexed_does_not_delay_others(
    log: Log, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first one in turn."""
    monkeypatch.setattr(line_indexes, "_PAUSE_S", 0)
    put(log)
    bad = Path(log.segments[-2].file_path(paths.LINES))
    bad.mkdir()
    with closing(LineIndexes(manager)) as indexes:
        index(indexes, len(log.segments) - 1)
        assert indexed(log) == sealed(log)
        bad.rmdir()
        index_all(indexes)
        assert bad.is_file()


def test_a_mount_beside_a_mirror_measures_only_the_active_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, log = tmp_path / "data", SourceLog()
    copy = data / "t-0"

    def names(suffix: str) -> list[str]:
        return sorted(path.stem for path in copy.glob(f"*{suffix}"))

    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, data)
        run()
        with LogManager.open(str(data), mirrors=True) as manager:
            manager.change_topic_settings("t", dict(SMALL))
        text = b""
        for number in range(30):
            log.batches.append(at(batch([b"%d" % number * 20]), number, 0))
            text += b"%d" % number * 20 + b"\n"
        shown: list[object] = []

        def look() -> bool:
            is_indexing = any(each.name == "index of t-0" for each in threading.enumerate())
            if len(names(".log")) > 5 and names(".lines") == names(".log")[:-1] and not is_indexing:
                before = [(path, path.read_bytes()) for path in copy.iterdir()]
                tree = Tree(data, Following(read_only=True))
                shown.append(tree.attributes(tree.node("t/0")).size)
                shown.append(tree.read("t/0"))
                tree.stop()
                assert [(path, path.read_bytes()) for path in copy.iterdir()] == before
            return bool(shown)

        run(look)
        assert shown == [len(text), text]
    cached = [path.stem for path in (tmp_path / "cache").rglob("*.lines")]
    assert cached == names(".log")[-1:]
