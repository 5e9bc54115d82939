"""The plain form of a batch: an uncompressed v2 batch, whatever its format and codec.

All that shows, measures or decodes records works on plain forms. A v2 batch keeps its header but
for the codec bits and its length; v0 and v1 messages become v2 records (KIP-98's rules for
down-conversion, the other way round): v0 has no timestamps (-1), neither has a producer or a
leader epoch. The CRC field of a plain form is 0, "not worked out": the stored one has been checked.

Not here: format 0.7, which has no offsets, and what control records mean.
"""

from __future__ import annotations

import struct

from storage.errors import CorruptRecord
from storage.record._plain import plain_v2, seal
from storage.record.compression import compress, decompress
from storage.record.header import (
    CODEC_BITS,
    CONTROL_BIT,
    FLAGS_POSITION,
    FRAME_SIZE,
    HEADER_SIZE,
    LEGACY_FLAGS_POSITION,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    RECORDS_COUNT_POSITION,
    SMALLEST_SIZE,
    BatchHeader,
    Buffer,
    parse_header,
)
from storage.record.legacy import plain_legacy

_i32 = struct.Struct(">i").unpack_from


def plain(data: Buffer, at: int, end: int) -> tuple[bytearray, int]:
    """The batch at `data[at:end]` in plain form, and the count of bytes that it stands for.

    Of uncompressed v0 and v1 messages one batch is made of as many as are whole before `end`, up
    to 16 KiB of log. A batch that is not whole before `end`: empty bytes, and its size (where not
    even that is there, 17, which tell it).

    Raises CorruptRecord, its position the batch's in `data`, for what a reader must reject: a
    wrong CRC, a stream that is none or too large, records that do not fill the batch.
    """
    assert 0 <= at <= end <= len(data), (at, end, len(data))
    if end - at < FRAME_SIZE:
        return bytearray(), FRAME_SIZE
    (size,) = _i32(data, at + LENGTH_POSITION)
    magic = data[at + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptRecord(f"no record format has magic {magic}", position=at)
    if size < SMALLEST_SIZE[magic]:
        raise CorruptRecord(f"batch length {size} is less than a header's", position=at)
    size += LOG_OVERHEAD
    if size > end - at:
        return bytearray(), size
    if magic < MAGIC:
        return plain_legacy(data, at, end)
    try:
        return plain_v2(data, at, size, decompress), size
    except CorruptRecord as error:
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        raise CorruptRecord(error.message, position=at, offset=offset) from None


def first_offset(data: Buffer, header: BatchHeader) -> int:
    """The offset of the first record of the batch `data`, which begins with that header.

    Only of a wrapper, whose header tells the last one, are the bytes looked at. CorruptRecord where
    it is damaged inside.
    """
    if not header.is_wrapper:
        return header.base_offset
    made, _ = plain(data, 0, len(data))
    return parse_header(made).base_offset


def recompress(batch: Buffer, codec: int, level: int | None = None) -> bytes:
    """The v2 batch with `codec` (0: uncompressed), everything else in it kept, its CRC right.

    A control batch, an empty one, and one that has that codec already come back as they are and
    are not looked at: what is asked for is a codec, not a level.

    Raises CorruptRecord.
    """
    if len(batch) < HEADER_SIZE:
        raise CorruptRecord("a batch's header is cut off", position=0)
    assert batch[MAGIC_POSITION] == MAGIC, "to_v2 comes first"
    attributes = batch[FLAGS_POSITION]
    if (
        attributes & CONTROL_BIT
        or attributes & CODEC_BITS == codec
        or _i32(batch, RECORDS_COUNT_POSITION)[0] == 0
    ):
        return bytes(batch[: _i32(batch, LENGTH_POSITION)[0] + LOG_OVERHEAD])
    made, _ = plain(batch, 0, len(batch))
    if not made:
        raise CorruptRecord("a batch is cut off", position=0)
    return _with_codec(made, codec, level)


def _with_codec(made: bytearray, codec: int, level: int | None = None) -> bytes:
    """What is stored of a plain form, which is used up."""
    if codec:
        records = compress(codec, memoryview(made)[HEADER_SIZE:], level)
        made[HEADER_SIZE:] = records
        made[FLAGS_POSITION] |= codec
    seal(made)
    return bytes(made)


def to_v2(data: Buffer, at: int, end: int) -> tuple[bytes, int]:
    """The v0 or v1 wrapper at `data[at:end]`, or the run of messages there, as a stored v2 batch.

    Its codec is the wrapper's. Returns the batch and the count of bytes that it stands for, as
    `plain` does, and raises what that raises.
    """
    made, size = plain(data, at, end)
    if not made:
        return b"", size
    codec = data[at + LEGACY_FLAGS_POSITION] & CODEC_BITS
    return _with_codec(made, codec), size
