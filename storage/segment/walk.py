"""Walks through a log's file: reads a window of it, takes the whole batches there, reads on.

``Walk`` is the one loop for that.  What a batch is, and what the end of a walk means, is up to who
walks: recovery cuts the log there, a cleaner gives up, a checker says what is wrong.

``Buffered`` turns "fill this buffer" into "so many bytes from there", which is what a walk reads.

Not here: walks by headers alone, which pass over the records (``record.scan``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

from storage.files import Files
from storage.record._batch import Rebuild
from storage.record.header import LOG_OVERHEAD, Buffer, size_at

#: Bytes of a window, unless a batch is larger: what stays in the processor's cache.
WINDOW_BYTES = 2 << 20

_Data = TypeVar("_Data", bytes, bytearray, memoryview)

_NOTHING = memoryview(bytearray())


class Buffered:
    """Reads a file into one buffer.  What was read last is at hand, and is not read again.

    ``fill(view, position)`` fills ``view`` from that position of the file and returns the count of
    bytes, fewer than its size only at the file's end.
    """

    def __init__(self, fill: Callable[[memoryview, int], int]) -> None:
        self._fill = fill
        self._room = _NOTHING
        self._start = self._end = 0

    def read(self, position: int, size: int) -> memoryview:
        """``size`` bytes from ``position``, valid until the next call; fewer at the file's end."""
        if not self._start <= position <= position + size <= self._end:
            self._move_to(position, size)
            held = self._end - position
            self._end += self._fill(self._room[held:size], position + held)
        return self._room[position - self._start : min(position + size, self._end) - self._start]

    def _move_to(self, position: int, size: int) -> None:
        """Let the buffer begin at ``position``, with what it has from there on."""
        held = _NOTHING
        if self._start <= position < self._end:
            held = self._room[position - self._start : self._end - self._start]
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        self._room[: len(held)] = held
        self._start, self._end = position, position + len(held)

    def settle(self) -> None:
        """Read anew from now on: nothing is at hand."""
        self._end = self._start


def buffered(files: Files, fd: int) -> Buffered:
    """An open file, read through a buffer; who opened it closes it."""
    return Buffered(partial(files.preadv, fd))


class Walk(Generic[_Data]):
    """The windows of a log, from ``position``, where a batch begins, to ``end``.

    Who takes one moves ``position`` behind the whole batches that it took::

        for data in walk:
            walk.position += rebuild.feed(data, len(data), walk.position)

    Where it takes nothing because the first batch is not whole, the next window is as large as that
    batch says it is.  The walk ends at ``end``, and before

    - a batch that is not whole before ``end`` or before the file ends,
    - one that is whole and was not taken.
    """

    def __init__(
        self,
        read: Callable[[int, int], _Data],
        position: int,
        end: int,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """``read(position, size)`` returns that part of the log, fewer bytes only at its end.

        ``window_bytes``: of a window, LOG_OVERHEAD at least, unless a batch is larger.
        ``needed``: the size of the batch at ``position``, set by who takes the windows where the
        batch does not begin with its size, or to spare the walk a window that is too small.
        """
        self._read: Callable[[int, int], _Data] = read
        self._window_bytes = window_bytes
        self.position = position
        self.end = end
        self.needed = 0

    def __iter__(self) -> Iterator[_Data]:
        while self.position < self.end:
            start = self.position
            size = min(max(self._window_bytes, self.needed), self.end - start)
            self.needed = 0
            data = self._read(start, size)
            if not data:
                return
            yield data
            if self.position > start:
                continue
            needed = self.needed or _size_of(data)
            if len(data) < size or not size < needed <= self.end - start:
                return
            self.needed = needed


def _size_of(data: Buffer) -> int:
    """The size that the first batch says it has; 0 where not even that is there."""
    return size_at(data, 0) if len(data) >= LOG_OVERHEAD else 0


def feed(
    files: Files, fd: int, end: int, rebuild: Rebuild, *, check_crc: bool = True
) -> Iterator[tuple[memoryview, int, int]]:
    """Feed a log to ``rebuild``, from its position to ``end``.

    Yields (window, bytes of it that were taken, its position in the file), each valid until the
    next one; ends as a ``Walk``.
    """
    walk = Walk(buffered(files, fd).read, rebuild.position, end)
    for data in walk:
        start = walk.position
        taken = rebuild.feed(data, len(data), start, check_crc=check_crc)
        walk.position += taken
        yield data, taken, start
        if rebuild.fault is not None:
            return


def sealed_times(rebuild: Rebuild) -> bytes:
    """The time index of a segment that is sealed: its last entry has the largest timestamp."""
    entries = bytes(rebuild.time_entries)
    last = int.from_bytes(entries[-12:-4], "big") if entries else -1
    if rebuild.max_timestamp <= last:
        return entries
    relative = rebuild.max_timestamp_offset - rebuild.base_offset
    return entries + rebuild.max_timestamp.to_bytes(8, "big") + relative.to_bytes(4, "big")
