"""The daemon's short duties by the clock: flushes, checkpoints, sweeps of the storage and the tree.

One task looks four times a second for partitions whose oldest unflushed append reaches flush.ms,
and flushes each in a task of its own, so that a slow fsync delays no other partition. A flush.ms
shorter than a quarter of a second may be late by that. Another rolls every second the logs whose
new settings have made the active segment too large or too old. Every few seconds the tree and the
storage do their periodic work, and on Kafka's interval the logs write their checkpoints.

Where another process writes the directory, a task looks at the partitions that processes wait for
in poll(2), as soon as the system says that their writer has changed them.

A failed duty gets its next turn (`storage.background`), a partition's flush after a growing pause.
`schedule` has retention and compaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from kafkafs.fuse.freed_memory import FreedMemory
from kafkafs.fuse.operations import Operations
from kafkafs.fuse.retries import Retries
from kafkafs.fuse.threads import in_thread
from kafkafs.tree.filesystem import FileSystem
from storage import descriptors
from storage.log.log import Log
from storage.manager import LogManager
from storage.plain_forms import plain_forms

#: How often to look for due flushes, in seconds.
LOOK_S = 0.25
#: Flushes at once: fewer than the threads for fsync, so that requests for fsync find one.
FLUSHES = 16
#: How often the tree saves its state, and how often the storage sweeps, in seconds.
TICK_S = 1.0
SWEEP_S = 5.0
#: A time that no clock of milliseconds gets to.
NEVER_MS = 2**64
#: The pauses of a flush that fails, in seconds: the first and the longest one.
FLUSH_AGAIN_S = 1.0, 16.0


class Housekeeping:
    """Runs until it is cancelled. `now_ms` is the manager's clock."""

    def __init__(self, tree: FileSystem, operations: Operations) -> None:
        self._partitions = tree.partitions
        self._claims = tree.claims
        self._consumers_ended = trio.Event()
        self._claims.on_due = lambda: self._consumers_ended.set()
        self._manager: LogManager = tree.mount.manager
        self._operations = operations
        self._flushing: set[Log] = set()
        self._flushers = trio.Semaphore(FLUSHES)
        self._flushes_again: Retries[Log] = Retries(*FLUSH_AGAIN_S)
        self._duties = self._manager.duties
        mount = tree.mount
        self._freed = FreedMemory(
            lambda: (
                mount.unfinished.total
                + mount.open_texts.total
                + mount.read_ahead.held_bytes
                + plain_forms.held_bytes
            )
        )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._every, TICK_S, "housekeeping", self._tick)
            nursery.start_soon(self._every, SWEEP_S, "removal of what was deleted", self._sweep)
            nursery.start_soon(self._wake_followers)
            nursery.start_soon(self._grant_what_ended)
            if not self._manager.read_only:
                interval_ms = self._manager.settings.broker.log_flush_offset_checkpoint_interval_ms
                checkpoint_s = max(interval_ms / 1000, TICK_S)
                nursery.start_soon(self._every, checkpoint_s, "checkpoint", self._checkpoint)
                await self._flush_due(nursery)

    async def flush_all(self) -> None:
        """Flush all partitions with unflushed appends, side by side."""
        async with trio.open_nursery() as nursery:
            for log in self._manager.due_flushes(NEVER_MS):
                nursery.start_soon(self._flush, log)

    async def _every(self, seconds: float, duty: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(seconds)
            with self._duties.attempt(duty):
                await work()

    # -- flushes -------------------------------------------------------------------------------

    async def _flush_due(self, nursery: trio.Nursery) -> None:
        look_ms = int(LOOK_S * 1000)
        while True:
            # A segment with unflushed bytes cannot close its descriptors.
            now_ms = NEVER_MS if descriptors.over_budget() else self._manager.monotonic_ms()
            pause_ms = look_ms
            for log in self._manager.due_flushes(now_ms + look_ms):
                if log in self._flushing or log.durability.unflushed_since_ms is None:
                    continue
                if self._flushes_again.waits(log):
                    continue
                left_ms = log.durability.unflushed_since_ms + log.config.flush_ms - now_ms
                if left_ms > 0 and log.flush_error is None:
                    pause_ms = min(pause_ms, left_ms)
                else:
                    self._flushing.add(log)
                    nursery.start_soon(self._flush, log)
            await trio.sleep(pause_ms / 1000)

    async def _flush(self, log: Log) -> None:
        try:
            async with self._flushers:
                if log.flush_error is not None:
                    await self._operations.rescue(log)
                elif not log.closed:
                    plan = await self._operations.turns.call(log.durability.start_flush)
                    await self._operations.sync([plan])
        except Exception as error:
            self._flushes_again.failed(log)
            if not (log.closed or log.deleting):
                self._duties.failed("flush", error, log.name)
        else:
            self._flushes_again.succeeded(log)
            self._duties.succeeded("flush", log.name)
        finally:
            self._flushing.discard(log)

    async def _wake_followers(self) -> None:
        """Look at what another process has written, as soon as a process waits for it."""
        while True:
            await trio.lowlevel.wait_readable(self._partitions.watches.fd)
            with self._duties.attempt("following of what is waited for"):
                self._partitions.look_at_changed()

    async def _grant_what_ended(self) -> None:
        """Grant what consumers held that have ended; once for all that end in one turn."""
        while True:
            await self._consumers_ended.wait()
            self._consumers_ended = trio.Event()
            with self._duties.attempt("sharing of partitions"):
                self._claims.look_if_due()

    # -- the rest ------------------------------------------------------------------------------

    async def _tick(self) -> None:
        with self._duties.attempt("saving of what is shown"):
            self._partitions.tick()
        with self._duties.attempt("sharing of partitions"):
            self._claims.look()
        for log in list(self._manager.roll_due):
            with self._duties.attempt("roll", log.name):
                await self._operations.turns.change(self._manager.roll_if_outgrown, log)
        await in_thread(None, self._partitions.housekeeping)

    async def _sweep(self) -> None:
        await in_thread(None, self._freed.give_back)
        self._partitions.mount.read_ahead.age()
        async with self._operations.structural:
            remove = self._manager.sweep(self._manager.monotonic_ms())
        while remove is not None:
            await in_thread(None, remove)
            async with self._operations.structural:
                remove = self._manager.deleted.remove(self._manager.monotonic_ms())

    async def _checkpoint(self) -> None:
        await in_thread(None, lambda: trio.from_thread.run(self._start_checkpoint)())

    async def _start_checkpoint(self) -> Callable[[], None]:
        """Start a checkpoint in the thread that writes it: a started one must be written."""
        async with self._operations.structural:
            return self._manager.start_checkpoint()
