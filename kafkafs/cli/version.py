"""`kafkafs version`."""

from __future__ import annotations

from importlib.metadata import version

import click

from kafkafs.cli import examples


@click.command("version", epilog=examples("kafkafs version"))
def command() -> None:
    """Print the version."""
    click.echo(f"kafkafs {version('kafkafs')}")
