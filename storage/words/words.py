"""Looks entries up in a `.words` file (`layout`). Not here: building it (`build`).

An object has a state, so only one thread at a time may use it.
"""

from __future__ import annotations

import os
import struct
from itertools import accumulate

from storage.descriptors import Descriptor
from storage.errors import StorageError
from storage.record.crc import crc32c
from storage.segment.segment import Segment
from storage.words._words import ANY_BLOCK, PAGE_BUCKETS, hash_of
from storage.words.layout import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    PART,
    VERSION,
    Header,
    Part,
    batch_header,
    checksum,
    end_of_log,
)
from storage.words.query import AllOf, Entry, Query

_UNREADABLE = (ValueError, struct.error, OSError)


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
        index = self._read(header.index_position, header.blocks * 8 + header.parts * PART.size)
        if crc32c(index) != header.index_crc:
            raise ValueError("its index is damaged")
        nexts = struct.unpack_from(f"<{header.blocks}q", index)
        self._parts = [Part(*each) for each in PART.iter_unpack(index[header.blocks * 8 :])]
        if sum(part.blocks for part in self._parts) != header.blocks:
            raise ValueError("its parts do not have its blocks")
        # The offsets between which the blocks lie, and the blocks that may have any entry.
        self._bounds = (header.base_offset, *(max(each, ~each) for each in nexts))
        self._full = sum(1 << block for block, each in enumerate(nexts) if each < 0)
        # The ends of the pages of the parts that were used; none if they cannot be read.
        self._directories: dict[int, tuple[int, ...]] = {}

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
        """Errors: ValueError if the file has fewer bytes; OSError."""
        if size > self._disk.size(self._fd) - position:
            raise ValueError("it is truncated")
        data = self._disk.pread(self._fd, size, position)
        self.read_bytes += len(data)
        if len(data) != size:
            raise ValueError("it is truncated")
        return data

    # -- look-ups ------------------------------------------------------------------------------

    def offsets(self, query: Query) -> list[tuple[int, int]]:
        """Return the ranges (first, next) of offsets in which a record may match, in order.

        If a part or a page cannot be read, any record of its blocks may match.
        """
        found: list[tuple[int, int]] = []
        block = 0
        for number, part in enumerate(self._parts):
            bits = self._evaluate(query, number) | self._full >> block
            bits &= (1 << part.blocks) - 1
            while bits:
                place = block + (bits & -bits).bit_length() - 1
                bits &= bits - 1
                first, following = self._bounds[place : place + 2]
                if found and found[-1][1] == first:
                    first, _ = found.pop()
                found.append((first, following))
            block += part.blocks
        return found

    def _evaluate(self, query: Query, number: int) -> int:
        """Return the bits of the blocks of a part in which a record may match."""
        if isinstance(query, Entry):
            return self._look_up(query, number)
        is_and = isinstance(query, AllOf)
        bits = everything = (1 << self._parts[number].blocks) - 1
        if not is_and:
            bits = 0
        for each in query.parts:
            if bits == (0 if is_and else everything):
                break
            found = self._evaluate(each, number)
            bits = bits & found if is_and else bits | found
        return bits

    def _look_up(self, entry: Entry, number: int) -> int:
        header, part = self._header, self._parts[number]
        hashed = hash_of(entry.data, header.secret, header.secret_2, entry.is_key)
        bucket = hashed * part.buckets >> 32
        try:
            page = self._page(number, bucket // PAGE_BUCKETS)
        except _UNREADABLE:
            return (1 << part.blocks) - 1
        return page.bits(bucket % PAGE_BUCKETS, hashed)

    def _page(self, number: int, page: int) -> Page:
        """Read a page. Errors: ValueError if it is damaged; OSError."""
        part = self._parts[number]
        if number not in self._directories:
            count = -(-part.buckets // PAGE_BUCKETS)
            self._directories[number] = ()
            data = self._checked(part.directory, 4 * count + 4)
            self._directories[number] = struct.unpack(f"<{count}I", data)
        ends = (0, *self._directories[number])
        if len(ends) == 1:
            raise ValueError("the directory of a part is damaged")
        start, end = ends[page : page + 2]
        return Page(self._checked(part.start + start, end - start), part.blocks)

    def _checked(self, position: int, size: int) -> bytes:
        """Return bytes without the checksum that follows them. Errors: ValueError, OSError."""
        if size < 4:
            raise ValueError("its directory is damaged")
        data = self._read(position, size)
        right = checksum(data[:-4], self._header.secret, position)
        if data[-4:] != right.to_bytes(4, "little"):
            raise ValueError(f"the bytes at {position} are damaged")
        return data[:-4]

    def check(self) -> None:
        """Check all pages. Errors: ValueError with the reason; OSError."""
        for number, part in enumerate(self._parts):
            for page in range(-(-part.buckets // PAGE_BUCKETS)):
                self._page(number, page)


class Page:
    """The buckets of a page."""

    def __init__(self, data: bytes, blocks: int) -> None:
        """Errors: ValueError if it cannot be a page."""
        self._data = data
        self._blocks = blocks
        self._width = (blocks + 7) // 8
        self._counts = struct.unpack_from(f"<{PAGE_BUCKETS}H", data)
        sizes = [0 if count == ANY_BLOCK else 2 * count for count in self._counts]
        self._ends = list(accumulate(sizes, initial=2 * PAGE_BUCKETS))
        self._common, rest = divmod(len(data) - self._ends[-1], 4 + self._width)
        if rest or self._common < 0:
            raise ValueError("a page is damaged")

    def bits(self, bucket: int, hashed: int) -> int:
        """Return the bits of the blocks in which an entry of this hash may be."""
        if self._counts[bucket] == ANY_BLOCK:
            return (1 << self._blocks) - 1
        data, bits = self._data, 0
        slots = data[self._ends[bucket] : self._ends[bucket + 1]]
        for block, print_ in zip(slots[::2], slots[1::2], strict=True):
            if print_ == hashed & 0xFF:
                bits |= 1 << block
        start = self._ends[-1]
        common = struct.unpack_from(f"<{self._common}I", data, start)
        if hashed in common:
            at = start + 4 * self._common + common.index(hashed) * self._width
            bits |= int.from_bytes(data[at : at + self._width], "little")
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
