"""Kafka 0.7's log entries, whose ids are byte positions (0.7.2: kafka/message/Message.scala).

An entry is a length and a message, big-endian:

====  ==========  ===  ====================================================================
   0  length      i32  N, the bytes after this field
   4  magic       i8   0 or 1
   5  attributes  i8   magic 1 only: bits 0-1 codec (0 none, 1 gzip, 2 snappy)
   5  crc         u32  CRC-32 of the payload alone (magic 1: at 6)
   9  payload          N - 5 bytes (magic 1: at 10, N - 6)
====  ==========  ===  ====================================================================

There is no key, no timestamp and no stored offset. An entry's *id* is its position in bytes in the
stream that the partition's files are; the next one's is 4 + N higher. Here ids are offsets, with
gaps between them as compaction leaves them.

A codec's payload is a compressed *set*: whole entries back to back. They have no ids: 0.7's
consumer resumes at the set until it has taken the last of them (ByteBufferMessageSet.scala), so
each has the set's id as its offset here.

Pure. Not here: files (`segment`), the codecs (`record.compression`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from storage.errors import CorruptRecord, InvalidRecord
from storage.kafka07._entries import (
    COMPRESSED,
    CUT_OFF,
    REASONS,
    WHOLE,
    append_records,
    complete,
    head,
)
from storage.record.batch import Record, encode_records
from storage.record.columns._columns import decode_columns
from storage.record.compression import MAX_DECOMPRESSED_BYTES, compress, decompress
from storage.record.header import (
    CREATE_TIME,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    entry_header,
    pack,
    parse_header,
)

if TYPE_CHECKING:
    from storage.byte_source import ByteSource
    from storage.record.header import Buffer

# Bytes before the payload: length, magic, [attributes,] CRC.
SMALLEST_ENTRY: Final = 9
LARGEST_HEAD: Final = 10

# Entries are put into one plain batch until they take this many bytes of log.
_RUN: Final = 16 * 1024
# 0.7's consumer unpacks sets within sets however deep they lie; nobody has written any.
_MAX_DEPTH: Final = 8
_CHUNK: Final = 64 * 1024

_MAGIC_0 = struct.Struct(">ibI")


def encode_message(payload: Buffer) -> bytes:
    """Return one entry of magic 0 with this payload."""
    return _MAGIC_0.pack(len(payload) + 5, 0, zlib.crc32(payload)) + payload


def plain_07(
    data: Buffer, at: int, end: int, id_: int, limit: int = MAX_DECOMPRESSED_BYTES
) -> tuple[bytes | bytearray, int]:
    """Return the entries at `data[at:end]` as one uncompressed v2 batch, and how many bytes they
    take.

    `id_` is the first one's id. The batch holds either as many uncompressed entries as are whole,
    up to 16 KiB of them, or one compressed set. The header's CRC is 0, timestamps are -1. Where the
    first entry is not whole: (b"", its size), or the least that it can be where its length is not
    there yet.

    Raises CorruptRecord, its position the entry's in `data`, where a length, magic or codec cannot
    be, a payload's CRC is wrong, or a set is not made of whole entries; TooLarge where a set, and
    those in it, decompress to more than `limit` bytes together.
    """
    out = bytearray(HEADER_SIZE)
    position, count, last, fault = append_records(out, data, at, end, _RUN, True)
    if position == at:
        fault, size, payload, codec = head(data, at, end, check_crc=True)
        if fault == CUT_OFF:
            return b"", size
        if fault != COMPRESSED:
            raise CorruptRecord(REASONS[fault], position=at, offset=id_)
        position = at + size
        try:
            count = _append_set(out, memoryview(data)[at + payload : position], codec, limit)
        except CorruptRecord as error:
            error.position, error.offset = at, id_
            raise
    complete(out, id_, last, count)
    return out, position - at


def _append_set(out: bytearray, compressed: Buffer, codec: int, left: int) -> int:
    """Append the records of a compressed set, all with offset delta 0; return their count.

    TooLarge where it decompresses to more than `left` bytes.
    """
    count = 0
    # (entries, where the next one begins), the innermost set last.
    sets: list[tuple[Buffer, int]] = []
    while True:
        entries: Buffer = decompress(codec, compressed, limit=left)
        left -= len(entries)
        sets.append((entries, 0))
        if len(sets) > _MAX_DEPTH:
            raise CorruptRecord(
                f"compressed message sets are nested more than {_MAX_DEPTH} levels deep"
            )
        while sets:
            entries, at = sets.pop()
            end = len(entries)
            position, added, _, fault = append_records(out, entries, at, end, end, False)
            count += added
            if fault == COMPRESSED:
                _, size, payload, codec = head(entries, position, end, check_crc=False)
                compressed = memoryview(entries)[position + payload : position + size]
                sets.append((entries, position + size))
                break
            if fault == CUT_OFF:
                raise CorruptRecord("a compressed message set ends inside an entry")
            if fault != WHOLE:
                raise CorruptRecord(f"in a compressed message set: {REASONS[fault]}")
        else:
            return count


def headers_07(
    source: ByteSource, position: int, end: int, start: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole entry of a file from `position` on.

    An entry begins at `position`; `start` is the id of the file's first byte. A header has what an
    entry has: its id as base and last offset, magic, CRC, codec; `size` is all of the entry, and
    so `batch_length` 12 less. `records_count` is 1, or -1 for a set; timestamps and the rest -1.
    Ends without an error before an entry that is not whole. No CRC is checked.

    Raises CorruptRecord, with path and position, where an entry cannot be one.
    """
    chunk: bytes | memoryview = b""
    begin = position
    while end - position >= SMALLEST_ENTRY:
        at = position - begin
        if len(chunk) - at < min(LARGEST_HEAD, end - position):
            begin, at = position, 0
            chunk = source.read_at(position, min(_CHUNK, end - position))
            if len(chunk) < SMALLEST_ENTRY:
                return
        fault, size, payload, codec = head(chunk, at, len(chunk), check_crc=False)
        if fault in REASONS:
            raise CorruptRecord(REASONS[fault], path=source.path, position=position)
        if size > end - position:
            return
        crc = int.from_bytes(chunk[at + payload - 4 : at + payload], "big")
        magic = payload - SMALLEST_ENTRY
        yield position, entry_header(start + position, size - LOG_OVERHEAD, magic, crc, codec)
        position += size


def entries_to_v2(data: Buffer, at: int, end: int, id_: int) -> tuple[bytes, int]:
    """Return the run of messages at `data[at:end]`, or the set there, as one stored v2 batch; the
    bytes that it takes.

    `id_` is the first entry's id. The batch spans the ids of all these bytes: its last offset is
    the one before the next entry's id, so the next offset, at the log's end too, is the next id.
    The messages of a set, which share one id, take that id and those that follow. The codec stays.

    Empty bytes where the first entry is not whole. Errors: CorruptRecord, its position in `data`;
    InvalidRecord for a set of more messages than bytes.
    """
    made, size = plain_07(data, at, end, id_)
    if not made:
        return b"", size
    header = parse_header(made)._replace(last_offset_delta=size - 1)
    _, _, _, codec = head(data, at, end, check_crc=False)
    if not codec or not header.records_count:
        return pack(header, memoryview(made)[HEADER_SIZE:]), size
    if header.records_count > size:
        raise InvalidRecord(
            f"a compressed message set has {header.records_count} messages in {size} bytes, so "
            "there are not enough ids for them",
            offset=id_,
        )
    columns = decode_columns(made, 0, len(made), keys=False)
    values = columns.values
    assert values is not None
    positions = memoryview(values.positions).cast("i")
    numbered = (
        Record(id_ + number, NO_TIMESTAMP, CREATE_TIME, None, bytes(values.block[begin:end]))
        for number, (begin, end) in enumerate(pairwise(positions))
    )
    records = encode_records(numbered, id_, NO_TIMESTAMP)
    return pack(header._replace(attributes=codec), compress(codec, records)), size
