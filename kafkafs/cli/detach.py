"""`kafkafs detach DATA_DIR`: makes a broker's directory one of kafkafs' own, or undoes that."""

from __future__ import annotations

import os

import click

from kafkafs.cli import one_line_errors


@click.command("detach")
@click.argument("data_dir", metavar="DATA_DIR")
@click.option("--undo", is_flag=True, help="It is its broker's again.")
def command(data_dir: str, undo: bool) -> None:
    """Make the directory DATA_DIR of a broker, which must not be in use, one of kafkafs' own.

    Before, no topics and partitions are made in it, as the broker would delete them when it comes
    back. What it has set on its topics is written down first (kafkafs-broker.properties), and holds
    on; then its meta.properties and its metadata log get the suffix .detached, and a broker that is
    started on DATA_DIR all the same refuses to. Name its server.properties first, if that is there:
    kafkafs config DATA_DIR --broker-config FILE. One line for each topic whose settings are not
    known, of which nothing is deleted or compacted before they are set.

    --undo gives everything its names back, unless topics or partitions have been made since. What
    was appended stays.
    """
    from storage.directory import detach
    from storage.directory.manager import LogManager

    path = os.path.realpath(data_dir)
    with one_line_errors(), LogManager.alone(path) as files:
        if undo:
            detach.undo(files, path)
            return
        lines = detach.detach(files, path)
    for line in lines:
        click.echo(f"kafkafs: {line}", err=True)
