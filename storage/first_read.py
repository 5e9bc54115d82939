"""What of a segment's log has been read and checked since it was opened.

Bytes are checked against their CRC when a batch is first read (``Segment.verify``).  What has been
is kept as *parts*: runs of whole batches, ascending and apart from one another, each with the
offset that comes behind it.  What this process has appended itself is *written*: from
``written_from`` on it is as it was written, as long as the page cache holds it.

Any thread may ask and add: the parts are one tuple, replaced as a whole.

Not here: reading and judging (``batch_check``), what becomes of damage (``segment``).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import NamedTuple

_lock = threading.Lock()


class Known(NamedTuple):
    """Bytes ``start`` to ``end`` of a log; ``next_offset`` is behind the last batch."""

    start: int
    end: int
    next_offset: int


class FirstRead:
    """See the module.  ``whole``: there is nothing left to be checked."""

    __slots__ = ("_parts", "whole", "written_from")

    def __init__(self) -> None:
        self._parts: tuple[Known, ...] = ()
        self.written_from = 0
        self.whole = True

    def doubt(self, size: int) -> None:
        """Nothing of the log's ``size`` bytes counts as written any longer: a disk has it."""
        with _lock:
            self.written_from = size
            self.whole = self._knows(0, size)

    def knows(self, position: int, end: int) -> bool:
        """Whether all of these bytes have been checked."""
        return self.whole or self._knows(position, end)

    def _knows(self, position: int, end: int) -> bool:
        end = min(end, self.written_from)
        if position >= end:
            return True
        part = self.part_at(position)
        return part is not None and end <= part.end

    def part_at(self, position: int) -> Known | None:
        """The part that holds a position."""
        part = self.part_before(position)
        return part if part is not None and position < part.end else None

    def part_before(self, position: int) -> Known | None:
        """The last part that begins at or before a position."""
        parts = self._parts
        number = bisect_right(parts, position, key=lambda part: part.start) - 1
        return parts[number] if number >= 0 else None

    def add(self, added: Known) -> None:
        """These bytes have been checked."""
        with _lock:
            parts: list[Known] = []
            for part in sorted((*self._parts, added)):
                last = parts[-1] if parts else None
                if last is None or part.start > last.end:
                    parts.append(part)
                elif part.end > last.end:
                    parts[-1] = part._replace(start=last.start)
            self._parts = tuple(parts)
            self.whole = self._knows(0, self.written_from)
