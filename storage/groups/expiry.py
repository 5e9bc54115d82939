"""Which positions are too old (`OffsetMetadataManager.cleanupExpiredOffsets`).

A position lives for offsets.retention.minutes since its commit or, of a classic group that has lost
its members, since it has lost them; but at least since consumers of our own have left the group.
Positions of groups that have members stay: whether these are still there only a running broker
knows.

Pure: facts in, a decision out.
"""

from __future__ import annotations

from storage.groups.group import Group
from storage.groups.offset_records import Committed

_MINUTE_MS = 60_000


def is_expired(
    group: Group,
    committed: Committed,
    minutes: int | None,
    now_ms: int,
    left_ms: int | None = None,
) -> bool:
    """Return whether a position is over at `now_ms`; `minutes`: how long it lives, None for ever;
    `left_ms`: when the last consumer of our own has left, if there was one.
    """
    if minutes is None or group.has_members:
        return False
    if committed.expire_ms is not None:
        return now_ms >= committed.expire_ms
    since_ms = committed.time_ms if group.empty_since_ms is None else group.empty_since_ms
    if left_ms is not None:
        since_ms = max(since_ms, left_ms)
    return now_ms - since_ms >= minutes * _MINUTE_MS
