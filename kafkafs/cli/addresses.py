"""How commands name a data directory, its topics and partitions.

What is no data directory is refused before the command looks at it, with the command to type where
that is known: a command takes a directory by `data_dir_argument`, `data_dir_option` or
`checked_directory`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from kafkafs.cli import fail

if TYPE_CHECKING:
    from storage.directory.manager import LogManager
    from storage.log.log import Log

_NUMBER = re.compile(r"[0-9]{1,19}")

Place = tuple[str, int | None]
"""A topic and one of its partitions; None: all of them."""

_F = TypeVar("_F", bound=Callable[..., Any])
Needs = Literal["partitions", "files", "nothing"]
_ALLOW_EMPTY = "kafkafs.allow_empty"


def _allow_empty(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[_ALLOW_EMPTY] = value


#: The option `--allow-empty`, for `checked_directory`; the command gets no parameter for it.
allow_empty_option = click.option(
    "--allow-empty",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_allow_empty,
    help="Also where there is no partition.",
)


def checked_directory(
    context: click.Context,
    parameter: click.Parameter,
    text: str,
    *,
    needs: Needs = "partitions",
    may_be_partition: bool = False,
) -> str:
    """A click callback: a data directory as an absolute path without symbolic links.

    `needs`: what it has at least, unless `--allow-empty` is given: partitions, files of Kafka's or
    kafkafs', or nothing, but then also nothing of others. `may_be_partition`: the directory of one
    partition will do.
    """
    from kafkafs.data_directory import Mistake, contents_or_mistake
    from storage.directory.contents import Contents

    option = "-d " if isinstance(parameter, click.Option) else ""

    def wrong(reason: str, instead: str | None = None) -> click.ClickException:
        again = ""
        if instead is not None:
            again = f": {context.command_path} {option}{shlex.quote(instead)}"
        return fail(f"{text}: {reason}{again}")

    path = os.path.realpath(text)
    found = contents_or_mistake(text)
    if isinstance(found, Mistake):
        raise wrong(found.reason, found.instead)
    if found is Contents.LOG and not may_be_partition:
        reason = "one partition's directory, where a data directory is wanted"
        raise wrong(reason, os.path.dirname(path))
    is_fine = (
        found in (Contents.PARTITIONS, Contents.LOG)
        or (found is Contents.SMALL_FILES and needs != "partitions")
        or (found is Contents.NOTHING and needs == "nothing")
    )
    if not is_fine and not context.meta.get(_ALLOW_EMPTY):
        hint = ""
        if option:
            hint = "; -d DIR or $KAFKAFS_DATA names the data directory"
        elif _ALLOW_EMPTY in context.meta:
            hint = " (--allow-empty takes it all the same)"
        what = "no partition" if found is Contents.SMALL_FILES else "neither a partition nor a file"
        raise wrong(f"{what} of Kafka's is here: is it the data directory?{hint}")
    return path


def data_dir_argument(
    *, allow_empty: bool = True, needs: Needs = "partitions", may_be_partition: bool = False
) -> Callable[[_F], _F]:
    """The argument DATA_DIR, as `checked_directory` has it; a command's parameter is `data_dir`.

    `allow_empty`: with the option `--allow-empty`.
    """
    check = partial(checked_directory, needs=needs, may_be_partition=may_be_partition)

    def decorate(function: _F) -> _F:
        if allow_empty:
            function = allow_empty_option(function)
        return click.argument("data_dir", metavar="DATA_DIR", callback=check)(function)

    return decorate


#: The option `-d`; a command's parameter is `data_dir`.
data_dir_option = click.option(
    "-d",
    "--data-dir",
    envvar="KAFKAFS_DATA",
    default=".",
    metavar="DIR",
    callback=checked_directory,
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


def check_places(data_dir: str, places: Sequence[Place]) -> None:
    """Before a command opens `data_dir`, which writes. UnknownTopicOrPartition."""
    from storage import paths
    from storage.errors import UnknownTopicOrPartition
    from storage.files import Files

    there = paths.partitions_in(Files().scan(data_dir))
    for topic, partition in places:
        if topic not in there:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}", path=data_dir)
        if partition is not None and partition not in there[topic]:
            what = f"topic {topic!r} has no partition {partition}"
            raise UnknownTopicOrPartition(what, path=data_dir)


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
