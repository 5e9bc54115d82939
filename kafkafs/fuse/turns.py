"""Turns: how a log that appends slowly is changed without holding up the others.

A call that raises MustQueue (`storage.log.append_queue`) queues for the turn of its log and is made
again in a worker thread. There it has the owner's place: the trio thread stops until the call ends
or waits for the disk, so that only one thread at a time touches the tree and the logs. While the
call waits for the disk the trio thread answers requests, and whoever wants to change that log
queues.

Turns come in the order in which they were asked for. stat, open, read and fsync wait for those who
queue already (`passed`), as if the appends had been made when they arrived. lookup does not: the
kernel lets nobody else look up names in the directory meanwhile. While a line waits to be appended
the kernel keeps no attributes, so stat follows.

Nobody cancels a call that queues, also when the session ends: a release may bring the end of a
line. Writes that queue are as many as the files that the kernel writes through, since it sends one
at a time for each; of those who wait to look `LOOKING` wait at once, others get EAGAIN, so that
tasks stay for other requests.
"""

from __future__ import annotations

import contextlib
import errno
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar, TypeVarTuple

import trio

from kafkafs.fuse.session_loop import MAX_TASKS, Spinner
from kafkafs.fuse.threads import in_thread
from storage.errors import NoThread
from storage.log.append_queue import AppendQueue, MustQueue

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: How many requests may wait to look at what others queue to change.
LOOKING = MAX_TASKS // 2


class Turns:
    """See the module. `queues`: the logs that somebody queues for."""

    def __init__(self, spinner: Spinner) -> None:
        self.queues: dict[AppendQueue, trio.Lock] = {}
        self._spinner = spinner
        self._threads = trio.CapacityLimiter(math.inf)
        self._looking = 0

    async def call(
        self,
        function: Callable[[*Ts], T],
        *arguments: *Ts,
        under: trio.Lock | None = None,
    ) -> T:
        """Call as the owner, at once or in turn; `under`: a lock to be held. Not cancelled."""
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

    async def passed(self, queue: AppendQueue | None) -> None:
        """Return when those who queue for a log now have had their turns. BlockingIOError."""
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
        """Return when nobody queues."""
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
            # In one order for all: nobody waits for somebody who waits for him.
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
        """Call as the owner in a worker thread; in this one if no thread can start."""
        turn = _OwnersTurn()
        for queue in queues:
            queue.turn = turn
        try:
            try:
                return await in_thread(self._threads, turn.call, function, *arguments)
            except NoThread:
                # Better late than never: a release is not repeated.
                return turn.call_here(function, *arguments)
        finally:
            for queue in queues:
                queue.turn = None


class _OwnersTurn:
    """A turn (`storage.log.append_queue.Turn`) in the place of the trio thread, which makes it."""

    def __init__(self) -> None:
        self.thread = 0
        self._owner = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()
        self._lent = threading.Semaphore(0)
        self._returned = threading.Semaphore(0)

    def call(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function in a worker thread, in the trio thread's place."""
        self._take_place()
        try:
            return function(*arguments)
        finally:
            self._give_back()

    def call_here(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function in the trio thread."""
        self.thread = self._owner
        return function(*arguments)

    def off_log_thread(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        if self.thread == self._owner:
            return function(*arguments)
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
