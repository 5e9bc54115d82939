"""Walks through a log's file: reads a window of it, takes the whole batches there, reads on.

`Walk` is the one loop for that. Its caller knows what a batch is, and what the end of a walk means:
recovery cuts the log there, a cleaner gives up, a checker says what is wrong.

`Buffered` reads a file into one buffer, which is what a walk reads.

Not here: walks by headers alone, which pass over the records (`record.scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

from storage.files import Files
from storage.record._batch import Rebuild
from storage.record.header import LOG_OVERHEAD, size_at
from storage.segment.damage import Damage
from storage.waiting import before_waiting, may_wait

#: Bytes of a window, unless a batch is larger: what stays in the processor's cache.
WINDOW_BYTES = 2 << 20
#: How many bytes a thread checks that may not wait: what takes it 0.2 ms.
AT_ONCE_BYTES = 1 << 20

_Data = TypeVar("_Data", bytes, bytearray, memoryview)

_NOTHING = memoryview(bytearray())


class Buffered:
    """Reads a file into one buffer, which holds what was read last.

    `fill(view, position)` fills `view` from that position of the file and returns the count of
    bytes, fewer than its size only at the file's end.
    """

    def __init__(self, fill: Callable[[memoryview, int], int]) -> None:
        self._fill = fill
        self._room = _NOTHING
        self._start = self._end = 0

    def read(self, position: int, size: int) -> memoryview:
        """`size` bytes from `position`, valid until the next call; fewer at the file's end."""
        if not self._start <= position <= position + size <= self._end:
            self._move_to(position, size)
            held = self._end - position
            self._end += self._fill(self._room[held:size], position + held)
        return self._room[position - self._start : min(position + size, self._end) - self._start]

    def _move_to(self, position: int, size: int) -> None:
        """Let the buffer begin at `position`, with what it holds from there on."""
        held = _NOTHING
        if self._start <= position < self._end:
            held = self._room[position - self._start : self._end - self._start]
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        self._room[: len(held)] = held
        self._start, self._end = position, position + len(held)

    def settle(self) -> None:
        """Drop what the buffer holds. Errors: BlockingIOError where the caller may not wait."""
        before_waiting()
        self._end = self._start


def buffered(files: Files, fd: int) -> Buffered:
    """Return an open file, read through a buffer; the caller closes it.

    Where the caller may not wait, reading is BlockingIOError for what is not in the page cache, and
    for more than AT_ONCE_BYTES.
    """
    if may_wait():
        return Buffered(partial(files.preadv, fd))

    def fill_at_once(view: memoryview, position: int) -> int:
        done = 0
        while done < len(view):
            if len(view) > AT_ONCE_BYTES:
                raise BlockingIOError
            count = files.preadv_nowait(fd, view[done:], position + done)
            if count is None:
                raise BlockingIOError
            if not count:
                break
            done += count
        return done

    return Buffered(fill_at_once)


class Walk(Generic[_Data]):
    """The windows of a log, from `position`, where a batch begins, to `end`.

    The caller moves `position` behind the whole batches that it takes::

        for data in walk:
            walk.position += rebuild.feed(data, len(data), walk.position)

    Where it takes nothing because the first batch is not whole, the next window is as large as that
    batch says it is. The walk ends at `end`, and before a batch that

    - is not whole before `end` or before the file ends,
    - is whole and was not taken.
    """

    def __init__(
        self,
        read: Callable[[int, int], _Data],
        position: int,
        end: int,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """`read(position, size)` returns that part of the log, fewer bytes only at its end.

        `window_bytes`: of a window, LOG_OVERHEAD at least, unless a batch is larger. `needed`: the
        size of the batch at `position`; the caller sets it where the batch does not begin with its
        size, or to spare the walk a window that is too small.
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
            needed = self.needed or (size_at(data, 0) if len(data) >= LOG_OVERHEAD else 0)
            if len(data) < size or not size < needed <= self.end - start:
                return
            self.needed = needed


def feed(
    files: Files, fd: int, end: int, rebuild: Rebuild, *, check_crc: bool = True
) -> Iterator[tuple[memoryview, int, int]]:
    """Feed a log to `rebuild`, from its position to `end`.

    Yields (window, bytes of it that were taken, its position in the file), each valid until the
    next one; ends as a `Walk`.
    """
    walk = Walk(buffered(files, fd).read, rebuild.position, end)
    for data in walk:
        start = walk.position
        taken = rebuild.feed(data, len(data), start, check_crc=check_crc)
        walk.position += taken
        yield data, taken, start
        if rebuild.fault is not None:
            return


def sealed_indexes(
    files: Files, fd: int, size: int, rebuild: Rebuild, damages: Iterable[Damage]
) -> tuple[bytes, bytes]:
    """Return the offset index and the time index of a sealed segment, of what is sound in its log.

    `rebuild`: a new one. Damage that is not among `damages` ends what is indexed before it.
    """
    for place in damages:
        _feed_to(files, fd, place.start, rebuild)
        rebuild.skip(place.end, place.next_offset)
    _feed_to(files, fd, size, rebuild)
    return bytes(rebuild.offset_entries), sealed_times(rebuild)


def _feed_to(files: Files, fd: int, end: int, rebuild: Rebuild) -> None:
    for _ in feed(files, fd, end, rebuild):
        rebuild.producers.clear()


def sealed_times(rebuild: Rebuild) -> bytes:
    """Return the time index of a segment that is sealed: its last entry has the largest
    timestamp.
    """
    entries = bytes(rebuild.time_entries)
    last = int.from_bytes(entries[-12:-4], "big") if entries else -1
    if rebuild.max_timestamp <= last:
        return entries
    relative = rebuild.max_timestamp_offset - rebuild.base_offset
    return entries + rebuild.max_timestamp.to_bytes(8, "big") + relative.to_bytes(4, "big")
