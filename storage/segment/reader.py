"""Reads the batches of one segment.

`window` and `read` return only checked bytes. The first read of a batch checks it against its CRC;
`window` does so in the caller's buffer if it can, so that no byte is read twice.
`Segment.checked_ranges` remembers the checked bytes, and `Segment.damages` the damaged ones. Reads
end before damage. `raw` returns the bytes unchecked. `shared_form` decompresses a batch.

A thread that must not wait (`storage.waiting`) gets BlockingIOError if the bytes are not in the
page cache, or if checking them takes long. Thread-safe.

Not here: look-ups that read no batch (`Segment.position_before`), finding where damage ends
(`batch_check`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from storage.errors import CorruptRecord
from storage.plain_forms import AT_ONCE as AT_ONCE_FORM_BYTES
from storage.plain_forms import KEY_BYTES, Form, Key, plain_forms
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

# The bytes that `batches` checks at a time, and those that it checks first.
_STEP_BYTES = 64 * 1024
_FIRST_STEP_BYTES = 4 * 1024
# A check expects batches of this size, even if max.message.bytes is smaller.
_MIN_LARGEST_BYTES = 64 * 1024
# `shared_form` expands smaller batches without computing their decoded size first.
_SMALL_BYTES = 16 * 1024

Start = tuple[int, int, int]
"""Where a batch should start: (position, next_offset, named).

A batch there counts only if its base offset is not below `next_offset`, and its last offset is not
below `named`, the offset of its index entry, which may be wrong. Without an index entry, `named` is
`next_offset`.
"""


class SegmentReader:
    """Reads and checks a segment, and adds the damage that it finds to the segment.

    All state is the segment's, so a segment may have many readers.
    """

    __slots__ = ("segment",)

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    # -- bytes ---------------------------------------------------------------------------------

    def window(
        self, buffer: memoryview | bytearray, position: int, start: Start | None = None
    ) -> int:
        """Fill `buffer` with the sound bytes from `position` on; return their count.

        If some have not been checked yet, the call checks whole batches, and the count may end with
        the last of them. `start`: the result of `start_before`, if `position` is the start that it
        has returned. Errors: CorruptRecord if `position` is damaged; BlockingIOError, SegmentGone,
        OSError.
        """
        segment = self.segment
        checked = segment.checked_ranges
        if not checked.whole and not checked.covers(position, position + len(buffer)):
            return self._window_first(memoryview(buffer), position, start)
        if segment.damages:
            sound = sound_size(segment.damages, position, len(buffer), segment.log_path)
            buffer = memoryview(buffer)[:sound]
        count = self.raw(buffer, position)
        if count < len(buffer) and position + count < segment.size:
            return self._window_short(buffer, position)
        return count

    def _window_first(self, buffer: memoryview, position: int, start: Start | None) -> int:
        """Fill a window, and check the whole batches in it there: they are not read twice."""
        if start is None and self._checked_before(position)[0] < position:
            # The batch at `position` may begin before the buffer: `check` reads it itself.
            self.check(position, position + len(buffer))
        count = self.raw(buffer, position)
        return self.sound_part(buffer[:count], position, start)

    def sound_part(self, data: memoryview, position: int, start: Start | None = None) -> int:
        """Return how many bytes of `data`, the log's bytes from `position` on, are sound.

        If some have not been checked yet, the call checks the whole batches in `data`, and the
        result may end with the last of them. If none is at the start of `data`, `check` reads the
        bytes, and then `data` is read again. `start` and errors: those of `window`.
        """
        segment, count = self.segment, len(data)
        checked = segment.checked_ranges
        if not checked.covers(position, position + max(count, 1)):
            if start is None:
                begin, next_offset = self._checked_before(position)
                start = begin, next_offset, next_offset
            if position <= start[0] < position + count:
                new, limit = data[start[0] - position :], segment.next_offset
                checked.add_sound(new, start, segment.size, segment.base_offset, limit)
            known = checked.checked_until(position) - position
            if not known:
                # No whole sound batch is at the start of `data`. The next read is to have room for
                # one (`CheckedRanges.to_read`).
                checked.batch_size = self.check(position, position + count) - position
                # The check may have found other bytes there.
                count = self.raw(data, position)
            elif known < count:
                count = known
        if segment.damages:
            count = sound_size(segment.damages, position, count, segment.log_path)
        return count

    def _window_short(self, buffer: memoryview | bytearray, position: int) -> int:
        """Mark the checked bytes that the file lacks as damage, and read up to it.

        Nothing is marked if the segment is not writable, if another process may replace its file
        (`Segment.identity`), or if the file has all bytes now.
        """
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

    def read_batches(self, position: int, size: int) -> memoryview:
        """Return what `read` does, or a part of it that ends with a whole batch: batches are
        checked in the bytes that are returned. Errors: those of `read` and `window`.
        """
        data = memoryview(bytearray(size))
        # `check` reads by itself.
        must_check = self._checked_before(position)[0] < position
        if must_check or self.raw(data, position) < size:
            return memoryview(self.read(position, size))
        return data[: self.sound_part(data, position)]

    def raw(self, buffer: memoryview | bytearray, position: int) -> int:
        """Fill `buffer` with the bytes from `position` on, checked or not; return their count.
        Errors: BlockingIOError, SegmentGone, CorruptRecord if the file is missing, OSError.
        """
        segment = self.segment
        segment.recently_used = True
        fd = segment.fd
        if fd < 0:
            fd = segment.log_fd()
        if may_wait():
            return segment.disk.preadv(fd, buffer, position)
        count = segment.disk.preadv_nowait(fd, buffer, position)
        if count is None:
            if position >= segment.checked_ranges.written_from:
                # The page cache has dropped the bytes that this process wrote.
                segment.checked_ranges.forget_written(segment.size)
            raise BlockingIOError
        return count

    # -- checks --------------------------------------------------------------------------------

    def start_before(self, position: int) -> Start:
        """Return the start of a batch at or before `position`. If `position` lies in a checked
        part, return the end of that part, which is after it. Errors: those of `check`.
        """
        segment = self.segment
        start, next_offset = self._checked_before(position)
        if start < position:
            entry = segment.offset_index.at_or_before(position)
            if entry is not None and entry[1] > start and entry[0] >= next_offset:
                return entry[1], next_offset, entry[0]
        return start, next_offset, next_offset

    def _checked_before(self, position: int) -> tuple[int, int]:
        """Return the end of the last checked part that begins at or before `position`, and the
        offset after it. Without such a part: 0 and the base offset.
        """
        return self.segment.checked_ranges.end_before(position) or (0, self.segment.base_offset)

    def check(self, position: int, end: int) -> int:
        """Check the batches in which the bytes `position` to `end` lie, unless that is done.

        Add damage to the segment's damages. Return the position up to which all bytes from
        `position` on are checked: the start of a batch, at or after `end`, or the log's size.
        Errors: BlockingIOError, SegmentGone, OSError; CorruptRecord if the file of an active
        segment is missing.
        """
        segment = self.segment
        checked = segment.checked_ranges
        end = min(end, segment.size)
        if checked.whole:
            return segment.size
        while True:
            reached = checked.checked_until(position)
            if reached >= segment.size:
                return segment.size
            if reached >= max(end, position + 1):
                return reached
            try:
                self._check_step(reached, min(max(end, reached + 1), checked.written_from))
            except CorruptRecord:
                if not segment.is_lost:
                    raise
                # The file of a sealed segment is missing: `log_fd` has made it all damage.
                return segment.size

    def check_again(self, position: int, end: int) -> None:
        """Check bytes that may have changed since they were checked. Errors: those of `check`.

        From now on, a first read checks all other bytes of the log again, too.
        """
        segment = self.segment
        if segment.is_lost or not segment.holds_batches:
            return
        checked = CheckedRanges()
        # A new one counts all bytes as written by this process.
        checked.forget_written(segment.size)
        for place in segment.damages:
            checked.add(place.start, place.end, place.next_offset)
        segment.checked_ranges = checked
        self.check(position, end)

    def look_again(self, look: Callable[[], T]) -> T:
        """Return `look()`. If it raises CorruptRecord, check again, and call it once more.

        The check begins at the error's position, or at 0. Errors: those of `check` and of `look`.
        """
        try:
            return look()
        except CorruptRecord as error:
            self.check_again(error.position or 0, self.segment.size)
            return look()

    def _check_step(self, position: int, end: int) -> None:
        """Check the batch in which `position` lies, and on to `end` or to the end of a read."""
        segment = self.segment
        source = buffered(segment.disk, segment.log_fd())
        checked, at = segment.checked_ranges, position
        # If no sound batch begins at an index entry, try the entry before it, and at last the end
        # of the checked part.
        while True:
            start = self.start_before(at)
            if end - start[0] > AT_ONCE_BYTES:
                before_waiting()
            data = self._read_to_check(source, start[0], end)
            if checked.add_sound(
                data, start, segment.size, segment.base_offset, segment.next_offset
            ):
                return
            if start[0] == self._checked_before(at)[0]:
                break
            at = start[0] - 1
        part = Part(
            base_offset=segment.base_offset,
            position=start[0],
            next_offset=start[1],
            end=min(checked.written_from, segment.size),
            largest=max(segment.config.max_message_bytes, _MIN_LARGEST_BYTES),
            limit=max(segment.next_offset, start[1]),
            named=segment.offset_index.position_after,
        )
        check = Check(source, part)
        check.to(end)
        if check.damages:
            self.add_damages(check.damages)
        checked.add(start[0], check.position, check.next_offset)

    def _read_to_check(self, source: Buffered, start: int, end: int) -> memoryview:
        """Read the batches from `start` to `end`, or as many as one read takes.

        The result has at least one whole batch, unless the first one is larger than `CHECKED_BYTES`
        or extends beyond the bytes to check.
        """
        checked = self.segment.checked_ranges
        left = min(checked.written_from, self.segment.size) - start
        # A batch may extend beyond `end`. The size of the last batch is a guess for the rest.
        size = min(end - start + checked.batch_size, AT_ONCE_BYTES)
        data = source.read(start, min(max(size, HEADER_SIZE) + FRAME_SIZE, left))
        if len(data) > MAGIC_POSITION:
            size = min(size_at(data, 0) + FRAME_SIZE, left)
            if len(data) < size <= CHECKED_BYTES:
                data = source.read(start, size)
        return data

    # -- damage --------------------------------------------------------------------------------

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
                # The file of a sealed segment may be too short (`Segment.lost`).
                stored = segment.disk.size(segment.log_fd())
                segment.lost_bytes = max(segment.size - stored, 0)
            report(segment.log_path, [place for place in places if place not in known])

    def _bounded(self, place: Damage) -> Damage:
        """Return the damage with a next offset, which it lacks if the check ended in it.

        That is the base offset of the batch after the damage, or the segment's next offset.
        """
        segment = self.segment
        if place.next_offset >= 0:
            return place
        following = segment.next_offset
        if place.end < segment.size:
            source = buffered(segment.disk, segment.log_fd())
            following = int.from_bytes(source.read(place.end, 8), "big", signed=True)
        return place._replace(next_offset=max(following, place.first_offset))

    def mark_end_missing(self, size: int) -> None:
        """Mark the end of this sealed segment as damage: it had `size` bytes, and its file has only
        those that the segment counts now.
        """
        stored = self.segment.size
        self.segment.mark_missing(size, stored)
        self.check(stored, size)

    # -- batches -------------------------------------------------------------------------------

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each sound batch from `position` on.

        A batch or damage begins at `position`.
        """
        segment, end = self.segment, self.segment.size
        # A look-up needs the first ones only.
        step = _FIRST_STEP_BYTES
        while position < end:
            until = min(self.check(position, min(position + step, end)), end)
            step = min(2 * step, _STEP_BYTES)
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
        """Return (position, header) of the first batch whose last offset is ≥ `offset`
        (`LogSegment.translateOffset`). Errors: CorruptRecord if it is damaged, those of `check`.
        """
        batches = self.batches(self.segment.position_before(offset))
        found = next((each for each in batches if each[1].last_offset >= offset), None)
        # The walk has checked the batches: only now is their damage known.
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
        """Return (position, header) of the last batch. Errors: those of `locate`."""
        last = deque(self.batches(self.segment.last_indexed_position()), maxlen=1)
        return last[0] if last else None

    def position_before_time(self, timestamp_ms: int) -> int:
        """Return the start of a batch, at or before the first record with at least this timestamp.
        Errors: CorruptRecord if the file is missing; those of `locate`.
        """
        segment = self.segment
        if segment.is_lost:
            raise segment.damages[-1].error(segment.log_path)
        largest, offset = segment.time_index.lookup(timestamp_ms)
        if largest < 0:
            return 0
        # The entries have no checksum: one counts only if its batch exists.
        found = None
        with suppress(CorruptRecord):
            found = self.locate(offset)
        return found[0] if found is not None and found[1].max_timestamp == largest else 0

    def shared_form(self, data: Buffer, at: int, end: int, position: int) -> Form:
        """Return the plain form of the batch at `data[at:end]` (`Segment.expand`), which lies at
        `position` in the log. Readers share a large form (`plain_forms`).

        Errors: BlockingIOError if it takes long; OSError (ENOMEM) if others use the room for too
        long; CorruptRecord.
        """
        segment = self.segment
        if end - at >= FRAME_SIZE and size_at(data, at) <= _SMALL_BYTES:
            # For a small batch, `decoded_sizes` would cost as much as decoding a few records.
            try:
                return segment.expand(data, at, end, position, AT_ONCE_FORM_BYTES)
            except TooLarge:
                pass
        sizes = segment.decoded_sizes(data, at, end)
        if sizes[1] <= AT_ONCE_FORM_BYTES:
            return segment.expand(data, at, end, position)
        return plain_forms.make(
            Key(segment, position, size_at(data, at), bytes(data[at : at + KEY_BYTES])),
            sizes,
            lambda limit: segment.expand(data, at, end, position, limit),
        )
