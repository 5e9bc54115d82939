"""Control batches: the ends of transactions (ControlRecordType.java, EndTransactionMarker.java).

Such a batch has one record, which takes an offset and is never shown. Its key is version i16, type
i16; its value, for the types here, version i16, coordinator epoch i32. Larger versions are read as
version 0. The other types (leader changes, snapshots) are the controller's own. The type alone
makes a marker, even if the batch lacks the transactional bit (`ProducerAppendInfo.append`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from storage.errors import CorruptRecord
from storage.record.batch import Record, decode_plain, encode
from storage.record.header import (
    CONTROL_BIT,
    CREATE_TIME,
    TRANSACTIONAL_BIT,
    Buffer,
    parse_header,
)

ABORT: Final = 0
COMMIT: Final = 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """The end of a transaction: `type` is `ABORT` or `COMMIT`."""

    type: int
    coordinator_epoch: int


def parse_marker(batch: Buffer, at: int = 0) -> Marker | None:
    """Return the marker in the control batch at `batch[at:]`; None for the other control types.

    The batch is stored or in plain form; its CRC is not checked. Errors: CorruptRecord.
    """
    header = parse_header(batch, at)
    assert header.is_control
    records = decode_plain(batch, at)
    key = records[0].key if records else None
    if key is None or len(key) < _KEY.size:
        raise CorruptRecord("a control batch has no type", position=at)
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecord(f"unsupported control record version {version}", position=at)
    if kind not in (ABORT, COMMIT):
        return None
    value = records[0].value
    if value is None or len(value) < _VALUE.size:
        raise CorruptRecord("a marker's value is truncated", position=at)
    version, epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise CorruptRecord(f"unsupported marker version {version}", position=at)
    return Marker(kind, epoch)


def encode_marker(
    type: int,
    producer_id: int,
    epoch: int,
    coordinator_epoch: int,
    offset: int,
    timestamp_ms: int,
    leader_epoch: int,
) -> bytearray:
    """Return a control batch of one marker, as a transaction coordinator writes it."""
    record = Record(
        offset,
        timestamp_ms,
        CREATE_TIME,
        _KEY.pack(0, type),
        _VALUE.pack(0, coordinator_epoch),
    )
    return bytearray(
        encode(
            [record],
            leader_epoch=leader_epoch,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
    )
