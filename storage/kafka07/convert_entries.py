"""Entries of Kafka 0.7 as stored v2 batches, which keep every id.

An entry's id, a byte position, becomes its record's offset.  A batch spans the ids of all the bytes
that it was made of (its last offset is the one before the next entry's), so the next offset, at the
log's end too, is the next id.  The messages of a compressed set have one id between them; they take
it and those that follow, of which a set has as many as bytes.

Pure.  Not here: files.
"""

from __future__ import annotations

from storage.errors import InvalidRecord
from storage.record.batch import Record, encode_records
from storage.record.columns._columns import decode_columns
from storage.record.compression import compress
from storage.record.header import (
    CREATE_TIME,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    pack,
    parse_header,
)
from storage.record.legacy_07 import plain_07

_CODEC_BITS = 0x03


def entries_to_v2(data: Buffer, at: int, end: int, id_: int) -> tuple[bytes, int]:
    """The run of messages at ``data[at:end]``, or the set there, as one batch; the bytes it takes.

    The codec stays.  Empty bytes where the first entry is not whole.  CorruptRecord, its position
    in ``data``; InvalidRecord for a set of more messages than bytes.
    """
    made, size = plain_07(data, at, end, id_)
    if not made:
        return b"", size
    header = parse_header(made)._replace(last_offset_delta=size - 1)
    codec = data[at + 5] & _CODEC_BITS if data[at + 4] else 0
    if not codec or not header.records_count:
        return pack(header, memoryview(made)[HEADER_SIZE:]), size
    if header.records_count > size:
        raise InvalidRecord(
            f"a compressed set holds {header.records_count} messages in {size} bytes, so there "
            "are not enough ids for them",
            offset=id_,
        )
    records = encode_records(_numbered(made, header), id_, NO_TIMESTAMP)
    return pack(header._replace(attributes=codec), compress(codec, records)), size


def _numbered(made: Buffer, header: BatchHeader) -> list[Record]:
    """The records of a set, each with an offset of its own."""
    columns = decode_columns(made, 0, len(made), keys=False)
    assert columns.value_positions is not None
    assert columns.values is not None
    positions = memoryview(columns.value_positions).cast("i")
    values = bytes(columns.values)
    return [
        Record(
            header.base_offset + number,
            NO_TIMESTAMP,
            CREATE_TIME,
            None,
            values[positions[number] : positions[number + 1]],
        )
        for number in range(header.records_count)
    ]
