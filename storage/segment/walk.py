"""Takes the file of a log through ``Rebuild``, chunk by chunk, and makes nothing of what it finds.

Not here: what a fault means; recovery's own walk, which begins where an index vouches for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage.files import Files
from storage.record._batch import Rebuild
from storage.record.header import size_at

_CHUNK_BYTES = 8 * 1024 * 1024


def feed(
    files: Files, fd: int, size: int, rebuild: Rebuild
) -> Iterator[tuple[bytearray, int, int]]:
    """Feed the first ``size`` bytes of a log to ``rebuild``.

    Yields (chunk, bytes of it that were taken, its position in the file) until all is taken, there
    is a fault, or less than a batch is left.  The chunk is valid until the next one.
    """
    chunk = bytearray(min(_CHUNK_BYTES, max(size, 1)))
    while rebuild.position < size and rebuild.fault is None:
        start = rebuild.position
        wanted = min(len(chunk), size - start)
        with memoryview(chunk) as view:
            count = files.preadv(fd, view[:wanted], start)
        taken = rebuild.feed(chunk, count, start)
        yield chunk, taken, start
        if count < wanted:
            return  # the file has been cut meanwhile
        if not taken:
            needed = size_at(chunk, 0)
            if count == size - start or needed > size - start:
                return
            chunk = bytearray(max(needed, 2 * len(chunk)))


def final_time_entry(rebuild: Rebuild) -> bytes:
    """What sealing adds to the time index: the largest timestamp, where it is not there yet."""
    entries = rebuild.time_entries
    last = int.from_bytes(entries[-12:-4], "big") if entries else -1
    if rebuild.max_timestamp <= last:
        return b""
    relative = rebuild.max_timestamp_offset - rebuild.base_offset
    return rebuild.max_timestamp.to_bytes(8, "big") + relative.to_bytes(4, "big")
