"""Decides which part of a log can be cleaned, and whether it is due (`LogCleanerManager.java`).

A log below the first dirty offset is *clean*: at most one record of each key. The range from there
to the first uncleanable offset is *cleanable*: sealed segments without records of open
transactions, whose records are all older than min.compaction.lag.ms. Unlike Kafka's cleaner, this
one also leaves a transaction alone that has begun below the log start. A log is due if the dirty
part is large enough beside the clean one (min.cleanable.dirty.ratio), or has records older than
max.compaction.lag.ms. The first segment with known damage ends the cleanable part.

Pure: facts in, a decision out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from storage.segment.segment import Segment
from storage.settings.config import LogConfig


class CleanableRange(NamedTuple):
    """The range of a log that can be cleaned; offsets count records, sizes are in bytes.

    `overdue`: records in it are older than max.compaction.lag.ms. `high_watermark`: the end of the
    log when the range was computed, as there are no replicas.
    """

    start_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool
    high_watermark: int

    @property
    def ratio(self) -> float:
        """The share of dirty bytes; 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def most_keys(self) -> int:
        """The most keys that the dirty part can have, at least 1."""
        return max(self.first_uncleanable_offset - self.first_dirty_offset, 1)

    def is_due(self, config: LogConfig) -> bool:
        """Return whether the log is due (`grabFilthiestCompactedLog`)."""
        if self.overdue and self.cleanable_bytes:
            return True
        return self.ratio > config.min_cleanable_dirty_ratio


def cleanable(
    segments: Sequence[Segment],
    config: LogConfig,
    checkpointed: int | None,
    *,
    log_start: int,
    decided_end: int,
    log_end: int,
    now_ms: int,
) -> CleanableRange:
    """Return the range that can be cleaned now (`cleanableOffsets`, `LogToClean`).

    `checkpointed`: the offset up to which the log was cleaned, if it ever was; an offset outside of
    the log counts as the log start.
    """
    dirty = log_start
    if checkpointed is not None and log_start <= checkpointed <= log_end:
        dirty = checkpointed
    bounds = [decided_end, segments[-1].base_offset]
    damaged = first_damaged(segments)
    if damaged is not None:
        bounds.append(damaged.base_offset)
    lag_ms = config.min_compaction_lag_ms
    if lag_ms > 0:
        bounds += [
            each.base_offset
            for each in _sealed_from(segments, dirty)
            if each.largest_timestamp > now_ms - lag_ms
        ][:1]
    # Only whole segments are cleaned.
    left = _sealed_from(segments, min(bounds))
    bound = left[0].base_offset if left else segments[-1].base_offset
    dirty_segments = _sealed_from(segments, min(dirty, bound))
    firsts = [
        each.first_timestamp
        for each in _sealed_from(segments, dirty)
        if each.first_timestamp > 0  # else it is empty, or has no timestamps
    ]
    return CleanableRange(
        segments[0].base_offset,
        dirty,
        bound,
        sum(each.size for each in segments if each.base_offset < dirty),
        sum(each.size for each in dirty_segments if each.base_offset < bound),
        bool(firsts) and min(firsts) < now_ms - config.max_compaction_lag_ms,
        log_end,
    )


def first_damaged(segments: Sequence[Segment]) -> Segment | None:
    """Return the first sealed segment with known damage.

    Segments after it are not cleaned either: a tombstone there may delete a record that stays in
    it.
    """
    return next((segment for segment in segments[:-1] if segment.damages), None)


def _sealed_from(segments: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """Return the sealed segments from the one with `offset` on (`nonActiveLogSegmentsFrom`)."""
    if offset >= segments[-1].base_offset:
        return ()
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return segments[max(number, 0) : -1]
