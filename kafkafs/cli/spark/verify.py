"""`kafkafs spark verify DIR`: checks everything in a data directory, in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import examples
from kafkafs.cli.spark.job import job_options, location_argument, run_job, selection_argument

if TYPE_CHECKING:
    from kafkafs.spark.jobs.selection import Selection


@click.command(
    "verify", epilog=examples("kafkafs spark verify data", "kafkafs spark verify mnt/orders --json")
)
@location_argument()
@selection_argument
@job_options(sizes=True)
def command(data_dir: str, selection: Selection, dry_run: bool, **spark: Any) -> None:
    """Check everything that `kafkafs verify` checks, with Spark, and report it in the same words.

    The job checks each record, each index entry, offsets, transactions, snapshots, checkpoints, and
    the CRC of each batch. Each fault is one line: file, position in bytes, offset, reason. The job
    takes no lock and writes nothing. The exit status is 1 if there are faults.
    """
    from kafkafs.spark.jobs import verify

    run_job(
        "verify",
        spark,
        plan=(lambda: verify.plan(data_dir, selection)) if dry_run else None,
        check=lambda: selection.location_of(data_dir),
        work=lambda session: verify.run(session, data_dir, selection),
    )
