"""Counts the line indexes that no file has yet, and saves them.

The total is updated for each changed view, so a turn costs by the views that have changed, not by
all views.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkafs.tree.partition.partition_view import PartitionView

SAVE_BYTES = 64 << 20
"""Bytes of unsaved log after which a view's line index is saved."""
SAVE_ALL_BYTES = 1 << 30
"""Bytes of unsaved log of all views: bounds the memory of their entries."""


class Unsaved:
    """The unsaved line indexes of one mount. On the owner's thread."""

    def __init__(self) -> None:
        self._sizes: dict[PartitionView, int] = {}
        self._large: set[PartitionView] = set()
        self._total = 0

    def look(self, views: Iterable[PartitionView]) -> None:
        """Count views anew that may have changed."""
        for view in views:
            size = view.layout.unsaved
            self._total += size - self._sizes.pop(view, 0)
            self._large.discard(view)
            if size:
                self._sizes[view] = size
            if size >= SAVE_BYTES:
                self._large.add(view)

    def forget(self, views: Iterable[PartitionView]) -> None:
        """Drop views of a deleted partition."""
        for view in views:
            self._total -= self._sizes.pop(view, 0)
            self._large.discard(view)

    def save(self) -> None:
        """Save the large ones, and the largest others while the total is too large.

        An index that the disk refuses is saved the next time.
        """
        wanted = list(self._large)
        if self._total >= SAVE_ALL_BYTES:
            wanted = sorted(self._sizes, key=lambda view: self._sizes[view], reverse=True)
        for view in wanted:
            if self._sizes[view] < SAVE_BYTES and self._total < SAVE_ALL_BYTES:
                break
            view.layout.save()
            self.look([view])
