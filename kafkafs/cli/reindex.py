"""`kafkafs reindex`: makes indexes anew from the logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    LOGS,
    allow_empty_option,
    checked_directory,
    directory_to_open,
    partitions_at,
    resolve,
)
from kafkafs.cli.common.ending import one_line_errors, say
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import reading_shown
from storage.plural import counted


def _targets(context: click.Context, words: Sequence[str], *, may_be_open: bool) -> list[str]:
    """Directories, or files of segments; click's errors."""
    if all(map(_is_segments, words)):
        for word in words:
            directory = os.path.dirname(os.path.abspath(word))
            checked_directory(context, directory, may_be_partition=True)
        return list(words)
    logs = resolve(context, words, may_be_partition=True)
    data_dir = logs.data_dir if may_be_open else directory_to_open(logs)
    there = partitions_at(logs) if logs.places else []
    return [os.path.join(data_dir, f"{topic}-{n}") for topic, n in there] or [data_dir]


def _is_segments(path: str) -> bool:
    """Whether a path is that of a file of a segment."""
    from storage import paths

    return paths.base_offset_of(os.path.basename(path)) is not None and not os.path.isdir(path)


@click.command(
    "reindex",
    epilog=examples(
        "kafkafs reindex --dry-run data",
        "kafkafs reindex data orders:0",
        "kafkafs reindex data/orders-0/00000000000000000000.log",
    ),
)
@click.argument("words", metavar=f"{LOGS}|FILE...", nargs=-1, required=True)
@allow_empty_option
@click.option(
    "--dry-run",
    "--check",
    is_flag=True,
    help="Only print what differs. Takes no lock; the directory may be in use.",
)
@output_options("dry_run, segments, and the lists different and damaged")
@click.pass_context
def command(context: click.Context, words: Sequence[str], dry_run: bool, out: Output) -> None:
    """Rebuild the .index, .timeindex and .txnindex files that differ from the logs.

    DATA may be the directory of one partition. FILE is a file of a segment. The directory must not
    be in use. reindex also creates missing and unreadable producer snapshots. It prints a line for
    each file that differed. A mount does the same for files that are missing or cannot be right;
    reindex checks every entry.

    The indexes of a damaged log stay: run `kafkafs repair --apply` first. Tiered topics of a
    broker stay as they are.

    Exit status 1: a log is damaged, there are only tiered topics, or with --dry-run something
    differs.
    """
    from storage.verify.reindex import log_bytes, reindex

    with one_line_errors():
        targets = _targets(context, words, may_be_open=dry_run)
        with reading_shown("reading", log_bytes(targets)) as progress:
            outcome = reindex(targets, check_only=dry_run, progress=progress)
    for difference in outcome.different:
        out.say(difference)
    for line in [*outcome.damaged, *outcome.tiered]:
        say(f"kafkafs: {line}", err=True)
    done = "different" if dry_run else "rebuilt"
    files = counted(len(outcome.different), "file")
    out.say(f"{counted(outcome.segments, 'segment')} read, {files} {done}")
    out.json(
        {
            "dry_run": dry_run,
            "segments": outcome.segments,
            "different": list(map(str, outcome.different)),
            "damaged": list(map(str, outcome.damaged)),
            "tiered": outcome.tiered,
        }
    )
    is_refused = outcome.tiered and not outcome.segments
    if outcome.damaged or is_refused or (dry_run and outcome.different):
        sys.exit(1)
