"""The command line. Each command is a module of this package, imported when it runs.

`common` has what they share, `mount_helpers` the programs that mount(8) and umount(8) start.
`completion` tells a shell what Tab completes; `man` writes the manual pages, with `roff`.
"""

from __future__ import annotations

import keyword
import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kafkafs.cli.common.ending import (
    did_you_mean,
    ended_in_order,
    failing_with,
    open_standard_streams,
)
from kafkafs.cli.common.output import printing_json
from kafkafs.printable import one_line

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Section(NamedTuple):
    """Commands below one heading of `--help`."""

    title: str
    package: str
    """Each command is a module of it."""
    helps: Mapping[str, str]
    """The line of `--help` for each command."""
    is_hidden: bool = False
    """`--help` leaves it out."""


_SECTIONS = (
    Section(
        "Mounting",
        f"{__name__}.mounting",
        {
            "mount": "Mount a data directory as files.",
            "umount": "Unmount, and wait until everything is written.",
            "mounts": "List the mounts on this machine.",
            "top": "Show the activity of a mount, live.",
            "doctor": "Check this machine, a mount or a data directory.",
        },
    ),
    Section(
        "Topics",
        f"{__name__}.topics",
        {
            "ls": "List topics, or the partitions of a topic.",
            "describe": "Show the offsets, segments and settings of topics.",
            "create": "Create a topic.",
            "delete": "Delete topics. For a while, undelete can restore them.",
            "undelete": "Restore a deleted topic.",
            "config": "Show settings, or change the settings of a topic.",
        },
    ),
    Section(
        "Records",
        f"{__name__}.records",
        {
            "cat": "Print records.",
            "grep": "Print the records that contain a word.",
            "tail": "Print the last lines of partitions. With -f, also print new lines.",
            "append": "Append lines or record batches from standard input.",
            "consume": "Read topics as a consumer, alone or in a group.",
            "groups": "List consumer groups with their lag, or reset their offsets.",
        },
    ),
    Section(
        "Maintenance",
        f"{__name__}.maintenance",
        {
            "verify": "Check every byte of a data directory, which may be in use.",
            "repair": "Repair a data directory that is not in use.",
            "compact": "Keep only the latest record of each key.",
            "prune": "Delete old segments, as retention does.",
            "words": "Build files that make searches fast.",
        },
    ),
    Section(
        "Kafka brokers",
        f"{__name__}.brokers",
        {
            "mirror": "Copy the topics of a cluster, and follow them.",
            "points": "List and name the restore points of a mirror.",
            "detach": "Turn a broker's directory or a mirror into a directory of kafkafs.",
            "handover": "Hand topics over to a stopped broker.",
            "convert": "Rewrite old message formats as v2.",
            "dump": "Print the files of a log, like Kafka's DumpLogSegments.",
        },
    ),
    Section(
        "Spark",
        __name__,
        {"spark": "Verify, count, export, import and compact records with Spark."},
    ),
    Section(
        "Others",
        f"{__name__}.others",
        {
            "wait": "Wait for the job of a file in .control.",
            "fetch": "Write messages to standard output as a fetch response of Kafka 0.7.",
            "version": "Print the version.",
        },
        is_hidden=True,
    ),
)

# Other names that people type for a command.
_ALIASES = {"unmount": "umount"}

# The present words for the names of earlier versions.
_RENAMED = {
    "expire": "prune",
    "produce": "append --view batches",
    "reindex": "repair --indexes",
    "topics": "ls",
}

# The names that other programs have for a command.
_CALLED_SO_ELSEWHERE = {
    "list": "ls",
    "print": "cat",
    "retain": "prune",
    "rm": "delete",
    "search": "grep",
    "status": "mounts",
}

# Commands that change data. A word that is not close to one of them may have meant to read.
_CHANGE_DATA = frozenset(
    {
        *("append", "compact", "config", "consume", "convert", "create", "delete", "detach"),
        *("handover", "import", "mirror", "prune", "repair", "undelete"),
    }
)
_CLOSE = 0.75


class LazyGroup(click.Group):
    """A group whose commands are modules of the packages of its sections, imported when they run.

    `aliases`: other names of commands, which help does not list. `default`: the command to run if
    none is named.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        aliases: Mapping[str, str] = MappingProxyType({}),
        default: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.sections = sections
        self.helps = {name: text for each in sections for name, text in each.helps.items()}
        self._aliases = aliases
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.helps)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._aliases.get(cmd_name, cmd_name)
        if name not in self.helps:
            return None
        package = next(each.package for each in self.sections if name in each.helps)
        module = f"{name}_" if keyword.iskeyword(name) else name
        command = import_module(f"{package}.{module}").command
        assert isinstance(command, click.Command)
        if ctx.resilient_parsing:  # it is completed, and not run
            from kafkafs.cli.completion import prepared

            return prepared(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help" and not ctx.resilient_parsing:
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if self._default is not None and args[0] not in self.helps:
            args = [self._default, *args]
        given = args[0]
        # An option goes to click, which says what is wrong with it.
        if given[:1] != "-" and not ctx.resilient_parsing and self.get_command(ctx, given) is None:
            raise click.UsageError(f"there is no command {given!r}{self._meant(ctx, args)}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return command.name if command is not None else name, command, rest

    def _meant(self, ctx: click.Context, args: Sequence[str]) -> str:
        """What to type instead."""
        given, *rest = args
        words = _RENAMED.get(given, "").split()
        if words and words[0] in self.helps:
            return f". Try: {shlex.join([ctx.command_path, *words, *rest])}"
        elsewhere = _CALLED_SO_ELSEWHERE.get(given)
        if elsewhere in self.helps:
            return f": did you mean {elsewhere!r}?"
        reading = self.helps.keys() - _CHANGE_DATA
        reading |= {name for name, of in self._aliases.items() if of in reading}
        changing = self.helps.keys() & _CHANGE_DATA
        return did_you_mean(given, changing, cutoff=_CLOSE) or did_you_mean(given, reading)

    def main(self, *arguments: Any, **settings: Any) -> Any:
        if "_KAFKAFS_COMPLETE" in os.environ:
            import kafkafs.cli.completion  # noqa: F401 - which tells click how
        open_standard_streams()
        # Whatever has started it: the lines to type that errors give begin with this name.
        return super().main(*arguments, **{"prog_name": "kafkafs", **settings})

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with ended_in_order():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with ended_in_order(), printing_json(ctx.meta):
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete[:1] == "-":
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        # click would import each of them. The hidden ones and the aliases complete what is typed.
        helps = {
            name: text
            for section in self.sections
            if incomplete or not section.is_hidden
            for name, text in section.helps.items()
        }
        if incomplete:
            helps |= {name: helps[of] for name, of in self._aliases.items() if of in helps}
        return [
            CompletionItem(name, help=text)
            for name, text in helps.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [each for each in self.sections if not each.is_hidden]
        width = max(len(name) for each in shown for name in each.helps)
        for section in shown:
            with formatter.section(section.title):
                rows = [(name.ljust(width), text) for name, text in section.helps.items()]
                formatter.write_dl(rows)


class LikeAnotherProgram(click.Command):
    """A command whose errors have the exit status `failed`, which another program has for them."""

    def __init__(self, *arguments: Any, failed: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._failed = failed

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with failing_with(self._failed):
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with failing_with(self._failed), printing_json(ctx.meta):
            return super().invoke(ctx)


def examples(*lines: str) -> str:
    """The `epilog` of a command: lines to type, each perhaps followed by `  # why`."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


@click.group(
    cls=LazyGroup,
    sections=_SECTIONS,
    aliases=_ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=examples("kafkafs mount data mnt", "kafkafs verify mnt/orders", "kafkafs umount mnt"),
)
@click.version_option(package_name="kafkafs", message="kafkafs %(version)s")
def main() -> None:
    """A commit log in Apache Kafka's on-disk format, mounted as files.

    A topic is a directory, a partition is a file, a record is a line. DATA is a directory of logs
    on the disk, empty at first, or a broker's. MOUNT is where it is mounted; MOUNT/.kafkafs/help
    says what is there.
    """
    import logging

    class OneLine(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return one_line(super().format(record))

    # Warnings of the storage go to standard error, where no daemon takes them into its log.
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(OneLine())
