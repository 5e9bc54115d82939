"""The codecs of record batches, framed as Kafka frames them (org.apache.kafka.common.compress).

=======  =========================================================================
gzip     RFC 1952; several members follow one another; what follows them is ignored
snappy   xerial: 82 "SNAPPY" 00, i32 version, i32 compatible version, then chunks of an i32
         length and a raw block, 32 KiB of input each; a length that is the magic's first four
         bytes begins such a header again. Without the magic: one raw block
lz4      one frame of independent blocks: magic, FLG, BD, [u64 content size], HC; blocks of a
         u32 length (highest bit: stored) and the data, [u32 checksum]; a length of 0 ends it.
         All little-endian. Bytes after it are ignored. In v0 the checksum HC was wrong and is
         not looked at (KAFKA-3160)
zstd     frames, one after another
=======  =========================================================================

Invariant: nobody knows beforehand what a stream decompresses to, so memory is taken only for what
has been produced, or for what the stream's own structure bounds, and never more than the limit.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import cramjam

from storage.errors import CorruptRecord
from storage.record._codec import lz4_bound, uninitialised, xerial_bound, zstd_bound

if TYPE_CHECKING:
    from storage.record.header import Buffer

# A batch that decompresses to more than this is corrupt. Kafka's brokers accept batches of
# max.message.bytes, 1 MiB by default, and producers seldom compress more than 20 to 1.
MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

# The least and the largest level, and the default.
LEVELS: Final = {GZIP: (1, 9, -1), LZ4: (1, 17, 9), ZSTD: (-131072, 22, 3)}

_GZIP_WBITS = 31
_GZIP_INPUT = 64 * 1024
_GZIP_OUTPUT = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b\x08"
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_FIRST = int.from_bytes(_XERIAL_MAGIC, "big")
_XERIAL_AGAIN = int.from_bytes(_XERIAL_MAGIC[:4], "big")  # `_codec.pyx` knows it, too
_XERIAL_CHUNK = 32 * 1024
# No element of a raw snappy block makes more than 64 bytes out of 3.
_SNAPPY_RATIO = 22
# The most data that a byte can stand for. gzip: 258 bytes in 2 bits; zstd: a block in 4 bytes.
# Unassigned codecs fail later.
BEST_RATIOS: Final = (1, 1032, _SNAPPY_RATIO, 255, 1 << 15, 1, 1, 1)

# The bytes that are decompressed in the time that a block of an LZ4 or zstd frame takes besides its
# bytes.
_BLOCK_COST = 2048

_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_u32_little = struct.Struct("<I").unpack_from

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_FAST_LEVEL = 9
# No byte of an LZ4 block stands for more than 255 bytes.
_LZ4_RATIO = BEST_RATIOS[LZ4]


class TooLarge(CorruptRecord):
    """A stream decompresses to more than the limit."""


def codec_number(name: str) -> int:
    """Return the codec's number in a batch's attributes. Errors: ValueError for an unknown name."""
    if name not in CODECS:
        raise ValueError(f"unknown codec {name}")
    return CODECS.index(name)


def decompress(
    codec: int, data: Buffer, *, magic: int = 2, limit: int = MAX_DECOMPRESSED_BYTES, room: int = 0
) -> bytearray:
    """Return `room` bytes for the caller, then the decompressed `data`, at most `limit` bytes.

    `magic` is the batch's. The result is the only memory of its size that this takes. Errors:
    CorruptRecord, without a position, for a codec that the format does not have, and a stream that
    breaks a rule of its framing; TooLarge for one that exceeds the limit.
    """
    try:
        if codec == NONE:
            return bytearray(b"".join((bytes(room), data)))
        if codec == GZIP:
            return _gunzip(data, limit, room)
        if codec == SNAPPY:
            return _unsnappy(data, limit, room)
        if codec == LZ4:
            return _unlz4(data, magic, limit, room)
        if codec == ZSTD and magic == 2:
            return _unzstd(data, limit, room)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CorruptRecord(f"{CODECS[codec]}: {error}") from None
    raise CorruptRecord(f"format v{magic} has no codec {codec}")


def largest_decompressed(codec: int, data: Buffer) -> int:
    """Return the most bytes that a v2 batch's stream can decompress to, without doing it.

    By the sizes in the stream, if it has any; 0 if it is damaged. A block counts for more than it
    may hold, so that many empty blocks are much, too.
    """
    try:
        if codec == ZSTD:
            bound, blocks = zstd_bound(data)
            return bound + blocks * _BLOCK_COST
        if codec == LZ4:
            at, flags, largest = _lz4_header(data, 2)
            bound, blocks = lz4_bound(data, at, largest, 4 * bool(flags & 0x10), _LZ4_RATIO)
            return bound + blocks * _BLOCK_COST
    except CorruptRecord:
        return 0
    return len(data) * BEST_RATIOS[codec]


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress for a v1 or v2 batch. `level` is by default the codec's own; snappy has none."""
    least, largest, default = LEVELS.get(codec, (0, 0, 0))
    chosen = default if level is None else level
    assert least <= chosen <= largest or chosen == default, (codec, level)
    if codec == GZIP:
        packer = zlib.compressobj(chosen, zlib.DEFLATED, _GZIP_WBITS)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _snappy(data)
    if codec == LZ4:
        return _lz4(data) if chosen == _LZ4_FAST_LEVEL else _lz4_high(data, chosen)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=chosen))
    assert codec == NONE
    return bytes(data)


def _too_large(codec: int, limit: int) -> TooLarge:
    return TooLarge(f"{CODECS[codec]}: decompresses to more than {limit} bytes")


def _gunzip(data: Buffer, limit: int, room: int) -> bytearray:
    """Decompress like java.util.zip.GZIPInputStream, which ignores bytes after the last member."""
    out = bytearray(room)
    left = limit + room
    view, at, given_bytes = memoryview(data), 0, _GZIP_INPUT
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        # zlib copies its input, needed or not. So a member gets only as many bytes as the previous
        # one took, and then twice as many each time.
        start, given = at, view[at : at + given_bytes]
        while not member.eof:
            # One byte more than the room, since a max_length of 0 would mean any.
            piece = member.decompress(given, min(left - len(out) + 1, _GZIP_OUTPUT))
            out += piece
            if len(out) > left:
                raise _too_large(GZIP, limit)
            at += len(given) - len(member.unconsumed_tail) - len(member.unused_data)
            if not member.eof:
                given_bytes = min(2 * given_bytes, _GZIP_INPUT)
                given = view[at : at + given_bytes]
                if not given and not piece:
                    raise CorruptRecord("gzip: the stream is truncated")
        given_bytes = min(at - start, _GZIP_INPUT)
        # A member begins with its magic and method; damage in them is damage.
        if view[at : at + 3] != _GZIP_MAGIC:
            return out


def _unsnappy(data: Buffer, limit: int, room: int) -> bytearray:
    block = data
    if len(data) >= 8 and _u64(data)[0] == _XERIAL_FIRST:
        at = len(_XERIAL_HEADER) + 4
        if len(data) < at or at + _u32(data, at - 4)[0] != len(data):
            return _unsnappy_chunks(data, limit, room)
        # Most streams have one chunk.
        block = memoryview(data)[at:]
    out = uninitialised(room + _snappy_size(block, limit))
    with memoryview(out) as view, view[room:] as records:
        cramjam.snappy.decompress_raw_into(block, records)
    return out


def _unsnappy_chunks(data: Buffer, limit: int, room: int) -> bytearray:
    view = memoryview(data)
    most = min(xerial_bound(data, len(_XERIAL_HEADER), _SNAPPY_RATIO), limit)
    out = uninitialised(room + most)
    done = room
    at = len(_XERIAL_HEADER)
    with memoryview(out) as records:
        while at < len(data):
            if len(data) - at < 4:
                raise CorruptRecord("snappy: a chunk's length is truncated")
            (length,) = _u32(data, at)
            if length == _XERIAL_AGAIN:
                at += len(_XERIAL_HEADER)
                continue
            at += 4
            if length > len(data) - at:
                raise CorruptRecord("snappy: a chunk is truncated")
            chunk = view[at : at + length]
            size = _snappy_size(chunk, room + limit - done)
            cramjam.snappy.decompress_raw_into(chunk, records[done : done + size])
            done += size
            at += length
    if at > len(data):
        raise CorruptRecord("snappy: a header is truncated")
    return out


def _snappy_size(block: Buffer, limit: int) -> int:
    """Return the decompressed size in a raw block, if it is possible."""
    size: int = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise _too_large(SNAPPY, limit)
    if size > _SNAPPY_RATIO * len(block):
        raise CorruptRecord(f"snappy: {len(block)} bytes cannot decompress to {size}")
    return size


def _snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_CHUNK):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_CHUNK]))
        out += (len(block).to_bytes(4, "big"), block)
    return b"".join(out)


def _unlz4(data: Buffer, magic: int, limit: int, room: int) -> bytearray:
    """Decompress like KafkaLZ4BlockInputStream: only independent blocks, and one frame."""
    at, flags, largest = _lz4_header(data, magic)
    view = memoryview(data)
    size = len(view) - at - 8
    if (
        flags & 0x10
        or not 0 < size <= largest
        or _u32_little(view, at)[0] != size
        or any(view[-4:])
    ):
        return _unlz4_blocks(view, at, 4 * bool(flags & 0x10), largest, limit, room)
    # Most frames have one block.
    most = min(largest, _LZ4_RATIO * size)
    out = uninitialised(room + most)
    with memoryview(out) as whole, whole[room:] as records:
        used = cramjam.lz4.decompress_block_into(view[at + 4 : -4], records, output_len=most)
    if used > limit:
        raise _too_large(LZ4, limit)
    del out[room + used :]
    return out


def _unlz4_blocks(
    view: memoryview, at: int, checksum: int, largest: int, limit: int, room: int
) -> bytearray:
    bound, _ = lz4_bound(view, at, largest, checksum, _LZ4_RATIO)
    out = uninitialised(room + min(bound, limit + largest))
    done = room
    with memoryview(out) as records:
        while True:
            if len(view) - at < 4:
                raise CorruptRecord("lz4: the frame has no end mark")
            (length,) = _u32_little(view, at)
            size = length & ~_LZ4_STORED
            if size == 0:
                break
            at += 4
            end = at + size
            if size > largest:
                raise CorruptRecord(
                    f"lz4: a block of {size} bytes exceeds the maximum of its frame, {largest}"
                )
            if end + checksum > len(view):
                raise CorruptRecord("lz4: a block is truncated")
            block = view[at:end]
            at = end + checksum
            if checksum and _xxh32(block) != _u32_little(view, end)[0]:
                raise CorruptRecord("lz4: a block's checksum is wrong")
            if length & _LZ4_STORED:
                records[done : done + size] = block
                done += size
            else:
                most = min(largest, _LZ4_RATIO * size)
                done += cramjam.lz4.decompress_block_into(
                    block, records[done : done + most], output_len=most
                )
            if done > room + limit:
                raise _too_large(LZ4, limit)
    del out[done:]
    return out


def _lz4_header(data: Buffer, magic: int) -> tuple[int, int, int]:
    """Return the position of the first block, FLG, and the largest size of a block."""
    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        raise CorruptRecord("lz4: invalid frame magic")
    flags, descriptor = data[4], data[5]
    at = 14 if flags & 0x08 else 6
    if len(data) <= at:
        raise CorruptRecord("lz4: the frame header is truncated")
    if flags >> 6 != 1 or flags & 0x03 or descriptor & 0x8F or descriptor >> 4 < 4:
        raise CorruptRecord(f"lz4: invalid frame flags {flags:#04x} {descriptor:#04x}")
    if not flags & 0x20:
        raise CorruptRecord("lz4: Kafka does not support dependent blocks")
    if magic > 0 and data[:7] != _LZ4_HEADER and data[at] != _xxh32(data[4:at]) >> 8 & 0xFF:
        raise CorruptRecord("lz4: the frame header's checksum is wrong")
    return at + 1, flags, 1 << (2 * (descriptor >> 4) + 8)


def _xxh32(data: Buffer) -> int:
    from xxhash import xxh32_intdigest  # Kafka's own frames need none

    return xxh32_intdigest(data)


def _lz4(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_LZ4_HEADER]
    for at in range(0, len(view), _LZ4_BLOCK):
        block = view[at : at + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += (len(packed).to_bytes(4, "little"), packed)
        else:
            out += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), bytes(block))
    out.append(bytes(4))
    return b"".join(out)


def _lz4_high(data: Buffer, level: int) -> bytes:
    """Compress slowly; cramjam has this compressor for frames only: theirs have checksums."""
    packer = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    packer.compress(data)
    frame = memoryview(packer.finish())
    at, flags, _ = _lz4_header(frame, 2)
    out: list[bytes | memoryview] = [_LZ4_HEADER]
    while length := int.from_bytes(frame[at : at + 4], "little"):
        end = at + 4 + (length & ~_LZ4_STORED)
        out.append(frame[at:end])
        at = end + 4 * bool(flags & 0x10)
    out.append(bytes(4))
    return b"".join(out)


def _unzstd(data: Buffer, limit: int, room: int) -> bytearray:
    bound, _ = zstd_bound(data)
    out = uninitialised(room + min(bound, limit))
    try:
        with memoryview(out) as whole, whole[room:] as records:
            used = cramjam.zstd.decompress_into(data, records)
    except cramjam.DecompressionError as error:
        if bound > limit and "whole buffer" in str(error):
            raise _too_large(ZSTD, limit) from None
        raise
    del out[room + used :]
    return out
