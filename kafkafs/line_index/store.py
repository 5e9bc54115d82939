"""What all line indexes of a mount share: the seam to the disk, and which of them are mapped.

Entries of sealed segments are looked up in a map of their file. A budget of bytes and of maps
bounds how many stay mapped; the oldest go first, but those that were used since their last turn get
another one. What somebody still looks into while it goes stays alive until he is done.

Not here: what is in a map (`segment_lines.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from storage.duties import Duties
from storage.files import Files

GRANULARITY = 4096
"""Bytes of text between two entries."""
MAP_BUDGET = 64 << 20
"""Bytes of entries that stay mapped, of all segments together."""
NEVER = float("inf")
"""No end to measuring (`time.monotonic`)."""
MAP_COUNT = 256
"""Segments whose entries stay mapped: before Python 3.13 a map holds a descriptor."""


class Mapping(Protocol):
    """Who has something mapped."""

    used: bool
    """Set by who looks into the map; taken back when its turn to go is passed over."""

    def unmap(self) -> None: ...


class LineStore:
    """What all line indexes of a mount share: the seam to the disk, and what stays mapped."""

    def __init__(
        self,
        files: Files,
        duties: Duties | None = None,
        *,
        granularity: int = GRANULARITY,
        map_budget: int = MAP_BUDGET,
    ) -> None:
        self.files = files
        self.duties = duties or Duties()
        self.granularity = granularity
        self._budget = map_budget
        self._mapped: OrderedDict[Mapping, int] = OrderedDict()
        self._lock = threading.Lock()
        self.mapped_bytes = 0

    def admit(self, lines: Mapping, size: int) -> None:
        """`lines` has mapped `size` bytes; others make room."""
        with self._lock:
            self.mapped_bytes += size - self._mapped.pop(lines, 0)
            self._mapped[lines] = size
            while len(self._mapped) > 1 and (
                self.mapped_bytes > self._budget or len(self._mapped) > MAP_COUNT
            ):
                oldest, freed = self._mapped.popitem(last=False)
                if oldest.used:
                    oldest.used = False
                    self._mapped[oldest] = freed
                else:
                    self.mapped_bytes -= freed
                    oldest.unmap()

    def dropped(self, lines: Mapping) -> None:
        """`lines` has given up its map by itself."""
        with self._lock:
            self.mapped_bytes -= self._mapped.pop(lines, 0)
