"""`kafkafs repair`: checks everything, and salvages or removes what was cut."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples, fail, one_line_errors
from kafkafs.cli.addresses import Address, directory_argument, directory_to_open
from kafkafs.cli.output import Output, output_options
from kafkafs.cli.progress import opening_shown
from storage.plural import counted

if TYPE_CHECKING:
    from storage.directory.checkpoints import Mending

_FIRST = "first"


@click.command(
    "repair",
    epilog=examples(
        "kafkafs repair data",
        "kafkafs repair --salvage --dry-run data",
        "kafkafs repair --log-start orders-0=first data",
    ),
)
@directory_argument()
@click.option(
    "--salvage", "wants_salvage", is_flag=True, help="Take valid batches back from the cuts."
)
@click.option("--dry-run", is_flag=True, help="With --salvage: say what it would take and leave.")
@click.option("--purge", "wants_purge", is_flag=True, help="Remove what was set aside.")
@click.option("--accept-loss", is_flag=True, help="Give up lost records.")
@click.option(
    "--log-start",
    "log_starts",
    multiple=True,
    metavar="TOPIC-N=OFFSET",
    help="Where a partition begins whose log start is not known any more; 'first' stands for its "
    "first record, and alone for all such partitions.",
)
@output_options()
def command(
    where: Address,
    wants_salvage: bool,
    dry_run: bool,
    wants_purge: bool,
    accept_loss: bool,
    log_starts: tuple[str, ...],
    out: Output,
) -> None:
    """Read every byte of a data directory, which must not be mounted, and mend what is damaged.

    A log ends at its first damaged batch, as Kafka has it; the bytes behind it are set aside in
    *.cut files beside it. --salvage takes valid batches back from those, with their offsets;
    --purge removes them. --salvage --dry-run changes nothing, and names what would come back, what
    would not, and why.

    A log that ends before its last flushed record takes no appends, since the lost offsets would be
    given out again; with --accept-loss they are. Where a segment's file is gone, or is shorter than
    it was, reading fails; with --accept-loss readers pass it.

    A partition that cannot be opened is named, and the others are mended; the exit status is 1
    then.
    """
    if dry_run and (wants_purge or accept_loss or log_starts or not wants_salvage):
        raise click.UsageError("--dry-run goes with --salvage")
    from storage.directory.manager import LogManager
    from storage.log.salvage import plan_salvage, salvage
    from storage.segment.cut import purge

    verify = wants_salvage or not wants_purge
    mending = _mending(log_starts)
    told: list[str] = []

    def say(line: object) -> None:
        told.append(str(line))
        out.say(line)

    with (
        one_line_errors(),
        opening_shown() as progress,
        LogManager.open(
            where.data_dir if dry_run else directory_to_open(where),
            verify=verify,
            progress=progress,
            keeps_faulty=True,
            mending=mending,
            read_only=dry_run,
        ) as manager,
    ):
        logs = list(manager.logs())
        for line in [*manager.faults, *manager.cuts]:
            say(line)
        if dry_run:
            for log in logs:
                for planned in plan_salvage(log):
                    say(planned.text("would take back"))
            out.json({"dry_run": True, "lines": told})
            return
        if wants_salvage:
            for log in logs:
                for salvaged in salvage(log, time.time_ns()):
                    say(salvaged)
        for log in logs:
            if accept_loss:
                for first, last in log.lost_ranges:
                    say(f"{log.directory}: offsets {first} to {last} are given up")
                log.accept_loss()
        if accept_loss:
            for line in manager.groups.pull_back(whole=True):
                say(line)
        if wants_purge:
            for log in logs:
                for path in purge(manager.files, log.directory):
                    say(f"{path}: removed")
            for path in purge(manager.files, manager.path):
                say(f"{path}: removed")
        short = [log for log in logs if log.lost_ranges]
        if verify:
            offsets = sum(log.log_end_offset - log.log_start_offset for log in logs)
            state = f"{len(short)} of them lacking a part" if short else "whole"
            say(f"{counted(len(logs), 'partition')} with {counted(offsets, 'offset')}: {state}")
        faulty = len(manager.topics.faulty)
        out.json(
            {
                "dry_run": False,
                "lines": told,
                "partitions": len(logs),
                "lacking": len(short),
                "cannot_be_opened": faulty,
            }
        )
    if faulty:
        raise fail(f"{counted(faulty, 'partition')} cannot be opened")


def _mending(log_starts: tuple[str, ...]) -> Mending:
    """The log starts of the options. BadParameter."""
    from storage import paths
    from storage.directory.checkpoints import Mending

    starts: dict[tuple[str, int], int] = {}
    for text in log_starts:
        name, _, start = text.rpartition("=")
        item = paths.parse_partition_directory(name)
        is_offset = start.isascii() and start.isdecimal() and len(start) <= 19
        if text != _FIRST and (item is None or not (is_offset or start == _FIRST)):
            raise click.BadParameter(f"{text!r} is neither TOPIC-N=OFFSET nor '{_FIRST}'")
        if item is not None:
            starts[item] = int(start) if is_offset else 0
    return Mending(starts, rest_at_first=_FIRST in log_starts)
