"""`kafkafs wait FILE`: waits until the job of a control file has ended."""

from __future__ import annotations

import sys

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import check_paths
from kafkafs.cli.common.daemon_jobs import last_facts, wait_for
from kafkafs.cli.common.ending import end, fail, warn
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import work_shown
from kafkafs.cli.common.serving import has_gone, why_gone
from kafkafs.cli.common.words import FILE
from kafkafs.mount_table import resolve
from kafkafs.quantities import Size, TimeMs, Value


@click.command(
    "wait",
    epilog=examples(
        "kafkafs wait mnt/orders/.control/compaction",
        "kafkafs wait --json mnt/orders/.control/verify",
    ),
)
@click.argument("path", metavar="FILE", type=FILE)
@output_options(times=True, sizes=True)
def command(path: str, out: Output) -> None:
    """Wait until the job of FILE ends. FILE is a control file such as orders/.control/compaction.

    The command shows the progress of the job. When the job ends, the command prints the outcome:
    lines with a name and a value. If no job runs, the command prints the outcome of the last job.
    Ctrl-C ends only the command, not the job. To end the job, type `echo cancel > FILE`. If the job
    failed or was cancelled, the exit status is 3.
    """
    check_paths([path])
    try:
        with work_shown() as show:
            facts = wait_for(path, show)
    except OSError as error:
        if has_gone(error):
            raise fail(f"{path}: {why_gone(resolve(path))}") from None
        raise fail(f"{path}: {error.strerror}") from None
    except KeyboardInterrupt:
        warn(f"{path}: the job is still running")
        sys.exit(130)
    outcome = facts.get("last_outcome", "none")
    out.facts({name: _typed(name, value) for name, value in last_facts(facts).items()})
    end(failed=outcome not in ("done", "none"))


def _typed(name: str, value: str) -> Value:
    """A fact's value, which the name says the unit of."""
    if not (value.isascii() and value.isdecimal()):
        return value
    if name in ("started", "ended"):
        return TimeMs(value)
    return Size(value) if "bytes" in name.split("_") else int(value)
