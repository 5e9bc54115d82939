"""Decides which committed offsets are too old (`OffsetMetadataManager.cleanupExpiredOffsets`).

A committed offset expires offsets.retention.minutes after its commit or, in a classic group without
members, after the last member left; but not before that time has passed since the last consumer of
our own left. Offsets of groups with members stay: only a running broker knows whether the members
still exist.

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
    """Return whether an offset has expired at `now_ms`.

    `minutes`: its lifetime; None: unlimited. `left_ms`: when the last consumer of our own left, or
    None.
    """
    if minutes is None or group.has_members:
        return False
    if committed.expire_ms is not None:
        return now_ms >= committed.expire_ms
    since_ms = committed.time_ms if group.empty_since_ms is None else group.empty_since_ms
    if left_ms is not None:
        since_ms = max(since_ms, left_ms)
    return now_ms - since_ms >= minutes * _MINUTE_MS
