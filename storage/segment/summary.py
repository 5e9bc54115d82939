"""The values of a segment that are computed from its files."""

from __future__ import annotations

from typing import NamedTuple

from storage.record._batch import Rebuild


class SegmentSummary(NamedTuple):
    """Sizes and positions are in bytes, timestamps in ms.

    `first_timestamp` is the largest timestamp of the first batch. `max_timestamp_offset` is the
    last offset of the first batch with the largest timestamp of all. Both timestamps are -1 if no
    record has one.
    """

    size: int
    next_offset: int
    mtime_ns: int
    first_timestamp: int = -1
    max_timestamp: int = -1
    max_timestamp_offset: int = 0

    @classmethod
    def of(cls, rebuild: Rebuild, size: int, mtime_ns: int) -> SegmentSummary:
        """Return the summary of a log of `size` bytes that `rebuild` has read."""
        return cls(
            size=size,
            next_offset=rebuild.next_offset,
            mtime_ns=mtime_ns,
            first_timestamp=rebuild.first_max_timestamp,
            max_timestamp=rebuild.max_timestamp,
            max_timestamp_offset=rebuild.max_timestamp_offset,
        )
