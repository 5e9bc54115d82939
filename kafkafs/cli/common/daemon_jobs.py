"""Runs jobs in the daemon of a mount, through the files of `.control`.

While a daemon has a directory open, other processes may not do this work. Each partition is one
job, so that it has its own figures. A control file shows the present job and the last one as lines
of `name value`: its facts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.progress import work_shown
from kafkafs.cli.common.refusals import Request
from kafkafs.cli.common.serving import has_gone, why_gone

if TYPE_CHECKING:
    from kafkafs.cli.common.output import Output

#: The first and the longest pause between two reads of the file, in seconds.
_FIRST_S = 0.02
_MOST_S = 0.5

# A control file is smaller. A wrong path may name a file of any size.
_LONGEST = 1 << 20

Facts = dict[str, str]
Show = Callable[[str, int, int], None]


def run_jobs(
    mount: str, kind: str, partitions: Iterable[tuple[str, int]], out: Output
) -> Iterator[tuple[str, int, Facts]]:
    """Run a job for each partition, and yield the figures of those that are done.

    The reasons of the others are reported. KeyboardInterrupt cancels the job if its kind can be
    cancelled.

    Errors: ClickException if the daemon of the mount has ended.
    """
    with work_shown() as show:
        for topic, partition in partitions:
            facts = _run(mount, os.path.join(topic, ".control", kind), partition, show)
            if facts["outcome"] == "done":
                yield topic, partition, facts
                continue
            # Retention names the partition in its reasons, as it may work on several.
            log = f"{topic}-{partition}"
            reason = facts.get("reason", facts["outcome"]).removeprefix(f"{log}: ")
            out.report(f"{topic}:{partition}: {reason}", path=log)


def _run(mount: str, name: str, partition: int, show: Show) -> Facts:
    """Run the job of a control file for a partition, wait for its end, and return its facts."""
    path = os.path.join(mount, name)
    request = Request(mount, name)
    try:
        write_line(path, f"run {partition}")
        return last_facts(wait_for(path, show))
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            write_line(path, "cancel")
        raise
    except OSError as error:
        if has_gone(error):
            raise fail(f"{mount}: {why_gone(mount)}") from None
        if error.errno != errno.EBUSY:
            reason = request.refusal(error)
        else:
            reason = f"a job is already running. To wait for it: kafkafs wait {path}"
        return {"outcome": "refused", "reason": reason}


def wait_for(path: str, show: Show) -> Facts:
    """Wait until the present job has ended, and return the facts. `show` displays its progress.

    Errors: OSError.
    """
    facts = _read_facts(path)
    job = facts.get("started") if facts["state"] == "running" else None
    pause_s = _FIRST_S
    while facts["state"] != "idle":
        numbers = (int(facts.get(name, "0")) for name in ("done_bytes", "total_bytes"))
        show(facts.get("phase", "queued"), *numbers)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _MOST_S)
        facts = _read_facts(path)
        started = facts.get("started") if facts["state"] == "running" else None
        if job is not None and started != job:
            break
        job = started
    return facts


def last_facts(facts: Facts) -> Facts:
    """Return the facts of the last job, by their names without `last_`."""
    begin = "last_"
    return {
        name.removeprefix(begin): value for name, value in facts.items() if name.startswith(begin)
    }


def _read_facts(path: str) -> Facts:
    """Return the facts of a control file by name.

    Errors: OSError; ClickException for another file.
    """
    lines: list[str] = []
    with (
        contextlib.suppress(IsADirectoryError),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        lines = file.read(_LONGEST).splitlines()
    facts = dict(line.partition(" ")[::2] for line in lines)
    if facts.get("state") not in ("idle", "queued", "running"):
        raise fail(f"{path}: not the control file of a job, such as TOPIC/.control/compaction")
    return facts


def write_line(path: str, text: str) -> None:
    """Write lines to a control file, with one write(2). Errors: OSError."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, text.encode(errors="surrogateescape") + b"\n")
    finally:
        os.close(file)
