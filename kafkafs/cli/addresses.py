"""How commands on an unmounted data directory name topics and partitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from storage.directory.manager import LogManager
    from storage.log.log import Log

_NUMBER = re.compile(r"[0-9]{1,19}")

#: The option `-d`; a command's parameter is `data_dir`.
data_dir_option = click.option(
    "-d",
    "--data-dir",
    envvar="KAFKAFS_DATA",
    default=".",
    metavar="DIR",
    help="The data directory; by default $KAFKAFS_DATA, else the working directory.",
)


def number(text: str, what: str) -> int:
    """Parse a number ≥ 0. click's BadParameter."""
    if _NUMBER.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is no {what}")
    return int(text)


def topic_and_partition(context: click.Context, parameter: click.Parameter, text: Any) -> Any:
    """A click callback: TOPIC:PARTITION as (topic, partition)."""
    topic, colon, partition = str(text).rpartition(":")
    if not colon or not topic:
        raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION")
    return topic, number(partition, "partition")


def logs_at(manager: LogManager, places: Sequence[str]) -> list[Log]:
    """The partitions of TOPIC and TOPIC:PARTITION names, each once; all without a name.

    UnknownTopicOrPartition; click's BadParameter.
    """
    if not places:
        return list(manager.logs())
    logs: dict[Log, None] = {}
    for place in places:
        topic, colon, partition = place.partition(":")
        if colon:
            logs[manager.log(topic, number(partition, "partition"))] = None
        else:
            logs.update(dict.fromkeys(manager.topic(topic).partitions.values()))
    return list(logs)
