"""Finds record batches in a source of bytes, by their headers alone.

Frames follow Kafka's FileLogInputStream: every format begins with offset i64 and size i32, the size
of the following bytes, and has its magic at byte 16. The scan ends without an error if less than a
whole batch is left; a size that no format can have is corruption. No CRC is checked.

Not here: recovery's scan with all checks (`_batch.Rebuild`), and the records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from storage.errors import CorruptRecord, InvalidRecord, RecordTooLarge
from storage.record.header import (
    FRAME,
    FRAME_SIZE,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    SMALLEST_SIZE,
    BatchHeader,
    Buffer,
    parse_header,
)

if TYPE_CHECKING:
    from storage.byte_source import ByteSource

# Many small batches are read at a time; of a batch that exceeds its chunk only the header.
CHUNK: Final = 64 * 1024


def batches(
    source: ByteSource, position: int, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch from `position` on, which begins one.

    `end` (exclusive) is by default the source's size at the start. Ends without an error before a
    batch that is not whole. An entry of v0 or v1, wrapper or not, is a batch (`BatchHeader`).

    Raises CorruptRecord with path and position.
    """
    stop = source.size() if end is None else end
    chunk: bytes | memoryview = b""
    start = position
    while stop - position >= FRAME_SIZE:
        at = position - start
        if len(chunk) - at < min(HEADER_SIZE, stop - position):
            start, at = position, 0
            chunk = source.read_at(position, min(CHUNK, stop - position))
            if len(chunk) < FRAME_SIZE:
                return
        _, size, magic = FRAME.unpack_from(chunk, at)
        if magic not in (0, 1, MAGIC) or size < SMALLEST_SIZE[magic]:
            reason = f"magic {magic}, batch length {size}: not a valid header"
            raise CorruptRecord(reason, path=source.path, position=position)
        if size + LOG_OVERHEAD > stop - position:
            return
        if len(chunk) - at < min(HEADER_SIZE, size + LOG_OVERHEAD):
            return
        yield position, parse_header(chunk, at)
        position += size + LOG_OVERHEAD


def whole_batches(data: Buffer, limit: int) -> tuple[int, int]:
    """Return the bytes of the whole batches, of any format, at the start of `data`, and the size of
    the next batch, 0 if none begins there or less than 17 bytes of it exist.

    Errors: InvalidRecord if no batch begins there, RecordTooLarge for one of more than `limit`
    bytes, even if it is incomplete.
    """
    at, end = 0, len(data)
    while end - at >= FRAME_SIZE:
        _, size, magic = FRAME.unpack_from(data, at)
        if magic not in (0, 1, MAGIC) or size < SMALLEST_SIZE[magic]:
            reason = f"magic {magic}, batch length {size}: no valid batch starts here"
            raise InvalidRecord(reason, position=at)
        size += LOG_OVERHEAD
        if size > limit:
            raise RecordTooLarge(size, limit)
        if size > end - at:
            return at, size
        at += size
    return at, 0
