"""`kafkafs spark verify DIR`: checks everything in a data directory, in parallel."""

from __future__ import annotations

from typing import Any

import click

from kafkafs.cli.spark.job import job_options, places_argument, report_and_exit, run_job


@click.command("verify")
@click.argument("data_dir", metavar="DATA_DIR")
@places_argument
@job_options
def command(
    data_dir: str, places: tuple[tuple[str, int | None], ...], dry_run: bool, **spark: Any
) -> None:
    """Check what `kafkafs verify` checks, and say it in the same words, as wide as Spark runs.

    Every batch's CRC, every record, every index entry, offsets, transactions, snapshots and
    checkpoints. One line a fault: file, position in bytes, offset, reason. No lock is taken and
    nothing is written.

    Exits with 0 where all is whole, with 1 where there are faults.
    """
    from kafkafs.spark.jobs import verify
    from kafkafs.spark.jobs.choice import Choice

    choice = Choice(places)
    if dry_run:
        report_and_exit(lambda: verify.plan(data_dir, choice), spark)
    else:
        run_job(
            "verify",
            lambda session: verify.run(session, data_dir, choice),
            spark,
            check=lambda: choice.location_of(data_dir),
        )
