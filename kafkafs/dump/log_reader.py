"""Reads a `.log` file: bytes at a position, and batches by their frames (FileLogInputStream)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from kafkafs.dump._dump import Walk
from kafkafs.dump.options import LARGEST_FILE
from kafkafs.dump.output import DumpError
from storage.errors import CorruptRecord
from storage.record.header import (
    FRAME,
    FRAME_SIZE,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    SMALLEST_SIZE,
)

_CHUNK = 1 << 18
_AHEAD = 64 * 1024
_LAST_OFFSET_DELTA = struct.Struct(">i")


class Frame(NamedTuple):
    """A whole batch. `last_offset` is None if the file ends within its header."""

    position: int
    size: int
    last_offset: int | None


class LogReader:
    """An open log file of at most 2 GiB, with the size that it had at its opening."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size
        self._window = b""
        self._start = 0
        if self.size > LARGEST_FILE:
            self.close()
            raise DumpError(f"{path}: {self.size} bytes are larger than the largest segment")

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def fill(self, window: memoryview, position: int) -> int:
        """Read as many bytes as the file has and `window` takes; return how many."""
        filled = 0
        while filled < len(window):
            count = os.preadv(self._fd, [window[filled:]], position + filled)
            if count == 0:
                break
            filled += count
        return filled

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from `position`, fewer at the file's end. Read ahead for small reads."""
        at = position - self._start
        if at < 0 or at + size > len(self._window):
            # A read right after the last one is likely to continue.
            ahead = 0 <= at <= len(self._window) + _AHEAD
            self._window = os.pread(self._fd, max(size, _AHEAD if ahead else 0), position)
            self._start = position
            at = 0
        return self._window[at : at + size]

    def frame(self, position: int, end: int) -> Frame | None:
        """Return the batch at `position`; None: no whole batch before `end`."""
        if position >= end - FRAME_SIZE:
            return None
        header = self.read(position, HEADER_SIZE)
        base, length, magic = FRAME.unpack_from(header)
        if length < SMALLEST_SIZE[0]:
            raise self.fault(position, f"the size field says {length}, less than any entry's")
        size = LOG_OVERHEAD + length
        if position > end - size:
            return None
        if magic < MAGIC:
            return Frame(position, size, base)
        if len(header) < HEADER_SIZE:
            return Frame(position, size, None)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(header, LAST_OFFSET_DELTA_POSITION)
        return Frame(position, size, base + delta)

    def last_offset(self, frame: Frame) -> int:
        """Return the batch's last offset. DumpError where the file ends within its header."""
        if frame.last_offset is None:
            raise self.fault(frame.position, "a batch's header is cut off")
        return frame.last_offset

    def slice_end(self, position: int, size: int) -> int:
        """Return the end of a slice of `size` bytes from `position` (FileRecords.slice)."""
        if not 0 <= position <= self.size:
            raise DumpError(f"{self.path}: position {position} is outside its {self.size} bytes")
        return min(position + size, self.size)

    def fault(self, position: int, reason: str) -> DumpError:
        return DumpError(f"{self.path}: {reason} (position {position})")

    def walk(self, walk: Walk, end: int, take: Callable[[], None]) -> None:
        """Walk to `end`; call `take` whenever the walk has collected much, and at the end."""
        window = memoryview(bytearray(_CHUNK))
        start = walk.position
        filled = 0
        try:
            while wanted := walk.step(window, start, filled, end, self.size):
                take()
                if walk.position + wanted > start + filled:
                    if wanted > len(window):
                        window = memoryview(bytearray(wanted))
                    start = walk.position
                    filled = self.fill(window, start)
                    if filled < wanted:
                        raise self.fault(start, "the file was truncated while it was read")
        except CorruptRecord as error:
            raise self.fault(walk.position, error.message) from None
        finally:
            take()
