"""A handover: what the broker is given, what is refused, and that the source stays."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from storage import LogManager, Record, encode, paths
from storage.directory.detach import detach
from storage.directory.lock import change_settings
from storage.errors import (
    CorruptRecord,
    HandoverRefused,
    LogLocked,
    UnknownTopicOrPartition,
)
from storage.files import Files
from storage.groups.offset_records import Committed
from storage.handover.handover import broker_settings
from storage.log.epochs import LeaderEpochs
from storage.record.header import parse_header
from storage.settings.settings import Settings
from storage.state import checkpoint_file
from storage.verify.verify import verify
from tests import metadata_log as made
from tests import tiered
from tests.metadata_log import MetadataLog
from tests.storage.handed import (
    OTHER,
    TOPICS,
    Places,
    clock_ms,
    go_on,
    hand,
    leave_open,
    refused,
    shown,
    write_broker,
    write_source,
)
from tests.storage.logs import (
    NOW_MS,
    NOW_NS,
    append,
    flip,
    values,
    write_settings,
    write_topic_settings,
)
from tests.storage.old_logs import content, write_old

ITEMS = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """The source and the broker's directory."""
    write_source(tmp_path / "data")
    write_broker(tmp_path / "broker")
    return tmp_path / "data", tmp_path / "broker"


def offsets(broker: Path, name: str) -> dict[tuple[str, int], int]:
    return checkpoint_file.read_offsets(Files(), str(broker / name))


def bases(directory: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob(f"*{suffix}"))


@pytest.mark.parametrize("link", [False, True])
def test_a_broker_is_given_what_we_show(places: Places, link: bool) -> None:
    data, broker = places
    before = shown(data)
    source = content(data)
    metadata = {path: path.read_bytes() for path in broker.glob("*/partition.metadata")}
    outcome = hand(places, link=link)
    assert content(data) == source
    assert shown(broker) == before
    assert sorted((each.topic, each.partition) for each in outcome.handed) == sorted(ITEMS)
    assert any(each.linked_size for each in outcome.handed) == link
    assert {path: path.read_bytes() for path in broker.glob("*/partition.metadata")} == metadata
    assert verify(str(broker)).faults == []
    go_on(broker)


def test_what_lies_there(places: Places) -> None:
    data, broker = places
    hand(places)
    ends = {item: fact[1] for item, fact in shown(data).items()}
    for topic, number in ITEMS:
        directory = broker / f"{topic}-{number}"
        assert bases(directory, ".snapshot") == [ends[topic, number]]
        last = bases(directory, ".log")[-1]
        assert last == ends[topic, number]
        assert (directory / f"{last:020}.log").stat().st_size == 0
        for base in bases(directory, ".log"):
            assert (directory / f"{base:020}.index").exists()
            assert (directory / f"{base:020}.timeindex").exists()
            mine, theirs = (each / f"{topic}-{number}" / f"{base:020}.log" for each in places)
            if mine.exists():
                assert mine.read_bytes() == theirs.read_bytes()
                assert mine.stat().st_mtime_ns == theirs.stat().st_mtime_ns
        wanted = {"log", "index", "timeindex", "txnindex", "snapshot", "metadata"}
        kinds = {path.name.rpartition(".")[2] for path in directory.iterdir()}
        assert kinds <= wanted | {"leader-epoch-checkpoint"}
    assert offsets(broker, paths.RECOVERY_POINTS) == {**OTHER, **ends}
    assert offsets(broker, paths.HIGH_WATERMARKS) == OTHER
    # The others begin at their first base offsets.
    assert offsets(broker, paths.LOG_STARTS) == {("started-late", 0): 5, ("emptied", 0): 2}
    assert (broker / paths.CLEAN_SHUTDOWN).exists()
    epochs = broker / "started-late-0" / "leader-epoch-checkpoint"
    assert epochs.read_text() == "0\n1\n0 5\n"
    assert (broker / "old-0" / "leader-epoch-checkpoint").read_text() == "0\n0\n"
    left = {path.name for path in broker.iterdir() if not path.is_dir()}
    assert left == {
        paths.META_PROPERTIES,
        paths.CLEAN_SHUTDOWN,
        *(paths.RECOVERY_POINTS, paths.LOG_STARTS, paths.HIGH_WATERMARKS),
    }
    assert not (broker / paths.HANDOVER).exists()


@pytest.mark.parametrize("link", [False, True])
def test_epochs_of_another_cluster_become_0(tmp_path: Path, link: bool) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    data.mkdir()
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for epoch in (0, 0, 3, 2, 7):
            batch = encode([Record(0, NOW_MS, 0, None, b"v")])
            log.append(bytearray(batch), now_ns=NOW_NS)
            log.roll(NOW_MS)
            log.epochs = LeaderEpochs([(epoch, 0)])
    stored = [path for path in sorted((data / "t-0").glob("*.log")) if path.stat().st_size]
    for path, epoch in zip(stored, (0, 0, 3, 2, 7), strict=True):
        changed = bytearray(path.read_bytes())
        changed[12:16] = epoch.to_bytes(4, "big")
        path.write_bytes(changed)
    write_broker(broker, {"t": 1})
    (handed,) = hand((data, broker), link=link).handed
    found = [path.read_bytes() for path in sorted((broker / "t-0").glob("*.log"))][:-1]
    assert [parse_header(each).leader_epoch for each in found] == [0] * 5
    assert shown(broker) == shown(data)
    assert (broker / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert handed.linked_size == (2 * len(found[0]) if link else 0)


def test_appending_to_the_source_leaves_what_was_linked(places: Places) -> None:
    data, broker = places
    hand(places, link=True)
    before = content(broker)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        for number in range(2):
            append(manager.log("plain", number), b"later")
    assert content(broker) == before


# -- what is refused -------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_or_has_other_partitions(tmp_path: Path) -> None:
    places = tmp_path / "data", tmp_path / "broker"
    write_source(places[0])
    write_broker(places[1], {**TOPICS, "plain": 3})
    refused(places, "plain has 2 partitions, but 3 at the broker")
    for path in places[1].glob("old-0/*"):
        path.unlink()
    (places[1] / "old-0").rmdir()
    refused(places, "the broker has no topic old in this directory", "old")
    assert hand(places, "old", "sent", dry_run=True).missing == {"old": 1}
    with pytest.raises(UnknownTopicOrPartition):
        hand(places, "none")


def test_a_topic_that_is_not_empty(places: Places) -> None:
    log = places[1] / "plain-1" / f"{0:020}.log"
    log.write_bytes(b"something")
    refused(places, "plain:1 is not empty at the broker")
    log.unlink()
    (log.parent / f"{5:020}.log").touch()
    refused(places, "plain:1 is not empty at the broker")
    assert [each.topic for each in hand(places, "sent").handed] == ["sent"]


def test_a_partition_that_the_broker_would_take_for_stray(places: Places) -> None:
    (places[1] / "plain-1" / "partition.metadata").unlink()
    refused(places, "plain:1 has no partition.metadata")


def test_a_directory_that_is_no_brokers(places: Places) -> None:
    (places[1] / paths.META_PROPERTIES).unlink()
    with pytest.raises(HandoverRefused, match="not the directory of a broker"):
        hand(places)
    with pytest.raises(NotADirectoryError):
        hand((places[0], places[1] / "none"))


def test_a_log_of_0_7(places: Places) -> None:
    write_old(places[0], "ancient", b"")
    write_broker(places[1].with_name("other"), {"ancient": 1})
    refused(
        (places[0], places[1].with_name("other")),
        "ancient:0 has the format of Kafka 0.7",
        "ancient",
    )


@pytest.mark.parametrize("side", [0, 1])
def test_either_side_in_use(places: Places, side: int) -> None:
    files = Files()
    fd = files.lock(str(places[side] / paths.LOCK))
    try:
        with pytest.raises(LogLocked):
            hand(places)
        # A dry run works.
        outcome = hand(places, dry_run=True)
        assert any("in use" in each for each in outcome.refusals)
        assert len(outcome.handed) == len(ITEMS)
    finally:
        files.unlock(fd)
    (places[side] / paths.LOCK).unlink()
    assert len(hand(places).handed) == len(ITEMS)


def test_open_transactions(places: Places) -> None:
    data, broker = places
    leave_open(data)
    refused(places, "sent:0 has an open transaction of producer 99")
    assert hand(places, abort=True, dry_run=True).aborted == [("sent", 0, 99)]
    assert hand(places, abort=True).aborted == [("sent", 0, 99)]
    with LogManager.open(str(broker), read_only=True, clock_ms=clock_ms) as manager:
        log = manager.log("sent", 0)
        assert log.last_stable_offset == log.log_end_offset
        committed = [record.value for record in log.records(isolation="read_committed")]
        assert b"open" not in committed
        everything = [record.value for record in log.records(isolation="read_uncommitted")]
        assert b"open" in everything
    go_on(broker)


def test_internal_topics_by_name_only(places: Places) -> None:
    with LogManager.open(str(places[0]), clock_ms=clock_ms) as manager:
        manager.create_topic("positions", 1)
    (places[0] / "positions-0").rename(places[0] / "__consumer_offsets-0")
    outcome = hand(places, dry_run=True)
    assert outcome.left_out == ["__consumer_offsets"]
    assert outcome.refusals == []
    assert hand(places, "__consumer_offsets", dry_run=True).missing == {"__consumer_offsets": 1}


# -- what goes wrong -------------------------------------------------------------------------------


def test_damage_is_found_before_the_broker_is_given_anything(places: Places) -> None:
    data, broker = places
    path = min((data / "plain-1").glob("*.log"))
    flip(path, 80)
    with pytest.raises(CorruptRecord) as caught:
        hand(places)
    assert caught.value.path == str(path)
    nothing_is_given(broker)


def nothing_is_given(broker: Path) -> None:
    assert not (broker / paths.HANDOVER).exists()
    for topic, number in ITEMS:
        logs = list((broker / f"{topic}-{number}").glob("*.log"))
        assert all(log.stat().st_size == 0 for log in logs)
    assert offsets(broker, paths.LOG_STARTS) == {}
    assert offsets(broker, paths.HIGH_WATERMARKS).items() >= OTHER.items()


def test_a_source_that_was_killed_is_recovered_first(places: Places) -> None:
    manager = LogManager.open(str(places[0]), clock_ms=clock_ms)
    append(manager.log("plain", 0), b"acknowledged")
    manager.abandon()
    with open(max((places[0] / "plain-0").glob("*.log")), "ab") as file:
        file.write(b"torn")
    hand(places)
    with LogManager.open(str(places[1]), read_only=True, clock_ms=clock_ms) as given:
        assert values(given.log("plain", 0))[-1] == b"acknowledged"
    assert checkpoint_file.has_marker(Files(), str(places[0]))


def test_who_would_write_there_meanwhile(places: Places) -> None:
    (places[1] / paths.HANDOVER).mkdir()
    with pytest.raises(HandoverRefused, match="run kafkafs handover again"):
        LogManager.open(str(places[1]))
    hand(places)
    go_on(places[1])


class AnothersDirectory(Files):
    """The broker runs as another user."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[int, int]] = {}

    def file_stat(self, path: str) -> os.stat_result:
        stat = super().file_stat(path)
        if path.endswith(paths.META_PROPERTIES):
            return os.stat_result((*stat[:4], os.geteuid() + 1, 77, *stat[6:]))
        return stat

    def chown(self, path: str, uid: int, gid: int) -> None:
        assert os.path.exists(path)
        self.given[path] = uid, gid


def test_files_are_the_brokers_users(places: Places) -> None:
    before = {str(path) for path in places[1].rglob("*partition.metadata")}
    files = AnothersDirectory()
    outcome = hand(places, link=True, files=files)
    # A file of another user cannot be linked.
    assert [each.linked_size for each in outcome.handed] == [0] * len(ITEMS)
    made = {str(path) for path in places[1].glob("*/*")} - before
    changed = {str(places[1] / name) for name in (paths.RECOVERY_POINTS, paths.LOG_STARTS)}
    assert made | changed <= files.given.keys()
    assert set(files.given.values()) == {(os.geteuid() + 1, 77)}


def test_a_user_who_may_not_give_files_away(places: Places) -> None:
    class Forbidden(AnothersDirectory):
        def chown(self, path: str, uid: int, gid: int) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    with pytest.raises(PermissionError):
        hand(places, files=Forbidden())
    nothing_is_given(places[1])


def test_settings_are_those_that_decide_and_those_that_are_set(tmp_path: Path) -> None:
    (tmp_path / "kafkafs.properties").write_text("log.retention.ms=5000\n")
    (tmp_path / "t-0").mkdir()
    settings = Settings(Files(), str(tmp_path))
    values = {
        "segment.ms": "7000",
        "cleanup.policy": "compact,delete",
        "kafkafs.retention.policy": "kafka",
        # The topic becomes tiered only after its handover.
        "remote.storage.enable": "true",
    }
    settings.change_topic("t", values)
    assert broker_settings(settings, "t") == {
        "cleanup.policy": "compact,delete",
        "retention.bytes": "-1",
        "retention.ms": "5000",
        "segment.ms": "7000",
    }


def test_in_records_of_groups_topics_get_the_brokers_ids(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    data.mkdir()
    write_settings(data, offsets_topic_num_partitions=2)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        for topic in ("known", "unknown"):
            append(manager.create_topic(topic).partitions[0], b"x", b"y")
            for number in range(20):
                # Epochs of another cluster: the broker's begin again.
                committed = Committed(1 + number % 2, number % 4 - 1, f"{number}")
                manager.groups.commit(f"g{number}", topic, {0: committed})
        ids = {topic: manager.topic(topic).id for topic in ("known", "unknown")}
    write_broker(broker, {"known": 1, paths.CONSUMER_OFFSETS: 2})
    given = hand((data, broker), "known", paths.CONSUMER_OFFSETS)
    assert {each.topic for each in given.handed} == {"known", paths.CONSUMER_OFFSETS}
    with LogManager.open(str(broker), read_only=True) as manager:
        theirs = manager.topic("known").id
        assert theirs != ids["known"]
        for number in range(20):
            group = manager.groups.find(f"g{number}")
            assert group is not None
            epoch = 0 if number % 4 == 1 else -1
            expected = 1 + number % 2, epoch, f"{number}"
            assert {
                item: (each.position, each.leader_epoch, each.metadata, each.topic_id)
                for item, each in group.committed.items()
            } == {
                ("known", 0): (*expected, theirs),
                # The broker's is another topic's, if it has one.
                ("unknown", 0): (*expected, ids["unknown"]),
            }
    assert verify(str(broker)).faults == []
    assert hand((data, broker), "known", paths.CONSUMER_OFFSETS).handed == []


def test_ids_in_compressed_batches_are_refused(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    data.mkdir()
    write_settings(data, offsets_topic_num_partitions=1)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        manager.create_topic("known")
        manager.groups.prepare()
    write_topic_settings(data, paths.CONSUMER_OFFSETS, {"compression.type": "gzip"})
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        manager.groups.commit("g", "known", {0: Committed(0)})
    write_broker(broker, {"known": 1, paths.CONSUMER_OFFSETS: 1})
    with pytest.raises(HandoverRefused, match="a compressed batch contains topic ids"):
        hand((data, broker), paths.CONSUMER_OFFSETS)
    directory = broker / f"{paths.CONSUMER_OFFSETS}-0"
    assert [each.name for each in directory.iterdir()] == [paths.PARTITION_METADATA]
    assert not (broker / paths.HANDOVER).exists()


# -- tiered topics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_tiered_topic_is_refused(tmp_path: Path, is_clean: bool) -> None:
    """Also after a crash, when its recovery is left to its broker; the others are handed over."""
    data, broker = tmp_path / "data", tmp_path / "broker"
    tiered.make(data)
    (tmp_path / "server.properties").touch()
    write_settings(data, kafkafs_broker_config=tmp_path / "server.properties")
    detach(Files(), str(data))
    if not is_clean:
        tiered.crash(data)
    before = tiered.state(data)
    write_broker(broker, {"orders": 2, "plain": 1})
    for dry_run in (True, False):
        remedy = f"kafkafs config {data} orders remote.storage.enable=false"
        if dry_run:
            assert any(remedy in line for line in hand((data, broker), dry_run=True).refusals)
        else:
            with pytest.raises(HandoverRefused, match=re.escape(remedy)):
                hand((data, broker))
    assert {each.topic for each in hand((data, broker), "plain").handed} == {"plain"}
    assert tiered.state(data) == before
    change_settings(str(data), "orders", {"remote.storage.enable": "false"})
    assert {each.topic for each in hand((data, broker), "orders").handed} == {"orders"}
    assert shown(broker)["orders", 0] == shown(data)["orders", 0]


def test_a_topic_that_is_tiered_at_the_broker_is_refused(places: Places) -> None:
    _, broker = places
    path = str(broker / "plain-0" / paths.PARTITION_METADATA)
    topic_id = checkpoint_file.read_partition_metadata(Files(), path)
    assert topic_id is not None
    log = MetadataLog(broker)
    log.append(made.topic("plain", topic_id))
    log.append(made.config(made.TOPIC, "plain", "remote.storage.enable", "true"))
    with pytest.raises(HandoverRefused, match="plain is a tiered topic at the broker"):
        hand(places, "plain")
    assert {each.topic for each in hand(places, "sent").handed} == {"sent"}
