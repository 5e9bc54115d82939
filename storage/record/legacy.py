"""Formats v0 and v1 (0.8 to 0.10, LegacyRecord.java), read only: wrappers and messages to v2.

A compressed *wrapper* holds complete messages of its own format. Its offset is that of its last
message. Inside, v0 keeps absolute offsets, v1 counts from 0 (compaction may leave gaps). With
append time all messages have the wrapper's timestamp. Nested wrappers, null values and sets
without a message are invalid (AbstractLegacyRecordBatch.java).

Layouts: `storage/record/header.py`. Not here: format 0.7.
"""

from __future__ import annotations

import zlib
from typing import Final

from storage.errors import CorruptRecord
from storage.record._legacy import convert_run, convert_set
from storage.record.compression import decompress
from storage.record.header import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    LEGACY_FLAGS_POSITION,
    MAGIC_POSITION,
    BatchHeader,
    Buffer,
    parse_header,
)

# So much of a log of uncompressed messages becomes one batch.
RUN_BYTES: Final = 16 * 1024

_KEY = (18, 26)


def plain_legacy(data: Buffer, at: int, end: int) -> tuple[bytearray, int]:
    """The wrapper at `data[at]`, or the run of messages there, as a v2 batch with a CRC of 0.

    Returns it and the count of bytes that it stands for. The first entry is whole before `end`.

    Raises CorruptRecord, its position `at`.
    """
    if not data[at + LEGACY_FLAGS_POSITION] & CODEC_BITS:
        return convert_run(data, at, end, RUN_BYTES)
    header = parse_header(data, at)
    entry = memoryview(data)[at : at + header.size]
    if zlib.crc32(entry[MAGIC_POSITION:]) != header.crc:
        raise CorruptRecord("a message's CRC is wrong", position=at, offset=header.base_offset)
    try:
        return _unwrap(entry, header), header.size
    except CorruptRecord as error:
        raise CorruptRecord(error.message, position=at, offset=header.base_offset) from None


def _unwrap(entry: memoryview, header: BatchHeader) -> bytearray:
    messages = decompress(header.codec, _value(entry, header), magic=header.magic)
    return convert_set(
        messages,
        header.magic,
        header.base_offset,
        header.max_timestamp,
        bool(header.attributes & APPEND_TIME_BIT),
    )


def _value(entry: memoryview, header: BatchHeader) -> memoryview:
    """A wrapper's value, behind a key that nobody looks at."""
    at = _KEY[header.magic]
    length = int.from_bytes(entry[at : at + 4], "big", signed=True)
    if length < -1 or length > len(entry) - at - 8:
        raise CorruptRecord("a message's key does not fit it")
    at += 4 + max(length, 0)
    length = int.from_bytes(entry[at : at + 4], "big", signed=True)
    if length == -1:
        raise CorruptRecord("a wrapper's value is null")
    if length < 0 or at + 4 + length != len(entry):
        raise CorruptRecord("a message's key and value do not fill it")
    return entry[at + 4 :]
