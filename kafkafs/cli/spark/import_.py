"""`kafkafs spark import DIR TOPIC FILE...`: files into a topic."""

from __future__ import annotations

from typing import Any

import click

from kafkafs.cli import examples
from kafkafs.cli.spark.job import check_owner, job_options, location_argument, run_job


@click.command(
    "import",
    epilog=examples(
        "kafkafs spark import data orders orders.csv --key id",
        "kafkafs spark import mnt orders lines.txt.gz",
    ),
)
@location_argument(needs="nothing", topics=False)
@click.argument("topic")
@click.argument("inputs", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["text", "parquet", "json", "csv"]),
    help="Default: by the names; text where they say nothing. .gz and the like are unpacked.",
)
@click.option("--key", metavar="COLUMN", help="The keys; default: the column key.")
@click.option("--value", metavar="COLUMN", help="The values; '*': all other columns as JSON.")
@click.option("--timestamp", metavar="COLUMN", help="The times; numbers count milliseconds.")
@click.option("--order-by", metavar="COLUMN", help="Append in this order; default: offset.")
@click.option("--partition", type=click.IntRange(0), help="Append everything there.")
@click.option("--by-key", is_flag=True, help="Choose by key, whatever a column partition says.")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Create the topic with N partitions where there is none.",
)
@click.option(
    "--id", "name", metavar="NAME", help="What to call the import; default: by its files."
)
@job_options(sizes=True)
def command(data_dir: str, dry_run: bool, **options: Any) -> None:
    """Append files to TOPIC, all or nothing and once: text, a record for each line, or rows.

    FILE may be a directory or a pattern. Rows of Parquet, JSON or CSV have columns key, value,
    headers, timestamp and partition, as far as they are there; without a partition Kafka's
    partitioner chooses by key. DATA may be mounted: then the daemon appends.

    A second run of the same import appends nothing.
    """
    from kafkafs.spark.jobs import import_
    from kafkafs.spark.jobs.import_records import ImportOptions

    spark = {name: options.pop(name) for name in ("master", "settings", "out", "verbose")}
    if not dry_run:
        check_owner(data_dir)
    chosen = ImportOptions(format=options.pop("kind"), **options)
    run_job(
        "import",
        spark,
        check=lambda: import_.check(data_dir, chosen),
        work=lambda session: import_.run(session, data_dir, chosen, dry_run=dry_run),
    )
