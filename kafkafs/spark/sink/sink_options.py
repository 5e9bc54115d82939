"""Parses the options of the sink; `docs/spark.md` describes each.

Options for connections (`kafka.…`) have no effect. Any other name is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from kafkafs.spark.option_values import (
    InvalidOption,
    did_you_mean,
    flag,
    long,
    positive,
    unknown,
)
from storage import paths
from storage.adopt.staged import check_query
from storage.errors import InvalidRecord, UnknownTopicOrPartition
from storage.files import Files

TRANSACTION = "txnId"
APP, VERSION = "txnAppId", "txnVersion"
OF_BATCH_QUERIES = (TRANSACTION, APP, VERSION)
TOPIC_PARTITIONS = "topicPartitions"
_TUNE = "tuneWorkers"
_KNOWN = ("path", "topic", TOPIC_PARTITIONS, *OF_BATCH_QUERIES, _TUNE)
# Spark's own options, which it passes on.
_SPARKS = frozenset(("checkpointlocation", "queryname"))
_KAFKA = "kafka."


@dataclass(frozen=True)
class SinkOptions:
    """The checked options.

    `version`: the number of the write of the application `app`. `topic_partitions`: create a
    missing topic with this number; None: a missing topic is an error.
    """

    path: str
    topic: str | None
    transaction: str | None
    app: str | None = None
    version: int | None = None
    topic_partitions: int | None = None
    tune_workers: bool = False


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Check the options. InvalidOption; OSError for the path."""
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in _KNOWN} | _SPARKS
    for name in options:
        if name not in known and not name.startswith(_KAFKA):
            raise unknown(name, _KNOWN)
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
        flag(options, _TUNE, False),
    )


def no_topic(path: str, topic: str) -> UnknownTopicOrPartition:
    """Return the error of a missing topic that no option creates. OSError."""
    hint = did_you_mean(topic, paths.partitions_in(Files(path).listing(path))) or "."
    return UnknownTopicOrPartition(
        f"there is no topic {topic!r}{hint} To create it: option {TOPIC_PARTITIONS!r}, or "
        f"kafkafs create {shlex.quote(path)} {shlex.quote(topic)} --partitions N",
        path=path,
    )


def _name(options: Mapping[str, str], option: str) -> str | None:
    """Return the name that an option gives to the write or to its application."""
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
    """Return the absolute path of the data directory, for the driver and executors."""
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
