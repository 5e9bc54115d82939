"""Generations: what an inode shows of a partition's history, in one view.

**Absolute positions** count the text of a view over all of a partition's life. They are signed,
never reset while the partition lives, and no text ever moves to another one. A `Timeline` says
which segment's text (an *extent*) lies where now.

A **generation** is what one inode shows: byte p of the file is the absolute position p + `origin`.
It begins at the log start, or at a later record. `.follow` counts from the first byte that was ever
counted, and shows the bytes that have not changed since. A change of the past begins a new
generation; an older one that is still open grows with the log, and reads what it showed before:

- Segments leave the head of the log: an older generation keeps their extents (`past`).
- Cleaned segments replace the first segments: the timeline places them so that they end where the
  first byte that was not cleaned begins, and nothing after it moves. An older generation keeps the
  old extents before that position (its `cut`) and reads the timeline from there on. Where another
  process has replaced text that was not shown yet, the first record that was not shown begins at
  the cut, perhaps inside of a cleaned segment.
- The files of a past extent are deleted: `first_valid` rises to the extent's end. Reading below it
  raises SegmentGone (ESTALE), except for the last text before a cut, which stays in memory because
  the kernel reads whole pages.

Pure: no file, clock or thread. An extent is anything with a length of text.

Invariants: each extent of a timeline starts where the one before it ends; first_valid ≤ end.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from storage.errors import SegmentGone

KEPT = 1 << 20
"""Bytes of text before a cut that stay in memory."""


class Extent(Protocol):
    """The text of one segment."""

    @property
    def text_length(self) -> int: ...


P = TypeVar("P", bound=Extent)


class Timeline(Generic[P]):
    """The extents of a log and their absolute positions, as far as they are measured.

    `unpositioned` are the first extents, not measured yet. `positioned` are the others: (starts,
    extents), one tuple that is replaced as a whole, so any thread may read it. `rewrites` counts
    the changes of the past.
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

    def position(self, first: int = 0, number: int = 0, position: int = 0) -> None:
        """Find the positions of all extents from number `first` on, which are measured.

        Where no extent has a position yet, number `number` (≥ `first`) begins at `position`. A
        positioned extent may have grown, as for `grow`.
        """
        starts, positioned = self.positioned
        extents = self.unpositioned + positioned
        if positioned:
            number, position = len(self.unpositioned), starts[0]
        assert first <= number
        before: list[int] = []
        at = position
        for extent in reversed(extents[first:number]):
            at -= extent.text_length
            before.append(at)
        after = []
        at = position
        for extent in extents[number:]:
            after.append(at)
            at += extent.text_length
        assert all(map(operator.ge, after, starts)), "the text of a positioned extent has gone"
        self.positioned = ((*reversed(before), *after), extents[first:])
        self.unpositioned = extents[:first]
        self.end = at

    def extend(self, extent: P) -> None:
        """Add an extent without text at the end: the log has rolled."""
        starts, extents = self.positioned
        if extents:
            self.positioned = ((*starts, self.end), (*extents, extent))
        else:
            self.unpositioned = (*self.unpositioned, extent)

    def remove_head(self, count: int) -> None:
        """Drop the first `count` extents: they have left the log."""
        self.replace_head(count, ())

    def replace_head(self, count: int, extents: Sequence[P]) -> None:
        """Put unmeasured `extents` in place of the first `count`."""
        starts, positioned = self.positioned
        self.rewrites += 1
        left = max(count - len(self.unpositioned), 0)
        self.positioned = (starts[left:], positioned[left:])
        self.unpositioned = (*extents, *self.unpositioned[count:])

    def grow(self) -> None:
        """Find the positions again: a positioned extent has grown, and those after it.

        No text moves, since the extents after it had no text yet.
        """
        starts, extents = self.positioned
        moved = list(starts)
        for number in range(1, len(extents)):
            moved[number] = moved[number - 1] + extents[number - 1].text_length
        self.positioned = (tuple(moved), extents)
        if extents:
            self.end = moved[-1] + extents[-1].text_length

    def locate(self, absolute: int) -> tuple[P, int]:
        """(the extent that holds a position, its start)"""
        starts, extents = self.positioned
        number = bisect_right(starts, absolute) - 1
        return extents[number], starts[number]


class Generation(Generic[P]):
    """What one inode shows. `nonce` is the history's nonce of that time."""

    __slots__ = (
        "_cut",
        "_kept",
        "_made",
        "_past",
        "first_valid",
        "keep_bytes",
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
        keep_bytes: int | None = None,
    ) -> None:
        """`start`: its first readable absolute position. `origin`: the absolute position of its
        byte 0, by default `start`. `keep_bytes`: bytes before a cut that stay in memory.
        """
        self.timeline = timeline
        self.nonce = nonce
        self.origin = start if origin is None else origin
        self.first_valid = start
        self.keep_bytes = KEPT if keep_bytes is None else keep_bytes
        self._made = timeline.rewrites
        # Below `_cut` this generation reads its own extents, since the timeline's have changed.
        self._cut = start
        # (first positions to read, extents, starts). An extent starts before the first position to
        # read where another process has cut the log inside of it.
        self._past: tuple[tuple[int, ...], tuple[P, ...], tuple[int, ...]] = ((), (), ())
        # (from, to) of the text that another process has cut off, ascending.
        self.lost: tuple[tuple[int, int], ...] = ()
        # (absolute position, text) that stays in memory before cuts.
        self._kept: tuple[tuple[int, bytes], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the file, deleted ones included."""
        return self.timeline.end - self.origin

    @property
    def is_current(self) -> bool:
        """Whether the timeline's past has not changed since this was made."""
        return self._made == self.timeline.rewrites

    @property
    def is_whole(self) -> bool:
        """Whether the timeline still has all that it shows. It must be an open one, to which every
        change of the past is applied.
        """
        return not self._past[1] and not self.lost and self.first_valid == self.origin

    def locate(self, absolute: int) -> tuple[P, int]:
        """(the extent that holds a position, its start); first_valid ≤ `absolute` < end."""
        if absolute < self._cut:
            places, extents, starts = self._past
            number = bisect_right(places, absolute) - 1
            if number < 0:
                raise SegmentGone("these bytes have been deleted")
            return extents[number], starts[number]
        return self.timeline.locate(absolute)

    def may_begin_inside(self, absolute: int) -> bool:
        """Whether the text at this position may be in the middle of another extent."""
        return absolute == self._cut or absolute in self._past[0]

    def kept(self, absolute: int, size: int) -> bytes:
        """Text in memory from `absolute` (< first_valid) on, at most `size` bytes, up to or past
        first_valid. SegmentGone where it is not in memory.
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
        """Keep `text`, from absolute position `start` up to a cut, in memory.

        Where it has fewer than `keep_bytes` because the text before it is deleted, prepend what was
        kept of that: one page of the kernel may hold many small segments.
        """
        missing = self.keep_bytes - len(text)
        for before, kept in self._kept:
            if missing > 0 and before < start <= before + len(kept):
                first = max(start - missing, before)
                text = kept[first - before : start - before] + text
                start = first
                break
        self._kept = (*self._kept, (start, text))

    def supersede(self, cut: int) -> None:
        """Take over the timeline's extents below `cut`, an extent's start: they are to change."""
        starts, extents = self.timeline.positioned
        first = max(bisect_right(starts, self._cut) - 1, 0)
        last = bisect_left(starts, cut)
        if first < last:
            places, old_extents, old_starts = self._past
            new = starts[first:last]
            # Its own extents end at `_cut`. The timeline's extent `first` begins there, or before:
            # at a log start, or where the log was cut.
            place = max(new[0], self._cut) if old_extents else new[0]
            self._past = (
                (*places, place, *new[1:]),
                old_extents + extents[first:last],
                old_starts + new,
            )
        self._cut = max(self._cut, cut)

    def lose(self, position: int) -> None:
        """Mark the text from `position` to the end as lost: another process has cut it off."""
        end = self.timeline.end
        self.supersede(end)
        kept = tuple((start, to) for start, to in self.lost if to <= position)
        if len(kept) < len(self.lost):
            position = min(position, self.lost[len(kept)][0])
        if position < end:
            self.lost = (*kept, (position, end))

    @property
    def past(self) -> list[tuple[int, P, int]]:
        """(first position to read, extent, start) of each of its own extents."""
        return list(zip(*self._past, strict=True))

    def past_from(self, absolute: int) -> tuple[P, ...]:
        """Its own extents with text at or after a position."""
        places, extents, _ = self._past
        return extents[max(bisect_right(places, absolute) - 1, 0) :]

    def forget(self, gone: Callable[[P], bool]) -> bool:
        """Drop the past up to the last extent that is `gone`; False where none is."""
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
