"""Has the daemon of a mount do what a command may not do beside it, by the files of `.control`.

A partition is one job, so that each has figures of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from kafkafs.cli import fail
from kafkafs.cli.refusals import Request
from kafkafs.cli.serving import has_gone, why_gone
from kafkafs.cli.wait import Facts, last_facts, wait_for

Show = Callable[[str, int, int], None]


class JobFailedError(Exception):
    """A job has failed or could not begin, and why."""


def run_job(mount: str, kind: str, topic: str, partition: int, show: Show) -> Facts:
    """Run a job for a partition, wait for its end, and return its figures.

    JobFailedError; click's error where the mount is gone. KeyboardInterrupt cancels the job where
    its kind can be cancelled.
    """
    name = os.path.join(topic, ".control", kind)
    path = os.path.join(mount, name)
    request = Request(mount, name)
    try:
        write_line(path, f"run {partition}")
        facts = last_facts(wait_for(path, show))
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
            reason = f"another one is at work: kafkafs wait {path}"
        raise JobFailedError(f"{topic}:{partition}: {reason}") from None
    if facts["outcome"] != "done":
        # Retention names the partition in its reasons, as it may work on several.
        reason = facts.get("reason", facts["outcome"]).removeprefix(f"{topic}-{partition}: ")
        raise JobFailedError(f"{topic}:{partition}: {reason}")
    return facts


def write_line(path: str, text: str) -> None:
    """Write lines to a control file, in one write. OSError."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, text.encode(errors="surrogateescape") + b"\n")
    finally:
        os.close(file)
