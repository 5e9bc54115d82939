"""`kafkafs wait FILE`: waits until the job of a control file has ended."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

import click

from kafkafs.cli import examples, fail, say
from kafkafs.cli.addresses import check_paths
from kafkafs.cli.output import Output, output_options
from kafkafs.cli.progress import work_shown
from kafkafs.cli.serving import has_gone, why_gone
from kafkafs.mount_table import resolve
from kafkafs.quantities import Size, TimeMs, Value

#: Seconds between two reads of the file: at first, and at most.
FIRST_S = 0.02
MOST_S = 0.5

# A control file shows less; another file may be of any size.
_LONGEST = 1 << 20

Facts = dict[str, str]


@click.command(
    "wait",
    epilog=examples(
        "kafkafs wait mnt/orders/.control/compaction",
        "kafkafs wait --json mnt/orders/.control/verify",
    ),
)
@click.argument("path", metavar="FILE")
@output_options(times=True, sizes=True)
def command(path: str, out: Output) -> None:
    """Wait until the job of a control file, like orders/.control/compaction, has ended.

    Shows its progress, and prints its outcome; where no job runs, the outcome of the last one.
    Ctrl-C ends the waiting and leaves the job running; `echo cancel > FILE` ends the job.

    Exits with 0 where the job is done, and with 1 where it has failed or was cancelled.
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
        say(f"kafkafs: {path}: goes on", err=True)
        sys.exit(130)
    outcome = facts.get("last_outcome", "none")
    out.facts({name: typed(name, value) for name, value in last_facts(facts).items()})
    if outcome not in ("done", "none"):
        sys.exit(1)


def wait_for(path: str, show: Callable[[str, int, int], None]) -> Facts:
    """Wait until the present job has ended, and `show` how far it is; the facts then. OSError."""
    facts = read_facts(path)
    job = facts.get("started") if facts["state"] == "running" else None
    pause_s = FIRST_S
    while facts["state"] != "idle":
        numbers = (int(facts.get(name, "0")) for name in ("done_bytes", "total_bytes"))
        show(facts.get("phase", "waiting for its turn"), *numbers)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, MOST_S)
        facts = read_facts(path)
        started = facts.get("started") if facts["state"] == "running" else None
        if job is not None and started != job:
            break
        job = started
    return facts


def last_facts(facts: Facts) -> Facts:
    """Those of the last job, by their names without `last_`."""
    begin = "last_"
    return {
        name.removeprefix(begin): value for name, value in facts.items() if name.startswith(begin)
    }


def typed(name: str, value: str) -> Value:
    """A fact's value, which the name says the unit of."""
    if not (value.isascii() and value.isdecimal()):
        return value
    if name in ("started", "ended"):
        return TimeMs(value)
    return Size(value) if "bytes" in name.split("_") else int(value)


def read_facts(path: str) -> Facts:
    """The facts of a control file by name. OSError; click's error for another file."""
    lines: list[str] = []
    with (
        contextlib.suppress(IsADirectoryError),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        lines = file.read(_LONGEST).splitlines()
    facts = dict(line.partition(" ")[::2] for line in lines)
    if facts.get("state") not in ("idle", "queued", "running"):
        raise fail(f"{path}: is no file of a job, like TOPIC/.control/compaction")
    return facts
