"""The plain form of a batch: an uncompressed v2 batch, whatever its format and codec.

All that shows, measures or decodes records works on plain forms. A v2 batch keeps its header but
for the codec bits and its length; v0 and v1 messages become v2 records (KIP-98's rules for
down-conversion, the other way round): v0 has no timestamps (-1), neither has a producer or a
leader epoch. The CRC field of a plain form is 0; the stored CRC has been checked.

In v0 and v1 (0.8 to 0.10, LegacyRecord.java; only read) a compressed *wrapper* holds complete
messages of its own format. Its offset is that of its last message. Inside, v0 keeps absolute
offsets, v1 counts from 0 (compaction may leave gaps). With append time all messages have the
wrapper's timestamp. Nested wrappers, null values and sets without a message are invalid
(AbstractLegacyRecordBatch.java).

Layouts: `storage/record/header.py`. Not here: what control records mean.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from storage.errors import CorruptRecord
from storage.record._plain import convert_run, convert_set, plain_v2, seal
from storage.record.compression import (
    BEST_RATIOS,
    CODECS,
    GZIP,
    MAX_DECOMPRESSED_BYTES,
    compress,
    decompress,
    largest_decompressed,
)
from storage.record.header import (
    APPEND_TIME_BIT,
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
    size_at,
)

# Bytes of a log of uncompressed messages that become one batch.
RUN_BYTES: Final = 16 * 1024
# The most bytes that a byte of a gzip stream usually stands for; the real number is not known.
_LIKELY_RATIO: Final = 32

_i32 = struct.Struct(">i").unpack_from
# The position of the key in an entry of v0, and of v1.
_KEY = (18, 26)


def plain(
    data: Buffer, at: int, end: int, limit: int = MAX_DECOMPRESSED_BYTES
) -> tuple[bytearray, int]:
    """Return the batch at `data[at:end]` in plain form, and the number of stored bytes.

    Uncompressed v0 and v1 messages that are whole before `end`, up to 16 KiB of log, become one
    batch. For a batch that is incomplete before `end`: empty bytes, and its size (17 if not even
    its size is there). Errors: CorruptRecord, with the batch's position in `data`, for a wrong CRC,
    an invalid stream, records that do not fill the batch; TooLarge for a stream that decompresses
    to more than `limit` bytes.
    """
    assert 0 <= at <= end <= len(data), (at, end, len(data))
    if end - at < FRAME_SIZE:
        return bytearray(), FRAME_SIZE
    (size,) = _i32(data, at + LENGTH_POSITION)
    magic = data[at + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptRecord(f"unknown record format: magic {magic}", position=at)
    if size < SMALLEST_SIZE[magic]:
        raise CorruptRecord(f"batch length {size} is less than the header size", position=at)
    size += LOG_OVERHEAD
    if size > end - at:
        return bytearray(), size
    if magic < MAGIC:
        return _plain_legacy(data, at, end, limit)
    try:
        return plain_v2(data, at, size, decompress, limit), size
    except CorruptRecord as error:
        error.position = at
        error.offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        raise


def decoded_sizes(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return the probable and the certain bound of the decompressed size of the batch at
    `data[at:end]`; zeros if it is not compressed, or not whole.
    """
    if end - at <= FLAGS_POSITION:
        return 0, 0
    is_v2 = data[at + MAGIC_POSITION] == MAGIC
    codec = data[at + (FLAGS_POSITION if is_v2 else LEGACY_FLAGS_POSITION)] & CODEC_BITS
    size = size_at(data, at)
    if not codec or size > end - at:
        return 0, 0
    if is_v2 and codec != GZIP:
        most = largest_decompressed(codec, memoryview(data)[at + HEADER_SIZE : at + size])
    else:
        most = size * BEST_RATIOS[codec]
    most = min(most, MAX_DECOMPRESSED_BYTES)
    return min(most, size * _LIKELY_RATIO) if codec == GZIP else most, most


def _plain_legacy(data: Buffer, at: int, end: int, limit: int) -> tuple[bytearray, int]:
    """Return the wrapper at `data[at]`, or the run of messages there, as a v2 batch with a CRC of
    0, and the number of stored bytes. The first entry is whole before `end`.

    Errors: CorruptRecord, its position `at`.
    """
    if not data[at + LEGACY_FLAGS_POSITION] & CODEC_BITS:
        return convert_run(data, at, end, RUN_BYTES)
    header = parse_header(data, at)
    entry = memoryview(data)[at : at + header.size]
    if zlib.crc32(entry[MAGIC_POSITION:]) != header.crc:
        raise CorruptRecord("a message's CRC is wrong", position=at, offset=header.base_offset)
    append_time = bool(header.attributes & APPEND_TIME_BIT)
    try:
        messages = decompress(header.codec, _value(entry, header), magic=header.magic, limit=limit)
        made = convert_set(
            messages, header.magic, header.base_offset, header.max_timestamp, append_time
        )
    except CorruptRecord as error:
        error.position, error.offset = at, header.base_offset
        raise
    return made, header.size


def _value(entry: memoryview, header: BatchHeader) -> memoryview:
    """Return a wrapper's value, after a key that is ignored."""
    at = _KEY[header.magic]
    length = int.from_bytes(entry[at : at + 4], "big", signed=True)
    if length < -1 or length > len(entry) - at - 8:
        raise CorruptRecord("a message's key exceeds the message")
    at += 4 + max(length, 0)
    length = int.from_bytes(entry[at : at + 4], "big", signed=True)
    if length == -1:
        raise CorruptRecord("a wrapper's value is null")
    if length < 0 or at + 4 + length != len(entry):
        raise CorruptRecord("a message's key and value do not fill it")
    return entry[at + 4 :]


def first_offset(data: Buffer, header: BatchHeader) -> int:
    """Return the offset of the first record of the batch `data`, which begins with that header.

    Only a wrapper is decoded, whose header has the last offset. Errors: CorruptRecord if it is
    damaged inside.
    """
    if not header.is_wrapper:
        return header.base_offset
    made, _ = plain(data, 0, len(data))
    return parse_header(made).base_offset


def recompress(batch: Buffer, codec: int, level: int | None = None) -> bytes:
    """Return the v2 batch with `codec` (0: uncompressed), otherwise unchanged, with its new CRC.

    A control batch, an empty one, and one that has that codec already, whatever its level, are
    returned unchanged and unchecked. Errors: CorruptRecord.
    """
    if len(batch) < HEADER_SIZE:
        raise CorruptRecord("a batch's header is truncated", position=0)
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
        raise CorruptRecord("a batch is truncated", position=0)
    return _with_codec(made, codec, level)


def _with_codec(made: bytearray, codec: int, level: int | None = None) -> bytes:
    """Return the stored form of a plain form, whose memory is reused."""
    if codec:
        records = compress(codec, memoryview(made)[HEADER_SIZE:], level)
        made[HEADER_SIZE:] = records
        made[FLAGS_POSITION] |= codec
    seal(made)
    return bytes(made)


def compressed(made: bytearray, codec: int, level: int | None = None) -> bytes:
    """Return an uncompressed v2 batch with `codec`, or unchanged if that makes it no smaller. The
    stored form is decompressed and compared. Errors: CorruptRecord.
    """
    stored = _with_codec(made.copy(), codec, level)
    if len(stored) >= len(made):
        return bytes(made)
    again, _ = plain(stored, 0, len(stored))
    if again[HEADER_SIZE:] != memoryview(made)[HEADER_SIZE:]:
        raise CorruptRecord(f"{CODECS[codec]}: a batch differs after its compression", position=0)
    return stored


def to_v2(
    data: Buffer, at: int, end: int, limit: int = MAX_DECOMPRESSED_BYTES
) -> tuple[bytes, int]:
    """Return the v0 or v1 wrapper at `data[at:end]`, or the run of messages there, as a stored v2
    batch.

    Its codec is the wrapper's. Return the batch and the number of stored bytes. Errors: those of
    `plain`.
    """
    made, size = plain(data, at, end, limit)
    if not made:
        return b"", size
    codec = data[at + LEGACY_FLAGS_POSITION] & CODEC_BITS
    return _with_codec(made, codec), size
