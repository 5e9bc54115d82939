"""Copies the records of partitions: takes what the leaders send, and appends it to our logs.

`rules` decide what is done about each answer. A partition that cannot be copied waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_client.addresses import HostPort
from kafka_client.cluster import UNKNOWN_TOPIC, Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.errors import BrokerError, BrokerUnreachable, ClientError
from kafka_client.fetch import NO_EPOCH, NO_TOPIC_ID, Fetched, Position
from kafka_client.requests import LATEST, Offset, TopicSettings, list_offsets
from kafkafs.mirror import rules, topics, transactions
from kafkafs.mirror.compare import (
    compare,
    has_batch_before,
    has_our_end,
    is_another_topic,
    leaves_nothing,
)
from kafkafs.mirror.cuts import Markers
from kafkafs.mirror.facts import Copy, Facts
from kafkafs.mirror.points import Points
from kafkafs.mirror.rules import Again, BeginAt, Compare, Hole, Policy, Rounds, Skip, Truncate, Wait
from storage import paths
from storage.errors import StorageError
from storage.log.append import Part, append_parts, holes, parse_as_follower
from storage.log.log import Log
from storage.log.truncate import check_not_compacted
from storage.manager import LogManager
from storage.record.control import ABORT
from storage.record.header import parse_header
from storage.segment.cut import cut_files
from storage.state import mirror_file, point_file
from storage.state.gaps_file import Gap
from storage.state.mirror_file import NO_ID, UNKNOWN, MirroredPartition

_ANOTHER: Final = "the cluster has other records at our last offset: is it another topic?"


@dataclass
class Copier:
    """Copies partitions while the directory is open.

    `stop`: called in work that takes long. `accept_loss`: skip damaged records. `policies`: those
    of the topics that are copied.
    """

    _cluster: Cluster
    _manager: LogManager
    _consumer: Consumer
    _points: Points
    _facts: Facts
    _stop: Callable[[], bool]
    _accept_loss: bool

    def __post_init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self._began_ms = self._manager.clock_ms()
        self._rounds = Rounds()
        # The copies that wait while their logs are compacted.
        self._busy: set[Copy] = set()
        # The leaders that could not be reached since the last retry. Each is waited for once.
        self._silent: dict[HostPort, str] = {}

    @property
    def is_caught_up(self) -> bool:
        """Whether each copy has reached its target, or waits."""
        return all(
            (copy.reason and copy not in self._busy)
            or (copy.is_answered and copy.position >= copy.target)
            for copy in self._facts.copies.values()
        )

    def take_settings(self, found: Mapping[str, TopicSettings | ClientError]) -> None:
        """Take the settings of topics: some decide about gaps, and those that are set are noted."""
        status = self._facts.status
        for name, each in found.items():
            if not isinstance(each, TopicSettings):
                # A broker creates the topic of committed offsets as a compacted one.
                is_compacted = True if name == paths.CONSUMER_OFFSETS else None
                self.policies.setdefault(name, Policy(is_compacted))
                continue
            self.policies[name] = Policy.of(each)
            if name in status.ids:
                status.settings[name] = each.set_here

    def add(self, each: TopicPartition) -> None:
        """Begin to read a partition whose start is known."""
        given = self._facts.status.partitions[each]
        log = self._manager.log(*each)
        if log.is_new and given.start > 0:
            self._manager.start_at(log, given.start)
        copy = self._facts.copies[each] = Copy(
            *(each, log, Markers(log), given.start),
            *(given.at_end_ms, given.source_start, given.source_end),
        )
        self._read_on(copy)

    def set_targets(self, wanted: Iterable[TopicPartition]) -> None:
        """Ask for the ends up to which a run copies partitions. Later answers only lower them."""
        found = list_offsets(self._cluster, dict.fromkeys(wanted, LATEST))
        for each, offset in found.items():
            copy = self._facts.copies[each]
            if isinstance(offset, Offset):
                copy.target = min(copy.target or offset.offset, offset.offset)
            else:
                self._wait(copy, rules.reason_of(offset))

    def poll(self) -> None:
        """Take the next answers of the leaders."""
        for copy in [each for each in self._busy if not each.log.cleaning]:
            self._busy.remove(copy)
            self._end_wait(copy)
            self._read_on(copy)
        self._rounds.begin(self._manager.clock_ms())
        for each in self._consumer.poll():
            self._rounds.begin(self._manager.clock_ms())
            self._take(self._facts.copies[each.partition], each)

    def retry(self) -> None:
        """Read from the partitions that wait, if they have leaders."""
        self._silent.clear()
        for copy in self._facts.copies.values():
            if copy.reason and topics.has_leader(self._cluster.metadata, copy.partition):
                self._read_on(copy)

    def write_status(self) -> None:
        """Write the state of all partitions to `kafkafs.mirror`."""
        now_ms = self._manager.clock_ms()
        self._rounds.begin(now_ms)
        for each, copy in self._facts.copies.items():
            self._facts.status.partitions[each] = MirroredPartition(
                *(copy.start, copy.log.log_end_offset, copy.source_start, copy.source_end),
                self._complete_until_ms(copy, now_ms),
                "waiting" if copy.reason else "ok",
                copy.reason,
            )
        mirror_file.write(self._manager.files, self._manager.path, self._facts.status)

    # -- where to read -----------------------------------------------------------------------------

    def _read_on(self, copy: Copy) -> None:
        """Fetch a partition from our log end on, or after a gap."""
        entries = copy.log.epochs.entries
        # The leader may have another epoch at the offsets that were skipped.
        epoch = entries[-1][0] if entries and not copy.is_skipping else NO_EPOCH
        name = copy.partition.topic
        topic = self._cluster.metadata.topics.get(name)
        known_id = self._facts.status.ids[name]
        copy.is_answered = False
        if topic is None or topic.error:
            code = UNKNOWN_TOPIC if topic is None else topic.error
            self._wait(copy, rules.reason_of(BrokerError(code, name)))
        elif known_id == NO_ID and (reason := self._why_another(copy, topic.id)):
            self._wait(copy, reason)
        elif topics.is_another(self._facts.status, topic):
            kept = mirror_file.kept_name(name, known_id)
            reason = f"the topic was created again, but its copy cannot get the name {kept}"
            self._wait(copy, reason)
        elif known_id not in (NO_ID, topics.id_text(topic.id)):
            self._wait(copy, "a broker has listed the topic without its id")
        else:
            copy.open_transactions = transactions.open_transactions(copy.log)
            copy.paused_at = copy.log.log_end_offset
            topic_id = NO_TOPIC_ID if known_id == NO_ID else topic.id
            position = Position(copy.position, epoch, topic_id=topic_id)
            self._consumer.add(copy.partition, position)

    def _why_another(self, copy: Copy, topic_id: bytes) -> str:
        """Return why the cluster has another topic of the name, or cannot be asked; "": neither.
        Note the id of a topic that provably is that of our copy.
        """
        leader, name = None, copy.partition.topic
        try:
            leader = self._cluster.metadata.leader_of(copy.partition)
            if leader in self._silent:
                return self._silent[leader]
            if is_another_topic(self._cluster, copy, self._policy(copy)):
                return _ANOTHER
            new_id = topics.id_text(topic_id)
            may_have = new_id != NO_ID and self._was_complete(name)
            if may_have and has_our_end(self._cluster, copy, topic_id):
                self._facts.new_ids[name] = new_id
        except (OSError, StorageError) as error:
            if isinstance(error, BrokerUnreachable) and leader is not None:
                self._silent[leader] = str(error)
            return str(error)
        return ""

    def _was_complete(self, topic: str) -> bool:
        """Return whether each copy of a topic once had all records. Before that, the time of the
        file with the topic id decides about gaps.
        """
        partitions = self._facts.status.partitions.items()
        return all(each.at_end_ms != UNKNOWN for (name, _), each in partitions if name == topic)

    def _policy(self, copy: Copy) -> Policy:
        return self.policies.get(copy.partition.topic, Policy())

    # -- records -----------------------------------------------------------------------------------

    def _take(self, copy: Copy, each: Fetched) -> None:
        """Process the answer about a partition."""
        try:
            if each.diverging is not None:
                end, epochs = copy.log.log_end_offset, copy.log.epochs.entries
                self._do(copy, rules.on_divergence(end, epochs, *each.diverging))
            elif each.error is not None:
                failure = type(each.error), copy.position
                copy.attempts = copy.attempts + 1 if failure == copy.failure else 1
                copy.failure = failure
                loss = self._accept_loss
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
        copy.attempts = 0
        if each.records and not self._has_our_last_batch(copy):
            self._read_on(copy)
            return
        copy.source_start, copy.source_end = each.log_start_offset, each.high_watermark
        if copy.is_skipping and (each.records or not copy.is_answered):
            # The leader was asked without an epoch, and cannot tell whether our log is its own.
            found = compare(self._cluster, copy)
            if not isinstance(found, Again):
                self._do(copy, found)
                return
        if each.records and not self._append(copy, each):
            return
        self._end_wait(copy)
        copy.is_answered = True
        if copy.source_end <= copy.position < copy.target:
            # An unclean election has lost records, or the high watermark is an old one.
            self.set_targets([copy.partition])
            if copy.position < copy.target:
                self._consumer.read_from_leader(copy.partition)
                return
        if copy.position >= copy.source_end:
            self._abort_lost_transactions(copy, each.last_stable_offset)
            self._note_end(copy, self._manager.clock_ms())
            copy.is_at_end = True
            return
        self._leave_end(copy)
        is_noted = self._began_ms <= copy.at_end_ms <= self._manager.clock_ms()
        if 0 < copy.target <= copy.position and not is_noted:
            self._note_end(copy, self._began_ms)

    def _has_our_last_batch(self, copy: Copy) -> bool:
        """Return whether records that have arrived are of the topic of our copy. Between two
        answers, a topic without an id can be deleted and created again.
        """
        if self._facts.status.ids[copy.partition.topic] != NO_ID:
            return True
        end = copy.log.log_end_offset
        return has_batch_before(self._cluster, copy, end, self._policy(copy))

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
            policy, loss = self._policy(copy), self._accept_loss
            decision = rules.on_records(
                found, log.gaps, each.log_start_offset, policy, accept_loss=loss
            )
            if isinstance(decision, Wait):
                self._wait(copy, decision.reason)
                return False
            if decision:
                self._name(copy, *decision)
            elif log.durability.directory_unsynced and any(
                gap.last >= found[0][0] for gap in log.gaps
            ):
                # A run that was killed may have named them, and not synced the directory.
                log.flush()
        _append_parts(copy, parts)
        if log.durability.flush_due:
            log.flush()
        if log.topic != paths.CONSUMER_OFFSETS:
            self._facts.copied_bytes += len(each.records)
            without_records = sum(last + 1 - first for first, last in found)
            self._facts.copied_offsets += log.log_end_offset - end - without_records
        return True

    def _abort_removed_transactions(self, copy: Copy, last: int) -> None:
        """Abort transactions in a hole, which begins at our log end: those that were open before a
        pause, if the cleaner of the source has removed all their records.
        """
        log = copy.log
        is_cleaned = self._policy(copy).is_compacted and copy.position == log.log_end_offset
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
                and not transactions.has_records(
                    self._cluster, copy.partition, producer_id, first, end, self._stop
                )
            ):
                self._name(copy, Hole("aborted", end, end))
                lost = transactions.LostMarker(producer, end, log.epochs.latest, 0)
                _append_parts(copy, parse_as_follower(log, lost.marker()))
        copy.open_transactions = {}

    def _abort_lost_transactions(self, copy: Copy, source_stable: int) -> None:
        """Abort transactions whose markers the source has no more."""
        log = copy.log
        key = f"{copy.partition}: transaction"
        first = log.producers.first_undecided_offset
        if first is None or first >= source_stable:
            copy.needed_bytes = 0
            self._facts.end_fault(key)
            return
        if not copy.source_start < source_stable <= copy.source_end:
            # The log start there may be in a transaction that is open.
            if copy.source_start == copy.source_end:
                self._facts.add_fault(
                    key,
                    f"{copy.partition}: the cluster has no records, so nothing shows whether the "
                    f"transaction that begins at offset {first} has ended: committed records after "
                    "it are not shown",
                )
            return
        if copy.needed_bytes and not _has_room(log, copy.needed_bytes):
            return
        copy.needed_bytes = 0
        if lost := transactions.lost_markers(log, source_stable, copy.searched_to):
            check_not_compacted(log)
            moved_bytes = 2 * lost[0].moved_bytes
            if _has_room(log, moved_bytes):
                self._write_markers(copy, lost)
            else:
                copy.needed_bytes = moved_bytes
        first = log.producers.first_undecided_offset
        if first is None or first >= source_stable:
            self._facts.end_fault(key)
            return
        if copy.needed_bytes:
            reason = "The disk has no room to move the records after it"
        else:
            copy.searched_to = log.log_end_offset
            reason = "No offset is free for it in the last 1 GiB here"
        self._facts.add_fault(
            key,
            f"{copy.partition}: the end of a transaction that begins at offset {first} is not in "
            f"the cluster any more. {reason}: committed records after it are not shown",
        )

    def _write_markers(self, copy: Copy, lost: Sequence[transactions.LostMarker]) -> None:
        """Abort transactions at offsets before others that the log has."""
        log = copy.log
        before = cut_files(log.files, log.directory, paths.DIVERGED)
        self._name(copy, *(Hole("aborted", each.offset, each.offset) for each in lost))
        # If that fails, the copy reads on at the end of the log, and not after skipped offsets.
        skip_to, copy.skip_to, copy.searched_to = copy.skip_to, 0, 0
        try:
            transactions.write_markers(self._manager, log, lost, time.time_ns())
        except (OSError, StorageError):
            copy.markers = Markers(log)
            kept = {*cut_files(log.files, log.directory, paths.DIVERGED)} - {*before}
            names = ", ".join(sorted(os.path.basename(each) for each in kept))
            line = f"{copy.partition}: records from offset {log.log_end_offset} on are in {names}"
            if kept:
                self._facts.add_fault(f"{copy.partition}: kept", line)
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
        is_empty = log.log_start_offset == end
        if not is_empty and rules.may_show_deleted(self._policy(copy), since_ms, now_ms):
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
        if isinstance(decision, Compare):
            decision = compare(self._cluster, copy)
        match decision:
            case Wait(reason):
                self._wait(copy, reason)
                return
            case Skip(offset, damaged):
                if damaged:
                    self._name(copy, Hole("damaged", copy.position, offset - 1))
                copy.skip_to = offset
            case Truncate(offset):
                log = copy.log
                has_id = self._facts.status.ids[log.topic] != NO_ID
                if not has_id and leaves_nothing(self._cluster, copy, offset, self._policy(copy)):
                    self._wait(copy, _ANOTHER)
                    return
                check_not_compacted(log)
                lost = offset, log.log_end_offset - 1
                if lost != copy.diverged:
                    self._name(copy, Hole("diverged", *lost))
                    copy.diverged = lost
                self._truncate(copy, offset)
            case BeginAt(offset):
                self._truncate(copy, offset)
        self._read_on(copy)

    def _truncate(self, copy: Copy, offset: int) -> None:
        """Remove the records from an offset on."""
        copy.skip_to = copy.searched_to = copy.needed_bytes = 0
        copy.start = min(copy.start, offset, copy.log.log_start_offset)
        # A new run lets a log without records begin at the start that the file has.
        self.write_status()
        self._manager.truncate(copy.log, offset)
        copy.diverged = None
        copy.markers = Markers(copy.log)
        self._points.drop()

    def _wait(self, copy: Copy, reason: str) -> None:
        """Copy nothing of a partition until the next look at the metadata."""
        self._consumer.drop(copy.partition)
        self._leave_end(copy)
        if reason != copy.reason:
            self._facts.report(f"{copy.partition}: waits: {reason}")
        copy.reason = reason

    def _end_wait(self, copy: Copy) -> None:
        if copy.reason:
            self._facts.report(f"{copy.partition}: the copy goes on")
            copy.reason = ""

    def _name(self, copy: Copy, *holes: Hole) -> None:
        """Write gaps, durably, and report those that are new."""
        manager = self._manager
        now_ms = manager.clock_ms()
        if any(hole.kind == "diverged" for hole in holes):
            # The restore points are from before, also if the clock was set back since.
            now_ms = max(now_ms, point_file.newest_ms(manager.files, manager.path))
        for gap in copy.log.note_gaps(*(Gap(*hole, now_ms) for hole in holes)):
            self._facts.add_gap(copy, gap)


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
