"""`kafkafs reindex DIR|FILES`: makes indexes anew from the logs."""

from __future__ import annotations

import os
import sys
from functools import partial

import click

from kafkafs.cli import one_line_errors, say
from kafkafs.cli.addresses import allow_empty_option, checked_directory
from kafkafs.cli.progress import reading_shown


def _checked_targets(
    context: click.Context, parameter: click.Parameter, targets: tuple[str, ...]
) -> list[str]:
    """Directories, and files of a segment, whose directory is checked."""
    from storage import paths

    check = partial(checked_directory, context, parameter, may_be_partition=True)
    for target in targets:
        directory, name = os.path.split(os.path.abspath(target))
        is_segments = paths.base_offset_of(name) is not None and not os.path.isdir(target)
        check(directory if is_segments else target)
    return list(targets)


@click.command("reindex")
@click.argument(
    "targets", metavar="DIR|FILE...", nargs=-1, required=True, callback=_checked_targets
)
@allow_empty_option
@click.option("--check", is_flag=True, help="Only say what differs, and take no lock.")
def command(targets: list[str], check: bool) -> None:
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
        say(difference)
    for damage in outcome.damaged:
        say(f"kafkafs: {damage}", err=True)
    done = "differ" if check else "made anew"
    say(f"{outcome.segments} segments read, {len(outcome.different)} files {done}")
    if outcome.damaged or (check and outcome.different):
        sys.exit(1)
