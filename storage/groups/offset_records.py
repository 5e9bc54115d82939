"""The records of `__consumer_offsets`: their bytes, and the partition of a group.

A key is a type i16 and, by the type, a message whose first field is the group; a null value deletes
the key. Types 0 and 1 are the committed offsets of a partition, with the same fields. A value is a
version i16 and a message (`message_schemas.OFFSETS`).

We write keys of type 1, and values of version 4, whose tagged field has the topic's id; without an
id, of version 3, which older brokers can read, too: `OffsetCommitKey.json`,
`OffsetCommitValue.json`, `GroupCoordinatorRecordHelpers.java`. Pure: no file is touched.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from storage.errors import InvalidRecord
from storage.record.batch import Record, encode
from storage.record.header import HEADER_SIZE
from storage.settings.message_schemas import OFFSETS
from storage.settings.messages import CoordinatorReader

COMMIT: Final = 1
_LEGACY_COMMIT: Final = 0
_COMMIT_TYPE, _LEGACY_TYPE = b"\0\1", b"\0\0"
_VALUE_VERSION: Final = 3
_VALUE_VERSION_WITH_ID: Final = 4
_TOPIC_ID_TAG: Final = 0
_NO_ID: Final = bytes(16)
_NO_EXPIRY: Final = -1
# Bytes of a record beside its key and its value at most: attributes, lengths, deltas, no headers.
_RECORD_OVERHEAD: Final = 23

LONGEST_NAME: Final = 0x7FFF
"""The longest name of a group, in bytes."""
LONGEST_METADATA: Final = 4096
"""The longest metadata of an offset, in bytes (`offset.metadata.max.bytes`)."""

_reader = CoordinatorReader(OFFSETS)


class Committed(NamedTuple):
    """An offset that a group has committed: the offset of the next record that it will read.

    `leader_epoch`: -1: not known. `time_ms`: the time of the commit, in ms since 1970. `expire_ms`:
    the time of its expiry, set only by old clients. `topic_id`: as in `partition.metadata`; None:
    not known.
    """

    position: int
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = -1
    expire_ms: int | None = None
    topic_id: str | None = None


class CommitKey(NamedTuple):
    """The key of a committed offset: its group and partition."""

    group: str
    topic: str
    partition: int


# -- which partition -------------------------------------------------------------------------------


def partition_for(group: str, partitions: int) -> int:
    """Return the partition of a group, of `partitions` (`GroupCoordinatorService.partitionFor`)."""
    units = group.encode("utf-16-be", "surrogatepass")
    code = 0
    for (unit,) in struct.iter_unpack(">H", units):
        code = (31 * code + unit) & 0xFFFFFFFF
    if code >= 1 << 31:
        code = (1 << 32) - code
    # Java's least integer has no opposite: `Utils.abs` makes it 0.
    return (0 if code == 1 << 31 else code) % partitions


# -- keys ------------------------------------------------------------------------------------------


def check_name(group: str) -> None:
    """Check the name of a group. Errors: InvalidRecord."""
    try:
        size = len(group.encode())
    except UnicodeEncodeError:
        raise InvalidRecord("the group name is not valid UTF-8") from None
    if not 0 < size <= LONGEST_NAME:
        raise InvalidRecord(f"a group name has 1 to {LONGEST_NAME} bytes, not {size}")


def name_bytes(group: str) -> bytes:
    """Return a group's name as keys have it."""
    return group.encode("utf-8", "surrogateescape")


def name_text(name: bytes) -> str:
    """Return a group's name as text; `name_bytes` restores bytes that are not UTF-8."""
    return name.decode("utf-8", "surrogateescape")


def commit_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of a group's offset in a partition."""
    return b"".join(
        (
            struct.pack(">h", COMMIT),
            *(struct.pack(">h", len(each)) + each for each in map(name_bytes, (group, topic))),
            struct.pack(">i", partition),
        )
    )


def kind_of(key: bytes) -> int:
    """Return the type of a key; -1: it is no key."""
    kind = int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else -1
    return COMMIT if kind == _LEGACY_COMMIT else kind


def same_key(key: bytes) -> bytes:
    """Return a key of a committed offset with the type `COMMIT`, any other key as it is.

    Brokers before 0.9 wrote the other type. Of both types, the last record counts.
    """
    return _COMMIT_TYPE + key[2:] if key.startswith(_LEGACY_TYPE) else key


def group_of(key: bytes) -> bytes | None:
    """Return the name of a key's group; None: it is no key of a group."""
    size = int.from_bytes(key[2:4], "big", signed=True)
    return key[4 : 4 + size] if 0 <= size <= len(key) - 4 and len(key) >= 4 else None


def read_commit_key(key: bytes) -> CommitKey:
    """Return a key of `COMMIT`. Errors: MessageError."""
    data = _reader.read_key(key).data
    return CommitKey(name_text(data["group"]), name_text(data["topic"]), data["partition"])


def read_key(key: bytes) -> dict[str, Any]:
    """Return the fields of a key of any type. Errors: MessageError."""
    return _reader.read_key(key).data


# -- values ----------------------------------------------------------------------------------------


def read_value(key: bytes, value: bytes) -> dict[str, Any]:
    """Return the fields of the value that a key of any type has. Errors: MessageError."""
    return _reader.read_value(kind_of(key), value).data


def read_commit(value: bytes) -> Committed:
    """Return the value of a key of `COMMIT`. Errors: MessageError."""
    data = _reader.read_value(COMMIT, value).data
    expire_ms, topic_id = data["expireTimestamp"], data["topicId"]
    return Committed(
        data["offset"],
        data["leaderEpoch"],
        name_text(data["metadata"]),
        data["commitTimestamp"],
        None if expire_ms == _NO_EXPIRY else expire_ms,
        None if topic_id == _NO_ID else id_text(topic_id),
    )


def commit_value(committed: Committed) -> bytes:
    """Return an offset as a value, which has no expiry of its own."""
    metadata = name_bytes(committed.metadata)
    version, length, tagged = _VALUE_VERSION, struct.pack(">h", len(metadata)), b""
    if committed.topic_id is not None:
        version, length = _VALUE_VERSION_WITH_ID, _varint(len(metadata) + 1)
        tagged = bytes((1, _TOPIC_ID_TAG, 16)) + id_bytes(committed.topic_id)
    head = struct.pack(">hqi", version, committed.position, committed.leader_epoch)
    return b"".join((head, length, metadata, struct.pack(">q", committed.time_ms), tagged))


def encode_batches(
    records: Iterable[tuple[bytes, bytes | None]], now_ms: int, max_bytes: int
) -> bytearray:
    """Return records with offsets from 0 on: one batch if it has at most `max_bytes`, else several.

    A batch of one record may be larger.
    """
    batches, batch, size, offset = bytearray(), list[Record](), HEADER_SIZE, 0
    for key, value in records:
        record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD
        if batch and size + record_size > max_bytes:
            batches += encode(batch)
            batch, size = [], HEADER_SIZE
        batch.append(Record(offset, now_ms, 0, key, value))
        offset, size = offset + 1, size + record_size
    if batch:
        batches += encode(batch)
    return batches


def check_metadata(metadata: str) -> None:
    """Check the metadata of an offset. Errors: InvalidRecord."""
    try:
        size = len(metadata.encode())
    except UnicodeEncodeError:
        raise InvalidRecord("the metadata of a committed offset is not valid UTF-8") from None
    if size > LONGEST_METADATA:
        raise InvalidRecord(
            f"the metadata of a committed offset has at most {LONGEST_METADATA} bytes, not {size}"
        )


def id_text(topic_id: bytes) -> str:
    """Return a topic's id as `partition.metadata` has it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def id_bytes(topic_id: str) -> bytes:
    """Return a topic's id as messages have it."""
    return base64.urlsafe_b64decode(topic_id + "==")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
