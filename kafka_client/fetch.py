"""Reads batches from one broker: Fetch with an incremental session (KIP-227).

A `Fetcher` sends positions and moves them on by what arrives. Each answer's batches are checked:
whole, with the right CRC, at the requested offsets, below the high watermark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kafka_client.cluster import Names, TopicPartition, by_topic, results, topic_name
from kafka_client.connection import Connection
from kafka_client.errors import BrokerError, ClientError
from storage.errors import CorruptRecord
from storage.record._batch import walk_batches
from storage.record.header import FRAME_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_POSITION, parse_header
from storage.settings.messages import Struct

_NAMES: Final = Names("topic")
_EPOCH_NAMES: Final = Names("topic", "partition")
NO_EPOCH: Final = -1
NO_TOPIC_ID: Final = bytes(16)
_LAST: Final = 18
_LAST_WITH_NAMES: Final = 12
# The first version in which the answer reports another history.
_REPORTS_DIVERGENCE: Final = 12
_OFFSET_OUT_OF_RANGE: Final = 1
_LAST_EPOCH: Final = 0x7FFFFFFF
_CONSUMER: Final = -1
_LEADER_EPOCH: Final = slice(LOG_OVERHEAD, LOG_OVERHEAD + 4)
# The epoch of a request for which the broker keeps no session.
_NO_SESSION: Final = -1
# Errors of a session, after which a full request begins another one.
_SESSION_ERRORS: Final = frozenset({70, 71, 106})


@dataclass(frozen=True)
class Position:
    """Where to read on. `last_epoch` is the epoch of the last batch: a divergence from the history
    of the broker is found only if it is set. `topic_id` is 16 zeros if the broker has no ids.
    """

    offset: int
    last_epoch: int = NO_EPOCH
    leader_epoch: int = NO_EPOCH
    topic_id: bytes = NO_TOPIC_ID


@dataclass
class Fetched:
    """One partition in an answer.

    `records` are whole, checked batches, valid until the next `receive`; the first may begin below
    the position. `next_offset` is the position after them, and `last_epoch` is the leader epoch of
    the last one. `aborted` are the producer id and the first offset of aborted transactions (read
    committed only). `diverging` is (epoch, end offset) if this position is on another history.
    `error` is why there are none. If that is damage, `next_offset` is the one after the damaged
    batch, as far as its header is right. `preferred_replica` is the node to fetch from instead, -1
    if there is none.
    """

    partition: TopicPartition
    records: memoryview
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    last_epoch: int = NO_EPOCH
    aborted: list[tuple[int, int]] = field(default_factory=list)
    diverging: tuple[int, int] | None = None
    preferred_replica: int = -1
    error: ClientError | CorruptRecord | None = None


class Fetcher:
    """Fetches partitions from one broker, over a connection that may be set later.

    Partitions may be added and removed while a request is under way: its answer about them is
    skipped. A broker whose answers to Fetch do not report a divergence is first asked where the
    last epochs of added positions end.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        committed: bool = False,
        has_session: bool = True,
        max_bytes: int = 16 << 20,
        partition_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        rack_id: str = "",
    ) -> None:
        assert max_wait_ms < 9000
        self.connection = connection
        self._positions: dict[TopicPartition, Position] = {}
        self.positions: Mapping[TopicPartition, Position] = MappingProxyType(self._positions)
        self._committed = committed
        self._max_bytes = max_bytes
        self._partition_bytes = partition_bytes
        self._max_wait_ms = max_wait_ms
        self._rack_id = rack_id
        self._session_id, self._session_epoch = 0, 0 if has_session else _NO_SESSION
        # The positions that the broker has in its session, and the partitions that differ.
        self._asked: dict[TopicPartition, Position] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._names: dict[bytes, str] = {}
        # Positions whose history is not compared yet, and those that the request under way asks
        # about.
        self._uncompared: dict[TopicPartition, Position] = {}
        self._comparing: dict[TopicPartition, Position] = {}
        self.is_under_way = False
        # Whether a partition in the session was added again: only another session answers about it.
        self._is_renewed = False
        # Whether the last answer had no news of any partition.
        self.is_quiet = False
        self.answered_at = time.monotonic()

    def add(self, partition: TopicPartition, position: Position) -> None:
        """Fetch a partition from a position on. The broker answers about it, also without news."""
        if not self._positions:
            # A connection that was not used may have been closed.
            self.answered_at = time.monotonic()
        asked = self._asked.get(partition)
        self._is_renewed |= asked is not None and asked.topic_id == position.topic_id
        self._move(partition, position)
        if position.last_epoch != NO_EPOCH:
            self._uncompared[partition] = position

    def _move(self, partition: TopicPartition, position: Position) -> None:
        self.is_quiet = False
        self._positions[partition] = position
        self._changed[partition] = None

    def remove(self, partition: TopicPartition) -> Position | None:
        """Fetch a partition no longer, and return its position."""
        self._changed[partition] = None
        self._uncompared.pop(partition, None)
        return self._positions.pop(partition, None)

    def send(self) -> None:
        """Ask for records. Errors: those of `Connection.send`."""
        assert self.connection is not None
        self.is_under_way = True
        if self._uncompared:
            if min(self.connection.last_version("Fetch"), _LAST) < _REPORTS_DIVERGENCE:
                self._compare()
                return
            self._uncompared.clear()
        if self._is_renewed:
            self._session_epoch, self._is_renewed = min(self._session_epoch, 0), False
        if not self._session_epoch:
            self._asked.clear()
            self._names.clear()
            self._changed = dict.fromkeys(self._positions)
        added: dict[TopicPartition, Position] = {}
        removed: dict[TopicPartition, Position] = {}
        for partition in self._changed:
            old, new = self._asked.pop(partition, None), self._positions.get(partition)
            # A topic that was created again is another one.
            if old is not None and (new is None or new.topic_id != old.topic_id):
                removed[partition] = old
            if new is not None:
                self._asked[partition] = new
                self._names[new.topic_id] = partition.topic
                if new != old:
                    added[partition] = new
        self._changed.clear()
        data = {
            "replicaId": _CONSUMER,
            "maxWaitMs": self._max_wait_ms,
            "minBytes": 1,
            "maxBytes": self._max_bytes,
            "isolationLevel": int(self._committed),
            "sessionId": self._session_id,
            "sessionEpoch": self._session_epoch,
            "topics": _by_topic(added, self._partition_of),
            "forgottenTopicsData": _by_topic(removed, lambda partition, _: partition.partition),
            "rackId": self._rack_id,
        }
        has_ids = NO_TOPIC_ID not in self._names
        self.connection.send("Fetch", data, _LAST if has_ids else _LAST_WITH_NAMES)

    def _partition_of(self, partition: TopicPartition, position: Position) -> Struct:
        return {
            "partition": partition.partition,
            "currentLeaderEpoch": position.leader_epoch,
            "fetchOffset": position.offset,
            "lastFetchedEpoch": position.last_epoch,
            "partitionMaxBytes": self._partition_bytes,
        }

    def _compare(self) -> None:
        """Ask where the last epochs of positions end."""
        assert self.connection is not None
        topics = by_topic(self._uncompared, self._epoch_of, _NAMES)
        data = {"replicaId": _CONSUMER, "topics": topics}
        self.connection.send("OffsetForLeaderEpoch", data)
        self._comparing = dict(self._uncompared)

    def _epoch_of(self, partition: TopicPartition) -> Struct:
        position = self._uncompared[partition]
        return {
            "partition": partition.partition,
            "currentLeaderEpoch": position.leader_epoch,
            "leaderEpoch": position.last_epoch,
        }

    def receive(self) -> list[Fetched]:
        """Return what the oldest request got, and move the positions on.

        Errors: those of `Connection.receive`, BrokerError.
        """
        assert self.connection is not None
        self.is_under_way = self.is_quiet = False
        answer = self.connection.receive()
        self.answered_at = time.monotonic()
        if self._comparing:
            return list(self._take_epochs(answer))
        code = answer["errorCode"]
        if code:
            self._session_id = self._session_epoch = 0
            if code in _SESSION_ERRORS:
                return []
            raise BrokerError(code, f"broker {self.connection.address}")
        self._session_id = answer["sessionId"]
        self._session_epoch = self._session_epoch % _LAST_EPOCH + 1 if self._session_id else 0
        # A broker that throttles answers without partitions, though they may have news.
        is_empty = not answer["responses"] and not answer["throttleTimeMs"]
        self.is_quiet = is_empty and not self._changed
        try:
            return [
                self._take(TopicPartition(name, each["partitionIndex"]), each)
                for name, each in self._partitions_in(answer)
            ]
        except ValueError as error:
            raise self.connection.violation(f"its answer to Fetch has {error}") from None

    def _take_epochs(self, answer: Struct) -> Iterator[Fetched]:
        """Yield the partitions that this broker does not continue, as its Fetch would."""
        assert self.connection is not None
        asked, self._comparing = self._comparing, {}
        found = dict(results(self.connection, answer, _EPOCH_NAMES))
        if not asked.keys() <= found.keys():
            raise self.connection.violation("its answer lacks partitions")
        for partition, position in asked.items():
            if self._uncompared.get(partition) is not position:
                continue
            del self._uncompared[partition]
            epoch, end = found[partition]["leaderEpoch"], found[partition]["endOffset"]
            code = found[partition]["errorCode"] or (_OFFSET_OUT_OF_RANGE if end < 0 else 0)
            each = Fetched(partition, memoryview(b""), position.offset, -1, -1, -1)
            if code:
                each.error = BrokerError(code, str(partition))
            elif epoch < position.last_epoch or end < position.offset:
                each.diverging = (epoch, end)
            else:
                continue
            yield each

    def _partitions_in(self, answer: Struct) -> Iterator[tuple[str, Struct]]:
        """The partitions that are still wanted from the position that the request had."""
        for topic in answer["responses"]:
            named, topic_id = bytes(topic["topic"]), bytes(topic["topicId"])
            name = topic_name(named) if named else self._names.get(topic_id, "")
            for each in topic["partitions"]:
                partition = TopicPartition(name, each["partitionIndex"])
                if partition not in self._asked:
                    raise ValueError("a partition that was not asked for")
                if self._asked[partition] == self.positions.get(partition):
                    yield name, each

    def _take(self, partition: TopicPartition, each: Struct) -> Fetched:
        position = self._positions[partition]
        found = Fetched(
            partition,
            memoryview(b""),
            position.offset,
            each["highWatermark"],
            each["lastStableOffset"],
            each["logStartOffset"],
        )
        found.preferred_replica = each["preferredReadReplica"]
        diverging = each["divergingEpoch"]
        # The broker reads it before the records, which may begin there. Then they come again.
        end = found.last_stable_offset if self._committed else found.high_watermark
        if each["errorCode"]:
            found.error = BrokerError(each["errorCode"], str(partition))
        elif diverging["epoch"] >= 0 or diverging["endOffset"] >= 0:
            found.diverging = (diverging["epoch"], diverging["endOffset"])
        elif each["records"] and position.offset < end:
            checked = check_batches(each["records"], position.offset, end)
            found.records = each["records"][: checked.size]
            found.next_offset, found.last_epoch = checked.next_offset, checked.last_epoch
            found.aborted = [
                (aborted["producerId"], aborted["firstOffset"])
                for aborted in each["abortedTransactions"] or ()
            ]
            if checked.size:
                moved = replace(position, offset=checked.next_offset, last_epoch=checked.last_epoch)
                self._move(partition, moved)
            else:
                # A broker sends the first batch whole, whatever its size is.
                fault = checked.fault or "a part of it is missing"
                reason = f"{partition}: a batch from the broker is damaged: {fault}"
                found.error = CorruptRecord(reason, offset=position.offset)
                following = _last_offset(each["records"], position.offset) + 1
                found.next_offset = min(max(following, position.offset), end)
        return found


def _by_topic(
    positions: Mapping[TopicPartition, Position], item: Callable[[TopicPartition, Position], Any]
) -> list[Struct]:
    topics = by_topic(positions, lambda each: item(each, positions[each]), _NAMES)
    ids = {partition.topic: position.topic_id for partition, position in positions.items()}
    return [{**topic, "topicId": ids[topic["topic"]]} for topic in topics]


class Checked(NamedTuple):
    """The size of the sound batches at the start of records, and the next offset and the last
    leader epoch. `fault` is why the next batch is not sound; "" if only a part of it is there.
    """

    size: int
    next_offset: int
    last_epoch: int
    fault: str


def check_batches(records: memoryview, offset: int, end: int) -> Checked:
    """Check batches that a broker sent for `offset`: all of them lie below the offset `end`."""
    size, next_offset, epoch = 0, offset, NO_EPOCH
    while len(records) - size >= FRAME_SIZE:
        base = int.from_bytes(records[size : size + 8], "big", signed=True)
        if not size:
            # The first batch may begin below the offset.
            if base < 0 or _last_offset(records, offset) < offset:
                return Checked(0, offset, epoch, f"its offset {base} is below the one asked for")
            next_offset = min(base, offset)
        rest = records[size:]
        # A walk ends at a batch that is 2**31 offsets away from its first one.
        taken, last, _, next_offset, fault, _ = walk_batches(
            rest, len(rest), base, next_offset, end
        )
        if not taken:
            return Checked(size, next_offset if size else offset, epoch, fault)
        if rest[last + MAGIC_POSITION] == MAGIC:
            epoch = int.from_bytes(rest[last:][_LEADER_EPOCH], "big", signed=True)
        size += taken
    return Checked(size, next_offset, epoch, "")


def _last_offset(records: memoryview, unknown: int) -> int:
    """Return the last offset of the first batch, or `unknown`."""
    try:
        return parse_header(records).last_offset
    except CorruptRecord:
        return unknown
