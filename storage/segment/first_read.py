"""What of a segment's log has been read and checked since it was opened.

Bytes are checked against their CRC when a batch is first read (``Segment.verify``).  What has been
is kept as *parts*: runs of whole batches, ascending and apart from one another, each with the
offset that comes behind it.  What this process has appended itself is *written*: from
``written_from`` on it is as it was written, as long as the page cache holds it.

Any thread may ask and add.

Not here: reading and judging (``batch_check``), what becomes of damage (``segment``).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import NamedTuple

_lock = threading.Lock()
_MUCH = 128 * 1024
_BEYOND = 2**63


class Known(NamedTuple):
    """Bytes ``start`` to ``end`` of a log; ``next_offset`` is behind the last batch."""

    start: int
    end: int
    next_offset: int


class FirstRead:
    """See the module.  ``whole``: there is nothing left to be checked."""

    __slots__ = ("_parts", "batch_size", "whole", "written_from")

    def __init__(self) -> None:
        # Ascending; a list, as who reads at random places adds many. Under the lock.
        self._parts: list[Known] = []
        self.written_from = 0
        self.whole = True
        # Bytes of a batch that was read lately.
        self.batch_size = 0

    def doubt(self, size: int) -> None:
        """Nothing of the log's ``size`` bytes counts as written any longer: a disk has it."""
        with _lock:
            self.written_from = size
            self.whole = self._are_known(0, size)

    def knows(self, position: int, end: int) -> bool:
        """Whether all of these bytes have been checked."""
        if self.whole:
            return True
        with _lock:
            return self._are_known(position, end)

    def _are_known(self, position: int, end: int) -> bool:
        end = min(end, self.written_from)
        if position >= end:
            return True
        part = self._last_part(position)
        return part is not None and end <= part.end

    def to_read(self, position: int, size: int) -> int:
        """How much to read at once where ``size`` bytes are wanted: what has been checked, if that
        is much; else a batch more than is wanted, so that all of it can be checked as it is read.
        """
        if self.knows(position, position + size):
            return size
        part = self.part_at(position)
        if part is not None and part.end - position >= _MUCH:
            return part.end - position
        return size + self.batch_size

    def part_at(self, position: int) -> Known | None:
        """The part that holds a position."""
        part = self.part_before(position)
        return part if part is not None and position < part.end else None

    def part_before(self, position: int) -> Known | None:
        """The last part that begins at or before a position."""
        with _lock:
            return self._last_part(position)

    def _last_part(self, position: int) -> Known | None:
        number = bisect_right(self._parts, (position, _BEYOND)) - 1
        return self._parts[number] if number >= 0 else None

    def add(self, added: Known) -> None:
        """These bytes have been checked."""
        with _lock:
            parts = self._parts
            behind = bisect_right(parts, (added.end, _BEYOND))
            first = bisect_right(parts, (added.start, _BEYOND), hi=behind)
            if first and parts[first - 1].end >= added.start:
                first -= 1
            if first < behind:
                # Those that it touches become one with it.
                start = min(added.start, parts[first].start)
                last = max(added, parts[behind - 1], key=lambda part: part.end)
                added = last._replace(start=start)
            parts[first:behind] = (added,)
            self.whole = self._are_known(0, self.written_from)
