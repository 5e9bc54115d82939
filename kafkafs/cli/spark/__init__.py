"""`kafkafs spark JOB`: Spark jobs on logs. Each job is a module of this package.

Help, dry runs that read no rows, and wrong arguments do not start Spark.
"""

from __future__ import annotations

import click

from kafkafs.cli import LazyGroup, Section, examples

_JOBS = {
    "verify": "Check every byte of a data directory.",
    "stats": "Count records, bytes, keys and gaps, and draw charts.",
    "export": "Write topics as Parquet files, each record once.",
    "import": "Append text, Parquet or JSON files to a topic, once.",
    "compact": "Keep only the latest record of each key.",
}


@click.group(
    "spark",
    cls=LazyGroup,
    sections=[Section("Jobs", __name__, _JOBS)],
    subcommand_metavar="JOB [ARGS]...",
    epilog=examples("kafkafs spark stats data", "kafkafs spark export mnt/orders out"),
)
def command() -> None:
    """Work on logs with Spark, on all cores of this machine or on a cluster.

    The jobs need PySpark, PyArrow, pandas, and Java 17 or later. If a package is missing, jobs
    print how to install it.

    DATA is a data directory. It can be mounted, or belong to a running broker. For jobs that only
    read, DATA can also be a URI of pyarrow.fs such as s3://bucket/data. MOUNT is a mount. A path
    below MOUNT names a topic or a partition.
    """
