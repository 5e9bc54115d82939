"""Reads a part of a segment's log back from the disk and finds what is damaged in it.

A batch is sound when it lies inside the file, its CRC is right and its offsets are above those
before it (``Rebuild``).  What is wrong is read once more, when nothing is under way to the disk any
more: only what is wrong then, too, is damage.  It goes on behind it, at the next sound batch: where
the damaged one says that it ends, or else the first one found.

Any thread may check a segment that it has a lease of.
"""

from __future__ import annotations

from typing import NamedTuple

from storage.damage import Damage
from storage.medium import Medium
from storage.record._batch import Rebuild, find_next_batch
from storage.record.header import HEADER_SIZE, parse_header, size_at
from storage.task import Task

# So that no thread waits long for this one, which judges a chunk at a time.
_CHUNK_BYTES = 256 * 1024
# There is no index to be made of what is checked.
_NO_INDEX = 1 << 62
_FRAME = 12


class Part(NamedTuple):
    """Bytes ``position`` to ``end`` of the log of the segment ``base_offset``, where whole batches
    begin and end, the first one not below ``next_offset``.

    ``largest``: bytes of the largest batch that there should be.
    """

    base_offset: int
    position: int
    next_offset: int
    end: int
    largest: int


class Checked(NamedTuple):
    """What was found; ``next_offset`` is behind the last batch.

    That of a damaged place at the end is -1, as nothing there tells.
    """

    next_offset: int
    damages: list[Damage]


def check_part(medium: Medium, part: Part, task: Task) -> Checked:
    """Check it; ``task`` is told of the bytes.  OSError, TaskCancelled."""
    check = _Check(medium, part)
    while check.rebuild.position < part.end:
        before = check.rebuild.position
        check.step()
        task.advance(check.rebuild.position - before)
    return Checked(check.rebuild.next_offset, check.damages)


class _Check:
    def __init__(self, medium: Medium, part: Part) -> None:
        self.medium = medium
        self.part = part
        self.damages: list[Damage] = []
        self.rebuild = self._from(part.position, part.next_offset)
        self._suspect = -1
        self._wanted = _CHUNK_BYTES

    def _from(self, position: int, next_offset: int) -> Rebuild:
        base = self.part.base_offset
        return Rebuild(base, _NO_INDEX, position=position, next_offset=next_offset)

    def step(self) -> None:
        """Go on by one read, or over a damaged place."""
        rebuild, end = self.rebuild, self.part.end
        start = rebuild.position
        size = min(self._wanted, end - start)
        self._wanted = _CHUNK_BYTES
        data = self.medium.read(start, size)
        taken = rebuild.feed(data, len(data), start)
        rebuild.producers.clear()
        rebuild.epochs.clear()
        if rebuild.fault is not None:
            self._fault(rebuild.fault)
        elif len(data) < size and not taken:
            self._fault("the file ends before it")
        elif not taken:
            needed = size_at(data, 0) if len(data) >= _FRAME else end - start + 1
            if size < needed <= end - start:
                self._wanted = needed
            else:
                self._fault("it is longer than the log")

    def _fault(self, reason: str) -> None:
        position, next_offset = self.rebuild.position, self.rebuild.next_offset
        if self._suspect != position:
            self._suspect = position
            self.medium.settle()
            self.rebuild = self._from(position, next_offset)
            return
        end, following = self._next_sound(position, next_offset)
        self.damages.append(Damage(position, end, next_offset, following, reason))
        self.rebuild = self._from(end, max(following, next_offset))

    def _next_sound(self, position: int, next_offset: int) -> tuple[int, int]:
        """Where the next sound batch begins, and its first offset; else the end, and -1."""
        end, largest = self.part.end, max(self.part.largest, _CHUNK_BYTES)
        frame = self.medium.read(position, min(_FRAME, end - position))
        claimed = size_at(frame, 0) if len(frame) == _FRAME else 0
        if HEADER_SIZE <= claimed <= end - position:
            # Its size can be right though the rest is not.
            after = position + claimed
            if after == end:
                return end, -1
            window = self.medium.read(after, min(largest, end - after))
            if find_next_batch(window, 0, next_offset) == 0:
                return after, parse_header(window).base_offset
        at = position + 1
        while at < end:
            # A batch that begins in the first half of a window is whole in it.
            window = self.medium.read(at, min(2 * largest, end - at))
            found = find_next_batch(window, 0, next_offset)
            if found >= 0:
                return at + found, parse_header(window[found:]).base_offset
            at += largest
        return end, -1
