"""A deleted topic comes back whole while its files are there, and not later."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.errors import LogClosed, SegmentGone, TopicExists, UnknownTopicOrPartition
from storage.files import Files, Kind
from storage.state import deletion_file
from storage.state.checkpoint_file import (
    new_topic_id,
    read_offsets,
    write_partition_metadata,
)
from tests.storage.logs import NOW_MS, append, opened, remove_head, sweep, values
from tests.storage.transactions import Client

DELAY_MS = 60_000
OWNER = (1000, 100, 0o750)
LONG = "a-topic-with-a-name-that-is-cut.where-it-is-removed." + "x" * 190


def make(manager: LogManager, name: str = "orders") -> None:
    topic = manager.create_topic(name, 3, owner=OWNER, settings={"retention.ms": "7d"})
    manager.settings.set_owner(name, 1, 5, 6, 0o600)
    for number, log in topic.partitions.items():
        for n in range(4):
            append(log, b"%d %d" % (number, n))
            log.roll(NOW_MS)
    remove_head(topic.partitions[0], 1, NOW_MS)
    Client(topic.partitions[2], 7).send(b"open")


def check_whole(manager: LogManager, name: str = "orders") -> None:
    topic = manager.topic(name)
    assert [values(log) for log in topic.partitions.values()] == [
        [b"0 1", b"0 2", b"0 3"],
        [b"1 0", b"1 1", b"1 2", b"1 3"],
        [b"2 0", b"2 1", b"2 2", b"2 3"],
    ]
    assert topic.partitions[0].log_start_offset == 1
    assert topic.partitions[2].last_stable_offset == 4
    assert topic.partitions[2].log_end_offset == 5
    assert manager.settings.overrides(name) == {"retention.ms": "604800000"}
    assert topic.partitions[0].config.retention_ms == 604_800_000
    assert manager.settings.get_owner(name, None) == OWNER
    assert manager.settings.get_owner(name, 1) == (5, 6, 0o600)
    assert not manager.deleted.topics


def left(data: Path) -> list[str]:
    return [
        str(each) for each in data.rglob("*") if "-delete" in str(each) or "deletion" in each.name
    ]


@pytest.mark.parametrize("name", ["orders", LONG])
def test_by_the_process_that_has_deleted_it(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as manager:
        make(manager, name)
        topic, logs = manager.topic(name), list(manager.logs())
        assert manager.delete_topic(name) == DELAY_MS
        assert len([each for each in os.listdir(tmp_path) if each.endswith("-delete")]) == 3
        assert values(logs[1]) == [b"1 0", b"1 1", b"1 2", b"1 3"]
        assert manager.undelete_topic(name) is topic
        for log in logs:
            with pytest.raises(SegmentGone):
                values(log)
            with pytest.raises(LogClosed):
                append(log, b"refused")
        check_whole(manager, name)
        assert not left(tmp_path)
        append(manager.log(name, 1), b"more")
        assert sweep(manager, NOW_MS)
        assert not any(segment.is_open for log in logs for segment in log.segments)
        assert values(manager.log(name, 1))[-1] == b"more"
        assert len(list(manager.logs())) == 3
    with opened(tmp_path) as manager:
        assert values(manager.log(name, 1))[-1] == b"more"


@pytest.mark.parametrize("name", ["orders", LONG])
@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_after_a_restart(tmp_path: Path, name: str, ended: str) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    make(manager, name)
    manager.delete_topic(name)
    getattr(manager, {"closed": "close", "killed": "abandon"}[ended])()
    with opened(tmp_path, clock_ms=lambda: NOW_MS + DELAY_MS - 1) as manager:
        assert name not in manager.topics
        assert manager.sweep(NOW_MS + DELAY_MS - 1) is None
        manager.undelete_topic(name)
        check_whole(manager, name)
        assert not left(tmp_path)
        append(manager.log(name, 1), b"more")
    with opened(tmp_path) as manager:
        assert values(manager.log(name, 1))[-1] == b"more"
        assert manager.log(name, 0).log_start_offset == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_not_once_its_time_is_over(tmp_path: Path, restarts: bool) -> None:
    now = [NOW_MS]
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: now[0])
    make(manager)
    manager.delete_topic("orders")
    if restarts:
        manager.close()
        manager = LogManager.open(str(tmp_path), clock_ms=lambda: now[0])
    now[0] += DELAY_MS
    with pytest.raises(UnknownTopicOrPartition, match=r"removed after file\.delete\.delay\.ms"):
        manager.undelete_topic("orders")
    assert sweep(manager, now[0])
    assert not left(tmp_path)
    with pytest.raises(UnknownTopicOrPartition):
        manager.undelete_topic("orders")
    manager.close()


def test_a_clock_that_was_put_back_keeps_it_no_longer(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
        manager.delete_topic("orders")
    year_ago = NOW_MS - 365 * 86_400_000
    with opened(tmp_path, clock_ms=lambda: year_ago) as manager:
        assert sweep(manager, year_ago + DELAY_MS)
        assert not left(tmp_path)


def test_where_one_of_its_name_is_there(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
        manager.delete_topic("orders")
        append(manager.create_topic("orders", 1).partitions[0], b"new")
        with pytest.raises(TopicExists, match="a topic of this name exists: delete it first"):
            manager.undelete_topic("orders")
        assert values(manager.log("orders", 0)) == [b"new"]
        new = manager.topic("orders").id
        manager.delete_topic("orders")
        with pytest.raises(TopicExists, match=r"by its id \(most recently deleted first\): " + new):
            manager.undelete_topic("orders")
        old = next(each.id for each in manager.deleted.topics if each.id != new)
        manager.undelete_topic("orders", old)
        manager.delete_topic("orders")
        manager.undelete_topic("orders", new)
        assert values(manager.log("orders", 0)) == [b"new"]
    with opened(tmp_path) as manager:
        with pytest.raises(TopicExists):
            manager.undelete_topic("orders", old)
        manager.delete_topic("orders")
        manager.undelete_topic("orders", old)
        assert values(manager.log("orders", 1)) == [b"1 0", b"1 1", b"1 2", b"1 3"]
        assert [each.topic for each in manager.deleted.topics] == ["orders"]


def test_what_was_never_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("there", 1)
        with pytest.raises(TopicExists, match="it exists"):
            manager.undelete_topic("there")
        with pytest.raises(UnknownTopicOrPartition):
            manager.undelete_topic("never")
        with pytest.raises(UnknownTopicOrPartition):
            manager.undelete_topic("../there")


def test_a_name_that_collides_by_now(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("a.b", 1)
        manager.delete_topic("a.b")
        manager.create_topic("a_b", 1)
        with pytest.raises(TopicExists, match="collides"):
            manager.undelete_topic("a.b")


@pytest.mark.parametrize("restarts", [False, True])
def test_where_a_directory_is_gone(tmp_path: Path, restarts: bool) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    make(manager)
    manager.delete_topic("orders")
    if restarts:
        manager.close()
        manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    doomed = next(each for each in tmp_path.iterdir() if each.name.startswith("orders-1."))
    shutil.rmtree(doomed)
    with pytest.raises(UnknownTopicOrPartition, match="no longer exists"):
        manager.undelete_topic("orders")
    assert "orders" not in manager.topics
    assert not (tmp_path / "orders-2").exists()
    manager.close()


def test_a_disk_that_refuses_leaves_it_deleted(tmp_path: Path) -> None:
    class Refusing(Files):
        refuses = ""

        def rename(self, source: str, target: str) -> None:
            if self.refuses and target.endswith(self.refuses):
                raise OSError(5, "Input/output error", target)
            super().rename(source, target)

    disk = Refusing(str(tmp_path))
    with opened(tmp_path, files=disk) as manager:
        make(manager)
        manager.delete_topic("orders")
        for refused in ("orders-2", "orders-1", "orders-0"):
            disk.refuses = refused
            with pytest.raises(OSError, match="Input/output"):
                manager.undelete_topic("orders")
            assert not [each for each in os.listdir(tmp_path) if each in ("orders-1", "orders-2")]
            assert "orders" not in manager.topics
        disk.refuses = ""
        manager.undelete_topic("orders")
        check_whole(manager)
        manager.delete_topic("orders")
    with opened(tmp_path, files=disk) as manager:
        disk.refuses = "orders-1"
        with pytest.raises(OSError, match="Input/output"):
            manager.undelete_topic("orders")
        disk.refuses = ""
        manager.undelete_topic("orders")
        check_whole(manager)


def test_not_while_its_files_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
        read = manager.log("orders", 1).segments[0]
        manager.delete_topic("orders")
        read.lease()
        with pytest.raises(BlockingIOError, match="still being read: try again"):
            manager.undelete_topic("orders")
        assert "orders" not in manager.topics
        with pytest.raises(SegmentGone):
            read.lease()
        read.release()
        manager.undelete_topic("orders")
        check_whole(manager)


def test_what_was_lost_stays_lost(tmp_path: Path) -> None:
    """Appends to it would give offsets a second time."""
    with opened(tmp_path) as manager:
        make(manager)
        append(manager.log("orders", 1), b"1 4")
    (tmp_path / "orders-1" / f"{4:020}.log").write_bytes(b"")
    with opened(tmp_path) as manager:
        assert manager.log("orders", 1).lost_end == 5
        for _ in range(2):
            manager.delete_topic("orders")
            manager.undelete_topic("orders")
            assert manager.log("orders", 1).lost_end == 5
        manager.delete_topic("orders")
    with opened(tmp_path) as manager:
        manager.undelete_topic("orders")
        assert manager.log("orders", 1).lost_end == 5


def test_what_was_lost_is_not_clean(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
        append(manager.log("orders", 1), b"1 4")
        manager.log("orders", 1).flush()
        manager.checkpoints.cleaned["orders", 1] = 5
        manager.delete_topic("orders")
        (deletion,) = manager.deleted.topics
        (tmp_path / deletion.partitions[1].directory / f"{4:020}.log").write_bytes(b"")
        manager.undelete_topic("orders")
        recorded = read_offsets(manager.files, str(tmp_path / paths.CLEANER_OFFSETS))
        assert recorded == {("orders", 1): 4}


def test_only_what_was_cleaned_may_have_gaps(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
        manager.checkpoints.cleaned["orders", 1] = 1
        manager.delete_topic("orders")
        manager.undelete_topic("orders")
        assert [log.may_have_gaps for log in manager.logs()] == [False, True, False]
    with opened(tmp_path) as manager:
        assert [log.may_have_gaps for log in manager.logs()] == [False, True, False]
        manager.delete_topic("orders")
        new = manager.create_topic("orders", 2).id
        manager.delete_topic("orders")
        manager.undelete_topic("orders", new)
        assert [log.may_have_gaps for log in manager.logs()] == [False, False]


def test_it_is_not_shown_before_all_its_partitions_are_loaded(tmp_path: Path) -> None:
    shown: list[bool] = []

    class Watched(Files):
        """Sees whether the topic is shown while a partition of it is loaded."""

        def listing(self, path: str) -> list[tuple[str, Kind]]:
            if path.endswith("orders-2"):
                shown.append("orders" in manager.topics)
            return super().listing(path)

    with opened(tmp_path, files=Watched()) as manager:
        make(manager)
        manager.delete_topic("orders")
        shown.clear()
        manager.undelete_topic("orders")
        check_whole(manager)
    assert not shown[0]


def test_a_partition_with_a_fault_comes_back_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
    log = next((tmp_path / "orders-1").glob("*.log"))
    good = log.rename(tmp_path / "good")
    log.mkdir()
    manager = LogManager.open(str(tmp_path), keeps_faulty=True, clock_ms=lambda: NOW_MS)
    fault = manager.topic("orders").faults[1]
    manager.delete_topic("orders")
    manager.undelete_topic("orders")
    assert manager.topic("orders").faults == {1: fault}
    manager.delete_topic("orders")
    manager.close()
    manager = LogManager.open(str(tmp_path), keeps_faulty=True, clock_ms=lambda: NOW_MS)
    manager.undelete_topic("orders")
    assert list(manager.topic("orders").faults) == [1]
    assert values(manager.log("orders", 0)) == [b"0 1", b"0 2", b"0 3"]
    manager.close()
    log.rmdir()
    good.rename(log)
    with opened(tmp_path) as manager:
        check_whole(manager)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"topic": "orders"}',
        b'{"topic": "orders", "id": "", "deleted_ms": 1, "due_ms": 9e30, "partitions": []}',
        b'{"topic": "../x", "id": "", "deleted_ms": 1, "due_ms": 1, "partitions": [1]}',
        b'{"topic": "orders", "id": "", "deleted_ms": 1, "due_ms": 1, "partitions": [{"number": 0,'
        b' "directory": "orders-0./../../etc-delete", "recovery_point": 0, "log_start": 0,'
        b' "cleaned": 0}]}',
        b"\xff" * 100,
    ],
)
def test_a_file_that_tells_no_deletion(tmp_path: Path, content: bytes) -> None:
    """Its topic goes as a broker's does: at once."""
    with opened(tmp_path) as manager:
        make(manager)
        append(manager.create_topic("kept", 1).partitions[0], b"kept")
        manager.delete_topic("orders")
    (first,) = tmp_path.glob("orders-0.*/kafkafs.deletion")
    first.write_bytes(content)
    with opened(tmp_path) as manager:
        assert not manager.deleted.topics
        assert sweep(manager, NOW_MS)
        assert not left(tmp_path)
        assert values(manager.log("kept", 0)) == [b"kept"]


def test_a_half_finished_deletion_takes_nothing_of_a_new_topic(tmp_path: Path) -> None:
    """The file names partitions that another topic of the name has by now."""
    with opened(tmp_path) as manager:
        make(manager)
        manager.delete_topic("orders")
        make(manager)
        (deletion,) = manager.deleted.topics
    shutil.rmtree(tmp_path / deletion.partitions[2].directory)
    with opened(tmp_path) as manager:
        assert list(manager.topic("orders").partitions) == [0, 1, 2]
    shutil.rmtree(tmp_path / "orders-0")
    with opened(tmp_path) as manager:
        assert list(manager.topic("orders").partitions) == [1, 2]
    # Of the old topic itself it takes what has its name again.
    where = tmp_path / deletion.partitions[0].directory
    assert deletion_file.read(Files(), str(where)) == deletion


def test_readers_of_the_directory_see_no_half_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        make(manager)
        manager.delete_topic("orders")
        (deletion,) = manager.deleted.topics
    (tmp_path / deletion.partitions[2].directory).rename(tmp_path / "orders-2")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert not manager.topics
    assert (tmp_path / "orders-2").exists()
    with opened(tmp_path) as manager:
        assert not manager.topics
        assert not (tmp_path / "orders-2").exists()
        manager.undelete_topic("orders")
        check_whole(manager)


@pytest.mark.parametrize("number", [0, 1])
def test_a_partition_of_another_topic_comes_back_as_a_fault(tmp_path: Path, number: int) -> None:
    manager = LogManager.open(str(tmp_path), keeps_faulty=True, clock_ms=lambda: NOW_MS)
    make(manager)
    manager.delete_topic("orders")
    (deletion,) = manager.deleted.topics
    directory = tmp_path / deletion.partitions[number].directory
    write_partition_metadata(
        manager.files, str(directory / paths.PARTITION_METADATA), new_topic_id()
    )
    topic = manager.undelete_topic("orders")
    assert topic.id == deletion.id
    assert sorted(topic.partitions) == [each for each in range(3) if each != number]
    assert "differs from" in topic.faults[number]
    manager.close()
