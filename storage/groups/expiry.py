"""Which positions are too old (``OffsetMetadataManager.cleanupExpiredOffsets``).

A position lives for offsets.retention.minutes since its commit or, of a classic group that has lost
its members, since it has lost them.  Positions of groups that have members stay: whether these are
still there only a running broker knows.

Pure: facts in, a decision out.
"""

from __future__ import annotations

from storage.groups.group import Group
from storage.groups.offset_records import Committed

_MINUTE_MS = 60_000


def is_expired(group: Group, committed: Committed, minutes: int | None, now_ms: int) -> bool:
    """Whether a position is over at ``now_ms``; ``minutes``: how long it lives, None for ever."""
    if minutes is None or group.members:
        return False
    if committed.expire_ms is not None:
        return now_ms >= committed.expire_ms
    since_ms = group.empty_since_ms
    return now_ms - (committed.time_ms if since_ms is None else since_ms) >= minutes * _MINUTE_MS
