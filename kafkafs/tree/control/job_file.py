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
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import DRY_RUN, TopicCommands, parse
from kafkafs.tree.files.control_file import CommandEffects
from kafkafs.tree.jobs import Job, JobKind, JobResult, JobState, JobWork
from storage.log.log import Log
from storage.manager import Topic
from storage.task import Task

PartitionsWork = Callable[[MountContext, Sequence[Log], Task], JobResult]
"""The work of a command for partitions of one topic, in a worker thread."""


class JobCommand(NamedTuple):
    """The command of a write: its text, and its work; None: cancel the jobs."""

    text: str
    work: JobWork | None


@dataclass(frozen=True)
class JobFile:
    """One control file: the kind of its jobs, which has its name, and the work of each verb.

    A line is `VERB` or `VERB PARTITION`; with the work None it cancels the jobs. `bare`: a
    partition alone means `run` of it. `writes`: the work changes logs, except that of `dry-run`, so
    a tiered topic is EROFS. `awaited`: the answer to a write waits for its jobs.
    """

    kind: JobKind
    works: Mapping[str, PartitionsWork | None] = field(default_factory=dict)
    awaited: bool = False
    bare: bool = False
    writes: bool = True
    check: Callable[[MountContext, Topic], None] = lambda mount, topic: None
    """Raises an error if the topic allows no work."""
    rate: Callable[[MountContext], float | None] = lambda mount: None
    """The limit of a job in bytes per second."""
    facts: Callable[[MountContext, Topic], Sequence[tuple[str, object]]] = lambda mount, topic: ()
    """More facts to show, between the present job's and the last one's."""

    def parse(self, mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
        """Parse the lines of a write; None where all are blank. StorageError, OSError."""
        command = parse(lines, list(self.works), topic.partitions, bare=self.bare)
        if command is None:
            return None
        work = self.works[command.verb]
        if work is None:
            return JobCommand(command.text, None)
        if self.writes and command.verb != DRY_RUN:
            mount.manager.check_may_write(topic.name)
        self.check(mount, topic)
        logs = [topic.partitions[number] for number in command.partitions]
        return JobCommand(command.text, partial(work, mount, logs))


class JobCommands(TopicCommands):
    """The lines of an open control file: they begin and cancel its jobs."""

    def __init__(self, mount: MountContext, path: str, topic: Topic, file: JobFile) -> None:
        super().__init__(mount, path, topic)
        self._file = file

    def carry_out(self, lines: Sequence[str]) -> CommandEffects:
        self.check()
        mount, topic, file = self.mount, self.topic, self._file
        if mount.manager.read_only:
            raise OSError(errno.EROFS, "the mount is read-only")
        if mount.stopping:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        command = file.parse(mount, topic, lines)
        if command is None:
            return CommandEffects()
        if command.work is None:
            return CommandEffects(stopped=mount.jobs.cancel(file.kind, topic))
        rate = file.rate(mount)
        text, work = command.text, command.work
        job = mount.jobs.start(file.kind, topic, text, work, bytes_per_second=rate)
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
