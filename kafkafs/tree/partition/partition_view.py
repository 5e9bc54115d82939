"""One view of one partition: its layout, and the generations that are open.

`partition.py` passes the log's events to it. Before the first request for a size or a byte it
measures nothing, and appends change nothing; that request loads or measures the text (`layout.py`).

Threads: as in `layout.py`; any thread may make a generation.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence

from kafkafs.generations import Generation
from kafkafs.line_index import NEVER, Extent
from kafkafs.tree.partition.layout import Layout
from kafkafs.tree.partition.text import render_text
from storage.errors import StorageError
from storage.segment.segment import Segment
from storage.waiting import at_once

ViewGeneration = Generation[Extent]

_TRIES = 100
"""How often `following` starts again after a change."""

OVERTAKEN_S = 60.0
"""Seconds in which a lookup measures first, after a file was rewritten before it was measured."""


class PartitionView:
    """See the module. Every change of the past is applied to the generations in `open`."""

    __slots__ = (
        "_current",
        "_hidden_records",
        "_left",
        "_nonce",
        "_overtaken_until",
        "_pending",
        "layout",
        "open",
    )

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.open: dict[ViewGeneration, None] = {}
        self._current: ViewGeneration | None = None
        self._hidden_records = 0
        # The nonce that the timeline shows; None: the history's has not changed.
        self._nonce: int | None = None
        # Extents whose segments have left the log, until their files are gone.
        self._left: dict[Segment, Extent] = {}
        self._overtaken_until = 0.0
        # Text before a cut that is still to be read: that would have waited for the disk.
        self._pending: list[tuple[ViewGeneration, int, int, list[Segment]]] = []

    # -- current generations -------------------------------------------------------------------

    @property
    def has_generation(self) -> bool:
        """Whether `generation` returns at once."""
        return self._current is not None

    def generation(self, until: float = NEVER) -> ViewGeneration:
        """The current generation, all of it measured; errors as `Layout.measure`."""
        layout = self.layout
        while (current := self._current) is None:
            layout.measure(until)
            nonce, rewrites = self.nonce, layout.timeline.rewrites
            position, hidden = layout.log_start()
            with layout.lock:
                # One that another thread has made meanwhile may be attached already.
                if self._current is None and layout.is_ready and self._is_same(nonce, rewrites):
                    self._hidden_records = hidden
                    self._current = Generation(layout.timeline, nonce, position)
                    layout.begin_base(position)
        return current

    def generation_from(self, offset: int, until: float = NEVER) -> ViewGeneration:
        """A generation that begins with the first record from `offset` (≤ `bound`) on.

        Only the segments from that record on are measured. Errors as `generation`.
        """
        layout = self.layout
        while True:
            layout.measure(until, offset)
            layout.catch_up(until)
            nonce, rewrites = self.nonce, layout.timeline.rewrites
            position = layout.position(offset)
            with layout.lock:
                if self._is_same(nonce, rewrites) and not layout.end_unknown:
                    return Generation(layout.timeline, nonce, position)

    def following(self, until: float = NEVER) -> ViewGeneration:
        """The generation of `.follow`, with the history's positions, which never change.

        It can be read from the base or the log start on, whichever is later. Only the segments from
        the base on are measured. Errors as `generation`.
        """
        layout = self.layout
        for _ in range(_TRIES):
            if layout.base is None:
                self.generation(until)
            base, log_start = layout.base, layout.log.log_start_offset
            if base is None:
                continue
            layout.measure(until, base[0])
            layout.find_end(until)
            nonce, rewrites = self.nonce, layout.timeline.rewrites
            position = layout.position(max(base[0], log_start))
            with layout.lock:
                same = self._is_same(nonce, rewrites) and layout.base == base
                recorded = layout.recorded
                if same and recorded is None:
                    # The base's segment is missing, which should not happen.
                    layout.log.history.begin_anew()
                elif same and recorded is not None and not layout.end_unknown:
                    return Generation(
                        layout.timeline, nonce, position, origin=-recorded, keep_bytes=0
                    )
        raise BlockingIOError(errno.EAGAIN, "the log's head changes all the time, try again")

    def overtaken(self) -> None:
        """The past has changed between a lookup and the measurement for it."""
        self._overtaken_until = time.monotonic() + OVERTAKEN_S

    @property
    def is_overtaken(self) -> bool:
        """Whether that has happened within OVERTAKEN_S."""
        return time.monotonic() < self._overtaken_until

    @property
    def nonce(self) -> int:
        """The nonce that the timeline shows; the history's own changes after all views."""
        return self.layout.log.history.nonce if self._nonce is None else self._nonce

    def _is_same(self, nonce: int, rewrites: int) -> bool:
        """Whether the past has not changed since. Under the lock."""
        return nonce == self.nonce and rewrites == self.layout.timeline.rewrites

    @property
    def records(self) -> int:
        """Records that the current generation shows, which must exist."""
        return sum(extent.records for extent in self.layout.timeline.extents) - self._hidden_records

    def attach(self, generation: ViewGeneration) -> bool:
        """Add a generation to `open`; False where a change has superseded it already."""
        with self.layout.lock:
            if generation.is_current:
                self.open[generation] = None
            return generation in self.open

    def detach(self, generation: ViewGeneration) -> None:
        """Take a generation out of `open`."""
        self.open.pop(generation, None)

    # -- changes of the past, under the lock -----------------------------------------------------

    def removing(self, count: int, nonce: int | None) -> None:
        """The first `count` segments are about to leave the log; `nonce` is the new one."""
        self._supersede(count, nonce)
        for extent in self.layout.timeline.extents[:count]:
            self._leave(extent)
        self.layout.timeline.remove_head(count)

    def swapped(self, count: int, segments: Sequence[Segment], nonce: int | None) -> None:
        """`segments` have replaced the first `count`; the extents of those that stay are kept.

        Where the view had not shown all of the old text, the new segments' rest follows it.
        """
        unshown = self.layout.unshown(count)
        self._supersede(count, nonce, None if unshown is None else self.layout.timeline.end)
        for extent in self.layout.swap(count, segments, unshown):
            self._leave(extent)

    def truncated(
        self, first: Segment, segments: Sequence[Segment], offset: int, nonce: int | None
    ) -> None:
        """Another process has cut the log, from `offset` in the segment `first` on.

        The layout places the rest so that it ends where the log ended: an older generation shows
        the lost text's positions, and new text after them.
        """
        extents = self.layout.timeline.extents
        starts, positioned = self.layout.timeline.positioned
        self._is_over(nonce)
        stay = {extent.segment: extent for extent in extents}
        replacing = next(segment for segment in segments if segment not in stay)
        leaving = stay.keys() - set(segments)
        kept = 0
        if first.base_offset == replacing.base_offset and (stay[first] in positioned or self.open):
            kept = self.layout.text_before(stay[first], offset)
        if positioned:
            lost = starts[0]
            for extent, start in zip(positioned, starts, strict=True):
                if extent.segment is first:
                    lost = start + kept
            for generation in tuple(self.open):
                generation.lose(lost)
        for generation in tuple(self.open):
            # An extent of its own, from before an earlier cut, may be cut again.
            for place, extent, start in generation.past:
                if extent.segment in leaving:
                    inside = kept if extent.segment is first else 0
                    generation.lose(max(start + inside, place))
                    break
        for extent in self.layout.cut(segments, offset if kept else replacing.base_offset):
            self._leave(extent)

    def _is_over(self, nonce: int | None) -> None:
        """Drop the current generation. `nonce`: the new one; None where the history is unread."""
        self._current = None
        if nonce is not None:
            self._nonce = nonce

    def removed(self, segment: Segment) -> None:
        """The files of a segment are deleted: older generations cannot read it any more."""
        for generation in tuple(self.open):
            generation.forget(lambda extent: extent.segment is segment)
        extent = self._left.pop(segment, None)
        if extent is not None:
            extent.vanish()

    def vanish(self) -> None:
        """The files of all segments are deleted, those of the timeline too."""
        for extent in self.layout.timeline.extents:
            extent.vanish()

    def _leave(self, extent: Extent) -> None:
        extent.leave()
        self._left[extent.segment] = extent

    # -- what older generations keep -----------------------------------------------------------

    def _supersede(self, count: int, nonce: int | None, cut: int | None = None) -> None:
        """Have open generations keep their text up to extent number `count`, or up to `cut`."""
        self._is_over(nonce)
        starts = self.layout.timeline.positioned[0]
        first = count - len(self.layout.timeline.unpositioned)
        if not starts or first < 0:
            return
        if cut is None:
            cut = starts[first]
        for generation in tuple(self.open):
            generation.supersede(cut)
            self._keep(generation, cut)

    def _keep(self, generation: ViewGeneration, cut: int) -> None:
        start = max(cut - generation.keep_bytes, generation.first_valid)
        if generation.lost:
            start = max(start, generation.lost[-1][1])
        if start >= cut:
            return
        text = bytearray(cut - start)
        try:
            at_once(render_text, generation, start, text, 0, None)
        except BlockingIOError:
            # Mostly so, for sealed segments. The leases keep their files until `keep_pending`.
            segments = [extent.segment for extent in generation.past_from(start)]
            for segment in segments:
                segment.files.lease()
            self._pending.append((generation, start, cut, segments))
        except (StorageError, OSError):
            return
        else:
            generation.keep(start, bytes(text))

    @property
    def is_settled(self) -> bool:
        """Whether the background has nothing left to measure or to keep."""
        return not self.layout.end_unknown and not self._pending

    def keep_pending(self) -> None:
        """Read the text that `removing` and `swapped` could not read without waiting. Waits."""
        while (pending := self._next_pending()) is not None:
            generation, start, cut, segments = pending
            try:
                text = bytearray(cut - start)
                render_text(generation, start, text, 0, None)
                generation.keep(start, bytes(text))
            except (StorageError, OSError):
                pass  # a reader of this text gets the same error
            finally:
                for segment in segments:
                    segment.files.release()

    def _next_pending(self) -> tuple[ViewGeneration, int, int, list[Segment]] | None:
        """Take one out; two threads may ask at shutdown."""
        try:
            return self._pending.pop()
        except IndexError:
            return None

    def give_up_pending(self) -> None:
        """At shutdown: release the segments that `keep_pending` would have read."""
        while (pending := self._next_pending()) is not None:
            for segment in pending[3]:
                segment.files.release()
