"""What all line indexes of a mount share: the seam to the disk, and the maps of their files.

The entries of a sealed segment are read in a map of its file. A budget bounds the bytes and the
number of maps: the oldest one goes first, unless it was used since its last turn. A map that a
thread still reads stays alive until that thread is done.
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
    """The owner of a map."""

    used: bool
    """Set when the map is read; unset when its turn to go is passed over."""

    def unmap(self) -> None: ...


class LineStore:
    """See the module."""

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
        """Count a map of `size` bytes, and unmap others that exceed the budget."""
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
        """Forget a map: `lines` has dropped it by itself."""
        with self._lock:
            self.mapped_bytes -= self._mapped.pop(lines, 0)
