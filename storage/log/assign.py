"""Checks batches that are to be appended, and assigns their offsets.

These functions change nothing except the bytes that they are given. So an append that is routed
over partitions assigns the batches of all partitions before it writes any.

Not here: the form in which a topic stores batches (`validator`), the write (`log`).
"""

from __future__ import annotations

from storage import paths
from storage.errors import InvalidRecord, RecordTooLarge
from storage.log.validator import check_not_ahead
from storage.record._batch import assign_offsets
from storage.record.header import Buffer
from storage.segment.writer import BatchEntry
from storage.settings.config import LogConfig
from storage.state.producer_state import ProducerUpdate

Assigned = tuple[Buffer, list[BatchEntry], int, ProducerUpdate | None]
"""Batches with their offsets, an entry for each, the first offset; the update of their producers,
if they have any.
"""


def with_checked_offsets(
    batches: bytearray, config: LogConfig, first: int, leader_epoch: int, now_ms: int
) -> Assigned:
    """Assign offsets to sound batches without producers; check their sizes and timestamps. Errors:
    those of `with_offsets`, RecordTooLarge, InvalidTimestamp.
    """
    assigned = with_offsets(batches, first, leader_epoch)
    limit = config.max_message_bytes
    latest = now_ms + config.message_timestamp_after_max_ms
    _, entries, _, _ = assigned
    for _, size, _, max_timestamp in entries:
        if size > limit:
            raise RecordTooLarge(size, limit)
        if max_timestamp > latest:
            check_not_ahead(max_timestamp, config, now_ms)
    return assigned


def with_offsets(
    batches: bytearray, first: int, leader_epoch: int, update: ProducerUpdate | None = None
) -> Assigned:
    """Write base offsets from `first` on, and the leader epoch, into batches. Errors: InvalidRecord
    if no offset is left.
    """
    entries = assign_offsets(batches, first, leader_epoch)
    check_last_offset(first, entries[-1][2])
    return batches, entries, first, update


def check_last_offset(first: int, last_offset: int) -> None:
    """Check that a log does not exceed the largest possible offset. Errors: InvalidRecord."""
    # `assign_offsets` adds in 64 bits: an offset that is too large has become negative.
    if not first <= last_offset < paths.MAX_OFFSET:
        raise InvalidRecord(
            f"no offsets left from offset {first} on: a log ends at {paths.MAX_OFFSET}"
        )
