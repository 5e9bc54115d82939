"""All settings: Kafka's names, defaults and rules for topics and for the daemon.

All of Kafka's topic settings are known, so that a listing is complete, also those without a meaning
for one log without replicas or tiers.  Two defaults differ: ``flush.ms`` is 1000, because there are
no replicas to get a lost second back from, and ``retention.ms`` is -1, because a file system
deletes nothing without being told (``LogConfig.java``, ``ServerLogConfigs.java``,
``CleanerConfig.java``).

Not here: the files that keep settings (``settings``), what the settings do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

KAFKA_RETENTION_MS = 7 * _DAY_MS
"""How long a broker keeps what it is not told how long to keep, in ms (``ServerLogConfigs``)."""

KAFKA_OFFSETS_RETENTION_MINUTES = 7 * 24 * 60
"""How long a broker keeps positions of groups that it is not told how long to keep."""

NO_POLICY = "none"
"""How an empty cleanup.policy is written, where an empty value means the default."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_POLICY = re.compile(r"[A-Za-z0-9._-]+(:.*)?")

# From a value's text to the value; ValueError says what would be right.
Parser = Callable[[str], Any]


# -- kinds of values -----------------------------------------------------------------------------


def whole_number(low: int, high: int) -> Parser:
    """The rule of a number within these bounds."""

    def parse(text: str) -> int:
        if _INTEGER.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


_int = functools.partial(whole_number, high=INT_MAX)
_long = functools.partial(whole_number, high=LONG_MAX)


def _double(is_right: Callable[[float], bool], words: str) -> Parser:
    """The rule of a number that Kafka writes as a double: 0.5, 1.7976931348623157E308."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_right(value):
            raise ValueError(words)
        return value

    return parse


_fraction = _double(lambda value: 0 <= value <= 1, "a number from 0 to 1")
_share = _double(lambda value: 0 < value <= 1, "a number above 0, to 1")
_positive = _double(lambda value: value > 0, "a number above 0")


# The words that a rule takes, where it takes no others.
_WORDS: dict[Parser, tuple[str, ...]] = {}


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    _WORDS[parse] = choices
    return parse


def _gzip_level(text: str) -> int:
    if re.fullmatch(r"-1|\+?0*[1-9]", text) is None:
        raise ValueError("a whole number from 1 to 9, or -1")
    return int(text)


def _policies(text: str) -> tuple[str, ...]:
    """A list without repetitions, which may be empty since Kafka 4.2: nothing, or ``none``."""
    listed = text not in ("", NO_POLICY)
    policies = dict.fromkeys(part.strip() for part in text.split(",")) if listed else {}
    if not policies.keys() <= {"delete", "compact"}:
        raise ValueError("a list of delete and compact, or none")
    return tuple(policies)


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("an absolute path")
    return text


def _policy_name(text: str) -> str:
    """NAME or NAME:ARGUMENT of a policy of retention."""
    if _POLICY.fullmatch(text) is None:
        raise ValueError("NAME or NAME:ARGUMENT of a retention policy")
    return text


_WORDS[_boolean] = ("false", "true")
_WORDS[_policies] = ("compact", "compact,delete", "delete", NO_POLICY)

# What may follow the number of a duration or of a size where people write one.
_UNITS = {
    ".ms": {"ms": 1, "s": 1000, "m": _MINUTE_MS, "h": _HOUR_MS, "d": _DAY_MS},
    ".bytes": {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
}
_WITH_UNIT = re.compile(r"([0-9]{1,19}) ?([A-Za-z]+)")


def without_unit(name: str, text: str) -> str:
    """A setting's value as Kafka has it: ``7d`` of ``retention.ms`` is ``604800000``.

    ValueError where it has a unit that the setting does not have.
    """
    match = _WITH_UNIT.fullmatch(text)
    units = next((units for suffix, units in _UNITS.items() if name.endswith(suffix)), None)
    if match is None or units is None:
        return text
    if match[2] not in units:
        raise ValueError(f"a number with one of the units {', '.join(units)}")
    return str(int(match[1]) * units[match[2]])


def format_value(value: Any) -> str:
    """A value as a properties file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) or NO_POLICY if isinstance(value, tuple) else str(value)


# -- the settings --------------------------------------------------------------------------------


class Synonym(NamedTuple):
    """A broker's name for a topic setting; its numbers times ``factor`` are the topic's."""

    name: str
    factor: int = 1
    negative_is_unlimited: bool = False


class Setting(NamedTuple):
    """One setting.  ``default`` None: not set, and not listed until it is."""

    name: str
    parse: Parser
    default: Any
    synonyms: tuple[Synonym, ...] = ()


def no_such_setting(name: str, known: Iterable[str]) -> str:
    """What to say of a name that no setting has, and which one may be meant."""
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=1)
    return f"there is no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else "")


def words_of(setting: Setting) -> tuple[str, ...]:
    """The words that its value may be; none where it is a number or any text."""
    return _WORDS.get(setting.parse, ())


def _topic(default: Any, parse: Parser, *synonyms: str | Synonym) -> Any:
    """A field of LogConfig that carries its rule and the broker's names for it."""
    named = tuple(Synonym(s) if isinstance(s, str) else s for s in synonyms)
    return dataclasses.field(default=default, metadata={"parse": parse, "synonyms": named})


def _retention(unit: str, factor: int) -> Synonym:
    return Synonym(f"log.retention.{unit}", factor, negative_is_unlimited=True)


@dataclasses.dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's settings; a field is named as the setting, with ``_`` for ``.``."""

    segment_bytes: int = _topic(1 << 30, _int(1 << 20), "log.segment.bytes")
    segment_ms: int = _topic(
        7 * _DAY_MS, _long(1), "log.roll.ms", Synonym("log.roll.hours", _HOUR_MS)
    )
    segment_jitter_ms: int = _topic(
        0, _long(0), "log.roll.jitter.ms", Synonym("log.roll.jitter.hours", _HOUR_MS)
    )
    # Kafka takes 4 and then fails to make a file for a first entry of 12 bytes.
    segment_index_bytes: int = _topic(10 << 20, _int(12), "log.index.size.max.bytes")
    index_interval_bytes: int = _topic(4096, _int(0), "log.index.interval.bytes")
    flush_messages: int = _topic(LONG_MAX, _long(1), "log.flush.interval.messages")
    flush_ms: int = _topic(
        1000, _long(0), "log.flush.interval.ms", "log.flush.scheduler.interval.ms"
    )
    retention_bytes: int = _topic(-1, _long(-LONG_MAX - 1), "log.retention.bytes")
    retention_ms: int = _topic(
        -1,
        _long(-1),
        _retention("ms", 1),
        _retention("minutes", _MINUTE_MS),
        _retention("hours", _HOUR_MS),
    )
    cleanup_policy: tuple[str, ...] = _topic(("delete",), _policies, "log.cleanup.policy")
    max_message_bytes: int = _topic(1_048_588, _int(0), "message.max.bytes")
    max_decompressed_message_bytes: int = _topic(
        INT_MAX - 8, whole_number(1, INT_MAX - 8), "max.decompressed.message.bytes"
    )
    delete_retention_ms: int = _topic(_DAY_MS, _long(0), "log.cleaner.delete.retention.ms")
    min_compaction_lag_ms: int = _topic(0, _long(0), "log.cleaner.min.compaction.lag.ms")
    max_compaction_lag_ms: int = _topic(LONG_MAX, _long(1), "log.cleaner.max.compaction.lag.ms")
    min_cleanable_dirty_ratio: float = _topic(0.5, _fraction, "log.cleaner.min.cleanable.ratio")
    file_delete_delay_ms: int = _topic(60_000, _long(0), "log.segment.delete.delay.ms")
    compression_type: str = _topic(
        "producer",
        _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
    )
    compression_gzip_level: int = _topic(-1, _gzip_level, "compression.gzip.level")
    compression_lz4_level: int = _topic(9, whole_number(1, 17), "compression.lz4.level")
    compression_zstd_level: int = _topic(3, whole_number(-131072, 22), "compression.zstd.level")
    preallocate: bool = _topic(False, _boolean, "log.preallocate")
    message_timestamp_type: str = _topic(
        "CreateTime", _one_of("CreateTime", "LogAppendTime"), "log.message.timestamp.type"
    )
    message_timestamp_before_max_ms: int = _topic(
        LONG_MAX, _long(0), "log.message.timestamp.before.max.ms"
    )
    message_timestamp_after_max_ms: int = _topic(
        _HOUR_MS, _long(0), "log.message.timestamp.after.max.ms"
    )
    min_insync_replicas: int = _topic(1, _int(1), "min.insync.replicas")
    unclean_leader_election_enable: bool = _topic(False, _boolean, "unclean.leader.election.enable")
    errors_deadletterqueue_group_enable: bool = _topic(False, _boolean)
    remote_storage_enable: bool = _topic(False, _boolean)
    remote_log_copy_disable: bool = _topic(False, _boolean)
    remote_log_delete_on_disable: bool = _topic(False, _boolean)
    remote_copy_lag_ms: int = _topic(0, _long(-1), "log.remote.copy.lag.ms")
    remote_copy_lag_bytes: int = _topic(-1, _long(-1), "log.remote.copy.lag.bytes")
    local_retention_ms: int = _topic(-2, _long(-2), "log.local.retention.ms")
    local_retention_bytes: int = _topic(-2, _long(-2), "log.local.retention.bytes")
    kafkafs_retention_policy: str = _topic("kafka", _policy_name, "kafkafs.retention.policy")
    unknown: tuple[str, ...] = ()
    """Names of deciding settings that are not known: while there are any, nothing is deleted by age
    or size, and nothing compacted.  Not itself a setting."""

    @property
    def is_compacted(self) -> bool:
        """Whether only the latest record of each key need stay."""
        return "compact" in self.cleanup_policy

    @property
    def may_be_cleaned(self) -> bool:
        """Whether a cleaner may remove records; not while a setting that decides is unknown."""
        return self.is_compacted and not self.unknown


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The daemon's settings; fields are named as in LogConfig."""

    num_partitions: int = _topic(1, _int(1))
    delete_topic_enable: bool = _topic(True, _boolean)
    num_recovery_threads_per_data_dir: int = _topic(2, _int(1))
    log_retention_check_interval_ms: int = _topic(300_000, _long(1))
    log_flush_offset_checkpoint_interval_ms: int = _topic(60_000, _int(0))
    producer_id_expiration_ms: int = _topic(_DAY_MS, _int(1))
    log_initial_task_delay_ms: int = _topic(30_000, _long(0))
    log_cleaner_enable: bool = _topic(True, _boolean)
    log_cleaner_backoff_ms: int = _topic(15_000, _long(0))
    log_cleaner_dedupe_buffer_size: int = _topic(128 << 20, _long(1 << 20))
    log_cleaner_io_buffer_load_factor: float = _topic(0.9, _share)
    log_cleaner_io_max_bytes_per_second: float = _topic(sys.float_info.max, _positive)
    offsets_topic_num_partitions: int = _topic(50, _int(1))
    offsets_topic_segment_bytes: int = _topic(100 << 20, _int(1 << 20))
    offsets_retention_minutes: int | None = _topic(None, _int(1))
    offsets_retention_check_interval_ms: int = _topic(600_000, _long(1))
    kafkafs_broker_config: str | None = _topic(None, _path)
    kafkafs_metadata_log_dir: str | None = _topic(None, _path)
    kafkafs_check_interval_ms: int = _topic(600_000, _long(1))
    kafkafs_staged_retention_ms: int = _topic(_DAY_MS, _long(-1))
    kafkafs_txn_retention_ms: int = _topic(30 * _DAY_MS, _long(-1))
    kafkafs_reserve_bytes: int = _topic(16 << 20, _long(0))


def _settings_of(config: type[LogConfig] | type[BrokerConfig]) -> dict[str, Setting]:
    settings = {}
    for field in dataclasses.fields(config):
        rule = field.metadata
        if not rule:
            continue
        name = field.name.replace("_", ".")
        settings[name] = Setting(name, rule["parse"], field.default, rule["synonyms"])
    return settings


# Overrides segment.bytes, without its lower limit: Kafka's own tests need small segments too.
INTERNAL_SEGMENT_BYTES = Setting("internal.segment.bytes", _int(14), None)

TOPIC_SETTINGS: Mapping[str, Setting] = {
    **_settings_of(LogConfig),
    INTERNAL_SEGMENT_BYTES.name: INTERNAL_SEGMENT_BYTES,
}
BROKER_SETTINGS: Mapping[str, Setting] = _settings_of(BrokerConfig)
SYNONYMS = {
    synonym.name: (setting, synonym)
    for setting in TOPIC_SETTINGS.values()
    for synonym in setting.synonyms
}

# The settings that decide whether something is deleted, by what cleanup.policy has.
DECIDES_DELETION = ("cleanup.policy", "retention.ms", "retention.bytes")
DECIDES_COMPACTION = ("cleanup.policy", "min.compaction.lag.ms", "delete.retention.ms")
DECISIVE = frozenset(DECIDES_DELETION + DECIDES_COMPACTION)

# Says of a broker's topic whether a part of its log may lie in remote storage (KIP-405).  No
# setting of a broker is its default.
REMOTE_STORAGE = "remote.storage.enable"

# Those of them that Kafka sets on its internal topics (``paths.INTERNAL_TOPICS``)
# (``GroupCoordinatorConfig``, ``TransactionLogConfig``, ``ShareCoordinatorConfig``).
INTERNAL_TOPIC_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "__consumer_offsets": {"cleanup.policy": ("compact",)},
    "__transaction_state": {"cleanup.policy": ("compact",)},
    "__share_group_state": {"cleanup.policy": ("delete",), "retention.ms": -1},
}
