"""Opens a data directory, does its periodic work, and closes it.

Layout: one directory per partition (`TOPIC-N`), and plain files beside them: `.lock`, the offset
checkpoints, the clean-shutdown marker (`LogManager.java`, `LogLoader.java`) and the settings' file.

Start: take the lock, free space on a full disk, open every log (`directory.open`), write the
results of recovery, end an interrupted adoption. End: close every log, write the checkpoints, then
the marker.

Invariants: one writer per directory, also across processes; a checkpoint never exceeds the fsynced
part of a log.

It starts no background thread: the caller runs `due_flushes`, `checkpoint` and `sweep` often
enough.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial

from storage import clock, descriptors, paths
from storage.adopt.adopt import Adopter
from storage.adopt.adoptions import NeededTopics, needed
from storage.directory.checkpoints import RepairAnswers
from storage.directory.data_directory import DataDirectory, OpenOptions
from storage.directory.deletion import delete_topic, undelete_topic
from storage.directory.lock import DirectoryLock
from storage.directory.make_room import is_full, make_room, say_what_to_remove
from storage.directory.mirror import finish_end, is_end_unfinished
from storage.directory.open import Progress, find_partitions, open_logs
from storage.directory.topics import Topic
from storage.errors import HandoverRefused, IgnoredEntry, StorageError
from storage.files import Files
from storage.groups.groups import RESET, Groups
from storage.log.log import Log
from storage.log.rescue import rescue
from storage.log.truncate import start_at, truncate
from storage.plain_forms import plain_forms
from storage.segment.cut import Cut
from storage.state import checkpoint_file
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


class LogManager(DataDirectory):
    """A data directory that is open with its groups and its adoptions.

    `opening_bytes`: bytes of logs that recovery has read; `opening_s`: the time that opening took;
    `resets`: a line for each committed offset that opening has reset.
    """

    def __init__(
        self,
        path: str,
        files: Files,
        lock: DirectoryLock,
        options: OpenOptions,
        *,
        made_files: bool,
    ) -> None:
        """`made_files`: whether `files` belongs to this manager."""
        super().__init__(path, files, lock, options)
        self._made_files = made_files
        self.groups = Groups(self)
        self.log_group.listeners.append(self.groups)
        self.adopter = Adopter(self)
        self.opening_bytes = 0
        self.opening_s = 0.0
        self.resets: list[str] = []
        self._ends_mirror = not options.read_only and is_end_unfinished(files, path)
        # Whether segments may have open files that are closed by age.
        self._opened_before = -1
        self._left_open = False
        # The time of the next search for expired producers, by the monotonic clock.
        self._expiring_ms = 0

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str,
        *,
        read_only: bool = False,
        mirrors: bool = False,
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

        `mirrors`: write a mirror, as only the process that copies the cluster may; nothing is
        appended here, also after a crash. `verify`: read all batches as after a crash, even after a
        clean stop. `wanted`, with `read_only`: which topics to show, by name. `needs`, for a
        process that writes once and makes no topic: returns the needed topics from the adopted
        batches; None: all. After a clean stop, other topics are not opened, and their lines in the
        checkpoints stay. `keeps_faulty`: a partition that cannot be opened is a fault of its topic,
        instead of an error.
        `mount_point`: see `Settings`; `answers`: the changes that a repair may make. `clock_ms` is
        the wall clock, `monotonic_ms` measures intervals and delays; one argument replaces both.
        Errors: LogLocked if another process has it (not with `read_only`, which takes no lock and
        writes nothing), MirroredDirectory, HandoverRefused if a handover to it is unfinished,
        CorruptCheckpoint, InvalidConfig, ReadOnlyFormat, OSError; the lock is released.
        """
        path = os.path.abspath(path)
        made, files = files is None, files or Files(path)
        if not files.is_directory(path):
            raise NotADirectoryError(20, os.strerror(20), path)
        assert read_only or wanted is None, "who writes has all of a directory"
        lock = DirectoryLock(files, path, read_only=read_only, mirrors=mirrors)
        try:
            if not read_only and files.exists(os.path.join(path, paths.HANDOVER)):
                reason = "a handover to this directory is unfinished: run kafkafs handover again"
                raise HandoverRefused(reason, path=path)
            options = OpenOptions(
                read_only=read_only,
                mirrors=mirrors,
                wanted=wanted,
                keeps_faulty=keeps_faulty,
                mount_point=mount_point,
                answers=answers,
                clock_ms=clock_ms or clock.wall_ms,
                monotonic_ms=monotonic_ms or clock_ms or clock.monotonic_ms,
            )
            manager = cls(path, files, lock, options, made_files=made)
            if not read_only:
                files.room = manager.reserve
                if is_full(files, path):
                    # It finishes an interrupted deletion. If room were made before that, the first
                    # directory of the topic would be removed, and the others would be a topic.
                    files.with_reserve(partial(find_partitions, manager))
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
            self,
            progress,
            None
            if needs is None or self._ends_mirror
            else partial(needed, self.files, self.path, needs),
            verify=verify,
        )
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
        for each in opened.found.deletions:
            self.topics.deleted_ms[each.topic] = each.deleted_ms
        self.deleted.resume(
            opened.found.deletions, opened.found.doomed, self.clock_ms(), self.monotonic_ms()
        )

    def _end_what_was_stopped(self) -> None:
        """Write the results of recovery, and finish work that a crash or a failed disk stopped."""
        if not self.clean and (self.topics or self.checkpoints.stale):
            # Truncated offsets must not count as flushed when they are written again. The recovery
            # points are written first; an ignored checkpoint does not count.
            try:
                self.note(self.logs())
                self.write_checkpoints()
            except IgnoredEntry as error:
                _log.warning("cannot write the checkpoints: %s", error.strerror)
        self._hide_internal_topics()
        for log in self.logs():
            self._rescue(log)
        if not self.mirrors:
            # The logs of a mirror get only records of its source, which may come after the offsets
            # that its groups have committed.
            self.resets = self.groups.reset_positions_beyond_end(whole=self._ends_mirror)
            for line in self.resets:
                _log.warning("%s", line)
            self.adopter.recover()
            if self._ends_mirror:
                self._finish_end_of_mirror()

    def _finish_end_of_mirror(self) -> None:
        """Note that the committed offsets are reset, unless some could not be: then the next start
        resets all again.
        """
        duties = self.duties
        with duties.attempt("end of the mirror"):
            # Otherwise, a power cut could remove the resets, or the records below an offset.
            for log in list(self.log_group.unflushed):
                log.flush()
            if not self.faults and RESET not in duties.failing:
                finish_end(self.files, self.path)

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

    def delete_topic(self, name: str) -> int:
        """Delete a topic with all its records; return for how many ms it can be undeleted.

        Its directories are renamed at once. `sweep` removes them after file.delete.delay.ms, also
        after a restart; open readers continue until then. A directory that another process has
        removed is skipped. Errors: PolicyViolation for the topic of committed offsets, OSError,
        CorruptCheckpoint if the directory's settings cannot be read; nothing has changed.
        """
        self.check_may_write(name)
        paths.check_may_change(name)
        return delete_topic(self, name)

    def undelete_topic(self, name: str, topic_id: str | None = None) -> Topic:
        """Restore a deleted topic with its records, settings and owners; durable.

        `topic_id`: which one, if several topics of the name were deleted. Open files of the topic
        get SegmentGone. A partition that cannot be loaded is a fault. Errors:
        UnknownTopicOrPartition if none can be undeleted, TopicExists if the name is in use or
        several were deleted, BlockingIOError while a thread uses its files, OSError; the topic can
        still be undeleted.
        """
        self.check_writable()
        return undelete_topic(self, name, topic_id)

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
        return [log for log in list(self.log_group.unflushed) if log.durability.is_due(now_ms)]

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
        self.log_group.append_clock_ns = clock_ns

    def end_turns(self) -> None:
        """End the queues. No call may be queued."""
        self.log_group.append_clock_ns = None
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
                # A partition that could not be opened was not closed. A tiered one, and one that
                # its broker moves or has set aside, was not recovered: the broker has to do that.
                if failure is None and (self.clean or not self._is_part_unrecovered):
                    checkpoint_file.write_marker(self.files, self.path)
        finally:
            self._release()
        if failure is not None:
            raise failure

    @property
    def _is_part_unrecovered(self) -> bool:
        unopened = self.topics.faulty or self.left_out
        is_brokers = self.settings.is_brokers
        aside = is_brokers and any(map(paths.parse_aside_directory, self.skipped))
        return bool(unopened) or aside or any(log.read_only for log in self.logs())

    def rescue(self, log: Log, task: Task) -> None:
        """Repair a log after a failed fsync. Thread-safe. Errors: OSError, StorageError; repeat
        it.
        """
        rescue(
            log,
            task,
            self.clock_ms(),
            lambda: self.checkpoint_logs([log], task),
        )

    def truncate(self, log: Log, offset: int) -> list[Cut]:
        """Remove the batches of a log that reach `offset`; see `storage.log.truncate`."""

        def write_checkpoints(end: int) -> None:
            self.checkpoints.note_end((log.topic, log.partition), end)
            self.checkpoint_logs([log], Task())

        return truncate(log, offset, self.clock_ms(), write_checkpoints)

    def start_at(self, log: Log, offset: int) -> None:
        """Let a log without records begin at `offset`, durably. Errors: OSError."""
        start_at(log, offset, self.clock_ms())
        self.checkpoint_logs([log], Task())

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
