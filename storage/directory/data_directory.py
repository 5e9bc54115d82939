"""An open data directory: the table of its topics, and what creates topics and partitions.

Its parts: the `lock`, the `topics`, the `settings`, the offset `checkpoints`, the `modes` of the
partitions' files, and the `deleted` files.

A partition exists if its directory has the partition's name. The directory of a topic's first
partition is made under a temporary name, which the next start removes. It is renamed after the
topic's settings and owner are written in it. If a topic or a partition cannot be completed, its
files are removed again.

Not here: opening and closing (`LogManager`), existing partitions (`partition`), deletion
(`deletion`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from storage import paths
from storage.background import Duties
from storage.counters import CleanerCounters
from storage.directory.checkpoints import Checkpoints, RepairAnswers
from storage.directory.deleted import Deleted, remove_directory
from storage.directory.lock import DirectoryLock
from storage.directory.partition_modes import PartitionModes
from storage.directory.reserve import Reserve
from storage.directory.topics import Topic, TopicPartition, Topics
from storage.errors import InvalidTopic, PolicyViolation, ReadOnlyLog, TopicExists
from storage.files import Files
from storage.log.group import LogGroup
from storage.log.log import Log
from storage.plural import counted
from storage.recovery.partition import LogLoader
from storage.recovery.promises import PartitionFiles, Promises
from storage.retention.retention import check_policy
from storage.segment.cut import Cut
from storage.settings.setting_files import TopicFile, TopicOwner
from storage.settings.settings import Settings, no_check
from storage.state import checkpoint_file, manifest_file
from storage.state.tiered import TieredTopics
from storage.task import Task

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How a data directory is opened: see `LogManager.open`."""

    read_only: bool
    mirrors: bool
    wanted: Callable[[str], bool] | None
    keeps_faulty: bool
    mount_point: str | None
    answers: RepairAnswers | None
    clock_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]


class DataDirectory:
    """An open data directory. Runs on the log thread; `Log` names the exceptions.

    `faults`: a line for each problem. `cuts`: bytes that recovery has cut off. `uncut`: partitions
    whose logs a repair would have to truncate before records that a mount shows. `skipped`: names
    of other directories. `stopped_clean`: whether the last stop was clean, and the checkpoints can
    be read. `mirrors`, `wanted`, `answers`: see `LogManager.open`.
    """

    def __init__(self, path: str, files: Files, lock: DirectoryLock, options: OpenOptions) -> None:
        self.path = path
        self.files = files
        self.lock = lock
        self.read_only = read_only = options.read_only
        self.mirrors = options.mirrors
        self.keeps_faulty = options.keeps_faulty
        self.clock_ms = options.clock_ms
        self.monotonic_ms = options.monotonic_ms
        self.clean = self.stopped_clean = checkpoint_file.has_marker(files, path)
        self.faults: list[str] = []
        self.cuts: list[Cut] = []
        self.uncut: set[TopicPartition] = set()
        self.skipped: set[str] = set()
        self.wanted, self.answers = options.wanted, options.answers
        # Without deletions, a missing retention policy does no harm.
        check = no_check if read_only else check_policy
        self.settings = settings = Settings(
            files,
            path,
            check,
            keeps_faulty=options.keeps_faulty,
            mount_point=options.mount_point,
        )
        self.tiered = TieredTopics(files, path, settings)
        self.reserve = Reserve(files, path, self.tiered)
        self.modes = PartitionModes(files, path)
        self.duties = Duties()
        self.cleaner_counters = CleanerCounters()
        self.log_group = LogGroup[Log](options.monotonic_ms)
        self.topics = Topics(path, settings, self.faults)
        self.logs, self.log, self.topic = self.topics.logs, self.topics.log, self.topics.topic
        self.checkpoints = Checkpoints(
            files,
            path,
            self.faults,
            options.answers or RepairAnswers(),
            () if lock.ignored is None else lock.ignored.partitions(),
            read_only=read_only,
        )
        self.deleted = Deleted(
            path, files, self.duties, self.reserve, self.log_group, read_only=read_only
        )
        # Why the last cleaning of a log failed.
        self.uncleanable: dict[Log, str] = {}
        # Logs whose new settings make their active segment too large or too old.
        self.roll_due: set[Log] = set()
        # Partitions that exist and were not opened, because they are not needed.
        self.left_out: list[TopicPartition] = []

    # -- checks ----------------------------------------------------------------------------------

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

    def check_may_create(self) -> None:
        """Check that topics may be created. Errors: PolicyViolation in a broker's directory."""
        if self.settings.is_brokers:
            raise PolicyViolation(
                "this is the directory of a broker: when the broker starts again, it deletes "
                "topics and partitions it does not know. If it will not start again: kafkafs "
                f"detach {self.path}",
            )

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
        self.log_group.unflushed.discard(log)

    def partition_path(self, item: TopicPartition) -> str:
        """Return the directory of a partition."""
        return os.path.join(self.path, paths.partition_directory(*item))

    # -- topics and partitions -------------------------------------------------------------------

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
        return self._create_topic(name, partitions, owner, settings or {})

    def create_mirrored_topic(
        self, name: str, topic_id: str | None, partitions: int, settings: Mapping[str, str]
    ) -> Topic:
        """Create a topic of a cluster, also an internal one, with the id that it has there; None:
        the cluster's topics have no ids. If it has this id already, create its missing partitions.
        Errors: see `create_topic`.
        """
        known = self.topics.get(name)
        if known is not None and topic_id == known.id:
            self.check_may_create()
            self._create_missing(known, partitions, settings)
            return known
        if name not in paths.INTERNAL_TOPICS:
            paths.check_new_name(name)
        return self._create_topic(name, partitions, None, settings, topic_id)

    def _create_topic(
        self,
        name: str,
        partitions: int | None,
        owner: TopicOwner | None,
        settings: Mapping[str, str],
        topic_id: str | None = None,
    ) -> Topic:
        """Create a topic, also with a reserved name."""
        self.check_writable()
        assert not self.left_out, "who makes topics has all of a directory open"
        self.files.check_room()
        if name in self.topics:
            # It has fewer partitions if its creation was interrupted.
            present = counted(len(self.topics[name].numbers), "partition")
            raise TopicExists(f"topic {name!r} already exists, with {present}", path=self.path)
        self.topics.check_collisions(name)
        self.check_may_create()
        self.settings.check_known()
        count = self.settings.broker.num_partitions if partitions is None else partitions
        topic = Topic(name, topic_id or checkpoint_file.new_topic_id())
        self.settings.set_topic_id(name, topic.id)
        overrides = self.settings.checked(name, settings) if settings else {}
        try:
            begun = TopicFile(overrides, {} if owner is None else {None: owner})
            for partition in range(count):
                topic.add(self._create_log(topic, partition, begun))
            self.files.sync_directory(self.path)
        except OSError:
            for log in reversed(topic.partitions.values()):
                remove_directory(self.files, log.directory)
            self.settings.forget(name)
            raise
        self.lock.note_change(self.clock_ms())
        self.topics[name] = topic
        self.topics.changes += 1
        return topic

    def create_offsets_topic(self) -> None:
        """Create `__consumer_offsets` as a broker does, or its missing partitions. Errors: see
        `create_topic`.
        """
        partitions = self.settings.broker.offsets_topic_num_partitions
        settings = self.offsets_topic_settings
        topic = self.topics.get(paths.CONSUMER_OFFSETS)
        if topic is None:
            self._create_topic(paths.CONSUMER_OFFSETS, partitions, None, settings)
            return
        self._create_missing(topic, partitions, settings)

    @property
    def offsets_topic_settings(self) -> dict[str, str]:
        """The settings with which `__consumer_offsets` is created, also in a mirror."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self.settings.broker.offsets_topic_segment_bytes),
        }

    def _create_missing(self, topic: Topic, partitions: int, settings: Mapping[str, str]) -> None:
        """Create the missing ones of a topic's first partitions, durably; `settings`: if partition
        0 is missing.
        """
        self.check_writable()
        self.files.check_room()
        begun = TopicFile(self.settings.checked(topic.name, settings))
        try:
            for partition in sorted(set(range(partitions)) - set(topic.numbers)):
                topic.add(self._create_log(topic, partition, begun))
            self.files.sync_directory(self.path)
        finally:
            self.topics.changes += 1

    def create_partition(
        self, topic_name: str, partition: int, *, owner: TopicOwner | None = None
    ) -> Log:
        """Create the next partition of a topic; durable.

        `owner`: its uid, gid and mode, which are written before the partition is visible. Errors:
        InvalidTopic if it is not the next number, PolicyViolation in a broker's directory or for an
        internal topic, OSError; the files of the partition are removed again.
        """
        self.check_may_write(topic_name)
        self.files.check_room()
        topic = self.topics.topic(topic_name)
        topic.check(partition)
        if topic_name in paths.INTERNAL_TOPICS:
            reason = "only a cluster adds partitions to this topic"
            raise PolicyViolation(f"topic {topic_name!r}: {reason}")
        following = max(topic.numbers, default=-1) + 1
        if partition != following:
            raise InvalidTopic(
                f"the next partition of topic {topic_name!r} is {following}, not {partition}: "
                "partitions are created in order",
                path=self.path,
            )
        self.check_may_create()
        # Each change rewrites all lines of the topic's file, so thousands of equal partitions have
        # none.
        if owner is not None and owner != self.settings.partition_owner(topic_name, partition):
            self.settings.set_owner(topic_name, partition, *owner)
        log = self._create_log(topic, partition)
        try:
            log.load_history()
            self.files.sync_directory(self.path)
        except OSError:
            log.abandon()
            remove_directory(self.files, log.directory)
            raise
        topic.add(log)
        self.topics.changes += 1
        return log

    def _create_log(self, topic: Topic, partition: int, begun: TopicFile | None = None) -> Log:
        """Make the directory of a topic's new partition, and its log.

        `begun`: the settings and the owners of a new topic.
        """
        item = topic.name, partition
        directory = self.partition_path(item)
        self.files.check_absent(directory)
        # The lines of a deleted or ignored partition must not apply to the new one, which begins at
        # offset 0.
        self.checkpoints.forget([item])
        if item in self.checkpoints.stale:
            self.write_checkpoints()
        if partition == 0:
            self._begin_topic(topic, directory, begun or TopicFile())
        else:
            known = self.settings.topic_file(topic.name)
            self.modes.make_directory(directory, known, item)
        try:
            if partition:
                self._write_topic_id(topic, directory)
            return self._begin_log(topic, partition, directory)
        except OSError:
            remove_directory(self.files, directory)
            raise

    def _begin_log(self, topic: Topic, partition: int, directory: str) -> Log:
        """Make the other files of a new, empty partition in its directory; durable. Errors:
        OSError.

        Its creation time is later than those of the topic's other partitions, even if the disk's
        clock stood still.
        """
        files, config = self.files, self.settings.log_config(topic.name)
        created_ns = max(checkpoint_file.created_ns(files, directory), topic.extended_ns + 1)
        files.utime_ns(os.path.join(directory, paths.PARTITION_METADATA), created_ns)
        epochs = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        checkpoint_file.write_epochs(files, epochs, [])
        manifest_file.begin(files, directory)
        promises = Promises(clean=True, manifest_below=0)
        place = PartitionFiles(files, directory, config, promises, writable=True)
        recovered = LogLoader(place, self.clock_ms()).load()
        files.sync_directory(directory)
        return Log(
            *(place, topic.name, partition, topic.id, recovered, self.log_group),
            created_ns=created_ns,
            epochs=[],
            was_closed=True,
        )

    def _write_topic_id(self, topic: Topic, directory: str) -> None:
        path = os.path.join(directory, paths.PARTITION_METADATA)
        checkpoint_file.write_partition_metadata(self.files, path, topic.id)

    def _begin_topic(self, topic: Topic, directory: str, begun: TopicFile) -> None:
        """Make the directory of a new topic's partition 0, with the topic's id and file inside.

        Until both are durable, the directory has a name that the next start removes.
        """
        files, name = self.files, topic.name
        unfinished = os.path.join(self.path, paths.deleted_directory_name(name, 0))
        self.modes.make_directory(unfinished, begun, (name, 0))
        try:
            self._write_topic_id(topic, unfinished)
            self.settings.begin(name, unfinished, begun)
            files.rename(unfinished, directory)
        except OSError:
            remove_directory(files, unfinished)
            raise

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

    # -- settings --------------------------------------------------------------------------------

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

    # -- checkpoints -----------------------------------------------------------------------------

    def note(self, logs: Iterable[Log]) -> None:
        """Let the next checkpoint have the present values of these logs, except deleted ones."""
        self.check_writable()
        for log in logs:
            topic = self.topics.get(log.topic)
            is_there = topic is not None and topic.partitions.get(log.partition) is log
            if is_there and not log.read_only:
                self.checkpoints.note(log)

    def write_checkpoints(self) -> None:
        """Write all that was noted, durably. Thread-safe. Errors: OSError; the next call writes it
        again.
        """
        self.checkpoints.write()
        self.reserve.restore()

    def checkpoint_logs(self, logs: Iterable[Log], task: Task) -> None:
        """Write the present state of these logs to the checkpoints, durably. Runs on a worker
        thread. Errors: OSError.
        """
        task.on_log_thread(lambda: self.note(logs))
        self.write_checkpoints()

    def start_checkpoint(self) -> Callable[[], None]:
        """Note the present state of all logs, and of the producers of those that have grown; return
        a thread-safe function that writes the snapshots and the checkpoints.
        """
        self.note(self.logs())
        started = [each for log in self.logs() if (each := log.snapshots.start()) is not None]

        def write() -> None:
            failure: OSError | None = None
            for write_snapshot in started:
                try:
                    self.files.with_reserve(write_snapshot)
                except OSError as error:
                    failure = failure or error
            self.write_checkpoints()
            if failure is not None:
                raise failure

        return write

    def checkpoint(self) -> None:
        """Write the recovery points, log starts, high watermarks and snapshots now."""
        self.start_checkpoint()()
