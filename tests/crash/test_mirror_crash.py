"""A crash at every file operation while the copy of a topic gets another name or an id, a mirror
ends, or it writes line indexes.

The next start completes it: the copy has the records that it had, in all of its partitions; and no
group of a former mirror has committed an offset beyond the end of a log. A gap that a killed mirror
has named stays named. No line index shows other text than the log.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kafkafs.line_index import LineStore, SegmentLines, reader_at
from kafkafs.mirror.line_indexes import LineIndexes
from kafkafs.mirror.topics import set_aside, take_ids
from kafkafs.views import values_view
from storage import LogManager, paths
from storage.directory.mirror import end_mirror
from storage.files import Files
from storage.log.append import append_as_follower
from storage.log.log import Log
from storage.state import gaps_file, mirror_file, point_file
from storage.state.mirror_file import NO_ID, MirroredPartition, MirrorFile
from storage.state.point_file import Point
from tests.crash.moments import Found, Life, Stops, Unsynced
from tests.kafkafs.mirror.fake_source import Run, Source, SourceLog, SourceTopic
from tests.kafkafs.mirror.test_line_indexes import SMALL, index_all, indexed, put, sealed
from tests.storage.groups.records import position, positions, write
from tests.storage.log.test_follower import at, stored
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, values, write_settings

ID = "AAECAwQFBgcICQoLDA0ODw"
KEPT = f"t.{ID}"
BATCHES = b"".join(at(batch([b"%d" % n] * 5), 5 * n, 3) for n in range(4))


class Renaming(Life):
    """The copies of two topics. One of them was created again."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.is_done = False

    def build(self) -> None:
        self.data.mkdir()
        with LogManager.open(str(self.data), files=Unsynced()) as manager:
            for name, topic_id in (("t", ID), ("other", ID.lower())):
                topic = manager.create_mirrored_topic(name, topic_id, 2, {})
                for log in topic.partitions.values():
                    append_as_follower(log, BATCHES, NOW_NS)
                    log.raise_log_start(7 + log.partition)
        status = MirrorFile("c", "kafka://b:9092", ("*",), {"t": ID, "other": ID.lower()})
        for name in status.ids:
            for number in range(2):
                status.partitions[name, number] = MirroredPartition(start=0)
        mirror_file.write(Unsynced(), str(self.data), status)

    def expected(self) -> tuple[object, ...]:
        return (self.is_done,)

    def run(self, files: Files) -> None:
        complete(files, self.data)
        self.is_done = True

    def check(self, data: Path, found: Found) -> None:
        (is_done,) = found.expected
        status = mirror_file.read(Unsynced(), str(data))
        assert status is not None
        if is_done:
            assert "t" not in status.ids
        complete(Unsynced(), data)
        for _ in range(2):
            with LogManager.open(
                str(data), files=Unsynced(), mirrors=True, clock_ms=lambda: NOW_MS
            ) as manager:
                assert {name: topic.id for name, topic in manager.topics.items()} == {
                    KEPT: ID,
                    "other": ID.lower(),
                }
                assert (manager.faults, manager.cuts) == ([], [])
                for log in manager.logs():
                    assert stored(log) == BATCHES
                    assert log.log_start_offset == 7 + log.partition
                if "t" not in manager.topics:
                    manager.create_mirrored_topic("t", ID[::-1], 2, {})
                    assert manager.log("t", 1).log_start_offset == 0
                    manager.delete_topic("t")


def complete(files: Files, data: Path) -> None:
    """Rename, as a start does that finds the topic with another id."""
    status = mirror_file.read(files, str(data))
    assert status is not None
    if "t" in status.ids:
        assert set_aside(files, str(data), status, "t") == KEPT
        mirror_file.write(files, str(data), status)
    assert sorted(status.partitions) == [("other", 0), ("other", 1)]


def test_a_crash_while_a_copy_is_renamed(tmp_path: Path) -> None:
    life = Renaming(tmp_path / "data")
    life.stops((0, 2, 3)).judge(life.check, tmp_path / "found")


class TakingIds(Life):
    """The copies of two topics. The cluster has given one of them an id since."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.is_done = False

    def build(self) -> None:
        self.data.mkdir()
        files = Unsynced()
        with LogManager.open(str(self.data), files=files) as manager:
            for name in ("t", "other"):
                for log in manager.create_mirrored_topic(name, None, 2, {}).partitions.values():
                    append_as_follower(log, BATCHES, NOW_NS)
        ids = {"t": NO_ID, "other": NO_ID}
        mirror_file.write(files, str(self.data), MirrorFile("c", "kafka://b:9092", ("*",), ids))
        point_file.write(files, str(self.data), Point(NOW_MS, "c", ids=ids))

    def expected(self) -> tuple[object, ...]:
        return (self.is_done,)

    def run(self, files: Files) -> None:
        take(files, self.data)
        self.is_done = True

    def check(self, data: Path, found: Found) -> None:
        def topic_ids() -> dict[str, str]:
            with LogManager.open(str(data), files=Unsynced(), mirrors=True) as manager:
                assert (manager.faults, manager.cuts) == ([], [])
                assert [stored(log) for log in manager.logs()] == [BATCHES] * 4
                return {name: topic.id for name, topic in manager.topics.items()}

        before = topic_ids()
        assert not found.expected[0] or before["t"] == ID
        take(Unsynced(), data)
        assert topic_ids() == before | {"t": ID}
        point = point_file.read(Unsynced(), str(data), point_file.name_at(NOW_MS))
        assert point.ids == {"t": ID, "other": NO_ID}


def take(files: Files, data: Path) -> None:
    """Take the id, as the start of a session does that has found it."""
    status = mirror_file.read(files, str(data))
    assert status is not None
    if status.ids["t"] == NO_ID:
        take_ids(files, str(data), status, {"t": ID})
    assert status.ids == {"t": ID, "other": NO_ID}


def test_a_crash_while_a_topic_gets_its_id(tmp_path: Path) -> None:
    life = TakingIds(tmp_path / "data")
    life.stops((0, 2, 3)).judge(life.check, tmp_path / "found")


class Ending(Life):
    """A mirror that is killed and detached, with an offset ahead of the copy."""

    kinds = (paths.MIRROR_ENDED,)

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.begins = self.is_ended = self.is_done = False

    def build(self) -> None:
        super().build()
        with LogManager.open(str(self.data), files=Unsynced()) as manager:
            for name in ("t", paths.CONSUMER_OFFSETS):
                manager.create_mirrored_topic(name, None, 1, {})
        status = MirrorFile("c", "kafka://b:9092", ("*",))
        mirror_file.write(Unsynced(), str(self.data), status)

    def expected(self) -> tuple[object, ...]:
        return self.begins, self.is_ended, self.is_done

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, mirrors=True)
        append_as_follower(manager.log("t", 0), BATCHES, NOW_NS)
        offsets = manager.log(paths.CONSUMER_OFFSETS, 0)
        write(offsets, position("ahead", "t", 0, 500))
        write(offsets, position("at the end", "t", 0, 20))
        # Otherwise, each start would look at these offsets, because they are unflushed.
        offsets.flush()
        manager.checkpoint()
        manager.abandon()
        self.begins = True
        end_mirror(files, str(self.data))
        self.is_ended = True
        manager = LogManager.open(str(self.data), files=files)
        self.is_done = True
        append(manager.log("t", 0), b"ours")
        manager.checkpoint()
        manager.close()

    def check(self, data: Path, found: Found) -> None:
        _, is_ended, is_done = found.expected
        is_mirror = (data / paths.MIRROR).exists()
        assert not (is_ended and is_mirror)
        assert not (is_done and (data / paths.MIRROR_ENDED).exists())
        if is_mirror:
            end_mirror(Unsynced(), str(data))
        for _ in range(2):
            with LogManager.open(str(data), files=Unsynced()) as manager:
                end = manager.log("t", 0).log_end_offset
                for name in manager.groups.names():
                    assert positions(manager, name)["t", 0] <= end
                assert manager.faults == []
            assert not (data / paths.MIRROR_ENDED).exists()


def test_a_crash_while_a_mirror_ends(tmp_path: Path) -> None:
    life = Ending(tmp_path / "data")
    stops = life.stops((0, 2))
    stops.found = [each for each in stops.found if each.expected[0]]
    stops.judge(life.check, tmp_path / "found")


def test_a_gap_that_a_killed_mirror_has_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """… without a sync of the directory. The next run appends the records after the gap."""
    data, line = tmp_path / "data", "missing 5 9 1"
    log = SourceLog([at(batch([b"1"] * 5), 0, 0)])
    with Source(t=SourceTopic(logs={0: log})) as source:
        data.mkdir()
        write_settings(data, log_index_size_max_bytes=240)
        Run(source, data)()
        (data / paths.CLEAN_SHUTDOWN).unlink()
        stops = Stops(data, seeds=(0, 2, 3))
        with stops.disk.replacing(str(data / "t-0" / gaps_file.FILE_NAME), 0o644) as fd:
            stops.disk.pwrite(fd, f"{line}\n".encode(), 0)
            stops.disk.fsync(fd)
        monkeypatch.setattr("storage.manager.Files", lambda _: stops.disk)
        log.batches.append(at(batch([b"2"] * 5), 10, 0))
        assert Run(source, data)().gaps == 0
        stops.end()
    monkeypatch.undo()

    def check(path: Path, _: Found) -> None:
        with LogManager.open(str(path), files=Unsynced(), read_only=True) as manager:
            copy = manager.log("t", 0)
            if copy.log_end_offset > 5:
                assert list(map(str, copy.gaps)) == [line]

    stops.judge_all(check, tmp_path / "found")


def check_text(log: Log, cache: str) -> None:
    """A read-only mount shows the values."""
    store, shown = LineStore(Files()), bytearray()
    for segment in log.segments:
        lines = SegmentLines(store, segment, values_view(), log.transactions.is_aborted, cache)
        lines.measure()
        text = bytearray(lines.text_length)
        assert not text or reader_at(lines, 0).fill(text, 0) == len(text)
        shown += text
    assert shown == b"".join(b"%s\n" % value for value in values(log))


def test_a_crash_while_line_indexes_are_written(tmp_path: Path) -> None:
    """Before and after a truncation."""
    data, cache = tmp_path / "data", str(tmp_path / "cache")
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240)
    stops = Stops(data, seeds=(0, 2))
    stops.disk.armed = False
    manager = LogManager.open(str(data), files=stops.disk)
    log = manager.create_mirrored_topic("t", ID, 1, SMALL).partitions[0]
    put(log, 5)
    with closing(LineIndexes(manager)) as indexes:

        def index() -> None:
            stops.disk.armed = True
            index_all(indexes)
            stops.disk.armed = False
            assert indexed(log) == sealed(log)

        index()
        manager.truncate(log, log.active.base_offset - 1)
        put(log, 3)
        index()
    manager.abandon()
    stops.end()

    def check(path: Path, _: Found) -> None:
        with LogManager.open(str(path), files=Unsynced(), read_only=True) as manager:
            # Before a start has completed anything.
            check_text(manager.log("t", 0), cache)
        with (
            LogManager.open(str(path), files=Unsynced()) as manager,
            closing(LineIndexes(manager)) as indexes,
        ):
            index_all(indexes)
            assert {*sealed(manager.log("t", 0))} <= {*indexed(manager.log("t", 0))}
            check_text(manager.log("t", 0), cache)

    stops.judge(check, tmp_path / "found")
