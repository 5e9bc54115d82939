"""Looks entries up in a `.words` file (`layout`). Not here: building it (`build`).

An object has a state, so only one thread at a time may use it.
"""

from __future__ import annotations

import os
import struct
from functools import cached_property

from storage.descriptors import Descriptor
from storage.errors import StorageError
from storage.record.crc import crc32c
from storage.segment.segment import Segment
from storage.words._words import (
    ANY_BLOCK,
    BITS_SIZE,
    MOST_BLOCKS,
    PAGE_BUCKETS,
    checksum,
    hash_of,
)
from storage.words.layout import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    PART,
    VERSION,
    Header,
    Part,
    batch_header,
    end_of_log,
)
from storage.words.query import AllOf, Entry, Query

_UNREADABLE = (ValueError, struct.error, OSError)
_ALL = -1
"""The bits of all blocks."""
_MOST_BYTES = 32 << 20
"""The largest index, directory or page that is read: a damaged file may name any size."""


class Words:
    """An open `.words` file of a segment. `read_bytes`: bytes of it that were read so far."""

    def __init__(self, segment: Segment, path: str) -> None:
        """Errors: ValueError if the file is not that of the segment as it is; OSError,
        StorageError.
        """
        self.read_bytes = 0
        self._disk = segment.disk
        self._fd: int = Descriptor(segment.disk, path, os.O_RDONLY)
        self._header = header = self._read_header(segment)
        # First the offset after each block.
        self._index = self._read(
            header.index_position, header.blocks * 8 + header.parts * PART.size
        )
        if crc32c(self._index) != header.index_crc:
            raise ValueError("its index is damaged")
        self._parts = [Part(*each) for each in PART.iter_unpack(self._index[header.blocks * 8 :])]
        blocks = [part.blocks for part in self._parts]
        if sum(blocks) != header.blocks or not all(0 < each <= MOST_BLOCKS for each in blocks):
            raise ValueError("its parts do not have its blocks")

    @classmethod
    def open(cls, segment: Segment, path: str) -> Words | None:
        """Open a file; return None if there is none, or it is damaged or not of the segment as it
        is now. The caller leases the segment.
        """
        try:
            return cls(segment, path)
        except (*_UNREADABLE, StorageError):
            return None

    def close(self) -> None:
        """Close the file; no other call follows."""
        self._fd = -1

    def _read_header(self, segment: Segment) -> Header:
        data = self._read(0, HEADER_SIZE)
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise ValueError("its header is damaged")
        header = Header(*HEADER.unpack_from(data))
        if (header.magic, header.version) != (MAGIC, VERSION):
            raise ValueError("its format is unknown")
        if (header.base_offset, header.covered) != (segment.base_offset, segment.size):
            raise ValueError("it is not of this segment")
        if header.last_batch > header.covered:
            raise ValueError("its header is damaged")
        found = batch_header(segment, header.last_batch) + end_of_log(segment)
        if header.log_crc != crc32c(found):
            raise ValueError("the segment has changed")
        return header

    def _read(self, position: int, size: int) -> bytes:
        """Errors: ValueError if the file has fewer bytes, or they are too many; OSError."""
        if size > _MOST_BYTES:
            raise ValueError("it is damaged")
        data = b""
        if size <= self._disk.size(self._fd) - position:
            data = self._disk.pread(self._fd, size, position)
        self.read_bytes += len(data)
        if len(data) != size:
            raise ValueError("it is truncated")
        return data

    def read_checked(self, position: int, end: int) -> bytes:
        """Return bytes without the checksum at their end. Errors: ValueError, OSError."""
        if end - position < 4:
            raise ValueError("its directory is damaged")
        data = self._read(position, end - position)
        right = checksum(data[:-4], self._header.secret, position)
        if data[-4:] != right.to_bytes(4, "little"):
            raise ValueError(f"the bytes at {position} are damaged")
        return data[:-4]

    def hash_of(self, entry: Entry) -> int:
        """Return an entry's hash."""
        header = self._header
        return hash_of(entry.data, header.secret, header.secret_2, entry.is_key)

    def offsets(self, query: Query) -> list[tuple[int, int]]:
        """Return the ranges (first, next) of offsets in which a record may match, in order.

        If a part or a page cannot be read, any record of its blocks may match.
        """
        found: list[tuple[int, int]] = []
        first, block = self._header.base_offset, 0
        for part in self._parts:
            bits = _PartReader(self, part).blocks(query)
            for stored in struct.unpack_from(f"<{part.blocks}q", self._index, 8 * block):
                # If any entry may be in a block, the offset after it is inverted.
                following = max(stored, ~stored)
                if bits & 1 or stored < 0:
                    start = found.pop()[0] if found and found[-1][1] == first else first
                    found.append((start, following))
                first, bits = following, bits >> 1
            block += part.blocks
        return found

    def check(self) -> None:
        """Check all pages. Errors: ValueError with the reason; OSError."""
        for part in self._parts:
            reader = _PartReader(self, part)
            for number in range(len(reader.ends) - 1):
                reader.read_page(number)


class _PartReader:
    """Looks entries up in a part. It keeps the pages that it has read."""

    def __init__(self, words: Words, part: Part) -> None:
        self._words = words
        self._part = part
        self._pages: dict[int, bytes] = {}

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The positions, from the start of the part, between which its pages lie. Errors:
        ValueError, OSError.
        """
        count, start = -(-self._part.buckets // PAGE_BUCKETS), self._part.directory
        data = self._words.read_checked(start, start + 4 * count + 4)
        return (0, *struct.unpack(f"<{count}I", data))

    def read_page(self, number: int) -> bytes:
        """Errors: ValueError if the page is damaged; OSError."""
        if number not in self._pages:
            start, end = (self._part.start + each for each in self.ends[number : number + 2])
            self._pages[number] = self._words.read_checked(start, end)
        return self._pages[number]

    def blocks(self, query: Query) -> int:
        """Return the bits of the blocks in which a record may match."""
        if isinstance(query, Entry):
            return self._look_up(query)
        is_and = isinstance(query, AllOf)
        bits, last = (_ALL, 0) if is_and else (0, _ALL)
        for each in query.parts:
            if bits == last:
                break
            found = self.blocks(each)
            bits = bits & found if is_and else bits | found
        return bits

    def _look_up(self, entry: Entry) -> int:
        hashed = self._words.hash_of(entry)
        page, bucket = divmod(hashed * self._part.buckets >> 32, PAGE_BUCKETS)
        try:
            return _blocks_of(self.read_page(page), bucket, hashed)
        except _UNREADABLE:
            return _ALL


def _blocks_of(page: bytes, bucket: int, hashed: int) -> int:
    """Return the bits of the blocks in which an entry of this hash may be. Errors: ValueError,
    struct.error, if it is no page.
    """
    if len(page) < PAGE_BUCKETS:
        raise ValueError("it is too short")
    if page[bucket] == ANY_BLOCK:
        return _ALL
    counts = page[:PAGE_BUCKETS].replace(bytes((ANY_BLOCK,)), b"\0")
    start = PAGE_BUCKETS + 2 * sum(counts[:bucket])
    end = start + 2 * counts[bucket]
    bits = 0
    for block, print_ in zip(page[start:end:2], page[start + 1 : end : 2], strict=True):
        if print_ == hashed & 0xFF:
            bits |= 1 << block
    start = PAGE_BUCKETS + 2 * sum(counts)
    common = struct.unpack_from(f"<{(len(page) - start) // (4 + BITS_SIZE)}I", page, start)
    if hashed in common:
        start += 4 * len(common) + BITS_SIZE * common.index(hashed)
        bits |= int.from_bytes(page[start : start + BITS_SIZE], "little")
    return bits


def check(segment: Segment, path: str) -> str | None:
    """Return what is wrong with a file, or None. It is not compared with the records. The caller
    leases the segment. Errors: FileNotFoundError if there is no file.
    """
    try:
        Words(segment, path).check()
    except (*_UNREADABLE, StorageError) as error:
        if isinstance(error, FileNotFoundError) and error.filename == path:
            raise
        return str(error)
    return None
