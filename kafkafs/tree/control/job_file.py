"""Control files whose commands are jobs: what they take, begin, and show.

Text, one fact a line, `name value`; first what goes on:

    state        idle, queued (waits for its turn) or running
    command      what was asked for, or what the clock has begun
    begun_by     command or schedule
    started      ms since 1970
    phase, done_bytes, total_bytes      total_bytes is 0 as long as it is not known
    …            figures of the work so far

then how the last one ended, where there was one, each name with `last_` in front:

    last_outcome      none, done, failed or cancelled
    last_command, last_begun_by, last_started, last_ended
    last_reason       why it failed
    last_…            its figures

and at last the table that it left, if it did: a header line and rows in columns.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.control_file import Effects
from kafkafs.tree.jobs import Job, State, Work
from storage.directory.manager import Topic


class Request(NamedTuple):
    """What the lines of a write ask for. `work` None: end what there is."""

    command: str
    work: Work | None


Judge = Callable[["MountContext", "Topic", Sequence[str]], Request | None]
"""From lines to what they ask for; None where they say nothing. StorageError, OSError."""
Facts = Callable[["MountContext", "Topic"], Sequence[tuple[str, object]]]


class Control(NamedTuple):
    """One control file: its name, which is the kind of its jobs, and what its lines mean.

    `awaited`: its jobs should be done when the write is answered. `rate` gives the bytes per
    second that they may go through; `facts` what else is shown, between what goes on and what was.
    """

    name: str
    judge: Judge
    awaited: bool
    rate: Callable[[MountContext], float | None] = lambda mount: None
    facts: Facts = lambda mount, topic: ()


def begin(mount: MountContext, topic: Topic, control: Control, lines: Sequence[str]) -> Effects:
    """Carry out lines. StorageError, OSError: then nothing has happened."""
    if mount.manager.read_only:
        raise OSError(errno.EROFS, "the mount is read-only")
    if mount.stopping:
        raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
    request = control.judge(mount, topic, lines)
    if request is None:
        return Effects()
    if request.work is None:
        return Effects(stopped=mount.jobs.cancel(control.name, topic))
    job = mount.jobs.start(
        control.name, topic, request.command, request.work, bytes_per_second=control.rate(mount)
    )
    return Effects(begun=[job]) if control.awaited else Effects()


def state_text(mount: MountContext, topic: Topic, control: Control) -> str:
    """What reading shows."""
    active = mount.jobs.active(control.name, topic)
    last = mount.jobs.last(control.name, topic)
    facts = [
        *(_present(active) if active is not None else [("state", "idle")]),
        *control.facts(mount, topic),
        *((f"last_{name}", value) for name, value in _past(last)),
    ]
    lines = [_line(name, value) for name, value in facts]
    if last is not None:
        lines += last.report.table
    return "".join(f"{line}\n" for line in lines)


def _present(job: Job) -> Iterator[tuple[str, object]]:
    yield "state", job.state
    yield from _about(job)
    if job.state is State.RUNNING:
        task = job.task
        yield "phase", task.phase or "starting"
        yield "done_bytes", task.done
        yield "total_bytes", task.total
        yield from list(task.counts.items())


def _past(job: Job | None) -> Iterator[tuple[str, object]]:
    if job is None:
        yield "outcome", "none"
        return
    yield "outcome", job.state
    yield from _about(job)
    yield "ended", job.ended_ms
    if job.error is not None:
        yield "reason", job.reason
    yield from job.report.facts


def _about(job: Job) -> Iterator[tuple[str, object]]:
    yield "command", job.command
    yield "begun_by", "schedule" if job.scheduled else "command"
    yield "started", job.started_ms


def _line(name: str, value: object) -> str:
    """A value may be a text of any kind, but a fact is one line."""
    return f"{name} {' '.join(str(value).split())}"


def table(columns: Sequence[tuple[str, int]], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a header and rows, right-aligned in columns of a width; a width of 0, for the
    last one, is for words that end the line.
    """
    widths = [width for _, width in columns]
    return [
        " ".join(str(value).rjust(width) for value, width in zip(row, widths, strict=True))
        for row in [[name for name, _ in columns], *rows]
    ]
