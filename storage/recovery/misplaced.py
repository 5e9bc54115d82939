"""Finds batches with a wrong base offset, which no CRC covers, in a log that is loaded.

Such a batch is whole: it was not torn, and the following ones are sound. So it is damage in its
place, also in an unflushed segment, where a batch with a wrong CRC ends the log. It is detected

- by the next batch: offsets do not rise. If the records of the earlier of the two fit between the
  offsets of the batches on either side, the earlier one is wrong, else the later one (as in
  `batch_check`);
- if it is the last batch, by a limit that no batch crosses: the offset at which the log ended when
  it was flushed last, or at which the next segment begins. After the flushed part it is not
  detected.

Not here: walking through the log (`segment`).
"""

from __future__ import annotations

from collections.abc import Callable

from storage import paths
from storage.record._batch import Rebuild, walk_batches
from storage.record.header import FRAME_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_POSITION, size_at
from storage.segment.damage import Damage

Read = Callable[[int, int], bytes]
"""Returns bytes of the log: a number from a position, fewer at its end."""


def misplaced(read: Read, rebuild: Rebuild, limit: int | None, *, is_sealed: bool) -> Damage | None:
    """Return the batch whose wrong base offset has stopped a walk, or that crosses `limit`.

    `limit`: the offset at which the segment ends if it `is_sealed`, else one at which a batch
    ended; None: unknown.
    """
    if rebuild.fault is not None:
        found = _in_order(read, rebuild, limit)
        if found is not None:
            return found
    last, before = rebuild.last_batch_position, rebuild.offset_before_last
    if last < 0 or limit is None or not before < limit < rebuild.next_offset:
        return None
    frame = read(last, FRAME_SIZE)
    base = _base(frame)
    # A header of an older format may be a wrapper's, which has only the last offset.
    if not is_sealed and (base == before or frame[MAGIC_POSITION] < MAGIC):
        return None
    reason = f"base offset {base} is not below {limit}, where the segment ends"
    return Damage(last, rebuild.position, before, limit, reason)


def _in_order(read: Read, rebuild: Rebuild, limit: int | None) -> Damage | None:
    """Return the wrong one of two batches, if the second one's offsets do not continue."""
    at, next_offset = rebuild.position, rebuild.next_offset
    batch = _batch(read, at)
    walked = walk_batches(batch, len(batch), rebuild.base_offset, next_offset, paths.MAX_OFFSET)
    reason, is_placed_wrong = walked[4:]
    if not is_placed_wrong:
        return None
    base, last, before = _base(batch), rebuild.last_batch_position, rebuild.offset_before_last
    if last >= 0 and before <= base < next_offset:
        said = _base(read(last, LOG_OVERHEAD))
        if base - before >= next_offset - said:
            reason = f"base offset {said} is not below the next batch's, {base}"
            return Damage(last, at, before, base, reason)
    end = at + len(batch)
    behind = _batch(read, end)
    if walk_batches(behind, len(behind), rebuild.base_offset, next_offset, paths.MAX_OFFSET)[0]:
        return Damage(at, end, next_offset, _base(behind), reason)
    if limit is not None and next_offset < limit:
        return Damage(at, end, next_offset, limit, reason)
    return None


def _base(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big", signed=True)


def _batch(read: Read, position: int) -> bytes:
    """Return the batch there; b"" if it is not whole, or of no known format."""
    frame = read(position, FRAME_SIZE)
    is_known = len(frame) == FRAME_SIZE and frame[MAGIC_POSITION] <= MAGIC
    size = size_at(frame, 0) if is_known else 0
    batch = read(position, size) if size > FRAME_SIZE else b""
    return batch if len(batch) == size else b""
