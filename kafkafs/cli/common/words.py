"""Types of parameters: words that Tab completes, durations and sizes.

The type of a parameter decides how its words are completed: FILE, DIRECTORY, LOGS (a data directory
or a mount), topics in that directory, its groups, settings, mount options. A value stays as it was
typed.

A Tab reads a directory and the mount table. It opens no log and runs no callback of a command. The
daemon of a mount may not answer. So a Tab touches a mount only if the data directory cannot be
read, or to list groups. It waits at most `_PATIENCE_S` for the groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem as Item

from kafkafs.cli.common.mounts import mount_around, mount_that_writes
from storage.units import duration_ms, size_bytes

_F = TypeVar("_F", bound=Callable[..., Any])
#: Seconds that a mount may take to list its groups.
_PATIENCE_S = 2.0


class _Word(click.types.StringParamType):
    def words(self, ctx: click.Context, typed: str) -> Iterable[Item]:
        """Return words to complete `typed`, with others that do not begin like it."""
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Item]:
        before = _before(ctx, param)
        return [
            item
            for item in self.words(ctx, incomplete)
            if item.value.startswith(incomplete) and item.value not in before
        ]


class _Path(click.types.StringParamType):
    def __init__(self, name: str) -> None:
        self.name = name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Item]:
        return [Item(incomplete, type=self.name)]


FILE = _Path("file")
DIRECTORY = _Path("dir")


class Topic(_Word):
    """TOPIC of the directory that the command line names.

    `partition`: accept `TOPIC:PARTITION`. `then`: require it, with this character after it.
    `deleted`: complete the topics that can be restored.
    """

    name = "topic"

    def __init__(self, *, partition: bool = False, then: str = "", deleted: bool = False) -> None:
        self._has_partition = partition or bool(then)
        self._then = then
        self._deleted = deleted

    def words(self, ctx: click.Context, typed: str) -> Iterable[Item]:
        there = _topics(ctx, deleted=self._deleted)
        topic, colon, _ = typed.partition(":")
        if colon and self._has_partition:
            return [Item(f"{topic}:{number}{self._then}") for number in there.get(topic, ())]
        return [Item(f"{each}:" if self._then else each) for each in sorted(there)]


class Group(_Word):
    """A group of the mount that the command line names."""

    name = "group"

    def words(self, ctx: click.Context, typed: str) -> Iterable[Item]:
        from kafkafs.child import Child, NoAnswer
        from kafkafs.tree.files.group_names import group_name
        from storage.paths import GROUPS

        path = _directory(ctx)
        mounted, _ = mount_around(path)
        mount = mount_that_writes(os.path.realpath(path)) if mounted is None else mounted.path
        if mount is None:
            return []
        groups = Child(partial(os.listdir, os.path.join(mount, GROUPS)))
        try:
            found = groups.result(_PATIENCE_S)
        except (NoAnswer, OSError):
            return []
        finally:
            groups.leave()
        return map(Item, sorted(filter(None, map(group_name, found))))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from kafkafs.tree.files.group_names import NOT_SHOWN, is_shown

        if not is_shown(value):
            self.fail(NOT_SHOWN, param, ctx)
        return value


class Setting(_Word):
    """NAME=VALUE of a topic: the names, and after `=` the words that are valid values."""

    def words(self, ctx: click.Context, typed: str) -> Iterable[Item]:
        from storage.settings.config import TOPIC_SETTINGS, words_of

        name, equals, _ = typed.partition("=")
        if equals and name in TOPIC_SETTINGS:
            return [Item(f"{name}={word}") for word in words_of(TOPIC_SETTINGS[name])]
        return [Item(f"{name}=") for name in sorted(TOPIC_SETTINGS)]


class Logs(click.types.StringParamType):
    """DATA|MOUNT, or the words of an argument that begins with it or, for FILE, with `first`.

    `others`: the types of the other words; the last may be repeated. After MOUNT/TOPIC, only words
    of the last type follow, and topics are paths, too. `after`: the option without which a word of
    another kind comes first.
    """

    def __init__(self, *others: _Word, first: _Path = DIRECTORY, after: str = "") -> None:
        self._types: tuple[click.types.StringParamType, ...] = (first, *(others or (click.STRING,)))
        self._after = after

    def words_before(self, ctx: click.Context) -> int:
        """Return how many words of another kind come first."""
        return int(bool(self._after) and not ctx.params.get(self._after))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Item]:
        before = _before(ctx, param)
        if len(before) < (others := self.words_before(ctx)):
            return []
        before = before[others:]
        chosen = self._types[min(len(before), len(self._types) - 1)]
        in_mount = _path_in_mount([*before, incomplete][0])
        if before and in_mount:
            chosen = self._types[-1]
        # The path of a partition is a file.
        if (in_mount is not None and not before) or (in_mount and isinstance(chosen, Topic)):
            chosen = FILE
        return chosen.shell_complete(ctx, param, incomplete)


#: DATA|MOUNT [TOPIC[:PARTITION]]...
LOG_WORDS = Logs(Topic(partition=True))


class OptionList(_Word):
    """Mount options, separated by commas. The last one is completed."""

    name = "options"

    def words(self, ctx: click.Context, typed: str) -> Iterable[Item]:
        from kafkafs.mount_options import OPTIONS

        others, comma, _ = typed.rpartition(",")
        given = {word.partition("=")[0] for word in others.split(",")}
        for option in OPTIONS:
            values = option.value.split("|") if "|" in option.value else [""]
            words = (
                [f"{option.name}={value}" for value in values] if option.value else [option.name]
            )
            if option.name not in given:
                yield from (Item(f"{others}{comma}{word}", help=option.meaning) for word in words)


def words_argument(
    metavar: str,
    words: Logs = LOG_WORDS,
    *,
    name: str = "words",
    callback: Callable[..., Any] | None = None,
) -> Callable[[_F], _F]:
    """Add an argument of one or more words."""
    return click.argument(
        name, metavar=metavar, type=words, nargs=-1, required=True, callback=callback
    )


def options_as(name: str, make: Callable[..., object], *options: Any) -> Callable[[_F], _F]:
    """Add options. The command gets one parameter for them: what `make` returns for their values,
    which are named as the parameters of `make`.
    """
    own = signature(make).parameters

    def decorate(function: _F) -> _F:
        @wraps(function)
        def with_options(*arguments: Any, **named: Any) -> Any:
            values = {each: named.pop(each) for each in own}
            return function(*arguments, **{name: make(**values)}, **named)

        command: Any = with_options
        for option in reversed(options):
            command = option(command)
        decorated: _F = command
        return decorated

    return decorate


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    def __init__(
        self, parse: Callable[[str, str], int], unit: str, least: str, most: str | None
    ) -> None:
        self._parse, self._unit, self._least, self._most = parse, unit, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        try:
            number = self._parse(value, self._unit)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)
        if number < self._parse(self._least, self._unit):
            self.fail(f"{value!r} is less than {self._least}", param, ctx)
        if self._most is not None and number > self._parse(self._most, self._unit):
            self.fail(f"{value!r} is more than {self._most}", param, ctx)
        return number


class Duration(_Quantity):
    """A duration, as milliseconds. A number without a unit has the given one."""

    name = "duration"

    def __init__(self, unit: str = "ms", least: str = "0") -> None:
        super().__init__(duration_ms, unit, least, None)


class ByteCount(_Quantity):
    """A size, as bytes."""

    name = "size"

    def __init__(self, least: str = "0", most: str | None = None) -> None:
        super().__init__(size_bytes, "B", least, most)


def _before(ctx: click.Context, param: click.Parameter) -> Sequence[str]:
    """Return the words of the same argument that were typed before."""
    return (ctx.params.get(param.name or "") if param.nargs == -1 else None) or ()


def _directory(ctx: click.Context) -> str:
    """Return the data directory, or the mount, that a command line names; "": none."""
    for parameter in ctx.command.params:
        if isinstance(parameter.type, Logs):
            value = ctx.params.get(parameter.name or "")
            if isinstance(value, tuple):
                value = value[parameter.type.words_before(ctx) :]
            first = value[0] if isinstance(value, tuple) and value else value
            if isinstance(first, str) and first:
                return os.path.expanduser(first)
    # While the value of an option is completed, click has not assigned the arguments.
    return os.path.expanduser(ctx.args[0]) if ctx.args else ""


def _path_in_mount(path: str) -> str | None:
    """Return the part of a path below a mount; "": the mount itself; None: not in a mount."""
    mounted, place = mount_around(os.path.expanduser(path) or ".")
    return None if mounted is None else place.removeprefix(mounted.path)


def _topics(ctx: click.Context, *, deleted: bool) -> dict[str, list[int]]:
    """Return the partitions by topic of the directory that a command line names.

    The result is empty if the directory cannot be read.
    """
    from storage import paths
    from storage.files import Files

    path = _directory(ctx)
    mounted, _ = mount_around(path)
    try:
        source = os.path.realpath(path if mounted is None else mounted.source)
        entries = Files().listing(source) if path else []
    except OSError:
        if mounted is None:
            return {}
        # This user cannot read the data directory.
        try:
            return {
                topic: sorted(map(int, os.listdir(os.path.join(mounted.path, topic))))
                for topic in os.listdir(mounted.path)
            }
        except (OSError, ValueError):
            return {}
    if deleted:
        aside = (paths.parse_aside_directory(name) for name, _ in entries)
        return {each.topic: [] for each in aside if each is not None and each.kind == "delete"}
    there = paths.partitions_in(entries)
    return {topic: there[topic] for topic in there.keys() - paths.INTERNAL_TOPICS}
