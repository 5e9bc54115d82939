"""The option `group`: a streaming query's position is a consumer group's, which other tools see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kafkafs.spark.location import owner_client
from kafkafs.spark.location.owner_client import OwnerNotReached
from kafkafs.spark.source import group_commits, rows
from kafkafs.spark.source.group_commits import PAUSE_S, GroupCommits
from kafkafs.spark.source.offsets import Nested, TopicPartition, from_nested
from kafkafs.spark.source.stream_reader import StreamReader
from storage import LogManager
from storage.errors import LogLocked
from tests.mount.mounting import Mount, check_data, mounted
from tests.spark.reading import given
from tests.storage.logs import append
from tests.waits import until

if TYPE_CHECKING:
    pass

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Place:
    """A data directory with a topic of two partitions: mounted, or open only for a moment."""

    def __init__(self, data: Path, mount: Mount | None) -> None:
        self.data = data
        self.mount = mount

    def append(self, partition: int, *values: str) -> None:
        if self.mount is not None:
            with open(self.mount.path / f"t/{partition}", "a") as file:
                file.writelines(f"{value}\n" for value in values)
        else:
            until(lambda: self._appended(partition, values))

    def _appended(self, partition: int, values: Iterable[str]) -> bool:
        """False: a query commits at this moment."""
        try:
            with LogManager.open(str(self.data)) as manager:
                append(manager.log("t", partition), *(value.encode() for value in values))
        except LogLocked:
            return False
        return True

    def positions(self, group: str = "g") -> dict[TopicPartition, int]:
        with LogManager.open(str(self.data), read_only=True) as manager:
            found = manager.groups.find(group)
            if found is None:
                return {}
            return {TopicPartition(*item): each.position for item, each in found.committed.items()}


@pytest.fixture(params=["nobody", "a daemon"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        manager.create_topic("t", 2)
    if request.param == "nobody":
        yield Place(data, None)
        check_data(data)
        return
    with mounted(tmp_path) as mount:
        yield Place(data, mount)


class Query:
    """A streaming query, as Spark drives the reader; `end`: where its last batch has ended."""

    def __init__(self, data: Path, end: Nested | None = None, **options: object) -> None:
        options = {"group": "g", "startingOffsets": "earliest", **options}
        self.reader = StreamReader(given(data, options), rows.full_schema(False))
        self.end = end if end is not None else self.reader.initialOffset()

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def look(self) -> Nested:
        """Spark asks for the next batch, which is not done yet."""
        return self.reader.latestOffset(self.end, ReadAllAvailable())

    def batch(self) -> bool:
        """A batch; False: there is none."""
        end = self.look()
        is_new = end != self.end
        self.end = end
        return is_new


def test_is_where_the_last_batch_has_ended(place: Place) -> None:
    place.append(0, "a", "b")
    with Query(place.data) as query:
        assert query.batch()
        assert place.positions() == {}
        until(lambda: query.look() and place.positions() == {T0: 2, T1: 0})
        place.append(1, "c")
        assert query.batch()
        assert place.positions() == {T0: 2, T1: 0}
        until(lambda: query.look() and place.positions() == {T0: 2, T1: 1})
    with Query(place.data, query.end, group="later") as again:
        until(lambda: again.look() and place.positions("later") == {T0: 2, T1: 1})
    if place.mount is not None:
        shown = (place.mount.path / ".groups/g/t/0").read_text().splitlines()
        assert ("position 2" in shown, "lag 0" in shown) == (True, True)


def test_is_committed_for_a_group_that_a_mount_does_not_show(place: Place) -> None:
    place.append(0, "a", "b")
    group = "x" * 201
    with Query(place.data, group=group) as query:
        assert query.batch()
        until(lambda: query.look() and place.positions(group) == {T0: 2, T1: 0})


def test_a_query_that_stops_by_itself_has_committed_where_it_stops(place: Place) -> None:
    place.append(0, "a", "b")
    with Query(place.data, maxOffsetsPerTrigger=1) as query:
        query.reader.prepareForTriggerAvailableNow()
        while query.batch():
            pass
        assert place.positions() == {T0: 2, T1: 0}
    with Query(place.data, query.end, group="later") as again:
        again.reader.prepareForTriggerAvailableNow()
        assert not again.batch()
        assert place.positions("later") == {T0: 2, T1: 0}


def test_commits_again_only_what_has_changed_and_not_too_often(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        for log in manager.create_topic("t", 2).partitions.values():
            append(log, *[b"a"] * 9)
    now_s = 100.0
    commits = GroupCommits(str(tmp_path), "g", lambda: now_s)
    place = Place(tmp_path, None)

    def end_offset() -> int:
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            return sum(log.log_end_offset for log in manager.groups.logs)

    with contextlib.closing(commits):
        commits.commit({T0: 1, T1: 1}, waits=True)
        assert end_offset() == 2
        now_s += PAUSE_S / 2
        commits.commit({T0: 1, T1: 2}, waits=False)
        commits.commit({T0: 1, T1: 3}, waits=True)
        assert place.positions() == {T0: 1, T1: 3}
        assert end_offset() == 3
        now_s += PAUSE_S
        commits.commit({T0: 1, T1: 4}, waits=False)
        commits.commit({T0: 1, T1: 4}, waits=True)
        assert place.positions() == {T0: 1, T1: 4}
        assert end_offset() == 4


def test_what_fails_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commits, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(owner_client, "TOPIC_PATIENCE_S", 0.0)
    now_s = 100.0
    with LogManager.open(str(tmp_path)) as manager:
        append(manager.create_topic("t", 1).partitions[0], *[b"a"] * 9)
    place = Place(tmp_path, None)
    commits = GroupCommits(str(tmp_path), "g", lambda: now_s)
    with contextlib.closing(commits):
        with LogManager.open(str(tmp_path)):
            for offset in range(3):
                commits.commit({T0: offset}, waits=True)
        (record,) = caplog.records
        assert "offsets of group g cannot be committed now" in record.message
        assert "this process itself has the data directory open" in record.message
        commits.commit({T0: 2}, waits=False)
        assert place.positions() == {}
        now_s += PAUSE_S
        commits.commit({T0: 2}, waits=False)
        commits.commit({T0: 2}, waits=True)
        assert place.positions() == {T0: 2}
        assert len(caplog.records) == 1


def test_is_refused_where_the_owner_takes_no_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_client, "CHECK_PATIENCE_S", 0.0)
    with LogManager.open(str(tmp_path)) as manager:
        manager.create_topic("t", 1)
        with Query(tmp_path) as query, pytest.raises(OwnerNotReached):
            query.look()


def test_no_position_is_committed_in_another_topic_of_the_name(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"a", b"b")
    with Query(tmp_path, failOnDataLoss="false") as query:
        query.reader.prepareForTriggerAvailableNow()
        query.batch()
        with LogManager.open(str(tmp_path)) as manager:
            manager.delete_topic("t")
            append(manager.create_topic("t", 1).partitions[0], b"1", b"2", b"3")
        place = Place(tmp_path, None)
        assert query.batch()
        assert place.positions() == {}
        assert not query.batch()
        assert place.positions() == from_nested(query.end).offsets == {T0: 3}
