"""`kafkafs spark JOB`: Spark jobs on logs. Each job is a module of this package.

Help, dry runs that read no rows, and wrong arguments do not start Spark.
"""

from __future__ import annotations

from importlib import import_module

import click

_JOBS = {
    "verify": "Check everything in a data directory.",
    "stats": "Count records, bytes, keys and gaps; draw them.",
    "export": "Write topics as Parquet files, each record once.",
    "import": "Append text, Parquet or JSON files to a topic, once.",
    "compact": "Keep the latest record of each key only.",
}


class _Jobs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _JOBS:
            return None
        name = "import_" if cmd_name == "import" else cmd_name
        command = import_module(f"kafkafs.cli.spark.{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Without importing the jobs.
        with formatter.section("Jobs"):
            formatter.write_dl(list(_JOBS.items()))


@click.group("spark", cls=_Jobs, subcommand_metavar="JOB [ARGS]...")
def command() -> None:
    """Work on logs with Spark, on all cores of this machine or on a cluster.

    Needs pip install 'kafkafs[spark]', and Java 17 or later.

    DATA_DIR is a data directory, also one that is mounted or a running broker's, or for the jobs
    that only read a URI of pyarrow.fs such as s3://bucket/data.
    """
