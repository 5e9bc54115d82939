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
  old extents before that position, its *own end*, and reads the timeline from there on. Where
  another process has replaced text that was not shown yet, the first record that was not shown
  begins there, perhaps inside of a cleaned segment.
- The files of a past extent are deleted: `first_valid` rises to the extent's end. Reading below it
  raises SegmentGone (ESTALE), except for the last text before an own end, which stays in memory
  because the kernel reads whole pages.

Pure: no file, clock, lock or thread. Of an extent it knows the length of the text. Callers hold the
partition's lock to change a timeline and to `attach`. One exception: once all extents are measured
and have positions, the owner's thread moves a timeline's `end` without the lock
(`PartitionText.appended`). Values that other threads read are replaced as a whole.

Invariants: each extent of a timeline starts where the one before it ends; first_valid ≤ end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import ge, itemgetter
from typing import TYPE_CHECKING

from storage.errors import SegmentGone

if TYPE_CHECKING:
    from kafkafs.line_index import Extent

KEPT = 1 << 20
"""Bytes of text before a change of the past that stay in memory."""


class Timeline:
    """The extents of a log and their absolute positions, as far as they are measured.

    `unpositioned` are the first extents, not measured yet. `positioned` are the others: (starts,
    extents). `rewrites` counts the changes of the past; each is applied to the generations in
    `open`.
    """

    __slots__ = ("end", "open", "positioned", "rewrites", "unpositioned")

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.unpositioned: tuple[Extent, ...] = tuple(extents)
        self.positioned: tuple[tuple[int, ...], tuple[Extent, ...]] = ((), ())
        self.end = 0
        self.rewrites = 0
        self.open: dict[Generation, None] = {}

    @property
    def extents(self) -> tuple[Extent, ...]:
        return self.unpositioned + self.positioned[1]

    def position(self, first: int = 0, number: int = 0, position: int = 0) -> None:
        """Find the positions of all extents from number `first` on, which are measured.

        Where no extent has a position yet, number `number` (≥ `first`) begins at `position`. A
        positioned extent may have grown: no text moves, since those after it had none yet.
        """
        starts, positioned = self.positioned
        extents = self.extents
        if positioned:
            number, position = len(self.unpositioned), starts[0]
        assert first <= number
        lengths = [extent.text_length for extent in extents[first:]]
        before = sum(lengths[: number - first])
        *moved, end = accumulate(lengths, initial=position - before)
        assert all(map(ge, moved[number - first :], starts)), "a part of the text was removed"
        self.positioned = (tuple(moved), extents[first:])
        self.end = end
        # Last: once all have positions, the log's owner changes the end without the lock.
        self.unpositioned = extents[:first]

    def extend(self, extent: Extent) -> None:
        """Add an extent without text at the end: the log has rolled."""
        starts, extents = self.positioned
        if extents:
            self.positioned = ((*starts, self.end), (*extents, extent))
        else:
            self.unpositioned = (*self.unpositioned, extent)

    def replace_head(
        self, count: int, extents: Sequence[Extent], end: int | None = None
    ) -> list[ToKeep]:
        """Put unmeasured `extents` in place of the first `count`. Each open generation keeps the
        old ones up to `end`, by default the start of the first extent that stays.

        Returns the text that they have to keep in memory.
        """
        starts, positioned = self.positioned
        left = count - len(self.unpositioned)
        kept: list[ToKeep] = []
        if starts and left >= 0:
            end = starts[left] if end is None else end
            for generation in tuple(self.open):
                start = generation.supersede(end)
                if start < end:
                    kept.append((generation, start, end))
        self.rewrites += 1
        self.positioned = (starts[max(left, 0) :], positioned[max(left, 0) :])
        self.unpositioned = (*extents, *self.unpositioned[count:])
        return kept

    def exchange(self, new_of: Mapping[Extent, Extent]) -> None:
        """Put others, which have the same text, in the place of extents: no generation changes."""
        starts, positioned = self.positioned
        self.positioned = starts, tuple(new_of.get(each, each) for each in positioned)
        self.unpositioned = tuple(new_of.get(each, each) for each in self.unpositioned)


class Generation:
    """The text that one inode shows. `nonce` is the history's nonce of that time.

    `past`: (first position to read, extent, start) of each of its own extents, which it reads below
    `_own_end`. An extent starts before its first position where another process has cut the log
    inside of it.

    `lost`: (from, to) of the text that another process has cut off, ascending.

    `awaited`: the offset of its first record, while it shows nothing and the position of that
    record is not known: an open transaction has begun before it.
    """

    __slots__ = (
        "_kept",
        "_made",
        "_own_end",
        "awaited",
        "first_valid",
        "keep_bytes",
        "lost",
        "nonce",
        "origin",
        "past",
        "timeline",
    )

    def __init__(
        self,
        timeline: Timeline,
        nonce: int,
        start: int,
        *,
        origin: int | None = None,
        keep_bytes: int | None = None,
    ) -> None:
        """`start`: its first readable absolute position. `origin`: the absolute position of its
        byte 0, by default `start`. `keep_bytes`: bytes before a change that stay in memory.
        """
        self.timeline = timeline
        self.nonce = nonce
        self.origin = start if origin is None else origin
        self.first_valid = start
        self.awaited: int | None = None
        self.keep_bytes = KEPT if keep_bytes is None else keep_bytes
        self._made = timeline.rewrites
        self._own_end = start
        self.past: tuple[tuple[int, Extent, int], ...] = ()
        self.lost: tuple[tuple[int, int], ...] = ()
        # (absolute position, text) that stays in memory before changes.
        self._kept: tuple[tuple[int, bytes], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the file, deleted ones included."""
        # The end may lag behind the origin while `begin_at` moves both.
        return max(self.timeline.end - self.origin, 0)

    def begin_at(self, position: int, *, is_known: bool) -> None:
        """Begin at the first position where the awaited record can be; `is_known`: where it is."""
        self.origin = self.first_valid = position
        self._own_end = max(self._own_end, position)
        if is_known:
            self.awaited = None

    @property
    def is_current(self) -> bool:
        """Whether the timeline's past has not changed since this was made."""
        return self._made == self.timeline.rewrites

    @property
    def is_whole(self) -> bool:
        """Whether the timeline still has all that it shows. It must be an open one, to which every
        change of the past is applied.
        """
        return not self.past and not self.lost and self.first_valid == self.origin

    def attach(self) -> bool:
        """Have changes of the past applied to it; False where one has superseded it already."""
        if self.is_current:
            self.timeline.open[self] = None
        return self in self.timeline.open

    def detach(self) -> None:
        """Have no more changes applied to it."""
        self.timeline.open.pop(self, None)

    def locate(self, absolute: int) -> tuple[Extent, int]:
        """(the extent that holds a position, its start); first_valid ≤ `absolute` < end."""
        if absolute < self._own_end:
            # Once: another thread may replace it.
            past = self.past
            number = bisect_right(past, absolute, key=itemgetter(0)) - 1
            if number < 0:
                raise SegmentGone("these bytes have been deleted")
            return past[number][1:]
        starts, extents = self.timeline.positioned
        number = bisect_right(starts, absolute) - 1
        return extents[number], starts[number]

    def may_begin_inside(self, absolute: int) -> bool:
        """Whether the text at this position may be in the middle of another extent."""
        return absolute == self._own_end or any(absolute == place for place, _, _ in self.past)

    def kept(self, absolute: int, size: int) -> bytes:
        """Text in memory from `absolute` (< first_valid) on, at most `size` bytes, up to or past
        first_valid. SegmentGone where it is not in memory.
        """
        end = absolute + size
        at = absolute
        text = b""
        while at < end and at < self.first_valid:
            for start, known in self._kept:
                if start <= at < start + len(known):
                    text += known[at - start : end - start]
                    at = absolute + len(text)
                    break
            else:
                raise SegmentGone("these bytes have been deleted or rewritten")
        return text

    def keep(
        self, start: int, text: bytes, like: tuple[int, bytes] | None = None
    ) -> tuple[int, bytes]:
        """Keep `text`, from absolute position `start` up to a change, in memory.

        Where it has fewer than `keep_bytes` because the text before it is deleted, prepend what was
        kept of that: one page of the kernel may hold many small segments.

        Returns (position, text) that it keeps; `like`: that of another generation, which has the
        same text in memory where it is the same.
        """
        missing = self.keep_bytes - len(text)
        for before, kept in self._kept:
            if missing > 0 and before < start <= before + len(kept):
                first = max(start - missing, before)
                text = kept[first - before : start - before] + text
                start = first
                break
        keeps = (start, text)
        if like is not None and like == keeps:
            keeps = like
        self._kept = (*self._kept, keeps)
        return keeps

    def supersede(self, end: int) -> int:
        """Take over the timeline's extents below `end`, an extent's start: they are to change.

        Returns from where on its text before `end` has to be kept in memory.
        """
        if end > self._own_end:
            starts, extents = self.timeline.positioned
            first = max(bisect_right(starts, self._own_end) - 1, 0)
            last = bisect_left(starts, end)
            # The timeline's extent `first` begins at `_own_end`, or before it: at a log start, or
            # where the log was cut.
            self.past += tuple(
                (max(start, self._own_end), extent, start)
                for start, extent in zip(starts[first:last], extents[first:last], strict=True)
            )
            self._own_end = end
        start = max(end - self.keep_bytes, self.first_valid)
        return max(start, self.lost[-1][1]) if self.lost else start

    def lose(self, position: int) -> None:
        """Mark the text from `position` to the end as lost: another process has cut it off."""
        end = self.timeline.end
        self.supersede(end)
        kept = tuple((start, to) for start, to in self.lost if to <= position)
        if len(kept) < len(self.lost):
            position = min(position, self.lost[len(kept)][0])
        if position < end:
            self.lost = (*kept, (position, end))

    def extents(self) -> list[Extent]:
        """The extents that it reads, which are measured."""
        starts, extents = self.timeline.positioned
        first = max(bisect_right(starts, max(self._own_end, self.first_valid)) - 1, 0)
        return [*(extent for _, extent, _ in self.past), *extents[first:]]

    def extents_from(self, absolute: int) -> list[tuple[Extent, int]]:
        """(extent, start) of its own extents with text at or after a position."""
        number = bisect_right(self.past, absolute, key=itemgetter(0)) - 1
        return [(extent, start) for _, extent, start in self.past[max(number, 0) :]]

    def forget(self, gone: Callable[[Extent], bool]) -> bool:
        """Drop the past up to the last extent that is `gone`; False where none is."""
        for number in reversed(range(len(self.past))):
            if gone(self.past[number][1]):
                self.past, ends = self.past[number + 1 :], self._own_end
                if self.past:
                    ends = self.past[0][0]
                self.first_valid = max(self.first_valid, ends)
                self._kept = tuple(
                    (start, text)
                    for start, text in self._kept
                    if start + len(text) >= self.first_valid
                )
                return True
        return False


ToKeep = tuple[Generation, int, int]
"""A generation, and from where to where its text has to stay in memory."""
