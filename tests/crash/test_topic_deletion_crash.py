"""A crash at every file operation of the deletion of a topic, of its sweep, and of what follows.

Two topics are there; the first is deleted, swept, and created again.  Wherever that
stops, the other topic has all its records.  The deleted one has all its partitions, records and
settings or is deleted, until the deletion was acknowledged: then it does not come back by itself.
The new topic is its owner's as soon as it is there, begins at offset 0 with settings
of its own, and keeps its acknowledged records.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import pytest

from storage import LogManager
from storage.files import Files
from tests.crash import moments
from tests.crash.moments import Found, Stops, Unsynced, during_opening
from tests.storage.logs import NOW_MS, append, opened, remove_head, values, write_settings
from tests.storage.transactions import Client

PARTITIONS = 3
OWNER = (1000, 100, 0o700)
DELAY_MS = 60_000


def clock(now_ms: int = NOW_MS) -> int:
    return now_ms


def build(data: Path, *, alone: bool) -> None:
    """Two topics, or the one alone that is to be deleted, as a clean stop leaves them."""
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240)
    with LogManager.open(str(data), clock_ms=clock) as manager:
        manager.create_topic("gone", PARTITIONS)
        manager.change_topic_settings("gone", {"internal.segment.bytes": "300"})
        manager.change_topic_settings("gone", {"file.delete.delay.ms": str(DELAY_MS)})
        manager.change_topic_settings("gone", {"retention.ms": "77"})
        manager.settings.set_owner("gone", 1, 1000, 1000, 0o600)
        for number, log in manager.topic("gone").partitions.items():
            for n in range(6):
                append(log, b"gone %d %d" % (number, n) * 8)
        # Its entries in the checkpoints must not count for a later topic of its name.
        log = manager.log("gone", 0)
        remove_head(log, 2, NOW_MS)
        log.log_start_offset += 1
        Client(manager.log("gone", 1), 7).send(b"open")
        if not alone:
            append(manager.create_topic("kept", 1).partitions[0], b"kept", b"also")


class Life(moments.Life):
    """The run, and how far it has come. `alone`: there is no other topic."""

    kinds = ("-delete", "rmdir")

    def __init__(self, data: Path, *, alone: bool) -> None:
        super().__init__(data)
        self.alone = alone
        self.deleted = False
        self.made_anew = False
        self.acknowledged = 0
        self.flushed = 0

    def build(self) -> None:
        build(self.data, alone=self.alone)
        with LogManager.open(str(self.data), read_only=True, clock_ms=clock) as manager:
            topic = manager.topic("gone")
            self.gone = {n: values(log) for n, log in topic.partitions.items()}

    def expected(self) -> tuple[object, ...]:
        return self.deleted, self.made_anew, self.acknowledged, self.flushed

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, clock_ms=clock)
        manager.delete_topic("gone")
        self.deleted = True
        manager.sweep(NOW_MS)
        remove = manager.sweep(NOW_MS + DELAY_MS)
        assert remove is not None
        remove()
        self.make_anew(manager)

    def make_anew(self, manager: LogManager) -> None:
        topic = manager.create_topic("gone", 1, owner=OWNER)
        self.made_anew = True
        append(topic.partitions[0], b"new 0")
        self.acknowledged = 1
        topic.partitions[0].flush()
        self.flushed = 1
        append(topic.partitions[0], b"new 1")
        self.acknowledged = 2
        manager.close()
        self.flushed = 2


class Full(Unsynced):
    """A disk that reports no free space: opening a directory removes deleted topics first."""

    def space(self, path: str) -> os.statvfs_result:
        found = list(super().space(path))
        found[3:5] = 0, 0
        return os.statvfs_result(found)


def check(life: Life, path: Path, stopped: Found, files: Files | None = None) -> None:
    deleted, made_anew, acknowledged, flushed = stopped.expected
    with opened(path, files or Unsynced(), clock_ms=clock) as manager:
        if not life.alone:
            assert values(manager.log("kept", 0)) == [b"kept", b"also"]
        topic = manager.topics.get("gone")
        if made_anew:
            assert topic is not None
        if topic is None:
            pass
        elif deleted:
            # The new topic. Its directory may be there before it was acknowledged.
            assert list(topic.partitions) == [0]
            assert manager.settings.get_owner("gone", None) == OWNER
            assert manager.settings.overrides("gone") == {}
            log = topic.partitions[0]
            assert log.log_start_offset == 0
            found = values(log)
            assert found == [b"new 0", b"new 1"][: len(found)]
            assert len(found) >= (flushed if stopped.lost else acknowledged)
            assert not log.producers.by_id
        else:
            assert list(topic.partitions) == list(range(PARTITIONS))
            for number, log in topic.partitions.items():
                assert values(log) == life.gone[number]
            assert manager.settings.overrides("gone")["retention.ms"] == "77"
            assert manager.settings.get_owner("gone", 1) == (1000, 1000, 0o600)
        has_no_more_than_topics(manager)
    if topic is None:
        begin_anew(path)


def has_no_more_than_topics(manager: LogManager) -> None:
    """Once what was deleted is due, only the topics' partitions have directories."""
    remove = manager.sweep(NOW_MS + DELAY_MS)
    if remove is not None:
        remove()
    directories = {each.name for each in Path(manager.path).iterdir() if each.is_dir()}
    assert directories == {f"{log.topic}-{log.partition}" for log in manager.logs()}


def begin_anew(path: Path) -> None:
    """A new topic of the same name has no old records, also if the next stop is a crash."""
    manager = LogManager.open(str(path), files=Unsynced(), clock_ms=clock)
    log = manager.create_topic("gone", 1).partitions[0]
    assert manager.settings.overrides("gone") == {}
    assert manager.settings.get_owner("gone", 1) is None
    for n in range(3):
        append(log, b"%d" % n)
    manager.abandon()
    with opened(path, Unsynced(), clock_ms=clock) as manager:
        log = manager.log("gone", 0)
        assert values(log) == [b"0", b"1", b"2"]
        assert log.log_start_offset == 0
        assert manager.cuts == []


@pytest.fixture(params=[False, True])
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Life:
    return Life(tmp_path / "data", alone=request.param)


def test_a_stop_at_every_operation(tmp_path: Path, life: Life) -> None:
    life.stops((0, 2, 3)).judge(functools.partial(check, life), tmp_path / "found")


def test_an_opening_on_a_full_disk(tmp_path: Path, life: Life) -> None:
    """A topic whose first directory is removed does not lie there with the other ones."""
    full = functools.partial(check, life, files=Full())
    life.stops((0,)).judge(full, tmp_path / "found")


def test_a_topic_whose_directories_somebody_has_removed_is_made_anew(
    tmp_path: Path, life: Life
) -> None:
    life.build()
    for path in life.data.glob("gone-*"):
        shutil.rmtree(path)
    life.deleted = True
    stops = Stops(life.data, seeds=(0, 2, 3), expected=life.expected)
    life.make_anew(LogManager.open(str(life.data), files=stops.disk, clock_ms=clock))
    stops.end()
    stops.judge(functools.partial(check, life), tmp_path / "found")


def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path, life: Life) -> None:
    again = during_opening(functools.partial(check, life), seeds=(0,), clock_ms=clock)
    life.stops((0,)).judge(again, tmp_path / "found", one_of=6 if life.alone else 12)
