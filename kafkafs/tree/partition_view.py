"""One view of one partition: its line indexes, its timeline, and the generations that are open.

It follows the log (the listener's events, passed on by `partition.py`). Where nobody has looked at
the view yet it knows no text lengths, and keeps none up; the first who asks for a size or a byte
has them loaded or measured (`generation`).

Threads: the owner's thread changes it; a worker thread may measure (`generation` with wait), and
then places what it measured under the lock that the owner's changes take too.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence

from kafkafs.generations import KEPT, Generation, Timeline
from kafkafs.line_index import NEVER, LineStore, SegmentLines
from kafkafs.tree.text import render_text
from kafkafs.views import View
from storage.errors import StorageError
from storage.log import Log
from storage.segment import Segment

ViewGeneration = Generation[SegmentLines]


class PartitionView:
    """See the module. `open` are the generations whose inodes the kernel knows."""

    __slots__ = (
        "_active",
        "_cache",
        "_current",
        "_hidden_records",
        "_lock",
        "_pending",
        "_preparing",
        "_ready",
        "_store",
        "log",
        "open",
        "timeline",
        "view",
    )

    def __init__(self, log: Log, view: View, store: LineStore, cache: str | None) -> None:
        self.log = log
        self.view = view
        self._store = store
        self._cache = cache
        self.timeline = Timeline([self._lines(segment) for segment in log.segments])
        self.open: dict[ViewGeneration, None] = {}
        self._active = self.timeline.pieces[-1]
        self._current: ViewGeneration | None = None
        self._hidden_records = 0
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        # Whether all pieces are measured and placed.
        self._ready = False
        # Text to be kept before a cut that could not be had without waiting.
        self._pending: list[tuple[ViewGeneration, int, int, list[Segment]]] = []

    def _lines(self, segment: Segment) -> SegmentLines:
        return SegmentLines(self._store, segment, self.view, self._cache)

    # -- what it shows now ---------------------------------------------------------------------

    def generation(self, wait: bool, until: float = NEVER) -> ViewGeneration:
        """The current generation, all of it measured.

        BlockingIOError where that has to wait and may not, or when `until` (time.monotonic) is
        reached: what is measured by then is kept. StorageError, OSError.
        """
        while (current := self._current) is None:
            self.prepare(wait, until)
            nonce = self.log.history.nonce
            starts, pieces = self.timeline.placed
            position, hidden = self._log_start(pieces, starts, wait)
            with self._lock:
                if self._ready and nonce == self.log.history.nonce:
                    self._hidden_records = hidden
                    self._current = Generation(self.timeline, nonce, position)
        return current

    def _log_start(
        self, pieces: Sequence[SegmentLines], starts: Sequence[int], wait: bool
    ) -> tuple[int, int]:
        """(absolute position, records of these pieces before it) of the log start."""
        offset = self.log.log_start_offset
        number = 0
        while pieces[number].segment.next_offset <= offset and number < len(pieces) - 1:
            number += 1
        piece, start = pieces[number], starts[number]
        records = sum(before.records for before in pieces[:number])
        if piece.segment.base_offset >= offset:
            return start, records
        if not wait:
            raise BlockingIOError
        text, inside = piece.text_before(offset)
        return start + text, records + inside

    def prepare(self, wait: bool = True, until: float = NEVER) -> None:
        """Measure and place every piece; as `generation`."""
        if self._ready:
            return
        if not wait:
            if any(piece.segment.size for piece in self.timeline.pieces):
                raise BlockingIOError
            with self._lock:
                self._place()
            return
        timeout = -1.0 if until == NEVER else max(until - time.monotonic(), 0)
        if not self._preparing.acquire(timeout=timeout):
            raise self._still_measuring()
        try:
            while not self._ready:
                pieces = self.timeline.pieces
                for piece in pieces:
                    if not piece.complete:
                        self._measure(piece, until)
                with self._lock:
                    if self.timeline.pieces == pieces and pieces[-1].complete:
                        self._place()
        finally:
            self._preparing.release()

    def _measure(self, piece: SegmentLines, until: float) -> None:
        try:
            piece.measure(until)
        except BlockingIOError:
            raise self._still_measuring() from None

    def _still_measuring(self) -> BlockingIOError:
        measured = sum(piece.covered for piece in self.timeline.pieces)
        reason = f"measured {measured} of {self.log.size} bytes so far, try again"
        return BlockingIOError(errno.EAGAIN, reason)

    def _place(self) -> None:
        """Everything is measured: find the absolute positions. Under the lock."""
        pieces = self.timeline.pieces
        base, position = self.log.history.base(self.view.name)
        numbers = [n for n, piece in enumerate(pieces) if piece.segment.base_offset == base]
        if numbers or self.timeline.placed[1]:
            self.timeline.place(numbers[0] if numbers else 0, position)
        else:
            self.timeline.place()
            self._set_base()
        self._ready = True

    def _set_base(self) -> None:
        """Write down where the first placed piece begins."""
        starts, pieces = self.timeline.placed
        self.log.history.set_base(self.view.name, pieces[0].segment.base_offset, starts[0])

    @property
    def records(self) -> int:
        """Records that the current generation shows; it must have been asked for."""
        return sum(piece.records for piece in self.timeline.pieces) - self._hidden_records

    def lines_of(self, segment: Segment) -> SegmentLines | None:
        """The line index of one of the log's segments."""
        for piece in self.timeline.pieces:
            if piece.segment is segment:
                return piece
        return None

    def attach(self, generation: ViewGeneration) -> bool:
        """The kernel knows the inode of a generation; False where that is not the current one."""
        with self._lock:
            if generation is self._current:
                self.open[generation] = None
            return generation in self.open

    def detach(self, generation: ViewGeneration) -> None:
        """The kernel has forgotten the inode."""
        self.open.pop(generation, None)

    # -- what the log tells --------------------------------------------------------------------

    def appended(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """The active segment has grown."""
        if self._ready:
            # Nobody else places anything now, so the lock is not needed.
            active = self._active
            active.append(position, data)
            self.timeline.end = self.timeline.placed[0][-1] + active.text_length
            return
        with self._lock:
            self._active.append(position, data)
            starts = self.timeline.placed[0]
            if starts:
                self.timeline.end = starts[-1] + self._active.text_length

    def rolled(self, active: Segment) -> None:
        """The active segment is sealed, and `active` follows it."""
        self._active.seal()
        with self._lock:
            self._active = self._lines(active)
            self.timeline.extend(self._active)

    def removing(self, count: int) -> None:
        """The first `count` segments are about to leave the log; its history is a new one."""
        with self._lock:
            self._supersede(count)
            self.timeline.remove_head(count)
            if self.timeline.placed[1]:
                self._set_base()

    def swapped(self, count: int, segments: Sequence[Segment]) -> None:
        """`segments` have taken the place of the first `count`; those of them that stay, stay."""
        with self._lock:
            old = {piece.segment: piece for piece in self.timeline.pieces[:count]}
            self._supersede(count)
            new = [old.get(segment) or self._lines(segment) for segment in segments]
            self.timeline.replace_head(count, new)
            self._ready = False
            if self.timeline.placed[1]:
                self._set_base()

    def anchored_in(self, segments: Sequence[Segment]) -> bool:
        """Whether the absolute base that is written down is the start of one of these."""
        base = self.log.history.base(self.view.name)[0]
        return any(segment.base_offset == base for segment in segments)

    def removed(self, segment: Segment) -> None:
        """The files of a segment are gone: who shows it still can read it no longer."""
        for generation in tuple(self.open):
            generation.forget(lambda piece: piece.segment is segment)

    # -- what older generations keep -----------------------------------------------------------

    def _supersede(self, count: int) -> None:
        """The current generation ends with the first `count` pieces. Under the lock."""
        self._current = None
        starts = self.timeline.placed[0]
        first = count - len(self.timeline.unplaced)
        if not starts or first < 0:
            return
        cut = starts[first]
        for generation in tuple(self.open):
            generation.supersede(cut)
            self._keep(generation, cut)

    def _keep(self, generation: ViewGeneration, cut: int) -> None:
        start = max(cut - KEPT, generation.first_valid)
        if start >= cut:
            return
        text = bytearray(cut - start)
        try:
            render_text(generation, start, text, 0, None, wait=False)
        except BlockingIOError:
            # As most often: it is of sealed segments. Their files stay until `keep_pending`.
            segments = [piece.segment for piece in generation.past_from(start)]
            for segment in segments:
                segment.lease()
            self._pending.append((generation, start, cut, segments))
        except (StorageError, OSError):
            return
        else:
            generation.keep(start, bytes(text))

    def keep_pending(self) -> None:
        """Read what `removing` and `swapped` could not without waiting. Waits."""
        while self._pending:
            generation, start, cut, segments = self._pending.pop()
            try:
                text = bytearray(cut - start)
                render_text(generation, start, text, 0, None, wait=True)
                generation.keep(start, bytes(text))
            except (StorageError, OSError):
                # The reader whom it is for gets the same error.
                pass
            finally:
                for segment in segments:
                    segment.release()

    def give_up_pending(self) -> None:
        """At the end: let go of the segments that `keep_pending` would have read."""
        while self._pending:
            for segment in self._pending.pop()[3]:
                segment.release()

    # -- saving --------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Bytes of log whose index entries are in memory only."""
        return self._active.unsaved if self._active.loaded else 0

    def save(self) -> None:
        """Save the active segment's index; where the disk refuses, another time."""
        self._active.save()
