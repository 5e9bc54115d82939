"""Generations: what an inode shows of a partition's history, in one view.

**Absolute positions** count the text of a view over all of a partition's life. They are signed,
never reset while the partition lives, and no text ever moves to another one. A `Timeline` says
which segment's text (an *extent*) lies where now.

A **generation** is what one inode shows: its own position p is the absolute position p + `origin`.
It begins at the log start, or at a record behind that; that of `.follow` counts from where all
counting began, and can be read from the first byte on that is as it was. What rewrites history
makes a new generation; older ones that are still open go on growing with the log, and read what
they had:

- Where segments leave the head, an older generation keeps their extents (`past`).
- Where a prefix is swapped for cleaned segments, those are laid before the first byte that was not
  cleaned, ending there, so that nothing behind it moves; an older generation keeps the old extents
  before that place (its `cut`), and follows the timeline from there on. Where another process has
  swapped what was not shown yet, the first record that was not is laid there, perhaps inside of a
  cleaned segment.
- When the files of a past extent are gone, `first_valid` rises to its end. Reading below it is
  SegmentGone (ESTALE), but for the last text before a cut, which is kept in memory: the kernel
  reads whole pages.

Pure: no file, clock or thread. Extents are anything with a length of text.

Invariants: the starts of a timeline's extents rise by their lengths; first_valid ≤ end.
Not here: rendering (`tree.partition.text`), inode numbers, who is open (`partition_view`).
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from storage.errors import SegmentGone

KEPT = 1 << 20
"""Bytes of text that are kept before a cut."""


class Extent(Protocol):
    """The text of one segment."""

    @property
    def text_length(self) -> int: ...


P = TypeVar("P", bound=Extent)


class Timeline(Generic[P]):
    """Where the extents of a log lie, as far as that is known.

    `unpositioned` are its first extents, whose lengths nobody has asked for yet; `positioned` the
    others, with their starts: one tuple, replaced as a whole, so that any thread may read it.
    `rewrites` counts how often its past has changed.
    """

    __slots__ = ("end", "positioned", "rewrites", "unpositioned")

    def __init__(self, extents: Sequence[P]) -> None:
        self.unpositioned: tuple[P, ...] = tuple(extents)
        self.positioned: tuple[tuple[int, ...], tuple[P, ...]] = ((), ())
        self.end = 0
        self.rewrites = 0

    @property
    def extents(self) -> tuple[P, ...]:
        return self.unpositioned + self.positioned[1]

    def position(self, first: int = 0, known: int = 0, position: int = 0) -> None:
        """The lengths from extent number `first` on are known: find where those extents begin.

        Where none is positioned yet, extent number `known`, not before `first`, begins at
        `position`.
        A positioned extent may have grown, as for `grow`: it is measured before anybody is told.
        """
        starts, positioned = self.positioned
        extents = self.unpositioned + positioned
        if positioned:
            known, position = len(self.unpositioned), starts[0]
        assert first <= known
        before: list[int] = []
        at = position
        for extent in reversed(extents[first:known]):
            at -= extent.text_length
            before.append(at)
        after = []
        at = position
        for extent in extents[known:]:
            after.append(at)
            at += extent.text_length
        assert all(map(operator.ge, after, starts)), "the text of a positioned extent has gone"
        self.positioned = ((*reversed(before), *after), extents[first:])
        self.unpositioned = extents[:first]
        self.end = at

    def extend(self, extent: P) -> None:
        """The log has rolled: an extent without text yet comes at the end."""
        starts, extents = self.positioned
        if extents:
            self.positioned = ((*starts, self.end), (*extents, extent))
        else:
            self.unpositioned = (*self.unpositioned, extent)

    def remove_head(self, count: int) -> None:
        """The first `count` extents have left the log."""
        self.replace_head(count, ())

    def replace_head(self, count: int, extents: Sequence[P]) -> None:
        """Unmeasured `extents` take the place of the first `count`, before the first one left."""
        starts, positioned = self.positioned
        self.rewrites += 1
        left = max(count - len(self.unpositioned), 0)
        self.positioned = (starts[left:], positioned[left:])
        self.unpositioned = (*extents, *self.unpositioned[count:])

    def grow(self) -> None:
        """A positioned extent has grown, and those behind it, which had no text yet: find where
        they begin.

        No text moves: what had no position before is behind what had one.
        """
        starts, extents = self.positioned
        moved = list(starts)
        for number in range(1, len(extents)):
            moved[number] = moved[number - 1] + extents[number - 1].text_length
        self.positioned = (tuple(moved), extents)
        if extents:
            self.end = moved[-1] + extents[-1].text_length

    def locate(self, absolute: int) -> tuple[P, int]:
        """The extent that holds a position, and where it begins."""
        starts, extents = self.positioned
        number = bisect_right(starts, absolute) - 1
        return extents[number], starts[number]


class Generation(Generic[P]):
    """What one inode shows. `nonce` is the history's when this was the current one."""

    __slots__ = (
        "_cut",
        "_kept",
        "_made",
        "_past",
        "first_valid",
        "keeps",
        "lost",
        "nonce",
        "origin",
        "timeline",
    )

    def __init__(
        self,
        timeline: Timeline[P],
        nonce: int,
        start: int,
        *,
        origin: int | None = None,
        keeps: int | None = None,
    ) -> None:
        """`start`: the absolute position from which on it can be read; its own positions count
        from `origin`, or from there. `keeps`: how much text is kept in memory before a cut.
        """
        self.timeline = timeline
        self.nonce = nonce
        self.origin = start if origin is None else origin
        self.first_valid = start
        self.keeps = KEPT if keeps is None else keeps
        self._made = timeline.rewrites
        # Below `_cut` this generation reads extents of its own; the timeline's are another history.
        self._cut = start
        # From where on each is read, the extents, and where each begins: that may be before, where
        # another process has cut the log inside of it.
        self._past: tuple[tuple[int, ...], tuple[P, ...], tuple[int, ...]] = ((), (), ())
        # From where to where text has been cut off by another process, rising.
        self.lost: tuple[tuple[int, int], ...] = ()
        # (absolute position, text) of what is kept before cuts.
        self._kept: tuple[tuple[int, bytes], ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it shows, those that are gone included."""
        return self.timeline.end - self.origin

    @property
    def is_current(self) -> bool:
        """Whether the timeline's past is as it was when this was made."""
        return self._made == self.timeline.rewrites

    @property
    def is_whole(self) -> bool:
        """Whether all that it shows still is the timeline's, however often that has changed.

        It must have been told of each change.
        """
        return not self._past[1] and not self.lost and self.first_valid == self.origin

    def locate(self, absolute: int) -> tuple[P, int]:
        """The extent that holds a position, first_valid ≤ it < end, and where the extent begins."""
        if absolute < self._cut:
            places, extents, starts = self._past
            number = bisect_right(places, absolute) - 1
            if number < 0:
                raise SegmentGone("these bytes have been deleted")
            return extents[number], starts[number]
        return self.timeline.locate(absolute)

    def goes_on_inside(self, absolute: int) -> bool:
        """Whether what comes here may be in the middle of an extent, unlike what is before it."""
        return absolute == self._cut or absolute in self._past[0]

    def kept(self, absolute: int, size: int) -> bytes:
        """What is still in memory from `absolute` (< first_valid) on: at most `size` bytes.

        It ends at first_valid or behind it. SegmentGone where that is not kept.
        """
        end = absolute + size
        at = absolute
        text = b""
        while at < end and at < self.first_valid:
            for start, before_cut in self._kept:
                if start <= at < start + len(before_cut):
                    text += before_cut[at - start : end - start]
                    at = absolute + len(text)
                    break
            else:
                raise SegmentGone("these bytes have been deleted or rewritten")
        return text

    def keep(self, start: int, text: bytes) -> None:
        """Hold this text, from absolute position `start` to a cut, when its segments are gone.

        Where it is short of `keeps` because what lies before it is gone already, it goes on into
        what was kept of that: many small segments may lie on one page of the kernel.
        """
        missing = self.keeps - len(text)
        for before, kept in self._kept:
            if missing > 0 and before < start <= before + len(kept):
                first = max(start - missing, before)
                text = kept[first - before : start - before] + text
                start = first
                break
        self._kept = (*self._kept, (start, text))

    def supersede(self, cut: int) -> None:
        """The timeline below `cut`, the start of one of its extents, is about to change."""
        starts, extents = self.timeline.positioned
        first = max(bisect_right(starts, self._cut) - 1, 0)
        last = bisect_left(starts, cut)
        if first < last:
            places, old_extents, old_starts = self._past
            new = starts[first:last]
            # What it has of its own ends at `_cut`. The timeline's extent `first` begins there, or
            # before: at a log start, or where a log was cut.
            place = max(new[0], self._cut) if old_extents else new[0]
            self._past = (
                (*places, place, *new[1:]),
                old_extents + extents[first:last],
                old_starts + new,
            )
        self._cut = max(self._cut, cut)

    def lose(self, position: int) -> None:
        """The timeline's text from `position` on is cut off; another's will come behind it."""
        end = self.timeline.end
        self.supersede(end)
        kept = tuple((start, to) for start, to in self.lost if to <= position)
        if len(kept) < len(self.lost):
            position = min(position, self.lost[len(kept)][0])
        if position < end:
            self.lost = (*kept, (position, end))

    @property
    def past(self) -> list[tuple[int, P, int]]:
        """Its own extents: from where on each is read, the extent, and where it begins."""
        return list(zip(*self._past, strict=True))

    def past_from(self, absolute: int) -> tuple[P, ...]:
        """Its own extents that hold text from a position on."""
        places, extents, _ = self._past
        return extents[max(bisect_right(places, absolute) - 1, 0) :]

    def forget(self, gone: Callable[[P], bool]) -> bool:
        """Drop the past up to the last extent that is `gone`; whether there was any."""
        places, extents, starts = self._past
        for number in reversed(range(len(extents))):
            if gone(extents[number]):
                rest = slice(number + 1, None)
                self.first_valid = max(self.first_valid, (*places, self._cut)[number + 1])
                self._past = (places[rest], extents[rest], starts[rest])
                self._kept = tuple(
                    (start, text)
                    for start, text in self._kept
                    if start + len(text) >= self.first_valid
                )
                return True
        return False
