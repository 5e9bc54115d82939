"""Limits the bytes of files that are kept in memory.

If the total exceeds the budget, the oldest cache is dropped first. A cache that was used since its
last turn moves to the end instead. A thread that is still reading dropped bytes keeps its own
reference to them.

Not here: reading the files, and the meaning of the bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol


class Cache(Protocol):
    """Cached bytes of one file."""

    used: bool
    """Set when the bytes are read; unset when eviction passes the cache over."""

    def evict(self) -> None: ...


class ByteBudget:
    """The sizes of all caches. `budget`: of all together, unless a single cache exceeds it."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._sizes: OrderedDict[Cache, int] = OrderedDict()
        self._lock = threading.Lock()
        self.total = 0

    def admit(self, cache: Cache, size: int) -> None:
        """Set the size of a cache, and evict others that exceed the budget."""
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
        """Forget a cache whose bytes were dropped by its owner."""
        with self._lock:
            self.total -= self._sizes.pop(cache, 0)
