"""The settings of a data directory, and the two files that keep them.

Both are plain files of the data directory, which a broker ignores, in a subset of Java's
properties syntax: ``name=value`` lines, white space around either dropped, blank lines, and
comments from ``#`` or ``!`` at a line's start; no escapes.

``kafkafs.properties``
    Written by people: defaults for all topics and for the daemon, by Kafka's *broker* names
    (``log.retention.hours=24``).
``kafkafs-topics.properties``
    Written by us, replaced atomically: ``TOPIC/name=value`` overrides by Kafka's *topic* names
    (``orders/retention.ms=1000``), and ``TOPIC/owner=UID:GID:MODE`` or
    ``TOPIC/PARTITION/owner=…`` for what chown and chmod set (the mode is octal).

A topic's value is its override, else the first of the broker's names that is given (Kafka's
order: ms before minutes before hours), else the default (``ServerTopicConfigSynonyms.java``,
``LogConfig.java``).  A name or a value that is not right is InvalidConfig, which names file and
line: a setting that was silently ignored would be noticed when the data is gone.

In a directory that a broker has written its topics keep what the broker has set
(``broker_settings``): a value is our override, else what is set on the topic at the broker, else
what ``kafkafs.properties`` says (but not of what decides whether something goes: that speaks of
topics made here), else what holds at the broker, else Kafka's default.  What decides and is *not
known* is named by ``LogConfig.unknown``, and nothing of that topic is deleted or compacted.

Not here: what there is to set (``config``).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from storage import broker_settings
from storage.broker_settings import PROTECTING, BrokerFiles, BrokerSettings
from storage.config import (
    BROKER_SETTINGS,
    DECIDES_COMPACTION,
    DECIDES_DELETION,
    DECISIVE,
    INTERNAL_SEGMENT_BYTES,
    INTERNAL_TOPICS,
    KAFKA_RETENTION_MS,
    LONG_MAX,
    SYNONYMS,
    TOPIC_SETTINGS,
    BrokerConfig,
    LogConfig,
    Setting,
    format_value,
    whole_number,
    without_unit,
)
from storage.errors import CorruptCheckpoint, InvalidConfig, UnusableFile

SETTINGS_FILE = "kafkafs.properties"
TOPICS_FILE = "kafkafs-topics.properties"

_BY_US = "set on the topic"
_BY_BROKER = "set on the topic at its broker"
_OWNER = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-7]{3,4})")
_NOBODY = 2**32 - 1  # chown's "leave it as it is"
_DIGITS = 10
_HEADER = f"# Written by kafkafs, which replaces this file. Defaults belong into {SETTINGS_FILE}.\n"


class SettingsStore(BrokerFiles, Protocol):
    """The part of ``files.Files`` that is needed here."""

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None: ...


class _Line(NamedTuple):
    number: int
    name: str
    value: str


def _lines(text: str, path: str | None) -> Iterator[_Line]:
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"line {number}: {line!r} is not name=value", path=path)
        yield _Line(number, name.strip(), value.strip())


def _read_lines(files: SettingsStore, path: str) -> list[_Line]:
    try:
        text = files.read_whole(path).decode()
    except FileNotFoundError:
        return []
    except UnusableFile as error:
        raise InvalidConfig(str(error.strerror), path=path) from None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"not UTF-8 at byte {error.start}", path=path) from None
    return list(_lines(text, path))


def _parse(
    setting: Setting, name: str, text: str, *, line: int = 0, path: str | None = None
) -> Any:
    try:
        return setting.parse(text)
    except ValueError as error:
        where = f"line {line}: " if line else ""
        raise InvalidConfig(f"{where}{name}={text} is not {error}", path=path) from None


class _Default(NamedTuple):
    value: Any
    source: str
    is_known: bool = True


Check = Callable[[LogConfig], None]
"""Looks at a topic's settings, and raises InvalidConfig where they will not do."""


def no_check(config: LogConfig) -> None:
    """A ``Check`` to which everything is right."""


def check_value(name: str, text: str | None) -> None:
    """InvalidConfig where topics have no such setting, or it may not have that value.

    None: the default.
    """
    setting = _topic_setting(name)
    if text is not None:
        _parse_written(setting, text)


def _parse_written(setting: Setting, text: str) -> Any:
    """The value of a text that somebody has written, who may have used a unit."""
    try:
        plain = without_unit(setting.name, text.strip())
    except ValueError as error:
        raise InvalidConfig(f"{setting.name}={text} is not {error}") from None
    return _parse(setting, setting.name, plain)


def _topic_setting(name: str) -> Setting:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(f"there is no setting {name!r}")
    return setting


def set_default(files: SettingsStore, data_dir: str, name: str, value: str) -> None:
    """Have a line of ``kafkafs.properties`` say this, and leave the others; durable.

    InvalidConfig where the file would not be right then, OSError: nothing has changed.
    """
    path = os.path.join(data_dir, SETTINGS_FILE)
    Settings.load(files, data_dir)
    _parse(BROKER_SETTINGS[name], name, value)
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
        self, files: SettingsStore, data_dir: str, given: Mapping[str, _Line], check: Check
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self._topics_path = os.path.join(data_dir, TOPICS_FILE)
        self._check = check
        self._overrides: dict[str, dict[str, Any]] = {}
        self._owners: dict[tuple[str, int | None], tuple[int, int, int]] = {}
        self._configs: dict[str, LogConfig] = {}
        self.fault: InvalidConfig | None = None
        """Why one of the files does not count: then nothing goes, and no setting is changed."""
        self.owners_known = True
        """Whether what chown and chmod set is known."""
        # The ids of the topics that lie here, as far as they are known.
        self._ids: dict[str, str] = {}
        self.given: dict[str, str] = {name: line.value for name, line in given.items()}
        """The lines of the data directory's settings file, as they stand there."""
        path = os.path.join(data_dir, SETTINGS_FILE)
        self.broker = BrokerConfig(**_daemon_values(given, path))
        ours = _from_synonyms(
            {
                name: _Default(value, f"{name} in {SETTINGS_FILE}")
                for name, value in _synonym_values(given, path).items()
            }
        )
        self._defaults = {**_standard(), **ours}
        self._theirs = broker_settings.read(
            files,
            data_dir,
            self.broker.kafkafs_broker_config,
            self.broker.kafkafs_metadata_log_dir,
        )
        # Of the many topics that were made here, and on which nothing is set.
        self._plain = _config_of(self._defaults)
        self._their_defaults: dict[str, _Default] = {}
        self._protected: dict[str, str] = {}
        if self._theirs is not None:
            self._their_defaults = _their_defaults(self._theirs, ours)
            protecting = _protecting(self._theirs, given)
            self._protected = {name: self._theirs.defaults[name].source for name in protecting}
            fields = {name.replace(".", "_"): value for name, value in protecting.items()}
            self.broker = replace(self.broker, **fields)
        self.notes: list[str] = []
        """What does not count of what is given, and why."""
        if self._theirs is not None:
            for name in DECISIVE & ours.keys():
                self.notes.append(
                    f"{ours[name].source} does not count for a broker's topics: they keep what "
                    f"their broker has set, unless {name} is set on the topic"
                )

    @classmethod
    def load(
        cls,
        files: SettingsStore,
        data_dir: str,
        check: Check = no_check,
        *,
        keeps_faulty: bool = False,
    ) -> Settings:
        """Read both files; a missing one sets nothing.  InvalidConfig names file and line; with
        ``keeps_faulty`` it becomes the ``fault`` of these settings instead.

        ``check`` is asked of all settings that are, or are to be, in force.
        """
        try:
            settings = cls._of_file(files, data_dir, check)
        except InvalidConfig as error:
            if not keeps_faulty:
                raise
            settings = cls(files, data_dir, {}, check)
            settings.fault = error
        try:
            settings._load_topics()
        except InvalidConfig as error:
            if not keeps_faulty:
                raise
            settings._overrides, settings._owners = {}, {}
            settings.owners_known = False
            settings.fault = settings.fault or error
        return settings

    @classmethod
    def _of_file(cls, files: SettingsStore, data_dir: str, check: Check) -> Settings:
        path = os.path.join(data_dir, SETTINGS_FILE)
        given = {line.name: line for line in _read_lines(files, path)}
        settings = cls(files, data_dir, given, check)
        settings._check_whole(settings._plain, path)
        return settings

    def _load_topics(self) -> None:
        path = self._topics_path
        for number, name, text in _read_lines(self._files, path):
            topic, slash, rest = name.partition("/")
            partition, between, last = rest.rpartition("/")
            if not topic or not slash:
                raise InvalidConfig(f"line {number}: {name!r} is not TOPIC/name", path=path)
            if last == "owner" and (not between or partition.isdecimal()):
                owner = _OWNER.fullmatch(text)
                if owner is None:
                    raise InvalidConfig(f"line {number}: {text!r} is not UID:GID:MODE", path=path)
                if len(partition) > _DIGITS or max(map(int, owner.groups()[:2])) >= _NOBODY:
                    raise InvalidConfig(f"line {number}: {name}={text}: too large", path=path)
                key = (topic, int(partition) if between else None)
                self._owners[key] = (int(owner[1]), int(owner[2]), int(owner[3], 8))
            elif rest in TOPIC_SETTINGS:
                value = _parse(TOPIC_SETTINGS[rest], rest, text, line=number, path=path)
                self._overrides.setdefault(topic, {})[rest] = value
            else:
                raise InvalidConfig(f"line {number}: there is no setting {rest!r}", path=path)
        for topic, overrides in self._overrides.items():
            self._check_whole(self._effective(topic, overrides), f"{path}, topic {topic}")

    # -- reading -------------------------------------------------------------------------------

    @property
    def is_brokers(self) -> bool:
        """Whether a broker has written the directory, and may come back to it."""
        return self._theirs is not None and not self._theirs.is_detached

    def identify(self, topic: str, topic_id: str) -> None:
        """Say which topic lies here under that name: what a broker knows of another one, which
        had its name later or before, does not count.
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
        """What is in force for a topic, which need not exist."""
        config = self._configs.get(topic)
        if config is None:
            overrides = self._overrides.get(topic, {})
            is_special = topic in INTERNAL_TOPICS or self.is_brokers_topic(topic)
            if overrides or is_special or self.fault is not None:
                config = self._effective(topic, overrides)
            else:
                config = self._plain
            self._configs[topic] = config
        return config

    def overrides(self, topic: str) -> dict[str, str]:
        """What is set on the topic itself, by name: by us, or at its broker.

        CorruptCheckpoint where that is not known.
        """
        self.check_known()
        return {
            name: value
            for name, value, _ in sorted(
                _listing({**self._set_at_broker(topic), **self._set_by_us(topic)})
            )
        }

    def explain(self, topic: str) -> list[tuple[str, str, str]]:
        """(name, value, where it comes from) of every topic setting.

        CorruptCheckpoint where they are not known.
        """
        self.check_known()
        in_force = self._in_force(topic, self._overrides.get(topic, {}))
        return _listing({name: in_force[name] for name in TOPIC_SETTINGS})

    def why_kept(self, topic: str, called: str | None = None) -> str | None:
        """Why nothing of a topic is deleted by age or size, or compacted, and what ends that; None
        where its settings decide.  ``called``: a word for the topic instead of its name.
        """
        unknown = self.log_config(topic).unknown
        if not unknown:
            return None
        if self.fault is not None:
            remedy = "mending that, and then mounting again, ends it"
            return f"{', '.join(unknown)} are not known: {self.fault}; {remedy}"
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

    def explain_defaults(self) -> list[tuple[str, str, str]]:
        """The same of what holds for the daemon, and for topics on which nothing is set."""
        listing = []
        for name in BROKER_SETTINGS:
            value = getattr(self.broker, name.replace(".", "_"))
            if value is not None:
                source = (
                    SETTINGS_FILE if name in self.given else self._protected.get(name, "default")
                )
                listing.append((name, format_value(value), source))
        return listing + _listing(self._their_defaults if self.is_brokers else self._defaults)

    def check_known(self) -> None:
        """CorruptCheckpoint where one of the files does not count, and so is not replaced."""
        if self.fault is not None:
            raise CorruptCheckpoint(self.fault.message, path=self.fault.path or self._data_dir)

    def get_owner(self, topic: str, partition: int | None) -> tuple[int, int, int] | None:
        """(uid, gid, mode) of a partition, or with None of the topic; None where never set."""
        return self._owners.get((topic, partition))

    # -- changing ------------------------------------------------------------------------------

    def set_topic(self, topic: str, name: str, value: str | None) -> None:
        """Set one of a topic's settings, or with None go back to the default; durable.

        InvalidConfig where there is no such setting or it may not have that value; OSError where
        the disk refuses.  Nothing has changed then.
        """
        self.change_topic(topic, {name: value})

    def change_topic(self, topic: str, values: Mapping[str, str | None]) -> None:
        """The same of several settings, which are judged together: all of them or none."""
        changed = dict(self._overrides.get(topic, {}))
        for name, value in values.items():
            setting = _topic_setting(name)
            if value is None:
                changed.pop(name, None)
            else:
                changed[name] = _parse_written(setting, value)
        self._check_whole(self._effective(topic, changed), None)
        self._save({**self._overrides, topic: changed}, self._owners)

    def set_owner(self, topic: str, partition: int | None, uid: int, gid: int, mode: int) -> None:
        """Remember who owns a topic (partition None) or a partition, and its mode; durable."""
        assert 0 <= mode <= 0o7777
        self._save(self._overrides, {**self._owners, (topic, partition): (uid, gid, mode)})

    def drop_topic(self, topic: str, *, keep_owner: bool = False) -> None:
        """Forget everything about a topic, with ``keep_owner`` all but whose it is; durable."""
        overrides = {name: value for name, value in self._overrides.items() if name != topic}
        kept = (topic, None) if keep_owner else None
        owners = {
            key: value for key, value in self._owners.items() if key[0] != topic or key == kept
        }
        if len(overrides) != len(self._overrides) or len(owners) != len(self._owners):
            self._save(overrides, owners)

    def _save(
        self,
        overrides: dict[str, dict[str, Any]],
        owners: dict[tuple[str, int | None], tuple[int, int, int]],
    ) -> None:
        """Write the topics' file, then believe it.  CorruptCheckpoint: it cannot be understood."""
        self.check_known()
        values = {
            f"{topic}/{name}": format_value(value)
            for topic, names in overrides.items()
            for name, value in names.items()
        }
        for (topic, partition), (uid, gid, mode) in owners.items():
            key = f"{topic}/owner" if partition is None else f"{topic}/{partition}/owner"
            values[key] = f"{uid}:{gid}:{mode:04o}"
        text = _HEADER + "".join(f"{name}={value}\n" for name, value in sorted(values.items()))
        self._files.replace_atomically(self._topics_path, text.encode())
        self._overrides = {topic: names for topic, names in overrides.items() if names}
        self._owners = owners
        self._configs = {}

    def _check_whole(self, config: LogConfig, path: str | None) -> None:
        """InvalidConfig where these settings do not go together, or ``check`` refuses them."""
        _check_together(config, path)
        try:
            self._check(config)
        except InvalidConfig as error:
            raise InvalidConfig(error.message, path=path) from None

    # -- what is in force ----------------------------------------------------------------------

    def _effective(self, topic: str, overrides: Mapping[str, Any]) -> LogConfig:
        return _config_of(self._in_force(topic, overrides))

    def _in_force(self, topic: str, overrides: Mapping[str, Any]) -> dict[str, _Default]:
        """Every topic setting's value, where it comes from, and whether that is known."""
        found = self._found(topic, overrides)
        if self.fault is not None:
            found |= {name: found[name]._replace(is_known=False) for name in DECISIVE}
        return found

    def _found(self, topic: str, overrides: Mapping[str, Any]) -> dict[str, _Default]:
        internal = _each(INTERNAL_TOPICS.get(topic, {}), "Kafka's own, of an internal topic")
        ours = _each(overrides, _BY_US)
        if not self.is_brokers_topic(topic):
            return {**self._defaults, **internal, **ours}
        defaults = self._their_defaults
        if self._unknown_topic(topic) is not None:
            # Something may be set on it that nobody here can see.
            hidden = {name: defaults[name]._replace(is_known=False) for name in DECISIVE}
            defaults = {**defaults, **hidden}
        return {**defaults, **internal, **self._set_at_broker(topic), **ours}

    def _unknown_topic(self, topic: str) -> str | None:
        """Why it is not known what is set on a topic of a broker's; None where it is."""
        assert self._theirs is not None
        return self._theirs.why_unknown(topic, self._ids.get(topic, ""))

    def _set_by_us(self, topic: str) -> dict[str, _Default]:
        return _each(self._overrides.get(topic, {}), _BY_US)

    def _set_at_broker(self, topic: str) -> dict[str, _Default]:
        """What is set on a topic at its broker, as far as it is known, and means something here."""
        if not self.is_brokers_topic(topic) or self._unknown_topic(topic) is not None:
            return {}
        assert self._theirs is not None
        found = {}
        for name, text in self._theirs.topics[topic].settings.items():
            if name in TOPIC_SETTINGS:
                value = _understood(TOPIC_SETTINGS[name], _topic_value, name, text, _BY_BROKER)
                found.update({} if value is None else {name: value})
        return found


def _topic_value(name: str, text: str) -> Any:
    return _parse(TOPIC_SETTINGS[name], name, text)


def _understood(
    setting: Setting, parse: Callable[[str, str], Any], name: str, text: str, source: str
) -> _Default | None:
    """What a broker's text says, None where it may be passed over: a broker refuses what is not
    right, but other versions have other rules.
    """
    try:
        return _Default(parse(name, text), source)
    except InvalidConfig:
        unknown = _Default(setting.default, source, is_known=False)
        return unknown if setting.name in DECISIVE else None


def _each(values: Mapping[str, Any], source: str) -> dict[str, _Default]:
    return {name: _Default(value, source) for name, value in values.items()}


def _listing(in_force: Mapping[str, _Default]) -> list[tuple[str, str, str]]:
    """(name, value, where it comes from) of what is set, in this order."""
    return [
        (name, format_value(value) if is_known else "unknown", source)
        for name, (value, source, is_known) in in_force.items()
        if value is not None
    ]


def _config_of(in_force: Mapping[str, _Default]) -> LogConfig:
    values = {name: default.value for name, default in in_force.items()}
    internal = values.pop(INTERNAL_SEGMENT_BYTES.name)
    if internal is not None:
        values["segment.bytes"] = internal
    fields = {name.replace(".", "_"): value for name, value in values.items()}
    return LogConfig(**fields, unknown=_unknown(in_force))


def _unknown(in_force: Mapping[str, _Default]) -> tuple[str, ...]:
    """The names of what is not known of what decides whether something of a topic goes."""
    policy = in_force["cleanup.policy"]
    names: list[str] = []
    if not policy.is_known or "delete" in policy.value:
        names += DECIDES_DELETION
    # Who sets compact here asks for it; where the broker has, it may have set more.
    if policy.is_known and "compact" in policy.value and policy.source != _BY_US:
        names += DECIDES_COMPACTION
    return tuple(dict.fromkeys(name for name in names if not in_force[name].is_known))


# -- the broker's names ----------------------------------------------------------------------------


def _daemon_values(given: Mapping[str, _Line], path: str) -> dict[str, Any]:
    """The daemon's settings among the lines of a file.  InvalidConfig, also of unknown names."""
    values = {}
    for number, name, text in given.values():
        if name in BROKER_SETTINGS:
            setting = BROKER_SETTINGS[name]
            values[name.replace(".", "_")] = _parse(setting, name, text, line=number, path=path)
        elif name not in SYNONYMS:
            raise InvalidConfig(f"line {number}: there is no setting {name!r}", path=path)
    return values


def _synonym_values(given: Mapping[str, _Line], path: str) -> dict[str, Any]:
    """The defaults for topics among the lines of a file, by the broker's names."""
    return {
        name: _synonym_value(name, line.value, line.number, path)
        for name, line in given.items()
        if name in SYNONYMS
    }


def _synonym_value(name: str, text: str, line: int = 0, path: str | None = None) -> Any:
    """A broker setting's value as the topic setting has it."""
    setting, synonym = SYNONYMS[name]
    if synonym.factor == 1 and not synonym.negative_is_unlimited:
        return _parse(setting, name, text, line=line, path=path)
    number = Setting(name, whole_number(-LONG_MAX - 1, LONG_MAX), None)
    value = _parse(number, name, text, line=line, path=path) * synonym.factor
    if synonym.negative_is_unlimited and value < 0:
        value = -1
    try:
        return setting.parse(str(value))
    except ValueError as error:
        where = f"line {line}: " if line else ""
        raise InvalidConfig(
            f"{where}{name}={text} makes {setting.name}={value}, which is not {error}",
            path=path,
        ) from None


def _from_synonyms(values: Mapping[str, _Default]) -> dict[str, _Default]:
    """What the broker's names make of topic settings, each from the first of its names."""
    found = {}
    for setting in TOPIC_SETTINGS.values():
        for synonym in setting.synonyms:
            if synonym.name in values:
                found[setting.name] = values[synonym.name]
                break
    return found


def _standard() -> dict[str, _Default]:
    """What holds for topics made here where nothing is said."""
    return _each({name: setting.default for name, setting in TOPIC_SETTINGS.items()}, "default")


def _their_defaults(theirs: BrokerSettings, ours: Mapping[str, _Default]) -> dict[str, _Default]:
    """What holds for a broker's topics on which nothing is set."""
    defaults = _standard()
    defaults["retention.ms"] = _Default(KAFKA_RETENTION_MS, "Kafka's default")
    if theirs.defaults_fault is not None:
        for name in DECISIVE:
            defaults[name] = defaults[name]._replace(source="the broker's", is_known=False)
    given = {}
    for name, (text, source) in theirs.defaults.items():
        if name in SYNONYMS:
            setting = SYNONYMS[name][0]
            value = _understood(setting, _synonym_value, name, text, f"{name}, {source}")
            given.update({} if value is None else {name: value})
    passed = {name: each for name, each in ours.items() if name not in DECISIVE}
    return {**defaults, **_from_synonyms(given), **passed}


def _protecting(theirs: BrokerSettings, given: Mapping[str, _Line]) -> dict[str, Any]:
    """The daemon's settings that a broker's say, too, and that keep something from going."""
    found = {}
    for name in PROTECTING:
        if name in theirs.defaults and name not in given:
            with contextlib.suppress(InvalidConfig):
                found[name] = _parse(BROKER_SETTINGS[name], name, theirs.defaults[name].text)
    return found


def _check_together(config: LogConfig, path: str | None) -> None:
    """The rules that hold between settings (``LogConfig.validateValues``)."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above"
            f" max.compaction.lag.ms={config.max_compaction_lag_ms}",
            path=path,
        )
