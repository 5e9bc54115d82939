"""`kafkafs repair`: checks everything, and salvages or removes what was cut."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, directory_argument, directory_to_open
from kafkafs.cli.common.ending import fail, one_line_errors
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import opening_shown
from storage.plural import counted

if TYPE_CHECKING:
    from storage.directory.checkpoints import Mending
    from storage.directory.manager import LogManager
    from storage.log.log import Log

_FIRST = "first"
_NOTHING = "nothing to restore"


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
    "--salvage",
    "wants_salvage",
    is_flag=True,
    help="Restore the valid batches of the *.cut files, with their offsets.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help=(
        "Only print what would be cut. With --salvage: what would be restored, what not, and why; "
        "the directory may then be in use."
    ),
)
@click.option(
    "--purge",
    "wants_purge",
    is_flag=True,
    help="Remove the *.cut and *.bad files. Alone, it reads nothing.",
)
@click.option("--accept-loss", is_flag=True, help="Accept the loss of damaged and missing records.")
@click.option(
    "--log-start",
    "log_starts",
    multiple=True,
    metavar="TOPIC-N=OFFSET",
    help=(
        "First offset of a partition whose log start is unknown. TOPIC-N=first: its first record. "
        "first: the first records of all such partitions. May be repeated."
    ),
)
@output_options(
    "lines, the messages about single files, and the counts partitions, lacking (a part) and "
    "cannot_be_opened"
)
def command(
    where: Address,
    wants_salvage: bool,
    dry_run: bool,
    wants_purge: bool,
    accept_loss: bool,
    log_starts: tuple[str, ...],
    out: Output,
) -> None:
    """Read every byte of a data directory that is not in use, and repair damage.

    repair cuts off the bytes that a mount would cut off, and bytes after the last batch of a
    segment. It stores them in *.cut files beside the log, except zeros.

    If a mount shows records after a damaged batch, repair leaves the log as it is and prints how
    many records these are. --salvage and --accept-loss end the log at the damaged batch. --salvage
    then restores the valid batches after it, with their offsets. --accept-loss leaves them in the
    *.cut files.

    A log that ends before its last flushed record takes no appends, because they would get the lost
    offsets again. After --accept-loss it takes them. If the file of a segment is missing or shorter
    than it was, reading fails; after --accept-loss readers skip it.

    Tiered topics of a broker stay as they are, and standard error names them. Standard error also
    lists everything that was found. Standard output lists everything that was done. If a partition
    cannot be opened, it is named, and the others are repaired.

    Exit status 1: something was cut, or would be; or --salvage left records that the log does not
    have. It is also 1 if a log is damaged, if it lacks a part and the loss is not accepted, or if
    a partition cannot be opened. Cuts of an earlier repair count only with --salvage.
    """
    if dry_run and (wants_purge or accept_loss or log_starts):
        raise click.UsageError("--dry-run can only be used alone or with --salvage")
    from storage.directory.manager import LogManager

    verify = wants_salvage or not wants_purge
    mending = _mending(log_starts, may_hide=wants_salvage or accept_loss)
    told: list[str] = []

    def say(line: object) -> None:
        told.append(str(line))
        out.say(line)

    with (
        one_line_errors(),
        opening_shown() as progress,
        LogManager.open(
            where.data_dir if dry_run and wants_salvage else directory_to_open(where),
            verify=verify,
            progress=progress,
            keeps_faulty=True,
            mending=mending,
            read_only=dry_run,
        ) as manager,
    ):
        if dry_run and not wants_salvage:
            _check_alone(manager)
        # Opening has said them.
        told += map(str, [*manager.faults, *manager.cuts])
        if dry_run:
            is_well = _plan(manager, say, wants_salvage=wants_salvage)
            out.json({"dry_run": True, "lines": told})
            sys.exit(0 if is_well else 1)
        logs = _writable(manager)
        if wants_salvage:
            lacking = _salvage(logs, say)
        else:
            cut = {os.path.dirname(each.path) for each in manager.cuts if each.ends_log}
            lacking = {log for log in logs if log.directory in cut or _is_uncut(manager, log)}
        if accept_loss:
            _accept_loss(manager, say)
        if wants_purge:
            _purge(manager, say)
        lacking.update(log for log in logs if log.lost_ranges)
        if verify:
            offsets = sum(log.log_end_offset - log.log_start_offset for log in logs)
            state = f"{len(lacking)} of them incomplete" if lacking else "whole"
            say(f"{counted(len(logs), 'partition')} with {counted(offsets, 'offset')}: {state}")
        faulty = len(manager.topics.faulty)
        out.json(
            {
                "dry_run": False,
                "lines": told,
                "partitions": len(logs),
                "lacking": len(lacking),
                "cannot_be_opened": faulty,
            }
        )
    if faulty:
        raise fail(f"{counted(faulty, 'partition')} cannot be opened")
    if manager.cuts or lacking:
        sys.exit(1)


def _check_alone(manager: LogManager) -> None:
    """LogLocked where another process has the directory: what that one appends meanwhile would look
    like what is to be cut.
    """
    from storage import paths
    from storage.errors import LogLocked

    lock = os.path.join(manager.path, paths.LOCK)
    holder = manager.files.locked_by(lock)
    if holder is not None:
        raise LogLocked(holder, path=lock)


def _writable(manager: LogManager) -> list[Log]:
    """All logs but those of tiered topics, which stay as they are."""
    return [log for log in manager.logs() if log.tiered is None]


def _plan(manager: LogManager, say: Callable[[str], None], *, wants_salvage: bool) -> bool:
    """Say what a repair would cut, or take back; returns whether there is nothing wrong."""
    from storage.log.salvage import plan_cuts, plan_salvage

    logs = _writable(manager)
    cuts = [line for log in logs for line in plan_cuts(log)]
    damaged = 0
    if wants_salvage:
        planned = [each for log in logs for each in plan_salvage(log)]
        for line in (line for each in planned for line in each.lines("would restore")):
            say(line)
        if not any(each.records for each in planned):
            say(_NOTHING)
        damaged = sum(each.damaged for each in planned)
    else:
        for line in cuts or ["nothing to cut"]:
            say(line)
    is_short = any(log.lost_ranges or _is_uncut(manager, log) for log in logs)
    return not (cuts or damaged or is_short or manager.topics.faulty)


def _is_uncut(manager: LogManager, log: Log) -> bool:
    """Whether a log has damage at which it was not ended."""
    return (log.topic, log.partition) in manager.loader.uncut


def _salvage(logs: Sequence[Log], say: Callable[[str], None]) -> set[Log]:
    """Take back what is valid in the cuts; returns the logs that do not have all that was cut."""
    from storage.log.salvage import salvage

    lacking, taken = set(), 0
    for log in logs:
        salvaged = salvage(log, time.time_ns())
        taken += sum(each.records for each in salvaged)
        for line in (line for each in salvaged for line in each.lines("restored")):
            say(line)
        if any(each.damaged for each in salvaged):
            lacking.add(log)
    if not taken:
        say(_NOTHING)
    return lacking


def _accept_loss(manager: LogManager, say: Callable[[str], None]) -> None:
    """Give up what is lost."""
    for log in _writable(manager):
        for first, last in log.lost_ranges:
            say(f"{log.directory}: gave up offsets {first} to {last}")
        log.accept_loss()
    for line in manager.groups.pull_back(whole=True):
        say(str(line))


def _purge(manager: LogManager, say: Callable[[str], None]) -> None:
    """Remove what was set aside."""
    from storage.segment.cut import purge

    for directory in [*(log.directory for log in _writable(manager)), manager.path]:
        for path in purge(manager.files, directory):
            say(f"{path}: removed")


def _mending(log_starts: tuple[str, ...], *, may_hide: bool) -> Mending:
    """Return the changes that the options allow. BadParameter."""
    from storage import paths
    from storage.directory.checkpoints import Mending

    starts: dict[tuple[str, int], int] = {}
    for text in log_starts:
        name, _, start = text.rpartition("=")
        item = paths.parse_partition_directory(name)
        is_offset = start.isascii() and start.isdecimal() and len(start) <= 19
        if text != _FIRST and (item is None or not (is_offset or start == _FIRST)):
            raise click.BadParameter(f"{text!r} is not TOPIC-N=OFFSET or '{_FIRST}'")
        if item is not None:
            starts[item] = int(start) if is_offset else 0
    return Mending(starts, rest_at_first=_FIRST in log_starts, may_hide=may_hide)
