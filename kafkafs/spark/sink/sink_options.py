"""The options of the sink.

`path`: the data directory, which all executors share. `topic`: of all rows, whatever their column
`topic` says. `topicPartitions`: creates a missing topic, with so many partitions. `txnId` (batch
queries): the name of the write; a second write of that name appends nothing. `txnAppId`,
`txnVersion` (batch queries, as Delta Lake has them): who writes, and the number of the write; one
whose number is not above the last one appends nothing. Options for connections (`kafka.…`) have no
effect. Any other name is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from kafkafs.spark.option_values import InvalidOption, long, positive
from storage import paths
from storage.adopt.staged import check_query
from storage.errors import InvalidRecord, UnknownTopicOrPartition
from storage.files import Files

TRANSACTION = "txnId"
APP, VERSION = "txnAppId", "txnVersion"
OF_BATCH_QUERIES = (TRANSACTION, APP, VERSION)
TOPIC_PARTITIONS = "topicPartitions"
_KNOWN = ("path", "topic", TOPIC_PARTITIONS, *OF_BATCH_QUERIES)
# Spark's own options, which it hands on.
_SPARKS = frozenset(("checkpointlocation", "queryname"))
_KAFKA = "kafka."


@dataclass(frozen=True)
class SinkOptions:
    """The checked options.

    `version`: of the application `app`; `topic_partitions`: of a missing topic, None: an error.
    """

    path: str
    topic: str | None
    transaction: str | None
    app: str | None = None
    version: int | None = None
    topic_partitions: int | None = None


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Check the options. InvalidOption; OSError for the path."""
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in _KNOWN} | _SPARKS
    for name in options:
        if name not in known and not name.startswith(_KAFKA):
            raise InvalidOption(f"Unknown option {name!r}. There are: {', '.join(_KNOWN)}")
    topic = options.get("topic")
    if topic is not None and not paths.is_topic_name(topic):
        raise InvalidOption(f"Option 'topic': {topic!r} is not a valid topic name")
    transaction, app = _name(options, TRANSACTION), _name(options, APP)
    version = _version(options)
    if (app is None) != (version is None):
        raise InvalidOption(f"Options {APP!r} and {VERSION!r} require each other: one is missing")
    if app is not None and transaction is not None:
        raise InvalidOption(f"Option {TRANSACTION!r} cannot be used with {APP!r}")
    return SinkOptions(
        _directory(options.get("path", "")),
        topic,
        transaction,
        app,
        version,
        positive(options, TOPIC_PARTITIONS),
    )


def no_topic(path: str, topic: str) -> UnknownTopicOrPartition:
    """The error of a topic that is not there, and is not to be created."""
    return UnknownTopicOrPartition(
        f"there is no topic {topic!r}; the option {TOPIC_PARTITIONS} creates it, or "
        f"kafkafs create {shlex.quote(path)} {shlex.quote(topic)} --partitions N",
        path=path,
    )


def _name(options: Mapping[str, str], option: str) -> str | None:
    """What a write or who writes is called."""
    name = options.get(option.lower())
    if name is not None:
        try:
            check_query(name)
        except InvalidRecord as error:
            raise InvalidOption(f"Option {option!r}: {error.message}") from None
    return name


def _version(options: Mapping[str, str]) -> int | None:
    text = options.get(VERSION.lower())
    if text is None:
        return None
    version = long(text, f"Option {VERSION!r} must be a whole number")
    if version < 0:
        raise InvalidOption(f"Option {VERSION!r} must not be negative, got {text!r}")
    return version


def _directory(option: str) -> str:
    """The absolute path of the data directory, for the driver and executors."""
    if not option:
        raise InvalidOption("Option 'path' must be specified: the data directory of the topics")
    from kafkafs.spark.location.location import check_directory, is_uri, location_of

    if is_uri(option) and not option.startswith("file:"):
        scheme = option.partition(":")[0]
        raise InvalidOption(
            f"Option 'path': the sink appends to logs in a directory that all executors share; "
            f"data directories in {scheme}://… can only be read"
        )
    location = location_of(option)
    check_directory(location, Files())
    return location.path
