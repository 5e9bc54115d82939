"""The settings of a data directory, and of its topics.

``kafkafs.properties`` in the data directory is written by people: defaults for all topics and for
the daemon, by Kafka's *broker* names (``log.retention.hours=24``).  A topic's settings, by Kafka's
*topic* names (``retention.ms=1000``), and its owner lie with the topic (``setting_files``), and are
read when they are first needed.  A broker ignores both.

A topic's value is its override, else the first of the broker's names that is set (Kafka's order: ms
before minutes before hours), else the default (``ServerTopicConfigSynonyms.java``,
``LogConfig.java``).  A wrong name or value is InvalidConfig, which names file and line: a setting
that was silently ignored would be noticed when the data is gone.

In a broker's directory its topics keep the broker's settings (``broker_settings``): a value is our
override, else the topic's at the broker, else the one of ``kafkafs.properties`` (except for
settings that decide whether something is deleted: those are for topics made here), else the
broker's default, else Kafka's.  ``LogConfig.unknown`` names the deciding settings that are *not
known*, and nothing of that topic is deleted or compacted.

Not here: which settings there are (``config``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from storage import paths
from storage.errors import CorruptCheckpoint, InvalidConfig, UnknownTopicOrPartition
from storage.files import Files
from storage.plain_forms import plain_forms
from storage.settings import broker_settings
from storage.settings.broker_settings import PROTECTING, BrokerSettings
from storage.settings.config import (
    BROKER_SETTINGS,
    DECIDES_COMPACTION,
    DECIDES_DELETION,
    DECISIVE,
    INTERNAL_SEGMENT_BYTES,
    INTERNAL_TOPIC_SETTINGS,
    KAFKA_OFFSETS_RETENTION_MINUTES,
    KAFKA_RETENTION_MS,
    LONG_MAX,
    SYNONYMS,
    TOPIC_SETTINGS,
    BrokerConfig,
    LogConfig,
    Setting,
    format_value,
    no_such_setting,
    whole_number,
    without_unit,
)
from storage.settings.setting_files import (
    OTHER_PARTITIONS,
    TOPIC_FILE,
    Line,
    TopicFile,
    TopicOwner,
    parse,
    read_lines,
    read_topic_file,
)

SETTINGS_FILE = "kafkafs.properties"

_LARGEST = "max.message.bytes"
_OFFSETS_RETENTION = "offsets.retention.minutes"
# How many topics a line names.
_NAMED = 10
_BY_US = "set on the topic"
_BY_BROKER = "set on the topic at its broker"


class _Sourced(NamedTuple):
    """A setting's value and where it comes from."""

    value: Any
    source: str
    is_known: bool = True


Check = Callable[[LogConfig], None]
"""Raises InvalidConfig where a topic's settings are wrong."""


def no_check(config: LogConfig) -> None:
    """A ``Check`` that refuses nothing."""


def parse_written(name: str, text: str | None) -> Any:
    """The value of a topic's setting from a user's text, which may have a unit; None: the default.

    InvalidConfig where topics have no such setting, or it may not have that value; a batch may not
    be larger than the budget of memory.
    """
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(no_such_setting(name, TOPIC_SETTINGS))
    if text is None:
        return None
    try:
        plain = without_unit(name, text.strip())
    except ValueError as error:
        raise InvalidConfig(f"{name}={text} is not {error}") from None
    value = parse(setting, name, plain)
    if name == _LARGEST and value > plain_forms.budget:
        raise InvalidConfig(
            f"{name}={text} is more than the {plain_forms.budget} bytes of memory that users may "
            "have taken (mount -o memory=BYTES)"
        )
    return value


def set_default(files: Files, data_dir: str, name: str, value: str) -> None:
    """Set a line of ``kafkafs.properties``, and keep the others; durable.

    InvalidConfig where the file would not be right then, OSError: nothing has changed.
    """
    path = os.path.join(data_dir, SETTINGS_FILE)
    Settings(files, data_dir)
    parse(BROKER_SETTINGS[name], name, value)
    try:
        lines = files.read_whole(path).decode().splitlines()
    except FileNotFoundError:
        lines = []
    kept = [line for line in lines if line.partition("=")[0].strip() != name]
    text = "".join(f"{line}\n" for line in [*kept, f"{name}={value}"])
    files.replace_atomically(path, text.encode())


class Settings:
    """The settings of a data directory.  One thread changes them."""

    def __init__(
        self, files: Files, data_dir: str, check: Check = no_check, *, keeps_faulty: bool = False
    ) -> None:
        """Read the data directory's file; a missing one sets nothing.

        InvalidConfig names file and line; with ``keeps_faulty`` it becomes the ``fault`` of these
        settings instead.  A topic's file is read when it is needed: InvalidConfig then, or with
        ``keeps_faulty`` the fault of that topic (``fault_of``).

        ``check`` is called for all settings that are, or are to be, in force.
        """
        self._files = files
        self._data_dir = data_dir
        self._check = check
        self._keeps_faulty = keeps_faulty
        self._topics: dict[str, TopicFile] = {}
        self._configs: dict[str, LogConfig] = {}
        # The lowest partitions of topics whose partition 0 is not here.
        self._lowest: dict[str, int] = {}
        # The known ids of the topics that lie here.
        self._ids: dict[str, str] = {}
        self.fault: InvalidConfig | None = None
        """Why the data directory's file does not count: then nothing of any topic is deleted, and
        no setting changed.
        """
        path = os.path.join(data_dir, SETTINGS_FILE)
        try:
            given: dict[str, Line] = {}
            with contextlib.suppress(FileNotFoundError):
                given = {line.name: line for line in read_lines(files, path)}
            self._use(given)
            self._check_whole(self._plain, path)
        except InvalidConfig as error:
            if not keeps_faulty:
                raise
            self.fault = error
            self._use({})

    def _use(self, given: Mapping[str, Line]) -> None:
        """Use these lines of the data directory's file.  InvalidConfig."""
        self.given = {name: line.value for name, line in given.items()}
        """The lines of the data directory's settings file, as they stand there."""
        self.broker = BrokerConfig(**_daemon_values(given))
        ours = _from_synonyms(
            {
                name: _Sourced(_synonym_value(name, line.value, line), f"{name} in {SETTINGS_FILE}")
                for name, line in given.items()
                if name in SYNONYMS
            }
        )
        self._defaults = {**_standard(), **ours}
        # For the many topics that were made here and have no settings.
        self._plain = _config_of(self._defaults)
        self._their_defaults: dict[str, _Sourced] = {}
        self._protected: dict[str, str] = {}
        self.notes: list[str] = []
        """Settings that do not count, and why."""
        self._theirs = broker_settings.read(
            *(self._files, self._data_dir),
            self.broker.kafkafs_broker_config,
            self.broker.kafkafs_metadata_log_dir,
        )
        if self._theirs is not None:
            self._their_defaults = _their_defaults(self._theirs, ours)
            protecting = _protecting(self._theirs, given)
            self._protected = {name: self._theirs.defaults[name].source for name in protecting}
            fields = {name.replace(".", "_"): value for name, value in protecting.items()}
            self.broker = replace(self.broker, **fields)
            self.notes = [
                f"{ours[name].source} does not count for a broker's topics: they keep what "
                f"their broker has set, unless {name} is set on the topic"
                for name in DECISIVE & ours.keys()
            ]

    # -- topics' files -------------------------------------------------------------------------

    def _topic(self, topic: str) -> TopicFile:
        """A topic's file; an empty one for a topic that does not exist."""
        found = self._topics.get(topic)
        if found is None:
            found = self._read_topic(topic)
            if found is not None:
                self._topics[topic] = found
        return found or TopicFile()

    def _read_topic(self, topic: str) -> TopicFile | None:
        """None where there is no such topic."""
        path: str | None = self._path_in(topic, 0)
        try:
            try:
                found = read_topic_file(self._files, self._path_in(topic, 0))
            except FileNotFoundError:
                path = self._path(topic)
                if path is None:
                    return None
                found = TopicFile()
                with contextlib.suppress(FileNotFoundError):
                    found = read_topic_file(self._files, path)
            in_force = self._in_force(topic, found.overrides, is_known=True)
            self._check_whole(_config_of(in_force), f"{path}, topic {topic}")
        except InvalidConfig as error:
            if not self._keeps_faulty:
                raise
            return TopicFile(fault=error)
        return found

    def _path_in(self, topic: str, partition: int) -> str:
        directory = paths.partition_directory(topic, partition)
        return os.path.join(self._data_dir, directory, TOPIC_FILE)

    def _path(self, topic: str) -> str | None:
        """The path of a topic's file, which need not exist; None where there is no such topic."""
        first = self._path_in(topic, 0)
        if self._files.exists(os.path.dirname(first)):
            return first
        if topic not in self._lowest:
            found = paths.partitions_in(self._files.scan(self._data_dir))
            self._lowest = {each: numbers[0] for each, numbers in found.items()}
        lowest = self._lowest.get(topic)
        return None if lowest is None else self._path_in(topic, lowest)

    def begin(self, topic: str, directory: str, begun: TopicFile) -> None:
        """Begin a new topic.

        ``directory``: its first partition's, which still has another name.  OSError.
        """
        if begun.owners or begun.overrides:
            path = os.path.join(directory, TOPIC_FILE)
            self._files.replace_atomically(path, begun.text().encode())
        self.forget(topic)
        self._topics[topic] = begun

    def recall(self, topic: str, directory: str) -> None:
        """Use the settings of a deleted topic, which is about to come back.

        ``directory``: its first partition's, which still has another name.  InvalidConfig, OSError.
        """
        self.forget(topic)
        recalled = TopicFile()
        with contextlib.suppress(FileNotFoundError):
            recalled = read_topic_file(self._files, os.path.join(directory, TOPIC_FILE))
        self._topics[topic] = recalled

    def forget(self, topic: str) -> None:
        """Forget a topic: it is gone, or another one may get its name."""
        self._topics.pop(topic, None)
        self._configs.pop(topic, None)
        self._lowest.pop(topic, None)

    def fault_of(self, topic: str) -> InvalidConfig | None:
        """Why a topic's settings are unknown: then nothing of it is deleted, no setting changed."""
        return self.fault or self._topic(topic).fault

    # -- reading -------------------------------------------------------------------------------

    @property
    def is_brokers(self) -> bool:
        """Whether a broker has written the directory, and may come back to it."""
        return self._theirs is not None and not self._theirs.is_detached

    @property
    def offsets_partitions(self) -> int:
        """How many partitions ``__consumer_offsets`` has at its broker; 0: not known."""
        return 0 if self._theirs is None else self._theirs.offsets_partitions

    @property
    def offsets_retention_minutes(self) -> int | None:
        """How long positions of groups are kept, None for ever: as offsets.retention.minutes says,
        else in a broker's directory as its broker keeps them.
        """
        minutes = self.broker.offsets_retention_minutes
        if minutes is not None or self._theirs is None or self._theirs.is_detached:
            return minutes
        given = self._theirs.defaults.get(_OFFSETS_RETENTION)
        if self._theirs.defaults_fault is not None:
            return None
        if given is None:
            return KAFKA_OFFSETS_RETENTION_MINUTES
        with contextlib.suppress(InvalidConfig):
            found: int = parse(BROKER_SETTINGS[_OFFSETS_RETENTION], _OFFSETS_RETENTION, given.text)
            return found
        return None

    def identify(self, topic: str, topic_id: str) -> None:
        """Say which topic has the name here: the broker's settings of another one, which had the
        name later or before, do not count.
        """
        if self._theirs is not None and topic_id and self._ids.get(topic) != topic_id:
            self._ids[topic] = topic_id
            self._configs.pop(topic, None)

    def id_at_broker(self, topic: str) -> str:
        """The id that a topic has in the broker's metadata log; empty where it has none there."""
        known = None if self._theirs is None else self._theirs.topics.get(topic)
        return "" if known is None else known.id

    def is_brokers_topic(self, topic: str) -> bool:
        """Whether a broker has made a topic, or may have."""
        if self._theirs is None or not self._theirs.is_detached:
            return self._theirs is not None
        known, topic_id = self._theirs.topics.get(topic), self._ids.get(topic)
        return known is not None and not (known.id and topic_id and known.id != topic_id)

    def log_config(self, topic: str) -> LogConfig:
        """The settings in force for a topic, which need not exist."""
        config = self._configs.get(topic)
        if config is None:
            overrides, is_known = self._topic(topic).overrides, self.fault_of(topic) is None
            is_special = topic in INTERNAL_TOPIC_SETTINGS or self.is_brokers_topic(topic)
            if overrides or is_special or not is_known:
                config = _config_of(self._in_force(topic, overrides, is_known=is_known))
            else:
                config = self._plain
            if topic in self._topics:
                self._configs[topic] = config
        return config

    def overrides(self, topic: str) -> dict[str, str]:
        """The topic's own settings by name, ours or its broker's.  CorruptCheckpoint: unknown."""
        self.check_known(topic)
        ours = _each(self._topic(topic).overrides, _BY_US)
        listing = _listing({**self._set_at_broker(topic), **ours})
        return {name: value for name, value, _ in sorted(listing)}

    def explain(self, topic: str) -> list[tuple[str, str, str]]:
        """(name, value, source) of every topic setting.  CorruptCheckpoint where unknown."""
        self.check_known(topic)
        in_force = self._in_force(topic, self._topic(topic).overrides, is_known=True)
        return _listing({name: in_force[name] for name in TOPIC_SETTINGS})

    def why_kept(self, topic: str, called: str | None = None) -> str | None:
        """Why nothing of a topic is deleted by age or size, or compacted, and what ends that; None
        where its settings decide.  ``called``: a word for the topic instead of its name.
        """
        unknown = self.log_config(topic).unknown
        if not unknown:
            return None
        fault = self.fault_of(topic)
        if fault is not None:
            remedy = "mending that, and then mounting again, ends it"
            return f"{', '.join(unknown)} are not known: {fault}; {remedy}"
        assert self._theirs is not None
        reason = self._unknown_topic(topic)
        if reason is None and self._theirs.defaults_fault is not None and self.is_brokers:
            reason = self._theirs.defaults_fault
            remedy = f"kafkafs config {self._data_dir} --broker-config FILE"
        else:
            reason = reason or self._theirs.defaults_fault
            reason = reason or "what is set at the broker is not understood"
            wanted = " ".join(f"{name}=..." for name in unknown)
            remedy = f"kafkafs config {self._data_dir} {called or topic} {wanted}"
        return f"{', '.join(unknown)} are not known: {reason}; {remedy} ends that"

    def kept_topics(self, topics: Iterable[str]) -> list[str]:
        """A line for each reason why nothing of some of these topics is deleted or compacted."""
        kept: dict[str, list[str]] = {}
        for name in sorted(topics):
            why = self.why_kept(name, "TOPIC")
            if why is not None:
                kept.setdefault(why, []).append(name)
        lines = []
        for why, names in kept.items():
            some, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
            if more > 0:
                some = f"{len(names)} topics ({some} and {more} more)"
            lines.append(f"nothing is deleted or compacted of {some}: {why}")
        return lines

    def explain_defaults(self) -> list[tuple[str, str, str]]:
        """``explain`` for the daemon, and for topics without settings."""
        listing = []
        for name in BROKER_SETTINGS:
            value = getattr(self.broker, name.replace(".", "_"))
            if value is not None:
                source = (
                    SETTINGS_FILE if name in self.given else self._protected.get(name, "default")
                )
                listing.append((name, format_value(value), source))
        return listing + _listing(self._their_defaults if self.is_brokers else self._defaults)

    def check_known(self, topic: str | None = None) -> None:
        """CorruptCheckpoint where the directory's settings file, or the topic's, does not count."""
        fault = self.fault if topic is None else self.fault_of(topic)
        if fault is not None:
            raise CorruptCheckpoint(fault.message, path=fault.path or self._data_dir)

    def get_owner(self, topic: str, partition: int | None) -> TopicOwner | None:
        """(uid, gid, mode) of a partition, or with None of the topic; None where never set."""
        return self._topic(topic).owners.get(partition)

    def partition_owner(self, topic: str, partition: int) -> TopicOwner | None:
        """``TopicFile.partition_owner``."""
        return self._topic(topic).partition_owner(partition)

    def partition_owners(self, topic: str, numbers: Iterable[int]) -> set[TopicOwner | None]:
        """What ``partition_owner`` answers for these partitions."""
        owners = self._topic(topic).owners
        others = self._topic(topic).partition_owner(OTHER_PARTITIONS)
        return {owners.get(number, others) for number in numbers}

    def owners_known(self, topic: str) -> bool:
        """Whether a topic's owners are known, which chown and chmod have set."""
        return self._topic(topic).fault is None

    # -- changing ------------------------------------------------------------------------------

    def change_topic(self, topic: str, values: Mapping[str, str | None]) -> None:
        """Set a topic's settings, or with None go back to the default; durable.

        They are checked together.  InvalidConfig where there is no such setting or it may not have
        that value; OSError where the disk refuses.  Nothing has changed then.
        """
        changed = self.checked(topic, values)
        self._save(topic, TopicFile(changed, self._topic(topic).owners))

    def checked(self, topic: str, values: Mapping[str, str | None]) -> dict[str, str]:
        """What would be set on a topic after such a change.  InvalidConfig, which names all that
        is wrong.
        """
        changed = dict(self._topic(topic).overrides)
        wrong = []
        for name, text in values.items():
            try:
                value = parse_written(name, text)
            except InvalidConfig as error:
                wrong.append(str(error))
                continue
            if value is None:
                changed.pop(name, None)
            else:
                changed[name] = value
        if wrong:
            raise InvalidConfig("; ".join(wrong))
        self._check_whole(_config_of(self._in_force(topic, changed, is_known=True)), None)
        return changed

    def set_owner(self, topic: str, partition: int | None, uid: int, gid: int, mode: int) -> None:
        """Store the owner and the mode of a partition, of OTHER_PARTITIONS or, with None, of the
        topic; durable.

        OSError where the disk refuses, and nothing has changed.
        """
        assert 0 <= mode <= 0o7777
        self._save(topic, self._topic(topic).with_owner(partition, (uid, gid, mode)))

    def topic_file(self, topic: str) -> TopicFile:
        """What is set on a topic, and whose it is; nothing of a topic that does not exist."""
        return self._topic(topic)

    def _save(self, topic: str, changed: TopicFile) -> None:
        """Write a topic's file, then use it.

        CorruptCheckpoint: the one that is there cannot be read.  UnknownTopicOrPartition.
        """
        self.check_known(topic)
        path = self._path(topic)
        if path is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}", path=self._data_dir)
        self._files.replace_atomically(path, changed.text().encode())
        self._topics[topic] = changed
        self._configs.pop(topic, None)

    def _check_whole(self, config: LogConfig, path: str | None) -> None:
        """InvalidConfig where settings do not fit together, or ``check`` refuses them."""
        least, most = config.min_compaction_lag_ms, config.max_compaction_lag_ms
        try:
            if least > most:  # ``LogConfig.validateValues``
                reason = f"min.compaction.lag.ms={least} is above max.compaction.lag.ms={most}"
                raise InvalidConfig(reason)
            self._check(config)
        except InvalidConfig as error:
            raise InvalidConfig(error.message, path=path) from None

    # -- what is in force ----------------------------------------------------------------------

    def _in_force(
        self, topic: str, overrides: Mapping[str, Any], *, is_known: bool
    ) -> dict[str, _Sourced]:
        """Every topic setting's value, where it comes from, and whether that is known."""
        defaults, theirs = self._defaults, self._set_at_broker(topic)
        if self.is_brokers_topic(topic):
            defaults = self._their_defaults
            if self._unknown_topic(topic) is not None:
                # Settings of it may exist that cannot be seen here.
                defaults = _hidden(defaults)
        kafkas = INTERNAL_TOPIC_SETTINGS.get(topic, {})
        internal = _each(kafkas, "Kafka's own, of an internal topic")
        found = {**defaults, **internal, **theirs, **_each(overrides, _BY_US)}
        return found if is_known else _hidden(found)

    def _unknown_topic(self, topic: str) -> str | None:
        """Why the settings of a broker's topic are not known; None where they are."""
        assert self._theirs is not None
        return self._theirs.why_unknown(topic, self._ids.get(topic, ""))

    def _set_at_broker(self, topic: str) -> dict[str, _Sourced]:
        """The topic's known settings at its broker that mean something here."""
        if not self.is_brokers_topic(topic) or self._unknown_topic(topic) is not None:
            return {}
        assert self._theirs is not None
        found: dict[str, _Sourced] = {}
        for name, text in self._theirs.topics[topic].settings.items():
            if name in TOPIC_SETTINGS:
                found |= _understood(name, text, _BY_BROKER, TOPIC_SETTINGS[name])
        return found


def _understood(name: str, text: str, source: str, setting: Setting) -> dict[str, _Sourced]:
    """The value of a broker's text by name; none where it may be ignored: a broker refuses wrong
    values, but other versions have other rules.
    """
    try:
        is_topics = name == setting.name
        value = parse(setting, name, text) if is_topics else _synonym_value(name, text)
        return {name: _Sourced(value, source)}
    except InvalidConfig:
        unknown = _Sourced(setting.default, source, is_known=False)
        return {name: unknown} if setting.name in DECISIVE else {}


def _hidden(found: Mapping[str, _Sourced]) -> dict[str, _Sourced]:
    """The same values, with those that decide whether something is deleted unknown."""
    return {**found, **{name: found[name]._replace(is_known=False) for name in DECISIVE}}


def _each(values: Mapping[str, Any], source: str) -> dict[str, _Sourced]:
    return {name: _Sourced(value, source) for name, value in values.items()}


def _listing(in_force: Mapping[str, _Sourced]) -> list[tuple[str, str, str]]:
    """(name, value, where it comes from) of what is set, in this order."""
    return [
        (name, format_value(value) if is_known else "unknown", source)
        for name, (value, source, is_known) in in_force.items()
        if value is not None
    ]


def _config_of(in_force: Mapping[str, _Sourced]) -> LogConfig:
    values = {name: default.value for name, default in in_force.items()}
    internal = values.pop(INTERNAL_SEGMENT_BYTES.name)
    if internal is not None:
        values["segment.bytes"] = internal
    # A file or a broker may say more than the budget of memory.
    values[_LARGEST] = min(values[_LARGEST], plain_forms.budget)
    fields = {name.replace(".", "_"): value for name, value in values.items()}
    return LogConfig(**fields, unknown=_unknown(in_force))


def _unknown(in_force: Mapping[str, _Sourced]) -> tuple[str, ...]:
    """The deciding settings that are not known."""
    policy = in_force["cleanup.policy"]
    names: list[str] = []
    if not policy.is_known or "delete" in policy.value:
        names += DECIDES_DELETION
    # A user who sets compact here wants it; where the broker has, it may have set more.
    if policy.is_known and "compact" in policy.value and policy.source != _BY_US:
        names += DECIDES_COMPACTION
    return tuple(dict.fromkeys(name for name in names if not in_force[name].is_known))


# -- the broker's names ----------------------------------------------------------------------------


def _daemon_values(given: Mapping[str, Line]) -> dict[str, Any]:
    """The daemon's settings among the lines of a file.  InvalidConfig, also of unknown names."""
    values = {}
    for name, line in given.items():
        if name in BROKER_SETTINGS:
            values[name.replace(".", "_")] = parse(BROKER_SETTINGS[name], name, line.value, line)
        elif name not in SYNONYMS:
            raise line.error(no_such_setting(name, [*BROKER_SETTINGS, *SYNONYMS]))
    return values


def _synonym_value(name: str, text: str, line: Line | None = None) -> Any:
    """A broker setting's value as the topic setting has it.  InvalidConfig."""
    setting, synonym = SYNONYMS[name]
    if synonym.factor == 1 and not synonym.negative_is_unlimited:
        return parse(setting, name, text, line)
    number = Setting(name, whole_number(-LONG_MAX - 1, LONG_MAX), None)
    value = parse(number, name, text, line) * synonym.factor
    if synonym.negative_is_unlimited and value < 0:
        value = -1
    try:
        return setting.parse(str(value))
    except ValueError as error:
        reason = f"{name}={text} makes {setting.name}={value}, which is not {error}"
        raise (InvalidConfig(reason) if line is None else line.error(reason)) from None


def _from_synonyms(values: Mapping[str, _Sourced]) -> dict[str, _Sourced]:
    """Topic settings from the broker's names, each from the first of its names that is set."""
    found = {}
    for setting in TOPIC_SETTINGS.values():
        for synonym in setting.synonyms:
            if synonym.name in values:
                found[setting.name] = values[synonym.name]
                break
    return found


def _standard() -> dict[str, _Sourced]:
    """The defaults of topics made here."""
    return _each({name: setting.default for name, setting in TOPIC_SETTINGS.items()}, "default")


def _their_defaults(theirs: BrokerSettings, ours: Mapping[str, _Sourced]) -> dict[str, _Sourced]:
    """The settings of a broker's topics that have none of their own."""
    defaults = _standard()
    defaults["retention.ms"] = _Sourced(KAFKA_RETENTION_MS, "Kafka's default")
    if theirs.defaults_fault is not None:
        for name in DECISIVE:
            defaults[name] = defaults[name]._replace(source="the broker's", is_known=False)
    given: dict[str, _Sourced] = {}
    for name, (text, source) in theirs.defaults.items():
        if name in SYNONYMS:
            given |= _understood(name, text, f"{name}, {source}", SYNONYMS[name][0])
    passed = {name: each for name, each in ours.items() if name not in DECISIVE}
    return {**defaults, **_from_synonyms(given), **passed}


def _protecting(theirs: BrokerSettings, given: Mapping[str, Line]) -> dict[str, Any]:
    """The daemon's settings by the broker's file, of those that prevent deletion."""
    found = {}
    for name in PROTECTING:
        if name in theirs.defaults and name not in given:
            with contextlib.suppress(InvalidConfig):
                found[name] = parse(BROKER_SETTINGS[name], name, theirs.defaults[name].text)
    return found
