"""Worker threads: trio's for short calls, and threads of their own for jobs and duties.

Each job (`kafkafs.tree.jobs`) or duty (`storage.background`) has a thread of its own. It changes a
log's state on the trio thread, between two requests, under `Operations.structural`, or of a slow
log in its turn (`turns`).

Turns: of each `JobKind` that runs alone one job runs at a time, in the order of their requests; of
the other jobs `SHORT` run at once. Long work has a low priority, as far as the system allows.

The end: a cancelled `run` tells all work to stop, and returns when it has. Close nothing that the
work uses before that. No thread is ever abandoned.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

import trio

from kafkafs.tree.context import MountContext
from kafkafs.tree.jobs import Job, JobKind
from storage import threads
from storage.errors import NoThread
from storage.task import Task

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: How many jobs run at once that need not run alone.
SHORT = 16
#: The niceness of threads that do long work, at least.
NICE = 10


class AsOwner(Protocol):
    """Calls a function on the trio thread, or as if there, when it may change the logs."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


async def in_thread(
    limiter: trio.CapacityLimiter | None, function: Callable[[*Ts], T], *arguments: *Ts
) -> T:
    """As `trio.to_thread.run_sync`; `limiter` None: trio's. NoThread: `function` did not run."""
    begun = False

    def call() -> T:
        nonlocal begun
        begun = True
        return function(*arguments)

    threads.check_room()
    try:
        return await trio.to_thread.run_sync(call, limiter=limiter)
    except RuntimeError:
        if begun:
            raise
        raise NoThread from None


async def job_ended(job: Job) -> None:
    """Wait until a job has ended."""
    ended = trio.Event()
    job.when_ended(ended.set)
    await ended.wait()


class JobThreads:
    """See the module. `as_owner`: the method of `Operations`."""

    def __init__(self, mount: MountContext, as_owner: AsOwner) -> None:
        self._jobs = mount.jobs
        self._duties = mount.manager.duties
        self._as_owner = as_owner
        self._alone: dict[JobKind, _Turns] = {}
        self._short = _Turns(SHORT)
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._tasks: set[Task] = set()
        self._jobs.on_log_thread = self.on_log_thread

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._jobs.runner = self._start
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self.stop()

    def stop(self) -> None:
        """Tell all work to stop, and begin no more."""
        self._jobs.close()
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """After `stop`: wait until all work has ended."""
        for job in self._jobs.running:
            await job_ended(job)

    # -- from the threads ----------------------------------------------------------------------

    def on_log_thread(self, function: Callable[[], T], /) -> T:
        """Change the tree or logs on the trio thread; call it in a worker thread."""

        return trio.from_thread.run(self._as_owner, function, trio_token=self._token)

    # -- jobs ----------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        assert self._nursery is not None
        turns = self._short
        if job.kind.runs_alone:
            turns = self._alone.setdefault(job.kind, _Turns(1))
        turn = turns.queue()
        waiting = trio.CancelScope()
        job.interrupt = waiting.cancel
        self._nursery.start_soon(self._job, job, turns, turn, waiting)

    async def _job(
        self, job: Job, turns: _Turns, turn: trio.Event, waiting: trio.CancelScope
    ) -> None:
        try:
            with waiting:
                await turn.wait()
                with trio.CancelScope(shield=True):
                    self._jobs.started(job)
                    await _in_thread(job.kind.name, job.carry_out, job.kind.is_long)
        except NoThread as error:
            job.fail(error)
        finally:
            turns.leave(turn)
            self._jobs.ended(job)

    # -- duties --------------------------------------------------------------------------------

    async def background(
        self, name: str, work: Callable[[Task], object], bytes_per_second: float | None = None
    ) -> None:
        """Run a duty (`storage.background`) in a thread, as long work.

        On cancellation tell the work to stop, and wait for it.
        """
        task = Task(self.on_log_thread, bytes_per_second=bytes_per_second)

        def carry_out() -> None:
            with self._duties.attempt(name):
                work(task)

        if self._jobs.closed:
            return
        self._tasks.add(task)
        try:
            with trio.CancelScope(shield=True):
                await _in_thread(name, carry_out, low=True)
        finally:
            self._tasks.discard(task)


class _Turns:
    """Lets `width` in at once, the others in the order of their calls of `queue`.

    trio's locks keep the order of waiting, and tasks begun together begin to wait in any order.
    """

    def __init__(self, width: int) -> None:
        self._free = width
        self._waiting: deque[trio.Event] = deque()

    def queue(self) -> trio.Event:
        """Queue for a turn: an event that is set when the turn comes. Call `leave` in any case."""
        turn = trio.Event()
        self._waiting.append(turn)
        self._admit()
        return turn

    def leave(self, turn: trio.Event) -> None:
        if turn.is_set():
            self._free += 1
        else:
            self._waiting.remove(turn)
        self._admit()

    def _admit(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()


async def _in_thread(name: str, function: Callable[[], None], low: bool) -> None:
    """Call `function` in a new thread; the wait cannot be cancelled. NoThread."""
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def run() -> None:
        try:
            if low:
                # On Linux this is the thread's own niceness, and its I/O priority follows.
                thread = threading.get_native_id()
                with contextlib.suppress(OSError):
                    nice = max(os.getpriority(os.PRIO_PROCESS, thread), NICE)
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
            function()
        finally:
            token.run_sync_soon(ended.set)

    threads.start(threading.Thread(target=run, name=name, daemon=True))
    await ended.wait()
