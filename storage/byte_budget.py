"""Copies of files' bytes in memory, within a budget.

What is in memory counts by its bytes. What exceeds the budget goes, the oldest first, unless it was
used since its last turn. What a thread still reads stays until that thread is done.

Not here: reading the files, and what the bytes mean.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol


class Cache(Protocol):
    """Who has the bytes of one file."""

    used: bool
    """Set when they are read; unset when their turn to go is passed over."""

    def evict(self) -> None: ...


class ByteBudget:
    """Who holds how many bytes. `budget`: of all together, unless one exceeds it alone."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._sizes: OrderedDict[Cache, int] = OrderedDict()
        self._lock = threading.Lock()
        self.total = 0

    def admit(self, cache: Cache, size: int) -> None:
        """Count `size` bytes of a cache, and let others go that exceed the budget."""
        with self._lock:
            self.total += size - self._sizes.pop(cache, 0)
            self._sizes[cache] = size
            while len(self._sizes) > 1 and self.total > self._budget:
                oldest, freed = self._sizes.popitem(last=False)
                if oldest.used:
                    oldest.used = False
                    self._sizes[oldest] = freed
                else:
                    self.total -= freed
                    oldest.evict()

    def dropped(self, cache: Cache) -> None:
        """Forget what a cache has dropped by itself."""
        with self._lock:
            self.total -= self._sizes.pop(cache, 0)
