"""Hands topics over to a broker: our files replace its empty partitions.

The broker is stopped. It has each of the topics, with the same number of partitions, and nothing
was ever written to them. A partition gets:

- its segments (`handed_segment`), followed by an empty one, which begins at the log end, for the
  broker to append to;
- one producer snapshot, at the log end, without producers. A cluster assigns producer ids: ours
  could equal others' at the broker, which would refuse those producers. Our batches lie below the
  recovery point, so no restart of the broker reads their producers, even after a crash;
- in `__consumer_offsets`, the broker's ids of topics in the place of ours;
- `leader-epoch-checkpoint` with epoch 0, or empty if no batch has an epoch;
- the log end as its recovery point, and our log start if it is above the first base offset. A
  broker finds the high watermark and the cleaner's offset itself.

`partition.metadata` stays: it ties the directory to the cluster's topic.

An interrupted handover must not be served. So the broker's directory has a directory
`kafkafs.handover` until the end. No broker starts with a directory that is no partition's
(`LogManager.loadLogs`), and we do not open it for writing either. A file in it, `plan`, names the
partitions with their log ends. After a kill the next run empties the partitions of the plan and
starts again; without a plan nothing was begun, or all was done. Completed partitions are skipped,
so a handover can be repeated.

A handover that fails empties the partitions itself. It only reads the source, except to recover a
directory that was not closed cleanly, and to abort transactions on request.

Not here: creating topics, and the broker's settings, which only a running broker accepts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from storage import paths
from storage.directory.mirror import refuse_mirror
from storage.errors import HandoverRefused, LogLocked, StorageError
from storage.files import Files
from storage.groups.offset_records import id_bytes
from storage.handover.handed_segment import Receiver, hand_segment
from storage.log.append import abort_transaction
from storage.log.log import Log
from storage.manager import LogManager
from storage.plural import counted
from storage.settings.config import REMOTE_STORAGE
from storage.settings.settings import Settings
from storage.state import checkpoint_file
from storage.state.producer_state import EMPTY_SNAPSHOT
from storage.state.tiered import TieredTopics
from storage.task import Task

_DECIDING = frozenset({"cleanup.policy", "retention.bytes", "retention.ms"})

_Item = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Handed:
    """A partition that was handed over, or would be. Sizes in bytes.

    `linked_size`: the bytes of the logs that both sides share.
    """

    topic: str
    partition: int
    log_start: int
    log_end: int
    segments: int
    size: int
    linked_size: int = 0

    def __str__(self) -> str:
        linked = f", {self.linked_size} of them hard-linked" if self.linked_size else ""
        return (
            f"{self.topic}:{self.partition}: offsets {self.log_start} to {self.log_end}, "
            f"{counted(self.segments, 'segment')}, {self.size} bytes{linked}"
        )


@dataclass(slots=True)
class HandoverOutcome:
    """The result of a handover, or of its preview."""

    handed: list[Handed] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Why the handover is refused."""
    missing: dict[str, int] = field(default_factory=dict)
    """Topics that the broker does not have, with the number of their partitions."""
    aborted: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, partition and producer id of transactions."""
    finished: list[_Item] = field(default_factory=list)
    """Partitions that are handed over already."""
    left_out: list[str] = field(default_factory=list)
    """Internal topics that the caller has not named."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """By topic: the settings to make at the broker."""


def hand_over(
    data: str,
    broker: str,
    topics: Collection[str] = (),
    *,
    abort: bool = False,
    link: bool = False,
    dry_run: bool = False,
    files: Files | None = None,
    task: Task | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> HandoverOutcome:
    """Hand these topics of the data directory `data`, or all of its own, over to a broker's.

    `abort`: abort open transactions, which are refused otherwise. `link`: where possible, both
    sides share the file of a log that is not written any more. `dry_run` changes nothing, takes no
    lock, and returns the refusals instead of raising them. Errors: HandoverRefused, LogLocked,
    UnknownTopicOrPartition, TaskCancelled, other StorageErrors and OSError; the broker has got
    nothing. Its own empty files, which its next start makes again, may be deleted. The next run
    empties partitions that could not be emptied.
    """
    data, broker = os.path.realpath(data), os.path.realpath(broker)
    handover = _Handover(
        data,
        broker,
        topics,
        abort,
        link,
        files or Files(broker),
        files or Files(data),
        task or Task(),
        clock_ns,
    )
    return handover.preview() if dry_run else handover.run()


def broker_settings(settings: Settings, topic: str) -> dict[str, str]:
    """Return the settings that a broker needs: those set on the topic, and those that delete
    records.

    The latter also if they are our defaults, since a broker has others. A topic becomes a tiered
    one only after it was handed over.
    """
    own = settings.overrides(topic)
    return {
        name: value
        for name, value, _ in settings.explain(topic)
        if (name in own or name in _DECIDING)
        and not name.startswith("kafkafs.")
        and name != REMOTE_STORAGE
    }


def _item(log: Log) -> _Item:
    return log.topic, log.partition


@dataclass(slots=True)
class _Handover:
    data: str
    broker: str
    topics: Collection[str]
    abort: bool
    link: bool
    files: Files
    source_files: Files
    task: Task
    clock_ns: Callable[[], int]
    outcome: HandoverOutcome = field(default_factory=HandoverOutcome)

    @property
    def unfinished(self) -> str:
        """The directory that keeps the broker from starting."""
        return os.path.join(self.broker, paths.HANDOVER)

    @property
    def plan_path(self) -> str:
        return os.path.join(self.unfinished, "plan")

    # -- preview and run ------------------------------------------------------------------------

    def preview(self) -> HandoverOutcome:
        self._check_broker()
        for directory in (self.data, self.broker):
            path = os.path.join(directory, paths.LOCK)
            holder = self.files.locked_by(path)
            if holder is not None:
                self.outcome.refusals.append(str(LogLocked(holder, path=path)))
        begun = self._plan_on_disk()
        with self._source() as source:
            for log in self._choose(source, begun):
                size = sum(segment.size for segment in log.segments)
                bounds = log.log_start_offset, log.log_end_offset
                count = len(log.segments)
                self.outcome.handed.append(Handed(*_item(log), *bounds, count, size))
                for producer_id in self._open_transactions(log):
                    if self.abort:
                        self.outcome.aborted.append((*_item(log), producer_id))
        return self.outcome

    def run(self) -> HandoverOutcome:
        self._check_broker()
        with self._brokers_lock():
            self._take_back()
            is_settled = False
            while not self._attempt(is_settled=is_settled):
                self._settle()
                is_settled = True
        return self.outcome

    def _attempt(self, *, is_settled: bool) -> bool:
        """Hand over; return False if the source has to be recovered first."""
        with self._locked(self.data):
            # A directory with tiered topics has no marker, though its other topics are recovered.
            if not is_settled and not checkpoint_file.has_marker(self.files, self.data):
                return False
            with self._source() as source:
                chosen = self._choose(source, {})
                open_ones = [id for log in chosen for id in self._open_transactions(log)]
                if self.outcome.refusals:
                    raise HandoverRefused("; ".join(self.outcome.refusals), path=self.broker)
                if not open_ones:
                    self._carry_out(chosen)
                return not open_ones

    def _settle(self) -> None:
        """Recover the source, and abort the topics' open transactions."""
        with LogManager.open(self.data, files=self.source_files) as manager:
            for log in manager.logs() if self.abort else ():
                for producer in log.producers if self._is_wanted(log.topic) else ():
                    if producer.in_transaction:
                        abort_transaction(log, producer.producer_id, self.clock_ns())
                        aborted = log.topic, log.partition, producer.producer_id
                        self.outcome.aborted.append(aborted)

    # -- locks --------------------------------------------------------------------------------

    def _check_broker(self) -> None:
        if not self.files.is_directory(self.broker):
            raise NotADirectoryError(20, os.strerror(20), self.broker)
        refuse_mirror(self.broker)
        if not self.files.exists(os.path.join(self.broker, paths.META_PROPERTIES)):
            reason = f"not the directory of a broker: it has no {paths.META_PROPERTIES}"
            raise HandoverRefused(reason, path=self.broker)

    @contextlib.contextmanager
    def _locked(self, directory: str) -> Iterator[None]:
        fd = self.files.lock(os.path.join(directory, paths.LOCK))
        try:
            yield
        finally:
            self.files.unlock(fd)

    @contextlib.contextmanager
    def _brokers_lock(self) -> Iterator[None]:
        """Lock the broker's directory, and leave no file of ours, which it could not open."""
        path = os.path.join(self.broker, paths.LOCK)
        existed = self.files.exists(path)
        with self._locked(self.broker):
            try:
                yield
            finally:
                if not existed:
                    self.files.unlink(path)

    @contextlib.contextmanager
    def _source(self) -> Iterator[LogManager]:
        with LogManager.open(
            self.data, read_only=True, files=self.source_files, wanted=self._is_wanted
        ) as source:
            yield source

    def _is_wanted(self, topic: str) -> bool:
        return topic in self.topics if self.topics else topic not in paths.INTERNAL_TOPICS

    # -- choosing -----------------------------------------------------------------------------

    def _choose(self, source: LogManager, begun: Collection[_Item]) -> list[Log]:
        """Return the partitions to hand over; adds refusals.

        `begun`: partitions that an interrupted run has filled in part.
        """
        outcome = self.outcome
        theirs_tiered = TieredTopics(
            self.files, self.broker, Settings(self.files, self.broker, keeps_faulty=True)
        )
        names = [name for name, is_directory in self.files.scan(self.data) if is_directory]
        parsed = map(paths.parse_partition_directory, names)
        there = {each[0] for each in parsed if each}
        outcome.left_out = [] if self.topics else sorted(there & paths.INTERNAL_TOPICS)
        theirs = self._brokers_partitions()
        chosen: list[Log] = []
        for name in dict.fromkeys(self.topics or sorted(source.topics)):
            topic = source.topic(name)
            why_unknown = source.settings.why_no_deletion(name)
            if line := source.tiered.line(name):
                outcome.refusals.append(line)
            elif why_unknown is not None:
                outcome.refusals.append(f"{name}: {why_unknown}")
            else:
                outcome.settings[name] = broker_settings(source.settings, name)
            if why := theirs_tiered.why(name):
                outcome.refusals.append(
                    f"{name} is a tiered topic at the broker ({why}): create it there without "
                    f"{REMOTE_STORAGE}, and set that after the handover"
                )
            numbers = theirs.get(name, set())
            if not numbers:
                outcome.missing[name] = len(topic.partitions)
                outcome.refusals.append(
                    f"the broker has no topic {name} in this directory: create it at the broker"
                )
            elif numbers != set(topic.partitions):
                outcome.refusals.append(
                    f"{name} has {counted(len(topic.partitions), 'partition')}, but "
                    f"{len(numbers)} at the broker"
                )
            else:
                for _, log in sorted(topic.partitions.items()):
                    if self._is_new(source, log, is_begun=_item(log) in begun):
                        chosen.append(log)
        return chosen

    def _place(self, topic: str, partition: int) -> str:
        return os.path.join(self.broker, paths.partition_directory(topic, partition))

    def _brokers_partitions(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for name, is_directory in self.files.scan(self.broker):
            parsed = paths.parse_partition_directory(name) if is_directory else None
            if parsed is not None:
                found.setdefault(parsed[0], set()).add(parsed[1])
        return found

    def _is_new(self, source: LogManager, log: Log, *, is_begun: bool) -> bool:
        """Return whether the partition is to be handed over; adds refusals."""
        refuse = self.outcome.refusals.append
        directory = self._place(*_item(log))
        name = f"{log.topic}:{log.partition}"
        if not log.active.holds_batches:
            refuse(
                f"{name} has the format of Kafka 0.7, which brokers cannot read. Convert it "
                "first: kafkafs convert"
            )
        for fault in source.faults:
            if fault.startswith(log.directory + os.sep) and fault not in log.losses:
                refuse(f"{fault}; run kafkafs repair --apply first")
        for loss in log.losses:
            refuse(f"{name} is incomplete: {loss}")
        metadata = os.path.join(directory, paths.PARTITION_METADATA)
        if checkpoint_file.read_partition_metadata(self.files, metadata) is None:
            refuse(f"{name} has no {paths.PARTITION_METADATA} at the broker")
        theirs = self._logs_in(directory)
        if is_begun or (not any(theirs) and not any(theirs.values())):
            return True
        ours = {segment.base_offset: segment.size for segment in log.segments}
        if theirs == {log.log_end_offset: 0, **ours}:
            self.outcome.finished.append(_item(log))
            return False
        refuse(f"{name} is not empty at the broker: delete and recreate the topic there")
        return True

    def _logs_in(self, directory: str) -> dict[int, int]:
        """Return the bytes of each log in a partition's directory, by base offset."""
        return {
            base: self.files.file_stat(os.path.join(directory, name)).st_size
            for name, _ in self.files.scan(directory)
            if name.endswith(paths.LOG) and (base := paths.base_offset_of(name)) is not None
        }

    def _open_transactions(self, log: Log) -> list[int]:
        """Return the producers with an open transaction; refuse it if it may not be aborted."""
        found = [producer.producer_id for producer in log.producers if producer.in_transaction]
        for producer_id in () if self.abort else found:
            self.outcome.refusals.append(
                f"{log.topic}:{log.partition} has an open transaction of producer "
                f"{producer_id}. To abort it: --abort"
            )
        return found

    # -- handing over---------------------------------------------------------------------------

    def _plan_on_disk(self) -> dict[_Item, int]:
        """Return the plan of an interrupted run."""
        return checkpoint_file.read_offsets(self.files, self.plan_path)

    def _carry_out(self, chosen: Collection[Log]) -> None:
        if not chosen:
            return
        plan = {_item(log): log.log_end_offset for log in chosen}
        try:
            self.files.mkdir(self.unfinished)
            self._receiver(self.broker).own(self.unfinished)
            self.files.sync_directory(self.broker)
            self._write_offsets(self.plan_path, plan)
            total = sum(segment.size for log in chosen for segment in log.segments)
            self.task.begin("handing over", total)
            for log in chosen:
                self.outcome.handed.append(self._fill(log))
            self._change(paths.RECOVERY_POINTS, plan)
            self._change(paths.HIGH_WATERMARKS, dict.fromkeys(plan))
            self._change(paths.CLEANER_OFFSETS, dict.fromkeys(plan))
            starts = {
                _item(log): log.log_start_offset
                if log.log_start_offset > log.segments[0].base_offset
                else None
                for log in chosen
            }
            self._change(paths.LOG_STARTS, starts)
            self._let_start()
        except (OSError, StorageError):
            self._take_back()
            raise
        self.files.sync_directory(self.broker)

    def _take_back(self) -> None:
        """Empty the partitions of an unfinished handover, and let the broker start."""
        if not self.files.exists(self.unfinished):
            return
        plan = self._plan_on_disk()
        for item in plan:
            directory = self._place(*item)
            if self.files.exists(directory):
                self._empty(directory)
                self.files.sync_directory(directory)
        # Otherwise an empty log would begin there.
        self._change(paths.LOG_STARTS, dict.fromkeys(plan))
        # A broker takes the log end if that is lower; a full disk may not take this again.
        known = checkpoint_file.read_offsets(
            self.files, os.path.join(self.broker, paths.RECOVERY_POINTS)
        )
        with contextlib.suppress(OSError):
            self._change(paths.RECOVERY_POINTS, {item: 0 for item in plan if known.get(item)})
        self._let_start()
        self.files.sync_directory(self.broker)

    def _let_start(self) -> None:
        for name, _ in self.files.scan(self.unfinished):
            self.files.unlink(os.path.join(self.unfinished, name))
        self.files.rmdir(self.unfinished)

    def _empty(self, directory: str) -> None:
        for name, is_directory in self.files.scan(directory):
            if not is_directory and name != paths.PARTITION_METADATA:
                self.files.unlink(os.path.join(directory, name))

    def _fill(self, log: Log) -> Handed:
        """Put a partition's files into the broker's directory of it, durably."""
        directory = self._place(*_item(log))
        receiver = self._receiver(directory)
        self._empty(directory)
        linked = 0
        first_epochs: list[int] = []
        ids = self._ids() if log.topic == paths.CONSUMER_OFFSETS else {}
        for segment in log.segments:
            is_linked, first_epoch = hand_segment(
                segment,
                receiver,
                log.config.index_interval_bytes,
                may_link=self.link and segment is not log.segments[-1],
                task=self.task,
                ids=ids,
            )
            linked += segment.size if is_linked else 0
            if first_epoch is not None:
                first_epochs.append(first_epoch)
        end = log.log_end_offset
        if log.segments[-1].base_offset < end:
            for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
                receiver.put(receiver.path(end, kind), b"")
        receiver.put(receiver.path(end, paths.SNAPSHOT), EMPTY_SNAPSHOT)
        epochs = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        first = [(0, max(first_epochs[0], log.log_start_offset))] if first_epochs else []
        # The last file: syncing its name makes all names of the directory durable.
        checkpoint_file.write_epochs(self.files, epochs, first)
        receiver.own(epochs)
        size = sum(segment.size for segment in log.segments)
        bounds = log.log_start_offset, end
        return Handed(*_item(log), *bounds, len(log.segments), size, linked)

    def _ids(self) -> dict[bytes, bytes]:
        """Return our ids of topics, each with the broker's id of the same name."""
        ours, theirs = (self._ids_in(place) for place in (self.data, self.broker))
        return {
            id_bytes(ours[topic]): id_bytes(theirs[topic])
            for topic in ours.keys() & theirs.keys()
            if ours[topic] != theirs[topic]
        }

    def _ids_in(self, place: str) -> dict[str, str]:
        """Return the ids of the topics in a directory, by name."""
        found: dict[str, str] = {}
        for topic, numbers in paths.partitions_in(self.files.scan(place)).items():
            directory = os.path.join(place, paths.partition_directory(topic, numbers[0]))
            path = os.path.join(directory, paths.PARTITION_METADATA)
            topic_id = checkpoint_file.read_partition_metadata(self.files, path)
            if topic_id is not None:
                found[topic] = topic_id
        return found

    def _receiver(self, directory: str) -> Receiver:
        """Return the directory, with the owner of the broker's one."""
        stat = self.files.file_stat(os.path.join(self.broker, paths.META_PROPERTIES))
        return Receiver(self.files, directory, stat.st_uid, stat.st_gid)

    def _change(self, name: str, changes: Mapping[_Item, int | None]) -> None:
        """Change lines of a checkpoint file of the broker; None: remove the line."""
        path = os.path.join(self.broker, name)
        before = checkpoint_file.read_offsets(self.files, path)
        after: dict[_Item, int] = {
            item: offset for item, offset in {**before, **changes}.items() if offset is not None
        }
        if after != before:
            self._write_offsets(path, after)

    def _write_offsets(self, path: str, offsets: Mapping[_Item, int]) -> None:
        checkpoint_file.write_offsets(self.files, path, offsets)
        self._receiver(self.broker).own(path)
