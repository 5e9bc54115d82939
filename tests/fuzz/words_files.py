"""A disk with a log and any bytes as its `.words` file, which is read with right checksums."""

from __future__ import annotations

import os
import struct
from functools import cache

from storage import paths
from storage.files import Files
from storage.record.batch import Record, encode
from storage.record.crc import crc32c
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.task import Task
from storage.words._words import PAGE_BUCKETS, checksum
from storage.words.build import build
from storage.words.layout import HEADER, HEADER_SIZE, MAGIC, PART, VERSION, Header, Part

COUNT = 30
BATCHES = [
    encode([Record(n, 0, 0, b"key", b"all in%d of%d " % (n, n % 5) + b"%x " % n * 9)])
    for n in range(COUNT)
]
LOG, LAST = b"".join(BATCHES), BATCHES[-1]


class TwoFiles(Files):
    """Files in memory; what is written to the second one stays there."""

    def __init__(self, words: bytes) -> None:
        self.words = words

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = os.memfd_create("fuzzed")
        os.write(fd, LOG if path.endswith(paths.LOG) else self.words)
        return fd

    def close(self, fd: int) -> None:
        self.written = os.pread(fd, 1 << 20, 0)
        super().close(fd)

    def rename(self, source: str, target: str) -> None:
        self.words = self.written


def segment_on(files: Files) -> Segment:
    segment = Segment(files, "/fuzzed", 0, LogConfig(), writable=False, sealed=True)
    segment.size, segment.next_offset = len(LOG), COUNT
    return segment


@cache
def built() -> bytes:
    """The words of the log."""
    files = TwoFiles(b"")
    segment = segment_on(files)
    build(segment, segment.file_path(paths.WORDS), Task())
    return files.words


def with_right_checksums(data: bytes) -> bytes:
    """The same file with the header's facts of this segment, and all checksums that it can have."""
    out = bytearray(data)
    if len(out) < HEADER_SIZE:
        return data
    header = Header(*HEADER.unpack_from(out))._replace(
        magic=MAGIC,
        version=VERSION,
        log_crc=crc32c(LAST[:61] + LOG[-4096:]),
        base_offset=0,
        covered=len(LOG),
        last_batch=len(LOG) - len(LAST),
    )
    index = out[header.index_position :][: header.blocks * 8 + header.parts * PART.size]
    parts = index[header.blocks * 8 :]
    for part in map(Part._make, PART.iter_unpack(parts[: len(parts) // PART.size * PART.size])):
        count = min(-(-part.buckets // PAGE_BUCKETS), 1000)
        _put_checksum(out, part.directory, part.directory + 4 * count, header.secret)
        ends = out[part.directory :][: 4 * count]
        start = part.start
        for (end,) in struct.iter_unpack("<I", ends[: len(ends) // 4 * 4]):
            _put_checksum(out, start, part.start + end - 4, header.secret)
            start = part.start + end
    index = out[header.index_position :][: len(index)]
    out[:HEADER_SIZE] = header._replace(index_crc=crc32c(index)).packed()
    return bytes(out)


def _put_checksum(out: bytearray, start: int, end: int, secret: int) -> None:
    if HEADER_SIZE <= start <= end <= len(out) - 4:
        struct.pack_into("<I", out, end, checksum(out[start:end], secret, start))
