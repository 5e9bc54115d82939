"""The settings of a broker's topics, as the broker has recorded them, in its own directory.

A data directory is a *broker's* if it has `meta.properties` or a metadata log. The settings of its
topics are not beside them then, as ours are (`settings`), and a default of ours would delete
records that the broker keeps. They come from

- the metadata log (`metadata_log`), of the same directory or of another one that the broker's file
  or `kafkafs.metadata.log.dir` names: settings of a topic, of the broker, of all brokers;
- the broker's file, `server.properties`, which `kafkafs.broker.config` names: only with that file,
  a setting that is nowhere set has Kafka's default.

The result has the known settings, and the reasons why others are not known. Missing or damaged
files raise nothing: no setting is known then, so nothing is deleted. From a metadata log of a newer
Kafka only the topics' ids and partition counts are used.

Not here: the meaning of the settings, and their precedence (`settings`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptRecord, InvalidConfig, UnusableFile
from storage.files import Files
from storage.settings import java_properties
from storage.settings.config import SYNONYMS
from storage.settings.metadata_log import BROKER, TOPIC, read_metadata

PROTECTING = ("log.cleaner.enable", "delete.topic.enable")
"""The broker's settings that prevent deletions, besides the defaults of topics."""


class BrokerTopic(NamedTuple):
    """A topic in the broker's records: its id, its settings by Kafka's topic names, and the number
    of its partitions in the cluster and of the replicas of each (0: not known).

    In a detached directory also its partitions at that time, and why its settings are not known.
    """

    id: str
    settings: Mapping[str, str] = MappingProxyType({})
    partition_count: int = 0
    partitions: Sequence[int] = ()
    fault: str | None = None
    replicas: int = 0


class Given(NamedTuple):
    """The text of a setting, and where it was set."""

    text: str
    source: str


@dataclass(slots=True)
class BrokerSettings:
    """A broker's settings. `defaults`: by the broker's names, of its file and the metadata log."""

    topics: dict[str, BrokerTopic] = field(default_factory=dict)
    defaults: dict[str, Given] = field(default_factory=dict)
    topics_fault: str | None = None
    """Why no topic's settings are known."""
    defaults_fault: str | None = None
    """Why the other defaults are not known."""
    is_detached: bool = False
    """Whether the broker will not return: then only the `topics` are its own."""

    def why_unknown(self, topic: str, topic_id: str) -> str | None:
        """Return why a topic's settings are not known, or None. The id may be empty."""
        if self.topics_fault is not None:
            return self.topics_fault
        known = self.topics.get(topic)
        if known is None:
            return "the broker's metadata log does not contain this topic"
        if known.fault is not None:
            return known.fault
        if topic_id and known.id != topic_id:
            return "the broker's metadata log has another topic of this name"
        return None


def is_brokers(files: Files, data_dir: str) -> bool:
    """Return whether a broker has written a data directory, and may return to it."""
    return any(
        files.exists(os.path.join(data_dir, name))
        for name in (paths.META_PROPERTIES, paths.METADATA_LOG)
    )


def read(
    files: Files, data_dir: str, broker_config: str | None, metadata_dir: str | None
) -> BrokerSettings | None:
    """Return the settings of a broker's data directory; None if no broker has written it.

    `broker_config`: the broker's file; `metadata_dir`: the directory of its metadata log.
    """
    if not is_brokers(files, data_dir):
        return read_detached(files, data_dir)
    found = BrokerSettings()
    given = _read_properties(files, broker_config, found)
    _take(found, given, f"{broker_config}")
    directory = metadata_dir or _metadata_dir(files, data_dir, given)
    directory = os.path.join(directory, paths.METADATA_LOG)
    try:
        metadata = read_metadata(files, directory)
    except (CorruptRecord, OSError) as error:
        found.topics_fault = _why_unread(files, directory, error)
        return found
    if metadata.later is not None:
        version = f" (metadata.version {metadata.version})" if metadata.version else ""
        found.topics_fault = f"the metadata log was written by a newer Kafka{version}"
    # The narrowest last, as it overrides the others.
    _take(found, metadata.configs.get((BROKER, ""), {}), "the cluster's default")
    node = _node_id(files, data_dir)
    if node is not None:
        _take(found, metadata.configs.get((BROKER, node), {}), "set on the broker")
    elif any(kind == BROKER and name for kind, name in metadata.configs):
        found.defaults_fault = (
            f"the node id of the broker is unknown: there is no usable {paths.META_PROPERTIES}"
        )
    for name, topic_id in metadata.topics.items():
        count = metadata.partitions.get(topic_id, 0)
        replicas, settings = metadata.replicas.get(topic_id, 0), metadata.configs.get((TOPIC, name))
        found.topics[name] = BrokerTopic(topic_id, settings or {}, count, replicas=replicas)
    return found


# -- when no broker comes back ---------------------------------------------------------------------


def is_detached(files: Files, data_dir: str) -> bool:
    """Return whether a broker has written a data directory, and will not return to it."""
    return not is_brokers(files, data_dir) and files.exists(_detached(data_dir))


def _detached(data_dir: str) -> str:
    return os.path.join(data_dir, paths.DETACHED_SETTINGS)


def read_detached(files: Files, data_dir: str) -> BrokerSettings | None:
    """Return the settings that were recorded when a directory was detached; None if it was not."""
    try:
        given = java_properties.parse(files.read_whole(_detached(data_dir)))
    except FileNotFoundError:
        return None
    except UnusableFile as error:
        why = f"{_detached(data_dir)}: {error.strerror}"
        return BrokerSettings(is_detached=True, defaults_fault=why, topics_fault=why)
    found = BrokerSettings(is_detached=True)
    topics: dict[str, dict[str, str]] = {}
    for name, value in given.items():
        kind, _, rest = name.partition("/")
        if kind == "default":
            text, _, source = value.partition(" ")
            found.defaults[rest] = Given(text, source)
        elif kind == "topic":
            topic, _, fact = rest.partition("/")
            topics.setdefault(topic, {})[fact] = value
        elif kind == "defaults-fault":
            found.defaults_fault = value
    for topic, facts in topics.items():
        numbers = [int(each) for each in facts.pop("partitions", "").split(",") if each.isdecimal()]
        topic_id, fault = facts.pop("id", ""), facts.pop("fault", None)
        settings = {name.removeprefix("set/"): value for name, value in facts.items()}
        found.topics[topic] = BrokerTopic(topic_id, settings, 0, numbers, fault)
    return found


def write(
    files: Files, data_dir: str, known: BrokerSettings, partitions: Mapping[str, Sequence[int]]
) -> None:
    """Record the known settings of the topics in the directory; durable. Errors: OSError."""
    lines = ["# Written by kafkafs detach: the settings of the broker of this directory.\n"]
    if known.defaults_fault is not None:
        lines.append(java_properties.line("defaults-fault", known.defaults_fault))
    for name, (text, source) in known.defaults.items():
        if name in SYNONYMS or name in PROTECTING:
            lines.append(java_properties.line(f"default/{name}", f"{text} {source}"))
    for topic, numbers in sorted(partitions.items()):
        facts = {"partitions": ",".join(map(str, numbers))}
        fault = known.why_unknown(topic, "")
        if topic in known.topics:
            facts["id"] = known.topics[topic].id
        if fault is None:
            facts |= {f"set/{name}": text for name, text in known.topics[topic].settings.items()}
        else:
            facts["fault"] = fault
        lines += [java_properties.line(f"topic/{topic}/{name}", facts[name]) for name in facts]
    data = "".join(lines).encode(errors="surrogateescape")
    files.replace_atomically(_detached(data_dir), data)


def remove(files: Files, data_dir: str) -> None:
    """Remove the files of `write`; durable."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(_detached(data_dir))
    files.sync_directory(data_dir)


# -- the broker's files ----------------------------------------------------------------------------


def check_places(
    files: Files, data_dir: str, broker_config: str | None, metadata_dir: str | None
) -> None:
    """Check the paths of a broker's files. Errors: InvalidConfig if the directory is no broker's or
    a path is unreadable; OSError.
    """
    if not is_brokers(files, data_dir):
        raise InvalidConfig("not the directory of a broker", path=data_dir)
    if broker_config is not None:
        files.read_whole(broker_config)
    if metadata_dir is not None:
        directory = os.path.join(metadata_dir, paths.METADATA_LOG)
        try:
            read_metadata(files, directory)
        except CorruptRecord as error:
            raise InvalidConfig(f"the metadata log is damaged: {error}", path=directory) from None


def _read_properties(files: Files, path: str | None, found: BrokerSettings) -> Mapping[str, str]:
    if path is None:
        found.defaults_fault = "the path of the broker's server.properties is not configured"
        return {}
    try:
        return java_properties.parse(files.read_whole(path))
    except OSError as error:
        found.defaults_fault = f"{path}: {error.strerror}"
        return {}


def _take(found: BrokerSettings, given: Mapping[str, str], source: str) -> None:
    """Add settings that override existing ones: one name of a topic's setting overrides all of its
    names (`DynamicBrokerConfig.brokerConfigSynonyms`).
    """
    for name in given:
        if name in SYNONYMS:
            for synonym in SYNONYMS[name][0].synonyms:
                found.defaults.pop(synonym.name, None)
    for name, text in given.items():
        found.defaults[name] = Given(text, source)


def _metadata_dir(files: Files, data_dir: str, given: Mapping[str, str]) -> str:
    """Return the directory of the metadata log (`AbstractKafkaConfig.metadataLogDir`)."""
    if files.exists(os.path.join(data_dir, paths.METADATA_LOG)):
        return data_dir
    named = given.get("metadata.log.dir") or given.get("log.dirs") or given.get("log.dir", "")
    first = named.split(",")[0].strip()
    # A broker follows links in the path; we open no file through one.
    return os.path.realpath(first) if first else data_dir


def _why_unread(files: Files, directory: str, error: CorruptRecord | OSError) -> str:
    if isinstance(error, CorruptRecord):
        return f"the metadata log is damaged: {error}"
    if files.exists(directory):
        return f"{error.filename or directory}: {error.strerror}"
    return f"there is no metadata log {directory}"


def _node_id(files: Files, data_dir: str) -> str | None:
    """Return the broker's number (`meta.properties`)."""
    path = os.path.join(data_dir, paths.META_PROPERTIES)
    try:
        properties = java_properties.parse(files.read_whole(path))
    except OSError:
        return None
    return properties.get("node.id", properties.get("broker.id"))
