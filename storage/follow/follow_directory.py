"""Follows a data directory that another process writes: its partitions and its checkpoints.

Its `.lock` shows whether another process writes it; none has to at the opening. A partition appears
with its directory, as soon as it has `partition.metadata`, which the broker writes before the first
append; an old broker writes none: its partition appears with its first record. A partition
disappears when a broker renames its directory for deletion; a later directory of the same name is
another partition. Deleted partitions can be read until file.delete.delay.ms is over, as far as
their files exist or are open.

Two checkpoints count: log-start-offset-checkpoint moves log starts up (delete-records), and with
`until_high_watermark` replication-offset-checkpoint ends the logs at their high watermarks.

Not here: changes inside a partition (`follow`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from storage import paths
from storage.directory.open import find_partitions
from storage.directory.partition import (
    add_log,
    load_partition,
    read_topic_id,
    retry_while_writer_renames,
)
from storage.directory.topics import TopicPartition
from storage.errors import CorruptCheckpoint, SegmentGone, StorageError
from storage.follow.follow import FRESH_NS, LogFollower
from storage.log.log import Log
from storage.manager import LogManager
from storage.state import checkpoint_file

_log = logging.getLogger(__name__)

# Attempts to load a partition that is rewritten before it can be followed.
_TRIES = 5


class DirectoryFollower:
    """Keeps a manager that was opened read-only equal to its directory. Runs on the log thread."""

    def __init__(
        self,
        manager: LogManager,
        *,
        until_high_watermark: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        assert manager.read_only
        self._manager = manager
        manager.settings.is_followed = True
        self._files = manager.files
        self._clock_ns = clock_ns
        self._until_high_watermark = until_high_watermark
        self._followers: dict[Log, LogFollower] = {}
        self._names_seen: int | None = None
        # Why new partitions cannot be loaded yet.
        self._reported: dict[TopicPartition, str] = {}
        self._high_watermarks = _Offsets(manager, paths.HIGH_WATERMARKS)
        path = os.path.join(manager.path, paths.HIGH_WATERMARKS)
        if until_high_watermark and not self._files.exists(path):
            _log.warning("%s does not exist: no records are read until a broker writes it", path)
        self._log_starts = _Offsets(manager, paths.LOG_STARTS)
        # The partitions whose log start may have to move.
        self._starting: set[TopicPartition] = set()
        for log in list(manager.logs()):
            if self._begin(log):
                # This process may have more logs than it may open files.
                log.active.close_descriptors()
            else:
                self._appear((log.topic, log.partition))

    def _begin(self, log: Log) -> bool:
        """Follow a log from now on. Return False if the manager does not have it any more, because
        it was rewritten since it was loaded, or if it cannot be read.
        """
        try:
            limit = self._limit(log) if self._until_high_watermark else None
            follower = LogFollower(log, self._clock_ns, limit)
            if read_topic_id(self._files, log.directory) not in ("", log.topic_id):
                raise FileNotFoundError(log.directory)
        except (StorageError, OSError) as error:
            self._manager.drop(log, None)
            if not isinstance(error, (FileNotFoundError, SegmentGone)):
                self._manager.topics.set_fault((log.topic, log.partition), error)
            return False
        self._followers[log] = follower
        return True

    def _limit(self, log: Log) -> Callable[[], int]:
        """Return a function that returns the high watermark last recorded by the broker, or 0."""
        item = (log.topic, log.partition)

        def limit() -> int:
            self._high_watermarks.look()
            return self._high_watermarks.offsets.get(item, 0)

        return limit

    def _identity(self, directory: str) -> tuple[int, int] | None:
        try:
            found = self._files.file_stat(directory)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    # -- looking -------------------------------------------------------------------------------

    def is_written(self) -> bool:
        """Return whether another process has the directory's lock."""
        return self._files.is_locked(os.path.join(self._manager.path, paths.LOCK))

    def look(self, log: Log) -> bool:
        """Look at one log (`LogFollower.look`)."""
        follower, start = self._followers.get(log), log.log_start_offset
        is_changed = follower is not None and follower.look()
        item = log.topic, log.partition
        may_start = item in self._starting or start != log.log_start_offset
        if is_changed and may_start and not self._manager.settings.is_brokers:
            # The first segment may begin below the log start since the look before.
            self._starting.add(item)
            self._read_log_starts()
            self._starting.add(item)
            self._raise_log_start(log)
        return is_changed

    def intact(self, log: Log) -> bool:
        """Return `LogFollower.intact` of one log. Thread-safe."""
        follower = self._followers.get(log)
        return follower is None or follower.intact()

    def look_for_partitions(self) -> list[Log]:
        """Update the manager's topics from the directory; return the new logs.

        Costs a stat if nothing has changed. Errors: OSError.
        """
        manager = self._manager
        stamp = self._files.file_stat(manager.path).st_mtime_ns
        if stamp == self._names_seen:
            return []
        found = find_partitions(manager).partitions
        there = {item: self._identity(manager.partition_path(item)) for item in found}
        manager.topics.forget_faults(there)
        for log in list(manager.logs()):
            if there.get((log.topic, log.partition)) != self._followers[log].directory:
                self._end(log)
        known = {(log.topic, log.partition) for log in manager.logs()}
        waiting = [item for item in found if item not in known]
        self._reported = {item: why for item, why in self._reported.items() if item in waiting}
        if waiting:
            manager.checkpoints.look_at_cleaner_offsets()
        appeared = [new for item in waiting if (new := self._appear(item)) is not None]
        # A partition that could not be opened is tried again after a change.
        waiting = [item for item in waiting if item not in manager.topics.faulty]
        if len(appeared) >= len(waiting) and stamp + FRESH_NS < self._clock_ns():
            self._names_seen = stamp
        return appeared

    def _appear(self, item: TopicPartition) -> Log | None:
        """Load a new partition and follow it; return None if that has to wait."""
        for _ in range(_TRIES):
            log = self._load(item)
            if log is None or self._begin(log):
                return log
        return None

    def _load(self, item: TopicPartition) -> Log | None:
        manager = self._manager
        directory = manager.partition_path(item)
        has_metadata = self._files.exists(os.path.join(directory, paths.PARTITION_METADATA))
        try:
            log = retry_while_writer_renames(
                manager,
                item,
                lambda: load_partition(manager, item, clean=True, recovery_point=0, log_start=None),
            )
        except (StorageError, OSError) as error:
            if item in manager.topics.faulty:
                manager.topics.set_fault(item, error)
            elif self._reported.get(item) != str(error):
                self._reported[item] = str(error)
                _log.warning("%s: cannot load the partition yet: %s", directory, error)
            return None
        if log is None:
            return None
        topic = manager.topics.get(log.topic)
        if (not has_metadata and not log.size) or (
            topic is not None and topic.partitions and log.topic_id not in ("", topic.id)
        ):
            # Its topic is being created, or one of the same name is being deleted.
            log.abandon()
            return None
        add_log(manager, log)
        self._starting.add(item)
        return log

    def _end(self, log: Log) -> None:
        """Remove a partition whose directory was removed or replaced. Errors: OSError; nothing has
        changed.
        """
        renamed = self._renamed(self._followers[log])
        del self._followers[log]
        self._manager.drop(log, renamed)

    def _renamed(self, follower: LogFollower) -> str | None:
        """Return the path of a directory that the broker has renamed for deletion, or a mirror
        because the topic was created again (`TOPIC.ID-N`).
        """
        kept = f"{follower.log.topic}."
        for name, kind in self._files.listing(self._manager.path):
            if kind != "directory":
                continue
            if name.startswith(kept) or paths.parse_aside_directory(name) is not None:
                directory = os.path.join(self._manager.path, name)
                if self._identity(directory) == follower.directory:
                    return directory
        return None

    def look_at_log_starts(self) -> None:
        """Move log starts up to the broker's last recorded ones. Errors: OSError."""
        self._read_log_starts()
        for topic_name, partition in list(self._starting):
            topic = self._manager.topics.get(topic_name)
            log = None if topic is None else topic.partitions.get(partition)
            if log is None:
                continue  # it counts when the partition appears
            if self._log_starts.offsets.get((topic_name, partition), 0) > log.log_end_offset:
                self.look(log)
            self._raise_log_start(log)

    def _read_log_starts(self) -> None:
        if self._log_starts.look():
            self._starting = set(self._log_starts.offsets)

    def _raise_log_start(self, log: Log) -> None:
        """Move a log's start up to the last recorded one, if its records are visible."""
        item = log.topic, log.partition
        log.checkpointed_start = self._log_starts.offsets.get(item)
        start = log.checkpointed_start or 0
        # Otherwise it was recorded before its records are visible, or is beyond `_limit`.
        if start <= log.log_end_offset:
            self._starting.discard(item)
            if start > log.log_start_offset:
                log.sync_with_writer(log_start=start)
                log.log_start_moved()


class _Offsets:
    """An offset checkpoint of another process, as it was at the last look."""

    def __init__(self, manager: LogManager, name: str) -> None:
        self._files = manager.files
        self._path = os.path.join(manager.path, name)
        self._seen: tuple[int, int] | None = None
        self.offsets: dict[TopicPartition, int] = {}

    def look(self) -> bool:
        """Read the file if it has changed; return whether it has. Errors: OSError."""
        try:
            found = self._files.file_stat(self._path)
        except FileNotFoundError:
            return False
        seen = (found.st_ino, found.st_mtime_ns)
        if seen == self._seen:
            return False
        try:
            self.offsets = checkpoint_file.read_offsets(self._files, self._path)
        except CorruptCheckpoint as error:
            _log.warning("%s", error)
        self._seen = seen
        return True
