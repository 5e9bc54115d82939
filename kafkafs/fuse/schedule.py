"""Retention, compaction and the checks of what is stored, by the clock.

**Retention** runs every log.retention.check.interval.ms over all topics, first after
log.initial.task.delay.ms. **Compaction** asks, again and again, for the log with the largest share
of dirty bytes among those that are due, and cleans it; where there is none it pauses for
log.cleaner.backoff.ms. After each of these turns the logs of compacted topics get their retention
(`LogCleaner.CleanerThread`), and the interval's retention leaves them alone, unless
log.cleaner.enable is false.

Each piece is a job of its topic (`kafkafs.tree.jobs`), so that reading `.control` shows it, and
what was asked for there waits for no more than one of them. What fails is tried again at its next
turn (`storage.duties`); a log that could not be cleaned after a pause that grows, as it may have to
be read whole for that, or at once when somebody asks for it by `.control`.

What was appended is **checked** every kafkafs.check.interval.ms, and as long after each pass over
all sealed segments begins the next one (`storage.verify.log_checker`); these are nobody's jobs.

Staged files that nobody asks for go by their age (`storage.owner.staged_orphans`): looked for as
often as retention, and nobody's job either; nor is what a full disk has kept from ending with an
adoption (`storage.adopt.adopt.settle`).

Not here: the threads (`workers`), flushes and checkpoints (`ticks`).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import trio

from kafkafs.fuse.retries import Retries
from kafkafs.fuse.threads import in_thread
from kafkafs.fuse.workers import Workers
from kafkafs.tree.control import compaction, retention
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.jobs import Job, State, Work
from storage.adopt.adopt import is_unsettled, settle
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.manager import Topic
from storage.directory.retain import plan_retention
from storage.log.log import Log
from storage.task import Task
from storage.verify.log_checker import NEWEST_BYTES_PER_SECOND, SEALED_BYTES_PER_SECOND

T = TypeVar("T")

#: The shortest pause between two turns, in seconds, whatever the settings say.
LEAST_S = 0.01
#: How often to see whether an adoption is left open, in seconds.
SETTLE_S = 1.0
#: How long to pause after a turn that failed altogether, in seconds.
RETRY_S = 15.0
#: The pauses of a log that could not be cleaned, in seconds: the first and the longest one.
CLEAN_AGAIN_S = 15.0, 600.0
#: What is shown as the command of what the clock has begun.
COMMAND = "run"
#: What a turn that fails altogether is a duty of.
TURN = "by the clock"
#: A duty that is no job.
LOOKING = "looking for what retention deletes"


class Schedule:
    """Runs until it is cancelled. A read-only mount has none."""

    def __init__(self, tree: FileSystem, workers: Workers) -> None:
        self._mount = tree.mount
        self._owner_requests = tree.owner_requests
        self._workers = workers
        self._manager = self._mount.manager
        self._broker = self._manager.settings.broker
        self._duties = self._manager.duties
        self._cleans_again: Retries[Log] = Retries(*CLEAN_AGAIN_S)
        # What was wrong with the policies of logs when they were looked at last.
        self._faults: dict[Log, str] = {}

    async def run(self) -> None:
        broker = self._broker
        checker = self._mount.checker
        check_s = broker.kafkafs_check_interval_ms / 1000
        async with trio.open_nursery() as nursery:
            begin = nursery.start_soon
            first_s = broker.log_initial_task_delay_ms / 1000
            begin(self._turns, "retention", first_s, self._retention)
            begin(self._turns, "removal of staged files", first_s, self._orphans)
            begin(self._turns, "the end of an adoption", SETTLE_S, self._settling)
            if self._cleans:
                begin(self._turns, "compaction", 0, self._compaction)
            newest = self._check_of("newest", checker.run_newest, NEWEST_BYTES_PER_SECOND)
            begin(self._turns, "check of newest segments", check_s, newest)
            sealed = self._check_of("sealed", checker.run_sealed, SEALED_BYTES_PER_SECOND)
            begin(self._turns, "check of sealed segments", check_s, sealed)

    async def _turns(self, duty: str, pause_s: float, turn: Callable[[], Awaitable[float]]) -> None:
        """Take turns for ever; each tells how long to pause, in seconds."""
        while True:
            await trio.sleep(pause_s)
            try:
                pause_s = await turn()
            except Exception as error:
                self._duties.failed(duty, error, TURN)
                pause_s = RETRY_S
            else:
                self._duties.succeeded(duty, TURN)

    @property
    def _cleans(self) -> bool:
        return self._broker.log_cleaner_enable

    # -- retention -----------------------------------------------------------------------------

    async def _retention(self) -> float:
        cleaned = set(self._manager.topics.compacted if self._cleans else ())
        await self._retain([log for log in self._manager.logs() if log not in cleaned])
        self._mount.counters.retention_passes += 1
        return max(self._broker.log_retention_check_interval_ms / 1000, LEAST_S)

    async def _retain(self, logs: Collection[Log]) -> None:
        """Retention of those of these logs that have something to lose, topic by topic."""
        if not logs:
            return
        doomed = await _looked(lambda: [log for log in logs if self._has_doomed(log)])
        for name, group in itertools.groupby(doomed, key=lambda log: log.topic):
            topic = self._manager.topics.get(name)
            if topic is not None:
                work = retention.retention_of(self._mount, list(group))
                self._tell(await self._job(retention.NAME, topic, work), name)

    def _tell(self, job: Job, of: str) -> None:
        """What has become of a job that is a duty."""
        if job.state is State.DONE:
            self._duties.succeeded(job.kind, of)
        elif job.error is not None:
            self._duties.failed(job.kind, job.error, of)

    def _has_doomed(self, log: Log) -> bool:
        """By the facts of this moment; the job looks at them once more, as their owner."""
        try:
            plan = plan_retention(log, self._manager.clock_ms())
        except Exception as error:
            self._duties.failed(LOOKING, error, log.name)
            return False
        self._duties.succeeded(LOOKING, log.name)
        if plan.fault != self._faults.get(log):
            # Once, not at each turn.
            self._faults.pop(log, None)
            if plan.fault is not None:
                self._faults[log] = plan.fault
                self._mount.events(f"{log.topic}/{log.partition}: {plan.fault}")
        return bool(plan.doomed)

    # -- compaction ----------------------------------------------------------------------------

    async def _compaction(self) -> float:
        cleaner = self._mount.cleaner
        now_ms = self._manager.clock_ms()
        waiting = self._cleans_again.waiting
        log = await _looked(lambda: cleaner.filthiest(now_ms, waiting))
        cleaned = log is not None and await self._clean(cleaner, log)
        await self._retain(self._manager.topics.compacted)
        return 0 if cleaned else max(self._broker.log_cleaner_backoff_ms / 1000, LEAST_S)

    async def _clean(self, cleaner: LogCleaner, log: Log) -> bool:
        """Clean a log; False where there is no reason to look for the next one at once."""
        topic = self._manager.topics.get(log.topic)
        if topic is None:
            return False
        before = cleaner.first_dirty(log)
        work = compaction.cleaning_of(self._mount, [log])
        rate = compaction.bytes_per_second(self._mount)
        job = await self._job(compaction.NAME, topic, work, rate)
        if not log.closed:
            self._tell(job, log.name)
        if job.state is State.FAILED:
            self._cleans_again.failed(log)
            if not log.closed:
                # Whatever it was, also a bug of ours.
                cleaner.uncleanable[log] = job.reason
        elif job.state is State.DONE:
            self._cleans_again.succeeded(log)
        return job.state is State.DONE and cleaner.first_dirty(log) != before

    # -- checks --------------------------------------------------------------------------------

    def _check_of(
        self, what: str, check: Callable[[Task], None], rate: float | None
    ) -> Callable[[], Awaitable[float]]:
        async def turn() -> float:
            await self._workers.background(f"check of {what} segments", check, rate)
            return max(self._broker.kafkafs_check_interval_ms / 1000, LEAST_S)

        return turn

    async def _orphans(self) -> float:
        remove = self._owner_requests.remove_orphans
        await self._workers.background("removal of staged files", remove)
        return max(self._broker.log_retention_check_interval_ms / 1000, LEAST_S)

    async def _settling(self) -> float:
        if not is_unsettled(self._manager):
            return SETTLE_S

        def end(task: Task) -> None:
            settle(self._manager, task, self._mount.clock_ns)

        await self._workers.background("the end of an adoption", end)
        return RETRY_S if is_unsettled(self._manager) else SETTLE_S

    # -- jobs ----------------------------------------------------------------------------------

    async def _job(self, kind: str, topic: Topic, work: Work, rate: float | None = None) -> Job:
        """Begin a job and wait for its end."""
        if self._mount.jobs.closed:
            await trio.sleep_forever()
        job: Job = self._mount.jobs.start(
            kind, topic, COMMAND, work, scheduled=True, bytes_per_second=rate
        )
        ended = trio.Event()
        job.when_ended(ended.set)
        await ended.wait()
        return job


async def _looked(look: Callable[[], T]) -> T:
    """Look at the facts of all segments of many logs, in a thread: it reads none of them."""
    return await in_thread(None, look)
