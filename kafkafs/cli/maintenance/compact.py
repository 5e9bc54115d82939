"""`kafkafs compact`: keeps of each key only the latest record, now."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    Address,
    check_address,
    logs_argument,
    logs_at,
    mount_to_change,
    partitions_at,
    report_faults,
    report_unknown_settings,
)
from kafkafs.cli.common.ending import end
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import long_work, opened
from kafkafs.quantities import Value
from storage.paths import INTERNAL_TOPICS
from storage.plural import counted

if TYPE_CHECKING:
    from storage.settings.settings import Settings

_FIGURES = (
    *("records_read", "records_dropped"),
    *("dropped_superseded", "dropped_without_key", "dropped_aborted", "dropped_markers"),
    *("bytes_before", "bytes_after", "segments_before", "segments_after"),
)


@click.command(
    "compact", epilog=examples("kafkafs compact --dry-run data", "kafkafs compact mnt/users")
)
@logs_argument()
@click.option(
    "--dry-run", is_flag=True, help="Only print what would be removed. compact then takes no lock."
)
@output_options(
    "`dry_run`, and the list `partitions` with the figures of each partition", sizes=True
)
def command(logs: Address, dry_run: bool, out: Output) -> None:
    """Keep only the latest record of each key. The command does at once what the daemon's cleaner
    does.

    Without TOPIC, the command compacts all topics whose cleanup.policy has compact, except Kafka's
    own. It compacts a log even if only a few bytes are not compacted yet. Offsets do not change.
    The active segment, to which records are appended, stays as it is. The command prints a line for
    each partition.

    If DATA is mounted, the daemon compacts one partition after the other, as if you had written
    `run` to .control/compaction. Ctrl-C cancels this work. If DATA is not mounted, it must not be
    in use. The command then deletes the old files at once: the delay of file.delete.delay.ms is
    only for readers of a mount.

    Exit status 0: all partitions were compacted. After Ctrl-C, unfinished partitions stay as they
    were.
    """
    report = _Report(out, dry_run=dry_run)
    check_address(logs)
    mount = None if dry_run else mount_to_change(logs)
    if mount is None:
        _compact_here(logs, report, dry_run=dry_run)
    else:
        _have_compacted(mount, logs, report)
    out.json({"dry_run": dry_run, "partitions": report.partitions})
    end(failed=out.has_failed)


class _Report:
    """Says what was done to each partition, and keeps it for `--json`."""

    def __init__(self, out: Output, *, dry_run: bool) -> None:
        self.partitions: list[dict[str, Value]] = []
        self.out = out
        self._dry_run = dry_run

    def done(
        self, topic: str, partition: int, figures: Mapping[str, int], *, more: bool = False
    ) -> None:
        """`more`: a dry run has looked at a part of the log only."""
        self.out.say(f"{topic}:{partition}: {self._summary(figures, more=more)}")
        told: dict[str, Value] = {name: figures[name] for name in _FIGURES}
        self.partitions.append({"topic": topic, "partition": partition, **told, "more": more})

    def _summary(self, figures: Mapping[str, int], *, more: bool) -> str:
        if not figures["records_read"]:
            return "nothing to clean"
        before, after = (self.out.size(figures[name]) for name in ("bytes_before", "bytes_after"))
        would = "would be removed" if self._dry_run else "removed"
        return (
            f"{figures['records_dropped']} of {counted(figures['records_read'], 'record')} "
            f"{would}: {figures['dropped_superseded']} superseded or deleted, "
            f"{figures['dropped_without_key']} without a key, {figures['dropped_aborted']} "
            f"aborted, {counted(figures['dropped_markers'], 'marker')}; {before} to {after}, "
            f"{figures['segments_before']} to {counted(figures['segments_after'], 'segment')}"
            f"{'; further rounds would remove more' if more else ''}"
        )


def _compact_here(logs: Address, report: _Report, *, dry_run: bool) -> None:
    """Clean the logs of a directory that no process has open, or look at any."""
    from kafkafs.tree.control.compaction import totals_of
    from kafkafs.tree.partition.partitions import keeping_history
    from storage.compaction.log_cleaner import LogCleaner
    from storage.directory.retain import remove_now
    from storage.errors import StorageError, TaskCancelled

    with (
        opened(logs.data_dir, read_only=dry_run, keeps_faulty=True) as manager,
        nullcontext() if dry_run else keeping_history(manager),
        long_work() as task,
    ):
        cleaner = LogCleaner(manager)
        found = logs_at(manager, logs.places)
        in_use = dry_run and manager.lock.is_locked()

        def is_compacted(topic: str, number: int) -> bool:
            return logs.wants(topic, number) and _is_compacted(
                manager.settings, logs, topic, in_use
            )

        wanted = [log for log in found if is_compacted(log.topic, log.partition)]
        report_faults(manager, report.out, is_compacted)
        report_unknown_settings(manager, logs, report.out)
        for log in wanted:
            if log.tiered is not None:
                report.out.report(log.tiered, path=f"{log.topic}-{log.partition}")
                continue
            try:
                if dry_run:
                    preview = cleaner.preview(log, task)
                    rounds = [] if preview is None else [preview]
                else:
                    rounds = cleaner.clean_all(log, task)
                    if (damage := cleaner.damage_of(log)) is not None:
                        raise damage
            except TaskCancelled:
                raise
            except (OSError, StorageError) as error:
                why = f"{log.topic}:{log.partition}: {error}"
                report.out.report(why, path=f"{log.topic}-{log.partition}")
            else:
                more = dry_run and bool(rounds) and rounds[-1].map_full
                report.done(log.topic, log.partition, totals_of(rounds), more=more)
            if not dry_run:
                remove_now(log)


def _have_compacted(mount: str, logs: Address, report: _Report) -> None:
    """Have the daemon of a mount clean the logs."""
    from kafkafs.cli.common.daemon_jobs import run_jobs
    from storage.files import Files
    from storage.settings.settings import Settings

    settings = Settings(Files(logs.data_dir), logs.data_dir)
    found = [item for item in partitions_at(logs) if _is_compacted(settings, logs, item[0])]
    for topic, partition, facts in run_jobs(mount, "compaction", found, report.out):
        report.done(topic, partition, {name: int(facts[name]) for name in _FIGURES})


def _is_compacted(settings: Settings, logs: Address, topic: str, in_use: bool = False) -> bool:
    """Return whether the topic's settings include compaction. InvalidConfig for one that was named.

    `in_use`: another process has the directory open, and compacts by the settings that it knows.
    """
    from storage.errors import InvalidConfig

    config = settings.log_config(topic)
    if not logs.places:
        return config.may_be_cleaned and topic not in INTERNAL_TOPICS
    if config.may_be_cleaned:
        return True
    why_no_deletion = settings.why_no_deletion(topic)
    if why_no_deletion is not None and in_use:
        raise InvalidConfig(
            f"cannot determine whether topic {topic!r} is compacted; only the process that has "
            f"{logs.data_dir} open has its settings"
        )
    if why_no_deletion is not None:
        raise InvalidConfig(f"topic {topic!r} is not compacted: {why_no_deletion}")
    raise InvalidConfig(f"the cleanup.policy of topic {topic!r} does not include compact")
