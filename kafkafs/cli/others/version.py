"""`kafkafs version`."""

from __future__ import annotations

from importlib.metadata import version

import click

from kafkafs.cli import examples
from kafkafs.cli.common.output import Output, output_options


@click.command("version", epilog=examples("kafkafs version"))
@output_options()
def command(out: Output) -> None:
    """Print the version."""
    found = version("kafkafs")
    out.say(f"kafkafs {found}")
    out.json({"version": found})
