"""`kafkafs compact DATA_DIR`: cleans compacted topics of a data directory that is not mounted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from kafkafs.cli import one_line_errors, say
from kafkafs.cli.addresses import Place, check_places, data_dir_argument, logs_at, places_argument
from kafkafs.cli.progress import opening_shown

if TYPE_CHECKING:
    from storage.compaction.cleaner import Cleaned
    from storage.directory.manager import LogManager
    from storage.log.log import Log


@click.command("compact")
@data_dir_argument()
@places_argument
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def command(data_dir: str, places: Sequence[Place], dry_run: bool) -> None:
    """Keep only the latest record of each key in logs of DATA_DIR, which must not be mounted.

    Without TOPIC: in all topics whose cleanup.policy has compact. It cleans all that is dirty,
    however little; the active segment stays as it is. One line a partition. The old files are
    gone when the command ends: file.delete.delay.ms is for readers of a mount. With --dry-run it
    takes no lock and changes nothing.

    Exits with 0 where all were cleaned. Ctrl-C leaves the other partitions as they were.
    """
    from kafkafs.cli.progress import long_work
    from kafkafs.tree.partition.partitions import keeping_history
    from storage.compaction.log_cleaner import LogCleaner
    from storage.directory.manager import LogManager
    from storage.directory.retain import remove_now
    from storage.errors import StorageError, TaskCancelled

    failed = False
    with one_line_errors():
        check_places(data_dir, places)
    with (
        one_line_errors(),
        opening_shown() as progress,
        LogManager.open(data_dir, read_only=dry_run, progress=progress) as manager,
        nullcontext() if dry_run else keeping_history(manager),
        long_work() as task,
    ):
        cleaner = LogCleaner(manager)
        for log in _logs(manager, places):
            try:
                if dry_run:
                    preview = cleaner.preview(log, task)
                    rounds = [] if preview is None else [preview]
                else:
                    rounds = cleaner.clean_all(log, task)
            except TaskCancelled:
                raise
            except (OSError, StorageError) as error:
                failed = True
                say(f"kafkafs: {log.topic}:{log.partition}: {error}", err=True)
            else:
                say(f"{log.topic}:{log.partition}: {_summary(rounds, dry_run)}")
            if not dry_run:
                remove_now(log)
    if failed:
        sys.exit(1)


def _logs(manager: LogManager, places: Sequence[Place]) -> list[Log]:
    """The partitions to clean. UnknownTopicOrPartition, InvalidConfig."""
    from storage.errors import InvalidConfig

    logs = logs_at(manager, places)
    if not places:
        return [log for log in logs if log.config.may_be_cleaned]
    for log in logs:
        why_kept = manager.settings.why_kept(log.topic)
        if why_kept is not None:
            raise InvalidConfig(f"topic {log.topic!r} is not compacted: {why_kept}")
        if not log.config.is_compacted:
            raise InvalidConfig(f"the cleanup.policy of topic {log.topic!r} does not have compact")
    return logs


def _summary(rounds: Sequence[Cleaned], dry_run: bool) -> str:
    """One line about the rounds of a partition."""
    if not rounds:
        return "nothing to clean"

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in rounds)

    would = "would go" if dry_run else "went"
    more = ", and more in further rounds" if dry_run and rounds[-1].map_full else ""
    return (
        f"{total('records_dropped')} of {total('records_read')} records {would}: "
        f"{total('records_superseded')} superseded or deleted, {total('records_invalid')} without "
        f"a key, {total('records_aborted')} aborted, {total('markers')} markers; "
        f"{total('bytes_before')} to {total('bytes_after')} bytes, {total('segments_before')} to "
        f"{total('segments_after')} segments{more}"
    )
