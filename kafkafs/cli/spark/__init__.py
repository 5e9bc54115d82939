"""`kafkafs spark JOB`: Spark jobs on logs. Each job is a module of this package.

Help, dry runs that read no rows, and wrong arguments do not start Spark.
"""

from __future__ import annotations

import click

from kafkafs.cli import LazyGroup, examples

_JOBS = {
    "verify": "Check everything in a data directory.",
    "stats": "Count records, bytes, keys and gaps; draw them.",
    "export": "Write topics as Parquet files, each record once.",
    "import": "Append text, Parquet or JSON files to a topic, once.",
    "compact": "Keep the latest record of each key only.",
}


@click.group(
    "spark",
    cls=LazyGroup,
    package=__name__,
    helps=_JOBS,
    title="Jobs",
    subcommand_metavar="JOB [ARGS]...",
    epilog=examples("kafkafs spark stats data", "kafkafs spark export mnt/orders out"),
)
def command() -> None:
    """Work on logs with Spark, on all cores of this machine or on a cluster.

    Needs PySpark, PyArrow and pandas (without them a job says what installs them), and Java 17
    or later.

    DATA is a data directory, also one that is mounted or a running broker's, or for the jobs that
    only read a URI of pyarrow.fs such as s3://bucket/data; MOUNT is a mount of one. A path below a
    mount names the topic, too.
    """
