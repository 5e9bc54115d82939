"""A crash at every file operation of an undeletion, by the process that has deleted the topic and
by a later one.

After a crash at any operation, the topic is there with all partitions, records and settings, or it
is deleted and can be undeleted. Acknowledged operations and records are not lost.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from storage import LogManager
from storage.files import Files
from tests.crash import moments
from tests.crash.moments import Found, Unsynced, during_opening
from tests.crash.test_topic_deletion_crash import (
    PARTITIONS,
    Full,
    build,
    clock,
    has_no_more_than_topics,
)
from tests.storage.logs import append, opened, values


class Life(moments.Life):
    """The run: it deletes and undeletes a topic, and notes how far it is."""

    kinds = ("-delete",)

    def __init__(self, data: Path, *, restarts: bool) -> None:
        super().__init__(data)
        self.restarts = restarts
        self.is_deleted: bool | None = False
        self.acknowledged = 0

    def build(self) -> None:
        build(self.data, alone=False)
        with LogManager.open(str(self.data), read_only=True, clock_ms=clock) as manager:
            topic = manager.topic("gone")
            self.whole = {n: values(log) for n, log in topic.partitions.items()}

    def expected(self) -> tuple[object, ...]:
        return self.is_deleted, self.acknowledged

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, clock_ms=clock)
        self.is_deleted = None
        manager.delete_topic("gone")
        self.is_deleted = True
        if self.restarts:
            manager.close()
            manager = LogManager.open(str(self.data), files=files, clock_ms=clock)
        self.is_deleted = None
        manager.undelete_topic("gone")
        self.is_deleted = False
        log = manager.log("gone", 2)
        append(log, b"after")
        log.flush()
        self.acknowledged = 1
        manager.close()


def check(life: Life, path: Path, stopped: Found) -> None:
    is_deleted, acknowledged = stopped.expected
    with opened(path, Unsynced(), clock_ms=clock) as manager:
        assert values(manager.log("kept", 0)) == [b"kept", b"also"]
        if is_deleted is not None:
            assert ("gone" not in manager.topics) == is_deleted
        if "gone" not in manager.topics:
            manager.undelete_topic("gone")
        topic = manager.topic("gone")
        assert list(topic.partitions) == list(range(PARTITIONS))
        for number, log in topic.partitions.items():
            found = values(log)
            if number == 2 and found[len(life.whole[2]) :]:
                assert found.pop() == b"after"
            elif number == 2:
                assert not acknowledged
            assert found == life.whole[number]
        assert manager.settings.overrides("gone")["retention.ms"] == "77"
        assert manager.settings.get_owner("gone", 1) == (1000, 1000, 0o600)
        has_no_more_than_topics(manager)


def check_full(life: Life, path: Path, stopped: Found) -> None:
    """The topic is whole, or its files were removed."""
    with opened(path, Full(), clock_ms=clock) as manager:
        if "gone" in manager.topics:
            found = manager.topic("gone").partitions
            assert {n: values(log)[: len(life.whole[n])] for n, log in found.items()} == life.whole


@pytest.fixture(params=[False, True])
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Life:
    return Life(tmp_path / "data", restarts=request.param)


def test_a_stop_at_every_operation(tmp_path: Path, life: Life) -> None:
    life.stops((0, 2, 3)).judge(functools.partial(check, life), tmp_path / "found")


def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path, life: Life) -> None:
    again = during_opening(functools.partial(check, life), seeds=(0,), clock_ms=clock)
    life.stops((0,)).judge(again, tmp_path / "found", one_of=8)


def test_an_opening_on_a_full_disk(tmp_path: Path, life: Life) -> None:
    life.stops((0,)).judge(functools.partial(check_full, life), tmp_path / "found")
