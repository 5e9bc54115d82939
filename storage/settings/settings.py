"""The settings of a data directory, and of its topics.

Users write `kafkafs.properties` in the data directory: defaults for all topics and for the daemon,
by Kafka's *broker* names (`log.retention.hours=24`). A topic's settings, by Kafka's *topic* names
(`retention.ms=1000`), and its owner lie with the topic (`setting_files`), and are read at their
first use. A broker ignores both.

A topic's value is its override, else the first of the broker's names that is set (Kafka's order: ms
before minutes before hours), else the default (`ServerTopicConfigSynonyms.java`, `LogConfig.java`).
A wrong name or value is InvalidConfig, which names file and line: the user would notice a silently
ignored setting only after the data is deleted.

In a broker's directory its topics keep the broker's settings (`broker_settings`). A value is our
override, else the topic's at the broker, else the one of `kafkafs.properties` (except for settings
that decide about deletion: those are for topics made here), else the broker's default, else
Kafka's. `LogConfig.unknown` lists the deciding settings that are *not known*, and nothing of that
topic is deleted or compacted.

A topic made here that has retention gets smaller segments if their size is not set
(`with_roll_limits`).

Not here: the list of settings (`config`), the precedence of recorded values (`in_force`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from storage import paths
from storage.errors import CorruptCheckpoint, InvalidConfig, UnknownTopicOrPartition
from storage.files import Files
from storage.plain_forms import plain_forms
from storage.settings import broker_settings
from storage.settings.config import (
    BROKER_SETTINGS,
    DECISIVE,
    INTERNAL_TOPIC_SETTINGS,
    KAFKA_OFFSETS_RETENTION_MINUTES,
    REMOTE_STORAGE,
    TOPIC_SETTINGS,
    BrokerConfig,
    LogConfig,
    format_value,
    no_such_setting,
    without_unit,
)
from storage.settings.in_force import (
    BY_US,
    LARGEST,
    Sourced,
    broker_defaults,
    config_of,
    daemon_values,
    each_from,
    listed,
    our_defaults,
    parse_known,
    protecting_values,
    standard_defaults,
    unknown_deciding,
    with_roll_limits,
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

_OFFSETS_RETENTION = "offsets.retention.minutes"
# The number of topics that a line names.
_NAMED = 10
_BY_BROKER = "set on the topic at its broker"


Check = Callable[[LogConfig], None]
"""Raises InvalidConfig if a topic's settings are wrong."""


def no_check(config: LogConfig) -> None:
    """A `Check` that refuses nothing."""


def parse_written(name: str, text: str | None) -> Any:
    """Return the value of a topic's setting from a user's text, which may have a unit; None: the
    default.

    Errors: InvalidConfig if topics have no such setting, or it may not have that value; a batch may
    not be larger than the budget of memory.
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
    if name == LARGEST and value > plain_forms.budget:
        raise InvalidConfig(
            f"{name}={text} exceeds the memory limit for user data, {plain_forms.budget} bytes "
            "(mount -o memory=SIZE)"
        )
    return value


def set_default(files: Files, data_dir: str, name: str, value: str) -> None:
    """Set a line of `kafkafs.properties`, and keep the others; durable. Errors: InvalidConfig if
    the new file would be invalid, OSError; nothing has changed.
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
    """The settings of a data directory. One thread changes them."""

    def __init__(
        self,
        files: Files,
        data_dir: str,
        check: Check = no_check,
        *,
        keeps_faulty: bool = False,
        mount_point: str | None = None,
    ) -> None:
        """Read the data directory's file; a missing one sets nothing.

        InvalidConfig names file and line; with `keeps_faulty` it becomes the `fault` of these
        settings instead. A topic's file is read at its first use: InvalidConfig then, or with
        `keeps_faulty` the fault of that topic (`fault_of`).

        `check` is called for all settings that are, or are to be, in force. `mount_point`: where
        the directory is mounted; messages suggest commands there.
        """
        self._files = files
        self._data_dir = data_dir
        self._check = check
        self._keeps_faulty = keeps_faulty
        self._mount_point = mount_point
        self._topics: dict[str, TopicFile] = {}
        self._configs: dict[str, LogConfig] = {}
        self.is_followed = False
        """Whether another process may change topics' files: each use looks for a new file."""
        # The versions of topics' files that were read while `is_followed`; None: no file.
        self._read: dict[str, tuple[int, int] | None] = {}
        # The lowest partitions of topics whose partition 0 is not here.
        self._lowest: dict[str, int] = {}
        # The known ids of the topics in the directory.
        self._ids: dict[str, str] = {}
        self.fault: InvalidConfig | None = None
        """Why the directory's file is ignored: nothing of any topic is deleted, no setting
        changed.
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
        """Use these lines of the data directory's file. Errors: InvalidConfig."""
        self.given = {name: line.value for name, line in given.items()}
        """The lines of the data directory's settings file, unchanged."""
        self.broker = BrokerConfig(**daemon_values(given))
        ours = our_defaults(given, SETTINGS_FILE)
        self._defaults = {**standard_defaults(), **ours}
        # For the many topics that were made here and have no settings.
        self._plain = config_of(with_roll_limits(self._defaults))
        self._broker_defaults: dict[str, Sourced] = {}
        self._protected: dict[str, str] = {}
        self.notes: list[str] = []
        """Ignored settings, with the reason."""
        self._broker = broker_settings.read(
            *(self._files, self._data_dir),
            self.broker.kafkafs_broker_config,
            self.broker.kafkafs_metadata_log_dir,
        )
        if self._broker is not None:
            self._broker_defaults = broker_defaults(self._broker, ours)
            protecting = protecting_values(self._broker, given)
            self._protected = {name: self._broker.defaults[name].source for name in protecting}
            fields = {name.replace(".", "_"): value for name, value in protecting.items()}
            self.broker = replace(self.broker, **fields)
            self.notes = [
                (
                    f"{ours[name].source} has no effect on a broker's topics: they keep the "
                    f"broker's value, unless {name} is set on the topic"
                )
                for name in DECISIVE & ours.keys()
            ]

    # -- topics' files -------------------------------------------------------------------------

    def _topic(self, topic: str) -> TopicFile:
        """Return a topic's file; an empty one for a topic that does not exist."""
        found = self._topics.get(topic)
        seen = None
        # Reading the file reports a directory that cannot be looked into.
        with contextlib.suppress(OSError):
            if self.is_followed:
                seen = self._files.version(self._path_in(topic, self._lowest.get(topic, 0)))
        is_read = found is not None and found.fault is None and self._read.get(topic, ()) == seen
        if found is None or (self.is_followed and not is_read):
            found = self._read_topic(topic)
            if found is not None:
                self._topics[topic] = found
                self._read[topic] = seen
                self._configs.pop(topic, None)
        return found or TopicFile()

    def _read_topic(self, topic: str) -> TopicFile | None:
        """Return a topic's file; None if there is no such topic."""
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
            self._check_whole(config_of(in_force), f"{path}, topic {topic}")
        except InvalidConfig as error:
            if not self._keeps_faulty:
                raise
            return TopicFile(fault=error)
        return found

    def _path_in(self, topic: str, partition: int) -> str:
        directory = paths.partition_directory(topic, partition)
        return os.path.join(self._data_dir, directory, TOPIC_FILE)

    def _path(self, topic: str) -> str | None:
        """Return the path of a topic's file, which may be missing; None if there is no such
        topic.
        """
        first = self._path_in(topic, 0)
        if self._files.exists(os.path.dirname(first)):
            return first
        if topic not in self._lowest:
            found = paths.partitions_in(self._files.listing(self._data_dir))
            self._lowest = {each: numbers[0] for each, numbers in found.items()}
        lowest = self._lowest.get(topic)
        return None if lowest is None else self._path_in(topic, lowest)

    def begin(self, topic: str, directory: str, begun: TopicFile) -> None:
        """Begin a new topic.

        `directory`: its first partition's, which still has another name. Errors: OSError.
        """
        if begun.owners or begun.overrides:
            path = os.path.join(directory, TOPIC_FILE)
            self._files.replace_atomically(path, begun.text().encode())
        self.forget(topic)
        self._topics[topic] = begun

    def forget(self, topic: str) -> None:
        """Forget a deleted topic: another one may get its name."""
        self._topics.pop(topic, None)
        self._configs.pop(topic, None)
        self._lowest.pop(topic, None)
        self._read.pop(topic, None)

    def fault_of(self, topic: str) -> InvalidConfig | None:
        """Return why a topic's settings are unknown: then none is changed and nothing is
        deleted.
        """
        return self.fault or self._topic(topic).fault

    # -- reading -------------------------------------------------------------------------------

    @property
    def is_brokers(self) -> bool:
        """Whether a broker has written the directory, and may return to it."""
        return self._broker is not None and not self._broker.is_detached

    @property
    def has_brokers_topics(self) -> bool:
        """Whether a broker has made topics of the directory, and may or may not return."""
        return self._broker is not None

    @property
    def offsets_retention_minutes(self) -> int | None:
        """The retention of committed offsets; None: without a limit. By offsets.retention.minutes,
        else in a broker's directory by its broker.
        """
        minutes = self.broker.offsets_retention_minutes
        if minutes is not None or self._broker is None or self._broker.is_detached:
            return minutes
        given = self._broker.defaults.get(_OFFSETS_RETENTION)
        if self._broker.defaults_fault is not None:
            return None
        if given is None:
            return KAFKA_OFFSETS_RETENTION_MINUTES
        with contextlib.suppress(InvalidConfig):
            found: int = parse(BROKER_SETTINGS[_OFFSETS_RETENTION], _OFFSETS_RETENTION, given.text)
            return found
        return None

    def set_topic_id(self, topic: str, topic_id: str) -> None:
        """Set the id of the topic with this name: the broker's settings of another topic, of an
        earlier or later time, do not count.
        """
        if self._broker is not None and topic_id and self._ids.get(topic) != topic_id:
            self._ids[topic] = topic_id
            self._configs.pop(topic, None)

    def id_at_broker(self, topic: str) -> str:
        """Return a topic's id in the broker's metadata log, or an empty string."""
        known = None if self._broker is None else self._broker.topics.get(topic)
        return "" if known is None else known.id

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions in the broker's cluster; 0: not known."""
        known = None if self._broker is None else self._broker.topics.get(topic)
        return 0 if known is None else known.partition_count

    def may_have_replicas(self, topic: str) -> bool:
        """Return whether other brokers may have replicas of a topic: a record that only this
        directory has must not be appended to it.
        """
        if not self.is_brokers:
            return False
        known = None if self._broker is None else self._broker.topics.get(topic)
        return known is None or known.replicas != 1

    def is_brokers_topic(self, topic: str) -> bool:
        """Return whether a broker has made a topic, or may have."""
        if self._broker is None or not self._broker.is_detached:
            return self._broker is not None
        known, topic_id = self._broker.topics.get(topic), self._ids.get(topic)
        return known is not None and not (known.id and topic_id and known.id != topic_id)

    def is_tiered(self, topic: str) -> bool | None:
        """Return whether a part of a topic's log may lie in remote storage; None: not known.

        `remote.storage.enable` applies only to a broker's topics. A broker does not tier compacted
        topics and its own ones.
        """
        if topic in paths.NEVER_TIERED or not self.is_brokers_topic(topic):
            return False
        overrides = self._topic(topic).overrides
        ours: bool | None = overrides.get(REMOTE_STORAGE)
        if ours is not None:
            return ours
        found = self._in_force(topic, {}, is_known=True)
        enabled = found[REMOTE_STORAGE]
        is_known = enabled.is_known or enabled.value
        if not is_known and self._was_tiered(topic):
            return True
        if not is_known:
            found = self._in_force(topic, overrides, is_known=True)
        policy = found["cleanup.policy"]
        if policy.is_known and "compact" in policy.value:
            return False
        return bool(enabled.value) if is_known else None

    def _was_tiered(self, topic: str) -> bool:
        """Return whether a topic was tiered before a record that only a newer Kafka can read."""
        assert self._broker is not None
        known = self._broker.topics.get(topic)
        if known is None or self._ids.get(topic, known.id) != known.id:
            return False
        return known.settings.get(REMOTE_STORAGE) == "true"

    def log_config(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic, which need not exist."""
        config = self._configs.get(topic)
        if config is None:
            overrides, is_known = self._topic(topic).overrides, self.fault_of(topic) is None
            is_special = topic in INTERNAL_TOPIC_SETTINGS or self.is_brokers_topic(topic)
            if overrides or is_special or not is_known:
                config = config_of(self._in_force(topic, overrides, is_known=is_known))
            else:
                config = self._plain
            if topic in self._topics:
                self._configs[topic] = config
        return config

    def overrides(self, topic: str) -> dict[str, str]:
        """Return the topic's settings by name, ours or its broker's. Errors: CorruptCheckpoint."""
        self.check_known(topic)
        ours = each_from(self._topic(topic).overrides, BY_US)
        found = listed({**self._set_at_broker(topic), **ours})
        return {name: value for name, value, _ in sorted(found)}

    def explain(self, topic: str) -> list[tuple[str, str, str]]:
        """Return (name, value, source) of every topic setting. Errors: CorruptCheckpoint."""
        self.check_known(topic)
        in_force = self._in_force(topic, self._topic(topic).overrides, is_known=True)
        return listed({name: in_force[name] for name in TOPIC_SETTINGS})

    def why_no_deletion(self, topic: str, called: str | None = None) -> str | None:
        """Return why nothing of a topic is deleted by age or size, or compacted, with a remedy;
        None if its settings decide. `called`: a word for the topic instead of its name.
        """
        unknown = self.log_config(topic).unknown
        if not unknown:
            return None
        fault = self.fault_of(topic)
        if fault is not None:
            remedy = "fix that, then mount again"
            return f"the values of {', '.join(unknown)} are unknown: {fault}; {remedy}"
        assert self._broker is not None
        reason, by_file = self._unknown_topic(topic), ""
        if reason is None and self._broker.defaults_fault is not None and self.is_brokers:
            by_file = f"kafkafs config {self._data_dir} --broker-config FILE"
        reason = reason or self._broker.defaults_fault
        reason = reason or "the broker's value is invalid"
        name, wanted = called or topic, " ".join(f"{each}=..." for each in unknown)
        if self._mount_point is None:
            remedy = f"run {by_file or f'kafkafs config {self._data_dir} {name} {wanted}'}"
        else:
            remedy = f"write {wanted} to {os.path.join(self._mount_point, name, '.config')}"
            if by_file:
                remedy += f", or unmount, run {by_file}, and mount again"
        return f"the values of {', '.join(unknown)} are unknown: {reason}; {remedy}"

    def kept_topics(self, topics: Iterable[str]) -> list[str]:
        """Return a line for each reason why some topics are neither deleted from nor compacted."""
        kept: dict[str, list[str]] = {}
        for name in sorted(topics):
            why = self.why_no_deletion(name, "TOPIC")
            if why is not None:
                kept.setdefault(why, []).append(name)
        lines = []
        for why, names in kept.items():
            some, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
            if more > 0:
                some = f"{len(names)} topics ({some} and {more} more)"
            lines.append(f"nothing is deleted or compacted in {some}: {why}")
        return lines

    def explain_defaults(self) -> list[tuple[str, str, str]]:
        """Return (name, value, source) for the daemon, and for topics without settings."""
        listing = []
        for name in BROKER_SETTINGS:
            value = getattr(self.broker, name.replace(".", "_"))
            if value is not None:
                source = (
                    SETTINGS_FILE if name in self.given else self._protected.get(name, "default")
                )
                listing.append((name, format_value(value), source))
        ours = with_roll_limits(self._defaults)
        return listing + listed(self._broker_defaults if self.is_brokers else ours)

    def check_known(self, topic: str | None = None) -> None:
        """Check that the settings files can be read. Errors: CorruptCheckpoint."""
        fault = self.fault if topic is None else self.fault_of(topic)
        if fault is not None:
            raise CorruptCheckpoint(fault.message, path=fault.path or self._data_dir)

    def get_owner(self, topic: str, partition: int | None) -> TopicOwner | None:
        """Return (uid, gid, mode) of a partition, or with None of the topic; None if never set."""
        return self._topic(topic).owners.get(partition)

    def partition_owner(self, topic: str, partition: int) -> TopicOwner | None:
        """Return the owner of a partition (`TopicFile.partition_owner`)."""
        return self._topic(topic).partition_owner(partition)

    def partition_owners(self, topic: str, numbers: Iterable[int]) -> set[TopicOwner | None]:
        """Return the different results of `partition_owner` for these partitions."""
        owners = self._topic(topic).owners
        others = self._topic(topic).partition_owner(OTHER_PARTITIONS)
        return {owners.get(number, others) for number in numbers}

    def owners_known(self, topic: str) -> bool:
        """Return whether a topic's owners, set by chown and chmod, are known."""
        return self._topic(topic).fault is None

    # -- changing ------------------------------------------------------------------------------

    def change_topic(self, topic: str, values: Mapping[str, str | None]) -> None:
        """Set a topic's settings, or with None return to the default; durable.

        They are checked together. Errors: InvalidConfig if there is no such setting or it may not
        have that value; OSError; nothing has changed.
        """
        changed = self.checked(topic, values)
        self._save(topic, TopicFile(changed, self._topic(topic).owners))

    def checked(self, topic: str, values: Mapping[str, str | None]) -> dict[str, Any]:
        """Return a topic's settings after a change. Errors: InvalidConfig with all mistakes."""
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
        self._check_whole(config_of(self._in_force(topic, changed, is_known=True)), None)
        return changed

    def set_owner(self, topic: str, partition: int | None, uid: int, gid: int, mode: int) -> None:
        """Store the owner and the mode of a partition, of OTHER_PARTITIONS or, with None, of the
        topic; durable.

        Errors: OSError; nothing has changed.
        """
        assert 0 <= mode <= 0o7777
        self._save(topic, self._topic(topic).with_owner(partition, (uid, gid, mode)))

    def topic_file(self, topic: str) -> TopicFile:
        """Return the settings and owners of a topic; empty if it does not exist."""
        return self._topic(topic)

    def _save(self, topic: str, changed: TopicFile) -> None:
        """Write a topic's file, then use it. Errors: CorruptCheckpoint if the present one cannot be
        read, UnknownTopicOrPartition.
        """
        self.check_known(topic)
        path = self._path(topic)
        if path is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}", path=self._data_dir)
        self._files.replace_atomically(path, changed.text().encode())
        self._topics[topic] = changed
        self._configs.pop(topic, None)

    def _check_whole(self, config: LogConfig, path: str | None) -> None:
        """Check that settings fit together, also by `check`. Errors: InvalidConfig."""
        least, most = config.min_compaction_lag_ms, config.max_compaction_lag_ms
        try:
            if least > most:  # `LogConfig.validateValues`
                reason = f"min.compaction.lag.ms={least} is above max.compaction.lag.ms={most}"
                raise InvalidConfig(reason)
            self._check(config)
        except InvalidConfig as error:
            raise InvalidConfig(error.message, path=path) from None

    # -- precedence ----------------------------------------------------------------------------

    def _in_force(
        self, topic: str, overrides: Mapping[str, Any], *, is_known: bool
    ) -> dict[str, Sourced]:
        """Return every topic setting's value, its source, and whether that is known."""
        defaults, theirs = self._defaults, self._set_at_broker(topic)
        if self.is_brokers_topic(topic):
            defaults = self._broker_defaults
            if self._unknown_topic(topic) is not None:
                # The topic may have settings that are unreadable here.
                defaults = unknown_deciding(defaults)
        kafkas = INTERNAL_TOPIC_SETTINGS.get(topic, {})
        internal = each_from(kafkas, "Kafka's own, of an internal topic")
        found = {**defaults, **internal, **theirs, **each_from(overrides, BY_US)}
        if not is_known:
            return unknown_deciding(found)
        return found if self.is_brokers_topic(topic) else with_roll_limits(found)

    def _unknown_topic(self, topic: str) -> str | None:
        """Return why the settings of a broker's topic are not known, or None."""
        assert self._broker is not None
        return self._broker.why_unknown(topic, self._ids.get(topic, ""))

    def _set_at_broker(self, topic: str) -> dict[str, Sourced]:
        """Return the topic's known settings at its broker that have a meaning here."""
        if not self.is_brokers_topic(topic) or self._unknown_topic(topic) is not None:
            return {}
        assert self._broker is not None
        found: dict[str, Sourced] = {}
        for name, text in self._broker.topics[topic].settings.items():
            if name in TOPIC_SETTINGS:
                found |= parse_known(name, text, _BY_BROKER, TOPIC_SETTINGS[name])
        return found
