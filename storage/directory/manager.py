"""A data directory: its lock, its topics, their settings, its checkpoints, its periodic work.

Layout: one directory per partition (``TOPIC-N``), and plain files beside them: ``.lock``, the
offset checkpoints, the clean-shutdown marker (``LogManager.java``, ``LogLoader.java``) and the
settings' file.

Start: take the lock, look for the marker and remove it, load every partition (in threads where
recovery has to read), delete what was half deleted.  End: close every log, write the checkpoints,
then the marker.

Invariants: one writer per directory, also across processes; a checkpoint never claims more than
has been fsynced.

Not here: how partitions are found and loaded (``data_directory``), and threads of its own:
``due_flushes``, ``checkpoint`` and ``sweep`` are for the owner to call, often enough.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping

from storage import clock, paths
from storage.adopt.adopt import recover as recover_adoption
from storage.directory.data_directory import CHECKPOINTS, DataDirectory, Mending, Progress, Topic
from storage.directory.make_room import Opening, is_full, make_room
from storage.directory.reserve import Reserve
from storage.errors import (
    HandoverRefused,
    InvalidTopic,
    PolicyViolation,
    ReadOnlyLog,
    StorageError,
    TopicExists,
    UnknownTopicOrPartition,
)
from storage.files import Files
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.log.rescue import rescue
from storage.recovery.recovery import Origin, recover
from storage.retention.retention import check_policy
from storage.segment.segment_files import opened
from storage.settings.settings import Settings, no_check
from storage.settings.topic_file import Owner
from storage.state import book_file, checkpoint
from storage.task import Task
from storage.threads import side_by_side

__all__ = ["LogManager", "Progress", "Topic"]

_log = logging.getLogger(__name__)

# A log that is closed waits for several fsyncs, of which the disk does many at once: that of many
# logs takes a third of the time, or less where others use the disk too.
CLOSING_THREADS = 8
# Deleted segments that are let go of at a time, some 50 µs each, while nobody else gets a turn.
SWEPT_AT_ONCE = 100
# How often expired producers are looked for (``producer.id.expiration.check.interval.ms``).
EXPIRATION_CHECK_MS = 600_000
CLOSED_BY_ONE = 32


def check_topic(files: Files, path: str, topic: str) -> None:
    """UnknownTopicOrPartition where nothing of a topic lies in a data directory."""
    for name, is_directory in files.scan(path):
        parsed = paths.parse_partition_directory(name) if is_directory else None
        if parsed is not None and parsed[0] == topic:
            return
    raise UnknownTopicOrPartition(f"there is no topic {topic!r}", path=path)


class LogManager(DataDirectory):
    """An open data directory.  One thread owns it; see ``Log`` for what others may do."""

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str,
        *,
        read_only: bool = False,
        files: Files | None = None,
        listeners: Iterable[LogListener[Log]] = (),
        progress: Callable[[Progress], None] | None = None,
        verify: bool = False,
        wanted: Callable[[str], bool] | None = None,
        keeps_faulty: bool = False,
        mending: Mending | None = None,
        clock_ms: Callable[[], int] | None = None,
        monotonic_ms: Callable[[], int] | None = None,
    ) -> LogManager:
        """Open a data directory, which must exist, and every partition in it.

        ``verify`` reads everything as after a crash, whatever the marker says.  ``wanted``, with
        ``read_only``: which topics there are to be, by name.  ``keeps_faulty``: a partition that
        cannot be opened is a fault of its topic, instead of an error here; ``mending``: what a
        repair knows of such.  LogLocked where
        another process has it (not with ``read_only``, which takes no lock and writes nothing),
        CorruptCheckpoint, InvalidConfig, ReadOnlyFormat, OSError; the lock is
        released then.  HandoverRefused where topics are half handed over to it.

        ``clock_ms`` is the wall clock, ``monotonic_ms`` measures intervals and delays: the
        system's, but where one clock only is given it is both.
        """
        path = os.path.abspath(path)
        made, files = files is None, files or Files(path)
        if not files.is_directory(path):
            raise NotADirectoryError(20, os.strerror(20), path)
        assert read_only or wanted is None, "who writes has all of a directory"
        if not read_only and files.exists(os.path.join(path, paths.HANDOVER)):
            reason = "topics are half handed over to it: run kafkafs handover again"
            raise HandoverRefused(reason, path=path)
        lock_fd = -1 if read_only else files.lock(os.path.join(path, paths.LOCK))
        try:
            clean = checkpoint.has_marker(files, path)
            # A retention policy that is not there can do no harm where nothing is deleted.
            check = no_check if read_only else check_policy
            settings = Settings.load(files, path, check, keeps_faulty=keeps_faulty)
            manager = cls(
                path,
                files,
                settings,
                read_only=read_only,
                clean=clean,
                clock_ms=clock_ms or clock.wall_ms,
                monotonic_ms=monotonic_ms or clock_ms or clock.monotonic_ms,
            )
            manager._lock_fd = lock_fd
            manager._made_files = made
            if not read_only:
                files.reserve = manager.reserve
                manager._make_room()
            manager.wanted = wanted
            manager.keeps_faulty = keeps_faulty
            manager.mending = mending
            manager.listeners = list(listeners)
            manager._load(progress, verify=verify)
            if not read_only and not clean:
                # What recovery has cut must not count as flushed when it is written again.
                manager._checkpoint_anew()
            if not read_only:
                for log in manager.logs():
                    manager._rescue(log)
                recover_adoption(manager)
        except BaseException:
            if made:
                files.close_root()
            if lock_fd >= 0:
                files.unlock(lock_fd)
            raise
        return manager

    def _make_room(self) -> None:
        """Where the disk is full, remove what may go."""
        if not is_full(self.files, self.path):
            return
        opening = Opening(
            self.files,
            self.path,
            self.settings,
            self._readable_offsets(paths.RECOVERY_POINTS),
            self._readable_offsets(paths.LOG_STARTS),
            self.clock_ms(),
        )
        for each in make_room(opening, has_reserve=self.reserve.is_there):
            _log.warning("the disk is full, removed at the start: %s", each)

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    @staticmethod
    @contextlib.contextmanager
    def settings_of(path: str, topic: str) -> Iterator[Settings]:
        """The settings of a data directory to change a topic's; nothing but its lock is taken.

        LogLocked, UnknownTopicOrPartition, InvalidConfig, OSError.
        """
        with LogManager.alone(path) as files:
            check_topic(files, path, topic)
            yield Settings.load(files, path, check_policy)

    @staticmethod
    @contextlib.contextmanager
    def alone(path: str) -> Iterator[Files]:
        """A data directory that nobody else has open; nothing but its lock is taken.

        LogLocked, OSError.
        """
        files = Files(path)
        lock_fd = files.lock(os.path.join(path, paths.LOCK))
        try:
            files.reserve = Reserve(files, path)
            yield files
        finally:
            files.unlock(lock_fd)

    # -- topics --------------------------------------------------------------------------------

    def logs(self) -> Iterator[Log]:
        """Every partition, by topic and number."""
        for topic in list(self.topics.values()):
            yield from list(topic.partitions.values())

    @property
    def compacted(self) -> tuple[Log, ...]:
        """Every partition of a compacted topic.  Any thread."""
        changes, logs = self._compacted
        if changes != self._changes:
            changes = self._changes
            logs = tuple(log for log in self.logs() if log.config.is_compacted)
            self._compacted = changes, logs
        return logs

    def topic(self, name: str) -> Topic:
        """UnknownTopicOrPartition where there is none."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}", path=self.path)
        return topic

    def log(self, topic: str, partition: int) -> Log:
        """UnknownTopicOrPartition where there is none, FaultyPartition where it is not open."""
        self.topic(topic).check(partition)
        log = self.topic(topic).partitions.get(partition)
        if log is None:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has no partition {partition}", path=self.path
            )
        return log

    def create_topic(
        self, name: str, partitions: int | None = None, *, owner: Owner | None = None
    ) -> Topic:
        """Create a topic with ``partitions`` (default: num.partitions) empty partitions.

        ``owner``: whose it is, and its mode; nobody sees it before that is written down.
        Durable when it returns.  InvalidTopic, TopicExists, ReadOnlyLog, PolicyViolation of a
        reserved name or in a broker's directory, CorruptCheckpoint where the defaults cannot be
        read, OSError; what was made of a topic that failed is removed again.
        """
        self._check_writable()
        self.files.check_room()
        paths.check_topic_name(name)
        if name in self.topics:
            raise TopicExists(f"topic {name!r} exists", path=self.path)
        if paths.is_reserved(name):
            raise PolicyViolation(f"topic {name!r}: a broker keeps this name for itself")
        self._check_collisions(name)
        self.check_may_create()
        self.settings.check_known()
        count = self.settings.broker.num_partitions if partitions is None else partitions
        topic = Topic(name, checkpoint.new_topic_id())
        self.settings.identify(name, topic.id)
        if name in self._checkpointed():
            # Of a topic that is gone: this one begins at offset 0.
            self.start_checkpoint(snapshots=False)()
        try:
            for partition in range(count):
                topic.partitions[partition] = self._create_log(topic, partition, owner)
            self.files.sync_directory(self.path)
        except OSError:
            for log in reversed(topic.partitions.values()):
                self._remove_directory(log.directory)
            self.settings.forget(name)
            raise
        self.topics[name] = topic
        self._changes += 1
        return topic

    def _check_collisions(self, name: str) -> None:
        """TopicExists where Kafka's metrics would take it for another topic (``Topic.java``)."""
        if "." not in name and "_" not in name:
            return
        collision = name.replace(".", "_")
        for other in self.topics:
            if other.replace(".", "_") == collision:
                raise TopicExists(
                    f"topic {name!r} collides with {other!r}: '.' and '_' are one in the names of "
                    "Kafka's metrics",
                    path=self.path,
                )

    def _begin_topic(self, name: str, directory: str, owner: Owner | None) -> None:
        """Make the directory of a new topic's partition 0, with whose it is inside.

        Until then it has a name that the next start removes: who finds it after a kill finds both.
        """
        if self.files.exists(directory):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), directory)
        unfinished = os.path.join(self.path, paths.deleted_directory_name(name, 0))
        self.files.mkdir(unfinished)
        try:
            self.settings.begin(name, unfinished, owner)
            self.files.rename(unfinished, directory)
        except OSError:
            self._remove_directory(unfinished)
            raise

    def create_partition(self, topic_name: str, partition: int) -> Log:
        """Create the next partition of a topic.  InvalidTopic where it is not the next number,
        PolicyViolation in a broker's directory.
        """
        self._check_writable()
        self.files.check_room()
        topic = self.topic(topic_name)
        topic.check(partition)
        following = max(topic.numbers, default=-1) + 1
        if partition != following:
            raise InvalidTopic(
                f"the next partition of topic {topic_name!r} is {following}, not {partition}",
                path=self.path,
            )
        self.check_may_create()
        log = self._create_log(topic, partition)
        self.files.sync_directory(self.path)
        topic.partitions[partition] = log
        self._changes += 1
        return log

    def check_may_create(self) -> None:
        """PolicyViolation in a broker's directory."""
        if self.settings.is_brokers:
            raise PolicyViolation(
                "a broker has written this directory, and would delete what it does not know when "
                f"it comes back; if it will not: kafkafs detach {self.path}",
            )

    def _create_log(self, topic: Topic, partition: int, owner: Owner | None = None) -> Log:
        directory = os.path.join(self.path, paths.partition_directory(topic.name, partition))
        now_ms = self.clock_ms()
        if partition:
            self.files.mkdir(directory)
        else:
            self._begin_topic(topic.name, directory, owner)
        config = self.settings.log_config(topic.name)
        try:
            metadata = os.path.join(directory, paths.PARTITION_METADATA)
            checkpoint.write_partition_metadata(self.files, metadata, topic.id)
            checkpoint.write_epochs(
                self.files, os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT), []
            )
            book_file.begin(self.files, directory)
            origin = Origin(
                self.files,
                directory,
                config,
                clean=True,
                recovery_point=0,
                log_start=0,
                writable=True,
                now_ms=now_ms,
                booked_to=0,
            )
            recovered = recover(origin)
            self.files.sync_directory(directory)
        except OSError:
            self._remove_directory(directory)
            raise
        log = Log(
            self.files,
            directory,
            topic.name,
            partition,
            topic.id,
            config,
            recovered,
            log_start=0,
            recovery_point=0,
            epochs=[],
            clean=True,
            read_only=False,
            dirty=self._dirty,
            retiring=self._retiring,
            counters=self.counters,
            monotonic_ms=self.monotonic_ms,
        )
        log.listeners = self.listeners
        return log

    def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it (``LogManager.asyncDelete``).

        Its directories are renamed at once, highest partition first, and removed by ``sweep``
        after file.delete.delay.ms; who reads it goes on until then. A directory that somebody else
        has removed is none to rename.

        OSError, CorruptCheckpoint where it is not known what holds for the directory: the topic is
        as it was.
        """
        self._check_writable()
        self.settings.check_known()
        topic = self.topic(name)
        delay_ms = self.settings.log_config(name).file_delete_delay_ms
        due_ms = self.monotonic_ms() + delay_ms
        renamed: list[tuple[str, str, Log | None]] = []
        try:
            for partition in reversed(topic.numbers):
                log = topic.partitions.get(partition)
                where = os.path.join(self.path, paths.partition_directory(name, partition))
                directory = os.path.join(self.path, paths.deleted_directory_name(name, partition))
                with self._vanished(where):
                    self.files.rename(where, directory)
                renamed.append((where, directory, log))
            self.files.sync_directory(self.path)
        except OSError:
            for where, directory, _ in reversed(renamed):
                if self.files.exists(directory):
                    self.files.rename(directory, where)
            raise
        del self.topics[name]
        self._changes += 1
        for _, directory, log in renamed:
            if log is not None:
                log.relocate(directory)
                log.retire(due_ms)
                self.duties.forget(log.name)
                self._dirty.discard(log)
            self._doomed.append((due_ms, directory, log))
        for partition in topic.numbers:
            self.cleaner_offsets.pop((name, partition), None)
        topic.partitions.clear()
        topic.faults.clear()
        self.settings.forget(name)
        try:
            # A new topic of that name must not find the old one's offsets.
            self.forget_lost_starts(name)
            if name in self._checkpointed():
                self.start_checkpoint(snapshots=False)()
        except OSError as error:
            # The topic is gone all the same; ``create_topic`` looks for what is left of it.
            _log.warning("%s: what was written down of topic %r stays: %s", self.path, name, error)

    @contextlib.contextmanager
    def _vanished(self, directory: str) -> Iterator[None]:
        """A partition's directory may be missing where something is done to it."""
        try:
            yield
        except FileNotFoundError:
            if self.files.exists(directory):
                raise
            _log.warning("%s: has been removed by somebody else", directory)

    def drop(self, log: Log, directory: str | None) -> None:
        """Another process has deleted a partition; its directory is ``directory`` now, if any.

        Who reads it goes on until file.delete.delay.ms is over, as ``delete_topic`` has it.
        """
        assert self.read_only
        topic = self.topics[log.topic]
        del topic.partitions[log.partition]
        self._changes += 1
        if not topic.numbers:
            del self.topics[log.topic]
            self.settings.forget(log.topic)
        if directory is not None:
            log.relocate(directory)
        due_ms = self.monotonic_ms() + log.config.file_delete_delay_ms
        log.retire(due_ms)
        self._doomed.append((due_ms, log.directory, log))

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyLog("the data directory was opened read-only", path=self.path)

    # -- settings ------------------------------------------------------------------------------

    def change_topic_settings(self, topic: str, values: Mapping[str, str | None]) -> None:
        """Set some of a topic's settings, with None back to the default: all of them or none.

        Durable.  InvalidConfig for an unknown name or a value that its rule refuses,
        UnknownTopicOrPartition.
        """
        self._check_writable()
        partitions = self.topic(topic).partitions
        self.settings.change_topic(topic, values)
        config = self.settings.log_config(topic)
        for log in partitions.values():
            log.set_config(config)
        self._changes += 1

    # -- periodic work -------------------------------------------------------------------------

    def due_flushes(self, now_ms: int) -> list[Log]:
        """The partitions whose oldest unflushed append is older than flush.ms.

        ``now_ms`` is by the monotonic clock, as in all periodic work.
        """
        return [
            log
            for log in list(self._dirty)  # others may come and go meanwhile, from other threads
            if log.durability.dirty_since_ms is not None
            and (
                log.durability.flush_error is not None
                or now_ms - log.durability.dirty_since_ms >= log.config.flush_ms
            )
        ]

    def start_checkpoint(self, *, snapshots: bool = True) -> Callable[[], None]:
        """What the checkpoints should say now, as a function that writes them (any thread).

        With them goes a snapshot of the producers of every partition that has grown, unless
        ``snapshots`` is false.  Where a later checkpoint has been written, this one says nothing:
        when the function returns, what it should say or what came after it is durable.
        """
        self._check_writable()
        logs = list(self.logs())
        recovery_points = {
            (log.topic, log.partition): end for log in logs if (end := log.flushed_end) is not None
        }
        high_watermarks = {(log.topic, log.partition): log.high_watermark for log in logs}
        log_starts = {
            (log.topic, log.partition): start
            for log in logs
            if (start := log.remembered_log_start) is not None
        }
        cleaned = dict(self.cleaner_offsets)
        kept = {name: self._kept_offsets(name) for name in CHECKPOINTS}
        topics = frozenset(self.topics) | {topic for topic, _ in cleaned}
        grown = logs if snapshots else []
        started = [each for log in grown if (each := log.snapshots.start()) is not None]
        self._checkpoints_started += 1
        number = self._checkpoints_started

        def write() -> None:
            failure: OSError | None = None
            for log in logs:
                try:
                    # Before a recovery point says that what it claims was flushed.
                    log.book.save()
                except OSError as error:
                    failure = failure or error
            with self._checkpoint_lock:
                if number > self._checkpoint_written:
                    self._in_checkpoints = self._checkpointed() | topics
                    for name, offsets in (
                        (paths.RECOVERY_POINTS, recovery_points),
                        (paths.LOG_STARTS, log_starts),
                        (paths.HIGH_WATERMARKS, high_watermarks),
                        (paths.CLEANER_OFFSETS, cleaned),
                    ):
                        offsets = kept[name] | offsets
                        if offsets != self._written_offsets.pop(name, None):
                            path = os.path.join(self.path, name)
                            checkpoint.write_offsets(self.files, path, offsets)
                        # Where that has failed nobody knows what the file says.
                        self._written_offsets[name] = offsets
                    self._in_checkpoints = topics
                    self._checkpoint_written = number
            for write_snapshot in started:
                try:
                    self.files.spend(write_snapshot)
                except OSError as error:
                    failure = failure or error
            self.reserve.restore()
            if failure is not None:
                raise failure

        return write

    def checkpoint(self) -> None:
        """Write the recovery points, log starts, high watermarks and snapshots now."""
        self.start_checkpoint()()

    def _checkpointed(self) -> frozenset[str]:
        """The topics that the checkpoints on disk may speak of."""
        if self._in_checkpoints is None:
            self._in_checkpoints = frozenset(
                topic for name in CHECKPOINTS for topic, _ in self._read_offsets(name)[0]
            )
        return self._in_checkpoints

    def _checkpoint_anew(self) -> None:
        """Write the checkpoints where there is something to say or to take back."""
        if self.topics or self._checkpointed():
            self.start_checkpoint(snapshots=False)()

    def sweep(self, now_ms: int) -> Callable[[], None] | None:
        """Age descriptors, forget producers, and ``remove_deleted``, also what it could not.

        Where nothing was opened, and nothing is to be removed, no log is looked at.
        """
        self._age_descriptors()
        if now_ms >= self._expiring_ms:
            self._expiring_ms = now_ms + EXPIRATION_CHECK_MS
            self._expire_producers()
        return self.remove_deleted(now_ms, self._unremoved)

    def _age_descriptors(self) -> None:
        count = opened()
        if count == self._opened_before and not self._left_open:
            return
        self._opened_before, self._left_open = count, False
        for log in self.logs():
            with self.duties.attempt("closing of unused files", log.name):
                stay = True
                stay = log.age_descriptors()
            self._left_open |= stay

    def _expire_producers(self) -> None:
        expiration_ms = self.settings.broker.producer_id_expiration_ms
        wall_ms = self.clock_ms()
        for log in self.logs():
            if log.producers.by_id:
                log.producers.expire(wall_ms, expiration_ms)

    def remove_deleted(
        self, now_ms: int, again: Iterable[tuple[str, bool]] = ()
    ) -> Callable[[], None] | None:
        """Let go of deleted files that have waited long enough, a part of them at a time.

        Returns a function that removes them and ``again`` (paths, and whether it is a directory)
        from the disk, in any thread, or None: there are none.  What it cannot remove now, a later
        ``sweep`` tries again.
        """
        doomed_paths = list(again)
        left = SWEPT_AT_ONCE
        for log in list(self._retiring):
            if left:
                count = len(log.retired)
                with self.duties.attempt("letting go of what was deleted", log.name):
                    gone = log.release_retired(now_ms, left)
                    doomed_paths += [(path, False) for path in gone]
                left -= count - len(log.retired)
        waiting: list[tuple[int, str, Log | None]] = []
        for due_ms, directory, doomed in self._doomed:
            released = due_ms <= now_ms
            if released and doomed is not None:
                count = len(doomed.retired)
                released = left > 0 and doomed.release_all(left)
                left -= count - len(doomed.retired)
            if released:
                doomed_paths.append((directory, True))
            else:
                waiting.append((due_ms, directory, doomed))
        self._doomed = waiting
        if self.read_only or (left == SWEPT_AT_ONCE and not doomed_paths):
            return None

        # Also where the function is never called.
        self._unremoved.update(doomed_paths)

        def remove() -> None:
            failure: OSError | None = None
            for path, is_directory in doomed_paths:
                try:
                    # That of a topic which was deleted meanwhile lies elsewhere, and goes with it.
                    with contextlib.suppress(FileNotFoundError):
                        if is_directory:
                            self._remove_directory(path)
                        else:
                            self.files.unlink(path)
                except OSError as error:
                    failure = failure or error
                else:
                    self._unremoved.discard((path, is_directory))
            self.reserve.restore()
            if failure is not None:
                raise failure

        return remove

    def _remove_directory(self, directory: str) -> None:
        if stat.S_ISLNK(self.files.file_stat(directory).st_mode):
            self.files.unlink(directory)  # deleted as a partition that never was one
            return
        for name, _ in self.files.scan(directory):
            self.files.unlink(os.path.join(directory, name))
        self.files.rmdir(directory)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close every log, write the checkpoints and the clean-shutdown marker.

        A log that cannot be closed keeps the marker from being written and its error is raised
        after the others have been closed: the next start recovers.
        """
        logs = list(self.logs())
        threads = 1 if len(logs) < CLOSED_BY_ONE else CLOSING_THREADS
        outcomes = side_by_side(self._close_log, logs, threads, "closing")
        failure = next((error for error in outcomes if error is not None), None)
        try:
            if not self.read_only:
                self.checkpoint()
                # Of what could not be opened nobody can say that it was closed.
                if failure is None and (self.clean or not self.faulty):
                    checkpoint.write_marker(self.files, self.path)
        finally:
            self._release()
        if failure is not None:
            raise failure

    def rescue(self, log: Log, task: Task) -> None:
        """Have what is left of a log on the disk, after an fsync that failed; in any thread.

        OSError, StorageError: it has to be tried again.
        """
        rescue(
            log,
            task,
            self.clock_ms(),
            lambda: task.by_owner(lambda: self.start_checkpoint(snapshots=False))(),
        )

    def _rescue(self, log: Log) -> None:
        """Where an fsync of it has failed; if this does too, the next flush tries again."""
        if log.durability.flush_error is not None:
            with self.duties.attempt("flush", log.name):
                self.rescue(log, Task())

    def _close_log(self, log: Log) -> OSError | None:
        """Close a log, or let go of it: then this is the error."""
        if not (self.read_only or log.closed or log.lost_end):
            with contextlib.suppress(OSError, StorageError):
                log.check_active()
        self._rescue(log)
        try:
            self.files.spend(log.close)
        except OSError as error:
            log.abandon()
            return error
        return None

    def abandon(self) -> None:
        """Release everything and write nothing: the next start recovers, as after a crash."""
        for log in self.logs():
            log.abandon()
        self._release()

    def _release(self) -> None:
        for _, _, doomed in self._doomed:
            if doomed is not None:
                doomed.abandon()
        if self._lock_fd >= 0:
            self.files.unlock(self._lock_fd)
            self._lock_fd = -1
        if self._made_files:
            self.files.close_root()
