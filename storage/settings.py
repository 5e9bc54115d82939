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

Not here: what there is to set (``config``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from storage.config import (
    BROKER_SETTINGS,
    INTERNAL_SEGMENT_BYTES,
    LONG_MAX,
    SYNONYMS,
    TOPIC_SETTINGS,
    BrokerConfig,
    LogConfig,
    Setting,
    format_value,
    whole_number,
)
from storage.errors import InvalidConfig

SETTINGS_FILE = "kafkafs.properties"
TOPICS_FILE = "kafkafs-topics.properties"

_OWNER = re.compile(r"([0-9]+):([0-9]+):([0-7]{3,4})")
_HEADER = f"# Written by kafkafs, which replaces this file. Defaults belong into {SETTINGS_FILE}.\n"


class SettingsStore(Protocol):
    """The part of ``files.Files`` that is needed here."""

    def read_whole(self, path: str) -> bytes: ...
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
        _parse(setting, name, text)


def _topic_setting(name: str) -> Setting:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(f"there is no setting {name!r}")
    return setting


class Settings:
    """The settings of a data directory.  One thread changes them."""

    def __init__(
        self,
        files: SettingsStore,
        data_dir: str,
        broker: BrokerConfig,
        defaults: dict[str, _Default],
        check: Check,
    ) -> None:
        self._files = files
        self._topics_path = os.path.join(data_dir, TOPICS_FILE)
        self._defaults = defaults
        self._check = check
        self._overrides: dict[str, dict[str, Any]] = {}
        self._owners: dict[tuple[str, int | None], tuple[int, int, int]] = {}
        self._configs: dict[str, LogConfig] = {}
        self.broker = broker
        self.given: dict[str, str] = {}
        """The lines of the data directory's settings file, as they stand there."""

    @classmethod
    def load(cls, files: SettingsStore, data_dir: str, check: Check = no_check) -> Settings:
        """Read both files; a missing one sets nothing.  InvalidConfig names file and line.

        ``check`` is asked of all settings that are, or are to be, in force.
        """
        path = os.path.join(data_dir, SETTINGS_FILE)
        lines = _read_lines(files, path)
        broker: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for number, name, text in lines:
            if name in BROKER_SETTINGS:
                value = _parse(BROKER_SETTINGS[name], name, text, line=number, path=path)
                broker[name.replace(".", "_")] = value
            elif name in SYNONYMS:
                given[name] = _synonym_value(name, text, number, path)
            else:
                raise InvalidConfig(f"line {number}: there is no setting {name!r}", path=path)
        settings = cls(files, data_dir, BrokerConfig(**broker), _defaults(given), check)
        settings.given = {line.name: line.value for line in lines}
        settings._check_whole(settings._effective({}), path)
        settings._load_topics()
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
                key = (topic, int(partition) if between else None)
                self._owners[key] = (int(owner[1]), int(owner[2]), int(owner[3], 8))
            elif rest in TOPIC_SETTINGS:
                value = _parse(TOPIC_SETTINGS[rest], rest, text, line=number, path=path)
                self._overrides.setdefault(topic, {})[rest] = value
            else:
                raise InvalidConfig(f"line {number}: there is no setting {rest!r}", path=path)
        for topic, overrides in self._overrides.items():
            self._check_whole(self._effective(overrides), f"{path}, topic {topic}")

    # -- reading -------------------------------------------------------------------------------

    def log_config(self, topic: str) -> LogConfig:
        """What is in force for a topic, which need not exist."""
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._effective(self._overrides.get(topic, {}))
        return config

    def overrides(self, topic: str) -> dict[str, str]:
        """What is set on the topic itself, by name."""
        return {
            name: format_value(value)
            for name, value in sorted(self._overrides.get(topic, {}).items())
        }

    def explain(self, topic: str) -> list[tuple[str, str, str]]:
        """(name, value, where it comes from) of every topic setting."""
        overrides = self._overrides.get(topic, {})
        listing = []
        for name in TOPIC_SETTINGS:
            if name in overrides:
                listing.append((name, format_value(overrides[name]), "set on the topic"))
            elif self._defaults[name].value is not None:
                value, source = self._defaults[name]
                listing.append((name, format_value(value), source))
        return listing

    def explain_defaults(self) -> list[tuple[str, str, str]]:
        """The same of what holds for the daemon, and for topics on which nothing is set."""
        listing = []
        for name in BROKER_SETTINGS:
            value = format_value(getattr(self.broker, name.replace(".", "_")))
            listing.append((name, value, SETTINGS_FILE if name in self.given else "default"))
        for name, (value, source) in self._defaults.items():
            if value is not None:
                listing.append((name, format_value(value), source))
        return listing

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
                changed[name] = _parse(setting, name, value.strip())
        self._check_whole(self._effective(changed), None)
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
        """Write the topics' file, then believe it."""
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

    def _effective(self, overrides: Mapping[str, Any]) -> LogConfig:
        values = {name: default.value for name, default in self._defaults.items()}
        values.update(overrides)
        internal = values.pop(INTERNAL_SEGMENT_BYTES.name)
        if internal is not None:
            values["segment.bytes"] = internal
        return LogConfig(**{name.replace(".", "_"): value for name, value in values.items()})


def _synonym_value(name: str, text: str, line: int, path: str) -> Any:
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
        raise InvalidConfig(
            f"line {line}: {name}={text} makes {setting.name}={value}, which is not {error}",
            path=path,
        ) from None


def _defaults(given: Mapping[str, Any]) -> dict[str, _Default]:
    """Every topic setting's value without overrides, from the first synonym given."""
    defaults = {}
    for setting in TOPIC_SETTINGS.values():
        defaults[setting.name] = _Default(setting.default, "default")
        for synonym in setting.synonyms:
            if synonym.name in given:
                source = f"{synonym.name} in {SETTINGS_FILE}"
                defaults[setting.name] = _Default(given[synonym.name], source)
                break
    return defaults


def _check_together(config: LogConfig, path: str | None) -> None:
    """The rules that hold between settings (``LogConfig.validateValues``)."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above"
            f" max.compaction.lag.ms={config.max_compaction_lag_ms}",
            path=path,
        )
