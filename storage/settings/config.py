"""All settings: Kafka's names, defaults and rules for topics and for the daemon.

All of Kafka's topic settings are known, so that a listing is complete, also those without a meaning
for one log without replicas or tiers. Two defaults differ: `flush.ms` is 1000, because there are no
replicas to get a lost second back from, and `retention.ms` is -1, because a file system deletes
nothing without being told (`LogConfig.java`, `ServerLogConfigs.java`, `CleanerConfig.java`).

Not here: the files that keep settings (`settings`), what the settings do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from storage import units

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

KAFKA_RETENTION_MS = 7 * _DAY_MS
"""A broker's default for retention, in ms (`ServerLogConfigs`)."""

KAFKA_OFFSETS_RETENTION_MINUTES = 7 * 24 * 60
"""A broker's default for the retention of committed offsets."""

NO_POLICY = "none"
"""The text of an empty cleanup.policy, because an empty value means the default."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_POLICY = re.compile(r"[A-Za-z0-9._-]+(:.*)?")

# Returns the value of a text. Errors: ValueError with the valid form.
Parser = Callable[[str], Any]


# -- kinds of values -----------------------------------------------------------------------------


def whole_number(low: int, high: int) -> Parser:
    """Return the rule of a number within these bounds."""

    def parse(text: str) -> int:
        if _INTEGER.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


_int = functools.partial(whole_number, high=INT_MAX)
_long = functools.partial(whole_number, high=LONG_MAX)


def _double(is_right: Callable[[float], bool], words: str) -> Parser:
    """Return the rule of a number that Kafka writes as a double: 0.5, 1.7976931348623157E308."""

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


# The words that a rule accepts, if it accepts nothing else.
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
    """Return a list without repetitions, which may be empty since Kafka 4.2: nothing, or `none`."""
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
    """Return NAME or NAME:ARGUMENT of a policy of retention."""
    if _POLICY.fullmatch(text) is None:
        raise ValueError("NAME or NAME:ARGUMENT of a retention policy")
    return text


_WORDS[_boolean] = ("false", "true")
_WORDS[_policies] = ("compact", "compact,delete", "delete", NO_POLICY)


def without_unit(name: str, text: str) -> str:
    """Return a setting's value as Kafka has it: `7d` of `retention.ms` is `604800000`. Errors:
    ValueError where it has a unit that the setting does not have.
    """
    if units.has_unit(text):
        if name.endswith(".ms"):
            return str(units.duration_ms(text))
        if name.endswith(".bytes"):
            return str(units.size_bytes(text))
    return text


def format_value(value: Any) -> str:
    """Return a value as a properties file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) or NO_POLICY if isinstance(value, tuple) else str(value)


# -- the settings --------------------------------------------------------------------------------


class Synonym(NamedTuple):
    """A broker's name for a topic setting; its numbers times `factor` are the topic's."""

    name: str
    factor: int = 1
    negative_is_unlimited: bool = False


class Setting(NamedTuple):
    """One setting. `default` None: not set, and not listed until it is."""

    name: str
    parse: Parser
    default: Any
    synonyms: tuple[Synonym, ...] = ()
    meaning: str = ""
    """Markdown, for `docs/reference/settings.md`."""


def no_such_setting(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the closest known one."""
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=1)
    return f"there is no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else "")


def words_of(setting: Setting) -> tuple[str, ...]:
    """Return the words that its value may be; none where it is a number or any text."""
    return _WORDS.get(setting.parse, ())


_NO_REPLICAS = "No effect: logs have no replicas here."
_NO_TIERS = "No effect: logs have no remote tier here."


def _setting(default: Any, parse: Parser, meaning: str, *synonyms: str | Synonym) -> Any:
    """Return a field that carries its rule, its meaning, and for a topic the broker's names for
    it.
    """
    named = tuple(Synonym(s) if isinstance(s, str) else s for s in synonyms)
    carried = {"parse": parse, "synonyms": named, "meaning": meaning}
    return dataclasses.field(default=default, metadata=carried)


def _retention(unit: str, factor: int) -> Synonym:
    return Synonym(f"log.retention.{unit}", factor, negative_is_unlimited=True)


@dataclasses.dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's settings; a field is named as the setting, with `_` for `.`."""

    segment_bytes: int = _setting(
        1 << 30,
        _int(1 << 20),
        "The largest size of a segment. An append that does not fit begins a new segment.",
        "log.segment.bytes",
    )
    segment_ms: int = _setting(
        7 * _DAY_MS,
        _long(1),
        "If the active segment is this old, the next append begins a new segment.",
        "log.roll.ms",
        Synonym("log.roll.hours", _HOUR_MS),
    )
    segment_jitter_ms: int = _setting(
        0,
        _long(0),
        "Each segment is closed earlier than `segment.ms` says, by a random time of at most this "
        "length. So not all logs begin a new segment at once.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", _HOUR_MS),
    )
    # Kafka takes 4 and then fails to make a file for a first entry of 12 bytes.
    segment_index_bytes: int = _setting(
        10 << 20,
        _int(12),
        "The largest size of an index file. When the index is full, the segment is closed.",
        "log.index.size.max.bytes",
    )
    index_interval_bytes: int = _setting(
        4096,
        _int(0),
        "Bytes of log between two entries of the offset index.",
        "log.index.interval.bytes",
    )
    flush_messages: int = _setting(
        LONG_MAX,
        _long(1),
        "After this number of records, a log is flushed to the disk. With 1, each append is on the "
        "disk before `write()` returns.",
        "log.flush.interval.messages",
    )
    flush_ms: int = _setting(
        1000,
        _long(0),
        "The longest time between an append and its flush to the disk.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
    retention_bytes: int = _setting(
        -1,
        _long(-LONG_MAX - 1),
        "Retention deletes the oldest segment if the other segments of the partition have at least "
        "this many bytes. -1: no limit.",
        "log.retention.bytes",
    )
    retention_ms: int = _setting(
        -1,
        _long(-1),
        "Retention deletes a segment if its newest record is older than this. If the records have "
        "no timestamp, the modification time of the log file counts. -1: no limit.",
        _retention("ms", 1),
        _retention("minutes", _MINUTE_MS),
        _retention("hours", _HOUR_MS),
    )
    cleanup_policy: tuple[str, ...] = _setting(
        ("delete",),
        _policies,
        "`delete`, `compact`, `compact,delete`, or `none` (Kafka's empty list). With `none`, "
        "nothing is deleted by age or size, and nothing is compacted.",
        "log.cleanup.policy",
    )
    max_message_bytes: int = _setting(
        1_048_588,
        _int(0),
        "The largest size of a batch, as it is stored. A larger line fails with EMSGSIZE. The "
        "value must not exceed the mount option `memory`, or 64 MiB without a mount.",
        "message.max.bytes",
    )
    max_decompressed_message_bytes: int = _setting(
        INT_MAX - 8,
        whole_number(1, INT_MAX - 8),
        "The largest size of a decompressed record. If a compressed batch of a log has a larger "
        "record, the log is not compacted until you raise this setting.",
        "max.decompressed.message.bytes",
    )
    delete_retention_ms: int = _setting(
        _DAY_MS,
        _long(0),
        "A tombstone is a record with a key and a null value: it deletes the key. After "
        "compaction, tombstones and transaction markers stay in the log for this time.",
        "log.cleaner.delete.retention.ms",
    )
    min_compaction_lag_ms: int = _setting(
        0,
        _long(0),
        "Records younger than this are not compacted.",
        "log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = _setting(
        LONG_MAX,
        _long(1),
        "Records older than this are compacted, even if the uncompacted share of the log is small.",
        "log.cleaner.max.compaction.lag.ms",
    )
    min_cleanable_dirty_ratio: float = _setting(
        0.5,
        _fraction,
        "A log is compacted if the share of its bytes that are not compacted yet is larger than "
        "this.",
        "log.cleaner.min.cleanable.ratio",
    )
    file_delete_delay_ms: int = _setting(
        60_000,
        _long(0),
        "The files of deleted and replaced segments stay as `*.deleted` for this time, because "
        "processes may still read them. During this time, a deleted topic can be undeleted.",
        "log.segment.delete.delay.ms",
    )
    compression_type: str = _setting(
        "producer",
        _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "With `gzip`, `snappy`, `lz4` or `zstd`, each `write()` becomes one compressed batch, so "
        "large writes compress best. `uncompressed`: nothing is compressed. `producer`: lines are "
        "stored uncompressed, and appended batches keep their codec.",
        "compression.type",
    )
    compression_gzip_level: int = _setting(
        -1, _gzip_level, "Level of gzip: 1 to 9, or -1.", "compression.gzip.level"
    )
    compression_lz4_level: int = _setting(
        9, whole_number(1, 17), "Level of lz4: 1 to 17.", "compression.lz4.level"
    )
    compression_zstd_level: int = _setting(
        3, whole_number(-131072, 22), "Level of zstd: -131072 to 22.", "compression.zstd.level"
    )
    preallocate: bool = _setting(
        False,
        _boolean,
        "A new segment reserves all of its space on the disk at once.",
        "log.preallocate",
    )
    message_timestamp_type: str = _setting(
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "`CreateTime`: records keep the timestamp of their writer. `LogAppendTime`: each record "
        "gets the time of its append.",
        "log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = _setting(
        LONG_MAX,
        _long(0),
        "How old a timestamp can be. A record with an older timestamp is refused (EINVAL).",
        "log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = _setting(
        _HOUR_MS,
        _long(0),
        "How far a timestamp can be in the future. A record with a later timestamp is refused "
        "(EINVAL).",
        "log.message.timestamp.after.max.ms",
    )
    min_insync_replicas: int = _setting(1, _int(1), _NO_REPLICAS, "min.insync.replicas")
    unclean_leader_election_enable: bool = _setting(
        False, _boolean, _NO_REPLICAS, "unclean.leader.election.enable"
    )
    errors_deadletterqueue_group_enable: bool = _setting(False, _boolean, "No effect.")
    remote_storage_enable: bool = _setting(
        False,
        _boolean,
        "`true`: this topic of a broker is tiered, so part of its log is in remote storage. A "
        "change takes effect at the next start. No effect on topics that kafkafs has created.",
    )
    remote_log_copy_disable: bool = _setting(False, _boolean, _NO_TIERS)
    remote_log_delete_on_disable: bool = _setting(False, _boolean, _NO_TIERS)
    remote_copy_lag_ms: int = _setting(0, _long(-1), _NO_TIERS, "log.remote.copy.lag.ms")
    remote_copy_lag_bytes: int = _setting(-1, _long(-1), _NO_TIERS, "log.remote.copy.lag.bytes")
    local_retention_ms: int = _setting(-2, _long(-2), _NO_TIERS, "log.local.retention.ms")
    local_retention_bytes: int = _setting(-2, _long(-2), _NO_TIERS, "log.local.retention.bytes")
    kafkafs_retention_policy: str = _setting(
        "kafka",
        _policy_name,
        "The rule by which retention deletes segments. `kafka`: by `retention.ms` and "
        "`retention.bytes`.",
        "kafkafs.retention.policy",
    )
    kafkafs_repack: str = _setting(
        "off",
        _one_of("off", "zstd", "lz4", "gzip", "snappy"),
        "With `zstd`, `lz4`, `gzip` or `snappy`, small batches of a closed segment are joined into "
        "compressed ones of up to 256 KiB of plain bytes. The text of all files stays as it is. "
        "Only for topics that kafkafs has created, with `cleanup.policy=delete`.",
        "kafkafs.repack",
    )
    kafkafs_words: str = _setting(
        "off",
        _one_of("off", "words"),
        "With `words`, the daemon builds a `.words` file for each closed segment. With these files "
        "`kafkafs grep` and conditions skip the parts of a log in which a word does not occur. "
        "With `off`, existing files stay, and `kafkafs words --remove` deletes them. Only for "
        "topics that kafkafs has created.",
        "kafkafs.words",
    )
    unknown: tuple[str, ...] = ()
    """Names of deciding settings that are not known: while there are any, nothing is deleted by age
    or size, and nothing compacted. Not itself a setting.
    """

    @property
    def is_compacted(self) -> bool:
        """Whether records with a later record of their key may be removed."""
        return "compact" in self.cleanup_policy

    @property
    def may_be_cleaned(self) -> bool:
        """Whether a cleaner may remove records; False while a deciding setting is unknown."""
        return self.is_compacted and not self.unknown

    @property
    def may_be_repacked(self) -> bool:
        """Whether the batches of sealed segments may be joined."""
        is_deleted = self.cleanup_policy == ("delete",)
        return self.kafkafs_repack != "off" and is_deleted and not self.unknown

    @property
    def has_words(self) -> bool:
        """Whether sealed segments get a `.words` file."""
        return self.kafkafs_words != "off"


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The daemon's settings; fields are named as in LogConfig."""

    num_partitions: int = _setting(
        1,
        _int(1),
        "Number of partitions of a new topic, if the command that creates it gives no number. "
        "`mkdir` never gives a number.",
    )
    delete_topic_enable: bool = _setting(
        True, _boolean, "With `false`, topics cannot be deleted: `rmdir` fails with EPERM."
    )
    num_recovery_threads_per_data_dir: int = _setting(
        2,
        _int(1),
        "Number of threads that recover logs after a crash. A single thread opens all small logs: "
        "those with one segment of at most 64 KiB.",
    )
    log_retention_check_interval_ms: int = _setting(
        300_000, _long(1), "Time between two runs of retention."
    )
    log_flush_offset_checkpoint_interval_ms: int = _setting(
        60_000, _int(0), "Time between two writes of the checkpoint files."
    )
    producer_id_expiration_ms: int = _setting(
        _DAY_MS,
        _int(1),
        "A log forgets the state of a producer that has written nothing for this time.",
    )
    log_initial_task_delay_ms: int = _setting(
        30_000, _long(0), "Time between the mount and the first run of retention."
    )
    log_cleaner_enable: bool = _setting(
        True,
        _boolean,
        "With `false`, logs are compacted only by `.control/compaction` and `kafkafs compact`.",
    )
    log_cleaner_backoff_ms: int = _setting(
        15_000, _long(0), "Pause of the cleaner while no log has to be compacted."
    )
    log_cleaner_dedupe_buffer_size: int = _setting(
        128 << 20, _long(1 << 20), "Size of the cleaner's map of keys, in bytes."
    )
    log_cleaner_io_buffer_load_factor: float = _setting(
        0.9,
        _share,
        "A round of compaction ends when the map of keys is this full, from 0 to 1.",
    )
    log_cleaner_io_max_bytes_per_second: float = _setting(
        sys.float_info.max,
        _positive,
        "Limit of the bytes that the cleaner reads and writes per second.",
    )
    offsets_topic_num_partitions: int = _setting(
        50,
        _int(1),
        "Number of partitions of `__consumer_offsets`, which the first commit of a group creates.",
    )
    offsets_topic_segment_bytes: int = _setting(
        100 << 20, _int(1 << 20), "The `segment.bytes` of the topic `__consumer_offsets`."
    )
    offsets_retention_minutes: int | None = _setting(
        None,
        _int(1),
        "Minutes for which a committed offset is kept after its commit. If this is not set, "
        "committed offsets are kept for ever. There is one exception: in a broker's directory "
        "whose `server.properties` is known, the broker's value applies until `kafkafs detach`. If "
        "the broker has no value, this is 10080.",
    )
    offsets_retention_check_interval_ms: int = _setting(
        600_000,
        _long(1),
        "Time between two searches for committed offsets that must be removed, because they have "
        "expired or their topic is deleted.",
    )
    kafkafs_broker_config: str | None = _setting(
        None,
        _path,
        "Path of the broker's `server.properties`. `kafkafs config DATA --broker-config FILE` "
        "sets it.",
    )
    kafkafs_metadata_log_dir: str | None = _setting(
        None,
        _path,
        "The directory with the broker's `__cluster_metadata-0`, if it is not the data directory. "
        "`kafkafs config DATA --metadata-log-dir DIR` sets it.",
    )
    kafkafs_check_interval_ms: int = _setting(
        600_000,
        _long(1),
        "Time between two checks. A check reads appended records back from the disk.",
    )
    kafkafs_staged_retention_ms: int = _setting(
        _DAY_MS,
        _long(-1),
        "Spark writes batches to staged files before the daemon appends them. If no request to the "
        "daemon names a staged file, the file is removed after this time. -1: never.",
    )
    kafkafs_txn_retention_ms: int = _setting(
        30 * _DAY_MS,
        _long(-1),
        "kafkafs remembers the `txnId` of a Spark write, and the name of an import, for this time. "
        "During this time, a repeated write or import appends nothing. -1: for ever.",
    )
    kafkafs_reserve_bytes: int = _setting(
        16 << 20,
        _long(0),
        "Bytes of disk space to reserve for operations that free space. 0: none.",
    )


def _settings_of(config: type[LogConfig] | type[BrokerConfig]) -> dict[str, Setting]:
    settings = {}
    for field in dataclasses.fields(config):
        if field.metadata:
            name = field.name.replace("_", ".")
            settings[name] = Setting(name, default=field.default, **field.metadata)
    return settings


# Overrides segment.bytes, without its lower limit: Kafka's own tests need small segments too.
INTERNAL_SEGMENT_BYTES = Setting(
    "internal.segment.bytes",
    _int(14),
    None,
    meaning="Overrides `segment.bytes`, and can be less than 1 MiB. For tests.",
)

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

# The settings that decide about deletion, by the words of cleanup.policy.
DECIDES_DELETION = ("cleanup.policy", "retention.ms", "retention.bytes")
DECIDES_COMPACTION = ("cleanup.policy", "min.compaction.lag.ms", "delete.retention.ms")
DECISIVE = frozenset(DECIDES_DELETION + DECIDES_COMPACTION)

# Whether a part of a broker's topic may lie in remote storage (KIP-405). No setting of a broker is
# its default.
REMOTE_STORAGE = "remote.storage.enable"

# Those of them that Kafka sets on its internal topics (`paths.INTERNAL_TOPICS`)
# (`GroupCoordinatorConfig`, `TransactionLogConfig`, `ShareCoordinatorConfig`).
INTERNAL_TOPIC_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "__consumer_offsets": {"cleanup.policy": ("compact",)},
    "__transaction_state": {"cleanup.policy": ("compact",)},
    "__share_group_state": {"cleanup.policy": ("delete",), "retention.ms": -1},
}
