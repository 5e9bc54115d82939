"""Control files whose commands are jobs: they parse lines, begin jobs, and show their state.

Reading shows one fact a line, `name value`; first of the present job:

    state        idle, queued (waits for its turn) or running
    command      the written line, or the clock's job
    begun_by     command or schedule
    started      ms since 1970
    phase, done_bytes, total_bytes      total_bytes is 0 as long as it is not known
    …            figures of the work so far

then of the last job, if there was one, each name with `last_` before it:

    last_outcome      none, done, failed or cancelled
    last_command, last_begun_by, last_started, last_ended
    last_reason       why it failed
    last_…            its figures

and then the last job's table, if it has one: a header line and rows in columns.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import DRY_RUN, parse
from kafkafs.tree.control.control_file import CommandEffects
from kafkafs.tree.jobs import Job, JobKind, JobResult, JobState, JobWork
from storage.log.log import Log
from storage.manager import Topic
from storage.task import Task

JobCommand = tuple[str, JobWork | None]
"""The command of a write, and its work; None: cancel the jobs."""
ParseLines = Callable[[MountContext, Topic, Sequence[str]], JobCommand | None]
"""Parses lines; None where all are blank. StorageError, OSError."""
PartitionsWork = Callable[[MountContext, Sequence[Log], Task], JobResult]
"""The work of a command for partitions of one topic, in a worker thread."""


class JobFile(NamedTuple):
    """One control file: the kind of its jobs, which has its name, and the parser of its lines.

    `awaited`: the answer to a write waits for its jobs. `rate`: their limit in bytes per second.
    `facts`: more facts to show, between the present job's and the last one's.
    """

    kind: JobKind
    parse: ParseLines
    awaited: bool
    rate: Callable[[MountContext], float | None] = lambda mount: None
    facts: Callable[[MountContext, Topic], Sequence[tuple[str, object]]] = lambda mount, topic: ()


def by_partition(
    works: Mapping[str, PartitionsWork | None],
    *,
    bare: bool = False,
    writes: bool = True,
    check: Callable[[MountContext, Topic], None] = lambda mount, topic: None,
) -> ParseLines:
    """The parser of lines `VERB` and `VERB PARTITION`, with the work of each verb; None: cancel.

    `bare`: a partition alone means `run` of it. `writes`: the work changes logs, except that of
    `dry-run`, so a tiered topic is EROFS. `check` raises where no work may begin.
    """

    def parse_lines(mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
        command = parse(lines, list(works), topic.partitions, bare=bare)
        if command is None:
            return None
        work = works[command.verb]
        if work is None:
            return command.text, None
        if writes and command.verb != DRY_RUN:
            mount.manager.check_may_write(topic.name)
        check(mount, topic)
        logs = [topic.partitions[number] for number in command.partitions]
        return command.text, partial(work, mount, logs)

    return parse_lines


def begin_job(
    mount: MountContext, topic: Topic, file: JobFile, lines: Sequence[str]
) -> CommandEffects:
    """Carry out lines. StorageError, OSError, with nothing changed."""
    if mount.manager.read_only:
        raise OSError(errno.EROFS, "the mount is read-only")
    if mount.stopping:
        raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
    parsed = file.parse(mount, topic, lines)
    if parsed is None:
        return CommandEffects()
    command, work = parsed
    if work is None:
        return CommandEffects(stopped=mount.jobs.cancel(file.kind, topic))
    rate = file.rate(mount)
    job = mount.jobs.start(file.kind, topic, command, work, bytes_per_second=rate)
    return CommandEffects(begun=[job]) if file.awaited else CommandEffects()


def state_text(mount: MountContext, topic: Topic, file: JobFile) -> str:
    """The text of a control file."""
    active = mount.jobs.active(file.kind, topic)
    last = mount.jobs.last(file.kind, topic)
    facts = [
        *(_present(active) if active is not None else [("state", "idle")]),
        *file.facts(mount, topic),
        *((f"last_{name}", value) for name, value in _past(last)),
    ]
    lines = [_line(name, value) for name, value in facts]
    if last is not None:
        lines += last.result.table
    return "".join(f"{line}\n" for line in lines)


def _present(job: Job) -> Iterator[tuple[str, object]]:
    yield "state", job.state
    yield from _about(job)
    if job.state is JobState.RUNNING:
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
    yield from job.result.facts


def _about(job: Job) -> Iterator[tuple[str, object]]:
    yield "command", job.command
    yield "begun_by", "schedule" if job.scheduled else "command"
    yield "started", job.started_ms


def _line(name: str, value: object) -> str:
    """A fact as one line, whatever text its value is."""
    return f"{name} {' '.join(str(value).split())}"
