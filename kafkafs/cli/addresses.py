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

Place = tuple[str, int | None]
"""A topic and one of its partitions; None: all of them."""

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


def parsed_places(
    context: click.Context, parameter: click.Parameter, texts: Any
) -> tuple[Place, ...]:
    """A click callback: several TOPIC or TOPIC:PARTITION."""
    found: list[Place] = []
    for text in texts:
        topic, colon, partition = text.partition(":")
        found.append((topic, number(partition, "partition") if colon else None))
    return tuple(found)


#: The argument `[TOPIC[:PARTITION]]...`; a command's parameter is `places`.
places_argument = click.argument(
    "places", metavar="[TOPIC[:PARTITION]]...", nargs=-1, callback=parsed_places
)


def logs_at(manager: LogManager, places: Sequence[Place]) -> list[Log]:
    """The logs of these places, each once; all logs without a place. UnknownTopicOrPartition."""
    if not places:
        return list(manager.logs())
    logs: dict[Log, None] = {}
    for topic, partition in places:
        if partition is not None:
            logs[manager.log(topic, partition)] = None
        else:
            logs.update(dict.fromkeys(manager.topic(topic).partitions.values()))
    return list(logs)
