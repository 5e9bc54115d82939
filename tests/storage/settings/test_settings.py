"""Settings: Kafka's names, precedence and rules; files that survive a reload."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint, InvalidConfig, UnknownTopicOrPartition
from storage.files import Files
from storage.settings.config import (
    BROKER_SETTINGS,
    INT_MAX,
    LONG_MAX,
    TOPIC_SETTINGS,
    BrokerConfig,
    LogConfig,
    format_value,
)
from storage.settings.setting_files import TopicFile
from storage.settings.settings import Settings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# The defaults by Kafka's names, and each broker name (storage-format §9).
TABLE = {
    "segment.bytes": ("1073741824", "log.segment.bytes"),
    "segment.ms": ("604800000", "log.roll.ms log.roll.hours"),
    "segment.jitter.ms": ("0", "log.roll.jitter.ms log.roll.jitter.hours"),
    "segment.index.bytes": ("10485760", "log.index.size.max.bytes"),
    "index.interval.bytes": ("4096", "log.index.interval.bytes"),
    "flush.messages": (str(LONG_MAX), "log.flush.interval.messages"),
    "flush.ms": ("1000", "log.flush.interval.ms log.flush.scheduler.interval.ms"),
    "retention.bytes": ("-1", "log.retention.bytes"),
    "retention.ms": ("-1", "log.retention.ms log.retention.minutes log.retention.hours"),
    "cleanup.policy": ("delete", "log.cleanup.policy"),
    "max.message.bytes": ("1048588", "message.max.bytes"),
    "max.decompressed.message.bytes": ("2147483639", "max.decompressed.message.bytes"),
    "delete.retention.ms": ("86400000", "log.cleaner.delete.retention.ms"),
    "min.compaction.lag.ms": ("0", "log.cleaner.min.compaction.lag.ms"),
    "max.compaction.lag.ms": (str(LONG_MAX), "log.cleaner.max.compaction.lag.ms"),
    "min.cleanable.dirty.ratio": ("0.5", "log.cleaner.min.cleanable.ratio"),
    "file.delete.delay.ms": ("60000", "log.segment.delete.delay.ms"),
    "compression.type": ("producer", "compression.type"),
    "compression.gzip.level": ("-1", "compression.gzip.level"),
    "compression.lz4.level": ("9", "compression.lz4.level"),
    "compression.zstd.level": ("3", "compression.zstd.level"),
    "preallocate": ("false", "log.preallocate"),
    "message.timestamp.type": ("CreateTime", "log.message.timestamp.type"),
    "message.timestamp.before.max.ms": (str(LONG_MAX), "log.message.timestamp.before.max.ms"),
    "message.timestamp.after.max.ms": ("3600000", "log.message.timestamp.after.max.ms"),
    "min.insync.replicas": ("1", "min.insync.replicas"),
    "unclean.leader.election.enable": ("false", "unclean.leader.election.enable"),
    "errors.deadletterqueue.group.enable": ("false", ""),
    "remote.storage.enable": ("false", ""),
    "remote.log.copy.disable": ("false", ""),
    "remote.log.delete.on.disable": ("false", ""),
    "remote.copy.lag.ms": ("0", "log.remote.copy.lag.ms"),
    "remote.copy.lag.bytes": ("-1", "log.remote.copy.lag.bytes"),
    "local.retention.ms": ("-2", "log.local.retention.ms"),
    "local.retention.bytes": ("-2", "log.local.retention.bytes"),
    "kafkafs.retention.policy": ("kafka", "kafkafs.retention.policy"),
    "kafkafs.repack": ("off", "kafkafs.repack"),
    "kafkafs.words": ("off", "kafkafs.words"),
}


def load(directory: Path, text: str = "", **of_topics: str) -> Settings:
    """The settings of a directory with these files; ``of_topics``: those of topics, by name."""
    if text:
        (directory / "kafkafs.properties").write_text(text)
    for topic, lines in of_topics.items():
        topic_file(directory, topic).write_text(lines)
    return Settings(Files(), str(directory))


def topic_file(directory: Path, topic: str) -> Path:
    """Where a topic's file lies; its partition 0 is there then."""
    path = directory / f"{topic}-0" / "kafkafs-topic.properties"
    path.parent.mkdir(exist_ok=True)
    return path


def listing(settings: Settings, topic: str) -> dict[str, tuple[str, str]]:
    return {name: (value, source) for name, value, source in settings.explain(topic)}


def test_names_defaults_and_synonyms(tmp_path: Path) -> None:
    assert listing(load(tmp_path), "t") == {
        name: (default, "default") for name, (default, _) in TABLE.items()
    }
    synonyms = {
        name: " ".join(synonym.name for synonym in setting.synonyms)
        for name, setting in TOPIC_SETTINGS.items()
    }
    expected = {name: broker for name, (_, broker) in TABLE.items()}
    assert synonyms == {**expected, "internal.segment.bytes": ""}
    assert load(tmp_path).log_config("t") == LogConfig()
    assert load(tmp_path).broker == BrokerConfig()


def test_every_default_obeys_its_own_rule() -> None:
    for setting in [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()]:
        if setting.default is not None:
            assert setting.parse(format_value(setting.default)) == setting.default


def test_defaults_from_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "# a comment\n\n! another\n  log.retention.bytes =  1000 \nnum.partitions=3\n"
        "log.cleanup.policy=compact, delete\ndelete.topic.enable=FALSE\r\nlog.preallocate=true",
    )
    config = settings.log_config("t")
    assert config.retention_bytes == 1000
    assert config.cleanup_policy == ("compact", "delete")
    assert config.is_compacted
    assert config.preallocate is True
    assert settings.broker == BrokerConfig(num_partitions=3, delete_topic_enable=False)
    assert listing(settings, "t")["retention.bytes"] == (
        "1000",
        "log.retention.bytes in kafkafs.properties",
    )


@pytest.mark.parametrize(
    ("text", "retention_ms", "source"),
    [
        ("log.retention.hours=2", 2 * HOUR_MS, "log.retention.hours"),
        ("log.retention.hours=2\nlog.retention.minutes=3", 180_000, "log.retention.minutes"),
        (
            "log.retention.ms=4\nlog.retention.hours=2\nlog.retention.minutes=3",
            4,
            "log.retention.ms",
        ),
        ("log.retention.hours=-5", -1, "log.retention.hours"),
        ("log.retention.ms=-5\nlog.retention.minutes=3", -1, "log.retention.ms"),
        ("log.retention.ms=1\nlog.retention.ms=2", 2, "log.retention.ms"),
    ],
)
def test_ms_before_minutes_before_hours(
    tmp_path: Path, text: str, retention_ms: int, source: str
) -> None:
    settings = load(tmp_path, text)
    assert settings.log_config("t").retention_ms == retention_ms
    assert listing(settings, "t")["retention.ms"] == (
        str(retention_ms),
        f"{source} in kafkafs.properties",
    )


def test_other_hours(tmp_path: Path) -> None:
    config = load(tmp_path, "log.roll.hours=1\nlog.roll.jitter.hours=2").log_config("t")
    assert (config.segment_ms, config.segment_jitter_ms) == (HOUR_MS, 2 * HOUR_MS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("log.retention.days=1", "line 1: there is no setting 'log.retention.days'"),
        ("segment.bytes=2000000", "line 1: there is no setting 'segment.bytes'"),
        ("\nnum.partitions", "line 2: 'num.partitions' is not name=value"),
        ("=1", "line 1: '=1' is not name=value"),
        ("num.partitions=0", "line 1: num.partitions=0 is not a whole number from 1"),
        ("num.partitions=", "line 1: num.partitions= is not a whole number"),
        ("log.segment.bytes=1000", "line 1: log.segment.bytes=1000 is not a whole number from"),
        ("log.roll.hours=0", "log.roll.hours=0 gives segment.ms=0, which is not a whole number"),
        ("log.retention.hours=x", "log.retention.hours=x is not a whole number"),
        ("log.local.retention.ms=-3", "log.local.retention.ms=-3 is not a whole number from -2"),
        ("log.cleaner.max.compaction.lag.ms=5\nlog.cleaner.min.compaction.lag.ms=6", "is above"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as e:
        load(tmp_path, text)
    assert reason in str(e.value)
    assert e.value.path == str(tmp_path / "kafkafs.properties")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "kafkafs.properties").write_bytes(b"\xff")
    with pytest.raises(InvalidConfig, match="not UTF-8 at byte 0"):
        Settings(Files(), str(tmp_path))


def test_overrides_win_and_last(tmp_path: Path) -> None:
    settings = load(tmp_path, "log.retention.hours=2", **{"orders": "", "a.b-c_d": ""})
    settings.change_topic("orders", {"retention.ms": " 1000 "})
    settings.change_topic("orders", {"cleanup.policy": "compact,  delete"})
    settings.change_topic("a.b-c_d", {"preallocate": "TRUE"})
    for now in (settings, load(tmp_path)):
        assert now.log_config("orders").retention_ms == 1000
        assert now.log_config("other").retention_ms == 2 * HOUR_MS
        assert now.overrides("orders") == {
            "cleanup.policy": "compact,delete",
            "retention.ms": "1000",
        }
        assert now.overrides("a.b-c_d") == {"preallocate": "true"}
        assert now.overrides("other") == {}
        assert listing(now, "orders")["retention.ms"] == ("1000", "set on the topic")
    settings.change_topic("orders", {"retention.ms": None})
    settings.change_topic("orders", {"flush.ms": None})
    assert settings.log_config("orders").retention_ms == 2 * HOUR_MS
    assert load(tmp_path).overrides("orders") == {"cleanup.policy": "compact,delete"}


def test_the_text_of_a_topics_file(tmp_path: Path) -> None:
    settings = load(tmp_path, t="")
    settings.change_topic("t", {"retention.ms": "+7"})
    settings.set_owner("t", None, 1000, 100, 0o750)
    settings.set_owner("t", 11, 0, 0, 0)
    lines = topic_file(tmp_path, "t").read_text().splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == ["11/owner=0:0:0000", "owner=1000:100:0750", "retention.ms=7"]
    assert load(tmp_path).get_owner("t", 11) == (0, 0, 0)
    assert load(tmp_path).get_owner("t", None) == (1000, 100, 0o750)
    assert load(tmp_path).get_owner("t", 0) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("retention.ms", "'retention.ms' is not name=value"),
        ("/retention.ms=1", "there is no setting '/retention.ms'"),
        ("t/owner=0:0:0644", "there is no setting 't/owner'"),
        ("log.retention.ms=1", "there is no setting 'log.retention.ms'"),
        ("0/retention.ms=1", "there is no setting '0/retention.ms'"),
        ("/owner=0:0:0644", "there is no setting '/owner'"),
        ("retention.ms=-2", "retention.ms=-2 is not a whole number from -1"),
        ("owner=0:0", "'0:0' is not UID:GID:MODE"),
        ("owner=0:0:999", "'0:0:999' is not UID:GID:MODE"),
        ("owner=4294967295:0:644", "too large"),
        ("11111111111/owner=0:0:644", "too large"),
    ],
)
def test_what_is_wrong_in_a_topics_file_is_named(tmp_path: Path, line: str, reason: str) -> None:
    settings = load(tmp_path, t=f"# x\n{line}\n", u="retention.ms=5\n")
    with pytest.raises(InvalidConfig) as e:
        settings.log_config("t")
    assert "line 2: " in str(e.value)
    assert reason in str(e.value)
    assert e.value.path == str(topic_file(tmp_path, "t"))
    assert settings.log_config("u").retention_ms == 5
    kept = Settings(Files(), str(tmp_path), keeps_faulty=True)
    assert "retention.ms" in kept.log_config("t").unknown
    assert reason in str(kept.why_no_deletion("t"))
    with pytest.raises(CorruptCheckpoint, match="line 2"):
        kept.change_topic("t", {"retention.ms": "1"})
    with pytest.raises(CorruptCheckpoint, match="line 2"):
        kept.set_owner("t", None, 1, 2, 0o700)
    assert not kept.owners_known("t")
    assert kept.log_config("u").unknown == ()
    assert kept.owners_known("u")


def test_a_topic_of_which_partition_0_is_elsewhere(tmp_path: Path) -> None:
    """Its settings lie in the lowest partition that is here."""
    for number in (12, 5, 7):
        (tmp_path / f"t-{number}").mkdir()
    settings = load(tmp_path)
    settings.change_topic("t", {"retention.ms": "7"})
    assert [path.parent.name for path in tmp_path.glob("*/*")] == ["t-5"]
    assert load(tmp_path).log_config("t").retention_ms == 7


def test_what_is_set_on_a_topic_that_is_not_there(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.overrides("t") == {}
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        settings.change_topic("t", {"retention.ms": "1"})
    # It is read when it is there.
    (tmp_path / "t-0").mkdir()
    topic_file(tmp_path, "t").write_text("retention.ms=9\n")
    assert settings.log_config("t").retention_ms == 9


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("segment.bytes", f"1048576 {INT_MAX}", f"1048575 {INT_MAX + 1} x 1e6 1_048_576"),
        ("internal.segment.bytes", "14", "13"),
        ("segment.ms", f"1 {LONG_MAX}", f"0 {LONG_MAX + 1}"),
        ("segment.jitter.ms", "0", "-1"),
        ("segment.index.bytes", "12", "11"),
        ("index.interval.bytes", "0", "-1"),
        ("flush.messages", "1", "0"),
        ("flush.ms", "0", "-1"),
        ("retention.bytes", "-1 0 -77", "x"),
        ("retention.ms", "-1 0", "-2"),
        ("cleanup.policy", "delete compact compact,delete", "both delete,x Delete"),
        ("max.message.bytes", "0", "-1"),
        ("max.decompressed.message.bytes", "1 2147483639", "0 2147483640"),
        ("delete.retention.ms", "0", "-1"),
        ("min.compaction.lag.ms", "0", "-1"),
        ("max.compaction.lag.ms", "1", "0"),
        ("min.cleanable.dirty.ratio", "0 1 0.25", "-0.1 1.1 nan x"),
        ("file.delete.delay.ms", "0", "-1"),
        ("compression.type", "producer gzip snappy lz4 zstd uncompressed", "none GZIP"),
        ("compression.gzip.level", "-1 1 9", "0 10 -2"),
        ("compression.lz4.level", "1 17", "0 18"),
        ("compression.zstd.level", "-131072 22", "-131073 23"),
        ("preallocate", "true False", "yes 1"),
        ("message.timestamp.type", "CreateTime LogAppendTime", "createtime"),
        ("message.timestamp.before.max.ms", "0", "-1"),
        ("message.timestamp.after.max.ms", "0", "-1"),
        ("min.insync.replicas", "1", "0"),
        ("unclean.leader.election.enable", "true", "2"),
        ("local.retention.ms", "-2", "-3"),
        ("local.retention.bytes", "-2", "-3"),
        ("kafkafs.retention.policy", "kafka:x", ":x"),
        ("kafkafs.repack", "off zstd lz4 gzip snappy", "uncompressed"),
        ("kafkafs.words", "off words", "on true"),
        ("no.such.setting", "", "1"),
    ],
)
def test_rules(tmp_path: Path, name: str, good: str, bad: str) -> None:
    settings = load(tmp_path, t="")
    for value in good.split():
        settings.change_topic("t", {name: value})
        assert load(tmp_path).explain("t") == settings.explain("t")
    before = settings.overrides("t")
    for value in bad.split():
        with pytest.raises(InvalidConfig, match=name):
            settings.change_topic("t", {name: value})
    assert settings.overrides("t") == before


@pytest.mark.parametrize("text", ["", "none"])
def test_no_policy_at_all_is_one(tmp_path: Path, text: str) -> None:
    settings = load(tmp_path, t="")
    settings.change_topic("t", {"cleanup.policy": text})
    assert load(tmp_path).log_config("t").cleanup_policy == ()
    assert settings.overrides("t") == {"cleanup.policy": "none"}


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    settings = load(tmp_path, t="")
    settings.change_topic("t", {"max.compaction.lag.ms": "10"})
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=11 is above"):
        settings.change_topic("t", {"retention.ms": "7", "min.compaction.lag.ms": "11"})
    assert settings.overrides("t") == {"max.compaction.lag.ms": "10"}
    settings.change_topic("t", {"max.compaction.lag.ms": None, "min.compaction.lag.ms": "11"})
    assert settings.overrides("t") == {"min.compaction.lag.ms": "11"}
    both = "min.compaction.lag.ms=9\nmax.compaction.lag.ms=8\n"
    with pytest.raises(InvalidConfig, match="topic t"):
        load(tmp_path, t=both).log_config("t")


def test_internal_segment_bytes_overrides(tmp_path: Path) -> None:
    settings = load(tmp_path, t="")
    settings.change_topic("t", {"internal.segment.bytes": "100"})
    assert settings.log_config("t").segment_bytes == 100
    assert settings.log_config("u").segment_bytes == 1 << 30
    assert listing(settings, "t")["internal.segment.bytes"] == ("100", "set on the topic")
    assert "internal.segment.bytes" not in listing(settings, "u")


@pytest.mark.parametrize(
    ("defaults", "own", "segment_bytes", "segment_ms"),
    [
        ("", "", 1 << 30, 7 * DAY_MS),
        ("", "retention.bytes=80000000", 10_000_000, 7 * DAY_MS),
        ("", "retention.ms=604800000", 1 << 30, 7 * DAY_MS // 8),
        ("log.retention.hours=8\nlog.retention.bytes=80000000", "", 10_000_000, HOUR_MS),
        ("log.retention.hours=8", "retention.ms=-1", 1 << 30, 7 * DAY_MS),
        # Never later than Kafka's defaults.
        ("", f"retention.bytes={LONG_MAX}\nretention.ms={LONG_MAX}", 1 << 30, 7 * DAY_MS),
        # The least, and as much as the largest batch.
        ("", "retention.bytes=0\nretention.ms=0\nmax.message.bytes=9", 1 << 20, 60_000),
        ("", "retention.bytes=0\nmax.message.bytes=5000000", 5_000_000, 7 * DAY_MS),
        # A value that is set stays, wherever it is set.
        ("", "retention.bytes=80000000\nsegment.bytes=70000000", 70_000_000, 7 * DAY_MS),
        ("log.roll.hours=100", "retention.ms=8000000", 1 << 30, 100 * HOUR_MS),
        ("", "retention.bytes=80000000\ninternal.segment.bytes=14", 14, 7 * DAY_MS),
        # Where age and size delete nothing.
        ("", "retention.bytes=8\ncleanup.policy=compact", 1 << 30, 7 * DAY_MS),
        ("", "retention.bytes=8\nkafkafs.retention.policy=mtime:7", 1 << 30, 7 * DAY_MS),
    ],
)
def test_a_log_with_retention_rolls_at_an_eighth_of_it(
    tmp_path: Path, defaults: str, own: str, segment_bytes: int, segment_ms: int
) -> None:
    settings = load(tmp_path, defaults, t=own)
    config = settings.log_config("t")
    assert (config.segment_bytes, config.segment_ms) == (segment_bytes, segment_ms)


def test_where_a_derived_segment_size_comes_from(tmp_path: Path) -> None:
    settings = load(tmp_path, "log.retention.bytes=80000000", t="")
    assert listing(settings, "t")["segment.bytes"] == ("10000000", "derived from retention.bytes")
    assert ("segment.bytes", "10000000", "derived from retention.bytes") in (
        settings.explain_defaults()
    )
    settings.change_topic("t", {"retention.bytes": "-1"})
    assert listing(settings, "t")["segment.bytes"] == ("1073741824", "default")


def test_a_topic_that_is_gone_and_made_again(tmp_path: Path) -> None:
    settings = load(tmp_path, t="", t2="")
    for topic in ("t", "t2"):
        settings.change_topic(topic, {"flush.ms": "5"})
        settings.set_owner(topic, 0, 1, 2, 0o600)
    topic_file(tmp_path, "t").parent.rename(tmp_path / "gone")
    settings.forget("t")
    (tmp_path / "aside").mkdir()
    settings.begin("t", str(tmp_path / "aside"), TopicFile(owners={None: (3, 4, 0o700)}))
    (tmp_path / "aside").rename(tmp_path / "t-0")
    for now in (settings, load(tmp_path)):
        assert now.overrides("t") == {}
        assert now.log_config("t").flush_ms == 1000
        assert now.get_owner("t", None) == (3, 4, 0o700)
        assert now.get_owner("t", 0) is None
        assert now.overrides("t2") == {"flush.ms": "5"}
        assert now.get_owner("t2", 0) == (1, 2, 0o600)


def test_a_disk_that_refuses_changes_nothing(tmp_path: Path) -> None:
    class Full(Files):
        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            raise OSError(errno.ENOSPC, "full")

    (tmp_path / "t-0").mkdir()
    settings = Settings(Full(), str(tmp_path))
    with pytest.raises(OSError, match="full"):
        settings.change_topic("t", {"flush.ms": "5"})
    with pytest.raises(OSError, match="full"):
        settings.set_owner("t", None, 1, 2, 0o700)
    assert settings.log_config("t").flush_ms == 1000
    assert settings.get_owner("t", None) is None
    assert list(tmp_path.rglob("*")) == [tmp_path / "t-0"]


@given(st.text(max_size=60))
def test_any_text_is_settings_or_named(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("d")
    (directory / "kafkafs.properties").write_bytes(text.encode("utf-8", "surrogatepass"))
    lines = [line.strip() for line in text.split("\n")]
    if all(not line or line[0] in "#!" for line in lines):
        assert Settings(Files(), str(directory)).log_config("t") == LogConfig()
    else:
        with pytest.raises(InvalidConfig, match=r"line|UTF-8"):
            Settings(Files(), str(directory))
