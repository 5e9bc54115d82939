"""What this package needs of a segment's line index (`segment_lines.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kafkafs.line_index.encoded import IsAborted
from kafkafs.views import TextView
from storage.segment.damage import Damage
from storage.segment.segment import Segment


class Gap(NamedTuple):
    """The unreadable text `start` to `end`: records `first` to (exclusive) `last`, in `place`."""

    start: int
    end: int
    first: int
    last: int
    place: Damage


class Lines(Protocol):
    """A segment in a view: its text, and the entries that find it."""

    segment: Segment
    view: TextView
    is_aborted: IsAborted | None
    text_length: int
    records: int

    @property
    def end(self) -> int:
        """Bytes of the segment's log that the view shows."""
        ...

    def find(self, text: int) -> tuple[int, int, int, int]: ...

    def entry_before(self, is_after: Callable[[int, int], bool]) -> tuple[int, int, int, int]: ...

    def entry_from(self, position: int) -> tuple[int, int, int, int] | None: ...

    def gaps(self) -> tuple[Gap, ...]: ...

    def gap_before(self, text: int) -> Gap | None: ...


class MeasuredSegment(Protocol):
    """A segment that is being measured, up to file position `covered`.

    `is_guessed`: it has a damaged place whose length of text nobody can know.
    """

    segment: Segment
    view: TextView
    covered: int
    is_guessed: bool
