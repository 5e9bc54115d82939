"""A cluster's decisions about its topics, from its metadata log (`__cluster_metadata-0`).

The log is a partition like others, with records for `messages.MetadataReader`. Its latest snapshot,
`<end offset>-<epoch>.checkpoint`, is a file of batches: a control record, all records of the state
below the end offset, and a control record again. The log continues from there
(`RecordsSnapshotReader.java`, `KafkaRaftLog.java`). Records between BeginTransactionRecord and
EndTransactionRecord count if the latter exists, and never before AbortTransactionRecord (KIP-868).

All or nothing: a damaged or missing record in the middle may have been any setting, so no setting
is known then (CorruptRecord). An incomplete last batch is the effect of a crash; it was never
decided. If a whole batch with a higher offset follows it, its length is damaged.

A later Kafka may write records that cannot be read here (`Metadata.later`). Topic ids and partition
counts still count then. Settings may have been changed by such a record.

Not here: the meaning of the settings, and the log of a cluster that does not use KRaft.
"""

from __future__ import annotations

import base64
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.record._batch import Rebuild
from storage.record.batch import Record, decode
from storage.record.header import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    parse_header,
    size_at,
)
from storage.settings.messages import LaterRecordError, MessageError, MetadataReader, Struct

TOPIC = 2
BROKER = 4
"""`ConfigResource.Type`: the kind of a setting's object."""

_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_ENTRY = struct.Struct(">ii")
_SPARSE = 4096
_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
_WANTED = frozenset(
    {
        *("TopicRecord", "RemoveTopicRecord", "ConfigRecord", "FeatureLevelRecord"),
        *("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"),
    }
)
_VERSION = b"metadata.version"
# A PartitionRecord begins with the version of its frame, its type, its version, and these fields:
# partitionId, topicId, and the number of replicas + 1. The rest is not needed, and there may be
# very many of them.
_PARTITION = bytes([1, 3])
_PARTITION_FIELDS = struct.Struct(">3xi16sB")
# A PartitionChangeRecord begins in the same way. The number at the end is that of its tagged
# fields: the first three are the ISR, the leader, and new replicas.
_CHANGE = bytes([1, 5])
_REPLICAS_TAG = 2


@dataclass(slots=True)
class Metadata:
    """Topic ids, as text, by name; partition counts, and the most replicas of a partition, by topic
    id; settings by (kind, name) of their object.

    The name of a broker is its id in decimal; an empty name has the defaults of all brokers.
    """

    topics: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    version: int = 0
    """The feature level of `metadata.version`; 0: not known."""
    later: str | None = None
    """The first record that only a later Kafka can read, or None."""


def read_metadata(files: Files, directory: str) -> Metadata:
    """Read the log in `directory`. Errors: CorruptRecord with path and position, OSError."""
    names = [name for name, kind in files.listing(directory) if kind != "directory"]
    replay = _Replay()
    # By end offset, then by epoch, as their digits compare.
    snapshot = max((name for name in names if _CHECKPOINT.fullmatch(name)), default=None)
    end = 0
    if snapshot is not None:
        end = int(snapshot[:20])
        _read_snapshot(files, os.path.join(directory, snapshot), replay)
    bases = paths.log_bases(names)
    # Segments entirely below the snapshot may be removed at any moment.
    first = max((number for number, base in enumerate(bases) if base <= end), default=0)
    _read_log(files, directory, bases[first:], end, replay)
    return replay.metadata


def _read_snapshot(files: Files, path: str, replay: _Replay) -> None:
    data = files.read_whole(path)
    batches = list(_batches(data, path))
    kinds = [_control_type(*batches[number][1:]) for number in (0, -1)] if batches else []
    if kinds != [_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER] or batches[-1][0] != len(data):
        raise CorruptRecord("a snapshot of the metadata log is incomplete", path=path)
    for _, header, records in batches:
        replay.take(header, records, path)


def _read_log(files: Files, directory: str, bases: list[int], end: int, replay: _Replay) -> None:
    """Replay the records from offset `end` on."""
    expected = bases[0] if bases else end
    if expected > end:
        reason = f"offsets {end} to {expected - 1} of a metadata log are missing"
        raise CorruptRecord(reason, path=directory)
    for base in bases:
        path = os.path.join(directory, paths.file_name(base, paths.LOG))
        data = files.read_whole(path)
        if base != expected:
            raise CorruptRecord(f"offset {expected} of a metadata log is missing", path=path)
        position, expected = _below(data, base, end)
        for batch_end, header, records in _batches(data, path, position):
            if header.base_offset != expected:
                reason = f"offset {expected} of a metadata log is missing"
                raise CorruptRecord(reason, path=path, position=position)
            expected = header.last_offset + 1
            if expected > end:
                replay.take(header, records, path)
            position = batch_end
        if position == len(data):
            continue
        if base != bases[-1]:
            raise CorruptRecord("a batch is truncated", path=path, position=position)
        if _batch_follows(data, position, expected):
            raise CorruptRecord("a batch's length is damaged", path=path, position=position)


def _below(data: bytes, base: int, end: int) -> tuple[int, int]:
    """Return (position, base offset) of a batch shortly before offset `end`: the snapshot has the
    earlier ones. An idle controller writes two batches a second.
    """
    found = (0, base)
    if base < end:
        scan = Rebuild(base, _SPARSE)
        scan.feed(data, len(data), 0)
        for last, position in _ENTRY.iter_unpack(scan.offset_entries):
            if base + last >= end:
                break
            # An entry has the last offset of the batch that begins at the position.
            found = position, int.from_bytes(data[position : position + 8], "big")
    return found


def _batches(
    data: bytes, path: str, position: int = 0
) -> Iterator[tuple[int, BatchHeader, list[Record]]]:
    """Yield each batch and the position after it, up to an incomplete one. Errors:
    CorruptRecord.
    """
    while any(data[position : position + HEADER_SIZE]):
        size = size_at(data, position)
        if size > len(data) - position or len(data) - position < HEADER_SIZE:
            break
        try:
            header = parse_header(data, position)
            records = decode(data, position)
        except CorruptRecord as error:
            raise CorruptRecord(error.message, path=path, position=position) from None
        position += header.size
        yield position, header, records


def _batch_follows(data: bytes, position: int, offset: int) -> bool:
    """Return whether a whole batch with a higher offset than `offset` begins after `position`."""
    magic = position + MAGIC_POSITION
    while (magic := data.find(MAGIC, magic + 1)) >= 0:
        at = magic - MAGIC_POSITION
        if int.from_bytes(data[at : at + 8], "big") > offset:
            with suppress(CorruptRecord):
                decode(data, at)
                return True
    return False


def _control_type(header: BatchHeader, records: list[Record]) -> int:
    """Return the type of a control batch; -1: another batch."""
    key = records[0].key if header.is_control and records else None
    return -1 if key is None else int.from_bytes(key[2:4], "big", signed=True)


def _new_replicas(change: bytes) -> int:
    """Return the number of replicas that a PartitionChangeRecord sets; 0: they do not change."""
    at = _PARTITION_FIELDS.size
    while at + 1 < len(change) and change[at] <= _REPLICAS_TAG:
        # A list of numbers of 4 bytes; a size of 2 bytes has at least 32 of them.
        tag, size = change[at], change[at + 1]
        if tag == _REPLICAS_TAG or size > 127:
            return size // 4
        at += 2 + size
    return 0


class _Replay:
    """Applies records in order (`MetadataDelta.java`)."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self._reader = MetadataReader(_WANTED)
        self._names: dict[str, str] = {}
        # Undecided records.
        self._transaction: list[tuple[str, Struct]] | None = None

    def take(self, header: BatchHeader, records: list[Record], path: str) -> None:
        """Apply the records of a batch. Errors: CorruptRecord."""
        if header.is_control:
            return
        for record in records:
            try:
                value = record.value or b""
                is_change = value.startswith(_CHANGE)
                is_of_partition = is_change or value.startswith(_PARTITION)
                if is_of_partition and len(value) >= _PARTITION_FIELDS.size:
                    number, topic_id, length = _PARTITION_FIELDS.unpack_from(value)
                    replicas = _new_replicas(value) if is_change else length - 1
                    fields = {"partitionId": number, "topicId": topic_id, "replicas": replicas}
                    self._take("PartitionRecord", fields)
                elif (found := self._reader.read(value)) is not None:
                    self._take(found.message.name, found.data)
            except LaterRecordError as error:
                self.metadata.later = self.metadata.later or str(error)
            except (MessageError, UnicodeDecodeError) as error:
                raise CorruptRecord(str(error), path=path, offset=record.offset) from None

    def _take(self, kind: str, data: Struct) -> None:
        match kind:
            case "BeginTransactionRecord":
                self._transaction = []
            case "AbortTransactionRecord":
                self._transaction = None
            case "EndTransactionRecord":
                decided, self._transaction = self._transaction or [], None
                for each in decided:
                    self._apply(*each)
            case _ if self._transaction is not None:
                self._transaction.append((kind, data))
            case _:
                self._apply(kind, data)

    def _apply(self, kind: str, data: Struct) -> None:
        metadata = self.metadata
        match kind:
            case "TopicRecord":
                name, topic_id = data["name"].decode(), _id_text(data["topicId"])
                metadata.topics[name] = topic_id
                self._names[topic_id] = name
            case "PartitionRecord":
                topic_id, count = _id_text(data["topicId"]), data["partitionId"] + 1
                metadata.partitions[topic_id] = max(metadata.partitions.get(topic_id, 0), count)
                replicas = max(metadata.replicas.get(topic_id, 0), data["replicas"])
                metadata.replicas[topic_id] = replicas
            case "RemoveTopicRecord":
                topic_id = _id_text(data["topicId"])
                metadata.partitions.pop(topic_id, None)
                metadata.replicas.pop(topic_id, None)
                name = self._names.pop(topic_id, None)
                if name is not None:
                    metadata.topics.pop(name, None)
                    metadata.configs.pop((TOPIC, name), None)
            case "FeatureLevelRecord" if data["name"] == _VERSION:
                metadata.version = data["featureLevel"]
            case "ConfigRecord":
                of = data["resourceType"], data["resourceName"].decode()
                settings = metadata.configs.setdefault(of, {})
                name, value = data["name"].decode(), data["value"]
                if value is None:
                    settings.pop(name, None)
                else:
                    settings[name] = value.decode()


def _id_text(topic_id: bytes) -> str:
    """Return the id as `partition.metadata` has it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
