"""The header of a batch, of any format: read it, or put it before encoded records.

A v2 batch (DefaultRecordBatch.java, KIP-98), big-endian, byte positions from its start:

====  ====================  ===  ========================================================
   0  baseOffset            i64  first offset of the original batch; kept by compaction
   8  batchLength           i32  bytes after this field: the whole batch is 12 longer
  12  partitionLeaderEpoch  i32  outside the CRC; -1 = none
  16  magic                 i8   2
  17  crc                   u32  CRC-32C of everything from byte 21 to the batch's end
  21  attributes            i16  0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                 6 the base timestamp is a delete horizon (KIP-534)
  23  lastOffsetDelta       i32  last offset - baseOffset; kept by compaction
  27  baseTimestamp         i64  milliseconds; -1 in an empty batch
  35  maxTimestamp          i64  milliseconds
  43  producerId            i64  -1 = none
  51  producerEpoch         i16  -1 = none
  53  baseSequence          i32  -1 = none
  57  recordsCount          i32
  61  records                    plain, or one compressed stream of them all
====  ====================  ===  ========================================================

An entry of v0 or v1 (LegacyRecord.java) is a message, or a *wrapper* around a compressed set of
messages, and counts as a batch of its own:

====  ==========  ===  ============================================================
   0  offset      i64  of the message; a wrapper's: of the last message in it
   8  size        i32  bytes after this field
  12  crc         u32  CRC-32 of everything from byte 16 to the end
  16  magic       i8   0 or 1
  17  attributes  i8   0-2 codec; v1: 3 timestamp type
  18  timestamp   i64  v1 only; milliseconds, -1 = none; a wrapper's: the largest inside
  18  key                i32 length, -1 = null, and the key (v1: at 26)
  ..  value              i32 length, -1 = null, and the value; a wrapper's: the compressed set
====  ==========  ===  ============================================================
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from storage.errors import CorruptRecord
from storage.record import _batch
from storage.record._plain import seal

Buffer: TypeAlias = bytes | bytearray | memoryview

# `_batch.pxd` has the tables above as numbers, where the loops use them too.
LENGTH_POSITION: Final = _batch.BATCH_LENGTH
MAGIC_POSITION: Final = _batch.MAGIC
ATTRIBUTES_POSITION: Final = _batch.ATTRIBUTES
# The attributes byte with all assigned bits: of v2, and of v0 and v1.
FLAGS_POSITION: Final = _batch.ATTRIBUTES + 1
LEGACY_FLAGS_POSITION: Final = _batch.LEGACY_ATTRIBUTES
LAST_OFFSET_DELTA_POSITION: Final = _batch.LAST_OFFSET_DELTA
MAX_TIMESTAMP_POSITION: Final = _batch.MAX_TIMESTAMP
PRODUCER_ID_POSITION: Final = _batch.PRODUCER_ID
RECORDS_COUNT_POSITION: Final = _batch.RECORDS_COUNT
LOG_OVERHEAD: Final = _batch.LOG_OVERHEAD
HEADER_SIZE: Final = _batch.HEADER_SIZE
# The least value of the size field: the fields, and two lengths.
SMALLEST_SIZE: Final = (_batch.SMALLEST_ENTRY, _batch.SMALLEST_V1, HEADER_SIZE - LOG_OVERHEAD)

#: Offset, size and magic determine the size and the format of a batch of any format.
FRAME: Final = struct.Struct(">qi4xb")
FRAME_SIZE: Final = FRAME.size

MAGIC: Final = 2
NO_TIMESTAMP: Final = -1

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

CODEC_BITS: Final = _batch.CODEC_BITS
APPEND_TIME_BIT: Final = _batch.APPEND_TIME_BIT
TRANSACTIONAL_BIT: Final = _batch.TRANSACTIONAL_BIT
CONTROL_BIT: Final = _batch.CONTROL_BIT
DELETE_HORIZON_BIT: Final = _batch.HORIZON_BIT

V2: Final = struct.Struct(">qiibIhiqqqhii")

# offset, size, crc, magic, attributes, v1: timestamp.
_V0 = struct.Struct(">qiIbB")
_V1 = struct.Struct(">qiIbBq")


class BatchHeader(NamedTuple):
    """The header of a v2 batch, field by field as it is stored.

    For a v0 or v1 entry, its equivalents: base and last offset are its offset, both timestamps its
    timestamp (v0: -1), `batch_length` its size field, `attributes` its codec and timestamp type;
    `records_count` is 1, or -1 for a wrapper, which has no count; the others are -1.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Index into `compression.CODECS`; 5 to 7 are not assigned."""
        return self.attributes & CODEC_BITS

    @property
    def timestamp_type(self) -> int:
        """`CREATE_TIME` or `LOG_APPEND_TIME`."""
        return LOG_APPEND_TIME if self.attributes & APPEND_TIME_BIT else CREATE_TIME

    @property
    def is_plain(self) -> bool:
        """Whether the records are in plain form (`plain`): uncompressed v2."""
        return self.magic == MAGIC and not self.codec

    @property
    def is_wrapper(self) -> bool:
        """Whether this is a wrapper of v0 or v1, which has neither its first offset nor a count."""
        return self.magic < MAGIC and self.codec != 0

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon(self) -> int | None:
        """When a cleaner may drop this batch's tombstones, in ms, or None."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def size_at(data: Buffer, at: int) -> int:
    """Return the size in bytes of the batch at `data[at:]`, of any format, by its size field.

    Its first LOG_OVERHEAD bytes must exist; after damage, the result may be any number, also a
    negative one.
    """
    return (
        int.from_bytes(data[at + LENGTH_POSITION : at + LOG_OVERHEAD], "big", signed=True)
        + LOG_OVERHEAD
    )


def parse_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `data[at:]`, of any format.

    The length and the CRC are not checked: the rest of the batch need not exist. Errors:
    CorruptRecord (position = `at`) if the header is incomplete (v2: 61 bytes, v0: 18, v1: 26), the
    magic is not 0, 1 or 2, or the length is shorter than the format's shortest.
    """
    if at < 0 or len(data) - at <= MAGIC_POSITION:
        raise CorruptRecord("a batch's header is truncated", position=at)
    magic = data[at + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptRecord(f"unknown record format: magic {magic}", position=at)
    layout = (_V0, _V1, V2)[magic]
    if len(data) - at < layout.size:
        raise CorruptRecord("a batch's header is truncated", position=at)
    fields = layout.unpack_from(data, at)
    if fields[1] < SMALLEST_SIZE[magic]:
        raise CorruptRecord(f"batch length {fields[1]} is less than the header size", position=at)
    if magic == MAGIC:
        return BatchHeader._make(fields)
    offset, size, crc, _, bits = fields[:5]
    # LegacyRecord's codec and timestamp type have the bits that they have in v2.
    attributes = bits & (CODEC_BITS | APPEND_TIME_BIT if magic else CODEC_BITS)
    return entry_header(offset, size, magic, crc, attributes, fields[5] if magic else NO_TIMESTAMP)


def entry_header(
    offset: int, length: int, magic: int, crc: int, attributes: int, timestamp: int = NO_TIMESTAMP
) -> BatchHeader:
    """Return the header of an entry of v0 or v1, with the equivalents of a batch's fields."""
    count = -1 if attributes & CODEC_BITS else 1
    return BatchHeader(
        offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, count
    )


def pack(header: BatchHeader, records: Buffer) -> bytes:
    """Return a v2 header with the encoded records; its batch length and CRC are computed here."""
    batch = bytearray(HEADER_SIZE) + records
    V2.pack_into(batch, 0, *header)
    seal(batch)
    return bytes(batch)
