"""`kafkafs wait FILE`: waits until the job of a control file has ended."""

from __future__ import annotations

import contextlib
import errno
import sys
import time

import click

from kafkafs.cli import fail, say
from kafkafs.cli.progress import work_shown

#: Seconds between two reads of the file: at first, and at most.
FIRST_S = 0.02
MOST_S = 0.5

# A control file shows less; another file may be of any size.
_LONGEST = 1 << 20

Facts = dict[str, str]


@click.command("wait")
@click.argument("path", metavar="FILE")
def command(path: str) -> None:
    """Wait until the job of a control file, like orders/.control/compaction, has ended.

    Shows its progress, and prints its outcome; where no job runs, the outcome of the last one.
    Ctrl-C ends the waiting and leaves the job running; `echo cancel > FILE` ends the job.

    Exits with 0 where the job is done, and with 1 where it has failed or was cancelled.
    """
    try:
        facts = _wait(path)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise fail(f"{path}: the file system was unmounted") from None
        raise fail(f"{path}: {error.strerror}") from None
    except KeyboardInterrupt:
        say(f"kafkafs: {path}: goes on", err=True)
        sys.exit(130)
    outcome = facts.get("last_outcome", "none")
    for name, value in facts.items():
        if name.startswith("last_"):
            say(f"{name.removeprefix('last_')} {value}")
    if outcome not in ("done", "none"):
        sys.exit(1)


def _wait(path: str) -> Facts:
    """Wait until the present job has ended; the facts then."""
    facts = read_facts(path)
    job = facts.get("started") if facts["state"] == "running" else None
    if facts["state"] == "idle":
        return facts
    pause_s = FIRST_S
    with work_shown() as show:
        while True:
            numbers = (int(facts.get(name, "0")) for name in ("done_bytes", "total_bytes"))
            show(facts.get("phase", "waiting for its turn"), *numbers)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, MOST_S)
            facts = read_facts(path)
            started = facts.get("started") if facts["state"] == "running" else None
            if facts["state"] == "idle" or (job is not None and started != job):
                return facts
            job = started


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
