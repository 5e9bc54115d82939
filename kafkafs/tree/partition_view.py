"""One view of one partition: its line indexes, its timeline, and the generations that are open.

It follows the log (the listener's events, passed on by `partition.py`). Where nobody has looked at
the view yet it knows no text lengths, and keeps none up; the first who asks for a size or a byte
has them loaded or measured (`generation`).

What lies behind the last stable offset is no text yet. When that offset passes it the view is
`behind` until it is measured (`catch_up`), and no size is told before.

Threads: the owner's thread changes it; a worker thread may measure (`generation` with wait), and
then places what it measured under the lock that the owner's changes take too.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Sequence

from kafkafs.generations import KEPT, Generation, Timeline
from kafkafs.line_index import NEVER, LineStore, Piece, SegmentBatches, SegmentLines
from kafkafs.line_index.encoded import takes_long
from kafkafs.tree.text import render_text
from kafkafs.views import View
from kafkafs.views.batches import Batches
from storage.errors import StorageError
from storage.log import Log
from storage.segment import Segment

ViewGeneration = Generation[Piece]

CATCH_UP_AT_ONCE = 1 << 20
"""Bytes of log that a transaction's end may have measured on the owner's thread."""


class PartitionView:
    """See the module. `open` are the generations whose inodes the kernel knows."""

    __slots__ = (
        "_active",
        "_cache",
        "_current",
        "_hidden_records",
        "_left",
        "_lock",
        "_pending",
        "_preparing",
        "_ready",
        "_slow",
        "_store",
        "behind",
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
        self.timeline = Timeline([self._piece(segment) for segment in log.segments])
        self.open: dict[ViewGeneration, None] = {}
        self._active = self.timeline.pieces[-1]
        self._current: ViewGeneration | None = None
        self._hidden_records = 0
        # Pieces whose segments have left the log, until their files are gone.
        self._left: dict[Segment, SegmentLines] = {}
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        # Whether all pieces are measured and placed.
        self._ready = False
        self.behind = False
        # Whether what is not measured may take long to be decoded, however little it is.
        self._slow = True
        # Text to be kept before a cut that could not be had without waiting.
        self._pending: list[tuple[ViewGeneration, int, int, list[Segment]]] = []

    def _piece(self, segment: Segment) -> Piece:
        if isinstance(self.view, Batches):
            return SegmentBatches(segment)
        is_aborted = self.log.is_aborted if self.view.committed else None
        return SegmentLines(self._store, segment, self.view, is_aborted, self._cache)

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
        self, pieces: Sequence[Piece], starts: Sequence[int], wait: bool
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
            if not all(piece.complete for piece in self.timeline.pieces):
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
                    # An open transaction may have ended in any of them meanwhile. Once it is ready
                    # the owner places without the lock.
                    complete = all(piece.complete for piece in pieces)
                    if complete and self.timeline.pieces == pieces and not self._is_ready():
                        self._place()
        finally:
            self._preparing.release()

    def catch_up(self, wait: bool, until: float = NEVER) -> None:
        """Measure what the last stable offset has passed; as `generation`."""
        while self.behind:
            pieces = self.timeline.pieces
            unmeasured = [piece for piece in pieces if not piece.complete]
            if unmeasured and not wait:
                left = sum(piece.segment.size - piece.covered for piece in unmeasured)
                if self._slow or left > CATCH_UP_AT_ONCE:
                    raise BlockingIOError
            for piece in unmeasured:
                self._measure(piece, until)
            with self._lock:
                if not self._is_behind():
                    # Another thread has done it, and the owner goes on without the lock.
                    return
                if self.timeline.pieces == pieces and all(piece.complete for piece in pieces):
                    self.timeline.settle()
                    self.behind = False
                    # What is held back still may be what is slow.
                    held = any(piece.covered < piece.segment.size for piece in pieces)
                    self._slow = self._slow and held

    def _is_ready(self) -> bool:
        """`_ready`, by now: the type checker knows of no other threads."""
        return self._ready

    def _is_behind(self) -> bool:
        return self.behind

    def _measure(self, piece: Piece, until: float) -> None:
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

    def piece_of(self, segment: Segment) -> Piece | None:
        """What it knows of one of the log's segments."""
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
        slow = not isinstance(self.view, Batches) and takes_long(data)
        if self._ready and not self.behind and not slow:
            # Nobody else places anything now, so the lock is not needed.
            active = self._active
            active.append(position, data)
            self.timeline.end = self.timeline.placed[0][-1] + active.text_length
            return
        with self._lock:
            self._slow = self._slow or slow
            if slow and self._ready:
                self.behind = True
            if self.behind or slow:
                # Who asks for it, or `catch_up` in the background, finds it.
                return
            # Where a worker thread is measuring it finds these too: do not wait for it.
            self._active.append(position, data, wait=self._ready)
            starts = self.timeline.placed[0]
            if starts:
                self.timeline.end = starts[-1] + self._active.text_length

    def stabilized(self) -> None:
        """The last stable offset has passed what was held back: measure it now if it is little."""
        if self._ready:
            self.behind = True
            # Where this fails, who asks next does it in a worker thread, and is told what is wrong.
            with contextlib.suppress(StorageError, OSError):
                self.catch_up(False)

    def rolled(self, active: Segment) -> None:
        """The active segment is sealed, and `active` follows it."""
        self._active.seal()
        with self._lock:
            self._active = self._piece(active)
            self.timeline.extend(self._active)

    def removing(self, count: int) -> None:
        """The first `count` segments are about to leave the log; its history is a new one."""
        with self._lock:
            self._supersede(count)
            for piece in self.timeline.pieces[:count]:
                self._leave(piece)
            self.timeline.remove_head(count)
            if self.timeline.placed[1]:
                self._set_base()

    def swapped(self, count: int, segments: Sequence[Segment]) -> None:
        """`segments` have taken the place of the first `count`; those of them that stay, stay."""
        with self._lock:
            old = {piece.segment: piece for piece in self.timeline.pieces[:count]}
            self._supersede(count)
            for segment in old.keys() - set(segments):
                self._leave(old[segment])
            new = [old.get(segment) or self._piece(segment) for segment in segments]
            self.timeline.replace_head(count, new)
            self._ready = False
            if self.timeline.placed[1]:
                self._set_base()

    def truncated(self, first: Segment, segments: Sequence[Segment], offset: int) -> None:
        """Another process has cut the log, from `offset` in the segment `first` on.

        What is left is laid so that it ends where the log had ended: older generations show what
        comes behind that, after what they have lost.
        """
        with self._lock:
            pieces = self.timeline.pieces
            starts, placed = self.timeline.placed
            self._current = None
            stay = {piece.segment: piece for piece in pieces}
            replacing = next(segment for segment in segments if segment not in stay)
            kept = 0
            if placed:
                lost = starts[0]
                for piece, start in zip(placed, starts, strict=True):
                    if piece.segment is first:
                        kept = self._text_before(piece, offset)
                        lost = start + kept
                for generation in tuple(self.open):
                    generation.lose(lost)
            for segment in stay.keys() - set(segments):
                self._leave(stay[segment])
            new = [stay.get(segment) or self._piece(segment) for segment in segments]
            self.timeline.replace_head(len(pieces), new)
            if placed:
                position = self.timeline.end - kept
                self.log.history.set_base(self.view.name, replacing.base_offset, position)
            self._active = new[-1]
            self._ready = self.behind = False

    def anchored_in(self, segments: Sequence[Segment]) -> bool:
        """Whether the absolute base that is written down is the start of one of these."""
        base = self.log.history.base(self.view.name)[0]
        return any(segment.base_offset == base for segment in segments)

    def removed(self, segment: Segment) -> None:
        """The files of a segment are gone: who shows it still can read it no longer."""
        for generation in tuple(self.open):
            generation.forget(lambda piece: piece.segment is segment)
        piece = self._left.pop(segment, None)
        if piece is not None:
            piece.vanish()

    @staticmethod
    def _text_before(piece: Piece, offset: int) -> int:
        """Bytes of text; 0 where that cannot be found out: readers then see some of it twice."""
        try:
            return piece.text_before(offset)[0]
        except (StorageError, OSError):
            return 0

    def _leave(self, piece: Piece) -> None:
        if isinstance(piece, SegmentLines):
            piece.leave()
            self._left[piece.segment] = piece

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
        if generation.lost:
            start = max(start, generation.lost[-1][1])
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
