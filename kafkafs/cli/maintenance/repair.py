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
from kafkafs.cli.common.progress import opened
from kafkafs.cli.common.words import FILE, Logs, Topic, words_argument
from kafkafs.cli.maintenance.indexes import NOTHING_CHANGED, rebuild
from storage.plural import counted

if TYPE_CHECKING:
    from storage.directory.checkpoints import RepairAnswers
    from storage.log.log import Log
    from storage.manager import LogManager

_FIRST = "first"


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
    help="Remove the *.cut, *.diverged and *.bad files. repair then checks the logs only with "
    "--salvage.",
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

    In the mirror of a cluster, --salvage and --accept-loss do not work with --apply: the records
    would differ from those of the cluster. `kafkafs mirror` copies lost records at the end of a log
    again.

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
    from storage.directory.mirror import is_mirror_for_writer
    from storage.files import Files

    if wants_indexes:
        if wants_salvage or wants_purge or accept_loss or log_starts:
            raise click.UsageError("--indexes can only be used alone or with --apply")
        rebuild(words, out, applies=applies)
        return
    where = resolve_directory(words)
    wanted = _Wanted(applies, wants_salvage, wants_purge, accept_loss)
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        out.say(line)

    may_hide = wants_salvage or accept_loss
    data_dir = directory_to_open(where) if applies else where.data_dir
    answers = _answers(log_starts, may_hide=may_hide)
    _check_log_starts(data_dir, answers)
    with opened(
        data_dir,
        verify=wanted.reads,
        keeps_faulty=True,
        answers=answers,
        read_only=not applies,
        mirrors=applies and not may_hide and is_mirror_for_writer(Files(data_dir), data_dir),
    ) as manager:
        if not (applies or wants_salvage):
            _check_alone(manager)
        # Opening has said them.
        problems = list(map(str, [*manager.faults, *manager.cuts]))
        for line in problems:
            out.problem(line, "FAULT")
        repair = _Repair(manager, wanted, say)
        found = repair.run()
        is_left = applies and repair.is_unfinished
        if not (applies or told or problems):
            out.say("nothing to repair")
        elif not applies and repair.changes:
            out.say(NOTHING_CHANGED)
        faulty = len(manager.topics.faulty)
        facts: dict[str, Any] = {"applied": applies, "lines": told}
        if applies:
            facts["partitions"] = len(repair.logs)
            facts |= {"lacking": len(repair.lacking), "cannot_be_opened": faulty}
        out.json(facts)
    if faulty:
        raise fail(f"{counted(faulty, 'partition')} cannot be opened")
    end(found=found, failed=is_left)


class _Wanted(NamedTuple):
    """The options that choose a repair."""

    applies: bool
    salvage: bool
    purge: bool
    accept_loss: bool

    @property
    def reads(self) -> bool:
        """Whether everything is read."""
        return self.salvage or not self.purge


def _check_alone(manager: LogManager) -> None:
    """Raise LogLocked if another process has the directory open: a batch that is being appended
    would look damaged.
    """
    from storage import paths
    from storage.errors import LogLocked

    lock = os.path.join(manager.path, paths.LOCK)
    holder = manager.files.locked_by(lock)
    if holder is not None:
        raise LogLocked(holder, path=lock)


def _check_log_starts(data_dir: str, answers: RepairAnswers) -> None:
    """Check that no log ends before the log start that the user has given: recovery would take all
    records out of it. Errors: ClickException; nothing has changed.
    """
    topics = {topic for topic, _ in answers.log_starts}
    if not topics:
        return
    with opened(
        data_dir,
        read_only=True,
        keeps_faulty=True,
        wanted=topics.__contains__,
        answers=answers,
    ) as manager:
        for topic, number in manager.topics.faulty:
            if (topic, number) in answers.log_starts:
                raise fail(f"{manager.topics[topic].faults[number]}; nothing was changed")


class _Repair:
    """Repairs an open directory, or without `--apply` only prints each change. `say` prints."""

    def __init__(self, manager: LogManager, wanted: _Wanted, say: Callable[[str], None]) -> None:
        self._manager = manager
        self._wanted = wanted
        self._say = say
        # Tiered topics are not changed.
        self.logs = [log for log in manager.logs() if log.tiered is None]
        self.lacking: set[Log] = set()
        """The logs that will not have all records."""
        self.changes = 0
        """How many changes were printed."""

    def run(self) -> bool:
        """Repair, and return whether anything was damaged, missing or unreadable."""
        from storage.log.salvage import plan_cuts

        wanted, manager = self._wanted, self._manager
        starts = "starts" if wanted.applies else "would start"
        mended = manager.checkpoints.mended_starts
        self._print(f"{topic}:{n}: {starts} at offset {at}" for (topic, n), at in mended.items())
        cuts: list[str] = []
        if wanted.reads and not wanted.applies:
            cuts = self._print(line for log in self.logs for line in plan_cuts(log))
        if wanted.salvage:
            self._salvage()
        elif wanted.applies:
            cut = {os.path.dirname(each.path) for each in manager.cuts if each.ends_log}
            self.lacking.update(log for log in self.logs if log.directory in cut)
        if wanted.accept_loss:
            self._accept_loss()
        if wanted.purge:
            self._purge(also_cuts=bool(cuts))
        self.lacking.update(filter(self._is_lacking, self.logs))
        if wanted.applies and wanted.reads:
            offsets = sum(log.log_end_offset - log.log_start_offset for log in self.logs)
            state = f"{len(self.lacking)} of them incomplete" if self.lacking else "whole"
            self._say(
                f"{counted(len(self.logs), 'partition')} with {counted(offsets, 'offset')}: {state}"
            )
        return bool(self.lacking or (manager.cuts if wanted.applies else cuts or mended))

    @property
    def is_unfinished(self) -> bool:
        """Whether damage or a loss remains."""
        return any(map(self._is_lacking, self.logs))

    def _is_lacking(self, log: Log) -> bool:
        """Return whether a log has lost records, or damage at which it was not cut."""
        return bool(log.lost_ranges) or (log.topic, log.partition) in self._manager.uncut

    def _salvage(self) -> None:
        """Restore the valid batches of the cuts."""
        from storage.log.salvage import plan_salvage, salvage

        applies, records = self._wanted.applies, 0
        for log in self.logs:
            found = salvage(log, time.time_ns()) if applies else plan_salvage(log)
            for each in found:
                for line in each.lines("restored" if applies else "would restore"):
                    self._say(line)
                records += each.records
                if each.damaged:
                    self.lacking.add(log)
        self.changes += records
        if not records:
            self._say("nothing to restore")

    def _accept_loss(self) -> None:
        applies = self._wanted.applies
        for log in self.logs:
            self._print(
                f"{log.directory}: {'gave up' if applies else 'would give up'} offsets {first} to "
                f"{last}"
                for first, last in log.lost_ranges
            )
            if applies:
                log.accept_loss()
        groups = self._manager.groups
        self._print(map(str, groups.reset_positions_beyond_end(whole=True, plan=not applies)))

    def _purge(self, *, also_cuts: bool) -> None:
        """Remove the files that were set aside. `also_cuts`: the repair itself would make some."""
        from storage.segment.cut import purge, set_aside_files

        files, applies = self._manager.files, self._wanted.applies
        for directory in [*(log.directory for log in self.logs), self._manager.path]:
            paths = purge(files, directory) if applies else set_aside_files(files, directory)
            self._print(f"{path}: {'removed' if applies else 'would be removed'}" for path in paths)
        if also_cuts:
            self._print(["the bytes that would be truncated: would be removed"])

    def _print(self, lines: Iterable[str]) -> list[str]:
        printed = list(lines)
        for line in printed:
            self._say(line)
        self.changes += len(printed)
        return printed


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
