"""`kafkafs reindex DIR|FILES`: makes indexes anew from the logs."""

from __future__ import annotations

import sys

import click

from kafkafs.cli import one_line_errors
from kafkafs.cli.progress import reading_shown


@click.command("reindex")
@click.argument("targets", metavar="DIR|FILE...", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Only say what differs, and take no lock.")
def command(targets: tuple[str, ...], check: bool) -> None:
    """Make the .index, .timeindex and .txnindex files anew from the logs, where they differ.

    DIR is a data directory or a partition's, FILE a file of a segment. The data directory must not
    be in use. Missing and unreadable producer snapshots are made, too. One line a file that
    differed. The indexes of a damaged log are left alone: kafkafs repair comes first.

    Exits with 1 where a log is damaged, and with --check where anything differs.
    """
    from storage.verify.reindex import log_bytes, reindex

    with one_line_errors(), reading_shown("reading", log_bytes(targets)) as progress:
        outcome = reindex(targets, check_only=check, progress=progress)
    for difference in outcome.different:
        click.echo(difference)
    for damage in outcome.damaged:
        click.echo(f"kafkafs: {damage}", err=True)
    done = "differ" if check else "made anew"
    click.echo(f"{outcome.segments} segments read, {len(outcome.different)} files {done}")
    if outcome.damaged or (check and outcome.different):
        sys.exit(1)
