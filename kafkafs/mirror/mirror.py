"""The loop of a mirror: reads from the leaders, and appends to the logs of its directory.

A session has the directory open. It begins with the metadata of the cluster:

1. The copies of topics that were created again get other names (`topics.set_aside`).
2. The starts of new copies are written to `kafkafs.mirror`, durably.
3. The directory is opened, and missing topics and partitions are created.

A session ends with the run, or when a topic is found to be created again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kafka_client.addresses import HostPort
from kafka_client.cluster import (
    UNKNOWN_TOPIC,
    Cluster,
    Metadata,
    Topic,
    TopicPartition,
)
from kafka_client.consume import Consumer
from kafka_client.errors import BrokerError, BrokerUnreachable, ClientError
from kafka_client.fetch import NO_EPOCH, NO_TOPIC_ID, Fetched, Position
from kafka_client.requests import (
    EARLIEST,
    LATEST,
    Offset,
    TopicSettings,
    end_offsets_of_epochs,
    list_offsets,
)
from kafkafs.mirror import groups, rules, topics
from kafkafs.mirror.compaction import Compaction
from kafkafs.mirror.compare import has_batch_before
from kafkafs.mirror.copied import Copy
from kafkafs.mirror.cuts import Markers
from kafkafs.mirror.groups import GroupFacts
from kafkafs.mirror.housekeeping import Housekeeping
from kafkafs.mirror.lookups import Found, Lookups, Wanted, look_up, settings_of
from kafkafs.mirror.points import Asked, Points
from kafkafs.mirror.rules import Again, BeginAt, Compare, Hole, Policy, Rounds, Skip, Truncate, Wait
from kafkafs.mirror.transactions import (
    LostMarker,
    has_records,
    lost_markers,
    open_transactions,
    write_markers,
)
from storage import paths
from storage.directory.lock import alone
from storage.directory.open import Progress
from storage.directory.retain import delete_records, kept_starts
from storage.errors import StorageError
from storage.files import Files
from storage.log.append import Part, append_parts, holes, parse_as_follower
from storage.log.log import Log
from storage.log.truncate import check_not_compacted
from storage.manager import LogManager
from storage.record.control import ABORT
from storage.record.header import parse_header
from storage.segment.cut import cut_files
from storage.state import mirror_file
from storage.state.gaps_file import Gap
from storage.state.mirror_file import NO_ID, UNKNOWN, MirroredPartition, MirrorFile
from storage.state.point_file import Point
from storage.task import Task

# Between two requests for the metadata, for the settings of the topics, and for the offsets of
# groups.
_LOOK_MS: Final = 10_000
_SETTINGS_MS: Final = 60_000
_GROUPS_MS: Final = 30_000
# How often the mirror fetches a refused position again.
_ATTEMPTS: Final = 3
_ANOTHER: Final = "the cluster has other records at our last offset: is it another topic?"
_WORDS: Final = {
    "deleted": "offsets {} to {} were deleted in the cluster before they were copied",
    "missing": "the cluster has no records at the offsets {} to {}",
    "damaged": "the records at the offsets {} to {} are damaged in the cluster, and were skipped",
    "tombstones": "records at the offsets {} to {} may have keys that were deleted in the cluster",
    "diverged": "the cluster has lost its records at the offsets {} to {} (an unclean election); "
    "ours were moved to files *.diverged",
    "aborted": "the end of a transaction at the offsets {} to {} is not known; it was aborted here",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to mirror. `start`: where the first copies begin: EARLIEST, LATEST, or a time in ms.

    `source`: the address of the cluster without secrets, for users. `follow_deletes`: delete what
    the cluster deletes at the start of logs; `accept_loss`: skip damaged records. `consumer`:
    further options of `Consumer`.
    """

    source: str
    patterns: tuple[str, ...] = ("*",)
    start: int = EARLIEST
    follow_deletes: bool = False
    accept_loss: bool = False
    consumer: dict[str, Any] = field(default_factory=dict)


class Mirror:
    """A mirror of a cluster. `run` copies; between its calls of `stop` the facts can be read.

    `status`: as written to `kafkafs.mirror`. `gaps`: the number of gaps that this run has named.
    `copied_bytes`, `copied_offsets`: of this run, without gaps between batches. These and `left` do
    not count the topic of committed offsets. `point`: the last restore point, with its name.
    `faults`: a line for each topic and partition that cannot be copied, if the last restore point
    is not valid, and if the cluster cannot be reached.
    """

    status: MirrorFile
    _manager: LogManager
    _rounds: Rounds
    _consumer: Consumer
    _stop: Callable[[], bool]
    _report: Callable[[str], None]
    _progress: Callable[[Progress], None] | None
    _points: Points

    def __init__(self, cluster: Cluster, data_dir: str, options: Options) -> None:
        self._cluster = cluster
        self._path = os.path.abspath(data_dir)
        self._options = options
        self.gaps = self.copied_bytes = self.copied_offsets = 0
        self._copies: dict[TopicPartition, Copy] = {}
        self._policies: dict[str, Policy] = {}
        self.faults: dict[str, str] = {}
        self.point: tuple[str, Point] | None = None
        self._began_ms = 0
        # The partitions whose copies could not begin at the last look.
        self._without_start: set[TopicPartition] = set()
        # The copies that wait while their logs are compacted.
        self._busy: set[Copy] = set()
        # The leaders that could not be reached since the last look. Each is waited for once.
        self._silent: dict[HostPort, str] = {}
        # Whether the topic of committed offsets is copied; None: the cluster does not have it yet.
        self._copies_groups: bool | None = None

    @property
    def waiting(self) -> dict[tuple[str, int], str]:
        """Why partitions are not copied."""
        return {each: copy.reason for each, copy in self._copies.items() if copy.reason}

    @property
    def left(self) -> int:
        """The number of offsets that the cluster has and the copies have not."""
        return sum(
            max(copy.source_end - copy.position, 0)
            for each, copy in self._copies.items()
            if each.topic != paths.CONSUMER_OFFSETS
        )

    @property
    def is_complete(self) -> bool:
        """Whether each copy has all records of the cluster, or waits."""
        return all(copy.is_at_end or copy.reason for copy in self._copies.values())

    def run(
        self,
        until_caught_up: bool,
        stop: Callable[[], bool],
        report: Callable[[str], None],
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Copy until `stop` returns True, or until the copies have what the cluster had at first.

        `stop`: called when the directory is open, after each round of answers, and in a round that
        takes long. `report` gets a line for each gap and each partition that waits. `progress`: for
        `LogManager.open`. After the start, a cluster that cannot be reached is no error. Errors:
        MirrorRefused, ClientError; those of `LogManager.open` and OSError of the directory.
        """
        self._stop, self._report, self._progress = stop, report, progress
        os.makedirs(self._path, exist_ok=True)
        self._cluster.refresh()
        while not self._session(until_caught_up=until_caught_up):
            pass

    def _session(self, *, until_caught_up: bool) -> bool:
        """Copy until the run ends, or a topic was created again; return whether the run ends."""
        metadata = self._cluster.metadata
        of_groups = self._begin(metadata)
        with (
            LogManager.open(self._path, mirrors=True, progress=self._progress) as self._manager,
            self._consumer_of_session() as self._consumer,
            Lookups[Found](self._cluster) as lookups,
            Lookups[Asked](self._cluster) as asking,
            closing(Compaction(self._manager)) as compaction,
        ):
            self._copies.clear()
            self._busy.clear()
            self._policies.clear()
            self._began_ms = self._manager.clock_ms()
            self._rounds = Rounds()
            self._create(metadata)
            if of_groups is not None:
                self._take_groups(of_groups)
            if until_caught_up:
                self._set_targets(each for each, copy in self._copies.items() if not copy.reason)
            self._points = Points(self._manager, asking, self.status, self._copies)
            try:
                return self._copy(lookups, compaction, until_caught_up=until_caught_up)
            finally:
                self._write_status()

    def _consumer_of_session(self) -> Consumer:
        # Without ids, another topic of the name may be found each time that a leader is found.
        has_ids = NO_ID not in self.status.ids.values()
        return Consumer(self._cluster, {}, retries=has_ids, **self._options.consumer)

    def _copy(
        self,
        lookups: Lookups[Found],
        compaction: Compaction,
        *,
        until_caught_up: bool,
    ) -> bool:
        manager, consumer = self._manager, self._consumer
        housekeeping = Housekeeping(manager)
        next_look = manager.monotonic_ms() + _LOOK_MS
        next_settings = manager.monotonic_ms() + _SETTINGS_MS
        next_groups = manager.monotonic_ms() + _GROUPS_MS
        has_point = False
        while not self._stop():
            for copy in [each for each in self._busy if not each.log.cleaning]:
                self._busy.remove(copy)
                self._end_wait(copy)
                self._read_on(copy)
            is_caught_up = until_caught_up and all(
                (copy.reason and copy not in self._busy)
                or (copy.is_answered and copy.position >= copy.target)
                for copy in self._copies.values()
            )
            if is_caught_up and not compaction.begin() and not self._points.is_under_way:
                if has_point:
                    # The copies have all, also if a later look has failed.
                    self.faults.pop("cluster", None)
                    self._follow_deletes()
                    break
                has_point = True
                self._points.begin(self._cluster.metadata.topics)
            self._rounds.begin(manager.clock_ms())
            for each in consumer.poll():
                self._rounds.begin(manager.clock_ms())
                self._take(self._copies[each.partition], each)
            housekeeping.run()
            compaction.run()
            self._take_point()
            now_ms = manager.monotonic_ms()
            if (found := lookups.take()) is not None and self._look(found):
                return False
            if now_ms >= next_look and not lookups.is_under_way:
                next_look = now_ms + _LOOK_MS
                names: set[str] = set()
                if now_ms >= next_settings:
                    next_settings, names = now_ms + _SETTINGS_MS, {*self.status.ids}
                with_groups = self._copies_groups is not True and now_ms >= next_groups
                if with_groups:
                    next_groups = now_ms + _GROUPS_MS
                known = {*self.status.partitions}
                lookups.begin(partial(look_up, Wanted(self._patterns, known, names, with_groups)))
        return True

    def _take_point(self) -> None:
        points = self._points
        points.run(self._cluster.metadata.topics)
        self.point = points.last or self.point
        if points.fault:
            self._say_once("point", points.fault)
        else:
            self.faults.pop("point", None)

    # -- topics ------------------------------------------------------------------------------------

    def _begin(self, metadata: Metadata) -> GroupFacts | None:
        """Read or begin `kafkafs.mirror`, with the starts of all copies. Return what the cluster
        says about groups, unless it was not asked, as their topic is copied.
        """
        given = mirror_file.read(Files(self._path), self._path)
        cluster_id = metadata.cluster_id or NO_ID
        with alone(self._path, mirrors=given is not None) as files:
            if given is None:
                topics.begin(files, self._path)
                given = MirrorFile(cluster_id, "", ())
            self.status = given
            is_first = not given.topics
            self._check_cluster(metadata)
            given.source, given.topics = self._options.source, self._options.patterns
            of_groups = None
            self._check_own_offsets(files)
            if paths.CONSUMER_OFFSETS in {*given.ids, *given.topics}:
                self._copies_groups = True
            else:
                of_groups = groups.ask(self._cluster)
                self._choose_source_of_groups(files, of_groups)
            found = topics.wanted(metadata, self._patterns)
            for name in topics.created_again(files, self._path, given, found):
                kept = topics.set_aside(files, self._path, given, name)
                self._report(
                    f"{name}: the topic was created again; the copy of the old one is {kept}"
                )
            start = self._options.start if is_first else EARLIEST
            self._add_starts(files, metadata, self._ask_starts(metadata, start), is_first=is_first)
        return of_groups

    def _check_cluster(self, metadata: Metadata) -> None:
        if self.status.cluster != (metadata.cluster_id or NO_ID):
            reason = f"this directory mirrors cluster {self.status.cluster}"
            reason += f", but {self._options.source} is cluster {metadata.cluster_id}"
            raise topics.MirrorRefused(reason, path=self._path)

    def _check_own_offsets(self, files: Files) -> None:
        """Check that no topic of committed offsets is to be copied that this mirror writes itself.
        Errors: MirrorRefused, OSError.
        """
        name, given = paths.CONSUMER_OFFSETS, self.status
        is_here = name in paths.partitions_in(files.scan(self._path))
        if is_here and name in given.topics and name not in given.ids:
            reason = f"this mirror has a topic {name} of its own, with the offsets that groups had "
            reason += "in the cluster. To copy the topic of the cluster, begin a new mirror"
            raise topics.MirrorRefused(reason, path=self._path)

    @property
    def _patterns(self) -> tuple[str, ...]:
        """The patterns of all topics that are copied."""
        offsets = (paths.CONSUMER_OFFSETS,) if self._copies_groups else ()
        return (*self.status.topics, *offsets)

    def _choose_source_of_groups(self, files: Files, found: GroupFacts) -> None:
        """Decide whether the topic of committed offsets is copied, unless that is known. Errors:
        OSError.
        """
        if self._copies_groups is not None:
            return
        name = paths.CONSUMER_OFFSETS
        is_here = name in paths.partitions_in(files.scan(self._path))
        self._copies_groups = False if is_here else found.may_read
        if self._copies_groups is False:
            reason = "may not read the topic"
            if found.may_read:
                reason = "did before. To copy the topic, which may be read now, begin a new mirror"
            self._report(
                f"{name}: this mirror asks for the offsets of groups every 30 s, as it {reason}"
            )

    def _take_groups(self, found: GroupFacts) -> None:
        """Commit the offsets that groups have in the cluster, unless their topic is copied."""
        failed = ""
        if not self._copies_groups and isinstance(found.offsets, ClientError):
            failed = str(found.offsets)
        elif self._copies_groups is False:
            assert not isinstance(found.offsets, ClientError)
            reasons = groups.commit_all(self._manager, found.offsets)
            failed = "; ".join(f"{name!r}: {reason}" for name, reason in reasons.items())
        if failed:
            self._say_once("groups", f"the offsets of groups cannot be copied: {failed}")
        else:
            self.faults.pop("groups", None)

    def _ask_starts(
        self, metadata: Metadata, start: int
    ) -> dict[TopicPartition, int | ClientError]:
        """Ask for the starts of copies that do not exist yet. Errors: ClientError, unless they
        begin with the partition.
        """
        new = topics.without_copies(metadata, self._patterns, self.status.partitions)
        starts = {each: EARLIEST if each.topic == paths.CONSUMER_OFFSETS else start for each in new}
        offsets = topics.start_offsets(self._cluster, starts)
        for each, offset in offsets.items():
            if isinstance(offset, ClientError) and starts[each] != EARLIEST:
                raise offset
        return offsets

    def _add_starts(
        self,
        files: Files,
        metadata: Metadata,
        offsets: Mapping[TopicPartition, int | ClientError],
        *,
        is_first: bool,
    ) -> None:
        """Write the starts of copies, and name the partitions that have none yet. If a topic was
        created again, and the copy of the old one cannot be renamed, the copy gets no partitions.
        """
        offsets = {
            each: offset
            for each, offset in offsets.items()
            if not self._is_another(metadata.topics[each.topic])
        }
        for each in self._without_start - offsets.keys():
            self.faults.pop(str(each), None)
        self._without_start = {
            each for each, offset in offsets.items() if isinstance(offset, ClientError)
        }
        for each, offset in offsets.items():
            if isinstance(offset, ClientError):
                self._say_once(str(each), f"{each}: waits: {rules.reason_of(offset)}")
                continue
            self.faults.pop(str(each), None)
            topic_id = topics.id_text(metadata.topics[each.topic].id)
            self.status.ids.setdefault(each.topic, topic_id)
            self.status.partitions[each] = MirroredPartition(start=offset)
        if is_first or offsets.keys() & self.status.partitions.keys():
            mirror_file.write(files, self._path, self.status)

    def _is_another(self, topic: Topic) -> bool:
        return topics.is_another(self.status.ids.get(topic.name, NO_ID), topic)

    def _create(self, metadata: Metadata) -> None:
        """Create the topics and partitions that are missing here, and read from all."""
        found = topics.wanted(metadata, self._patterns)
        for name in self.status.topics:
            is_name = not any(letter in name for letter in "*?[")
            if name in found:
                self.faults.pop(name, None)
            elif is_name and name not in self.status.ids:
                self._say_once(name, f"the cluster has no topic {name}, or it may not be read")
        new = found.keys() & self.status.ids.keys() - self._policies.keys()
        self._take_settings(settings_of(self._cluster, sorted(new)))
        made: set[str] = set()
        for name, number in sorted(self.status.partitions):
            each = TopicPartition(name, number)
            if each in self._copies or not topics.is_wanted(name, self._patterns):
                continue
            try:
                if name not in made and name in found and not self._is_another(found[name]):
                    known = self._manager.topics.get(name)
                    topic_id = known.id if known is not None else self.status.ids[name]
                    count = max(found[name].partitions) + 1
                    settings = {}
                    if name == paths.CONSUMER_OFFSETS:
                        settings = self._manager.offsets_topic_settings
                    given_id = None if topic_id == NO_ID else topic_id
                    self._manager.create_mirrored_topic(name, given_id, count, settings)
                    made.add(name)
                self._open(each)
                self.faults.pop(str(each), None)
            except (OSError, StorageError) as error:
                self._say_once(str(each), f"{each}: {error}")

    def _open(self, each: TopicPartition) -> None:
        """Begin to read a partition whose start is known."""
        given = self.status.partitions[each]
        log = self._manager.log(*each)
        if log.is_new and given.start > 0:
            self._manager.start_at(log, given.start)
        copy = Copy(each, log, given.start, given.at_end_ms, given.source_start, given.source_end)
        self._copies[each] = copy
        self._read_on(copy)

    def _read_on(self, copy: Copy) -> None:
        """Fetch a partition from our log end on, or after a gap."""
        entries = copy.log.epochs.entries
        # The leader may have another epoch at the offsets that were skipped.
        epoch = entries[-1][0] if entries and not copy.is_skipping else NO_EPOCH
        name = copy.partition.topic
        topic = self._cluster.metadata.topics.get(name)
        known_id = self.status.ids[name]
        copy.is_answered = False
        if topic is None or topic.error:
            code = UNKNOWN_TOPIC if topic is None else topic.error
            self._wait(copy, rules.reason_of(BrokerError(code, name)))
        elif known_id == NO_ID and (reason := self._why_another(copy)):
            self._wait(copy, reason)
        elif topics.is_another(known_id, topic):
            kept = mirror_file.kept_name(name, known_id)
            reason = f"the topic was created again, but its copy cannot get the name {kept}"
            self._wait(copy, reason)
        elif known_id not in (NO_ID, topics.id_text(topic.id)):
            self._wait(copy, "a broker has listed the topic without its id")
        else:
            copy.open_transactions = open_transactions(copy.log)
            copy.paused_at = copy.log.log_end_offset
            topic_id = NO_TOPIC_ID if known_id == NO_ID else topic.id
            position = Position(copy.position, epoch, topic_id=topic_id)
            self._consumer.add(copy.partition, position)

    def _why_another(self, copy: Copy) -> str:
        """Return why the cluster has another topic of the name, or cannot be asked; "": neither."""
        leader = None
        try:
            leader = self._cluster.metadata.leader_of(copy.partition)
            if leader in self._silent:
                return self._silent[leader]
            if self._has_batch_before(copy, copy.log.log_end_offset):
                return ""
            found = self._compare(copy)
            if isinstance(found, Truncate) and not self._leaves_nothing(copy, found.offset):
                return ""
        except (OSError, StorageError) as error:
            if isinstance(error, BrokerUnreachable) and leader is not None:
                self._silent[leader] = str(error)
            return str(error)
        return _ANOTHER

    def _leaves_nothing(self, copy: Copy, offset: int) -> bool:
        """Return whether the leader has no records of ours below the offset of a truncation, though
        an unclean election leaves a part of them.
        """
        return offset <= copy.log.log_start_offset or not self._has_batch_before(copy, offset)

    def _has_batch_before(self, copy: Copy, offset: int) -> bool:
        policy = self._policies.get(copy.partition.topic, Policy())
        return has_batch_before(self._cluster, copy.partition, copy.log, offset, policy)

    def _take_settings(self, found: Mapping[str, TopicSettings | ClientError]) -> None:
        """Take the settings of topics: some decide about gaps, and those that are set are noted."""
        for name, each in found.items():
            if isinstance(each, TopicSettings) or name not in self._policies:
                self._policies[name] = Policy.of(each)
                if name == paths.CONSUMER_OFFSETS and not isinstance(each, TopicSettings):
                    # A broker creates it as a compacted topic.
                    self._policies[name] = Policy(is_compacted=True)
            if isinstance(each, TopicSettings) and name in self.status.ids:
                self.status.settings[name] = each.set_here

    def _set_targets(self, wanted: Iterable[TopicPartition]) -> None:
        """Ask for the ends up to which a run copies partitions. Later answers only lower them."""
        found = list_offsets(self._cluster, dict.fromkeys(wanted, LATEST))
        for each, offset in found.items():
            if isinstance(offset, Offset):
                target = self._copies[each].target
                self._copies[each].target = min(target or offset.offset, offset.offset)
            else:
                self._wait(self._copies[each], rules.reason_of(offset))

    def _look(self, found: Found | ClientError) -> bool:
        """Look at the metadata; return whether a topic was created again."""
        self._silent.clear()
        if isinstance(found, ClientError):
            self._say_once("cluster", str(found))
        else:
            self.faults.pop("cluster", None)
            self._cluster.metadata = found.metadata
            self._check_cluster(found.metadata)
            if found.groups is not None:
                self._choose_source_of_groups(self._manager.files, found.groups)
            wanted = topics.wanted(found.metadata, self._patterns)
            if topics.created_again(self._manager.files, self._path, self.status, wanted):
                return True
            self._add_starts(self._manager.files, found.metadata, found.starts, is_first=False)
            self._take_settings(found.settings)
            self._create(found.metadata)
            if found.groups is not None:
                self._take_groups(found.groups)
        for copy in self._copies.values():
            if copy.reason and topics.has_leader(self._cluster.metadata, copy.partition):
                self._read_on(copy)
        self._follow_deletes()
        self._write_status()
        return False

    def _follow_deletes(self) -> None:
        """Raise log starts to those of the cluster, if that is wanted."""
        if not self._options.follow_deletes:
            return
        with self._manager.duties.attempt("deletion as in the cluster"):
            kept = kept_starts(self._manager)
            for copy in self._copies.values():
                log = copy.log
                offset = min(copy.source_start, log.log_end_offset)
                if offset > log.log_start_offset and log.topic not in paths.INTERNAL_TOPICS:
                    with self._manager.duties.attempt("deletion as in the cluster", log.name):
                        delete_records(self._manager, log, offset, Task(), kept)

    # -- records -----------------------------------------------------------------------------------

    def _take(self, copy: Copy, each: Fetched) -> None:
        """Process the answer about a partition."""
        try:
            if each.diverging is not None:
                log = copy.log
                self._do(
                    copy,
                    rules.on_divergence(log.log_end_offset, log.epochs.entries, *each.diverging),
                )
            elif each.error is not None:
                failure = type(each.error), copy.position
                copy.attempts = copy.attempts + 1 if failure == copy.failure else 1
                copy.failure = failure
                loss = self._options.accept_loss
                decision = rules.on_error(
                    each.error, copy.position, each.next_offset, copy.attempts, accept_loss=loss
                )
                self._do(copy, decision)
            else:
                self._take_records(copy, each)
        except (OSError, StorageError) as error:
            if copy.log.closed:
                raise
            self._wait(copy, str(error))
            if copy.log.cleaning:
                self._busy.add(copy)

    def _take_records(self, copy: Copy, each: Fetched) -> None:
        copy.source_start, copy.source_end = each.log_start_offset, each.high_watermark
        copy.attempts = 0
        if copy.is_skipping and (each.records or not copy.is_answered):
            # The leader was asked without an epoch, and cannot tell whether our log is its own.
            found = self._compare(copy)
            if not isinstance(found, Again):
                self._do(copy, found)
                return
        if each.records and not self._append(copy, each):
            return
        self._end_wait(copy)
        copy.is_answered = True
        if copy.position >= copy.source_end:
            self._abort_lost_transactions(copy, each.last_stable_offset)
            self._note_end(copy, self._manager.clock_ms())
            copy.is_at_end = True
            if copy.position < copy.target:
                # An unclean election has lost records, or the high watermark is an old one.
                self._set_targets([copy.partition])
            return
        self._leave_end(copy)
        is_noted = self._began_ms <= copy.at_end_ms <= self._manager.clock_ms()
        if 0 < copy.target <= copy.position and not is_noted:
            self._note_end(copy, self._began_ms)

    def _append(self, copy: Copy, each: Fetched) -> bool:
        """Name the gaps before records and between them, and append; return False if it waits."""
        log, end = copy.log, copy.log.log_end_offset
        parts = parse_as_follower(log, each.records)
        found = holes(parts, end)
        if found and copy.open_transactions:
            size = _size_below(each.records, found[0][0])
            _append_parts(copy, parse_as_follower(log, each.records[:size]))
            self._abort_removed_transactions(copy, found[0][1])
            parts = parse_as_follower(log, each.records[size:])
        if found:
            policy = self._policies.get(log.topic, Policy())
            loss = self._options.accept_loss
            decision = rules.on_records(
                found, log.gaps, each.log_start_offset, policy, accept_loss=loss
            )
            if isinstance(decision, Wait):
                self._wait(copy, decision.reason)
                return False
            if decision.gaps:
                self._name(copy, *decision.gaps)
            elif log.durability.directory_unsynced and any(
                gap.last >= found[0][0] for gap in log.gaps
            ):
                # A run that was killed may have named them, and not synced the directory.
                log.flush()
        _append_parts(copy, parts)
        if log.durability.flush_due:
            log.flush()
        if log.topic != paths.CONSUMER_OFFSETS:
            self.copied_bytes += len(each.records)
            without_records = sum(last + 1 - first for first, last in found)
            self.copied_offsets += log.log_end_offset - end - without_records
        return True

    def _abort_removed_transactions(self, copy: Copy, last: int) -> None:
        """Abort transactions in a hole, which begins at our log end: those that were open before a
        pause, if the cleaner of the source has removed all their records.
        """
        log = copy.log
        policy = self._policies.get(log.topic, Policy())
        is_cleaned = policy.is_compacted and copy.position == log.log_end_offset
        for producer_id, first in copy.open_transactions.items() if is_cleaned else ():
            producer = log.producers.by_id.get(producer_id)
            end = log.log_end_offset
            # A record that came after the pause has its marker after it. That of records below the
            # log start may be anywhere after them.
            if (
                copy.source_start <= first
                and end <= last
                and producer is not None
                and producer.transaction_first_offset == first
                and producer.last_offset < copy.paused_at
                and not has_records(
                    self._cluster, copy.partition, producer_id, first, end, self._stop
                )
            ):
                self._name(copy, Hole("aborted", end, end))
                lost = LostMarker(producer, end, log.epochs.latest, 0)
                _append_parts(copy, parse_as_follower(log, lost.marker()))
        copy.open_transactions = {}

    def _abort_lost_transactions(self, copy: Copy, source_stable: int) -> None:
        """Abort transactions whose markers the source has no more."""
        log = copy.log
        key = f"{copy.partition}: transaction"
        first = log.producers.first_undecided_offset
        if first is None or first >= source_stable:
            copy.needed_bytes = 0
            self.faults.pop(key, None)
            return
        if not copy.source_start < source_stable <= copy.source_end:
            # The log start there may be in a transaction that is open.
            if copy.source_start == copy.source_end:
                self._say_once(
                    key,
                    f"{copy.partition}: the cluster has no records, so nothing shows whether the "
                    f"transaction that begins at offset {first} has ended: committed records after "
                    "it are not shown",
                )
            return
        if copy.needed_bytes and not _has_room(log, copy.needed_bytes):
            return
        copy.needed_bytes = 0
        if lost := lost_markers(log, source_stable, copy.searched_to):
            check_not_compacted(log)
            moved_bytes = 2 * lost[0].moved_bytes
            if _has_room(log, moved_bytes):
                self._write_markers(copy, lost)
            else:
                copy.needed_bytes = moved_bytes
        first = log.producers.first_undecided_offset
        if first is None or first >= source_stable:
            self.faults.pop(key, None)
            return
        if copy.needed_bytes:
            reason = "The disk has no room to move the records after it"
        else:
            copy.searched_to = log.log_end_offset
            reason = "No offset is free for it in the last 1 GiB here"
        self._say_once(
            key,
            f"{copy.partition}: the end of a transaction that begins at offset {first} is not in "
            f"the cluster any more. {reason}: committed records after it are not shown",
        )

    def _write_markers(self, copy: Copy, lost: Sequence[LostMarker]) -> None:
        """Abort transactions at offsets before others that the log has."""
        log = copy.log
        before = cut_files(log.files, log.directory, paths.DIVERGED)
        self._name(copy, *(Hole("aborted", each.offset, each.offset) for each in lost))
        # If that fails, the copy reads on at the end of the log, and not after skipped offsets.
        skip_to, copy.skip_to, copy.searched_to = copy.skip_to, 0, 0
        try:
            write_markers(self._manager, log, lost, time.time_ns())
        except (OSError, StorageError):
            copy.markers = Markers(log)
            kept = {*cut_files(log.files, log.directory, paths.DIVERGED)} - {*before}
            names = ", ".join(sorted(os.path.basename(each) for each in kept))
            line = f"{copy.partition}: records from offset {log.log_end_offset} on are in {names}"
            if kept:
                self._say_once(f"{copy.partition}: kept", line)
            raise
        for each in lost:
            producer = each.producer
            copy.markers.note_marker(producer.producer_id, each.offset, producer.epoch, ABORT)
        copy.skip_to = skip_to

    def _note_end(self, copy: Copy, at_ms: int) -> None:
        """Note that the copy has all that the source had at a time."""
        log = copy.log
        end = log.log_end_offset
        if copy.position > end and (hole := rules.without_records(end, copy.position, log.gaps)):
            self._name(copy, hole)
        now_ms = self._manager.clock_ms()
        since_ms = self._complete_until_ms(copy, now_ms)
        if since_ms == UNKNOWN:
            since_ms = log.created_ns // 1_000_000
        policy = self._policies.get(log.topic, Policy())
        is_empty = log.log_start_offset == end
        if not is_empty and rules.may_show_deleted(policy, since_ms, now_ms):
            self._name(copy, Hole("tombstones", log.log_start_offset, end - 1))
        copy.at_end_ms = at_ms

    def _complete_until_ms(self, copy: Copy, now_ms: int) -> int:
        """Return when the copy last had all records of the source."""
        if not copy.is_at_end:
            return copy.at_end_ms
        return self._rounds.complete_until_ms(copy.at_end_ms, now_ms)

    def _leave_end(self, copy: Copy) -> None:
        if copy.is_at_end:
            copy.at_end_ms = self._complete_until_ms(copy, self._manager.clock_ms())
            copy.is_at_end = False

    # -- decisions ---------------------------------------------------------------------------------

    def _do(self, copy: Copy, decision: Skip | Truncate | BeginAt | Compare | Again | Wait) -> None:
        """Carry out the decision about a partition that is not fetched any more."""
        match decision:
            case Wait(reason):
                self._wait(copy, reason)
                return
            case Compare():
                self._do(copy, self._compare(copy))
                return
            case Skip(offset, damaged):
                if damaged:
                    self._name(copy, Hole("damaged", copy.position, offset - 1))
                copy.skip_to = offset
            case Truncate(offset):
                log = copy.log
                if self.status.ids[log.topic] == NO_ID and self._leaves_nothing(copy, offset):
                    self._wait(copy, _ANOTHER)
                    return
                check_not_compacted(log)
                self._name(copy, Hole("diverged", offset, log.log_end_offset - 1))
                self._truncate(copy, offset)
            case BeginAt(offset):
                self._truncate(copy, offset)
        self._read_on(copy)

    def _truncate(self, copy: Copy, offset: int) -> None:
        """Remove the records from an offset on."""
        copy.skip_to = copy.searched_to = copy.needed_bytes = 0
        copy.start = min(copy.start, offset, copy.log.log_start_offset)
        # A new run lets a log without records begin at the start that the file has.
        self._write_status()
        self._manager.truncate(copy.log, offset)
        copy.markers = Markers(copy.log)
        self._points.drop()

    def _compare(self, copy: Copy) -> Skip | Truncate | BeginAt | Again | Wait:
        """Ask the leader where its log begins, and where our last epoch ends there."""
        partition, log = copy.partition, copy.log
        earliest = list_offsets(self._cluster, {partition: EARLIEST})[partition]
        latest = list_offsets(self._cluster, {partition: LATEST})[partition]
        entries, epoch_end = log.epochs.entries, None
        if entries:
            wanted = {partition: entries[-1][0]}
            epoch_end = end_offsets_of_epochs(self._cluster, wanted)[partition]
        found = rules.on_comparison(
            log.log_end_offset,
            copy.position,
            entries,
            earliest,
            latest,
            epoch_end,
            is_empty=not log.size,
        )
        if isinstance(found, Again) and copy.attempts >= _ATTEMPTS:
            return Wait("the leader refuses an offset that its log has")
        return found

    def _wait(self, copy: Copy, reason: str) -> None:
        """Copy nothing of a partition until the next look at the metadata."""
        self._consumer.drop(copy.partition)
        self._leave_end(copy)
        if reason != copy.reason:
            self._report(f"{copy.partition}: waits: {reason}")
        copy.reason = reason

    def _end_wait(self, copy: Copy) -> None:
        if copy.reason:
            self._report(f"{copy.partition}: the copy goes on")
            copy.reason = ""

    def _name(self, copy: Copy, *holes: Hole) -> None:
        """Write gaps, durably, and report those that are new."""
        now_ms = self._manager.clock_ms()
        for gap in copy.log.note_gaps(*(Gap(*hole, now_ms) for hole in holes)):
            self.gaps += 1
            self._report(f"{copy.partition}: {_WORDS[gap.kind].format(gap.first, gap.last)}")

    def _say_once(self, of: str, line: str) -> None:
        if self.faults.get(of) != line:
            self.faults[of] = line
            self._report(line)

    # -- kafkafs.mirror ----------------------------------------------------------------------------

    def _write_status(self) -> None:
        """Write the state of all partitions."""
        now_ms = self._manager.clock_ms()
        self._rounds.begin(now_ms)
        for each, copy in self._copies.items():
            self.status.partitions[each] = MirroredPartition(
                copy.start,
                copy.log.log_end_offset,
                copy.source_start,
                copy.source_end,
                self._complete_until_ms(copy, now_ms),
                "waiting" if copy.reason else "ok",
                copy.reason,
            )
        mirror_file.write(self._manager.files, self._path, self.status)


def _has_room(log: Log, size: int) -> bool:
    try:
        log.files.check_free(log.directory, size)
    except OSError:
        return False
    return True


def _append_parts(copy: Copy, parts: list[Part]) -> None:
    try:
        append_parts(copy.log, parts, time.time_ns())
    except (OSError, StorageError):
        # The first of them may be appended.
        copy.markers = Markers(copy.log)
        raise
    for part in parts:
        copy.markers.note(part.producers)


def _size_below(records: memoryview, offset: int) -> int:
    """Return the size of the first batches, which are below an offset."""
    size = 0
    while size < len(records) and parse_header(records, size).base_offset < offset:
        size += parse_header(records, size).size
    return size
