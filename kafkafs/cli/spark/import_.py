"""`kafkafs spark import DIR TOPIC FILE...`: files into a topic."""

from __future__ import annotations

from typing import Any

import click

from kafkafs.cli import examples
from kafkafs.cli.common.words import FILE, Topic
from kafkafs.cli.spark.job import check_owner, job_options, location_argument, run_job


@click.command(
    "import",
    epilog=examples(
        "kafkafs spark import data orders orders.csv --key id",
        "kafkafs spark import mnt orders lines.txt.gz",
    ),
)
@location_argument(needs="nothing", topics=False)
@click.argument("topic", type=Topic())
@click.argument("inputs", metavar="FILE...", type=FILE, nargs=-1, required=True)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["text", "parquet", "json", "csv"]),
    help=(
        "Format of the files. By default, the suffix of a file (such as .csv) names the format. "
        "Files with other suffixes are text. Compressed files (such as .gz) are unpacked."
    ),
)
@click.option("--key", metavar="COLUMN", help="Column of the keys. The default is key.")
@click.option(
    "--value",
    metavar="COLUMN",
    help=(
        "Column of the values. The default is value. With '*', a value is a JSON object of all "
        "other columns."
    ),
)
@click.option(
    "--timestamp",
    metavar="COLUMN",
    help="Column of the timestamps. The default is timestamp. Numbers are milliseconds.",
)
@click.option(
    "--order-by",
    metavar="COLUMN",
    help="Column by which the records are ordered. The default is offset. Without such a column, "
    "rows are ordered by the paths of their files.",
)
@click.option("--partition", type=click.IntRange(0), help="Append all records to this partition.")
@click.option(
    "--by-key",
    is_flag=True,
    help=("Choose the partition by the key, and ignore the column `partition`."),
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Create the topic with N partitions if it does not exist.",
)
@click.option(
    "--id",
    "name",
    metavar="NAME",
    help=(
        "Name of the import. An import with the same name is the same import, and appends nothing. "
        "The default is a hash of the topic, the files, their sizes and times, and the options for "
        "reading them."
    ),
)
@job_options(sizes=True)
def command(data_dir: str, dry_run: bool, **options: Any) -> None:
    """Append files to TOPIC, once, as one transaction. Each line of text, or each row, becomes a
    record.

    FILE may be a directory or a pattern. A line of text becomes the value of a record. Rows of
    Parquet, JSON or CSV can have the columns `key`, `value`, `headers`, `timestamp` and
    `partition`. If a row has no partition, the key chooses the partition, as in Kafka. If DATA is
    mounted, the daemon appends the records.

    CSV is that of RFC 4180, in UTF-8. Each file begins with the names of the columns, in the same
    order. An empty cell is null. Empty lines are skipped. If a row cannot be read, nothing is
    appended.

    If you run the same import again, it appends nothing. kafkafs remembers an import for the time
    in the setting kafkafs.txn.retention.ms.
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
