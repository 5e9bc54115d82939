"""`kafkafs repair`: checks everything, and salvages or removes what was cut."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    LOGS,
    allow_empty_option,
    directory_to_open,
    resolve_directory,
)
from kafkafs.cli.common.ending import end, fail
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import opening_shown
from kafkafs.cli.common.words import FILE, Logs, Topic, words_argument
from kafkafs.cli.maintenance.indexes import NOTHING_CHANGED, rebuild
from storage.plural import counted

if TYPE_CHECKING:
    from storage.directory.checkpoints import RepairAnswers
    from storage.log.log import Log
    from storage.manager import LogManager

_FIRST = "first"
_NOTHING = "nothing to restore"


@click.command(
    "repair",
    epilog=examples(
        "kafkafs repair data",
        "kafkafs repair --apply data",
        "kafkafs repair --salvage --apply data",
        "kafkafs repair --log-start orders:0=first --apply data",
        "kafkafs repair --indexes --apply data orders:0",
    ),
)
@words_argument(f"{LOGS}|FILE...", Logs(Topic(partition=True), first=FILE))
@allow_empty_option
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help=("Repair the directory. Without this option, repair only prints what it would do."),
)
@click.option(
    "--indexes",
    "wants_indexes",
    is_flag=True,
    help=(
        "Only rebuild indexes: of all partitions, of the given partitions, or of the segment of "
        "FILE."
    ),
)
@click.option(
    "--salvage",
    "wants_salvage",
    is_flag=True,
    help="Restore the valid batches of the *.cut files, with their offsets.",
)
@click.option(
    "--purge",
    "wants_purge",
    is_flag=True,
    help="Remove the *.cut and *.bad files. repair then checks the logs only with --salvage.",
)
@click.option("--accept-loss", is_flag=True, help="Accept the loss of damaged and missing records.")
@click.option(
    "--log-start",
    "log_starts",
    multiple=True,
    type=Topic(then="="),
    metavar="TOPIC:PARTITION=OFFSET",
    help=(
        "Set the log start (the first offset) of a partition whose log start is unknown. "
        "TOPIC:PARTITION=first sets the offset of the first record in the log. `--log-start first` "
        "does this for all partitions whose log start is unknown. May be repeated."
    ),
)
@output_options(
    "`applied` and `lines` (the messages). --apply adds the counts `partitions`, `lacking` "
    "(incomplete partitions) and `cannot_be_opened`. With --indexes: `applied`, `segments`, and "
    "the lists `different` and `tiered`"
)
def command(
    words: Sequence[str],
    applies: bool,
    wants_indexes: bool,
    wants_salvage: bool,
    wants_purge: bool,
    accept_loss: bool,
    log_starts: tuple[str, ...],
    out: Output,
) -> None:
    """Read every byte of a data directory, and print what would repair it. --apply repairs it.

    The directory must not be in use. Without --apply, `repair --salvage` and `repair --indexes`
    also work on a directory in use: they only read.

    repair cuts off the same bytes that a mount would cut off after a crash, and also bytes after
    the last batch of any segment. It stores these bytes, except zeros, in *.cut files beside the
    log.

    If a damaged batch is followed by records that a mount can read, repair does not change the log,
    and prints the number of these records. With --salvage or --accept-loss, repair cuts the log at
    the damaged batch. --salvage then restores the valid batches after the damaged one, with their
    offsets. --accept-loss leaves these batches in the *.cut files.

    If flushed records are missing at the end of a log, kafkafs refuses appends to this log: new
    records would get the offsets of the lost records. If the file of a segment is missing or too
    short, reads of the missing records fail. After --accept-loss, appends work, and readers skip
    the lost records.

    Standard error lists what repair has found. Standard output lists what repair has done or,
    without --apply, what it would do. repair does not change tiered topics of a broker (part of
    their log is in remote storage), but names them on standard error. If a partition cannot be
    opened, repair names this partition, and repairs the others.

    --indexes checks every entry of the .index, .timeindex and .txnindex files, and rebuilds the
    files that differ from the logs. This finds more than a mount, which notices only missing files
    and obvious mistakes. --indexes also rebuilds producer snapshots that are missing or cannot be
    read. If a log is damaged, repair the log first: until then, --indexes does not change its
    indexes.

    With --indexes, DATA can also be the directory of one partition. To check the indexes of one
    segment only, give one of its files as FILE.

    Exit status 1: something is damaged or missing, or --apply has cut a log or rebuilt an index.
    With whole logs and only *.cut files of an earlier repair, the status is 0. With --salvage, it
    is 1, because batches can be restored.

    Exit status 3: a partition cannot be opened, or damage or a loss remains after --apply. With
    --indexes, status 3 has another meaning: there is nothing to check because all topics are
    tiered, or --apply did not rebuild the indexes of a damaged log.
    """
    if wants_indexes:
        if wants_salvage or wants_purge or accept_loss or log_starts:
            raise click.UsageError("--indexes can only be used alone or with --apply")
        rebuild(words, out, applies=applies)
        return
    from storage.manager import LogManager

    where = resolve_directory(words)
    wanted = _Wanted(wants_salvage, wants_purge, accept_loss)
    told: list[str] = []

    def say(line: object) -> None:
        told.append(str(line))
        out.say(line)

    with (
        opening_shown() as progress,
        LogManager.open(
            directory_to_open(where) if applies else where.data_dir,
            verify=wanted.reads,
            progress=progress,
            keeps_faulty=True,
            answers=_answers(log_starts, may_hide=wants_salvage or accept_loss),
            read_only=not applies,
        ) as manager,
    ):
        if not (applies or wants_salvage):
            _check_alone(manager)
        # Opening has said them.
        problems = list(map(str, [*manager.faults, *manager.cuts]))
        for line in problems:
            out.problem(line, "FAULT")
        for (topic, partition), start in manager.checkpoints.mended_starts.items():
            starts = "starts" if applies else "would start"
            say(f"{topic}:{partition}: {starts} at offset {start}")
        facts: dict[str, Any] = {"applied": applies, "lines": told}
        if applies:
            counts = _apply(manager, wanted, say)
            out.json(facts | counts)
            found = bool(manager.cuts or counts["lacking"])
            is_left = any(log.lost_ranges or _is_uncut(manager, log) for log in _writable(manager))
        else:
            plan = _Plan(manager, say)
            found, is_left = not plan.end(wanted), False
            if not (told or problems):
                out.say("nothing to repair")
            elif plan.changes:
                out.say(NOTHING_CHANGED)
            out.json(facts)
    faulty = len(manager.topics.faulty)
    if faulty:
        raise fail(f"{counted(faulty, 'partition')} cannot be opened")
    end(found=found, failed=is_left)


class _Wanted(NamedTuple):
    """The options that choose a repair."""

    salvage: bool
    purge: bool
    accept_loss: bool

    @property
    def reads(self) -> bool:
        """Whether everything is read."""
        return self.salvage or not self.purge


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


class _Plan:
    """Prints what `--apply` would do in a directory that is open read-only."""

    def __init__(self, manager: LogManager, say: Callable[[str], None]) -> None:
        self._manager = manager
        self._say = say
        self._logs = _writable(manager)
        self.changes = len(manager.checkpoints.mended_starts)
        """How many changes were printed."""

    def end(self, wanted: _Wanted) -> bool:
        """Print the plan; return whether nothing is damaged, missing or unreadable."""
        cuts = self._cuts() if wanted.reads else []
        damaged = 0
        if wanted.salvage:
            damaged = self._salvage()
        if wanted.accept_loss:
            self._accept_loss()
        if wanted.purge:
            self._purge(also_cuts=bool(cuts))
        lacks = any(_is_uncut(self._manager, log) or log.lost_ranges for log in self._logs)
        faulty = self._manager.topics.faulty or self._manager.checkpoints.mended_starts
        return not (cuts or damaged or lacks or faulty)

    def _cuts(self) -> list[str]:
        from storage.log.salvage import plan_cuts

        return self._print(line for log in self._logs for line in plan_cuts(log))

    def _salvage(self) -> int:
        """Return how many bytes would not be restored."""
        from storage.log.salvage import plan_salvage

        planned = [each for log in self._logs for each in plan_salvage(log)]
        for line in (line for each in planned for line in each.lines("would restore")):
            self._say(line)
        records = sum(each.records for each in planned)
        self.changes += records
        if not records:
            self._say(_NOTHING)
        return sum(each.damaged for each in planned)

    def _accept_loss(self) -> None:
        lines = [
            f"{log.directory}: would give up offsets {first} to {last}"
            for log in self._logs
            for first, last in log.lost_ranges
        ]
        self._print(
            [*lines, *self._manager.groups.reset_positions_beyond_end(whole=True, plan=True)]
        )

    def _purge(self, *, also_cuts: bool) -> None:
        """`also_cuts`: the repair itself would set bytes aside."""
        from storage.segment.cut import set_aside_files

        paths = [
            path
            for directory in _directories(self._manager)
            for path in set_aside_files(self._manager.files, directory)
        ]
        if also_cuts:
            paths.append("the bytes that would be truncated")
        self._print(f"{path}: would be removed" for path in paths)

    def _print(self, lines: Iterable[str]) -> list[str]:
        printed = list(lines)
        for line in printed:
            self._say(line)
        self.changes += len(printed)
        return printed


def _apply(manager: LogManager, wanted: _Wanted, say: Callable[[str], None]) -> dict[str, int]:
    """Repair, and count partitions: all, those that lack a part, those that cannot be opened."""
    logs = _writable(manager)
    if wanted.salvage:
        lacking = _salvage(logs, say)
    else:
        cut = {os.path.dirname(each.path) for each in manager.cuts if each.ends_log}
        lacking = {log for log in logs if log.directory in cut or _is_uncut(manager, log)}
    if wanted.accept_loss:
        _accept_loss(manager, say)
    if wanted.purge:
        _purge(manager, say)
    lacking.update(log for log in logs if log.lost_ranges)
    if wanted.reads:
        offsets = sum(log.log_end_offset - log.log_start_offset for log in logs)
        state = f"{len(lacking)} of them incomplete" if lacking else "whole"
        say(f"{counted(len(logs), 'partition')} with {counted(offsets, 'offset')}: {state}")
    faulty = len(manager.topics.faulty)
    return {"partitions": len(logs), "lacking": len(lacking), "cannot_be_opened": faulty}


def _is_uncut(manager: LogManager, log: Log) -> bool:
    """Whether a log has damage at which it was not ended."""
    return (log.topic, log.partition) in manager.uncut


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
    for line in manager.groups.reset_positions_beyond_end(whole=True):
        say(str(line))


def _purge(manager: LogManager, say: Callable[[str], None]) -> None:
    """Remove what was set aside."""
    from storage.segment.cut import purge

    for directory in _directories(manager):
        for path in purge(manager.files, directory):
            say(f"{path}: removed")


def _directories(manager: LogManager) -> list[str]:
    """Where files are set aside."""
    return [*(log.directory for log in _writable(manager)), manager.path]


def _answers(log_starts: tuple[str, ...], *, may_hide: bool) -> RepairAnswers:
    """Return the changes that the options allow. BadParameter."""
    from storage import paths
    from storage.directory.checkpoints import RepairAnswers

    starts: dict[tuple[str, int], int] = {}
    for text in log_starts:
        name, _, start = text.rpartition("=")
        item = paths.parse_partition_directory(name.replace(":", "-")) if ":" in name else None
        is_offset = start.isascii() and start.isdecimal() and len(start) <= 19
        if text != _FIRST and (item is None or not (is_offset or start == _FIRST)):
            raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION=OFFSET or '{_FIRST}'")
        if item is not None:
            starts[item] = int(start) if is_offset else 0
    return RepairAnswers(starts, rest_at_first=_FIRST in log_starts, may_hide=may_hide)
