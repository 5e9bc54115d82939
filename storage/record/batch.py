"""The records of a batch: decode any format, encode v2 (DefaultRecord.java, KIP-98).

Headers, and the formats before v2: `storage/record/header.py`.

A v2 record is: length varint, attributes i8, timestampDelta varlong,
offsetDelta varint, keyLength varint (-1 = null), key, valueLength varint (-1 = null), value,
headerCount varint, headers; a header is: keyLength varint, key, valueLength varint (-1 = null),
value. Varints are zig-zag, then groups of 7 bits from the lowest, at most 5 bytes (varlong 10).

Not here: what control records mean, and speed (`_batch`, `_columns`, the views).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from storage.errors import CorruptRecord
from storage.record.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    Buffer,
    pack,
    parse_header,
)
from storage.record.plain import plain


class Record(NamedTuple):
    """One record. `timestamp` is in ms, -1 = none; a None key or value is null, not empty.

    A header's name is UTF-8 only by convention: other bytes in it are kept as surrogates
    (`surrogateescape`), while Kafka's reader shows U+FFFD.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def decode(data: Buffer, at: int = 0) -> list[Record]:
    """Read the whole batch at `data[at:]`, of any format and codec, with all checks, including the
    CRC.

    Control records are returned as records, without a check of their meaning. A batch of v0 and v1
    is one message, or the messages of one wrapper. Errors: CorruptRecord, with the batch's position
    in `data`; for an uncompressed v2 batch with that of the malformed record.
    """
    header = parse_header(data, at)
    made, _ = plain(data, at, min(at + header.size, len(data)))
    if not made:
        raise CorruptRecord("a batch is truncated", position=at, offset=header.base_offset)
    try:
        return decode_plain(made)
    except CorruptRecord as error:
        # Only an uncompressed v2 batch is its own plain form, with positions in `data`.
        position = at + (error.position or 0) if header.is_plain else at
        raise CorruptRecord(error.message, position=position, offset=header.base_offset) from None


def decode_plain(data: Buffer, at: int = 0) -> list[Record]:
    """Read the uncompressed v2 batch at `data[at:]`, which is whole; no CRC is checked. Errors:
    CorruptRecord, with the malformed record's position in `data`.
    """
    return list(plain_records(data, at))


def plain_records(data: Buffer, at: int = 0) -> Iterator[Record]:
    """Yield the records of `decode_plain`. Errors: those of `decode_plain`."""
    header = parse_header(data, at)
    end = at + header.size
    if not header.is_plain or end > len(data):
        raise CorruptRecord("the batch is compressed", position=at, offset=header.base_offset)
    if header.records_count < 0:
        raise CorruptRecord(f"record count {header.records_count}", position=at)
    reader = _Reader(data, at + HEADER_SIZE, end)
    for _ in range(header.records_count):
        yield _read_record(reader, header)
    if reader.position != end:
        raise CorruptRecord("bytes remain after a batch's records", position=reader.position)


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

    The base timestamp is the first record's and the largest one the records' largest. So if
    `attributes` has the LogAppendTime bit, all records should have the append time already (their
    own `timestamp_type` is ignored).
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


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Return the encoded records of a batch, without its header."""
    out = bytearray()
    for record in records:
        body = bytearray(1)
        body += _varint(record.timestamp - base_timestamp)
        body += _varint(record.offset - base_offset)
        _put_bytes(body, record.key)
        _put_bytes(body, record.value)
        body += _varint(len(record.headers))
        for name, value in record.headers:
            _put_bytes(body, name.encode(errors="surrogateescape"))
            _put_bytes(body, value)
        out += _varint(len(body))
        out += body
    return bytes(out)


def _varint(value: int) -> bytes:
    """Return zig-zag, then 7 bits a byte from the lowest; the same for varints and varlongs."""
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
    """Takes fields from `data[position:end]` and never reads after `end`."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: Buffer, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def fail(self, reason: str) -> CorruptRecord:
        return CorruptRecord(reason, position=self.position)

    def byte(self) -> int:
        if self.position >= self.end:
            raise self.fail("a record extends beyond its end")
        value = self.data[self.position]
        self.position += 1
        return value

    def varint(self, width: int = 32) -> int:
        """Return a varint (width 32) or varlong (64). Like Kafka, drop bits beyond the width."""
        bits = 0
        for shift in range(0, (width + 6) // 7 * 7, 7):
            byte = self.byte()
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                bits &= (1 << width) - 1
                return (bits >> 1) ^ -(bits & 1)
        raise self.fail("a varint is not terminated")

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
    timestamp = _long(header.base_timestamp + reader.varint(64))
    offset = _long(header.base_offset + reader.varint())
    key = reader.nullable()
    value = reader.nullable()
    count = reader.varint()
    # A header takes two bytes at least: the bound ends the loop for a damaged count.
    if count < 0 or count > (reader.end - reader.position) // 2:
        raise reader.fail(f"header count {count} does not fit its record")
    headers = tuple(_read_header(reader) for _ in range(count))
    if reader.position != reader.end:
        raise reader.fail("bytes remain after a record's headers")
    if header.attributes & APPEND_TIME_BIT:
        timestamp = header.max_timestamp
    return Record(offset, timestamp, header.timestamp_type, key, value, headers)


def _long(value: int) -> int:
    """Return the number as Java's long arithmetic has it; only damaged batches overflow."""
    return value if -(1 << 63) <= value < 1 << 63 else (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _read_header(reader: _Reader) -> tuple[str, bytes | None]:
    name = reader.nullable()
    if name is None:
        raise reader.fail("a header's name is null")
    return name.decode(errors="surrogateescape"), reader.nullable()
