"""The text of one view of one partition: measures it, gives it positions, and renders it.

`partition.py` passes the log's events to it. Before the first request for a size or a byte it
measures nothing, and appends change nothing; that request loads or measures the text. A reader that
begins at an offset needs only the segments from there on, so the head of the timeline may have no
positions while its tail has.

The view of the topic's own files keeps its absolute positions for ever: `log.history` has the
*base*, a segment and its position. The base is set when all of the view is measured for the first
time; the view's first byte then has position 0. The timeline may count from another position:
`recorded` is the difference.

Records after the last stable offset are no text yet. When that offset rises past them, the end of
the text is unknown (`end_unknown`) until they are measured (`catch_up`); nobody is shown a size
before. So it is with what an append could not measure at once.

Threads: the owner's thread changes it. A worker thread measures, which takes no lock of the
partition, and then gives positions under the partition's lock. Any thread may make a generation.
Changes of the past are made under the partition's lock.
"""

from __future__ import annotations

import contextlib
import errno
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from kafkafs.line_index import (
    NEVER,
    Damaged,
    Extent,
    LineStore,
    Reader,
    SegmentBatches,
    SegmentLines,
    reader_at,
)
from kafkafs.line_index.records import count_back, offset_of, text_before
from kafkafs.metrics import Traffic
from kafkafs.tree.partition.generations import Generation, Timeline, ToKeep
from kafkafs.views import View
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.state.history import Places
from storage.waiting import at_once, before_waiting, may_wait

CATCH_UP_AT_ONCE = 1 << 20
"""Bytes of log that the owner's thread measures at the end of a transaction."""
FEW = 10_000
"""The most last records that are counted by batch headers rather than by measuring segments."""
FEW_OF_MEASURED = 100
"""The most in a measured segment, whose line index finds the others. Between two of its entries may
lie hundreds of batches with one record each.
"""
EXTENTS_AT_ONCE = 4
"""The loop thread looks for the last records in at most this many segments."""
LOOK_S = 0.05
"""Seconds: the longest that the owner's thread measures text before a change of the past."""

_TRIES = 100
"""How often `lasting_generation` starts again after a change."""

SEGMENTS_AT_ONCE = 64
"""Segments that the owner's thread reads in one call; a worker thread reads more."""

OVERTAKEN_S = 60.0
"""Seconds in which a lookup measures first, after a file was rewritten before it was measured."""

Lock = AbstractContextManager[bool]


class _Pending(NamedTuple):
    """Text before a change that is still to be read, from `start` to `end`: the generations that
    keep it, all from the same extents, and the leased segments that have it.
    """

    generations: list[Generation]
    start: int
    end: int
    segments: list[Segment]


class PartitionText:
    """See the module. `lock`: the partition's.

    `end_unknown`: the view shows text that is not measured yet, after what is.
    """

    def __init__(
        self,
        log: Log,
        view: View,
        store: LineStore,
        cache: str | None,
        lock: Lock,
        on_measured: Callable[[], None],
    ) -> None:
        """`cache`: as for `SegmentLines`. `on_measured`: called in any thread after measuring."""
        self.log = log
        self.view = view
        # Whether the history records its absolute positions.
        self.keeps_base = view.is_text and not view.whole_records
        self._store = store
        self._cache = cache
        self._on_measured = on_measured
        self.timeline = Timeline([self._extent(segment) for segment in log.segments])
        self.lock = lock
        self._active = self.timeline.extents[-1]
        # While no extent has a position: the timeline's end is the position of this offset.
        self._resume_offset: int | None = None
        self.end_unknown = False
        # The bound before segments are replaced.
        self._bound_before: int | None = None
        self.traffic = Traffic()
        self._current: Generation | None = None
        # Extents whose segments have left the log, until their files are deleted.
        self._left: dict[Segment, Extent] = {}
        self._overtaken_until = 0.0
        self._pending: list[_Pending] = []
        # Repacked segments of another process, whose entries are not saved yet.
        self._taken: list[SegmentLines] = []
        # The measured extent of a segment that is about to replace another with the same records.
        self._measured: tuple[Segment, Extent] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all extents are measured and have positions."""
        return not self.timeline.unpositioned

    def _extent(self, segment: Segment) -> Extent:
        if not self.view.is_text:
            return SegmentBatches(segment)
        where = self._store, segment, self.view
        if not self.view.committed:
            return SegmentLines(*where, cache=self._cache)
        transactions = self.log.transactions
        return SegmentLines(
            *where,
            partial(transactions.is_aborted, segment=segment),
            self._cache,
            aborted_across=partial(transactions.aborted_across, segment=segment),
        )

    @property
    def bound(self) -> int:
        """The offset up to which it shows the log."""
        return self.log.last_stable_offset if self.view.committed else self.log.log_end_offset

    def is_before(self, offset: int) -> bool:
        """Whether it ends before the record at `offset`, or may still get text before that: of
        deleted records, if a transaction that has begun below the log start is open.
        """
        is_decided = not self.view.committed or self.log.is_start_decided
        return offset > self.bound or not is_decided

    @property
    def is_damaged(self) -> bool:
        """Whether any segment has known damage."""
        return any(extent.segment.damages for extent in self.timeline.extents)

    # -- where records lie ---------------------------------------------------------------------

    def position(self, offset: int) -> int:
        """The absolute position of the first record from `offset` (≤ `bound`) on, whose segment
        must have a position. BlockingIOError, StorageError, OSError.
        """
        extent, start = self._positioned_at(offset)
        if extent.segment.base_offset >= offset:
            return start
        return start + text_before(extent, offset)[0]

    def position_behind(self, offset: int) -> int:
        """The absolute position where the text of the last record before `offset` ends; in damage,
        where that ends. Waits.
        """
        extent, start = self._positioned_at(offset - 1)
        if isinstance(extent, SegmentBatches):
            return start + extent.bytes_until(offset)
        text, _ = text_before(extent, offset)
        for place in extent.segment.damages:
            if place.first_offset < offset < place.next_offset:
                # Else a reader from there would find an empty file instead of the damage.
                text, _ = text_before(extent, place.next_offset)
        return start + text

    def records(self) -> int:
        """Records from the log start on, which must be measured; errors as `position`."""
        offset = self.log.log_start_offset
        extents = self.timeline.extents
        first, *others = extents[number_of(extents, offset) :]
        records = first.records + sum(extent.records for extent in others)
        if first.segment.base_offset >= offset:
            return records
        before_waiting()
        return records - text_before(first, offset)[1]

    def _positioned_at(self, offset: int) -> tuple[Extent, int]:
        """(the positioned extent that holds an offset, or the next one; its start)"""
        starts, extents = self.timeline.positioned
        if not extents:
            raise SegmentGone("the log was truncated while it was read")
        number = number_of(extents, offset)
        while number < len(extents) - 1 and extents[number].segment.next_offset <= offset:
            number += 1
        return extents[number], starts[number]

    def offset_of_last(self, count: int, until: float = NEVER) -> int:
        """The offset of the first of the last `count` records; the log start where it has fewer.

        A few records are counted by batch headers, since a lookup waits; for many it measures the
        segments, the last one first. Errors as `measure`.
        """
        if not count:
            return self.bound
        while True:
            extents, left = self.timeline.extents, count
            try:
                for number, extent in enumerate(reversed(extents)):
                    assert isinstance(extent, SegmentLines)
                    if number == EXTENTS_AT_ONCE:
                        before_waiting()
                    records, offset = self._last_of(extent, left, until)
                    if offset is not None:
                        return max(offset, self.log.log_start_offset)
                    left -= records
                return self.log.log_start_offset
            except SegmentGone:
                if self.timeline.extents == extents:
                    raise

    def _last_of(self, extent: SegmentLines, count: int, until: float) -> tuple[int, int | None]:
        """`count_back`, or the same from the line index."""
        if extent.complete and extent.records < count:
            return extent.records, None
        if count <= (FEW_OF_MEASURED if extent.complete else FEW) and extent.segment.holds_batches:
            try:
                return count_back(extent, count)
            except (BlockingIOError, CorruptRecord):
                # The batches are large, or damaged.
                if not extent.complete:
                    raise
        if not extent.complete:
            before_waiting()
            self._measure(extent, until)
            if extent.records < count:
                return extent.records, None
        return count, offset_of(extent, extent.records - count)

    # -- measuring, and giving positions -------------------------------------------------------

    def measure(self, until: float = NEVER, offset: int | None = None) -> None:
        """Measure every extent and give it its position; with `offset`, only from there on.

        BlockingIOError where it would wait and may not, or at `until` (time.monotonic): the next
        call continues. StorageError, OSError.
        """
        while not self.is_ready:
            extents, first = self._wanted(offset)
            timeline = self.timeline
            if timeline.positioned[1] and first >= len(timeline.unpositioned):
                return
            for extent in extents[first:]:
                if not extent.complete:
                    before_waiting()
                    self._measure(extent, until)
            before = self._text_before_resume_offset(extents)
            with self.lock:
                # An open transaction may have ended in any of them meanwhile. Once all are ready
                # the owner changes the end without the lock.
                is_same = self._wanted(offset) == (extents, first) and not self.is_ready
                if is_same and all(extent.complete for extent in extents[first:]):
                    self._position(first, before)

    def _wanted(self, offset: int | None) -> tuple[tuple[Extent, ...], int]:
        """(all extents, the number of the first to measure for a reader from `offset` on)

        That is at most the number of the resume offset's extent, and of the first with a position.
        """
        extents = self.timeline.extents
        if offset is None:
            return extents, 0
        if self._resume_offset is not None:
            offset = min(offset, self._resume_offset)
        number = number_of(extents, offset)
        return extents, min(number, len(extents) - len(self.timeline.positioned[1]))

    def find_end(self, until: float = NEVER) -> None:
        """Measure as much as the end of the text needs; as `measure`."""
        if self.end_unknown:
            self.catch_up(until)
        if not self.timeline.positioned[1]:
            # Another process has cut the log, and the rest is not measured yet.
            self.measure(until, self.log.log_end_offset)

    def catch_up(self, until: float = NEVER) -> None:
        """Measure the text that the last stable offset has passed; as `measure`."""
        while self.end_unknown:
            extents = self.timeline.positioned[1]
            unmeasured = [extent for extent in extents if not extent.complete]
            if unmeasured and not may_wait():
                left = sum(extent.segment.size - extent.covered for extent in unmeasured)
                if left > CATCH_UP_AT_ONCE:
                    raise BlockingIOError
            for extent in unmeasured:
                self._measure(extent, until)
            awaited = {each.awaited for each in tuple(self.timeline.open)}
            starts = {each: self._measured_position(each) for each in awaited if each is not None}
            with self.lock:
                self._caught_up(extents, starts)

    def _measured_position(self, offset: int) -> int:
        """Return the position that a record gets when extents that have grown move those behind
        them. Errors as `position`.
        """
        starts, extents = self.timeline.positioned
        extent, start = self._positioned_at(offset)
        # (The extent may be another one now, if its segment was repacked meanwhile.)
        number = number_of(extents, extent.segment.base_offset)
        moved = starts[0] + sum(each.text_length for each in extents[:number])
        return self.position(offset) + moved - start

    def _caught_up(self, extents: Sequence[Extent], starts: Mapping[int, int]) -> None:
        """Find the end, if these have the positions and all are measured. Under the lock.

        `starts`: by offset, the positions of the records that generations await.
        """
        # Where another thread has found it, the owner goes on without the lock.
        same = self.end_unknown and self.timeline.positioned[1] == extents
        if same and all(extent.complete for extent in extents):
            for generation in self.timeline.open:
                if generation.awaited is not None:
                    position = starts.get(generation.awaited)
                    if position is None:
                        return  # it was opened meanwhile
                    generation.begin_at(position, is_known=self.log.is_start_decided)
            self.timeline.position(len(self.timeline.unpositioned))
            self.end_unknown = False

    def _measure(self, extent: Extent, until: float) -> None:
        try:
            extent.measure(until)
        except BlockingIOError:
            raise self._still_measuring() from None
        finally:
            self._on_measured()

    def _still_measuring(self) -> BlockingIOError:
        measured = sum(extent.covered for extent in self.timeline.extents)
        reason = f"indexed {measured} of {self.log.size} bytes so far; try again"
        return BlockingIOError(errno.EAGAIN, reason)

    def _text_before_resume_offset(self, extents: Sequence[Extent]) -> int:
        """Bytes of text before the resume offset in its extent; errors as `measure`."""
        offset = self._resume_offset
        if offset is None or self.timeline.positioned[1]:
            return 0
        extent = extents[number_of(extents, offset)]
        if extent.segment.base_offset >= offset:
            return 0
        before_waiting()
        return text_before(extent, offset)[0]

    def _position(self, first: int, before: int = 0) -> None:
        """Give all extents from number `first` on, which are measured, positions. Under the lock.

        `before`: `_text_before_resume_offset`.
        """
        timeline = self.timeline
        extents = timeline.extents
        bases = [extent.segment.base_offset for extent in extents]
        self.end_unknown = False
        if timeline.positioned[1]:
            timeline.position(first)
        elif self._resume_offset is not None:
            timeline.position(first, number_of(extents, self._resume_offset), timeline.end - before)
            self._resume_offset = None
        else:
            base = self.base
            if base is not None and base[0] in bases[first:]:
                timeline.position(first, bases.index(base[0]), base[1])
            else:
                # After all text that any reader has seen.
                timeline.position(first, first, timeline.end)

    # -- positions in the history --------------------------------------------------------------

    @property
    def base(self) -> tuple[int, int] | None:
        """(base offset of a segment, its absolute position) from the history; None: not set."""
        base = self.log.history.base(self.view.name) if self.keeps_base else (-1, 0)
        return base if base[0] >= 0 else None

    @property
    def recorded(self) -> int | None:
        """The history's absolute positions less the timeline's; None: not known yet."""
        base = self.base
        starts, extents = self.timeline.positioned
        if base is None or not extents:
            return None
        number = number_of(extents, base[0])
        if extents[number].segment.base_offset != base[0]:
            return None
        return base[1] - starts[number]

    def begin_base(self, log_start: int) -> None:
        """Set the base, so that the first record has position 0. Under the lock."""
        if self.keeps_base and self.base is None:
            starts, extents = self.timeline.positioned
            number = number_of(extents, self.log.log_start_offset)
            first = extents[number].segment.base_offset
            self.log.history.set_base(self.view.name, first, starts[number] - log_start)

    def passing(self, end: int, until: float = NEVER) -> Places:
        """The history's positions of the segments from the base to the one with base offset `end`,
        inclusive; () where the base is not before `end`.

        Measures the text between; errors as `measure`. CorruptRecord where its length is a guess.
        """
        with self.lock:
            base, extents = self.base, self.timeline.extents
        if base is None or base[0] >= end:
            return ()
        number = number_of(extents, base[0])
        if extents[number].segment.base_offset != base[0]:
            raise SegmentGone("the segment at which positions start was deleted")
        places = []
        at = base[1]
        for extent in extents[number:]:
            places.append((extent.segment.base_offset, at))
            if extent.segment.base_offset >= end:
                return tuple(places)
            if not extent.complete:
                self._measure(extent, until)
            if extent.is_guessed:
                # The same inode would show the text after it at positions that it never had.
                reason = "the size of the text before a damaged place is unknown"
                raise CorruptRecord(reason, path=extent.segment.log_path)
            at += extent.text_length
        raise AssertionError("a segment that stays begins there")

    # -- current generations -------------------------------------------------------------------

    @property
    def has_generation(self) -> bool:
        """Whether `generation` returns at once."""
        return self._current is not None

    def generation(self, until: float = NEVER) -> Generation:
        """The current generation, all of it measured; errors as `measure`."""
        while (current := self._current) is None:
            self.measure(until)
            self.catch_up(until)
            rewrites = self.timeline.rewrites
            position = self.position(self.log.log_start_offset)
            with self.lock:
                is_known = self.is_ready and not self.end_unknown
                same = is_known and rewrites == self.timeline.rewrites
                # One that another thread has made meanwhile may be attached already.
                if same and self._current is None:
                    self._current = Generation(self.timeline, self.nonce, position)
                    if self.view.committed and not self.log.is_start_decided:
                        self._current.awaited = self.log.log_start_offset
                    self.begin_base(position)
        return current

    def generation_from(self, offset: int, until: float = NEVER) -> Generation:
        """A generation that begins with the first record from `offset` (≤ `bound`) on.

        Only the segments from that record on are measured. Errors as `generation`.
        """
        while True:
            self.measure(until, offset)
            self.catch_up(until)
            rewrites = self.timeline.rewrites
            position = self.position(offset)
            with self.lock:
                if rewrites == self.timeline.rewrites and not self.end_unknown:
                    return Generation(self.timeline, self.nonce, position)

    def lasting_generation(self, until: float = NEVER) -> Generation:
        """The generation of `.follow`, with the history's positions, which never change.

        It can be read from the base or the log start on, whichever is later. Only the segments from
        the base on are measured. Errors as `generation`.
        """
        for _ in range(_TRIES):
            if self.base is None:
                self.generation(until)
                rewrites = self.timeline.rewrites
                position = self.position(self.log.log_start_offset)
                with self.lock:
                    # The current generation is older if positions have restarted meanwhile.
                    if self.is_ready and rewrites == self.timeline.rewrites:
                        self.begin_base(position)
            base = self.base
            if base is None:
                continue
            self.measure(until, base[0])
            self.find_end(until)
            rewrites = self.timeline.rewrites
            position = self.position(max(base[0], self.log.log_start_offset))
            with self.lock:
                same = rewrites == self.timeline.rewrites and self.base == base
                recorded = self.recorded
                if same and recorded is None:
                    # The base's segment is missing, which should not happen.
                    self.log.history.restart_positions()
                elif same and recorded is not None and not self.end_unknown:
                    return Generation(
                        self.timeline, self.nonce, position, origin=-recorded, keep_bytes=0
                    )
        raise BlockingIOError(errno.EAGAIN, "the start of the log keeps changing; try again")

    def overtaken(self) -> None:
        """The past has changed between a lookup and the measurement for it."""
        self._overtaken_until = time.monotonic() + OVERTAKEN_S

    @property
    def is_overtaken(self) -> bool:
        """Whether `overtaken` was called within the last OVERTAKEN_S."""
        return time.monotonic() < self._overtaken_until

    @property
    def nonce(self) -> int:
        """The history's nonce of this view, which changes together with the timeline."""
        history = self.log.history
        return history.nonce if self.view.is_text else history.batches_nonce

    def attach(self, generation: Generation) -> bool:
        """As `Generation.attach`, in any thread."""
        with self.lock:
            return generation.attach()

    @property
    def record_bytes(self) -> float:
        """How many bytes of text an offset has on average, as far as the text is measured; 0 where
        that is not known.
        """
        timeline, log = self.timeline, self.log
        starts, extents = timeline.positioned
        if not extents:
            return 0.0
        offsets = log.last_stable_offset - extents[0].segment.base_offset
        return max(timeline.end - starts[0], 0) / max(offsets, 1)

    # -- events of the log ---------------------------------------------------------------------

    def appended(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """The active segment has grown by `data`."""
        active = self._active
        is_measured = active.append(position, data)
        timeline = self.timeline
        if is_measured and not timeline.unpositioned and not self.end_unknown:
            # No other thread gives positions any more, so this needs no lock.
            timeline.end = timeline.positioned[0][-1] + active.text_length
            return
        with self.lock:
            starts = timeline.positioned[0]
            if starts and not is_measured:
                # The next reader, or `catch_up` in the background, measures it.
                self.end_unknown = True
            elif starts and not self.end_unknown:
                timeline.end = starts[-1] + active.text_length

    def stabilized(self) -> None:
        """The last stable offset has risen: measure what it has passed now, if that is little."""
        with self.lock:
            # Another thread may be giving positions.
            is_positioned = bool(self.timeline.positioned[1])
            if is_positioned:
                self.end_unknown = True
        if is_positioned:
            # Where this fails, the next reader measures in a worker thread, and gets the error.
            with contextlib.suppress(StorageError, OSError):
                at_once(self.catch_up)

    def rolled(self, active: Segment) -> None:
        """The active segment is sealed, and `active` follows it."""
        at_once(self._active.seal)
        with self.lock:
            self._active = self._extent(active)
            self.timeline.extend(self._active)

    def name_later_base(self) -> None:
        """Record the last segment's position, too, in case another program deletes the others."""
        starts, extents = self.timeline.positioned
        recorded = self.recorded
        if recorded is None or self.end_unknown:
            return
        if all(extent.covered == extent.segment.size for extent in extents[:-1]):
            last = extents[-1].segment.base_offset
            self.log.history.set_when_known(self.view.name, last, starts[-1] + recorded)

    def note_bound(self) -> None:
        """Segments are about to be replaced. Needs no lock."""
        self._bound_before = self.bound

    def extent_of(self, segment: Segment) -> Extent | None:
        """The extent of one of the log's segments, if it has one."""
        extents = self.timeline.extents
        found = extents[number_of(extents, segment.base_offset)]
        return found if found.segment is segment else None

    # -- repacking -----------------------------------------------------------------------------

    def measure_repacked(self, new: Segment) -> None:
        """Measure a segment that is about to replace another with the same records. Runs on a
        worker thread; errors as `measure`.
        """
        if self.view.is_text:
            extent = self._extent(new)
            extent.measure()
            self._measured = new, extent

    def check_repacked(self, old: Segment, new: Segment) -> None:
        """Check that the text of `new` is measured and as long as that of `old`, if any reader may
        know where it lies. Errors: CorruptRecord, BlockingIOError.
        """
        if not self.view.is_text:
            return
        extent = self.extent_of(old)
        measured = self._measured
        if extent is None or measured is None or measured[0] is not new:
            raise BlockingIOError(errno.EAGAIN, "the new segment is not indexed yet")
        if extent in self.timeline.positioned[1] and not extent.complete:
            raise BlockingIOError(errno.EAGAIN, "the old segment is not indexed yet")
        is_known = extent.complete
        found, wanted = measured[1], extent
        if is_known and (found.text_length, found.records) != (wanted.text_length, wanted.records):
            raise CorruptRecord("the repacked segment has another text", path=new.log_path)

    def repacked(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Each of `new` has replaced one of `old`. The view of bytes changes, each other one shows
        the same. Under the lock.
        """
        if not self.view.is_text:
            segments = self.log.segments
            count = segments.index(new[-1]) + 1
            unshown = self._unshown(count)
            self._keep_later(self._replace_head(count, segments[:count], unshown))
            return
        new_of = dict(zip(old, new, strict=True))
        first = len(self.timeline.unpositioned)
        exchanged: dict[Extent, Extent] = {}
        for number, extent in enumerate(self.timeline.extents):
            if (after := new_of.get(extent.segment)) is not None:
                extent.leave()
                found = self._repacked_extent(extent, after, is_positioned=number >= first)
                exchanged[extent] = found
                self._left[extent.segment] = extent
        assert len(exchanged) == len(old)
        self.timeline.exchange(exchanged)

    def _repacked_extent(self, extent: Extent, new: Segment, *, is_positioned: bool) -> Extent:
        """The extent of `new`, which has the records of the segment of `extent`."""
        if self._measured is not None and self._measured[0] is new:
            return self._measured[1]
        # Another process has repacked it.
        found, old = self._extent(new), extent.segment
        assert isinstance(found, SegmentLines)
        is_read = old.next_offset >= new.next_offset and old.stable_size == old.size
        if is_read and extent.complete and not extent.is_guessed:
            found.take_totals(extent.text_length, extent.records)
            self._taken.append(found)
        elif is_positioned:
            self.end_unknown = True
        return found

    def repack_ended(self) -> None:
        """The repacking was carried out, or given up. Thread-safe."""
        self._measured = None

    # -- changes of the past, under the lock -----------------------------------------------------

    def removing(self, count: int) -> None:
        """The first `count` segments are about to leave the log."""
        self._keep_later(self._replace_head(count, ()))

    def swapped(self, count: int, segments: Sequence[Segment]) -> None:
        """`segments` have replaced the first `count`; the extents of those that stay are kept.

        Where the view had not shown all of the old text, the new segments' rest follows it.
        """
        self._keep_later(self._replace_head(count, segments, self._unshown(count)))

    def _replace_head(
        self, count: int, segments: Sequence[Segment], unshown: int | None = None
    ) -> list[ToKeep]:
        """Put `segments` in place of the first `count`; keep the extents of those that stay.

        `unshown`: the first offset that was not shown. Returns what `Timeline.replace_head` does.
        """
        timeline, extents = self.timeline, self.timeline.extents
        old = {extent.segment: extent for extent in extents[:count]}
        new = [old.pop(each) if each in old else self._extent(each) for each in segments]
        if unshown is None:
            kept = timeline.replace_head(count, new)
        else:
            # No text after them was shown, either.
            kept = timeline.replace_head(len(extents), [*new, *extents[count:]], timeline.end)
            self._resume_offset = unshown
            self.end_unknown = False
        self._active = timeline.extents[-1]
        self._bound_before = self._current = None
        for segment, extent in old.items():
            extent.leave()
            self._left[segment] = extent
        return kept

    def _unshown(self, count: int) -> int | None:
        """The first offset in the first `count` segments that no reader was shown; None where all
        were shown, or none has a position. Under the lock.

        Another process may clean records that no reader could read yet.
        """
        if not self.log.read_only:
            return None
        extents = self.timeline.extents
        bound = self.bound if self._bound_before is None else self._bound_before
        for number in range(len(self.timeline.unpositioned), count):
            segment = extents[number].segment
            following = extents[number + 1].segment.base_offset
            if extents[number].covered < segment.size:
                is_inside = segment.base_offset <= bound < following
                # Where not all up to the bound was measured, readers see some of it again.
                return bound if is_inside and not self.end_unknown else segment.base_offset
            if segment.next_offset < following:
                return segment.next_offset
        return None

    def _keep_later(self, to_keep: Iterable[ToKeep]) -> None:
        """Have `keep_pending` read this text."""
        pending: dict[object, _Pending] = {}
        for generation, start, end in to_keep:
            extents = generation.extents_from(start)
            key = (start, end, *extents)
            if key not in pending:
                segments = [extent.segment for extent, _ in extents]
                pending[key] = _Pending([], start, end, segments)
                # The leases keep their files until `keep_pending`.
                for segment in segments:
                    segment.lease()
            pending[key].generations.append(generation)
        self._pending += pending.values()

    def text_that_stays(self, first: Segment, segments: Sequence[Segment], offset: int) -> int:
        """Bytes of text that stay of the segment `first`: the log was cut at `offset`.

        0 where no one of `segments`, the log's segments now, begins as `first` does. 0 also where
        the number is unknown: readers then see some text twice.

        Not under the lock: it may read the disk, and measures for LOOK_S at most.
        """
        timeline = self.timeline
        is_shown = timeline.positioned[1] or timeline.open
        if not is_shown or all(each.base_offset != first.base_offset for each in segments):
            return 0
        extent = self.extent_of(first)
        try:
            assert extent is not None
            if not extent.covered:
                # No reader has needed this extent yet.
                extent.measure(time.monotonic() + LOOK_S)
            return text_before(extent, offset)[0]
        except (StorageError, OSError):
            return 0

    def truncated(
        self, first: Segment, segments: Sequence[Segment], offset: int, kept: int
    ) -> None:
        """Another process has cut the log, from `offset` in the segment `first` on, which keeps
        `kept` bytes of text.

        The rest is placed so that it ends where the log ended: an older generation shows the lost
        text's positions, and new text after them.
        """
        timeline = self.timeline
        stay = {extent.segment for extent in timeline.extents}
        leaving = stay - set(segments)
        starts, positioned = timeline.positioned
        if positioned:
            lost = starts[0]
            for extent, start in zip(positioned, starts, strict=True):
                if extent.segment is first:
                    lost = start + kept
            for generation in tuple(timeline.open):
                generation.lose(lost)
        for generation in tuple(timeline.open):
            # An extent of its own, from before an earlier cut, may be cut again.
            for place, extent, start in generation.past:
                if extent.segment in leaving:
                    inside = kept if extent.segment is first else 0
                    generation.lose(max(start + inside, place))
                    break
        replacing = next(segment for segment in segments if segment not in stay)
        cut = offset if kept else replacing.base_offset
        if self._bound_before is not None:
            # Records of open transactions, and those after them, were not shown yet.
            cut = min(cut, self._bound_before)
        resume = self._resume_offset
        if positioned or (resume is not None and cut < resume):
            resume = cut
        self._replace_head(len(timeline.extents), segments, resume)

    def removed(self, segment: Segment) -> None:
        """The files of a segment are deleted: older generations cannot read it any more."""
        with self.lock:
            for generation in tuple(self.timeline.open):
                generation.forget(lambda extent: extent.segment is segment)
        extent = self._left.pop(segment, None)
        if extent is not None:
            extent.vanish()

    def vanish(self) -> None:
        """The files of all segments are deleted, those of the timeline too."""
        for extent in self.timeline.extents:
            extent.vanish()

    # -- what older generations keep -----------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the background has nothing left to measure or to keep."""
        return not (self.end_unknown or self._pending or self._taken)

    def save_taken(self, until: float) -> None:
        """Index repacked segments of another process, so that the next mount need not measure them.
        Runs on a worker thread.
        """
        while self._taken and time.monotonic() < until:
            with contextlib.suppress(StorageError, OSError):
                # (A reader measures it, and gets the error.)
                self._taken.pop().save_taken()

    def keep_pending(self) -> None:
        """Read the text that older generations keep in memory. BlockingIOError: some is left."""
        while self._pending:
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                pending = self._pending.pop(0)
                self._keep(pending)

    def _keep(self, pending: _Pending) -> None:
        text = bytearray(pending.end - pending.start)
        try:
            render_text(pending.generations[0], pending.start, text, 0, None)
            with self.lock:
                kept, keeps = bytes(text), None
                for generation in pending.generations:
                    keeps = generation.keep(pending.start, kept, keeps)
        except BlockingIOError:
            self._pending.append(pending)
            raise
        except (StorageError, OSError):
            pass  # a reader of this text gets the same error
        _release(pending.segments)

    def give_up_pending(self) -> None:
        """At shutdown: release the segments that `keep_pending` would have read."""
        while self._pending:
            with contextlib.suppress(IndexError):
                _release(self._pending.pop().segments)

    # -- saving --------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Bytes of log whose index entries are in memory only."""
        return self._active.unsaved if self._active.loaded else 0

    def save(self) -> None:
        """Save the active segment's index; where the disk refuses, `unsaved` stays."""
        at_once(self._active.save)


def render_text(
    generation: Generation,
    absolute: int,
    out: bytearray,
    done: int,
    reader: Reader | None,
) -> Reader:
    """Fill `out` from its byte `done` on with the text at `absolute`, which must be long enough.

    `reader`: the one that the last call returned, which stands at `absolute`, or None. It is not
    changed. Returns one at the end.

    BlockingIOError where it would wait and may not, SegmentGone, Damaged, TextChanged,
    CorruptRecord, OSError.
    """
    size = len(out)
    origin = absolute - done
    segments = 1
    extent, start = None, 0
    if reader is None:
        extent, start = generation.locate(absolute)
        reader = reader_at(extent, absolute - start)
    else:
        reader = reader.copy()
    while True:
        try:
            done = reader.fill(out, done)
        except SegmentGone:
            extent, start = generation.locate(origin + done)
            if extent.segment is reader.segment:
                raise
            # The segment was repacked since the reader was made: the new one has the same text.
            reader = reader_at(extent, origin + done - start)
            continue
        except Damaged as error:
            if extent is None or error.done > done or not error.is_news:
                raise
            # The text may begin after the damage, whose gap is known now.
        else:
            if done == size:
                return reader
            before = extent
            extent, start = generation.locate(origin + done)
            if before is None and _is_repacked(reader.segment, extent.segment):
                # Another process has repacked it before all of it was read.
                reader = reader_at(extent, origin + done - start)
                continue
            is_next = start == origin + done or generation.may_begin_inside(origin + done)
            if not is_next or reader.skip or extent is before:
                reader.check_again()
                raise CorruptRecord("shows less than was indexed", path=extent.segment.log_path)
        segments += 1
        if segments > SEGMENTS_AT_ONCE:
            before_waiting()
        try:
            reader = reader_at(extent, origin + done - start)
        except CorruptRecord as error:
            raise Damaged(error, done) from None


def _is_repacked(old: Segment, new: Segment) -> bool:
    return old is not new and old.base_offset == new.base_offset


def _release(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.release()


def number_of(extents: Sequence[Extent], offset: int) -> int:
    """The number of the last extent whose base offset is ≤ `offset`; 0 where none is."""
    number = bisect_right(extents, offset, key=lambda extent: extent.segment.base_offset)
    return max(number - 1, 0)
