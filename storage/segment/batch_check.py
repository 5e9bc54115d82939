"""Reads a part of a segment's log, batch by batch, and finds damage in it.

A batch is sound if it lies inside the log, its CRC is right, and its offsets are above those of
earlier batches and below the segment's end. No CRC covers a base offset: if one is below the next
expected offset, the previous batch may be the wrong one. That one is wrong if its records only fit
between the batches on either side of it.

Bytes after a damaged batch count as the log's only if there is evidence that a batch begins there:
an offset index, the damaged batch's own length, or the length at which that batch's CRC is right.
From there on, consecutive batches with correct CRCs and ascending offsets must follow, up to the
next position in an index, or to the end. A damaged one between them is skipped by its own length.
Any other apparent batch may be in a user's value.

Wrong bytes are read once more after `settle`: only if they are wrong again, they are damage.

Any thread may check a segment under a lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.record._batch import proven_size, walk_batches
from storage.record.header import (
    FRAME_SIZE,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    SMALLEST_SIZE,
    BatchHeader,
    Buffer,
    parse_header,
    size_at,
)
from storage.segment.damage import Damage
from storage.segment.direct_io import DirectFile
from storage.segment.walk import Buffered
from storage.task import Task

# Small enough that other threads do not wait long for the check of a chunk.
_CHUNK_BYTES = 256 * 1024
_LEAST_BYTES = 4096
_SEARCHES = 16
#: Larger batches are not read whole only to recognise them.
CHECKED_BYTES = 16 * 1024 * 1024

Named = Callable[[int], int | None]
"""Returns the first position after another one at which an index has a batch."""

Source = Buffered | DirectFile


class Part(NamedTuple):
    """Bytes `position` to `end` of the log of the segment `base_offset`, where whole batches begin
    and end, the first one not below `next_offset` and all below `limit`.

    `largest`: bytes of the largest expected batch. `named`: the positions of batches in an index.
    `may_be_torn`: a kill or a full disk may have cut the end.
    """

    base_offset: int
    position: int
    next_offset: int
    end: int
    largest: int
    limit: int = paths.MAX_OFFSET
    named: Named = lambda position: None
    may_be_torn: bool = False


def check_part(source: Source, part: Part, task: Task) -> Check:
    """Check all of a part; `task` counts the bytes. Errors: OSError, TaskCancelled."""
    check = Check(source, part)
    while check.position < part.end:
        before = check.position
        check.step()
        task.advance(max(check.position - before, 0))
    return check


def check_file(files: Files, path: str, part: Part, task: Task) -> Check:
    """Check a part of a file on the disk (`direct_io`). Errors: those of `check_part`."""
    source = DirectFile(files, path)
    try:
        return check_part(source, part, task)
    finally:
        source.close()


def sound_batch(read: Callable[[int, int], Buffer], position: int, end: int) -> BatchHeader | None:
    """Return the header of the batch at `position`, if a sound one lies there before `end`.

    `read(position, size)` reads the log; a result is used before the next call.
    If a batch has more than 16 MiB, only the header is read. Errors: OSError.
    """
    try:
        header = parse_header(read(position, max(min(HEADER_SIZE, end - position), 0)))
    except CorruptRecord:
        return None
    if header.size > end - position:
        return None
    if header.size > CHECKED_BYTES:
        return header
    batch = read(position, header.size)
    taken = walk_batches(batch, len(batch), max(header.base_offset, 0), 0, paths.MAX_OFFSET)[0]
    return header if taken == header.size else None


class Check:
    """A walk through a part. All before `position` is sound, or in `damages`.

    `next_offset` follows the last batch before `position`. Damage at the part's end has the next
    offset -1, which is not known.
    """

    def __init__(self, source: Source, part: Part) -> None:
        self._source = source
        self._part = part
        self.position = part.position
        self.next_offset = part.next_offset
        self.damages: list[Damage] = []
        # The last sound batch: its position, and the next offset before it.
        self._last: tuple[int, int] | None = None
        self._suspect = -1
        # Bytes of the next batch, if it is known to be larger than a read.
        self._needed = 0
        # Bytes of the next read: few after damage, which may be followed by more.
        self._ahead = _CHUNK_BYTES
        # Bytes before this position that a chain has skipped are not tried in other ways.
        self._linked = part.position
        # Position -> size at which a damaged batch's CRC is right; and the bytes that may be
        # searched for more of them, so that a log with many damaged batches takes no longer.
        self._proofs: dict[int, int] = {}
        self._searchable = _SEARCHES * (part.largest + part.end - part.position)

    def to(self, end: int) -> None:
        """Check all before `end`."""
        while self.position < end:
            self.step(end)
        # The next batch shows whether the base offset of the last one is wrong.
        while self._last is not None and self._falls():
            self.step()

    def _falls(self) -> bool:
        """Return whether the batch at `position` has a base offset below the next one."""
        frame = self._source.read(self.position, min(FRAME_SIZE, self._part.end - self.position))
        base = int.from_bytes(frame[:8], "big", signed=True)
        is_whole = len(frame) == FRAME_SIZE
        return is_whole and frame[MAGIC_POSITION] <= MAGIC and base < self.next_offset

    def step(self, until: int | None = None) -> None:
        """Continue by one read, which goes little beyond `until`, or skips damage."""
        part, start = self._part, self.position
        size = self._ahead if until is None else min(self._ahead, until - start + _LEAST_BYTES)
        size = min(max(size, self._needed), part.end - start)
        self._needed = 0
        self._ahead = min(2 * self._ahead, _CHUNK_BYTES)
        data = self._source.read(start, size)
        taken, last, before, self.next_offset, reason, is_sized = walk_batches(
            data, len(data), part.base_offset, self.next_offset, part.limit
        )
        if last >= 0:
            self._last = (start + last, before)
        self.position += taken
        if reason:
            self._fault(reason, is_sized)
        elif taken:
            return
        elif len(data) < size:
            self._fault("the file ends before it", False)
        else:
            needed = size_at(data, 0) if len(data) >= FRAME_SIZE else part.end - start + 1
            if needed > part.end - start:
                self._fault("it extends beyond the end of the log", False)
            else:
                self._needed = needed

    def _fault(self, reason: str, is_sized: bool) -> None:
        """Read wrong bytes at `position` again; if they are still wrong, add and skip the damage.

        `is_sized`: the batch's size is right, and its offsets are wrong.
        """
        position, next_offset = self.position, self.next_offset
        if self._suspect != position:
            self._suspect = position
            self._source.settle()
            return
        if is_sized and self._last is not None and self._blames_last():
            return
        end, following = self._resume(position, next_offset, is_sized)
        self.damages.append(Damage(position, end, next_offset, following, reason))
        self.position = end
        self._last = None
        self._ahead = _LEAST_BYTES

    def _blames_last(self) -> bool:
        """Make the last batch damage if its base offset is wrong, not that of the next one."""
        assert self._last is not None
        start, before = self._last
        base = self._base_at(self.position)
        last_base = self._base_at(start)
        if not before <= base < self.next_offset:
            return False
        if base - before < self.next_offset - last_base:
            return False
        reason = f"base offset {last_base} is not below the next batch's, {base}"
        self.damages.append(Damage(start, self.position, before, base, reason))
        self.next_offset = before
        self._last = None
        self._suspect = -1
        return True

    def _base_at(self, position: int) -> int:
        return int.from_bytes(self._source.read(position, 8), "big", signed=True)

    # -- behind damage -------------------------------------------------------------------------

    def _resume(self, position: int, next_offset: int, is_sized: bool) -> tuple[int, int]:
        """Return the position of the next sound batch, and its first offset; (the end, -1): none.

        `is_sized`: the size of the damaged batch at `position` is right.
        """
        part = self._part
        for size in (self._proven(position, part.end), self._claimed(position)):
            if size:
                is_trusted = is_sized or position + size < self._linked
                found = self._chain(position + size, next_offset, is_trusted=is_trusted)
                if found is not None:
                    return found
        named = part.named(position)
        while named is not None and named < part.end:
            found = self._chain(named, next_offset)
            if found is not None:
                return found
            named = part.named(named)
        return part.end, -1

    def _claimed(self, position: int) -> int:
        """Return the size in a batch's header; 0 if it is impossible."""
        left = self._part.end - position
        frame = self._source.read(position, min(FRAME_SIZE, left))
        size = size_at(frame, 0) if len(frame) == FRAME_SIZE else 0
        return size if SMALLEST_SIZE[0] + LOG_OVERHEAD <= size <= left else 0

    def _proven(self, position: int, end: int) -> int:
        """Return a size at which a batch's CRC is right, independent of its size field; 0: none."""
        if position not in self._proofs and position >= self._linked and self._searchable > 0:
            size = min(self._part.largest, end - position)
            found = proven_size(self._source.read(position, size), 0)
            self._searchable -= size
            if found > 0:
                self._proofs[position] = found
        found = self._proofs.get(position, 0)
        return found if found <= end - position else 0

    def _chain(
        self, position: int, next_offset: int, *, is_trusted: bool = False
    ) -> tuple[int, int] | None:
        """Find the first sound batch from `position` on; return its position and first offset.

        Return (the end, -1) if `position` is the part's end, or no sound batch lies before it; None
        if consecutive batches do not extend to the next position in an index. `is_trusted`: take
        the first sound batch, whatever follows it.
        """
        part, wanted = self._part, _LEAST_BYTES
        first: tuple[int, int] | None = None
        goal = part.named(position)
        if goal is None or goal > part.end:
            goal = part.end
        while position < goal:
            data = self._source.read(position, min(wanted, goal - position))
            taken, last, _, next_offset, reason, _ = walk_batches(
                data, len(data), part.base_offset, next_offset, part.limit
            )
            if last >= 0:
                first = first or (position, int.from_bytes(data[:8], "big", signed=True))
                if is_trusted:
                    return first
            position += taken
            if taken and not reason:
                wanted = min(2 * wanted, _CHUNK_BYTES)
                continue
            size = self._claimed(position)
            if not reason and 0 < size <= goal - position:
                wanted = size
                continue
            if not reason and part.may_be_torn and goal == part.end:
                return first
            position += self._proven(position, goal) or size or goal
            wanted = _LEAST_BYTES
        if position != goal:
            return None
        self._linked = goal
        return first or ((goal, -1) if goal == part.end else None)
