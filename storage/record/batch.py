"""The v2 record batch: a header of 61 bytes and its records (DefaultRecordBatch.java, KIP-98).

Layout, big-endian, byte positions from the batch's start:

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
  61  records
====  ====================  ===  ========================================================

A record (DefaultRecord.java) is: length varint, attributes i8, timestampDelta varlong,
offsetDelta varint, keyLength varint (-1 = null), key, valueLength varint (-1 = null), value,
headerCount varint, headers; a header is: keyLength varint, key, valueLength varint (-1 = null),
value. Varints are zig-zag, then groups of 7 bits from the lowest, at most 5 bytes (varlong 10).

Not here: codecs, older formats, what control records mean, and speed (`_batch`, the views).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from storage.errors import CorruptRecord, UnsupportedFormat

Buffer: TypeAlias = bytes | bytearray | memoryview

LOG_OVERHEAD: Final = 12
HEADER_SIZE: Final = 61
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

CODEC_BITS: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21


class BatchHeader(NamedTuple):
    """The header of a v2 batch, field by field as it is stored."""

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
        """Index into `CODECS`; 5 to 7 are not assigned."""
        return self.attributes & CODEC_BITS

    @property
    def timestamp_type(self) -> int:
        """`CREATE_TIME` or `LOG_APPEND_TIME`."""
        return LOG_APPEND_TIME if self.attributes & APPEND_TIME_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon(self) -> int | None:
        """When a cleaner may drop this batch's tombstones, in ms; None where none is set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


class Record(NamedTuple):
    """One record. `timestamp` is in ms, -1 = none; a None key or value is null, not empty."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def unsupported(magic: int, attributes: int) -> str | None:
    """Name what is not built yet in a batch with this magic and these attributes; None = all is."""
    if magic in (0, 1):
        return f"message format v{magic}"
    codec = attributes & CODEC_BITS
    if 0 < codec < len(CODECS):
        return f"{CODECS[codec]} compression"
    if attributes & TRANSACTIONAL_BIT:
        return "transactions"
    return "control records" if attributes & CONTROL_BIT else None


def parse_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `data[at:]`.

    The length and the CRC are not checked: the rest of the batch need not be there.

    Raises CorruptRecord (position = `at`) where fewer than 61 bytes are left, the magic is not 2
    or the length is shorter than a header's; UnsupportedFormat for the older formats.
    """
    if at < 0 or len(data) - at < HEADER_SIZE:
        raise CorruptRecord("a batch's header is cut off", position=at)
    header = BatchHeader._make(_HEADER.unpack_from(data, at))
    if header.magic != MAGIC:
        what = unsupported(header.magic, 0)
        if what is not None:
            raise UnsupportedFormat(what, position=at)
        raise CorruptRecord(f"no record format has magic {header.magic}", position=at)
    if header.size < HEADER_SIZE:
        raise CorruptRecord(
            f"batch length {header.batch_length} is less than a header's", position=at
        )
    return header


def decode(data: Buffer, at: int = 0) -> list[Record]:
    """Read the whole batch at `data[at:]`: CRC checked, everything that a reader must reject.

    Control records come back as records: their meaning is not judged here.

    Raises CorruptRecord, its position the batch's or the malformed record's in `data`;
    UnsupportedFormat for codecs and formats that are not built yet.
    """
    header = parse_header(data, at)
    end = at + header.size
    if end > len(data):
        raise CorruptRecord("a batch is cut off", position=at, offset=header.base_offset)
    if header.crc != crc32c(memoryview(data)[at + _CRC_START : end]):
        raise CorruptRecord("a batch's CRC is wrong", position=at, offset=header.base_offset)
    if header.codec:
        what = unsupported(header.magic, header.codec)
        if what is None:
            raise CorruptRecord(f"no codec has number {header.codec}", position=at)
        raise UnsupportedFormat(what, position=at)
    if header.records_count < 0:
        raise CorruptRecord(f"record count {header.records_count}", position=at)
    reader = _Reader(data, at + HEADER_SIZE, end)
    records = [_read_record(reader, header) for _ in range(header.records_count)]
    if reader.position != end:
        raise CorruptRecord("bytes are left after a batch's records", position=reader.position)
    return records


def encode(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    leader_epoch: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Write one uncompressed batch; `base_offset` is by default that of the first record.

    The base timestamp is the first record's and the largest one the records' largest, so where
    `attributes` has the LogAppendTime bit all records should have the append time already
    (their own `timestamp_type` is not looked at).
    """
    assert records, "an empty batch is made by pack"
    assert not attributes & (CODEC_BITS | DELETE_HORIZON_BIT)
    first = records[0]
    base = first.offset if base_offset is None else base_offset
    header = BatchHeader(
        base_offset=base,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=records[-1].offset - base,
        base_timestamp=first.timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(records),
    )
    return pack(header, encode_records(records, base, first.timestamp))


def pack(header: BatchHeader, records: Buffer) -> bytes:
    """Put a header before encoded records; its batch length and CRC are worked out here."""
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    _HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD, crc=0))
    struct.pack_into(">I", batch, _CRC_START - 4, crc32c(memoryview(batch)[_CRC_START:]))
    return bytes(batch)


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """The records of a batch, back to back, without its header."""
    out = bytearray()
    for record in records:
        body = bytearray(1)
        body += _varint(record.timestamp - base_timestamp)
        body += _varint(record.offset - base_offset)
        _put_bytes(body, record.key)
        _put_bytes(body, record.value)
        body += _varint(len(record.headers))
        for name, value in record.headers:
            _put_bytes(body, name.encode())
            _put_bytes(body, value)
        out += _varint(len(body))
        out += body
    return bytes(out)


def _varint(value: int) -> bytes:
    """Zig-zag, then 7 bits a byte from the lowest; the same for varints and varlongs."""
    bits = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += _varint(-1)
    else:
        out += _varint(len(value))
        out += value


class _Reader:
    """Takes fields from `data[position:end]` and never looks beyond `end`."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: Buffer, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def fail(self, reason: str) -> CorruptRecord:
        return CorruptRecord(reason, position=self.position)

    def byte(self) -> int:
        if self.position >= self.end:
            raise self.fail("a record goes beyond its end")
        value = self.data[self.position]
        self.position += 1
        return value

    def varint(self, width: int = 32) -> int:
        """A varint (width 32) or varlong (64). Bits beyond the width are dropped, as Kafka does."""
        bits = 0
        for shift in range(0, (width + 6) // 7 * 7, 7):
            byte = self.byte()
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                bits &= (1 << width) - 1
                return (bits >> 1) ^ -(bits & 1)
        raise self.fail("a varint has no end")

    def nullable(self) -> bytes | None:
        length = self.varint()
        if length == -1:
            return None
        if length < 0 or length > self.end - self.position:
            raise self.fail(f"field length {length} does not fit its record")
        start = self.position
        self.position += length
        return bytes(self.data[start : self.position])


def _read_record(batch: _Reader, header: BatchHeader) -> Record:
    start = batch.position
    length = batch.varint()
    if length < 0 or length > batch.end - batch.position:
        raise CorruptRecord(f"record length {length} does not fit its batch", position=start)
    reader = _Reader(batch.data, batch.position, batch.position + length)
    batch.position = reader.end
    reader.byte()
    timestamp = header.base_timestamp + reader.varint(64)
    offset = header.base_offset + reader.varint()
    key = reader.nullable()
    value = reader.nullable()
    count = reader.varint()
    # A header takes two bytes at least: the bound keeps a damaged count from running for ever.
    if count < 0 or count > (reader.end - reader.position) // 2:
        raise reader.fail(f"header count {count} does not fit its record")
    headers = tuple(_read_header(reader) for _ in range(count))
    if reader.position != reader.end:
        raise reader.fail("bytes are left after a record's headers")
    if header.attributes & APPEND_TIME_BIT:
        timestamp = header.max_timestamp
    return Record(offset, timestamp, header.timestamp_type, key, value, headers)


def _read_header(reader: _Reader) -> tuple[str, bytes | None]:
    name = reader.nullable()
    if name is None:
        raise reader.fail("a header's name is null")
    try:
        return name.decode(), reader.nullable()
    except UnicodeDecodeError:
        raise reader.fail("a header's name is not UTF-8") from None
