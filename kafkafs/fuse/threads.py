"""Threads of the daemon: trio's for short calls, one for each job or duty, one for each turn.

Calls: `in_thread` calls a function in one of trio's threads.

Jobs: each job (`kafkafs.tree.jobs`) or duty (`storage.background`) has a thread of its own. It
changes a log's state on the loop thread, between two requests, under `Operations.structural`. Of
each `JobKind` that runs alone one job runs at a time, in the order of their requests; of the other
jobs `SHORT` run at once. Long work has a low priority, as far as the system allows. A cancelled
`JobThreads.run` stops all work, and returns when it has ended. Close nothing that the work uses
before that. No thread is ever abandoned.

Turns: a log that appends slowly is changed without blocking the other logs. A call that raises
MustQueue (`storage.log.append_queue`) queues for the turn of its log, and is repeated in a worker
thread. This thread takes the place of the loop thread, which stops until the call ends or waits for
the disk. So only one thread at a time touches the tree and the logs. While the call waits for the
disk, the loop thread answers requests, and other changes of that log queue.

Turns have the order of their requests. stat, open, read and fsync wait for the calls that queue
already (`passed`), as if the appends had been made when they arrived. lookup does not: the kernel
blocks other lookups in the directory meanwhile. While a line waits to be appended, the kernel keeps
no attributes, so stat follows.

A queued call is never cancelled, not even at unmount: a release may still append the last line. The
kernel sends one write at a time for each file, which bounds the queued writes. At most `LOOKING`
readers wait; more get EAGAIN, so that tasks remain for other requests.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

from kafkafs.fuse.session_loop import MAX_TASKS, Spinner
from kafkafs.tree.context import MountContext
from kafkafs.tree.jobs import Job, JobKind
from storage import threads
from storage.errors import NoThread
from storage.log.append_queue import AppendQueue, MustQueue, Turn
from storage.task import Task

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: How many jobs run at once that need not run alone.
SHORT = 16
#: The niceness of threads that do long work, at least.
NICE = 10
#: How many requests may wait for queued changes.
LOOKING = MAX_TASKS // 2


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


# -- jobs ------------------------------------------------------------------------------------------


async def job_ended(job: Job) -> None:
    """Wait until a job has ended."""
    ended = trio.Event()
    job.when_ended(ended.set)
    await ended.wait()


class _Lane:
    """Jobs that wait for their turn. `free`: how many more may run now."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: deque[Job] = deque()


class JobThreads:
    """See the module."""

    def __init__(self, mount: MountContext, turns: Turns) -> None:
        self._jobs = mount.jobs
        self._duties = mount.manager.duties
        self._turns = turns
        self._alone: dict[JobKind, _Lane] = {}
        self._short = _Lane(SHORT)
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
        """Stop all work, and begin no more."""
        self._jobs.close()
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """After `stop`: wait until all work has ended."""
        for job in self._jobs.running:
            await job_ended(job)

    def on_log_thread(self, function: Callable[[], T], /) -> T:
        """Change the tree or logs on the loop thread. Runs on a worker thread."""
        return trio.from_thread.run(self._turns.change, function, trio_token=self._token)

    def _start(self, job: Job) -> None:
        assert self._nursery is not None
        lane = self._short
        if job.kind.runs_alone:
            lane = self._alone.setdefault(job.kind, _Lane(1))
        lane.waiting.append(job)
        job.interrupt = partial(self._drop, lane, job)
        if lane.free:
            lane.free -= 1
            self._nursery.start_soon(self._run_jobs, lane)

    def _drop(self, lane: _Lane, job: Job) -> None:
        if job in lane.waiting:
            lane.waiting.remove(job)
            self._jobs.ended(job)

    async def _run_jobs(self, lane: _Lane) -> None:
        """Run the jobs of a lane until none waits. Not cancelled."""
        while lane.waiting:
            job = lane.waiting.popleft()
            self._jobs.started(job)
            try:
                await _in_new_thread(job.kind.name, job.carry_out, low=job.kind.is_long)
            except NoThread as error:
                job.fail(error)
            finally:
                self._jobs.ended(job)
        lane.free += 1

    async def background(
        self,
        name: str,
        work: Callable[[Task], object],
        bytes_per_second: float | None = None,
        *,
        of: str = "",
    ) -> None:
        """Run a duty (`storage.background`), for the object `of`, in a thread, as long work.

        A cancellation stops the work, and waits for its end.
        """
        task = Task(self.on_log_thread, bytes_per_second=bytes_per_second)

        def carry_out() -> None:
            with self._duties.attempt(name, of):
                work(task)

        if self._jobs.closed:
            return
        self._tasks.add(task)
        try:
            await _in_new_thread(name, carry_out, low=True)
        finally:
            self._tasks.discard(task)


async def _in_new_thread(name: str, function: Callable[[], None], *, low: bool) -> None:
    """Call `function` in a new thread, of low priority. NoThread. Not cancelled."""
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
    with trio.CancelScope(shield=True):
        await ended.wait()


# -- turns -----------------------------------------------------------------------------------------


class Turns:
    """See the module. `queues`: the logs with queued calls."""

    def __init__(self, spinner: Spinner, structural: trio.Lock) -> None:
        self.queues: dict[AppendQueue, trio.Lock] = {}
        self._structural = structural
        self._spinner = spinner
        self._threads = trio.CapacityLimiter(math.inf)
        self._looking = 0

    async def call(
        self,
        function: Callable[[*Ts], T],
        *arguments: *Ts,
        under: trio.Lock | None = None,
    ) -> T:
        """Call on the loop thread, at once or in turn, under a lock. Not cancelled."""
        try:
            if under is None:
                return function(*arguments)
            async with under:
                return function(*arguments)
        except MustQueue as error:
            wanted = error.queues
        with trio.CancelScope(shield=True), self._spinner.elsewhere():
            while True:
                try:
                    async with self._queued(wanted), under or contextlib.nullcontext():
                        result = await self._in_turn(wanted, function, *arguments)
                    break
                except MustQueue as error:
                    wanted |= error.queues
        return result

    async def change(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Change the tree as `call` does, one change at a time."""
        return await self.call(function, *arguments, under=self._structural)

    async def passed(self, queue: AppendQueue | None) -> None:
        """Return when the calls that queue for a log now have ended. BlockingIOError"""
        if queue not in self.queues:
            return
        if self._looking == LOOKING:
            raise BlockingIOError(
                errno.EAGAIN, f"{LOOKING} requests are already waiting for slow disks"
            )
        self._looking += 1
        try:
            await self._passed(queue)
        finally:
            self._looking -= 1

    async def end(self) -> None:
        """Return when no call queues."""
        while self.queues:
            await self._passed(next(iter(self.queues)))

    async def _passed(self, queue: AppendQueue) -> None:
        with self._spinner.elsewhere():
            async with self._queued((queue,)):
                pass

    @contextlib.asynccontextmanager
    async def _queued(self, queues: Iterable[AppendQueue]) -> AsyncIterator[None]:
        """Queue for the turn of each log, and have it."""
        async with contextlib.AsyncExitStack() as stack:
            # All calls take the locks in one order, so none waits for another in a circle.
            for queue in sorted(queues, key=lambda queue: queue.name):
                lock = self.queues.setdefault(queue, trio.Lock())
                queue.enter()
                stack.callback(self._leave, queue)
                await stack.enter_async_context(lock)
            yield

    def _leave(self, queue: AppendQueue) -> None:
        queue.leave()
        lock = self.queues[queue]
        if not lock.locked():
            del self.queues[queue]

    async def _in_turn(
        self, queues: Iterable[AppendQueue], function: Callable[[*Ts], T], *arguments: *Ts
    ) -> T:
        """Call in a worker thread in the place of the loop thread; here if no thread can start."""
        turn = _WorkersTurn()
        for queue in queues:
            queue.turn = turn
        try:
            try:
                return await in_thread(self._threads, turn.call, function, *arguments)
            except NoThread:
                # A release is not repeated.
                for queue in queues:
                    queue.turn = Turn()
                return function(*arguments)
        finally:
            for queue in queues:
                queue.turn = None


class _WorkersTurn(Turn):
    """A worker thread's turn, in the place of the loop thread. `thread` is 0 while it waits."""

    def __init__(self) -> None:
        self.thread = 0
        self._token = trio.lowlevel.current_trio_token()
        self._lent = threading.Semaphore(0)
        self._returned = threading.Semaphore(0)

    def call(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function in a worker thread, in the loop thread's place."""
        self._take_place()
        try:
            return function(*arguments)
        finally:
            self._give_back()

    def off_log_thread(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        self._give_back()
        try:
            return function(*arguments)
        finally:
            self._take_place()

    def _take_place(self) -> None:
        self._token.run_sync_soon(self._lend_place)
        self._lent.acquire()
        self.thread = threading.get_ident()

    def _give_back(self) -> None:
        self.thread = 0
        self._returned.release()

    def _lend_place(self) -> None:
        self._lent.release()
        self._returned.acquire()
