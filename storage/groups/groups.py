"""All groups of a data directory: reads, commits and deletes their offsets.

The table is read from `__consumer_offsets` at its first use. Each later call reads the new records
of that topic's logs, whoever appended them. A long read (the first one of a large topic) raises
BlockingIOError if the caller may not wait.

A committed offset counts only for the topic of its id, not for another topic of the same name. If
the topic does not exist, the offset does not count in a directory made here; in a broker's
directory it does, since another directory may have that topic.

`commit` and `forget` append on the log thread, with the errors of an append.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from storage import paths
from storage.directory.data_directory import DataDirectory
from storage.directory.topics import Topic
from storage.errors import (
    OffsetOutOfRange,
    PolicyViolation,
    SegmentGone,
    UnknownTopicOrPartition,
)
from storage.groups.group import Group, GroupFacts, TopicPartition
from storage.groups.offset_records import (
    COMMIT,
    Committed,
    check_metadata,
    check_name,
    commit_key,
    commit_value,
    encode_batches,
    kind_of,
    name_bytes,
    name_text,
    partition_for,
    read_commit,
    read_commit_key,
)
from storage.groups.offsets_log import GroupRecords, OffsetsLog
from storage.groups.tombstones import group_tombstones
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.plural import counted
from storage.segment.segment import Segment
from storage.settings.messages import MessageError
from storage.task import Task
from storage.waiting import at_once, before_waiting, may_wait

_log = logging.getLogger(__name__)

RESET = "resetting committed offsets"
"""The duty of `reset_positions_beyond_end`."""
_TOPIC = paths.CONSUMER_OFFSETS
# Bytes that a caller reads if it may not wait.
_AT_ONCE_BYTES = 64 * 1024
# Groups, or offsets of one group, that it decodes.
_AT_ONCE = 100
_TRIES = 3
# Offsets that are deleted per call on the log thread.
_TAKEN_BACK_AT_ONCE = 500

_Doomed = tuple[Log, bytes, GroupRecords, TopicPartition, Committed]


class Groups(LogListener[Log]):
    """The table of groups. It listens for records that its logs lose."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._topics = directory.topics
        # One thread at a time reads.
        self._lock = threading.Lock()
        self._logs: dict[Log, OffsetsLog] = {}
        self._facts: dict[GroupRecords, GroupFacts] = {}
        # Groups as they were last returned, and the changes that they include.
        self._shown: dict[GroupFacts, tuple[tuple[int, int], Group]] = {}
        # The names, and the changes that they include.
        self._names: tuple[int, list[str]] = (-1, [])
        self._made: set[str] = set()
        self._changes = 0
        # Groups with consumers of our own, and when other groups lost their last one.
        self._consumed: set[str] = set()
        self._left_ms: dict[str, int] = {}

    # -- reading -------------------------------------------------------------------------------

    @property
    def logs(self) -> list[Log]:
        """The partitions of `__consumer_offsets` in this directory."""
        topic = self._topics.get(_TOPIC)
        return [] if topic is None else [log for _, log in sorted(topic.partitions.items())]

    @property
    def changes(self) -> int:
        """A value that differs after any change of the groups. Thread-safe."""
        offsets = sum(log.log_start_offset + log.log_end_offset for log in self.logs)
        return offsets + self._changes + self._topics.changes

    @property
    def is_partial(self) -> bool:
        """Whether other directories may have more groups, as in a cluster."""
        topic = self._topics.get(_TOPIC)
        is_brokers = self._directory.settings.is_brokers
        return is_brokers and (topic is None or self._why_partial(topic) is not None)

    def _why_partial(self, topic: Topic) -> str | None:
        """Return why other directories must have more partitions of the topic, or None."""
        count, numbers = self._directory.settings.partition_count(_TOPIC), topic.numbers
        if count > len(numbers):
            return f"the broker's metadata log lists {count}"
        if numbers != list(range(len(numbers))):
            return "the numbers are not consecutive from 0"
        misplaced = next((each.misplaced for each in self._reads() if each.misplaced), None)
        if misplaced is not None:
            return f"with so few partitions, group {name_text(misplaced)!r} would be in another one"
        return None

    def _reads(self) -> list[OffsetsLog]:
        """Return the tables of the existing partitions."""
        return [known for log in self.logs if (known := self._logs.get(log)) is not None]

    def names(self) -> list[str]:
        """Return all groups' names, sorted. Errors: OSError; BlockingIOError if it may not wait."""
        # Taken before the read: a later change counts for the next call.
        changes = self.changes
        with self._read() as logs:
            if self._names[0] != changes:
                if sum(len(each.groups) for each in logs) > _AT_ONCE:
                    before_waiting()
                there = {
                    name_text(name)
                    for each in logs
                    for name, records in each.groups.items()
                    if self._is_there(records)
                }
                self._names = changes, sorted(there | self._made)
            return list(self._names[1])

    def find(self, name: str) -> Group | None:
        """Return the group of this name, or None. Errors: see `names`."""
        key = name_bytes(name)
        with self._read() as logs:
            for each in logs:
                records = each.groups.get(key)
                if records is not None and self._is_there(records):
                    return self._group(key, records)
        return Group(name) if name in self._made else None

    def _is_there(self, records: GroupRecords) -> bool:
        """Return whether a group has an offset that counts, or was described by a broker."""
        return any(self._is_visible(key, value) for key, value in records.newest.items())

    def _is_visible(self, key: bytes, value: bytes) -> bool:
        if kind_of(key) != COMMIT:
            return True
        try:
            return self._topic_matches(read_commit_key(key).topic, read_commit(value))
        except MessageError:
            return False

    def _group(self, name: bytes, records: GroupRecords) -> Group:
        facts = self._facts.get(records)
        if facts is None:
            if len(records.newest) > _AT_ONCE:
                before_waiting()
            facts = self._facts[records] = GroupFacts(name_text(name), records)
        facts.refresh()
        seen = facts.changes, self._changes + self._topics.changes
        shown = self._shown.get(facts)
        if shown is None or shown[0] != seen:
            shown = self._shown[facts] = seen, facts.group(self._topic_matches)
        return shown[1]

    def _topic_matches(self, topic: str, committed: Committed) -> bool:
        known = self._topics.get(topic)
        if known is None:
            return self._directory.settings.is_brokers and topic not in self._topics.deleted_ms
        if committed.topic_id is None:
            return committed.time_ms > self._topics.deleted_ms.get(topic, -1)
        return not known.partitions or committed.topic_id == known.id

    def swapped(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        known = self._logs.get(log)
        if known is not None:
            known.replaced(old[-1].next_offset)

    def truncated(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        known = self._logs.get(log)
        if known is not None:
            known.replaced(paths.MAX_OFFSET)
        # The log may grow to its former end with other records.
        self._changes += 1

    @contextmanager
    def _read(self) -> Iterator[list[OffsetsLog]]:
        """Lock the table, and read all new records of the logs."""
        if not self._lock.acquire(blocking=may_wait()):
            raise BlockingIOError
        try:
            yield self._read_on()
        finally:
            self._lock.release()

    def _read_on(self) -> list[OffsetsLog]:
        logs = self.logs
        topic = self._topics.get(_TOPIC)
        count = 0 if topic is None else len(topic.numbers)
        for gone in self._logs.keys() - set(logs):
            self._drop(gone)
        for log in logs:
            for _ in range(_TRIES):
                known = self._logs.get(log)
                if known is None or known.is_stale or known.count != count:
                    self._drop(log)
                    known = self._logs[log] = OffsetsLog(log, count)
                if known.is_read:
                    break
                if known.unread_bytes > _AT_ONCE_BYTES:
                    before_waiting()
                try:
                    known.read_on()
                    break
                except SegmentGone:
                    # A cleaner has replaced it during the read.
                    self._drop(log)
        return [self._logs[log] for log in logs if log in self._logs]

    def _drop(self, log: Log) -> None:
        known = self._logs.pop(log, None)
        for records in known.groups.values() if known is not None else ():
            facts = self._facts.pop(records, None)
            if facts is not None:
                self._shown.pop(facts, None)

    # -- changing ------------------------------------------------------------------------------

    def make(self, name: str) -> None:
        """Create an empty group, in memory only. Errors: InvalidRecord for a name that no group can
        have, ReadOnlyLog.
        """
        self._directory.check_writable()
        check_name(name)
        self._made.add(name)
        self._changes += 1

    def prepare(self) -> None:
        """Create `__consumer_offsets`, so that a commit need not wait for it; or its missing
        partitions, if a crash interrupted that and nothing was committed.

        Errors: PolicyViolation if it may not be created, those of `DataDirectory.create_topic`;
        BlockingIOError if it may not wait.
        """
        topic = self._topics.get(_TOPIC)
        if topic is not None and (
            self._directory.settings.is_brokers
            or len(topic.numbers) >= self._directory.settings.broker.offsets_topic_num_partitions
            or topic.faults
            or any(not log.is_new for log in topic.partitions.values())
        ):
            return
        self._directory.check_writable()
        self._directory.check_may_create()
        before_waiting()
        self._directory.create_offsets_topic()

    def commit(self, name: str, topic: str, positions: Mapping[int, Committed]) -> None:
        """Commit a group's offsets in partitions of a topic, all or none, in one append.

        Each gets the topic's id, in a broker's directory only if the broker knows that id, and the
        present time if its own is -1. Records below the offsets that are not on the disk yet are
        flushed before the commit is. Errors: OffsetOutOfRange outside of log start..log end, except
        in a mirror, whose records may come later; UnknownTopicOrPartition, FaultyPartition,
        InvalidRecord for a name or metadata that Kafka refuses, PolicyViolation for a share group;
        those of `prepare` and of `Log.append`.
        """
        self._directory.check_writable()
        check_name(name)
        group = self.find(name)
        if group is not None and group.kind == "share":
            # A broker that replays the commit first would not load the share group's records.
            raise PolicyViolation(
                f"{name!r} is a share group: its offsets are not in {_TOPIC}. To set them, "
                "start the broker and use: kafka-share-groups --reset-offsets --group"
            )
        logs = {number: self._topics.log(topic, number) for number in positions}
        now_ms = self._directory.clock_ms()
        settings, known = self._directory.settings, self._topics.topic(topic).id
        is_known = not settings.is_brokers or settings.id_at_broker(topic) == known
        topic_id = known if is_known else None
        records: list[tuple[bytes, bytes | None]] = []
        for number, each in sorted(positions.items()):
            log = logs[number]
            start, end = log.log_start_offset, log.log_end_offset
            if not (start <= each.position <= end or self._directory.mirrors):
                raise OffsetOutOfRange(each.position, start, end, path=log.directory)
            check_metadata(each.metadata)
            time_ms = now_ms if each.time_ms < 0 else each.time_ms
            value = commit_value(each._replace(topic_id=topic_id, time_ms=time_ms))
            records.append((commit_key(name, topic, number), value))
        self.prepare()
        offsets = self._log_of(name)
        for number, each in positions.items():
            end = min(each.position, logs[number].log_end_offset)
            offsets.durability.require_flushed(logs[number].durability, end)
        self._append(offsets, records)

    def forget(self, name: str, topic: str | None = None, partition: int | None = None) -> None:
        """Delete a group's offset in a partition, all its offsets in a topic, or the group with all
        records of a broker about it.

        Missing ones are skipped. Errors: PolicyViolation for a group that only a broker can delete;
        those of `names` and of an append.
        """
        self._directory.check_writable()
        found: list[tuple[Log, list[bytes]]] = []
        with self._read() as logs:
            for each in logs:
                records = each.groups.get(name_bytes(name))
                if records is None:
                    continue
                if topic is None:
                    keys = group_tombstones(name, records.newest.keys())
                else:
                    numbers = self._numbers(name_bytes(name), records, topic)
                    keys = [
                        commit_key(name, topic, number)
                        for number in numbers
                        if partition in (None, number)
                    ]
                found.append((each.log, keys))
        for log, keys in found:
            self._append(log, [(key, None) for key in keys])
        if topic is None and name in self._made:
            self._made.discard(name)
            self._changes += 1

    def _numbers(self, name: bytes, records: GroupRecords, topic: str) -> list[int]:
        """Return the partitions of a topic in which a group has an offset, counting or not."""
        self._group(name, records)
        return sorted(number for each, number in self._facts[records].committed if each == topic)

    def _log_of(self, name: str) -> Log:
        """Return the partition of a group, among all partitions of the topic. Errors:
        PolicyViolation if some are missing here: their number is not known.
        """
        topic = self._topics.get(_TOPIC)
        if topic is None or not topic.numbers:
            raise UnknownTopicOrPartition(f"there is no topic {_TOPIC}", path=self._directory.path)
        numbers, why = topic.numbers, self._why_partial(topic)
        if why is not None:
            raise PolicyViolation(
                f"this directory has only {counted(len(numbers), 'partition')} of {_TOPIC}: "
                f"{why}. Commit offsets where the topic is complete",
                path=self._directory.path,
            )
        return self._topics.log(_TOPIC, partition_for(name, len(numbers)))

    def _append(self, log: Log, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Append records in one batch if max.message.bytes allows it, else in several."""
        now_ms = self._directory.clock_ms()
        batches = encode_batches(records, now_ms, log.config.max_message_bytes)
        if batches:
            log.append(batches, now_ns=now_ms * 1_000_000)

    # -- after a crash -------------------------------------------------------------------------

    def reset_positions_beyond_end(self, *, whole: bool = False, plan: bool = False) -> list[str]:
        """Reset offsets that lie beyond the log end to it; return a line for each.

        After a power cut, commits may be on the disk without the records before them. Only
        unflushed commits can be affected (`Durability.require_flushed`), so only these are read.
        `whole`: read all, because logs have lost flushed records. `plan`: write nothing, and treat
        the lost ends of logs as accepted.

        With replicas at other brokers, nothing is reset: a log here may end before the leader's.
        """
        if self._directory.settings.may_have_replicas(_TOPIC):
            return []
        lines: list[str] = []
        for log in self.logs:
            if log.closed or (log.lost_end and not plan) or log.flush_error is not None:
                continue
            start = log.log_start_offset if whole else log.durability.recovery_point
            if start < log.log_end_offset:
                with self._directory.duties.attempt(RESET, log.name):
                    found = self._beyond(OffsetsLog(log, len(self.logs), start), plan=plan)
                    if not plan:
                        self._append(log, [pair for pair, _ in found])
                    lines += [line for _, line in found]
        return lines

    def _beyond(self, offsets: OffsetsLog, *, plan: bool) -> list[tuple[tuple[bytes, bytes], str]]:
        """Return the records that reset offsets beyond the end of their logs, with their lines."""
        offsets.read_on()
        reset = "would be reset" if plan else "reset"
        found: list[tuple[tuple[bytes, bytes], str]] = []
        for name, records in offsets.groups.items():
            facts = GroupFacts(name_text(name), records)
            facts.refresh()
            for (topic, number), each in sorted(facts.committed.items()):
                known = self._topics.get(topic)
                log = None if known is None else known.partitions.get(number)
                if (
                    log is None
                    or (log.lost_end and not plan)
                    or not self._topic_matches(topic, each)
                ):
                    continue
                end = log.log_end_offset
                if each.position > end:
                    key = commit_key(facts.name, topic, number)
                    value = commit_value(each._replace(position=end))
                    line = (
                        f"group {facts.name!r}: committed offset {each.position} of {log.name} "
                        f"was beyond the log end; {reset} to {end}, because the records before "
                        "it are missing"
                    )
                    found.append(((key, value), line))
        return found

    # -- deletion and expiry -------------------------------------------------------------------

    def joined(self, name: str) -> None:
        """Note that a consumer reads for a group: its offsets do not expire."""
        self._consumed.add(name)

    def left(self, name: str) -> None:
        """Note that the last consumer of a group has left: its offsets expire from now on."""
        self._consumed.discard(name)
        self._left_ms[name] = self._directory.clock_ms()

    def sweep(self, task: Task) -> int:
        """Delete the offsets in finally deleted topics, and the expired ones; return their number.
        Runs on a worker thread.

        In a directory that was made here, offsets do not expire unless offsets.retention.minutes is
        set. With replicas at other brokers, their leader deletes them. Errors: those of `names` and
        of an append.
        """
        if not task.on_log_thread(self._has_doomed):
            return 0
        with self._read() as logs:
            found = [
                (each.log, name, records, item, committed)
                for each in logs
                for name, records in list(each.groups.items())
                for item, committed in self._doomed(name, records)
            ]
        count = 0
        for start in range(0, len(found), _TAKEN_BACK_AT_ONCE):
            part = found[start : start + _TAKEN_BACK_AT_ONCE]
            try:
                count += task.on_log_thread(partial(self._take_back, part))
            except BlockingIOError:
                break  # another thread reads all of it: the next turn continues
        return count

    def _has_doomed(self) -> bool:
        settings = self._directory.settings
        may_expire = settings.offsets_retention_minutes is not None
        is_due = bool(self.logs) and (may_expire or bool(self._topics.deleted_ms))
        return is_due and not settings.may_have_replicas(_TOPIC)

    def _doomed(
        self, name: bytes, records: GroupRecords
    ) -> Iterator[tuple[TopicPartition, Committed]]:
        group = self._group(name, records)
        for item, committed in self._facts[records].committed.items():
            if self._is_gone(item, committed) or self._is_expired(group, committed):
                yield item, committed

    def _is_gone(self, item: TopicPartition, committed: Committed) -> bool:
        """Return whether the topic of an offset was finally deleted."""
        return (
            item[0] in self._topics.deleted_ms
            and not self._topic_matches(item[0], committed)
            and not self._directory.may_be_undeleted(item[0])
        )

    def _is_expired(self, group: Group, committed: Committed) -> bool:
        minutes = self._directory.settings.offsets_retention_minutes
        now_ms, left_ms = self._directory.clock_ms(), self._left_ms.get(group.name)
        is_expired = group.is_expired(committed, minutes, now_ms, left_ms)
        return is_expired and group.name not in self._consumed

    def _take_back(self, found: Sequence[_Doomed]) -> int:
        """Append tombstones for those of these offsets that may still be deleted, and for groups
        that have no other record. Return the number of offsets.
        """
        keys, expired = at_once(self._still_doomed, found)
        for log, each in keys.items():
            self._append(log, [(key, None) for key in each])
        for name, count in expired.items():
            _log.warning("group %r: %s expired", name, counted(count, "position"))
        return sum(kind_of(key) == COMMIT for each in keys.values() for key in each)

    def _still_doomed(
        self, found: Sequence[_Doomed]
    ) -> tuple[dict[Log, list[bytes]], Counter[str]]:
        """Return the keys of those of these offsets that were not replaced or joined meanwhile,
        with those of groups that lose their last record; and the number of expired offsets of each
        group.
        """
        doomed: dict[GroupRecords, list[bytes]] = {}
        where: dict[GroupRecords, tuple[Log, str]] = {}
        expired: Counter[str] = Counter()
        with self._read():
            for log, name, records, item, committed in found:
                group = self._group(name, records)
                if self._facts[records].committed.get(item) is not committed:
                    continue
                is_expired = not self._is_gone(item, committed)
                if is_expired and not self._is_expired(group, committed):
                    continue
                doomed.setdefault(records, []).append(commit_key(group.name, *item))
                where[records] = log, group.name
                expired[group.name] += is_expired
            keys: dict[Log, list[bytes]] = {}
            for records, each in doomed.items():
                log, group_name = where[records]
                is_all = records.newest.keys() <= set(each)
                keys.setdefault(log, []).extend(
                    group_tombstones(group_name, each) if is_all else each
                )
        return keys, +expired
