"""Where the text of one view of a log lies: measures its segments, and finds where they lie.

Nothing is measured before somebody asks for it, and who asks for what is behind an offset has no
segment before that one measured: the timeline's head may be unpositioned while its tail is not.

The topic's own view keeps its absolute positions for ever: where a segment begins is written down
in `log.history` (the *base*). It is once all of the view has been measured, and then its first byte
has position 0. The timeline itself may begin anywhere: `recorded` is what has to be added to its
positions.

What lies behind the last stable offset is no text yet. When that offset passes it the view is
`end_unknown` until it is measured (`catch_up`), and no size is told before.

Threads: the owner's thread changes it; a worker thread may measure, and then places what it
measured under the lock that the owner's changes take too.

Not here: what the log tells, what somebody reads (`partition_view.py`).
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

from kafkafs.generations import Timeline
from kafkafs.line_index import NEVER, Extent, LineStore, SegmentBatches, SegmentLines
from kafkafs.line_index.encoded import takes_long
from kafkafs.views import View
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.state.history import Places
from storage.waiting import at_once, before_waiting, may_wait

CATCH_UP_AT_ONCE = 1 << 20
"""Bytes of log that a transaction's end may have measured on the owner's thread."""
FEW = 10_000
"""Records that are counted by the heads of their batches rather than by measuring a segment."""
LOOK_S = 0.05
"""How long the owner's thread measures, at most, what another process is changing."""


class Layout:
    """See the module. Who holds `lock` may change the past.

    `end_unknown`: the last stable offset has passed text that is not measured yet.
    """

    __slots__ = (
        "_active",
        "_bound_before",
        "_cache",
        "_on_measured",
        "_preparing",
        "_ready",
        "_resume_offset",
        "_slow",
        "_store",
        "end_unknown",
        "keeps_base",
        "lock",
        "log",
        "timeline",
        "view",
    )

    def __init__(
        self,
        log: Log,
        view: View,
        store: LineStore,
        cache: str | None,
        *,
        keeps_base: bool,
        on_measured: Callable[[], None] = lambda: None,
    ) -> None:
        """`keeps_base`: whether its absolute positions are written down. `cache`: as for
        `SegmentLines`. `on_measured`: called, in any thread, when something is measured.
        """
        self.log = log
        self.view = view
        self.keeps_base = keeps_base
        self._store = store
        self._cache = cache
        self._on_measured = on_measured
        self.timeline = Timeline([self._extent(segment) for segment in log.segments])
        self.lock = threading.Lock()
        self._preparing = threading.Lock()
        self._active = self.timeline.extents[-1]
        # Whether all extents are measured and positioned.
        self._ready = False
        # While nothing is positioned: the first record from this offset on belongs at the end.
        self._resume_offset: int | None = None
        self.end_unknown = False
        # Whether what is not measured may take long to be decoded, however little it is.
        self._slow = True
        # Up to where it showed the log when segments were about to be swapped.
        self._bound_before: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all of it is measured and has its place."""
        return self._ready

    def _extent(self, segment: Segment) -> Extent:
        if not self.view.is_text:
            return SegmentBatches(segment)
        is_aborted = self.log.transactions.is_aborted if self.view.committed else None
        return SegmentLines(self._store, segment, self.view, is_aborted, self._cache)

    @property
    def bound(self) -> int:
        """The offset up to which it shows the log."""
        return self.log.last_stable_offset if self.view.committed else self.log.log_end_offset

    @property
    def is_damaged(self) -> bool:
        """Whether damage is known in any segment."""
        return any(extent.segment.damages for extent in self.timeline.extents)

    # -- where records lie ---------------------------------------------------------------------

    def position(self, offset: int) -> int:
        """Absolute, of the first record from `offset` (≤ `bound`) on; its segment is positioned.

        BlockingIOError, StorageError, OSError.
        """
        extent, start = self._positioned_at(offset)
        if extent.segment.base_offset >= offset:
            return start
        before_waiting()
        return start + extent.text_before(offset)[0]

    def position_behind(self, offset: int) -> int:
        """Absolute, of the end of what holds the last record before `offset`. Waits."""
        extent, start = self._positioned_at(offset - 1)
        return start + extent.text_until(offset)

    def log_start(self) -> tuple[int, int]:
        """(absolute position, records of all extents before it) of the log start; as `position`."""
        offset = self.log.log_start_offset
        extent, start = self._positioned_at(offset)
        records = 0
        for before in self.timeline.positioned[1]:
            if before is extent:
                break
            records += before.records
        if extent.segment.base_offset >= offset:
            return start, records
        before_waiting()
        text, inside = extent.text_before(offset)
        return start + text, records + inside

    def _positioned_at(self, offset: int) -> tuple[Extent, int]:
        """The positioned extent that holds an offset, or else the next one, and where it begins."""
        starts, extents = self.timeline.positioned
        if not extents:
            raise SegmentGone("the log was cut while it was looked at")
        number = number_of(extents, offset)
        while number < len(extents) - 1 and extents[number].segment.next_offset <= offset:
            number += 1
        return extents[number], starts[number]

    def offset_of_last(self, count: int, until: float = NEVER) -> int:
        """The offset of the first one of the last `count` records that it shows.

        The log start where there are fewer. A few are counted without measuring, as somebody may
        wait for the lookup; of many the segments are measured, from the end on. As `prepare`.
        """
        before_waiting()
        if not count:
            return self.bound
        while True:
            extents, left = self.timeline.extents, count
            try:
                for extent in reversed(extents):
                    offset: int | None = None
                    if not extent.complete and 0 < left <= FEW and extent.segment.holds_batches:
                        records, offset = extent.count_back(left)
                    else:
                        if not extent.complete:
                            self._measure(extent, until)
                        records = extent.records
                        if records >= left > 0:
                            offset = extent.offset_of(records - left)
                    if offset is not None:
                        return max(offset, self.log.log_start_offset)
                    left -= records
                return self.log.log_start_offset
            except SegmentGone:
                if self.timeline.extents == extents:
                    raise

    # -- measuring and placing -----------------------------------------------------------------

    def prepare(self, until: float = NEVER, offset: int | None = None) -> None:
        """Measure and place every extent, or only what holds `offset` and what is behind it.

        BlockingIOError where that has to wait and may not, or when `until` (time.monotonic) is
        reached: what is measured by then is kept. StorageError, OSError.
        """
        if self._ready:
            return
        if not may_wait():
            extents, first = self._wanted(offset)
            if self._is_positioned(first):
                return
            if not all(extent.complete for extent in extents[first:]) or self._is_inside(extents):
                raise BlockingIOError
            with self.lock:
                self._position(first)
            return
        timeout = -1.0 if until == NEVER else max(until - time.monotonic(), 0)
        if not self._preparing.acquire(timeout=timeout):
            raise self._still_measuring()
        try:
            while not self.is_ready:
                extents, first = self._wanted(offset)
                if self._is_positioned(first):
                    return
                for extent in extents[first:]:
                    if not extent.complete:
                        self._measure(extent, until)
                before = self._text_before_resume_offset(extents)
                with self.lock:
                    # An open transaction may have ended in any of them meanwhile. Once it is ready
                    # the owner places without the lock.
                    complete = all(extent.complete for extent in extents[first:])
                    same = self._wanted(offset) == (extents, first)
                    if complete and same and not self.is_ready:
                        self._position(first, before)
        finally:
            self._preparing.release()

    def _wanted(self, offset: int | None) -> tuple[tuple[Extent, ...], int]:
        """All extents, and the number of the first that is wanted by who asks from `offset` on.

        None behind the anchor is, nor one behind the first that is positioned.
        """
        extents = self.timeline.extents
        if offset is None:
            return extents, 0
        if self._resume_offset is not None:
            offset = min(offset, self._resume_offset)
        number = number_of(extents, offset)
        return extents, min(number, len(extents) - len(self.timeline.positioned[1]))

    def _is_positioned(self, first: int) -> bool:
        """Whether all extents from this number on are, and others are not: `_ready` is something
        else.
        """
        timeline = self.timeline
        return bool(timeline.positioned[1]) and first >= len(timeline.unpositioned) > 0

    def find_end(self, until: float = NEVER) -> None:
        """See to it that the end of what is positioned is known; as `prepare`."""
        if self.end_unknown:
            self.catch_up(until)
        if not self.timeline.positioned[1]:
            # Another process has cut the log, and nobody has measured what is left.
            self.prepare(until, self.log.log_end_offset)

    def catch_up(self, until: float = NEVER) -> None:
        """Measure what the last stable offset has passed; as `prepare`."""
        while self.end_unknown:
            extents = self.timeline.positioned[1]
            unmeasured = [extent for extent in extents if not extent.complete]
            if unmeasured and not may_wait():
                left = sum(extent.segment.size - extent.covered for extent in unmeasured)
                if self._slow or left > CATCH_UP_AT_ONCE:
                    raise BlockingIOError
            for extent in unmeasured:
                self._measure(extent, until)
            with self.lock:
                if not self._is_end_unknown():
                    # Another thread has done it, and the owner goes on without the lock.
                    return
                if self.timeline.positioned[1] == extents and all(
                    extent.complete for extent in extents
                ):
                    self._caught_up()

    def _caught_up(self) -> None:
        """All that is positioned is measured. Under the lock."""
        self.timeline.grow()
        self.end_unknown = False
        # What is held back still may be what is slow.
        extents = self.timeline.positioned[1]
        held = any(extent.covered < extent.segment.size for extent in extents)
        self._slow = self._slow and held

    def _is_end_unknown(self) -> bool:
        return self.end_unknown

    def _measure(self, extent: Extent, until: float) -> None:
        try:
            extent.measure(until)
        except BlockingIOError:
            raise self._still_measuring() from None
        finally:
            self._on_measured()

    def _still_measuring(self) -> BlockingIOError:
        measured = sum(extent.covered for extent in self.timeline.extents)
        reason = f"measured {measured} of {self.log.size} bytes so far, try again"
        return BlockingIOError(errno.EAGAIN, reason)

    def _is_inside(self, extents: Sequence[Extent]) -> bool:
        """Whether the anchor is inside an extent, so that the disk tells where."""
        anchor = self._resume_offset
        if anchor is None or self.timeline.positioned[1]:
            return False
        return extents[number_of(extents, anchor)].segment.base_offset < anchor

    def _text_before_resume_offset(self, extents: Sequence[Extent]) -> int:
        """Bytes of text before the anchor in the extent that it is inside of. Waits."""
        anchor = self._resume_offset
        if anchor is None or not self._is_inside(extents):
            return 0
        return extents[number_of(extents, anchor)].text_before(anchor)[0]

    def _position(self, first: int, before: int = 0) -> None:
        """All from extent number `first` on is measured: find its positions. Under the lock.

        `before`: `_text_before_resume_offset`.
        """
        timeline = self.timeline
        extents = timeline.extents
        bases = [extent.segment.base_offset for extent in extents]
        if self.end_unknown:
            self._caught_up()
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
                # Behind all that anybody has seen, if anybody has.
                timeline.position(first, first, timeline.end)
        self._ready = not timeline.unpositioned

    # -- what is written down ------------------------------------------------------------------

    @property
    def base(self) -> tuple[int, int] | None:
        """(base offset of a segment, its absolute position) as they are written down."""
        base = self.log.history.base(self.view.name) if self.keeps_base else (-1, 0)
        return base if base[0] >= 0 else None

    @property
    def recorded(self) -> int | None:
        """Absolute positions as they are written down, less the timeline's; None: not known yet."""
        base = self.base
        starts, extents = self.timeline.positioned
        if base is None or not extents:
            return None
        number = number_of(extents, base[0])
        if extents[number].segment.base_offset != base[0]:
            return None
        return base[1] - starts[number]

    def begin_base(self, log_start: int) -> None:
        """Positions are written down from now on: the first record has 0. Under the lock."""
        if self.keeps_base and self.base is None:
            starts, extents = self.timeline.positioned
            number = number_of(extents, self.log.log_start_offset)
            first = extents[number].segment.base_offset
            self.log.history.set_base(self.view.name, first, starts[number] - log_start)

    def passing(self, end: int, until: float = NEVER) -> Places:
        """Where segments begin by what is written down: from the base on up to the one that begins
        at the offset `end`, that one too. None where the base is not before that.

        Measures what lies between; as `prepare`. CorruptRecord where that is a guess.
        """
        with self.lock:
            base, extents = self.base, self.timeline.extents
        if base is None or base[0] >= end:
            return ()
        number = number_of(extents, base[0])
        if extents[number].segment.base_offset != base[0]:
            raise SegmentGone("the segment is gone that positions were counted from")
        places = []
        at = base[1]
        for extent in extents[number:]:
            places.append((extent.segment.base_offset, at))
            if extent.segment.base_offset >= end:
                return tuple(places)
            if not extent.complete:
                self._measure(extent, until)
            if extent.is_guessed:
                # What is behind would have the same inode at positions that it never had.
                reason = "nothing tells how much text a damaged place has shown"
                raise CorruptRecord(reason, path=extent.segment.log_path)
            at += extent.text_length
        raise AssertionError("a segment that stays begins there")

    # -- what the log tells --------------------------------------------------------------------

    def appended(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """The active segment has grown."""
        slow = self.view.is_text and takes_long(data)
        if self._ready and not self.end_unknown and not slow:
            # Nobody else places anything now, so the lock is not needed.
            active = self._active
            active.append(position, data)
            self.timeline.end = self.timeline.positioned[0][-1] + active.text_length
            return
        with self.lock:
            starts = self.timeline.positioned[0]
            self._slow = self._slow or slow
            if slow and starts:
                self.end_unknown = True
            if self.end_unknown or slow:
                # Who asks for it, or `catch_up` in the background, finds it.
                return
            # Where a worker thread is measuring it finds these too: do not wait for it.
            self._active.append(position, data, blocking=bool(starts))
            if starts:
                self.timeline.end = starts[-1] + self._active.text_length

    def stabilized(self) -> None:
        """The last stable offset has passed what was held back: measure it now if it is little."""
        if self.timeline.positioned[1]:
            self.end_unknown = True
            # Where this fails, who asks next does it in a worker thread, and is told what is wrong.
            with contextlib.suppress(StorageError, OSError):
                at_once(self.catch_up)

    def rolled(self, active: Segment) -> None:
        """The active segment is sealed, and `active` follows it."""
        at_once(self._active.seal)
        with self.lock:
            self._active = self._extent(active)
            self.timeline.extend(self._active)

    def name_later_base(self) -> None:
        """Have the last segment written down too, in case another program deletes the others."""
        starts, extents = self.timeline.positioned
        recorded = self.recorded
        if recorded is None or self.end_unknown:
            return
        if all(extent.covered == extent.segment.size for extent in extents[:-1]):
            last = extents[-1].segment.base_offset
            self.log.history.set_later(self.view.name, last, starts[-1] + recorded)

    def swapping(self) -> None:
        """Segments are about to be swapped. Needs no lock."""
        self._bound_before = self.bound

    def extent_of(self, segment: Segment) -> Extent | None:
        """What it knows of one of the log's segments."""
        for extent in self.timeline.extents:
            if extent.segment is segment:
                return extent
        return None

    # -- what becomes of the past. Who calls these holds the lock. -------------------------------

    def remove_head(self, count: int) -> None:
        """The first `count` segments are about to leave the log."""
        self.timeline.remove_head(count)

    def swap(self, count: int, segments: Sequence[Segment], unshown: int | None) -> list[Extent]:
        """`segments` have taken the place of the first `count`; those of them that stay, stay.

        `unshown`: what that said. Returns the extents that are gone.
        """
        extents = self.timeline.extents
        old = {extent.segment: extent for extent in extents[:count]}
        new = self._extents(segments, old)
        if unshown is None:
            self.timeline.replace_head(count, new)
        else:
            # Nothing was shown of what comes behind them either.
            self.timeline.replace_head(len(extents), [*new, *extents[count:]])
            self._resume_offset = unshown
            self.end_unknown = False
        self._ready = False
        self._bound_before = None
        return list(old.values())

    def _extents(self, segments: Sequence[Segment], old: dict[Segment, Extent]) -> list[Extent]:
        """Theirs: those that there are, which leave `old`, and new ones."""
        return [old.pop(each) if each in old else self._extent(each) for each in segments]

    def cut(self, segments: Sequence[Segment], offset: int) -> list[Extent]:
        """Another process has cut the log at `offset`, and `segments` are left: their text ends
        where the log's had ended. Returns the extents that are gone.
        """
        extents, is_positioned = self.timeline.extents, bool(self.timeline.positioned[1])
        old = {extent.segment: extent for extent in extents}
        new = self._extents(segments, old)
        self.timeline.replace_head(len(extents), new)
        if is_positioned or (self._resume_offset is not None and offset < self._resume_offset):
            self._resume_offset = offset
        self._active = new[-1]
        self._ready = self.end_unknown = False
        return list(old.values())

    def unshown(self, count: int) -> int | None:
        """From which offset on the first `count` segments were not shown to who saw what comes
        before that; None where all of them were, or none is positioned. Under the lock.

        Another process may clean what nobody could read yet.
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
                # Where it could not be read to the bound some of it is shown again.
                return bound if is_inside and not self.end_unknown else segment.base_offset
            if segment.next_offset < following:
                return segment.next_offset
        return None

    @staticmethod
    def text_before(extent: Extent, offset: int) -> int:
        """Bytes of text; 0 where that cannot be found out: readers then see some of it twice."""
        try:
            if not extent.covered:
                # Nobody has asked for what begins before it.
                extent.measure(time.monotonic() + LOOK_S)
            return extent.text_before(offset)[0]
        except (StorageError, OSError):
            return 0

    # -- saving --------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Bytes of log whose index entries are in memory only."""
        return self._active.unsaved if self._active.loaded else 0

    def save(self) -> None:
        """Save the active segment's index; where the disk refuses, another time."""
        at_once(self._active.save)


def number_of(extents: Sequence[Extent], offset: int) -> int:
    """Of the last extent that begins at or before `offset`; 0 where none does."""
    number = bisect_right(extents, offset, key=lambda extent: extent.segment.base_offset)
    return max(number - 1, 0)
