"""Carries out requests to the owner of the data directory, and keeps their outcomes.

Each request (`storage.owner`) is a job without a topic (`kafkafs.tree.jobs`); requests of one kind
run one after the other, in the order of their arrival. It keeps the last `KEPT` outcomes that fit
into `KEPT_BYTES`, and always the last one. It also removes orphaned staged files: those that no
active request names.

Everything here runs on the owner's thread, except the jobs' work.
"""

from __future__ import annotations

import errno
import json
import traceback
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from kafkafs.tree.context import MountContext
from kafkafs.tree.errnos import errno_of
from kafkafs.tree.jobs import Job, JobKind, JobResult, JobState
from storage.errors import StorageError
from storage.owner.request_kinds import (
    KINDS,
    SWAP,
    OwnerRequest,
    RequestOutcome,
    error_outcome,
)
from storage.owner.staged_orphans import Removed, remove_orphans
from storage.task import Task

KEPT = 1000
KEPT_BYTES = 1 << 20
JOB_KINDS = {
    kind.name: JobKind(kind.name, runs_alone=True, is_long=kind is SWAP) for kind in KINDS.values()
}
"""The job kind of each kind of request."""
_FACTS_SAID = ("records", "bytes")


class OwnerRequests:
    """See the module."""

    def __init__(self, mount: MountContext) -> None:
        self.mount = mount
        self._active: dict[str, _Entry] = {}
        # The lines of the ended requests by id, oldest first, and the bytes of all of them.
        self._ended: dict[str, str] = {}
        self._ended_bytes = 0
        # The staged files of active requests.
        self._files: Counter[tuple[str, int, str]] = Counter()

    def start(self, asked: Sequence[OwnerRequest]) -> None:
        """Begin all requests, or none. ESHUTDOWN; EEXIST where an id is taken."""
        mount = self.mount
        if mount.stopping or mount.jobs.closed:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        entries = [_Entry(each, each.id or str(uuid.uuid4())) for each in asked]
        taken = {*self._active, *self._ended}
        for entry in entries:
            if entry.id in taken:
                raise OSError(errno.EEXIST, f"a request with the id {entry.id} already exists")
            taken.add(entry.id)
        for entry in entries:
            self._active[entry.id] = entry
            self._files.update(entry.files)
            work = partial(self._carry_out, entry)
            kind = JOB_KINDS[entry.asked.kind.name]
            entry.job = job = mount.jobs.start(kind, None, entry.id, work)
            job.when_ended(partial(self._end, entry, job))

    def _carry_out(self, entry: _Entry, task: Task) -> JobResult:
        kind, request = entry.asked.kind, entry.asked.request
        answer = kind.carry_out(self.mount.manager, request, task, self.mount.clock_ns)
        entry.facts = kind.encode_answer(answer)
        return JobResult()

    def _end(self, entry: _Entry, job: Job) -> None:
        del self._active[entry.id]
        self._files.subtract(entry.files)
        self._files += Counter()  # drops counts of 0
        if job.state is JobState.FAILED and job.error is not None:
            entry.facts = error_outcome(job.error)
        elif job.state is JobState.CANCELLED:
            entry.facts = {"state": job.state, "reason": "the file system is being unmounted"}
        self._keep(entry.id, entry.line())
        self._count(entry)
        self._say(entry, job.error)

    def _keep(self, entry_id: str, line: str) -> None:
        self._ended[entry_id] = line
        self._ended_bytes += len(line)
        while len(self._ended) > KEPT or (len(self._ended) > 1 and self._ended_bytes > KEPT_BYTES):
            self._ended_bytes -= len(self._ended.pop(next(iter(self._ended))))

    def _count(self, entry: _Entry) -> None:
        counters, facts = self.mount.counters, entry.facts
        counters.owner_requests[entry.asked.kind.name, str(facts["state"])] += 1
        if facts["state"] == "adopted":
            counters.adopted_records += facts["records"]
            counters.adopted_bytes += facts["bytes"]

    def _say(self, entry: _Entry, error: Exception | None) -> None:
        facts = entry.facts
        details = [facts["reason"]] if "reason" in facts else []
        details += [f"{name} {facts[name]}" for name in _FACTS_SAID if name in facts]
        what = f"{entry.asked.kind.title(entry.asked.request)}: {facts['state']}"
        line = f"{what}: {', '.join(details)}" if details else what
        self.mount.events.of_request(line, None if error is None else errno_of(error))
        if error is not None and not isinstance(error, StorageError | OSError):
            lines = "".join(traceback.format_exception(error))
            self.mount.events(f"{what}: unexpected error", lines)

    def text(self) -> str:
        """A line for each request, the newest last."""
        lines = [*self._ended.values(), *(entry.line() for entry in self._active.values())]
        return "".join(f"{line}\n" for line in lines)

    # -- orphans -------------------------------------------------------------------------------

    def is_under_way(self, topic: str, partition: int, name: str) -> bool:
        """Whether a request that has not ended names a staged file."""
        return (topic, partition, name) in self._files

    def remove_orphans(self, task: Task) -> Removed:
        """Remove the staged files that no active request names. In a worker thread."""
        removed = remove_orphans(self.mount.manager, task, self.is_under_way)
        if removed.files:
            self.mount.events(str(removed))
        return removed


class _Entry:
    """One request."""

    def __init__(self, asked: OwnerRequest, entry_id: str) -> None:
        self.asked = asked
        self.id = entry_id
        self.job: Job | None = None
        self.facts: RequestOutcome = {}
        """The outcome, once it has ended."""

    @property
    def files(self) -> Iterable[tuple[str, int, str]]:
        """The staged files that it needs."""
        for file in self.asked.kind.staged(self.asked.request):
            yield file.topic, file.partition, file.name

    def line(self) -> str:
        """The request's line in `.kafkafs/adopt`."""
        facts: RequestOutcome = {"id": self.id, "kind": self.asked.kind.name}
        job = self.job
        if self.facts or job is None:
            facts |= self.facts
        else:
            task = job.task
            facts |= {"state": job.state, "phase": task.phase, "done": task.done}
            facts |= {"total": task.total}
        return json.dumps(facts, separators=(",", ":"))
