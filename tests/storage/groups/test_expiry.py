"""Which positions are over: Kafka's rule, and whose retention counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.groups.group import Group
from storage.groups.offset_records import Committed
from storage.task import Task
from tests import metadata_log as made
from tests.storage.groups.records import classic_group, group_key, position, positions, write
from tests.storage.logs import NOW_MS, opened, write_settings

OFFSETS = "__consumer_offsets"
MINUTE_MS = 60_000
WEEK_MS = 7 * 86_400_000
COMMITTED = Committed(1, time_ms=NOW_MS)


@pytest.mark.parametrize(
    ("group", "committed", "lives_ms"),
    [
        (Group("g"), COMMITTED, 10 * MINUTE_MS),
        (Group("g", kind="consumer"), COMMITTED, 10 * MINUTE_MS),
        (Group("g", kind="classic", empty_since_ms=NOW_MS + 5), COMMITTED, 10 * MINUTE_MS + 5),
        # Committed after the last member left, as by a script.
        (Group("g", kind="classic", empty_since_ms=NOW_MS - WEEK_MS), COMMITTED, 10 * MINUTE_MS),
        (Group("g"), COMMITTED._replace(expire_ms=NOW_MS + 3), 3),
        (Group("g", kind="classic", has_members=True), COMMITTED, None),
    ],
)
def test_how_long_a_position_lives(
    group: Group, committed: Committed, lives_ms: int | None
) -> None:
    if lives_ms is None:
        assert not group.is_expired(committed, 10, NOW_MS * 2, None)
    else:
        assert not group.is_expired(committed, 10, NOW_MS + lives_ms - 1, None)
        assert group.is_expired(committed, 10, NOW_MS + lives_ms, None)
    assert not group.is_expired(committed, None, NOW_MS * 2, None)


@pytest.mark.parametrize(
    ("line", "lives_ms"),
    [("", WEEK_MS), ("offsets.retention.minutes=20\n", 20 * MINUTE_MS), (None, None)],
)
def test_in_a_brokers_directory_they_live_as_its_broker_says(
    tmp_path: Path, line: str | None, lives_ms: int | None
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    settings = tmp_path / "server.properties"
    write_settings(data, offsets_topic_num_partitions=1)
    now_ms = NOW_MS
    with opened(data, clock_ms=lambda: now_ms) as manager:
        manager.create_topic("orders")
        manager.groups.commit("g", "orders", {0: Committed(0)})
        topic_id = manager.topic(OFFSETS).id
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    log = made.MetadataLog(data)
    log.append(made.topic(OFFSETS, topic_id), made.partition(topic_id, 0))
    if line is not None:
        settings.write_text(f"log.dirs={data}\n{line}")
        write_settings(data, kafkafs_broker_config=settings)
    with opened(data, clock_ms=lambda: now_ms) as manager:
        assert manager.settings.is_brokers
        if lives_ms is None:
            # It is not known what the broker has set.
            assert manager.settings.offsets_retention_minutes is None
            return
        now_ms += lives_ms - 1
        assert manager.groups.sweep(Task()) == 0
    log.append(made.partition(topic_id, 0, replicas=3))
    now_ms += 1
    with opened(data, clock_ms=lambda: now_ms) as manager:
        assert manager.groups.sweep(Task()) == 0, "the leader deletes them"
    (data / "__cluster_metadata-0").rename(tmp_path / "aside")
    made.MetadataLog(data).append(made.topic(OFFSETS, topic_id), made.partition(topic_id, 0))
    with opened(data, clock_ms=lambda: now_ms) as manager:
        assert manager.groups.sweep(Task()) == 1
        assert positions(manager, "g") == {}


def test_a_brokers_groups_have_the_time_since_they_are_empty(tmp_path: Path) -> None:
    write_settings(tmp_path, offsets_topic_num_partitions=1, offsets_retention_minutes=10)
    now_ms = NOW_MS
    with opened(tmp_path, clock_ms=lambda: now_ms) as manager:
        manager.create_topic("orders")
        manager.groups.prepare()
        log = manager.log("__consumer_offsets", 0)
        write(
            log,
            position("g", "orders", 0, 0),
            (group_key("g"), classic_group(since_ms=NOW_MS + 5 * MINUTE_MS, members=0)),
            position("h", "orders", 0, 0),
            (group_key("h"), classic_group(since_ms=NOW_MS, members=1)),
        )
        now_ms += 15 * MINUTE_MS - 1
        assert manager.groups.sweep(Task()) == 0
        now_ms += 1
        assert manager.groups.sweep(Task()) == 1
        assert positions(manager, "h") == {("orders", 0): 0}
        found = manager.groups.find("g")
        assert found is not None, "the broker's record of the group stays"
        assert found.committed == {}
        manager.groups.forget("g")
        assert manager.groups.names() == ["h"]
