"""The command line. Each command is a module of this package, imported when it runs."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = {
    "mount": "Mount a data directory as files.",
    "umount": "Unmount, and wait until everything is written.",
    "wait": "Wait for what a file in .control has begun.",
    "repair": "Mend a data directory that is not mounted.",
    "verify": "Check everything in a data directory, also one in use.",
    "reindex": "Make indexes anew from the logs.",
    "produce": "Append record batches from standard input.",
    "fetch": "Write messages to standard output, as a fetch response.",
    "compact": "Keep the latest record of each key only.",
    "retain": "Delete what retention lets go of.",
    "config": "Show and change the settings of a topic.",
    "detach": "Make a broker's directory one of kafkafs' own.",
    "handover": "Give topics to a broker that is stopped.",
    "convert": "Rewrite old message formats as v2.",
    "dump": "Print what is in a log's files, as DumpLogSegments does.",
    "spark": "Verify, count, export, import and compact with Spark.",
    "version": "Print the version.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(f"kafkafs.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Without importing the commands.
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A commit log in Apache Kafka's on-disk format, mounted as files."""


def fail(message: str) -> click.ClickException:
    """An exception that prints one line on standard error and exits with status 1."""
    return _Failure(message)


class _Failure(click.ClickException):
    def show(self, file: object = None) -> None:
        click.echo(f"kafkafs: {self.message}", err=True)
