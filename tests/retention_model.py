"""A model of Kafka's retention (`UnifiedLog`): which segments of a log it deletes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.compaction_model import ModelLog, ModelSegment


def doomed(
    log: ModelLog,
    *,
    policy: Sequence[str],
    retention_ms: int,
    retention_bytes: int,
    now_ms: int,
    high_watermark: int | None = None,
) -> int:
    """Return how many of the oldest segments are deleted.

    If the active segment is one of them, the log starts a new segment first. `high_watermark`:
    None means the log end.
    """
    segments = log.segments
    gone = 0

    def walk(goes: Callable[[ModelSegment, ModelSegment | None], bool]) -> None:
        nonlocal gone
        while gone < len(segments):
            segment = segments[gone]
            following = segments[gone + 1] if gone + 1 < len(segments) else None
            if (following is None and not segment.size) or not goes(segment, following):
                return
            end = following.base_offset if following is not None else log.log_end
            if high_watermark is not None and high_watermark < end:
                return
            gone += 1

    walk(
        lambda segment, following: following is not None and following.base_offset <= log.log_start
    )
    if "delete" in policy:
        total = sum(segment.size for segment in segments[gone:])
        if 0 <= retention_bytes <= total:
            left = total - retention_bytes

            def is_too_much(segment: ModelSegment, following: ModelSegment | None) -> bool:
                nonlocal left
                if left < segment.size:
                    return False
                left -= segment.size
                return True

            walk(is_too_much)
        if retention_ms >= 0:
            walk(lambda segment, following: now_ms - segment.largest_timestamp > retention_ms)
    return gone
