"""`kafkafs spark stats DIR`: what is in topics, as tables and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import examples
from kafkafs.cli.common.matching import where_option
from kafkafs.cli.common.words import FILE, Duration
from kafkafs.cli.spark.job import job_options, location_argument, run_job, selection_argument

if TYPE_CHECKING:
    from kafkafs.spark.jobs.selection import Selection
    from storage.condition.condition import Condition


@click.command(
    "stats",
    epilog=examples(
        "kafkafs spark stats data orders --chart orders.svg", "kafkafs spark stats mnt/orders/0"
    ),
)
@location_argument()
@selection_argument
@click.option(
    "--chart", type=FILE, help="Draw the sizes, and the rates over time, into a .png or .svg file."
)
@click.option(
    "--gap",
    "gap_ms",
    default="1h",
    type=Duration(),
    help="List periods of at least this length that have no record.",
)
@click.option("--no-keys", is_flag=True, help="Do not count different keys.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="With read_uncommitted, also count records of aborted and open transactions.",
)
@where_option
@job_options(times=True, sizes=True)
def command(
    data_dir: str,
    selection: Selection,
    chart: str | None,
    gap_ms: int,
    no_keys: bool,
    isolation: Any,
    where: Condition | None,
    dry_run: bool,
    **spark: Any,
) -> None:
    """Count records, bytes, batches, codecs, sizes, keys, tombstones, rates and gaps.

    For each topic and partition, the report has figures of all records that exist when the job
    starts. The size of a record is the size of its key and value. Quantiles are exact to 1 %. The
    number of different keys is exact up to some millions. A larger number is an estimate with an
    error of about 1 %, and the report says so.

    The report also counts missing offsets: offsets without a record. They come from transaction
    markers, aborted transactions and compaction.

    CONDITION (of --where) is as for `kafkafs cat`, but times without a time zone are in Spark's
    time zone: UTC, unless --conf sets another one. With a condition, the report leaves out batches,
    codecs, missing offsets, and the bytes of the logs.
    """
    from kafkafs.spark.jobs import stats

    options = stats.StatsOptions(selection, gap_ms, not no_keys, isolation, where)
    if dry_run:
        zone = spark["settings"].get("spark.sql.session.timeZone", "UTC")
        try:
            options = stats.in_zone_of(options, zone)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    run_job(
        "stats",
        spark,
        plan=(lambda: stats.plan(data_dir, options)) if dry_run else None,
        check=lambda: stats.check(data_dir, options, chart),
        work=lambda session: stats.run(session, data_dir, options, chart=chart),
    )
