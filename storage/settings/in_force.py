"""Decides the value of each setting, and its source: the rules of `settings`, without a file.

A broker's names stand for several of a topic's: `log.retention.hours` for `retention.ms`. If a
value from a broker is invalid here, because its version has other rules, it counts as unknown if it
decides about deletion, and is ignored otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from storage.errors import InvalidConfig
from storage.plain_forms import plain_forms
from storage.settings.broker_settings import PROTECTING, BrokerSettings
from storage.settings.config import (
    BROKER_SETTINGS,
    DECIDES_COMPACTION,
    DECIDES_DELETION,
    DECISIVE,
    INTERNAL_SEGMENT_BYTES,
    KAFKA_RETENTION_MS,
    LONG_MAX,
    REMOTE_STORAGE,
    SYNONYMS,
    TOPIC_SETTINGS,
    LogConfig,
    Setting,
    format_value,
    no_such_setting,
    whole_number,
)
from storage.settings.setting_files import Line, parse

LARGEST = "max.message.bytes"
BY_US = "set on the topic"
DEFAULT = "default"

# A log rolls when its active segment has reached this part of the retained size or time.
_ROLLS_AT = 8
_LEAST_SEGMENT_BYTES = 1 << 20
_LEAST_SEGMENT_MS = 60_000

# The unknown settings of a topic whose metadata cannot be read.
_HIDDEN = DECISIVE | {REMOTE_STORAGE}


class Sourced(NamedTuple):
    """A setting's value and its source."""

    value: Any
    source: str
    is_known: bool = True


def parse_known(name: str, text: str, source: str, setting: Setting) -> dict[str, Sourced]:
    """Return the value of a broker's text by name; none if it may be ignored: a broker refuses
    wrong values, but other versions have other rules.
    """
    try:
        is_topics = name == setting.name
        value = parse(setting, name, text) if is_topics else _synonym_value(name, text)
        return {name: Sourced(value, source)}
    except InvalidConfig:
        unknown = Sourced(setting.default, source, is_known=False)
        return {name: unknown} if setting.name in _HIDDEN else {}


def unknown_deciding(found: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Return the same values, but with the deciding ones about deletion and tiering unknown."""
    return {**found, **{name: found[name]._replace(is_known=False) for name in _HIDDEN}}


def each_from(values: Mapping[str, Any], source: str) -> dict[str, Sourced]:
    """Return these values by name, all from one source."""
    return {name: Sourced(value, source) for name, value in values.items()}


def listed(in_force: Mapping[str, Sourced]) -> list[tuple[str, str, str]]:
    """Return (name, value, source) of the settings, in this order."""
    return [
        (name, format_value(value) if is_known else "unknown", source)
        for name, (value, source, is_known) in in_force.items()
        if value is not None
    ]


def with_roll_limits(in_force: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Derive `segment.bytes` and `segment.ms` from retention if they are not set.

    Retention deletes whole segments. So the log rolls at an eighth of `retention.bytes` and of
    `retention.ms`, and never later than by Kafka's defaults. A segment can always hold the largest
    batch.
    """
    found = dict(in_force)
    policy, rule = in_force["cleanup.policy"].value, in_force["kafkafs.retention.policy"].value
    if "delete" not in policy or rule != "kafka":
        return found
    least_bytes = max(_LEAST_SEGMENT_BYTES, min(in_force[LARGEST].value, plain_forms.budget))
    for name, retention, least in (
        ("segment.bytes", "retention.bytes", least_bytes),
        ("segment.ms", "retention.ms", _LEAST_SEGMENT_MS),
    ):
        default, kept = in_force[name], in_force[retention]
        limit = max(kept.value // _ROLLS_AT, least)
        is_limited = kept.is_known and kept.value >= 0
        if default.source == DEFAULT and is_limited and limit < default.value:
            found[name] = Sourced(limit, f"derived from {retention}")
    return found


def config_of(in_force: Mapping[str, Sourced]) -> LogConfig:
    """Return all values of a topic for its log."""
    values = {name: default.value for name, default in in_force.items()}
    internal = values.pop(INTERNAL_SEGMENT_BYTES.name)
    if internal is not None:
        values["segment.bytes"] = internal
    # A file or a broker may set more than the budget of memory.
    values[LARGEST] = min(values[LARGEST], plain_forms.budget)
    fields = {name.replace(".", "_"): value for name, value in values.items()}
    return LogConfig(**fields, unknown=_unknown(in_force))


def _unknown(in_force: Mapping[str, Sourced]) -> tuple[str, ...]:
    """Return the deciding settings that are not known."""
    policy = in_force["cleanup.policy"]
    names: list[str] = []
    if not policy.is_known or "delete" in policy.value:
        names += DECIDES_DELETION
    # A user who sets compact here wants it; if the broker has set it, it may have set more.
    if policy.is_known and "compact" in policy.value and policy.source != BY_US:
        names += DECIDES_COMPACTION
    return tuple(dict.fromkeys(name for name in names if not in_force[name].is_known))


# -- the broker's names ----------------------------------------------------------------------------


def daemon_values(given: Mapping[str, Line]) -> dict[str, Any]:
    """Return the daemon's settings in the lines of a file. Errors: InvalidConfig."""
    values = {}
    for name, line in given.items():
        if name in BROKER_SETTINGS:
            values[name.replace(".", "_")] = parse(BROKER_SETTINGS[name], name, line.value, line)
        elif name not in SYNONYMS:
            raise line.error(no_such_setting(name, [*BROKER_SETTINGS, *SYNONYMS]))
    return values


def _synonym_value(name: str, text: str, line: Line | None = None) -> Any:
    """Return a broker setting's value as the topic setting has it. Errors: InvalidConfig."""
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
        reason = f"{name}={text} gives {setting.name}={value}, which is not {error}"
        raise (InvalidConfig(reason) if line is None else line.error(reason)) from None


def _from_synonyms(values: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Return topic settings from the broker's names, each from its first name that is set."""
    found = {}
    for setting in TOPIC_SETTINGS.values():
        for synonym in setting.synonyms:
            if synonym.name in values:
                found[setting.name] = values[synonym.name]
                break
    return found


def standard_defaults() -> dict[str, Sourced]:
    """Return the defaults of topics made here."""
    return each_from({name: setting.default for name, setting in TOPIC_SETTINGS.items()}, DEFAULT)


def our_defaults(given: Mapping[str, Line], place: str) -> dict[str, Sourced]:
    """Return a file's settings for all topics; messages call it `place`. Errors: InvalidConfig."""
    return _from_synonyms(
        {
            name: Sourced(_synonym_value(name, line.value, line), f"{name} in {place}")
            for name, line in given.items()
            if name in SYNONYMS
        }
    )


def broker_defaults(theirs: BrokerSettings, ours: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Return the settings of a broker's topics without overrides."""
    defaults = standard_defaults()
    defaults["retention.ms"] = Sourced(KAFKA_RETENTION_MS, "Kafka's default")
    if theirs.defaults_fault is not None:
        for name in DECISIVE:
            defaults[name] = defaults[name]._replace(source="the broker's", is_known=False)
    given: dict[str, Sourced] = {}
    for name, (text, source) in theirs.defaults.items():
        if name in SYNONYMS:
            given |= parse_known(name, text, f"{name}, {source}", SYNONYMS[name][0])
    passed = {name: each for name, each in ours.items() if name not in DECISIVE}
    return {**defaults, **_from_synonyms(given), **passed}


def protecting_values(theirs: BrokerSettings, given: Mapping[str, Line]) -> dict[str, Any]:
    """Return those of the daemon's settings in the broker's file that prevent deletion."""
    found = {}
    for name in PROTECTING:
        if name in theirs.defaults and name not in given:
            with contextlib.suppress(InvalidConfig):
                found[name] = parse(BROKER_SETTINGS[name], name, theirs.defaults[name].text)
    return found
