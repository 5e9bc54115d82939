"""The plain form of a batch: an uncompressed v2 batch, whatever its format and codec.

All that shows, measures or decodes records works on plain forms. A v2 batch keeps its header but
for the codec bits and its length; v0 and v1 messages become v2 records (KIP-98's rules for
down-conversion, the other way round): v0 has no timestamps (-1), neither has a producer or a
leader epoch. The CRC field of a plain form is 0, "not worked out": the stored one has been checked.

Not here: format 0.7, which has no offsets, and what control records mean.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from storage.errors import CorruptRecord
from storage.record._batch import check_records
from storage.record.compression import compress, decompress
from storage.record.header import (
    CODEC_BITS,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    SMALLEST_SIZE,
    Buffer,
    pack,
    parse_header,
)
from storage.record.legacy import plain_legacy

# Bytes that tell a batch's size and format.
FRAME_SIZE: Final = 17

_LOW_ATTRIBUTES = 22
_RECORDS_COUNT = 57
_size_of = struct.Struct(">i").unpack_from
_crc_of = struct.Struct(">I").unpack_from


def plain(data: Buffer, at: int, end: int) -> tuple[bytes | bytearray, int]:
    """The batch at `data[at:end]` in plain form, and the count of bytes that it stands for.

    Of uncompressed v0 and v1 messages one batch is made of as many as are whole before `end`, up
    to 16 KiB of log. A batch that is not whole before `end`: empty bytes, and its size (where not
    even that is there, 17, which tell it).

    Raises CorruptRecord, its position the batch's in `data`, for what a reader must reject: a
    wrong CRC, a stream that is none or too large, records that do not fill the batch.
    """
    assert 0 <= at <= end <= len(data), (at, end, len(data))
    if end - at < FRAME_SIZE:
        return b"", FRAME_SIZE
    (size,) = _size_of(data, at + 8)
    magic = data[at + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptRecord(f"no record format has magic {magic}", position=at)
    if size < SMALLEST_SIZE[magic]:
        raise CorruptRecord(f"batch length {size} is less than a header's", position=at)
    size += LOG_OVERHEAD
    if size > end - at:
        return b"", size
    if magic < MAGIC:
        return plain_legacy(data, at, end)
    try:
        return _plain_v2(memoryview(data)[at : at + size]), size
    except CorruptRecord as error:
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        raise CorruptRecord(error.message, position=at, offset=offset) from None


def _plain_v2(batch: memoryview) -> bytearray:
    if crc32c(batch[CRC_START:]) != _crc_of(batch, 17)[0]:
        raise CorruptRecord("a batch's CRC is wrong")
    codec = batch[_LOW_ATTRIBUTES] & CODEC_BITS
    (count,) = _size_of(batch, _RECORDS_COUNT)
    made = bytearray(batch[:HEADER_SIZE])
    records: Buffer = batch[HEADER_SIZE:]
    # A batch without records may have no stream either (DefaultRecordBatch.iterator).
    if codec and (records or count):
        records = decompress(codec, records)
    made += records
    made[_LOW_ATTRIBUTES] &= ~CODEC_BITS
    struct.pack_into(">i", made, 8, len(made) - LOG_OVERHEAD)
    struct.pack_into(">I", made, 17, 0)
    check_records(made)
    return made


def recompress(batch: Buffer, codec: int, level: int | None = None) -> bytes:
    """The v2 batch with `codec` (0: uncompressed), everything else in it kept, its CRC right.

    A control batch, an empty one, and one that has that codec already come back as they are:
    what is asked for is a codec, not a level.

    Raises CorruptRecord.
    """
    header = parse_header(batch)
    assert not header.is_legacy, "to_v2 comes first"
    if header.is_control or header.records_count == 0 or header.codec == codec:
        return bytes(batch[: header.size])
    made, _ = plain(batch, 0, len(batch))
    if not made:
        raise CorruptRecord("a batch is cut off", position=0, offset=header.base_offset)
    attributes = header.attributes & ~CODEC_BITS | codec
    records = compress(codec, memoryview(made)[HEADER_SIZE:], level)
    return pack(header._replace(attributes=attributes), records)


def to_v2(data: Buffer, at: int, end: int) -> tuple[bytes, int]:
    """The v0 or v1 wrapper at `data[at:end]`, or the run of messages there, as a stored v2 batch.

    Its codec is the wrapper's. Returns the batch and the count of bytes that it stands for, as
    `plain` does, and raises what that raises.
    """
    made, size = plain(data, at, end)
    if not made:
        return b"", size
    codec = data[at + FRAME_SIZE] & CODEC_BITS
    header = parse_header(made)
    records = compress(codec, memoryview(made)[HEADER_SIZE:])
    return pack(header._replace(attributes=header.attributes | codec), records), size
