"""One view of one partition: makes its generations, renders their text, keeps old text in memory.

`partition.py` passes the log's events to it. Before the first request for a size or a byte it
measures nothing, and appends change nothing; that request loads or measures the text (`layout.py`).

Threads: as in `layout.py`; any thread may make a generation. Changes of the past are made under the
partition's lock.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kafkafs.line_index import NEVER, Damaged, Extent, Reader, reader_at
from kafkafs.metrics import Traffic
from kafkafs.tree.partition.generations import Generation, ToKeep
from kafkafs.tree.partition.layout import Layout
from storage.errors import CorruptRecord, StorageError
from storage.segment.segment import Segment
from storage.waiting import before_waiting

_TRIES = 100
"""How often `lasting_generation` starts again after a change."""

SEGMENTS_AT_ONCE = 64
"""Segments that the owner's thread reads in one call; a worker thread reads more."""

OVERTAKEN_S = 60.0
"""Seconds in which a lookup measures first, after a file was rewritten before it was measured."""


class _Pending(NamedTuple):
    """Text before a change that is still to be read, from `start` to `end`: the generations that
    keep it, all from the same extents, and the leased segments that have it.
    """

    generations: list[Generation]
    start: int
    end: int
    segments: list[Segment]


class PartitionView:
    """See the module."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.traffic = Traffic()
        self._current: Generation | None = None
        # Extents whose segments have left the log, until their files are gone.
        self._left: dict[Segment, Extent] = {}
        self._overtaken_until = 0.0
        self._pending: list[_Pending] = []

    # -- current generations -------------------------------------------------------------------

    @property
    def has_generation(self) -> bool:
        """Whether `generation` returns at once."""
        return self._current is not None

    def generation(self, until: float = NEVER) -> Generation:
        """The current generation, all of it measured; errors as `Layout.measure`."""
        layout = self.layout
        while (current := self._current) is None:
            layout.measure(until)
            layout.catch_up(until)
            rewrites = layout.timeline.rewrites
            position = layout.position(layout.log.log_start_offset)
            with layout.lock:
                is_known = layout.is_ready and not layout.end_unknown
                same = is_known and rewrites == layout.timeline.rewrites
                # One that another thread has made meanwhile may be attached already.
                if same and self._current is None:
                    self._current = Generation(layout.timeline, self.nonce, position)
                    if layout.view.committed and not layout.log.is_start_decided:
                        self._current.awaited = layout.log.log_start_offset
                    layout.begin_base(position)
        return current

    def generation_from(self, offset: int, until: float = NEVER) -> Generation:
        """A generation that begins with the first record from `offset` (≤ `bound`) on.

        Only the segments from that record on are measured. Errors as `generation`.
        """
        layout = self.layout
        while True:
            layout.measure(until, offset)
            layout.catch_up(until)
            rewrites = layout.timeline.rewrites
            position = layout.position(offset)
            with layout.lock:
                if rewrites == layout.timeline.rewrites and not layout.end_unknown:
                    return Generation(layout.timeline, self.nonce, position)

    def lasting_generation(self, until: float = NEVER) -> Generation:
        """The generation of `.follow`, with the history's positions, which never change.

        It can be read from the base or the log start on, whichever is later. Only the segments from
        the base on are measured. Errors as `generation`.
        """
        layout = self.layout
        for _ in range(_TRIES):
            if layout.base is None:
                self.generation(until)
                rewrites = layout.timeline.rewrites
                position = layout.position(layout.log.log_start_offset)
                with layout.lock:
                    # It is older than the base where the positions have begun anew beside it.
                    if layout.is_ready and rewrites == layout.timeline.rewrites:
                        layout.begin_base(position)
            base, log_start = layout.base, layout.log.log_start_offset
            if base is None:
                continue
            layout.measure(until, base[0])
            layout.find_end(until)
            rewrites = layout.timeline.rewrites
            position = layout.position(max(base[0], log_start))
            with layout.lock:
                same = rewrites == layout.timeline.rewrites and layout.base == base
                recorded = layout.recorded
                if same and recorded is None:
                    # The base's segment is missing, which should not happen.
                    layout.log.history.restart_positions()
                elif same and recorded is not None and not layout.end_unknown:
                    return Generation(
                        layout.timeline, self.nonce, position, origin=-recorded, keep_bytes=0
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
        """The history's nonce, which changes together with the timeline."""
        return self.layout.log.history.nonce

    def attach(self, generation: Generation) -> bool:
        """As `Generation.attach`, in any thread."""
        with self.layout.lock:
            return generation.attach()

    @property
    def record_bytes(self) -> float:
        """How many bytes of text an offset has on average, as far as the text is measured; 0 where
        that is not known.
        """
        timeline, log = self.layout.timeline, self.layout.log
        starts, extents = timeline.positioned
        if not extents:
            return 0.0
        offsets = log.last_stable_offset - extents[0].segment.base_offset
        return max(timeline.end - starts[0], 0) / max(offsets, 1)

    # -- changes of the past, under the lock -----------------------------------------------------

    def removing(self, count: int) -> None:
        """The first `count` segments are about to leave the log."""
        self._change(*self.layout.replace_head(count, ()))

    def swapped(self, count: int, segments: Sequence[Segment]) -> None:
        """`segments` have replaced the first `count`; the extents of those that stay are kept.

        Where the view had not shown all of the old text, the new segments' rest follows it.
        """
        unshown = self.layout.unshown(count)
        self._change(*self.layout.replace_head(count, segments, unshown))

    def _change(self, left: Iterable[Extent], to_keep: Iterable[ToKeep]) -> None:
        self._current = None
        for extent in left:
            extent.leave()
            self._left[extent.segment] = extent
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
        timeline = self.layout.timeline
        is_shown = timeline.positioned[1] or timeline.open
        if not is_shown or all(each.base_offset != first.base_offset for each in segments):
            return 0
        return self.layout.text_before(first, offset)

    def truncated(
        self, first: Segment, segments: Sequence[Segment], offset: int, kept: int
    ) -> None:
        """Another process has cut the log, from `offset` in the segment `first` on, which keeps
        `kept` bytes of text.

        The layout places the rest so that it ends where the log ended: an older generation shows
        the lost text's positions, and new text after them.
        """
        timeline = self.layout.timeline
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
        resume = offset if kept else replacing.base_offset
        self._change(self.layout.truncate(segments, resume), ())

    def removed(self, segment: Segment) -> None:
        """The files of a segment are deleted: older generations cannot read it any more."""
        with self.layout.lock:
            for generation in tuple(self.layout.timeline.open):
                generation.forget(lambda extent: extent.segment is segment)
        extent = self._left.pop(segment, None)
        if extent is not None:
            extent.vanish()

    def vanish(self) -> None:
        """The files of all segments are deleted, those of the timeline too."""
        for extent in self.layout.timeline.extents:
            extent.vanish()

    # -- what older generations keep -----------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the background has nothing left to measure or to keep."""
        return not self.layout.end_unknown and not self._pending

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
            with self.layout.lock:
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
        except Damaged as error:
            if extent is None or error.done > done or not error.is_news:
                raise
            # The text may begin after the damage, whose gap is known now.
        else:
            if done == size:
                return reader
            before = extent
            extent, start = generation.locate(origin + done)
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


def _release(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.release()
