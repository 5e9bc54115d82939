"""Reads the batches of one segment.

`window` and `read` return checked bytes: the first read of a batch checks it against its CRC, if
possible in the buffer of this read. `Segment.checked_ranges` remembers the checked bytes, and
`Segment.damages` the damaged ones. Reads stop before damage. `raw` returns the bytes unchecked.

A thread that must not wait (`storage.waiting`) gets BlockingIOError if the bytes are not in the
page cache, or if checking them takes long. Thread-safe.

Not here: positions in indexes (`segment`), judging batches (`batch_check`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from storage.errors import CorruptRecord
from storage.plain_forms import AT_ONCE, KEY_BYTES, Form, Key, plain_forms
from storage.record.compression import TooLarge
from storage.record.header import (
    FRAME_SIZE,
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    Buffer,
    size_at,
)
from storage.segment.batch_check import CHECKED_BYTES, Check, Part
from storage.segment.checked_ranges import CheckedRanges
from storage.segment.damage import Damage, merged, report, sound_size
from storage.segment.segment import Segment, damages_lock
from storage.segment.walk import AT_ONCE_BYTES, Buffered, buffered
from storage.waiting import before_waiting, may_wait

T = TypeVar("T")

_CHECKED_BYTES = 64 * 1024
_SMALL_BYTES = 16 * 1024

Start = tuple[int, int, int]
"""The start of a batch: its position, an offset that it is not below, and one that it reaches."""


class SegmentReader:
    """Reads a segment. It has no state of its own: a segment may have many readers."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    # -- bytes ---------------------------------------------------------------------------------

    def window(
        self, buffer: memoryview | bytearray, position: int, start: Start | None = None
    ) -> int:
        """Fill `buffer` with the sound bytes from `position` on; return their count.

        If some have not been checked yet, the count ends with a checked batch. A caller that has
        moved the window to a batch's start gives `start` (`start_before`). Errors: CorruptRecord if
        `position` is damaged; BlockingIOError, SegmentGone, OSError.
        """
        segment = self.segment
        reads = segment.checked_ranges
        if not reads.whole and not reads.covers(position, position + len(buffer)):
            return self._window_first(memoryview(buffer), position, start)
        if segment.damages:
            sound = sound_size(segment.damages, position, len(buffer), segment.log_path)
            buffer = memoryview(buffer)[:sound]
        count = self.raw(buffer, position)
        if count < len(buffer) and position + count < segment.size:
            return self._window_short(buffer, position)
        return count

    def _window_first(self, buffer: memoryview, position: int, start: Start | None) -> int:
        """Fill a window, and check the whole batches in it there, so that no byte is read twice."""
        segment = self.segment
        reads = segment.checked_ranges
        if start is None:
            begin, next_offset = self._known_before(position)
            if begin < position:
                self.check(position, position + len(buffer))
                begin, next_offset = self._known_before(position)
            start = begin, next_offset, next_offset
        count = self.raw(buffer, position)
        if position <= start[0] < position + count:
            data = buffer[start[0] - position : count]
            reads.add_sound(data, start, segment.size, segment.base_offset, segment.next_offset)
        known = reads.checked_until(position) - position
        if not known:
            reads.batch_size = self.check(position, position + count) - position
        elif known < count:
            count = known
        if segment.damages:
            count = sound_size(segment.damages, position, count, segment.log_path)
        return count

    def _window_short(self, buffer: memoryview | bytearray, position: int) -> int:
        """Mark the checked bytes that the file lacks as damage, and read up to it."""
        before_waiting()
        segment = self.segment
        size = segment.disk.size(segment.log_fd())
        if not segment.writable or segment.identity is not None or size >= segment.size:
            return self.raw(buffer, position)
        self.check_again(size, segment.size)
        sound = sound_size(segment.damages, position, len(buffer), segment.log_path)
        return self.raw(memoryview(buffer)[:sound], position)

    def read(self, position: int, size: int) -> bytes:
        """Return the sound bytes from `position` on, `size` at most. Waits. Errors: CorruptRecord
        if `position` is damaged or the file ends; SegmentGone, OSError.
        """
        segment = self.segment
        self.check(position, position + size)
        if segment.damages:
            size = sound_size(segment.damages, position, size, segment.log_path)
        data = segment.disk.pread(segment.log_fd(), size, position)
        if len(data) != size:
            reason = f"read {len(data)} bytes instead of {size}"
            raise CorruptRecord(reason, path=segment.log_path, position=position)
        return data

    def raw(self, buffer: memoryview | bytearray, position: int) -> int:
        """Fill `buffer` with the bytes from `position` on, checked or not; return their count.
        Errors: BlockingIOError, SegmentGone, CorruptRecord if the file is missing, OSError.
        """
        segment = self.segment
        if may_wait():
            segment.lease()
            try:
                return segment.disk.preadv(segment.log_fd(), buffer, position)
            finally:
                segment.release()
        segment.recently_used = True
        fd = segment.fd
        if fd < 0:
            fd = segment.log_fd()
        count = segment.disk.preadv_nowait(fd, buffer, position)
        if count is None:
            if position >= segment.checked_ranges.written_from:
                # The page cache has dropped the bytes that this process wrote.
                segment.checked_ranges.forget_written(segment.size)
            raise BlockingIOError
        return count

    # -- checks --------------------------------------------------------------------------------

    def check(self, position: int, end: int) -> int:
        """Check the batches in which the bytes `position` to `end` lie, unless that is done.

        Add damage to the segment's damages. Return the start of a batch, at or after `end`, up to
        which all is checked; the log's size if all of it is. Errors: BlockingIOError, SegmentGone,
        OSError.
        """
        segment = self.segment
        reads = segment.checked_ranges
        end = min(end, segment.size)
        if reads.whole:
            return segment.size
        segment.lease()
        try:
            while True:
                reached = reads.checked_until(position)
                if reached >= segment.size:
                    return segment.size
                if reached >= max(end, position + 1):
                    return reached
                try:
                    self._check(reached, min(max(end, reached + 1), reads.written_from))
                except CorruptRecord:
                    if not segment.is_lost:
                        raise
                    return segment.size
        finally:
            segment.release()

    def check_again(self, position: int, end: int) -> None:
        """Check bytes that may have changed since they were checked. Errors: those of `check`.

        From now on a first read checks all other bytes of the log again, too.
        """
        segment = self.segment
        if segment.is_lost or not segment.holds_batches:
            return
        reads = CheckedRanges()
        reads.forget_written(segment.size)
        for place in segment.damages:
            reads.add(place.start, place.end, place.next_offset)
        segment.checked_ranges = reads
        self.check(position, end)

    def look_again(self, look: Callable[[], T]) -> T:
        """Return `look()`. If it meets changed bytes, check them again, and call it once more."""
        try:
            return look()
        except CorruptRecord as error:
            self.check_again(error.position or 0, self.segment.size)
            return look()

    def _check(self, position: int, end: int) -> None:
        """Check the batch of `position`, and on to `end` or to the end of one read."""
        segment = self.segment
        source = buffered(segment.disk, segment.log_fd())
        reads, at = segment.checked_ranges, position
        while True:
            start = self.start_before(at)
            if end - start[0] > AT_ONCE_BYTES:
                before_waiting()
            data = self._unchecked(source, start[0], end)
            if reads.add_sound(data, start, segment.size, segment.base_offset, segment.next_offset):
                return
            if start[0] == self._known_before(at)[0]:
                break
            at = start[0] - 1
        part = Part(
            *(segment.base_offset, start[0], start[1], min(reads.written_from, segment.size)),
            largest=max(segment.config.max_message_bytes, _CHECKED_BYTES),
            limit=max(segment.next_offset, start[1]),
            named=segment.index_behind,
        )
        check = Check(source, part)
        check.to(end)
        if check.damages:
            self.add_damages(check.damages)
        reads.add(start[0], check.position, check.next_offset)

    def start_before(self, position: int) -> Start:
        """Return the start of a batch at or before `position`. Errors: those of `check`."""
        segment = self.segment
        start, next_offset = self._known_before(position)
        if start < position:
            segment.lease()
            try:
                if not segment.is_offset_index_warm:
                    before_waiting()
                entry = segment.offset_index.at_or_before(position)
            finally:
                segment.release()
            if entry is not None and entry[1] > start and entry[0] >= next_offset:
                return entry[1], next_offset, entry[0]
        return start, next_offset, next_offset

    def _unchecked(self, source: Buffered, start: int, end: int) -> memoryview:
        """Read the batches from `start` to `end`, or as many as one read takes: at least a whole
        one, unless it is larger than `CHECKED_BYTES`.
        """
        reads = self.segment.checked_ranges
        left = min(reads.written_from, self.segment.size) - start
        size = min(end - start + reads.batch_size, AT_ONCE_BYTES)
        data = source.read(start, min(max(size, HEADER_SIZE) + FRAME_SIZE, left))
        if len(data) > MAGIC_POSITION:
            size = min(size_at(data, 0) + FRAME_SIZE, left)
            if len(data) < size <= CHECKED_BYTES:
                data = source.read(start, size)
        return data

    def _known_before(self, position: int) -> tuple[int, int]:
        """Return the end of the last checked part before a position, and the next offset there."""
        return self.segment.checked_ranges.end_before(position) or (0, self.segment.base_offset)

    def add_damages(self, found: Iterable[Damage]) -> None:
        """Add a check's findings to the segment's damages, and log new ones. Errors: OSError."""
        segment = self.segment
        bounded = [self._bounded(place) for place in found]
        with damages_lock:
            known = segment.damages
            places = merged(known, bounded)
            if places == known:
                return
            segment.damages = places
            if segment.sealed and segment.writable and places[-1].end == segment.size:
                stored = segment.disk.size(segment.log_fd())
                segment.lost_bytes = max(segment.size - stored, 0)
            report(segment.log_path, [place for place in places if place not in known])

    def _bounded(self, place: Damage) -> Damage:
        """Fill in the next offset of damage that runs to the end of the checked range."""
        segment = self.segment
        if place.next_offset >= 0:
            return place
        following = segment.next_offset
        if place.end < segment.size:
            source = buffered(segment.disk, segment.log_fd())
            following = int.from_bytes(source.read(place.end, 8), "big", signed=True)
        return place._replace(next_offset=max(following, place.first_offset))

    def mark_end_missing(self, size: int) -> None:
        """Mark the bytes that the file lacks as damage: this sealed segment had `size` bytes."""
        stored = self.segment.size
        self.segment.mark_missing(size, stored)
        self.check(stored, size)

    # -- batches -------------------------------------------------------------------------------

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each sound batch from `position` on, where one begins."""
        segment, end = self.segment, self.segment.size
        while position < end:
            until = min(self.check(position, min(position + _CHECKED_BYTES, end)), end)
            for place in segment.damages:
                if place.end <= position or place.start >= until:
                    continue
                if position < place.start:
                    yield from segment.headers(position, place.start)
                position = place.end
            if position < until:
                yield from segment.headers(position, until)
                position = until

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return the first batch whose last offset is ≥ `offset`, and its position
        (`LogSegment.translateOffset`). Errors: CorruptRecord if it is damaged, those of `check`.
        """
        batches = self.batches(self.segment.position_before(offset))
        found = next((each for each in batches if each[1].last_offset >= offset), None)
        damage = self._damage_of(offset)
        if damage is not None:
            raise damage.error(self.segment.log_path)
        return found

    def _damage_of(self, offset: int) -> Damage | None:
        """Return the damage in which an offset is lost."""
        places = self.segment.damages
        return next(
            (each for each in places if each.first_offset <= offset < each.next_offset), None
        )

    def position_of(self, offset: int) -> int | None:
        """Return the position of the batch of `locate`, or of the damage that it is in."""
        try:
            found = self.locate(offset)
        except CorruptRecord:
            damage = self._damage_of(offset)
            if damage is None:
                raise
            return damage.start
        return None if found is None else found[0]

    def last_batch(self) -> tuple[int, BatchHeader] | None:
        """Return the last batch and its position. Errors: those of `locate`."""
        last = deque(self.batches(self.segment.last_indexed_position()), maxlen=1)
        return last[0] if last else None

    def position_before_time(self, timestamp_ms: int) -> int:
        """Return the start of a batch, at or before the first record with such a timestamp. Errors:
        CorruptRecord if the file is missing; those of `locate`.
        """
        segment = self.segment
        if segment.is_lost:
            raise segment.damages[-1].error(segment.log_path)
        largest, offset = segment.time_index.lookup(timestamp_ms)
        if largest >= 0 and not segment.writable:
            found = self.locate(offset)
            if found is None or found[1].max_timestamp != largest:
                return 0
        return segment.position_before(offset)

    def shared_form(self, data: Buffer, at: int, end: int, position: int) -> Form:
        """Return `Segment.expand` of a batch. Make a large form once for all readers.

        Errors: BlockingIOError if it takes long; OSError (ENOMEM) if others use the room for too
        long; CorruptRecord.
        """
        segment = self.segment
        if end - at >= FRAME_SIZE and size_at(data, at) <= _SMALL_BYTES:
            # For most batches, computing their bounds would cost as much as a few records.
            try:
                return segment.expand(data, at, end, position, AT_ONCE)
            except TooLarge:
                pass
        sizes = segment.decoded_sizes(data, at, end)
        if sizes[1] <= AT_ONCE:
            return segment.expand(data, at, end, position)
        return plain_forms.make(
            Key(segment, position, size_at(data, at), bytes(data[at : at + KEY_BYTES])),
            sizes,
            lambda limit: segment.expand(data, at, end, position, limit),
        )
