"""`kafkafs spark export DIR OUT`: topics as Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import examples
from kafkafs.cli.common.matching import where_option
from kafkafs.cli.common.words import DIRECTORY
from kafkafs.cli.spark.job import (
    job_options,
    location_argument,
    name_and_value,
    run_job,
    selection_argument,
)

if TYPE_CHECKING:
    from kafkafs.spark.jobs.selection import Selection
    from storage.condition.condition import Condition


@click.command(
    "export",
    epilog=examples(
        "kafkafs spark export data out orders", "kafkafs spark export mnt/orders out --snapshot"
    ),
)
@location_argument()
@click.argument("target", metavar="OUT", type=DIRECTORY)
@selection_argument
@click.option(
    "--follow",
    is_flag=True,
    help="Continue to export new records until somebody stops the job. The exit status is then 0.",
)
@click.option(
    "--interval",
    default="10 seconds",
    metavar="DURATION",
    help="With --follow: time between two files.",
)
@click.option(
    "--snapshot", is_flag=True, help="Export all records that exist now into a new directory."
)
@click.option(
    "--text", "as_text", is_flag=True, help="Write keys and values as strings, not bytes."
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=name_and_value,
    help="An option of the Spark source, such as startingTimestamp=1790000000000. May be repeated.",
)
@where_option
@job_options()
def command(
    data_dir: str,
    target: str,
    selection: Selection,
    follow: bool,
    interval: str,
    snapshot: bool,
    as_text: bool,
    options: dict[str, str],
    where: Condition | None,
    dry_run: bool,
    **spark: Any,
) -> None:
    """Write topics of DATA as Parquet files into OUT/topic=TOPIC/date=YYYY-MM-DD/. The date is the
    day of the record in UTC.

    Each record is written once: a run continues where the last run stopped, even if the last run
    was killed. OUT/_kafkafs stores how far the runs have come.

    CONDITION (of --where) is as for `kafkafs cat`, but times without a time zone are in Spark's
    time zone: UTC, unless --conf sets another one. Later runs need the same condition.
    """
    from kafkafs.spark.jobs import export

    if follow and snapshot:
        raise click.UsageError("--follow cannot be used with --snapshot")
    if where is not None:
        if where.is_relative and not snapshot:
            raise click.UsageError("--where with a time relative to now requires --snapshot")
        options = {**options, "where": where.text}
    chosen = export.ExportOptions(
        selection, as_text, interval if follow else None, snapshot, options
    )
    run_job(
        "export",
        spark,
        plan=(lambda: export.plan(data_dir, target, chosen)) if dry_run else None,
        check=lambda: export.check(data_dir, target, chosen),
        work=lambda session: export.run(session, data_dir, target, chosen),
    )
