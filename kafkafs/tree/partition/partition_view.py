"""One view of one partition: its line indexes, its timeline, and the generations that are open.

It follows the log (the listener's events, passed on by `partition.py`). Where nobody has looked at
the view yet it knows no text lengths, and keeps none up; the first who asks for a size or a byte
has them loaded or measured (`placed_view.py`).

Threads: as there; generations are made in any.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Sequence

from kafkafs.generations import Generation
from kafkafs.line_index import NEVER, LineStore, Piece
from kafkafs.line_index.encoded import takes_long
from kafkafs.tree.partition.placed_view import PlacedView, number_of
from kafkafs.tree.partition.text import render_text
from kafkafs.views import View
from storage.errors import StorageError
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.waiting import at_once, before_waiting

ViewGeneration = Generation[Piece]

_TRIES = 100
"""How often what has changed meanwhile is looked at again."""

OVERTAKEN_S = 60.0
"""How long names that were rewritten before they were measured are measured first."""

LOOK_S = 0.05
"""How long the owner's thread measures, at most, what another process is changing."""


class PartitionView(PlacedView):
    """See the module. `open` are the generations that somebody may read: they are told of every
    change of the past.
    """

    __slots__ = (
        "_active",
        "_bound_before",
        "_current",
        "_hidden_records",
        "_left",
        "_nonce",
        "_overtaken_until",
        "_pending",
        "open",
    )

    def __init__(
        self,
        log: Log,
        view: View,
        store: LineStore,
        cache: str | None,
        *,
        keeps_base: bool,
        stir: Callable[[], None],
    ) -> None:
        super().__init__(log, view, store, cache, keeps_base=keeps_base, stir=stir)
        self.open: dict[ViewGeneration, None] = {}
        self._active = self.timeline.pieces[-1]
        self._current: ViewGeneration | None = None
        self._hidden_records = 0
        # The history's, where it has become another since this view was made: as of the timeline.
        self._nonce: int | None = None
        # Pieces whose segments have left the log, until their files are gone.
        self._left: dict[Segment, Piece] = {}
        self._overtaken_until = 0.0
        # Up to where it showed the log when segments were about to be swapped.
        self._bound_before: int | None = None
        # Text to be kept before a cut that could not be had without waiting.
        self._pending: list[tuple[ViewGeneration, int, int, list[Segment]]] = []

    # -- what it shows now ---------------------------------------------------------------------

    @property
    def has_generation(self) -> bool:
        """Whether `generation` answers at once."""
        return self._current is not None

    def generation(self, until: float = NEVER) -> ViewGeneration:
        """The current generation, all of it measured.

        BlockingIOError, StorageError, OSError, as `prepare`.
        """
        while (current := self._current) is None:
            self.prepare(until)
            nonce, rewrites = self.nonce, self.timeline.rewrites
            position, hidden = self._log_start()
            with self.lock:
                # One that another thread has made meanwhile may be attached already.
                if self._current is None and self._ready and self._is_same(nonce, rewrites):
                    self._hidden_records = hidden
                    self._current = Generation(self.timeline, nonce, position)
                    self._begin_base(position)
        return current

    def generation_from(self, offset: int, until: float = NEVER) -> ViewGeneration:
        """One that begins with the first record from `offset` (≤ `bound`) on; as `generation`.

        Only the segment that holds that and those behind it are measured.
        """
        while True:
            self.prepare(until, offset)
            self.catch_up(until)
            nonce, rewrites = self.nonce, self.timeline.rewrites
            position = self.position(offset)
            with self.lock:
                if self._is_same(nonce, rewrites) and not self.behind:
                    return Generation(self.timeline, nonce, position)

    def following(self, until: float = NEVER) -> ViewGeneration:
        """One whose positions are those that are written down, and never move; as `generation`.

        It can be read from the base on, or from the log start on if that is behind it. Only what
        begins at the base is measured.
        """
        for _ in range(_TRIES):
            if self.base is None:
                self.generation(until)
            base, log_start = self.base, self.log.log_start_offset
            if base is None:
                continue
            self.prepare(until, base[0])
            self.settle(until)
            nonce, rewrites = self.nonce, self.timeline.rewrites
            position = self.position(max(base[0], log_start))
            with self.lock:
                same = self._is_same(nonce, rewrites) and self.base == base
                recorded = self.recorded
                if same and recorded is None:
                    # What positions were counted from is not there. That should not be.
                    self.log.history.begin_anew()
                elif same and recorded is not None and not self.behind:
                    return Generation(self.timeline, nonce, position, shift=-recorded, keeps=0)
        raise BlockingIOError(errno.EAGAIN, "the log's head changes all the time, try again")

    def overtaken(self) -> None:
        """Somebody has looked it up, and its past was rewritten before it was measured for him."""
        self._overtaken_until = time.monotonic() + OVERTAKEN_S

    @property
    def is_overtaken(self) -> bool:
        """Whether that was so a short while ago."""
        return time.monotonic() < self._overtaken_until

    @property
    def nonce(self) -> int:
        """Of the history that the timeline shows. The history's own follows when all views have."""
        return self.log.history.nonce if self._nonce is None else self._nonce

    def _begin_base(self, log_start: int) -> None:
        """Positions are written down from now on: the first record has 0. Under the lock."""
        if self.keeps_base and self.base is None:
            starts, pieces = self.timeline.placed
            number = number_of(pieces, self.log.log_start_offset)
            first = pieces[number].segment.base_offset
            self.log.history.set_base(self.view.name, first, starts[number] - log_start)

    def _is_same(self, nonce: int, rewrites: int) -> bool:
        """Whether the past is as it was. Under the lock."""
        return nonce == self.nonce and rewrites == self.timeline.rewrites

    def _log_start(self) -> tuple[int, int]:
        """(absolute position, records of all pieces before it) of the log start."""
        offset = self.log.log_start_offset
        piece, start = self._placed_at(offset)
        records = 0
        for before in self.timeline.placed[1]:
            if before is piece:
                break
            records += before.records
        if piece.segment.base_offset >= offset:
            return start, records
        before_waiting()
        text, inside = piece.text_before(offset)
        return start + text, records + inside

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
        """Somebody may read a generation from now on; False where that is over, and he cannot."""
        with self.lock:
            if generation.is_current:
                self.open[generation] = None
            return generation in self.open

    def detach(self, generation: ViewGeneration) -> None:
        """Nobody reads it any longer."""
        self.open.pop(generation, None)

    # -- what the log tells --------------------------------------------------------------------

    def appended(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """The active segment has grown."""
        slow = self.view.is_text and takes_long(data)
        if self._ready and not self.behind and not slow:
            # Nobody else places anything now, so the lock is not needed.
            active = self._active
            active.append(position, data)
            self.timeline.end = self.timeline.placed[0][-1] + active.text_length
            return
        with self.lock:
            starts = self.timeline.placed[0]
            self._slow = self._slow or slow
            if slow and starts:
                self.behind = True
            if self.behind or slow:
                # Who asks for it, or `catch_up` in the background, finds it.
                return
            # Where a worker thread is measuring it finds these too: do not wait for it.
            self._active.append(position, data, blocking=bool(starts))
            if starts:
                self.timeline.end = starts[-1] + self._active.text_length

    def stabilized(self) -> None:
        """The last stable offset has passed what was held back: measure it now if it is little."""
        if self.timeline.placed[1]:
            self.behind = True
            # Where this fails, who asks next does it in a worker thread, and is told what is wrong.
            with contextlib.suppress(StorageError, OSError):
                at_once(self.catch_up)

    def rolled(self, active: Segment) -> None:
        """The active segment is sealed, and `active` follows it."""
        at_once(self._active.seal)
        with self.lock:
            self._active = self._piece(active)
            self.timeline.extend(self._active)

    def name_later_base(self) -> None:
        """Have the last segment written down too, in case another program deletes the others."""
        starts, pieces = self.timeline.placed
        recorded = self.recorded
        if recorded is None or self.behind:
            return
        if all(piece.covered == piece.segment.size for piece in pieces[:-1]):
            last = pieces[-1].segment.base_offset
            self.log.history.set_later(self.view.name, last, starts[-1] + recorded)

    # -- what becomes of the past. Who calls these holds the lock. -------------------------------

    def removing(self, count: int, nonce: int | None) -> None:
        """The first `count` segments are about to leave the log; its history is a new one."""
        self._supersede(count, nonce)
        for piece in self.timeline.pieces[:count]:
            self._leave(piece)
        self.timeline.remove_head(count)

    def swapping(self) -> None:
        """Segments are about to be swapped. Needs no lock."""
        self._bound_before = self.bound

    def swapped(self, count: int, segments: Sequence[Segment], nonce: int | None) -> None:
        """`segments` have taken the place of the first `count`; those of them that stay, stay.

        Where it had not shown all of those, its text goes on with what these have of the rest.
        """
        pieces = self.timeline.pieces
        old = {piece.segment: piece for piece in pieces[:count]}
        unshown = self.unshown(count)
        self._bound_before = None
        self._supersede(count, nonce, None if unshown is None else self.timeline.end)
        for segment in old.keys() - set(segments):
            self._leave(old[segment])
        new = [old.get(segment) or self._piece(segment) for segment in segments]
        if unshown is None:
            self.timeline.replace_head(count, new)
        else:
            # Nothing was shown of what comes behind them either.
            self.timeline.replace_head(len(pieces), [*new, *pieces[count:]])
            self._anchor = unshown
            self.behind = False
        self._ready = False

    def unshown(self, count: int) -> int | None:
        """From which offset on the first `count` segments were not shown to who saw what comes
        before that; None where all of them were, or none is placed. Under the lock.

        Another process may clean what nobody could read yet.
        """
        if not self.log.read_only:
            return None
        pieces = self.timeline.pieces
        bound = self.bound if self._bound_before is None else self._bound_before
        for number in range(len(self.timeline.unplaced), count):
            segment = pieces[number].segment
            following = pieces[number + 1].segment.base_offset
            if pieces[number].covered < segment.size:
                is_inside = segment.base_offset <= bound < following
                # Where it could not be read to the bound some of it is shown again.
                return bound if is_inside and not self.behind else segment.base_offset
            if segment.next_offset < following:
                return segment.next_offset
        return None

    def truncated(
        self, first: Segment, segments: Sequence[Segment], offset: int, nonce: int | None
    ) -> None:
        """Another process has cut the log, from `offset` in the segment `first` on.

        What is left is laid so that it ends where the log had ended: older generations show what
        comes behind that, after what they have lost.
        """
        pieces = self.timeline.pieces
        starts, placed = self.timeline.placed
        self._is_over(nonce)
        stay = {piece.segment: piece for piece in pieces}
        replacing = next(segment for segment in segments if segment not in stay)
        leaving = stay.keys() - set(segments)
        kept = 0
        if first.base_offset == replacing.base_offset and (stay[first] in placed or self.open):
            kept = self._text_before(stay[first], offset)
        if placed:
            lost = starts[0]
            for piece, start in zip(placed, starts, strict=True):
                if piece.segment is first:
                    lost = start + kept
            for generation in tuple(self.open):
                generation.lose(lost)
        for generation in tuple(self.open):
            # What was cut before, and is not placed since, is its own: that may be cut again.
            for place, piece, start in generation.past:
                if piece.segment in leaving:
                    inside = kept if piece.segment is first else 0
                    generation.lose(max(start + inside, place))
                    break
        for segment in leaving:
            self._leave(stay[segment])
        new = [stay.get(segment) or self._piece(segment) for segment in segments]
        self.timeline.replace_head(len(pieces), new)
        cut = offset if kept else replacing.base_offset
        if placed or (self._anchor is not None and cut < self._anchor):
            self._anchor = cut
        self._active = new[-1]
        self._ready = self.behind = False

    def _is_over(self, nonce: int | None) -> None:
        """The current generation is: its history has another nonce, unless nobody has looked."""
        self._current = None
        if nonce is not None:
            self._nonce = nonce

    def removed(self, segment: Segment) -> None:
        """The files of a segment are gone: who shows it still can read it no longer."""
        for generation in tuple(self.open):
            generation.forget(lambda piece: piece.segment is segment)
        piece = self._left.pop(segment, None)
        if piece is not None:
            piece.vanish()

    def vanish(self) -> None:
        """The files of all segments are gone, those of the timeline too."""
        for piece in self.timeline.pieces:
            piece.vanish()

    @staticmethod
    def _text_before(piece: Piece, offset: int) -> int:
        """Bytes of text; 0 where that cannot be found out: readers then see some of it twice."""
        try:
            if not piece.covered:
                # Nobody has asked for what begins before it.
                piece.measure(time.monotonic() + LOOK_S)
            return piece.text_before(offset)[0]
        except (StorageError, OSError):
            return 0

    def _leave(self, piece: Piece) -> None:
        piece.leave()
        self._left[piece.segment] = piece

    # -- what older generations keep -----------------------------------------------------------

    def _supersede(self, count: int, nonce: int | None, cut: int | None = None) -> None:
        """The current one ends with the first `count` pieces, or at `cut`. Under the lock."""
        self._is_over(nonce)
        starts = self.timeline.placed[0]
        first = count - len(self.timeline.unplaced)
        if not starts or first < 0:
            return
        if cut is None:
            cut = starts[first]
        for generation in tuple(self.open):
            generation.supersede(cut)
            self._keep(generation, cut)

    def _keep(self, generation: ViewGeneration, cut: int) -> None:
        start = max(cut - generation.keeps, generation.first_valid)
        if generation.lost:
            start = max(start, generation.lost[-1][1])
        if start >= cut:
            return
        text = bytearray(cut - start)
        try:
            at_once(render_text, generation, start, text, 0, None)
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

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is left to be measured or kept in the background."""
        return not self.behind and not self._pending

    def keep_pending(self) -> None:
        """Read what `removing` and `swapped` could not without waiting. Waits."""
        while (pending := self._next_pending()) is not None:
            generation, start, cut, segments = pending
            try:
                text = bytearray(cut - start)
                render_text(generation, start, text, 0, None)
                generation.keep(start, bytes(text))
            except (StorageError, OSError):
                # The reader whom it is for gets the same error.
                pass
            finally:
                for segment in segments:
                    segment.release()

    def _next_pending(self) -> tuple[ViewGeneration, int, int, list[Segment]] | None:
        """One that nobody else gets: at the end two threads may ask."""
        try:
            return self._pending.pop()
        except IndexError:
            return None

    def give_up_pending(self) -> None:
        """At the end: let go of the segments that `keep_pending` would have read."""
        while (pending := self._next_pending()) is not None:
            for segment in pending[3]:
                segment.release()

    # -- saving --------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Bytes of log whose index entries are in memory only."""
        return self._active.unsaved if self._active.loaded else 0

    def save(self) -> None:
        """Save the active segment's index; where the disk refuses, another time."""
        at_once(self._active.save)
