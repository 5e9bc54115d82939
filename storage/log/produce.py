"""Appends a stream of ready record batches, of any size in bounded memory.

Batches of any format lie back to back, as in a ``.log`` file or a fetch
(``Appender.append_batches`` checks them and gives them new offsets).  A whole chunk is appended at
once; where a batch in it is refused, those before it are appended and the stream ends there.  So
the log always holds a prefix of the stream, by whole batches.

Not here: where the stream comes from, and who flushes the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage.errors import CorruptRecord, StorageError
from storage.log.log import Log
from storage.plural import counted
from storage.record.compression import MAX_DECOMPRESSED_BYTES
from storage.record.header import LOG_OVERHEAD, MAGIC_POSITION, SMALLEST_SIZE, size_at

_CHUNK_BYTES = 1024 * 1024


@dataclass(slots=True)
class Produced:
    """How much of a stream is in the log: bytes read, batches, offsets from first to last.

    ``duplicates``: batches that their producers had written before, which are not written again.
    The offsets are -1 where nothing was written.
    """

    size: int = 0
    batches: int = 0
    duplicates: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def __str__(self) -> str:
        where = f"offsets {self.first_offset} to {self.last_offset}" if self.batches else "nothing"
        known = f", {counted(self.duplicates, 'duplicate')} skipped" if self.duplicates else ""
        return f"{counted(self.batches, 'batch')}, {where}{known}"


class StreamAppender:
    """One stream into one log.  ``produced`` says how far it has come, also after an error."""

    def __init__(self, log: Log, now_ns: Callable[[], int]) -> None:
        self.produced = Produced()
        self._log = log
        self._now_ns = now_ns
        self._trusted: dict[int, int] = {}

    def run(self, read: Callable[[int], bytes]) -> None:
        """Append what ``read(size)`` returns, at most ``size`` bytes, until it returns none.

        A StorageError's position is the byte in the stream: CorruptRecord for an incomplete batch
        at its end, InvalidRecord and its kinds, RecordTooLarge for a batch that is refused. OSError
        from the disk.
        """
        pending = bytearray()
        while data := read(_CHUNK_BYTES):
            pending += data
            whole, needed = self._whole(pending)
            if whole:
                self._append(bytes(memoryview(pending)[:whole]))
                del pending[:whole]
        if pending:
            raise CorruptRecord(
                f"the last batch is incomplete, {len(pending)} bytes of {needed}",
                position=self.produced.size,
            )

    def _whole(self, data: bytearray) -> tuple[int, int]:
        """How many bytes are whole batches, and how many the batch behind them has or needs."""
        at = 0
        while True:
            if len(data) - at <= MAGIC_POSITION:
                return at, MAGIC_POSITION + 1
            size = size_at(data, at)
            length = size - LOG_OVERHEAD
            if length < SMALLEST_SIZE[0] or size > MAX_DECOMPRESSED_BYTES:
                self._append(bytes(memoryview(data)[:at]))
                raise CorruptRecord(f"invalid batch length {length}", position=self.produced.size)
            if size > len(data) - at:
                return at, size
            at += size

    def _append(self, batches: bytes) -> None:
        try:
            self._append_all(batches)
        except StorageError:
            # One by one, to find out which is refused, and why.
            at = 0
            while at < len(batches):
                size = size_at(batches, at)
                try:
                    self._append_all(batches[at : at + size])
                except StorageError as error:
                    error.message = error.message.removeprefix("batch 1, at byte 0: ")
                    error.position = self.produced.size
                    raise
                at += size

    def _append_all(self, batches: bytes) -> None:
        appended = self._log.appender.append_batches(
            batches, now_ns=self._now_ns(), trusted=self._trusted
        )
        produced = self.produced
        produced.size += len(batches)
        for batch in appended:
            if batch.duplicate:
                produced.duplicates += 1
                continue
            if not produced.batches:
                produced.first_offset = batch.base_offset
            produced.batches += 1
            produced.last_offset = batch.last_offset
