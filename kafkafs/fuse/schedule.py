"""Retention, compaction and the checks of what is stored, by the clock.

**Retention** runs every log.retention.check.interval.ms over all topics, first after
log.initial.task.delay.ms. **Compaction** cleans, again and again, the due log with the largest
dirty ratio; if none is due it pauses for log.cleaner.backoff.ms. After each of these turns it runs
retention for the logs of compacted topics (`LogCleaner.CleanerThread`); the interval's retention
leaves those alone, unless log.cleaner.enable is false.

Each run is a job of its topic (`kafkafs.tree.jobs`): `.control` shows it, and a user's job waits
for one of them at most. A failed duty gets its next turn (`storage.background`). A log whose
cleaning failed pauses, longer each time, since cleaning may read all of it; a job by `.control`
cleans it at once.

Every few seconds sealed segments are looked at, one log after the other. **Repacking** joins their
batches if the topic has `kafkafs.repack` (`storage.compaction.repack`). Then their `.words` files
are built if it has `kafkafs.words` (`storage.directory.word_files`).

The **checker** reads what was appended every kafkafs.check.interval.ms, and begins a pass over all
sealed segments as long after the last one (`storage.verify.log_checker`). Staged files that nobody
asks for expire (`storage.owner.staged_orphans`, as often as retention), adoptions that a full disk
has left open end (`storage.adopt.adopt.settle`), and positions of groups are taken back when they
expire or their topic is deleted (`Groups.sweep`). These are no jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import trio

from kafkafs.fuse.retries import Retries
from kafkafs.fuse.threads import JobThreads, in_thread, job_ended
from kafkafs.tree.control import compaction, retention
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.jobs import Job, JobKind, JobState, JobWork
from kafkafs.tree.partition.partition import Partition
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.repack import due, repack_all
from storage.compaction.replacing import finish_swap
from storage.directory.retain import kept_starts, plan_retention
from storage.errors import TaskCancelled
from storage.log.log import Log
from storage.manager import Topic
from storage.plural import plural
from storage.segment.segment import Segment
from storage.task import Task
from storage.verify.log_checker import NEWEST_BYTES_PER_SECOND, SEALED_BYTES_PER_SECOND

#: The shortest pause between two turns, in seconds, whatever the settings say.
LEAST_S = 0.01
#: How often to look for open adoptions, in seconds.
SETTLE_S = 1.0
#: How often to look at sealed segments, in seconds.
SEALED_S = 5.0
#: How long to pause after a turn that failed altogether, in seconds.
RETRY_S = 15.0
#: The pauses of a log for which such work has failed, in seconds: the first and the longest.
CLEAN_AGAIN_S = 15.0, 600.0
#: The command that `.control` shows for jobs of the clock.
COMMAND = "run"
#: The subject of a duty whose whole turn fails.
TURN = "by the clock"
#: A duty that is no job.
LOOKING = "looking for what retention deletes"


class Schedule:
    """Runs until it is cancelled. A read-only mount has none."""

    def __init__(self, tree: FileSystem, workers: JobThreads) -> None:
        self._mount = tree.mount
        self._partitions = tree.partitions
        self._owner_requests = tree.owner_requests
        self._workers = workers
        self._manager = self._mount.manager
        self._broker = self._manager.settings.broker
        self._duties = self._manager.duties
        self._cleans_again: Retries[Log] = Retries(*CLEAN_AGAIN_S)
        self._repacks_again: Retries[Log] = Retries(*CLEAN_AGAIN_S)
        self._builds_again: Retries[Log] = Retries(*CLEAN_AGAIN_S)
        # The segments of logs that have nothing left to repack.
        self._repacked: WeakKeyDictionary[Log, tuple[Segment, ...]] = WeakKeyDictionary()
        # The faults of logs' retention policies at the last look.
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
            positions_s = broker.offsets_retention_check_interval_ms / 1000
            begin(self._turns, "removal of positions", positions_s, self._positions)
            if broker.log_cleaner_enable:
                begin(self._turns, "compaction", 0, self._compaction)
            begin(self._turns, "work on sealed segments", first_s, self._sealed)
            newest = self._check_of("newest", checker.run_newest, NEWEST_BYTES_PER_SECOND)
            begin(self._turns, "check of newest segments", check_s, newest)
            sealed = self._check_of("sealed", checker.run_sealed, SEALED_BYTES_PER_SECOND)
            begin(self._turns, "check of sealed segments", check_s, sealed)

    async def _turns(self, duty: str, pause_s: float, turn: Callable[[], Awaitable[float]]) -> None:
        """Take turns for ever; each returns the pause after it, in seconds."""
        while True:
            await trio.sleep(pause_s)
            try:
                pause_s = await turn()
            except Exception as error:
                self._duties.failed(duty, error, TURN)
                pause_s = RETRY_S
            else:
                self._duties.succeeded(duty, TURN)

    # -- retention -----------------------------------------------------------------------------

    async def _retention(self) -> float:
        cleaned = set(self._manager.topics.compacted if self._broker.log_cleaner_enable else ())
        await self._retain([log for log in self._manager.logs() if log not in cleaned])
        self._mount.counters.retention_passes += 1
        return max(self._broker.log_retention_check_interval_ms / 1000, LEAST_S)

    async def _retain(self, logs: Collection[Log]) -> None:
        """Run retention, topic by topic, for the logs that have segments to delete."""
        if not logs:
            return
        found = await in_thread(None, self._look, logs)
        doomed = [log for log in logs if found[log]]
        may_be_due = {log.topic for log in logs if found[log] is not False}
        for name in {log.topic for log in logs} - may_be_due:
            self._duties.no_longer_due(retention.KIND.name, name)
        for name, group in itertools.groupby(doomed, key=lambda log: log.topic):
            topic = self._manager.topics.get(name)
            if topic is not None:
                work = partial(retention.delete_old, self._mount, list(group))
                self._tell(await self._job(retention.KIND, topic, work), name)

    def _tell(self, job: Job, of: str) -> None:
        """Report the end of a job to the duties."""
        if job.state is JobState.DONE:
            self._duties.succeeded(job.kind.name, of)
        elif job.error is not None:
            self._duties.failed(job.kind.name, job.error, of)

    def _look(self, logs: Collection[Log]) -> dict[Log, bool | None]:
        """Call `_has_doomed` for each log. Runs on a worker thread."""
        kept = kept_starts(self._manager)
        return {log: self._has_doomed(log, kept) for log in logs}

    def _has_doomed(self, log: Log, kept: Mapping[tuple[str, int], int]) -> bool | None:
        """Whether retention would delete segments now; the job decides again, as log owner. None:
        unknown, as looking failed.
        """
        try:
            plan = plan_retention(log, self._manager.clock_ms(), kept)
        except Exception as error:
            self._duties.failed(LOOKING, error, log.name)
            return None
        self._duties.succeeded(LOOKING, log.name)
        if plan.fault != self._faults.get(log):
            # Log a fault once, not at each turn.
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
        log = await in_thread(None, cleaner.filthiest, now_ms, waiting)
        cleaned = log is not None and await self._clean(cleaner, log)
        for log in list(cleaner.uncleanable):
            if not log.may_be_cleaned:
                cleaner.uncleanable.pop(log, None)
        for log in self._cleans_again.failing:
            # (A job of a user may have cleaned it.)
            if not log.closed and log not in cleaner.uncleanable:
                self._duties.no_longer_due(compaction.KIND.name, log.name)
        await self._retain(self._manager.topics.compacted)
        return 0 if cleaned else max(self._broker.log_cleaner_backoff_ms / 1000, LEAST_S)

    async def _clean(self, cleaner: LogCleaner, log: Log) -> bool:
        """Clean a log; return whether to look for the next one at once."""
        topic = self._manager.topics.get(log.topic)
        if topic is None:
            return False
        before = cleaner.first_dirty(log)
        work = partial(compaction.clean, self._mount, [log])
        rate = compaction.bytes_per_second(self._mount)
        job = await self._job(compaction.KIND, topic, work, rate)
        if not log.closed:
            self._tell(job, log.name)
        if job.state is JobState.FAILED:
            self._cleans_again.failed(log)
            if not log.closed:
                # Any failure counts, even a bug of ours.
                cleaner.uncleanable[log] = job.reason
        elif job.state is JobState.DONE:
            self._cleans_again.succeeded(log)
        return job.state is JobState.DONE and cleaner.first_dirty(log) != before

    # -- sealed segments -----------------------------------------------------------------------

    async def _sealed(self) -> float:
        for log in list(self._manager.logs()):
            if not log.cleaning:
                # An error has interrupted it, and the settings may allow no other one.
                is_due = log.replacement is not None
                await self._work_on(log, "end of a swap", is_due, finish_swap, self._repacks_again)
            # (A broker's topic keeps the broker's batches, and its directory the broker's files.)
            if self._manager.settings.is_brokers_topic(log.topic):
                continue
            is_due = log.may_be_repacked and self._repacked.get(log) is not log.segments
            await self._work_on(log, "repacking", is_due, self._repack, self._repacks_again)
            is_due = log.has_words and self._mount.word_files.is_due(log)
            build = self._mount.word_files.build_missing
            await self._work_on(log, "building of words", is_due, build, self._builds_again)
        return SEALED_S

    async def _work_on(
        self,
        log: Log,
        duty: str,
        is_due: bool,
        work: Callable[[Log, Task], object],
        again: Retries[Log],
    ) -> None:
        """Work on the sealed segments of a log if that is due and it does not wait after a
        failure.
        """

        def attempt(task: Task) -> None:
            try:
                work(log, task)
            except TaskCancelled:
                raise
            except Exception:
                task.on_log_thread(partial(again.failed, log))
                raise
            task.on_log_thread(partial(again.succeeded, log))

        if not is_due:
            self._duties.no_longer_due(duty, log.name)
        elif not (log.closed or again.waits(log)):
            rate = compaction.bytes_per_second(self._mount)
            await self._workers.background(duty, attempt, rate, of=log.name)

    def _repack(self, log: Log, task: Task) -> None:
        """Repack the segments of a log that are due. Runs on a worker thread."""

        def partition() -> Partition:
            if log.closed:
                raise TaskCancelled("the topic has been deleted")
            return self._partitions.of(log)

        found = task.on_log_thread(partition)
        # First it reads the history, once.
        found.nonce()
        counters = log.counters
        was = replace(counters)
        try:
            repack_all(log, self._manager.clock_ms(), task)
        finally:
            # Housekeeping saves which segments need no repacking.
            found.note_change()
            # Also if a later one had no room.
            if count := counters.segments_repacked - was.segments_repacked:
                before = counters.repacked_bytes_before - was.repacked_bytes_before
                after = counters.repacked_bytes_after - was.repacked_bytes_after
                self._mount.events(
                    f"{log.topic}/{log.partition}: repacked {count} {plural(count, 'segment')}: "
                    f"{before} bytes became {after}"
                )
        task.on_log_thread(partial(self._note_repacked, log))

    def _note_repacked(self, log: Log) -> None:
        # Segments with open transactions are not due yet.
        if not due(log) and log.segments[-1].base_offset <= log.decided_end:
            self._repacked[log] = log.segments

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

    async def _positions(self) -> float:
        def sweep(task: Task) -> None:
            self._manager.groups.sweep(task)

        await self._workers.background("removal of positions", sweep)
        return max(self._broker.offsets_retention_check_interval_ms / 1000, LEAST_S)

    async def _settling(self) -> float:
        if not self._manager.adopter.has_unwritten_markers():
            return SETTLE_S

        def end(task: Task) -> None:
            self._manager.adopter.settle(task, self._mount.clock_ns)

        await self._workers.background("the end of an adoption", end)
        return RETRY_S if self._manager.adopter.has_unwritten_markers() else SETTLE_S

    # -- jobs ----------------------------------------------------------------------------------

    async def _job(
        self, kind: JobKind, topic: Topic, work: JobWork, rate: float | None = None
    ) -> Job:
        """Begin a job and wait for its end."""
        if self._mount.jobs.closed:
            await trio.sleep_forever()
        job: Job = self._mount.jobs.start(
            kind, topic, COMMAND, work, scheduled=True, bytes_per_second=rate
        )
        await job_ended(job)
        return job
