"""View indexes that are in memory only: how much there is, and which are to be saved.

Invariant: the total is kept as views are looked at, so that a turn costs by the views that have
changed and not by those that there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkafs.tree.partition.partition_view import PartitionView

SAVE_BYTES = 64 << 20
"""Bytes of log of one partition after which its view indexes are saved."""
SAVE_ALL_BYTES = 1 << 30
"""The same of all partitions together: bounds what their entries take in memory."""


class Unsaved:
    """Those of one file system. On the owner's thread."""

    def __init__(self) -> None:
        self._sizes: dict[PartitionView, int] = {}
        self._large: set[PartitionView] = set()
        self._total = 0

    def look(self, views: Iterable[PartitionView]) -> None:
        """These may have changed."""
        for view in views:
            size = view.layout.unsaved
            self._total += size - self._sizes.pop(view, 0)
            self._large.discard(view)
            if size:
                self._sizes[view] = size
            if size >= SAVE_BYTES:
                self._large.add(view)

    def forget(self, views: Iterable[PartitionView]) -> None:
        """These are gone."""
        for view in views:
            self._total -= self._sizes.pop(view, 0)
            self._large.discard(view)

    def save(self) -> None:
        """Save the large ones, and the largest of the others while they are too much together.

        What the disk refuses is tried again the next time.
        """
        wanted = list(self._large)
        if self._total >= SAVE_ALL_BYTES:
            wanted = sorted(self._sizes, key=lambda view: self._sizes[view], reverse=True)
        for view in wanted:
            if self._sizes[view] < SAVE_BYTES and self._total < SAVE_ALL_BYTES:
                break
            view.layout.save()
            self.look([view])
