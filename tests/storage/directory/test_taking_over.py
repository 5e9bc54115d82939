"""A broker's directory that is opened for writing: what is not known stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.staged_round import plan
from storage.directory.detach import detach
from storage.directory.lock import change_settings
from storage.errors import SwapRefused, UnknownTopicOrPartition
from storage.files import Files
from storage.log.append import append_batches
from storage.settings.settings import Settings
from storage.state import checkpoint_file
from storage.task import Task
from tests import metadata_log as made
from tests.metadata_log import BROKER, TOPIC, MetadataLog
from tests.storage.compaction.cleaned import compacted, keyed, put, roll
from tests.storage.compaction.staging import staged_request
from tests.storage.logs import NOW_MS, write_settings
from tests.storage.segmented import DAY_MS, bases, run

MONTH_MS = 30 * DAY_MS
ALL = ("cleanup.policy", "retention.ms", "retention.bytes")
CLEANING = ("min.compaction.lag.ms", "delete.retention.ms")


def fill(data: Path, *topics: str) -> None:
    """Four segments each of old records with few keys, as a broker may have written them."""
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        for topic in topics:
            log = manager.create_topic(topic.lstrip("_"), 1).partitions[0]
            for number in range(4):
                if number:
                    log.roll(NOW_MS)
                pairs = [(b"key", b"%d" % number), (b"other", b"%d" % number)]
                append_batches(log, keyed(pairs), now_ns=NOW_MS * 1_000_000)
    for topic in topics:
        # A broker alone makes topics of its own.
        (data / f"{topic.lstrip('_')}-0").rename(data / f"{topic}-0")
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n")


def kept(log: Log, manager: LogManager) -> bool:
    """Whether neither retention nor a cleaner takes anything, now or in a month."""
    before = list(log.records())
    for now_ms in (NOW_MS + MONTH_MS, NOW_MS + 2 * MONTH_MS):
        assert run(manager, now_ms).segments == 0
    cleaner = LogCleaner(manager)
    assert cleaner.filthiest(NOW_MS + MONTH_MS) is None
    assert cleaner.clean(log, Task()) is None
    return list(log.records()) == before and bases(log) == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        # It may be of a time before the broker's, and speaks of topics made here.
        {"log_retention_hours": 1},
        {"log_cleanup_policy": "compact"},
        {"log_retention_bytes": 1},
    ],
)
def test_what_is_not_known_is_kept(tmp_path: Path, settings: dict[str, object]) -> None:
    fill(tmp_path, "orders", "__consumer_offsets")
    write_settings(tmp_path, **settings)
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS + MONTH_MS) as manager:
        for topic in ("orders", "__consumer_offsets"):
            assert kept(manager.log(topic, 0), manager)


@pytest.mark.parametrize("kind", ["future", "stray"])
def test_the_broker_recovers_what_only_it_loads_after_a_kill(tmp_path: Path, kind: str) -> None:
    fill(tmp_path, "orders")
    marker = tmp_path / paths.CLEAN_SHUTDOWN
    (tmp_path / f"other-0.{'a' * 32}-{kind}").mkdir()
    for is_clean in (True, False, False):
        if not is_clean:
            marker.unlink(missing_ok=True)
        LogManager.open(str(tmp_path)).close()
        assert marker.exists() == is_clean


def test_an_empty_partition_without_an_id_has_the_time_of_its_directory(tmp_path: Path) -> None:
    fill(tmp_path, "orders")
    (tmp_path / "empty-0").mkdir()
    with LogManager.open(str(tmp_path)) as manager:
        assert manager.log("empty", 0).created_ns


def test_a_topic_without_an_id_gets_none(tmp_path: Path) -> None:
    """A broker before 2.8 wrote it. A later one refuses partitions with another id than its own."""
    fill(tmp_path, "orders")
    metadata = tmp_path / "orders-0" / paths.PARTITION_METADATA
    metadata.unlink()
    ids = set()
    for read_only in (False, False, True):
        with LogManager.open(str(tmp_path), read_only=read_only) as manager:
            ids.add(manager.topics["orders"].id)
    with LogManager.open(str(tmp_path)) as manager:
        manager.delete_topic("orders")
        manager.undelete_topic("orders")
        ids.add(manager.topics["orders"].id)
    assert len(ids) == 1
    assert not metadata.exists()
    (tmp_path / "meta.properties").unlink()
    LogManager.open(str(tmp_path)).close()
    assert metadata.exists()


def topic_id(data: Path, topic: str = "orders") -> str:
    path = str(data / f"{topic}-0" / "partition.metadata")
    found = checkpoint_file.read_partition_metadata(Files(), path)
    assert found is not None
    return found


def described(data: Path, records: list[bytes], server: str | None) -> Path:
    """Make a broker's directory with a topic, these settings in its log, and perhaps its file."""
    data.mkdir(exist_ok=True)
    fill(data, "orders")
    log = MetadataLog(data)
    log.append(made.topic("orders", topic_id(data)), *records)
    if server is not None:
        path = data.parent / "server.properties"
        path.write_text(server)
        write_settings(data, kafkafs_broker_config=path)
    return data


def on_topic(name: str, value: str) -> bytes:
    return made.config(TOPIC, "orders", name, value)


# For each case: the records of the metadata log, the broker's file, and the effective values of
# (retention.ms, retention.bytes, cleanup.policy) or the names of the unknown settings.
WEEK = (7 * DAY_MS, -1, ("delete",))
CASES = {
    "nothing named": ([], None, ALL),
    "nothing set": ([], "", WEEK),
    "on the topic": ([on_topic("retention.ms", "5")], "", (5, -1, ("delete",))),
    "on the topic only": ([on_topic("retention.ms", "5")], None, ("cleanup.policy", ALL[2])),
    "all on the topic": (
        [
            on_topic("retention.ms", "5"),
            on_topic("retention.bytes", "6"),
            on_topic("cleanup.policy", "delete"),
        ],
        None,
        (5, 6, ("delete",)),
    ),
    "compacted, and nothing else known": ([on_topic("cleanup.policy", "compact")], None, CLEANING),
    "compacted": ([on_topic("cleanup.policy", "compact")], "", (7 * DAY_MS, -1, ("compact",))),
    "both": ([on_topic("cleanup.policy", "compact,delete")], None, (*ALL[1:], *CLEANING)),
    "neither": ([on_topic("cleanup.policy", "")], None, (7 * DAY_MS, -1, ())),
    "in the file": ([], "log.retention.hours=1\n", (3_600_000, -1, ("delete",))),
    "in the file, twice": ([], "log.retention.hours=1\nlog.retention.ms=7", (7, -1, ("delete",))),
    "in the file, for ever": ([], "log.retention.minutes=-1\n", (-1, -1, ("delete",))),
    "in the file, not understood": ([], "log.retention.ms=${x}\n", ("retention.ms",)),
    "in the file, and on the topic": (
        [on_topic("retention.ms", "5")],
        "log.retention.ms=6\nlog.retention.bytes=9",
        (5, 9, ("delete",)),
    ),
    "on all brokers": (
        [made.config(BROKER, "", "log.retention.ms", "5")],
        "log.retention.ms=6",
        (5, -1, ("delete",)),
    ),
    "on all brokers, in other words": (
        [made.config(BROKER, "", "log.retention.hours", "1")],
        "log.retention.ms=6",
        (3_600_000, -1, ("delete",)),
    ),
    "on all brokers only": (
        [made.config(BROKER, "", "log.retention.ms", "5")],
        None,
        ("cleanup.policy", "retention.bytes"),
    ),
    "on the broker": (
        [
            made.config(BROKER, "", "log.retention.ms", "5"),
            made.config(BROKER, "1", "log.retention.ms", "4"),
            made.config(BROKER, "2", "log.retention.ms", "3"),
        ],
        "log.retention.ms=6",
        (4, -1, ("delete",)),
    ),
    "another version's value": ([on_topic("retention.ms", "soon")], "", ("retention.ms",)),
    "other settings": ([on_topic("leader.replication.throttled.replicas", "*")], "", WEEK),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_broker_has_set_is_in_force(tmp_path: Path, case: str) -> None:
    records, server, expected = CASES[case]
    data = described(tmp_path / "data", records, server)
    with LogManager.open(str(data)) as manager:
        config = manager.log("orders", 0).config
        why = manager.settings.why_no_deletion("orders")
        if config.unknown:
            assert config.unknown == expected
            assert why is not None
            assert why.startswith(f"the values of {', '.join(config.unknown)} are unknown: ")
            assert kept(manager.log("orders", 0), manager)
        else:
            assert (config.retention_ms, config.retention_bytes, config.cleanup_policy) == expected
            assert why is None
            assert (config.segment_bytes, config.segment_ms) == (1 << 30, 7 * DAY_MS), "a broker's"


def test_retention_that_is_set_here_leaves_a_brokers_segments_as_they_are(tmp_path: Path) -> None:
    data = described(tmp_path / "data", [], "")
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS + MONTH_MS) as manager:
        manager.change_topic_settings("orders", {"retention.ms": "9", "segment.ms": "9"})
        assert not manager.roll_due
        config = manager.log("orders", 0).config
        assert (config.segment_bytes, config.segment_ms) == (1 << 30, 9)


def test_why_and_what_ends_it(tmp_path: Path) -> None:
    data = described(tmp_path / "data", [], None)
    file_is_missing = (
        "the values of cleanup.policy, retention.ms, retention.bytes are unknown: the path of the "
        "broker's server.properties is not configured; run kafkafs config "
        f"{data} --broker-config FILE"
    )
    assert Settings(Files(), str(data)).why_no_deletion("orders") == file_is_missing
    write_settings(data, kafkafs_broker_config="/no/such/file")
    why = Settings(Files(), str(data)).why_no_deletion("orders")
    assert why == file_is_missing.replace(
        "the path of the broker's server.properties is not configured",
        "/no/such/file: No such file or directory",
    )
    log = data / "__cluster_metadata-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes() + bytes([1]) * 61 + b"x" * (1 << 25))
    settings = Settings(Files(), str(data))
    assert "the metadata log is damaged" in str(settings.why_no_deletion("orders"))
    assert "retention.ms=... retention.bytes=..." in str(settings.why_no_deletion("orders"))
    for name, value in (("cleanup.policy", "delete"), ("retention.ms", "5")):
        settings.change_topic("orders", {name: value})
        assert settings.why_no_deletion("orders") is not None
    settings.change_topic("orders", {"retention.bytes": "-1"})
    assert settings.why_no_deletion("orders") is None
    assert Settings(Files(), str(data)).log_config("orders").retention_ms == 5


def test_a_metadata_log_of_a_newer_kafka(tmp_path: Path) -> None:
    """It may have any setting; the ids of topics are known."""
    data = described(tmp_path / "data", [on_topic("retention.ms", "5"), made.later(111, 0)], "")
    log = data / "__cluster_metadata-0" / f"{0:020}.log"
    settings = Settings(Files(), str(data))
    assert settings.id_at_broker("orders") == topic_id(data)
    why = str(settings.why_no_deletion("orders"))
    assert "the metadata log was written by a newer Kafka; run kafkafs config" in why
    log.write_bytes(log.read_bytes() + made.batch([made.metadata_version(31)], 3))
    with LogManager.open(str(data)) as manager:
        assert kept(manager.log("orders", 0), manager)
        why = str(manager.settings.why_no_deletion("orders"))
        assert "written by a newer Kafka (metadata.version 31); " in why
    detach(Files(), str(data))
    with LogManager.open(str(data)) as manager:
        assert manager.settings.id_at_broker("orders") == topic_id(data)
        assert "written by a newer Kafka (metadata.version 31)" in str(
            manager.settings.why_no_deletion("orders")
        )
        assert kept(manager.log("orders", 0), manager)


@pytest.mark.parametrize("name", ["broker's file", "kafkafs.metadata.log.dir", "none"])
def test_a_metadata_log_that_is_elsewhere(tmp_path: Path, name: str) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    fill(data, "orders")
    MetadataLog(other).append(made.topic("orders", topic_id(data)), on_topic("retention.ms", "5"))
    server = tmp_path / "server.properties"
    (tmp_path / "link").symlink_to(other)
    server.write_text(f"log.dirs={data}\nmetadata.log.dir={tmp_path}/link\n")
    if name == "broker's file":
        write_settings(data, kafkafs_broker_config=server)
    elif name == "kafkafs.metadata.log.dir":
        server.write_text("")
        write_settings(data, kafkafs_broker_config=server, kafkafs_metadata_log_dir=other)
    settings = Settings(Files(), str(data))
    assert settings.log_config("orders").retention_ms == (7 * DAY_MS if name == "none" else 5)
    assert bool(settings.log_config("orders").unknown) == (name == "none")


def test_the_settings_of_another_topic_of_that_name_do_not_count(tmp_path: Path) -> None:
    data = described(tmp_path / "data", [], "log.retention.ms=5")
    MetadataLog(data / "new").append(made.topic("orders", checkpoint_file.new_topic_id()))
    write_settings(
        data,
        kafkafs_broker_config=tmp_path / "server.properties",
        kafkafs_metadata_log_dir=data / "new",
    )
    (data / "__cluster_metadata-0" / f"{0:020}.log").unlink()
    with LogManager.open(str(data)) as manager:
        assert kept(manager.log("orders", 0), manager)
        assert "another topic of this name" in str(manager.settings.why_no_deletion("orders"))


def test_what_kafka_sets_on_its_own_topics(tmp_path: Path) -> None:
    settings = Settings(Files(), str(tmp_path))
    assert settings.log_config("__consumer_offsets").cleanup_policy == ("compact",)
    assert settings.log_config("__transaction_state").cleanup_policy == ("compact",)
    assert settings.log_config("__share_group_state").retention_ms == -1


def test_a_broker_that_does_not_clean_or_delete(tmp_path: Path) -> None:
    data = described(tmp_path / "data", [], "log.cleaner.enable=false\ndelete.topic.enable=false")
    broker = Settings(Files(), str(data)).broker
    assert (broker.log_cleaner_enable, broker.delete_topic_enable) == (False, False)
    with open(data / "kafkafs.properties", "a") as file:
        file.write("log.cleaner.enable=true\n")
    assert Settings(Files(), str(data)).broker.log_cleaner_enable


def test_what_others_have_cleaned_is_not_put_in(tmp_path: Path) -> None:
    """Spark has cleaned a log, but the directory has become a broker's: the swap is refused."""
    with compacted(tmp_path) as (manager, log):
        topic_id = manager.topic("t").id
        for number in range(3):
            put(log, (b"key", b"%d" % number))
            roll(log)
        request = staged_request(manager, log)
    log_of = MetadataLog(tmp_path)
    log_of.append(made.topic("t", topic_id), made.config(TOPIC, "t", "cleanup.policy", "compact"))
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        before = bases(log)
        cleanable = LogCleaner(manager).plan(log, NOW_MS)
        assert plan(log, cleanable, manager.settings.broker, NOW_MS) is None
        with pytest.raises(SwapRefused, match=r"min\.compaction\.lag\.ms.* are unknown"):
            LogCleaner(manager).swap_in(request, Task())
        assert bases(log) == before
        # A policy that is set here asks for the cleaning.
        manager.change_topic_settings("t", {"cleanup.policy": "compact"})
        assert LogCleaner(manager).clean(log, Task()) is not None


def test_a_brokers_own_log_is_no_topic_with_settings(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    with pytest.raises(UnknownTopicOrPartition):
        change_settings(str(tmp_path), "__cluster_metadata", {"retention.ms": "1"})
