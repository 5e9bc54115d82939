"""Hands topics over to a broker: our files replace its empty partitions.

The broker is stopped. It has each of the topics, with the same number of partitions, and nothing
was ever written to them. A partition gets:

- its segments (`handed_segment`), followed by an empty one, which begins at the log end, for the
  broker to append to;
- one producer snapshot, at the log end, without producers. A cluster assigns producer ids: ours
  could equal others' at the broker, which would refuse those producers. Our batches lie below the
  recovery point, so no restart of the broker reads their producers, even after a crash;
- in `__consumer_offsets`, the broker's ids of topics in the place of ours, and no leader epochs
  above 0;
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

A restore point of a mirror (`state/point_file`) can be handed over instead of the present state.
Each log then ends at the offset of the point, followed by the markers of transactions that have
records below it. The topics have the settings of the point, and `__consumer_offsets` its committed
offsets.

Not here: creating topics, and the broker's settings, which only a running broker accepts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from storage import paths
from storage.directory.mirror import is_mirror, is_mirror_for_writer, refuse_mirror
from storage.errors import HandoverRefused, LogLocked, StorageError
from storage.files import Files
from storage.groups.offset_records import id_bytes
from storage.handover.at_point import MARKER_SIZE, faults, group_batches, markers, parts_of
from storage.handover.handed_segment import Part, Receiver, hand_segment, put_segment
from storage.log.append import abort_transaction
from storage.log.log import Log
from storage.manager import LogManager
from storage.plural import counted
from storage.record.header import parse_header, size_at
from storage.settings.config import REMOTE_STORAGE
from storage.settings.settings import Settings
from storage.state import checkpoint_file, point_file
from storage.state.mirror_file import NO_ID, kept_name
from storage.state.point_file import Point
from storage.state.producer_state import EMPTY_SNAPSHOT, ProducerState
from storage.state.tiered import TieredTopics
from storage.task import Task

_DECIDING = frozenset({"cleanup.policy", "retention.bytes", "retention.ms"})

_NO_TOPIC = "the broker has no topic {} in this directory: create it at the broker"
# Of `__consumer_offsets`: the partitions and settings that a broker gives it by default, and its
# `index.interval.bytes`.
_GROUP_PARTITIONS = 50
_GROUP_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
_INDEX_INTERVAL = 4096

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
    """By topic that is not refused, or only missing: the settings to make at the broker."""


def hand_over(
    data: str,
    broker: str,
    topics: Collection[str] = (),
    *,
    at: str | None = None,
    force: bool = False,
    abort: bool = False,
    link: bool = False,
    dry_run: bool = False,
    files: Files | None = None,
    task: Task | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> HandoverOutcome:
    """Hand these topics of the data directory `data`, or all of its own, over to a broker's.

    `at`: hand over the state of the restore point of this name; `force`: also if it is not valid.
    `abort`: abort open transactions, which are refused otherwise. `link`: where possible, both
    sides share the file of a log that is not written any more. `dry_run` changes nothing, takes no
    lock, and returns the refusals instead of raising them. Errors: HandoverRefused, LogLocked,
    UnknownTopicOrPartition, TaskCancelled, other StorageErrors and OSError; the broker has got
    nothing. Its own empty files, which its next start makes again, may be deleted. The next run
    empties partitions that could not be emptied.
    """
    data, broker = os.path.realpath(data), os.path.realpath(broker)
    source_files = files or Files(data)
    point = None
    if at is not None:
        try:
            point = point_file.read(source_files, data, at)
        except FileNotFoundError:
            raise HandoverRefused(f"there is no restore point {at!r}", path=data) from None
    handover = _Handover(
        data,
        broker,
        topics,
        point,
        force,
        abort,
        link,
        files or Files(broker),
        source_files,
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


def _end_of(batches: bytearray) -> int:
    """Return the offset after the last one of these batches."""
    at = end = 0
    while at < len(batches):
        end = parse_header(batches, at).last_offset + 1
        at += size_at(batches, at)
    return end


def _handed_group(number: int, batches: bytearray) -> Handed:
    return Handed(paths.CONSUMER_OFFSETS, number, 0, _end_of(batches), 1, len(batches))


@dataclass(slots=True)
class _Handover:
    data: str
    broker: str
    topics: Collection[str]
    point: Point | None
    force: bool
    abort: bool
    link: bool
    files: Files
    source_files: Files
    task: Task
    clock_ns: Callable[[], int]
    outcome: HandoverOutcome = field(default_factory=HandoverOutcome)
    parts: dict[_Item, list[Part]] = field(default_factory=dict)
    """The parts of each partition that are handed over."""
    names: dict[str, str] = field(default_factory=dict)
    """The names in the source of topics of the point that were created again in the cluster."""
    groups: dict[int, bytearray] = field(default_factory=dict)
    """The batches of the partitions of `__consumer_offsets` for the point."""

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
                self.outcome.handed.append(self._handed(log, self._end(log)))
                for producer_id in self._open_transactions(log) if self.abort else ():
                    self.outcome.aborted.append((*self._item(log), producer_id))
            for number, batches in self.groups.items():
                self.outcome.handed.append(_handed_group(number, batches))
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
        """Recover the source, and abort the topics' open transactions; none in a mirror."""
        mirrors = not self.abort and is_mirror_for_writer(self.source_files, self.data)
        with LogManager.open(self.data, files=self.source_files, mirrors=mirrors) as manager:
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
        if self.point is not None:
            return topic != paths.CONSUMER_OFFSETS
        return topic in self.topics if self.topics else topic not in paths.INTERNAL_TOPICS

    # -- the state to hand over -----------------------------------------------------------------

    def _item(self, log: Log) -> _Item:
        """Return the partition of a log at the broker."""
        return self.names.get(log.topic, log.topic), log.partition

    def _end(self, log: Log) -> int:
        point = self.point
        return log.log_end_offset if point is None else point.partitions[self._item(log)].end

    def _start(self, log: Log) -> int:
        return min(log.log_start_offset, self._end(log))

    def _handed(self, log: Log, end: int, linked: int = 0) -> Handed:
        parts = self.parts[self._item(log)]
        size = sum(part.size for part in parts)
        return Handed(*self._item(log), self._start(log), end, len(parts), size, linked)

    def _topics(self, source: LogManager) -> dict[str, dict[int, Log]]:
        """Return the logs to hand over, by topic of the broker; adds refusals."""
        if self.point is None:
            names = dict.fromkeys(self.topics or sorted(source.topics))
            return {name: dict(source.topic(name).partitions) for name in names}
        point, refuse = self.point, self.outcome.refusals.append
        if point.state != point_file.VALID and not self.force:
            refuse(f"the restore point is {point.state_text}. To hand it over: --force")
        if not is_mirror(self.source_files, self.data) and not self.force:
            refuse("this is no mirror any more: its logs may have changed. To go on: --force")
        ids = self._ids_in(self.data)
        found: dict[str, dict[int, Log]] = {}
        for name in dict.fromkeys(self.topics or sorted(point.ids)):
            if name == paths.CONSUMER_OFFSETS:
                continue
            topic_id = point.ids.get(name)
            if topic_id is None:
                refuse(f"the restore point has no topic {name}")
                continue
            # A mirror renames a topic that is created again in the cluster.
            for kept in (name, kept_name(name, topic_id)):
                if kept in source.topics and topic_id in (NO_ID, ids.get(kept)):
                    self.names[kept] = name
                    logs = source.topic(kept).partitions
                    numbers = [number for topic, number in point.partitions if topic == name]
                    found[name] = {number: logs[number] for number in numbers if number in logs}
                    break
            if len(found.get(name, ())) < sum(topic == name for topic, _ in point.partitions):
                refuse(f"{name} with the id {topic_id}, of the restore point, is not complete here")
                found.pop(name, None)
        return found

    def _add_parts(self, log: Log) -> None:
        """Note what is handed over of a log; adds refusals."""
        if self.point is None:
            parts = [Part(each, each.size, each.next_offset) for each in log.segments]
        else:
            try:
                parts = parts_of(log, self._end(log))
            except HandoverRefused as error:
                self.outcome.refusals.append(str(error))
                parts = []
            if not self.force:
                kept = self.point.partitions[self._item(log)]
                self.outcome.refusals += (
                    f"{fault}. To hand it over: --force" for fault in faults(self.point, log, kept)
                )
        self.parts[self._item(log)] = parts

    # -- choosing -----------------------------------------------------------------------------

    def _choose(self, source: LogManager, begun: Collection[_Item]) -> list[Log]:
        """Return the partitions to hand over; adds refusals.

        `begun`: partitions that an interrupted run has filled in part.
        """
        outcome = self.outcome
        theirs_tiered = TieredTopics(
            self.files, self.broker, Settings(self.files, self.broker, keeps_faulty=True)
        )
        if not self.topics and self.point is None:
            there = paths.partitions_in(self.files.listing(self.data))
            outcome.left_out = sorted(there.keys() & paths.INTERNAL_TOPICS)
        theirs = self._brokers_partitions()
        chosen: list[Log] = []
        for name, logs in self._topics(source).items():
            refusals_before = len(outcome.refusals)
            ours = next(iter(logs.values())).topic if logs else name
            why_unknown = source.settings.why_no_deletion(ours)
            if line := source.tiered.line(ours):
                outcome.refusals.append(line)
            elif why_unknown is not None:
                outcome.refusals.append(f"{name}: {why_unknown}")
            if why := theirs_tiered.why(name):
                outcome.refusals.append(
                    f"{name} is a tiered topic at the broker ({why}): create it there without "
                    f"{REMOTE_STORAGE}, and set that after the handover"
                )
            numbers = theirs.get(name, set())
            if numbers and numbers != set(logs):
                outcome.refusals.append(
                    f"{name} has {counted(len(logs), 'partition')}, but "
                    f"{len(numbers)} at the broker"
                )
            for _, log in sorted(logs.items()) if numbers == set(logs) else ():
                self._add_parts(log)
                if self._is_new(source, log, begun):
                    chosen.append(log)
                    self._refuse_transactions(log)
            # A refused topic may be in use at the broker.
            if len(outcome.refusals) == refusals_before:
                outcome.settings[name] = broker_settings(source.settings, ours)
                if self.point is not None:
                    outcome.settings[name] |= self.point.settings.get(name, {})
                    outcome.settings[name].pop(REMOTE_STORAGE, None)
            if not numbers:
                outcome.missing[name] = len(logs)
                outcome.refusals.append(_NO_TOPIC.format(name))
        if self.point is not None:
            self._choose_groups(self.point, theirs.get(paths.CONSUMER_OFFSETS, set()), begun)
        return chosen

    def _choose_groups(self, point: Point, numbers: set[int], begun: Collection[_Item]) -> None:
        """Note the batches of committed offsets, for the partitions `numbers`; adds refusals."""
        name = paths.CONSUMER_OFFSETS
        if name not in self.topics if self.topics else not point.groups:
            return
        if not numbers:
            self.outcome.missing[name] = _GROUP_PARTITIONS
            self.outcome.settings[name] = dict(_GROUP_SETTINGS)
            self.outcome.refusals.append(_NO_TOPIC.format(name))
            return
        if numbers != set(range(len(numbers))):
            reason = f"the broker has only some partitions of {name} in this directory"
            self.outcome.refusals.append(reason)
            return
        ids = self._ids_in(self.broker)
        wanted = {topic for topic, _ in self.parts} or point.ids.keys()
        topics = {topic: ids[topic] for topic in wanted if topic in ids}
        made = group_batches(point, topics, len(numbers), self.clock_ns() // 1_000_000)
        for number in sorted(numbers):
            batches = made.get(number, bytearray())
            sizes, end = ({0: len(batches)}, _end_of(batches)) if batches else ({}, 0)
            if self._is_empty((name, number), sizes, end, begun) and batches:
                self.groups[number] = batches

    def _place(self, topic: str, partition: int) -> str:
        return os.path.join(self.broker, paths.partition_directory(topic, partition))

    def _brokers_partitions(self) -> dict[str, set[int]]:
        found = paths.partitions_in(self.files.listing(self.broker))
        return {topic: set(numbers) for topic, numbers in found.items()}

    def _is_new(self, source: LogManager, log: Log, begun: Collection[_Item]) -> bool:
        """Return whether the partition is to be handed over; adds refusals."""
        refuse = self.outcome.refusals.append
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
        item = self._item(log)
        sizes = {part.segment.base_offset: part.size for part in self.parts[item]}
        return self._is_empty(item, sizes, self._end(log), begun)

    def _is_empty(
        self, item: _Item, sizes: Mapping[int, int], end: int, begun: Collection[_Item]
    ) -> bool:
        """Return whether a partition at the broker has to get logs of these sizes; adds refusals.

        `begun`: partitions that an interrupted run has filled in part.
        """
        refuse = self.outcome.refusals.append
        directory, name = self._place(*item), f"{item[0]}:{item[1]}"
        metadata = os.path.join(directory, paths.PARTITION_METADATA)
        if checkpoint_file.read_partition_metadata(self.files, metadata) is None:
            refuse(f"{name} has no {paths.PARTITION_METADATA} at the broker")
        theirs = self._logs_in(directory)
        if item in begun or (not any(theirs) and not any(theirs.values())):
            return True
        # Markers may follow a point.
        after = max(theirs, default=end) if self.point is not None else end
        marked = {end: (after - end) * MARKER_SIZE, after: 0}
        if theirs == {**marked, **sizes}:
            self.outcome.finished.append(item)
            return False
        refuse(f"{name} is not empty at the broker: delete and recreate the topic there")
        return True

    def _logs_in(self, directory: str) -> dict[int, int]:
        """Return the bytes of each log in a partition's directory, by base offset."""
        return {
            base: self.files.file_stat(os.path.join(directory, name)).st_size
            for name in self.files.names(directory)
            if name.endswith(paths.LOG) and (base := paths.base_offset_of(name)) is not None
        }

    def _open_transactions(self, log: Log) -> list[int]:
        """Return the producers with an open transaction; none for a restore point."""
        if self.point is not None:
            return []
        return [producer.producer_id for producer in log.producers if producer.in_transaction]

    def _refuse_transactions(self, log: Log) -> None:
        """Refuse open transactions that may not be aborted."""
        for producer_id in () if self.abort else self._open_transactions(log):
            self.outcome.refusals.append(
                f"{log.topic}:{log.partition} has an open transaction of producer "
                f"{producer_id}. To abort it: --abort"
            )

    # -- handing over---------------------------------------------------------------------------

    def _plan_on_disk(self) -> dict[_Item, int]:
        """Return the plan of an interrupted run."""
        return checkpoint_file.read_offsets(self.files, self.plan_path)

    def _carry_out(self, chosen: Collection[Log]) -> None:
        plan = {self._item(log): self._end(log) for log in chosen}
        plan |= {
            (paths.CONSUMER_OFFSETS, number): _end_of(each) for number, each in self.groups.items()
        }
        if not plan:
            return
        try:
            self.files.mkdir(self.unfinished)
            self._receiver(self.broker).own(self.unfinished)
            self.files.sync_directory(self.broker)
            self._write_offsets(self.plan_path, plan)
            total = sum(part.size for log in chosen for part in self.parts[self._item(log)])
            self.task.begin("handing over", total)
            for log in chosen:
                self.outcome.handed.append(self._fill(log))
            for number, batches in self.groups.items():
                self.outcome.handed.append(self._fill_groups(number, batches))
            ends = {(each.topic, each.partition): each.log_end for each in self.outcome.handed}
            self._change(paths.RECOVERY_POINTS, ends)
            self._change(paths.HIGH_WATERMARKS, dict.fromkeys(plan))
            self._change(paths.CLEANER_OFFSETS, dict.fromkeys(plan))
            starts: dict[_Item, int | None] = dict.fromkeys(plan)
            for log in chosen:
                parts = self.parts[self._item(log)]
                if parts and self._start(log) > parts[0].segment.base_offset:
                    starts[self._item(log)] = self._start(log)
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
        for name in self.files.names(self.unfinished):
            self.files.unlink(os.path.join(self.unfinished, name))
        self.files.rmdir(self.unfinished)

    def _empty(self, directory: str) -> None:
        for name, kind in self.files.listing(directory):
            if kind != "directory" and name != paths.PARTITION_METADATA:
                self.files.unlink(os.path.join(directory, name))

    def _fill(self, log: Log) -> Handed:
        """Put a partition's files into the broker's directory of it, durably."""
        item = self._item(log)
        directory = self._place(*item)
        receiver = self._receiver(directory)
        self._empty(directory)
        linked = 0
        first_epochs: list[int] = []
        producers = ProducerState()
        interval = log.config.index_interval_bytes
        ids = self._ids() if log.topic == paths.CONSUMER_OFFSETS else None
        # A mirror truncates its logs as the cluster does.
        may_link = self.link and not is_mirror(self.source_files, self.data)
        for part in self.parts[item]:
            is_linked, first_epoch = hand_segment(
                part,
                receiver,
                interval,
                may_link=may_link and part.segment is not log.segments[-1],
                task=self.task,
                ids=ids,
                producers=producers,
            )
            linked += part.size if is_linked else 0
            if first_epoch is not None:
                first_epochs.append(first_epoch)
        end = self._end(log)
        if self.point is not None and producers.first_undecided_offset is not None:
            now_ms = self.clock_ns() // 1_000_000
            batches, aborted = markers(log, producers, end, now_ms, force=self.force)
            self.outcome.aborted += ((*item, producer_id) for producer_id in aborted)
            put_segment(receiver, batches, end, interval, producers)
            end = _end_of(batches)
        is_open = self.point is None and log.segments[-1].base_offset == end
        first = [(0, max(first_epochs[0], self._start(log)))] if first_epochs else []
        self._complete(receiver, end, first, is_open=is_open)
        return self._handed(log, end, linked)

    def _fill_groups(self, number: int, batches: bytearray) -> Handed:
        """Put committed offsets into a partition of the broker's `__consumer_offsets`, durably."""
        directory = self._place(paths.CONSUMER_OFFSETS, number)
        receiver = self._receiver(directory)
        self._empty(directory)
        put_segment(receiver, batches, 0, _INDEX_INTERVAL, ProducerState())
        self._complete(receiver, _end_of(batches), [(0, 0)])
        return _handed_group(number, batches)

    def _complete(
        self, receiver: Receiver, end: int, epochs: list[tuple[int, int]], *, is_open: bool = False
    ) -> None:
        """Put the empty last segment into a partition, unless it `is_open`, and the other files."""
        if not is_open:
            for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
                receiver.put(receiver.path(end, kind), b"")
        receiver.put(receiver.path(end, paths.SNAPSHOT), EMPTY_SNAPSHOT)
        path = os.path.join(receiver.directory, paths.LEADER_EPOCH_CHECKPOINT)
        # The last file: syncing its name makes all names of the directory durable.
        checkpoint_file.write_epochs(self.files, path, epochs)
        receiver.own(path)

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
        for topic, numbers in paths.partitions_in(self.files.listing(place)).items():
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
