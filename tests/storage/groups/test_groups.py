"""Positions of groups: what counts, commits, taking back, reading, expiry, deleted topics."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from storage import Log, LogManager
from storage.errors import (
    InvalidRecord,
    OffsetOutOfRange,
    PolicyViolation,
    ReadOnlyLog,
    UnknownTopicOrPartition,
)
from storage.groups.offset_records import (
    Committed,
    commit_key,
    commit_value,
    partition_for,
    read_commit,
    read_commit_key,
)
from storage.groups.owners import GroupOwners
from storage.log.read import plain_batches
from storage.record.batch import decode_plain
from storage.state.checkpoint_file import new_topic_id
from storage.task import Task
from storage.waiting import at_once
from tests import metadata_log as made
from tests.mount.mounting import let_others_in, needs_root
from tests.storage.groups.records import (
    Pair,
    consumer_group,
    position,
    positions,
    share_group,
    streams_group,
    write,
)
from tests.storage.logs import NOW_MS, append, opened, values, write_settings, write_topic_settings
from tests.storage.segmented import Turns

OFFSETS = "__consumer_offsets"
OTHER = 65432
T = TypeVar("T")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose groups are in few partitions, since each test checks all of them."""
    path = tmp_path / "data"
    path.mkdir()
    write_settings(path, offsets_topic_num_partitions=3)
    return path


@pytest.fixture
def manager(data: Path) -> Iterator[LogManager]:
    with opened(data) as manager:
        manager.create_topic("orders", 2)
        for number in (0, 1):
            append(manager.log("orders", number), *(b"x%d" % n for n in range(10)))
        yield manager


def offsets_log(manager: LogManager, group: str) -> Log:
    manager.groups.prepare()
    return manager.log(OFFSETS, partition_for(group, 3))


# -- commits ---------------------------------------------------------------------------------------


def test_a_commit_is_found_with_all_that_it_says(manager: LogManager) -> None:
    given = Committed(7, leader_epoch=3, metadata="host ü", time_ms=NOW_MS - 5)
    manager.groups.commit("g", "orders", {0: given, 1: Committed(10)})
    group = manager.groups.find("g")
    assert group is not None
    topic_id = manager.topic("orders").id
    assert group.committed == {
        ("orders", 0): given._replace(topic_id=topic_id),
        ("orders", 1): Committed(10, time_ms=NOW_MS, topic_id=topic_id),
    }
    assert (group.kind, group.has_members) == ("", False)
    assert manager.groups.names() == ["g"]


@pytest.mark.parametrize(
    ("described", "kind"),
    [(consumer_group, "consumer"), (share_group, "share"), (streams_group, "streams")],
)
def test_the_kind_of_a_group_and_whether_it_has_members(
    manager: LogManager, described: Callable[..., list[Pair]], kind: str
) -> None:
    for members in ((), ("member",)):
        write(offsets_log(manager, "g"), *described("g", *members))
        group = manager.groups.find("g")
        assert group is not None
        assert (group.kind, group.has_members) == (kind, bool(members))


def test_the_topic_is_made_as_a_broker_makes_it(manager: LogManager) -> None:
    manager.groups.commit("g", "orders", {0: Committed(1)})
    assert manager.topic(OFFSETS).numbers == [0, 1, 2]
    config = manager.log(OFFSETS, 0).config
    assert config.cleanup_policy == ("compact",)
    assert config.compression_type == "producer"
    assert config.segment_bytes == 104857600


def test_the_topic_has_as_many_partitions_as_kafkas_by_default(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("orders")
        manager.groups.commit("g", "orders", {0: Committed(0)})
        assert len(manager.topic(OFFSETS).partitions) == 50
        assert manager.log(OFFSETS, partition_for("g", 50)).log_end_offset == 1


@pytest.mark.parametrize(
    ("positions_", "error"),
    [
        ({0: Committed(11)}, OffsetOutOfRange),
        ({1: Committed(3), 0: Committed(-1)}, OffsetOutOfRange),
        ({1: Committed(3), 2: Committed(0)}, UnknownTopicOrPartition),
        ({0: Committed(3, metadata="m" * 4097)}, InvalidRecord),
        ({0: Committed(3, metadata="\udc80")}, InvalidRecord),
    ],
)
def test_a_refused_commit_changes_nothing(
    manager: LogManager, positions_: dict[int, Committed], error: type[Exception]
) -> None:
    with pytest.raises(error):
        manager.groups.commit("g", "orders", positions_)
    assert OFFSETS not in manager.topics
    assert manager.groups.names() == []


@pytest.mark.parametrize("name", ["", "\udcff", "n" * 32768])
def test_names_that_no_group_can_have(manager: LogManager, name: str) -> None:
    with pytest.raises(InvalidRecord):
        manager.groups.commit(name, "orders", {0: Committed(1)})
    with pytest.raises(InvalidRecord):
        manager.groups.make(name)
    assert manager.groups.find(name) is None


@pytest.mark.parametrize("name", ["/", "..", "a b\n", "ü" * 100, "😀", "n" * 32767])
def test_any_other_name(manager: LogManager, name: str) -> None:
    manager.groups.commit(name, "orders", {0: Committed(1)})
    assert manager.groups.names() == [name]
    assert positions(manager, name) == {("orders", 0): 1}


def test_a_group_without_positions_lives_as_long_as_the_process(data: Path) -> None:
    with opened(data) as manager:
        manager.groups.make("g")
        assert manager.groups.names() == ["g"]
        group = manager.groups.find("g")
        assert group is not None
        assert group.committed == {}
        assert OFFSETS not in manager.topics
    with opened(data) as manager:
        assert manager.groups.find("g") is None


def test_what_is_shown_changes_with_each_change(manager: LogManager) -> None:
    groups = manager.groups
    seen = [groups.changes]
    groups.make("a")
    seen.append(groups.changes)
    groups.commit("a", "orders", {0: Committed(1)})
    seen.append(groups.changes)
    groups.forget("a", "orders", 0)
    seen.append(groups.changes)
    groups.forget("a")
    seen.append(groups.changes)
    assert len(set(seen)) == len(seen)


def test_an_unchanged_group_is_the_same_object(manager: LogManager) -> None:
    manager.groups.commit("g", "orders", {0: Committed(1)})
    first = manager.groups.find("g")
    manager.groups.commit("other", "orders", {0: Committed(1)})
    assert manager.groups.find("g") is first


# -- taking back -----------------------------------------------------------------------------------


def test_positions_are_taken_back(manager: LogManager) -> None:
    groups = manager.groups
    manager.create_topic("more")
    groups.commit("g", "orders", {0: Committed(1), 1: Committed(2)})
    groups.commit("g", "more", {0: Committed(0)})
    groups.forget("g", "orders", 0)
    assert positions(manager, "g") == {("orders", 1): 2, ("more", 0): 0}
    groups.forget("g", "orders")
    assert positions(manager, "g") == {("more", 0): 0}
    groups.forget("g")
    assert groups.find("g") is None
    assert groups.names() == []


def keys(log: Log, offset: int) -> list[list[int]]:
    """The types of the keys in each batch from this offset on."""
    return [
        [record.key[1] for record in decode_plain(data) if record.key is not None]
        for segment in log.segments
        for data, header in plain_batches(segment, 0, segment.size)
        if header.base_offset >= offset
    ]


@pytest.mark.parametrize(
    ("max_message_bytes", "batches"),
    [
        (1_048_588, [[1, 8, 7, 6, 5, 16, 4, 3]]),
        (200, [[1, 8, 7], [6, 5, 16, 4], [3]]),
    ],
)
def test_a_group_is_deleted_in_one_batch_where_that_fits(
    data: Path, max_message_bytes: int, batches: list[list[int]]
) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
        log = offsets_log(manager, "g")
        write(log, position("g", "orders", 0, 0), *consumer_group("g", "member"))
        manager.groups.commit("other", "orders", {0: Committed(0)})
    write_topic_settings(data, OFFSETS, {"max.message.bytes": max_message_bytes})
    with opened(data) as manager:
        log = offsets_log(manager, "g")
        end = log.log_end_offset
        manager.groups.forget("g")
        assert keys(log, end) == batches
        assert manager.groups.names() == ["other"]


def test_a_group_that_was_emptied_before_is_deleted_for_brokers_too(manager: LogManager) -> None:
    """They keep it as a group of the classic protocol without positions."""
    log = offsets_log(manager, "g")
    manager.groups.make("g")
    manager.groups.commit("g", "orders", {0: Committed(1)})
    manager.groups.forget("g", "orders", 0)
    manager.groups.forget("g")
    assert keys(log, 0) == [[1], [1], [2]]


@pytest.mark.parametrize(
    "change",
    [
        lambda manager: manager.groups.forget("shared"),
        lambda manager: manager.groups.commit("shared", "orders", {0: Committed(1)}),
    ],
)
def test_a_share_group_is_changed_by_brokers_only(
    manager: LogManager, change: Callable[[LogManager], None]
) -> None:
    """One that replayed a position before it would not load the share group."""
    log = offsets_log(manager, "shared")
    write(log, *share_group("shared"))
    end = log.log_end_offset
    with pytest.raises(PolicyViolation, match="kafka-share-groups"):
        change(manager)
    assert log.log_end_offset == end


def test_nothing_is_written_where_nothing_is_taken_back(manager: LogManager) -> None:
    log = offsets_log(manager, "g")
    manager.groups.commit("g", "orders", {0: Committed(1)})
    manager.groups.forget("g", "orders", 1)
    manager.groups.forget("g", "others")
    manager.groups.forget("nobody")
    assert log.log_end_offset == 1


# -- topics ----------------------------------------------------------------------------------------


def test_a_position_of_another_topic_of_the_name_is_none(manager: LogManager) -> None:
    log = offsets_log(manager, "g")
    write(log, position("g", "orders", 0, 5, topic_id=new_topic_id()))
    assert manager.groups.find("g") is None
    write(log, position("g", "orders", 0, 6))
    assert positions(manager, "g") == {("orders", 0): 6}


def test_a_deleted_topic_has_no_positions_until_it_is_undeleted(manager: LogManager) -> None:
    manager.groups.commit("g", "orders", {0: Committed(5)})
    write(offsets_log(manager, "old"), position("old", "orders", 0, 6))
    manager.delete_topic("orders")
    assert manager.groups.names() == []
    manager.groups.sweep(Task())
    manager.undelete_topic("orders")
    assert positions(manager, "g") == {("orders", 0): 5}
    assert positions(manager, "old") == {("orders", 0): 6}


def test_a_topic_made_anew_has_no_positions(data: Path) -> None:
    now_ms = NOW_MS
    with opened(data, clock_ms=lambda: now_ms) as manager:
        manager.create_topic("orders")
        append(manager.log("orders", 0), b"x")
        manager.groups.commit("g", "orders", {0: Committed(1)})
        log = offsets_log(manager, "old")
        write(log, position("old", "orders", 0, 1))
        manager.delete_topic("orders")
        now_ms += 1
        manager.create_topic("orders")
        assert manager.groups.names() == []
        append(manager.log("orders", 0), b"x", b"y")
        manager.groups.commit("old", "orders", {0: Committed(2)})
        assert manager.groups.names() == ["old"]
    with opened(data, clock_ms=lambda: now_ms) as manager:
        assert positions(manager, "old") == {("orders", 0): 2}
        assert manager.groups.find("g") is None


def test_a_deleted_topic_leaves_no_positions_when_it_is_gone_for_good(data: Path) -> None:
    now_ms = NOW_MS
    with opened(data, clock_ms=lambda: now_ms) as manager:
        manager.create_topic("orders")
        manager.create_topic("more")
        manager.groups.commit("g", "orders", {0: Committed(0)})
        manager.groups.commit("g", "more", {0: Committed(0)})
        write(offsets_log(manager, "old"), position("old", "orders", 0, 0))
        manager.delete_topic("orders")
        assert manager.groups.sweep(Task()) == 0
    with opened(data, clock_ms=lambda: now_ms) as manager:
        assert manager.groups.sweep(Task()) == 0
        now_ms += 60_001
        remove = manager.sweep(now_ms)
        assert remove is not None
        remove()
        assert manager.groups.sweep(Task()) == 2
        assert manager.groups.sweep(Task()) == 0
        manager.create_topic("orders")
        assert positions(manager, "g") == {("more", 0): 0}
        assert manager.groups.names() == ["g"]


def test_records_in_the_place_of_truncated_ones_are_of_other_groups(manager: LogManager) -> None:
    manager.groups.commit("g", "orders", {0: Committed(1)})
    before = manager.groups.changes
    assert manager.groups.names() == ["g"]
    log = offsets_log(manager, "g")
    manager.truncate(log, 0)
    other = next(name for name in map(str, range(9)) if offsets_log(manager, name) is log)
    manager.groups.commit(other, "orders", {0: Committed(1)})
    assert manager.groups.changes != before
    assert manager.groups.names() == [other]


# -- expiry ----------------------------------------------------------------------------------------


def test_positions_expire_with_their_age(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_settings(data, offsets_topic_num_partitions=3, offsets_retention_minutes=10)
    now_ms = NOW_MS
    with opened(data, clock_ms=lambda: now_ms) as manager:
        manager.create_topic("orders", 2)
        manager.groups.commit("g", "orders", {0: Committed(0), 1: Committed(0)})
        now_ms += 599_999
        assert manager.groups.sweep(Task()) == 0
        manager.groups.commit("g", "orders", {1: Committed(0)})
        now_ms += 1
        assert manager.groups.sweep(Task()) == 1
        assert positions(manager, "g") == {("orders", 1): 0}
        now_ms += 600_000
        assert manager.groups.sweep(Task()) == 1
        # A broker, too, deletes a group with its last position.
        assert keys(offsets_log(manager, "g"), 0) == [[1, 1], [1], [1], [1, 2]]
        assert caplog.messages == ["group 'g': 1 position expired"] * 2


def join(manager: LogManager) -> None:
    manager.groups.joined("g")


def commit_again(manager: LogManager) -> None:
    manager.groups.commit("g", "orders", {0: Committed(1)})


@pytest.mark.parametrize(("happens", "at"), [(join, 0), (commit_again, 1)])
def test_a_group_that_is_used_meanwhile_keeps_its_positions(
    data: Path, happens: Callable[[LogManager], None], at: int
) -> None:
    write_settings(data, offsets_topic_num_partitions=3, offsets_retention_minutes=10)
    now_ms = NOW_MS
    with opened(data, clock_ms=lambda: now_ms) as manager:
        append(manager.create_topic("orders").partitions[0], b"x")
        for name in ("g", "h"):
            manager.groups.commit(name, "orders", {0: Committed(0)})
        now_ms += 600_000
        assert manager.groups.sweep(Task(Turns(1, lambda: happens(manager)))) == 1
        assert manager.groups.names() == ["g"]
        assert positions(manager, "g") == {("orders", 0): at}


# -- where nothing may be written ------------------------------------------------------------------


def test_a_read_only_directory_shows_and_refuses(data: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
        manager.groups.commit("g", "orders", {0: Committed(0)})
    with LogManager.open(str(data), read_only=True) as manager:
        assert positions(manager, "g") == {("orders", 0): 0}
        with pytest.raises(ReadOnlyLog):
            manager.groups.commit("g", "orders", {0: Committed(0)})
        with pytest.raises(ReadOnlyLog):
            manager.groups.forget("g")
        with pytest.raises(ReadOnlyLog):
            manager.groups.make("h")


@needs_root
def test_another_user_who_reads_the_directory_sees_no_groups(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    let_others_in(data)
    with opened(data) as manager:
        manager.create_topic("orders")
        append(manager.log("orders", 0), b"x")
        manager.groups.commit("g", "orders", {0: Committed(0)})
        owners = GroupOwners(manager.files, str(data))
        owners.set("g", (1, 2, 0o700), ["g"])
    caplog.clear()
    os.seteuid(OTHER)
    try:
        with LogManager.open(str(data), read_only=True, keeps_faulty=True) as manager:
            assert values(manager.log("orders", 0)) == [b"x"]
            assert manager.groups.names() == []
            assert manager.groups.find("g") is None
            with pytest.raises(PermissionError):
                GroupOwners(manager.files, str(data)).get("g")
    finally:
        os.seteuid(0)
    assert [each for each in caplog.messages if OFFSETS in each] == [
        f"{OFFSETS}: only its owner can read it; its contents are not shown"
    ]


def test_in_a_brokers_directory_the_topic_is_not_made(data: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with opened(data) as manager:
        with pytest.raises(PolicyViolation, match="detach"):
            manager.groups.commit("g", "orders", {0: Committed(0)})
        assert OFFSETS not in manager.topics


@pytest.mark.parametrize("is_known", [False, True])
def test_a_broker_without_topic_ids_can_read_a_commit(data: Path, is_known: bool) -> None:
    """Brokers read values with ids since 3.5. One that cannot read a value loads no group."""
    with opened(data) as manager:
        topic_id = manager.create_topic("orders").id
        append(manager.log("orders", 0), b"one")
        manager.groups.prepare()
    (data / "meta.properties").write_text("version=0\nbroker.id=1\n")
    if is_known:
        made.MetadataLog(data).append(made.topic("orders", topic_id))
    with opened(data) as manager:
        manager.groups.commit("g", "orders", {0: Committed(1, 5, "ü")})
        (record,) = offsets_log(manager, "g").records()
        assert record.value is not None
        assert record.value[:2] == (b"\0\4" if is_known else b"\0\3")
        known = topic_id if is_known else None
        assert read_commit(record.value) == Committed(1, 5, "ü", NOW_MS, topic_id=known)
        assert positions(manager, "g") == {("orders", 0): 1}


def test_groups_are_committed_only_where_all_partitions_are(data: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
        manager.groups.commit("g", "orders", {0: Committed(0)})
    where = {0, 1, 2} - {partition_for("g", 3)}
    gone = data / f"{OFFSETS}-{min(where)}"
    for each in gone.iterdir():
        each.unlink()
    gone.rmdir()
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with opened(data) as manager:
        assert positions(manager, "g") == {("orders", 0): 0}
        if min(where) == 2:
            return
        assert manager.groups.is_partial
        with pytest.raises(PolicyViolation, match="partitions of __consumer_offsets"):
            manager.groups.commit("g", "orders", {0: Committed(0)})


@pytest.mark.parametrize("is_brokers", [False, True])
def test_groups_are_not_committed_where_the_last_partitions_are_missing(
    data: Path, is_brokers: bool
) -> None:
    """As a group that is here belongs elsewhere if there are no more."""
    with opened(data) as manager:
        manager.create_topic("orders")
        for name in ("a", "d"):
            manager.groups.commit(name, "orders", {0: Committed(0)})
    assert [partition_for("d", count) for count in (3, 2)] == [1, 0]
    shutil.rmtree(data / f"{OFFSETS}-2")
    if is_brokers:
        (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with opened(data) as manager:
        assert manager.groups.names() == ["a", "d"]
        assert manager.groups.is_partial == is_brokers
        with pytest.raises(PolicyViolation, match="group 'd' would be in another"):
            manager.groups.commit("b", "orders", {0: Committed(0)})


def test_a_brokers_metadata_says_how_many_partitions_there_are(data: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
        manager.groups.prepare()
        topic_id = manager.topic(OFFSETS).id
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    log = made.MetadataLog(data)
    log.append(made.topic(OFFSETS, topic_id), *(made.partition(topic_id, n) for n in range(3)))
    with opened(data) as manager:
        assert not manager.groups.is_partial
        manager.groups.commit("g", "orders", {0: Committed(0)})
    log.append(made.partition(topic_id, 3))
    with opened(data) as manager:
        assert manager.groups.is_partial
        with pytest.raises(PolicyViolation, match="the broker's metadata log lists 4"):
            manager.groups.commit("g", "orders", {0: Committed(0)})


# -- reading ---------------------------------------------------------------------------------------


def test_a_long_read_does_not_hold_up_who_may_not_wait(manager: LogManager) -> None:
    log = offsets_log(manager, "g")
    for number in range(2000):
        write(log, position(f"g{number}", "orders", 0, 1, metadata="m" * 100))
    write(log, position("g", "orders", 0, 2))
    with pytest.raises(BlockingIOError):
        at_once(manager.groups.find, "g")
    assert positions(manager, "g") == {("orders", 0): 2}
    group = at_once(manager.groups.find, "g")
    assert group is manager.groups.find("g")
    with pytest.raises(BlockingIOError):
        at_once(manager.groups.names)
    assert len(manager.groups.names()) == 2001
    assert len(at_once(manager.groups.names)) == 2001


def test_damage_costs_positions_and_not_the_others(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(data) as manager:
        manager.create_topic("orders", 2)
        log = offsets_log(manager, "g")
        write(log, position("g", "orders", 0, 1))
        damaged = log.size
        write(log, position("g", "orders", 0, 2))
        log.roll(NOW_MS)
        write(log, position("g", "orders", 1, 3))
        path = Path(log.segments[0].log_path)
    content = bytearray(path.read_bytes())
    content[damaged + 70] ^= 1
    path.write_bytes(content)
    with LogManager.open(str(data), read_only=True) as manager, caplog.at_level(logging.WARNING):
        assert positions(manager, "g") == {("orders", 0): 1, ("orders", 1): 3}
    assert "cannot read the committed offsets after this point" in caplog.text


def test_what_has_left_the_log_is_not_shown(manager: LogManager) -> None:
    """Another cleanup.policy may be a broker's."""
    log = offsets_log(manager, "g")
    write(log, position("g", "orders", 0, 1))
    write(log, position("g", "orders", 1, 2))
    assert manager.groups.names() == ["g"]
    log.raise_log_start(1)
    assert positions(manager, "g") == {("orders", 1): 2}
    log.raise_log_start(2)
    assert manager.groups.names() == []
    assert manager.groups.find("g") is None


# -- bytes -----------------------------------------------------------------------------------------


def test_keys_and_values_come_back() -> None:
    key = commit_key("gruppe ü", "orders", 7)
    assert read_commit_key(key) == ("gruppe ü", "orders", 7)
    for committed in (
        Committed(0, time_ms=0),
        Committed(2**63 - 1, 5, "m" * 200, NOW_MS, None, new_topic_id()),
    ):
        assert read_commit(commit_value(committed)) == committed


@pytest.mark.parametrize(
    ("group", "hash_"),
    # String.hashCode of these, by the language's specification.
    [("", 0), ("a", 97), ("g1", 3242), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_the_partition_is_javas_hash(group: str, hash_: int) -> None:
    expected = 0 if hash_ == -(2**31) else abs(hash_)
    assert partition_for(group, 50) == expected % 50
    assert partition_for(group, 2**31 - 1) == expected % (2**31 - 1)


# -- the topic's partitions ------------------------------------------------------------------------


@pytest.mark.parametrize("left", [{0}, {1}, {0, 2}, set()])
def test_what_a_crash_has_left_of_the_new_topic_is_completed(data: Path, left: set[int]) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
        manager.groups.prepare()
        topic_id = manager.topic(OFFSETS).id
    for number in {0, 1, 2} - left:
        shutil.rmtree(data / f"{OFFSETS}-{number}")
    with opened(data) as manager:
        manager.groups.commit("g", "orders", {0: Committed(0)})
        topic = manager.topic(OFFSETS)
        assert topic.numbers == [0, 1, 2]
        assert {log.topic_id for log in topic.partitions.values()} == {topic.id}
        assert topic.id == topic_id or not left
        assert manager.settings.overrides(OFFSETS)["cleanup.policy"] == "compact"
    with opened(data) as manager:
        assert positions(manager, "g") == {("orders", 0): 0}


def test_a_topic_that_has_positions_gets_no_more_partitions(data: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("orders")
        manager.groups.commit("g", "orders", {0: Committed(0)})
    write_settings(data, offsets_topic_num_partitions=5)
    with opened(data) as manager:
        manager.groups.commit("g", "orders", {0: Committed(0)})
        assert manager.topic(OFFSETS).numbers == [0, 1, 2]
