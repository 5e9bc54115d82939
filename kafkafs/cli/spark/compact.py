"""`kafkafs spark compact DIR`: cleans compacted topics, also of a mounted directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import examples
from kafkafs.cli.spark.job import (
    check_owner,
    job_options,
    location_argument,
    run_job,
    selection_argument,
)

if TYPE_CHECKING:
    from kafkafs.spark.jobs.selection import Selection


@click.command(
    "compact",
    epilog=examples(
        "kafkafs spark compact data orders", "kafkafs spark compact mnt/orders --dry-run"
    ),
)
@location_argument()
@selection_argument
@click.option(
    "--only-due",
    is_flag=True,
    help="Compact only the logs that the daemon would compact now, according to their settings.",
)
@job_options(sizes=True)
def command(
    data_dir: str, selection: Selection, only_due: bool, dry_run: bool, **spark: Any
) -> None:
    """Keep only the latest record of each key. Spark's tasks do the work of the daemon's cleaner.

    Without TOPIC, the job compacts all topics whose cleanup.policy has compact. It compacts a log
    even if only a few bytes are not compacted yet. The job keeps the same records as the daemon's
    cleaner, at the same offsets. Each partition is one task of Spark. If DATA is mounted, the
    daemon replaces the old segments of the log by the new ones.

    The job compacts a partition in one or more rounds. A round that fails changes nothing. Exit
    status 3: a partition could not be compacted.
    """
    from kafkafs.spark.jobs import compact

    if not dry_run:
        check_owner(data_dir)
    run_job(
        "compact",
        spark,
        check=lambda: compact.check(data_dir, selection),
        work=lambda session: compact.run(
            session, data_dir, selection, only_due=only_due, dry_run=dry_run
        ),
    )
