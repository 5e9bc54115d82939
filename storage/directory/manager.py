"""A data directory: its lock, its topics, their settings, its checkpoints, its periodic work.

Layout: one directory per partition (`TOPIC-N`), and plain files beside them: `.lock`, the offset
checkpoints, the clean-shutdown marker (`LogManager.java`, `LogLoader.java`) and the settings' file.

Start: take the lock, free space on a full disk, open every log (`open`), write the results of
recovery. End: close every log, write the checkpoints, then the marker.

Invariants: one writer per directory, also across processes; a checkpoint never exceeds the fsynced
part of a log.

Its parts: the `lock`, the `topics`, the offset `checkpoints`, the loader (`partition`), the
`modes` of their files, and the `deleted` files.

It starts no background thread: the caller runs `due_flushes`, `checkpoint` and `sweep` often
enough.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from storage import clock, descriptors, paths
from storage.adopt.adopt import recover as recover_adoption
from storage.adopt.adoptions import Adoptions, NeededTopics
from storage.background import Duties
from storage.counters import CleanerCounters
from storage.directory.checkpoints import Checkpoints, RepairAnswers
from storage.directory.creation import create_offsets_topic, create_partition, create_topic
from storage.directory.deleted import Deleted
from storage.directory.deletion import delete_topic, undelete_topic
from storage.directory.lock import DirectoryLock
from storage.directory.make_room import make_room, say_what_to_remove
from storage.directory.open import Progress, open_logs
from storage.directory.partition import Loader
from storage.directory.partition_modes import PartitionModes
from storage.directory.reserve import Reserve
from storage.directory.topics import Topic, TopicPartition, Topics
from storage.errors import (
    CorruptCheckpoint,
    HandoverRefused,
    IgnoredEntry,
    PolicyViolation,
    ReadOnlyLog,
    StorageError,
)
from storage.files import Files
from storage.groups.groups import Groups
from storage.log.group import LogGroup
from storage.log.log import Log
from storage.log.rescue import rescue
from storage.plain_forms import plain_forms
from storage.retention.retention import check_policy
from storage.settings.setting_files import TopicOwner
from storage.settings.settings import Settings, no_check
from storage.state import checkpoint_file
from storage.state.tiered import TieredTopics
from storage.task import Task
from storage.threads import side_by_side

__all__ = ["LogManager", "Topic"]

_log = logging.getLogger(__name__)

# Closing a log waits for several fsyncs, which disks do in parallel: many logs take a third of the
# time, or less on a shared disk.
CLOSING_THREADS = 8
# The interval of the search for expired producers (`producer.id.expiration.check.interval.ms`).
EXPIRATION_CHECK_MS = 600_000
CLOSED_BY_ONE = 32


class LogManager:
    """An open data directory. Runs on the log thread; `Log` names the exceptions.

    `cuts`: bytes that recovery has cut off; `faults`: a line for each problem.
    """

    def __init__(
        self,
        path: str,
        files: Files,
        lock: DirectoryLock,
        *,
        read_only: bool,
        wanted: Callable[[str], bool] | None,
        keeps_faulty: bool,
        mount_point: str | None,
        answers: RepairAnswers | None,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.path = path
        self.files = files
        self.lock = lock
        self.read_only = read_only
        self.clean = checkpoint_file.has_marker(files, path)
        # Without deletions, a missing retention policy does no harm.
        check = no_check if read_only else check_policy
        self.settings = settings = Settings(
            files, path, check, keeps_faulty=keeps_faulty, mount_point=mount_point
        )
        self.clock_ms = clock_ms
        self.monotonic_ms = monotonic_ms
        self.tiered = TieredTopics(files, path, settings)
        self.reserve = Reserve(files, path, self.tiered)
        self.keeps_faulty = keeps_faulty
        self.faults: list[str] = []
        self.topics = Topics(path, settings, self.faults)
        self.logs, self.log, self.topic = self.topics.logs, self.topics.log, self.topics.topic
        self.checkpoints = Checkpoints(
            files, path, self.faults, answers or RepairAnswers(), read_only=read_only
        )
        self.groups = Groups(self)
        self._log_group = LogGroup[Log](monotonic_ms, listeners=[self.groups])
        self.listeners = self._log_group.listeners
        self.counters = self._log_group.counters
        self.duties = Duties()
        self.cleaner_counters = CleanerCounters()
        self.cleaner_offsets = self.checkpoints.cleaned
        # Why the last cleaning of a log failed.
        self.uncleanable: dict[Log, str] = {}
        # Logs whose new settings make their active segment too large or too old.
        self.roll_due: set[Log] = set()
        # The adopted batches. One thread at a time may adopt (`adopting`). `undecided`: the state
        # to be written before the next adoption, because a failed write left the file's content
        # unknown.
        self.adoptions = Adoptions()
        self.adopting = threading.Lock()
        self.undecided: Adoptions | None = None
        self.modes = PartitionModes(files, path)
        # Why the adopted batches are not known, so that none may be adopted.
        self.adoptions_fault: CorruptCheckpoint | None = None
        # Bytes of log that recovery has read, and the time that opening took.
        self.opening_bytes = 0
        self.opening_s = 0.0
        # Whether `files` belongs to this manager.
        self._made_files = False
        self.deleted = Deleted(
            path, files, self.duties, self.reserve, self._log_group, read_only=read_only
        )
        self.loader = Loader(
            files,
            path,
            settings,
            self.checkpoints,
            self.topics,
            self.faults,
            self._log_group,
            self.tiered,
            read_only=read_only,
            has_marker=self.clean,
            wanted=wanted,
            answers=answers,
        )
        self.cuts = self.loader.cuts
        # Whether segments may have open files that are closed by age.
        self._opened_before = -1
        self._left_open = False
        # The time of the next search for expired producers, by the monotonic clock.
        self._expiring_ms = 0
        # Partitions that exist and were not opened, because they are not needed or are being
        # undeleted. The checkpoints repeat their lines.
        self.left_out: list[TopicPartition] = []
        # Partitions whose directories are ignored. The checkpoints repeat their lines.
        self.ignored = [] if lock.ignored is None else lock.ignored.partitions()

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str,
        *,
        read_only: bool = False,
        files: Files | None = None,
        progress: Callable[[Progress], None] | None = None,
        verify: bool = False,
        wanted: Callable[[str], bool] | None = None,
        needs: NeededTopics | None = None,
        keeps_faulty: bool = False,
        mount_point: str | None = None,
        answers: RepairAnswers | None = None,
        clock_ms: Callable[[], int] | None = None,
        monotonic_ms: Callable[[], int] | None = None,
    ) -> LogManager:
        """Open a data directory, which must exist, and every partition in it.

        `verify`: read all batches as after a crash, even after a clean stop. `wanted`, with
        `read_only`: which topics to show, by name. `needs`, for a process that writes once and
        makes no topic: returns the needed topics from the adopted batches; None: all. After a clean
        stop, other topics are not opened, and their lines in the checkpoints stay. `keeps_faulty`:
        a partition that cannot be opened is a fault of its topic, instead of an error.
        `mount_point`: see `Settings`; `answers`: the changes that a repair may make. `clock_ms` is
        the wall clock, `monotonic_ms` measures intervals and delays; one argument replaces both.
        Errors: LogLocked if another process has it (not with `read_only`, which takes no lock and
        writes nothing), HandoverRefused if a handover to it is unfinished, CorruptCheckpoint,
        InvalidConfig, ReadOnlyFormat, OSError; the lock is released.
        """
        path = os.path.abspath(path)
        made, files = files is None, files or Files(path)
        if not files.is_directory(path):
            raise NotADirectoryError(20, os.strerror(20), path)
        assert read_only or wanted is None, "who writes has all of a directory"
        lock = DirectoryLock(files, path, read_only=read_only)
        try:
            if not read_only and files.exists(os.path.join(path, paths.HANDOVER)):
                reason = "a handover to this directory is unfinished: run kafkafs handover again"
                raise HandoverRefused(reason, path=path)
            manager = cls(
                path,
                files,
                lock,
                read_only=read_only,
                wanted=wanted,
                keeps_faulty=keeps_faulty,
                mount_point=mount_point,
                answers=answers,
                clock_ms=clock_ms or clock.wall_ms,
                monotonic_ms=monotonic_ms or clock_ms or clock.monotonic_ms,
            )
            manager._made_files = made
            if not read_only:
                files.room = manager.reserve
                for each in make_room(files, path, manager.tiered):
                    _log.warning("the disk is full; removed at startup: %s", each)
            with say_what_to_remove(path):
                manager._open_logs(progress, needs, verify=verify)
                if not read_only:
                    manager._end_what_was_stopped()
        except BaseException:
            if made:
                files.close_root()
            lock.release()
            raise
        return manager

    def _open_logs(
        self,
        progress: Callable[[Progress], None] | None,
        needs: NeededTopics | None,
        *,
        verify: bool,
    ) -> None:
        """Open the logs, report problems, and continue the removals of an earlier process."""
        opened = open_logs(
            *(self.loader, self.lock, progress, needs),
            verify=verify,
            keeps_faulty=self.keeps_faulty,
            now_ms=self.clock_ms(),
        )
        self.left_out = opened.left_out
        self.opening_bytes, self.opening_s = opened.bytes_read, opened.took_s
        self.lock.changed_ns = max(self.lock.changed_ns, self.topics.created_ns)
        for line in [*self.cuts, *self.faults]:
            _log.warning("%s", line)
        if self.lock.ignored is not None:
            for line in self.lock.ignored.lines():
                _log.warning("%s", line)
        if not self.read_only:
            for line in [*self.settings.notes, *self.kept_topics(), *self.remote_lines()]:
                _log.warning("%s", line)
        for each in opened.scan.deletions:
            self.groups.topic_deleted(each.topic, each.deleted_ms)
        self.deleted.resume(
            opened.scan.deletions, opened.scan.doomed, self.clock_ms(), self.monotonic_ms()
        )

    def _end_what_was_stopped(self) -> None:
        """Write the results of recovery, and finish work that a crash or a failed disk stopped."""
        if not self.clean and (self.topics or self.checkpoints.topics()):
            # Truncated offsets must not count as flushed when they are written again. The recovery
            # points are written first; an ignored checkpoint does not count.
            try:
                self.start_checkpoint(snapshots=False)()
            except IgnoredEntry as error:
                _log.warning("cannot write the checkpoints: %s", error.strerror)
        self._hide_internal_topics()
        for log in self.logs():
            self._rescue(log)
        for line in self.groups.reset_positions_beyond_end():
            _log.warning("%s", line)
        recover_adoption(self)

    def _hide_internal_topics(self) -> None:
        """Let only the owner read the topics of groups and transactions, unless chmod gave others
        the right. A broker's files keep their modes.
        """
        if self.settings.is_brokers:
            return
        for name in paths.INTERNAL_TOPICS & self.topics.keys():
            if self.settings.get_owner(name, None) is None:
                owners = self.settings.topic_file(name)
                self.modes.limit(name, self.topics[name].numbers, (owners,))
        path = os.path.join(self.path, paths.GROUP_OWNERS)
        with contextlib.suppress(OSError):
            if self.files.file_stat(path).st_mode & 0o077:
                self.files.chmod(path, 0o600)

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    # -- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        owner: TopicOwner | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic with `partitions` (default: num.partitions) empty partitions; durable.

        `owner`: its uid, gid and mode; `settings`: its settings. Both are written before the topic
        is visible. Errors: InvalidTopic, TopicExists, ReadOnlyLog, PolicyViolation for a reserved
        name or in a broker's directory, CorruptCheckpoint if the defaults cannot be read,
        InvalidConfig as in `change_topic_settings`, OSError; the files of the topic are removed
        again.
        """
        paths.check_new_name(name)
        return create_topic(self, name, partitions, owner, settings or {})

    def create_offsets_topic(self) -> None:
        """Create `__consumer_offsets` as a broker does, or its missing partitions. Errors: see
        `create_topic`.
        """
        create_offsets_topic(self)

    def create_partition(
        self, topic_name: str, partition: int, *, owner: TopicOwner | None = None
    ) -> Log:
        """Create the next partition of a topic; durable.

        `owner`: its uid, gid and mode, which are written before the partition is visible. Errors:
        InvalidTopic if it is not the next number, PolicyViolation in a broker's directory or for an
        internal topic, OSError; the files of the partition are removed again.
        """
        return create_partition(self, topic_name, partition, owner)

    def check_may_create(self) -> None:
        """Check that topics may be created. Errors: PolicyViolation in a broker's directory."""
        if self.settings.is_brokers:
            raise PolicyViolation(
                "this is the directory of a broker: when the broker starts again, it deletes "
                "topics and partitions it does not know. If it will not start again: kafkafs "
                f"detach {self.path}",
            )

    def delete_topic(self, name: str) -> int:
        """Delete a topic with all its records; return for how many ms it can be undeleted.

        Its directories are renamed at once. `sweep` removes them after file.delete.delay.ms, also
        after a restart; open readers continue until then. A directory that another process has
        removed is skipped. Errors: PolicyViolation for the topic of committed offsets, OSError,
        CorruptCheckpoint if the directory's settings cannot be read; nothing has changed.
        """
        self.check_may_write(name)
        paths.check_may_change(name)
        delay_ms = delete_topic(self, name)
        self.groups.topic_deleted(name, self.clock_ms())
        return delay_ms

    def undelete_topic(self, name: str, topic_id: str | None = None) -> Topic:
        """Restore a deleted topic with its records, settings and owners; durable.

        `topic_id`: which one, if several topics of the name were deleted. Open files of the topic
        get SegmentGone. A partition that cannot be loaded is a fault. Errors:
        UnknownTopicOrPartition if none can be undeleted, TopicExists if the name is in use or
        several were deleted, BlockingIOError while a thread uses its files, OSError; the topic can
        still be undeleted.
        """
        self.check_writable()
        topic = undelete_topic(self, name, topic_id)
        self.groups.topic_undeleted(name)
        return topic

    def may_be_undeleted(self, name: str) -> bool:
        """Return whether `undelete_topic` may find a topic of this name. Thread-safe."""
        return any(each.topic == name for each in list(self.deleted.topics))

    @property
    def changed_ns(self) -> int:
        """The time of the last creation or deletion of a topic, in ns since 1970; durable."""
        if self.read_only:
            # The creation by another process changes only the topic's own time.
            return max(self.lock.changed_ns, self.topics.created_ns)
        return self.lock.changed_ns

    def forget_unflushed(self, log: Log) -> None:
        """Remove a log that was deleted, or not added, from the logs to be flushed."""
        self.duties.forget(log.name)
        self._log_group.unflushed.discard(log)

    def drop(self, log: Log, directory: str | None) -> None:
        """Remove a partition that another process has deleted; its directory is `directory` now, if
        any.

        Open readers continue until file.delete.delay.ms is over, as in `delete_topic`.
        """
        assert self.read_only
        topic = self.topics[log.topic]
        del topic.partitions[log.partition]
        self.topics.changes += 1
        if not topic.numbers:
            del self.topics[log.topic]
            self.settings.forget(log.topic)
        if directory is not None:
            log.relocate(directory)
        due_ms = self.monotonic_ms() + log.config.file_delete_delay_ms
        log.mark_topic_deleted(due_ms)
        self.deleted.add(due_ms, log.directory, log)

    def check_writable(self) -> None:
        """Check that the directory may be changed. Errors: ReadOnlyLog."""
        if self.read_only:
            raise ReadOnlyLog("the data directory was opened read-only", path=self.path)

    def check_may_write(self, topic: str) -> None:
        """Check that a topic may be changed. Errors: ReadOnlyLog, also for a tiered topic."""
        self.check_writable()
        self.tiered.check_may_write(topic)

    def why_no_deletion(self, topic: str) -> str | None:
        """Return why nothing of a topic is deleted or compacted, with a remedy, or None."""
        return self.tiered.line(topic) or self.settings.why_no_deletion(topic)

    def kept_topics(self) -> list[str]:
        """Return lines for users about topics that are neither deleted from nor compacted."""
        names = sorted(self.topics.copy())
        tiered = {name: line for name in names if (line := self.tiered.line(name))}
        others = self.settings.kept_topics(name for name in names if name not in tiered)
        return [*others, *tiered.values()]

    def remote_lines(self) -> list[str]:
        """Return lines for users about offsets that are only in remote storage."""
        topics = sorted(self.topics.copy().items())
        return [line for _, topic in topics if (line := topic.remote_line) is not None]

    def set_owner(self, topic: str, partition: int | None, owner: TopicOwner) -> None:
        """Set the owner and the mode of a partition or, with None, of the topic; durable.

        At no time do files on the disk give more users read permission. Files of a broker's
        directory keep their modes, and so do files of other users; the log says so. Errors:
        OSError, UnknownTopicOrPartition.
        """
        self.check_may_write(topic)
        before = self.settings.topic_file(topic)
        after = before.with_owner(partition, owner)
        numbers = self.topics.topic(topic).numbers if partition is None else [partition]
        if self.settings.is_brokers:
            numbers = []
            _log.warning(
                "%s: chmod of %s: the modes of a broker's files were not changed", self.path, topic
            )
        self.modes.limit(topic, numbers, (before, after))
        try:
            self.settings.set_owner(topic, partition, *owner)
        finally:
            self.modes.limit(topic, numbers, (self.settings.topic_file(topic),))

    # -- settings ------------------------------------------------------------------------------

    def change_topic_settings(self, topic: str, values: Mapping[str, str | None]) -> None:
        """Change some of a topic's settings, None: back to the default. All of them change, or
        none. Durable.

        Errors: InvalidConfig for an unknown name or a value that its rule refuses,
        UnknownTopicOrPartition, PolicyViolation for the topic of committed offsets.
        """
        self.check_may_write(topic)
        paths.check_may_change(topic)
        partitions = self.topics.topic(topic).partitions
        self.settings.change_topic(topic, values)
        config = self.settings.log_config(topic)
        keeps_brokers_rules = self.settings.is_brokers_topic(topic)
        for log in partitions.values():
            before = log.config
            log.set_config(config)
            is_smaller = (
                config.segment_bytes < before.segment_bytes or config.segment_ms < before.segment_ms
            )
            if is_smaller and not keeps_brokers_rules:
                self.roll_due.add(log)
        self.topics.changes += 1

    # -- periodic work -------------------------------------------------------------------------

    def roll_if_outgrown(self, log: Log) -> None:
        """Roll a log of `roll_due`, if its active segment is larger or older than allowed. Errors:
        OSError, StorageError, MustQueue; the log stays in `roll_due`.
        """
        now_ms = self.clock_ms()
        self.roll_due.discard(log)
        if log.closed or log.lost_end or not log.has_outgrown(now_ms):
            return
        try:
            self.files.with_reserve(lambda: log.roll(now_ms))
        except (OSError, StorageError):
            self.roll_due.add(log)
            raise

    def due_flushes(self, now_ms: int) -> list[Log]:
        """Return the partitions whose oldest unflushed append is older than flush.ms.

        `now_ms` is the monotonic clock, as in all periodic work.
        """
        # Other threads add and remove logs meanwhile.
        return [log for log in list(self._log_group.unflushed) if log.durability.is_due(now_ms)]

    def start_checkpoint(self, *, snapshots: bool = True) -> Callable[[], None]:
        """Take the state for the checkpoints; return a thread-safe function that writes it.

        `snapshots`: also write a snapshot of the producers of every partition that has grown. If a
        later checkpoint was written, the function writes nothing: when it returns, this state or a
        later one is durable.
        """
        self.check_writable()
        opened = list(self.logs())
        logs = [log for log in opened if not log.read_only]
        unopened = [*self.topics.faulty, *self.left_out, *self.ignored]
        unopened += [(log.topic, log.partition) for log in opened if log.read_only]
        recovery_points = {
            (log.topic, log.partition): end for log in logs if (end := log.flushed_end) is not None
        }
        high_watermarks = {(log.topic, log.partition): log.high_watermark for log in logs}
        log_starts = {
            (log.topic, log.partition): start
            for log in logs
            if (start := log.log_start_for_checkpoint) is not None
        }
        write_offsets = self.checkpoints.start(
            {
                paths.RECOVERY_POINTS: recovery_points,
                paths.LOG_STARTS: log_starts,
                paths.HIGH_WATERMARKS: high_watermarks,
            },
            frozenset(self.topics),
            unopened,
        )
        grown = logs if snapshots else []
        started = [each for log in grown if (each := log.snapshots.start()) is not None]

        def write() -> None:
            failure: OSError | None = None
            for log in logs:
                try:
                    # Before a recovery point declares its entries flushed.
                    log.manifest.save()
                except OSError as error:
                    failure = failure or error
            write_offsets()
            for write_snapshot in started:
                try:
                    self.files.with_reserve(write_snapshot)
                except OSError as error:
                    failure = failure or error
            self.reserve.restore()
            if failure is not None:
                raise failure

        return write

    def checkpoint(self) -> None:
        """Write the recovery points, log starts, high watermarks and snapshots now."""
        self.start_checkpoint()()

    def sweep(self, now_ms: int) -> Callable[[], None] | None:
        """Close unused descriptors, drop unused plain forms, expire producers, and remove deleted
        files (`Deleted.remove`).

        Visits no log if no file was opened and none is to be removed.
        """
        self._age_descriptors()
        plain_forms.age()
        if now_ms >= self._expiring_ms:
            self._expiring_ms = now_ms + EXPIRATION_CHECK_MS
            wall_ms, limit_ms = self.clock_ms(), self.settings.broker.producer_id_expiration_ms
            for log in self.logs():
                log.producers.expire(wall_ms, limit_ms)
        return self.deleted.remove(now_ms, again=True)

    def _age_descriptors(self) -> None:
        count = descriptors.opened()
        if count == self._opened_before and not self._left_open:
            return
        self._opened_before, self._left_open = count, False
        for log in self.logs():
            with self.duties.attempt("closing of unused files", log.name):
                stay = True
                stay = log.age_descriptors()
            self._left_open |= stay

    # -- turns ---------------------------------------------------------------------------------

    def take_turns(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Let appends and other changes of slow logs queue from now on (`log.append_queue`)."""
        self._log_group.append_clock_ns = clock_ns

    def end_turns(self) -> None:
        """End the queues. No call may be queued."""
        self._log_group.append_clock_ns = None
        for log in self.logs():
            log.append_queue.reset()

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close every log, write the checkpoints and the clean-shutdown marker.

        If a log cannot be closed, its error is raised after the others are closed, and the marker
        is not written: the next start recovers.
        """
        logs = list(self.logs())
        threads = 1 if len(logs) < CLOSED_BY_ONE else CLOSING_THREADS
        last = self.groups.logs
        others = [log for log in logs if log.topic != paths.CONSUMER_OFFSETS]
        outcomes = side_by_side(self._close_log, others, threads, "closing")
        if last and not any(outcomes):
            # They have offsets of the other logs, which are on the disk now.
            outcomes += side_by_side(self._close_log, last, threads, "closing")
        for log in last:
            if not log.closed:
                log.abandon()
        failure = next((error for error in outcomes if error is not None), None)
        try:
            if not self.read_only:
                self.checkpoint()
                # A partition that could not be opened was not closed, and a tiered one was not
                # recovered: its broker has to do that.
                if failure is None and (self.clean or not self._is_part_unrecovered):
                    checkpoint_file.write_marker(self.files, self.path)
        finally:
            self._release()
        if failure is not None:
            raise failure

    @property
    def _is_part_unrecovered(self) -> bool:
        unopened = self.topics.faulty or self.left_out
        return bool(unopened) or any(log.read_only for log in self.logs())

    def rescue(self, log: Log, task: Task) -> None:
        """Repair a log after a failed fsync. Thread-safe. Errors: OSError, StorageError; repeat
        it.
        """
        rescue(
            log,
            task,
            self.clock_ms(),
            lambda: task.on_log_thread(lambda: self.start_checkpoint(snapshots=False))(),
        )

    def _rescue(self, log: Log) -> None:
        """Rescue a log after a failed fsync; if that fails, the next flush tries again."""
        if log.flush_error is not None:
            with self.duties.attempt("flush", log.name):
                self.rescue(log, Task())

    def _close_log(self, log: Log) -> Exception | None:
        """Close a log. If that fails, abandon it and return the error."""
        try:
            if not (log.read_only or log.closed or log.lost_end):
                with contextlib.suppress(OSError, StorageError):
                    log.check_active()
            self._rescue(log)
            self.files.with_reserve(log.close)
        except Exception as error:
            with contextlib.suppress(Exception):
                log.abandon()
            return error
        return None

    def abandon(self) -> None:
        """Release all files and write nothing: the next start recovers, as after a crash."""
        for log in self.logs():
            log.abandon()
        self._release()

    def _release(self) -> None:
        self.deleted.abandon()
        self.lock.release()
        if self._made_files:
            self.files.close_root()
