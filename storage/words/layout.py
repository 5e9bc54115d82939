"""The `.words` file of a sealed segment: the blocks of records in which each of its words is.

A *block* is consecutive batches with at least 512 KiB of plain bytes. An *entry* is one of a key,
a value, or the name or value of a header (`query`), or a whole key, which has a hash of its own.

The entry's hash is the upper half of SipHash-1-3's first 64 bits. Its keys are the header's random
secret, so nobody can make records whose words share a hash. Little-endian:

    header   80 bytes: magic, version, CRC-32C of the log's last batch header and last 4 KiB, base
             offset, bytes of log covered, position of the last batch, secret (two u64), position of
             the index, count of blocks, count of parts, the index's CRC-32C, CRC-32C of all this
    parts    each of at most 256 blocks: pages, directory
    index    for each block the offset after it (i64), inverted if any entry may be in the block;
             for each part: positions of its start and of its directory (u64), count of blocks,
             count of buckets (u32)

A part's entries are divided by their hashes into buckets of about 8 bytes, and 512 buckets are a
page:

    counts   of slots in each bucket (u8); 255: any entry of the bucket may be in any block
    slots    u16: the block in the lower byte, the last 8 bits of the hash in the upper one
    common   entries in more than 18 blocks: the hashes (u32), then 256 bits of each, its blocks
    CRC      of the page (`checksum`)

The directory has the end of each page, counted from the part's start (u32), and its own CRC. So a
look-up reads the header, the index, and for each entry and part one page.

The file is written under another name, renamed, and never synced. After a power cut it may have any
bytes, also those of another file of this kind.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from storage.record.crc import crc32c
from storage.record.header import HEADER_SIZE as BATCH_HEADER_SIZE
from storage.segment.segment import Segment

BLOCK_BYTES = 512 << 10
_CHECKED = 4096
"""The CRC of the log covers this many bytes at its end."""

MAGIC = b"KFSWORDS"
VERSION = 1
HEADER = struct.Struct("<8sIIqQQQQQIII")
HEADER_SIZE = HEADER.size + 4
PART = struct.Struct("<QQII")


class Header(NamedTuple):
    """See the module."""

    magic: bytes
    version: int
    log_crc: int
    base_offset: int
    covered: int
    last_batch: int
    secret: int
    secret_2: int
    index_position: int
    blocks: int
    parts: int
    index_crc: int

    def packed(self) -> bytes:
        """Return the header's bytes."""
        data = HEADER.pack(*self)
        return data + crc32c(data).to_bytes(4, "little")


class Part(NamedTuple):
    """See the module."""

    start: int
    directory: int
    blocks: int
    buckets: int


def end_of_log(segment: Segment) -> bytes:
    """Return the last bytes of a segment's log. Errors: OSError, StorageError."""
    size = min(segment.size, _CHECKED)
    return segment.disk.pread(segment.log_fd(), size, segment.size - size)


def batch_header(segment: Segment, position: int) -> bytes:
    """Return the header of the batch or message at a position, which has its offset and CRC, and in
    older formats what follows it. Errors: OSError, StorageError.
    """
    size = min(segment.size - position, BATCH_HEADER_SIZE)
    return segment.disk.pread(segment.log_fd(), size, position)
