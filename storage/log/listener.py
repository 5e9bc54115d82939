"""What a log tells its listeners.

A log knows nothing of views, indexes of text or mounts, but calls these methods, synchronously, on
the thread that changed it.  What must be written down before the past changes (``removing``,
``swapping``) is written down when the method returns; after ``preparing`` another thread has done
that before.

A listener may read the log; it may not change it, must be quick, and raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from storage.segment.segment import Segment

L = TypeVar("L", contravariant=True)
"""The log that calls."""


class LogListener(Generic[L]):
    """Does nothing; listeners override what they need."""

    def appended(
        self, log: L, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        """Whole batches are in ``segment`` from byte ``position``, and the log end has moved.

        ``data`` is valid during the call only.
        """

    def stabilized(self, log: L) -> None:
        """The last stable offset has passed data that an open transaction held back.

        Comes after ``appended`` of the marker that ended it.
        """

    def rolled(self, log: L, sealed: Segment, active: Segment) -> None:
        """``sealed`` gets no more appends; ``active``, empty, is now the last segment."""

    def preparing(
        self, log: L, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None] | None:
        """``old``, a head of the log, is about to be removed, or replaced by ``new``; both can be
        read.  The log start will be ``log_start``; where ``old`` is empty, only that changes.

        Returns what another thread can do before, where it waits for the disk, so that
        ``removing``, ``swapping`` or ``log_start_moved`` have nothing left to wait for; or None.
        It raises StorageError or OSError where the past must not change.
        """
        return None

    def change_ended(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """What ``preparing`` has told of is carried out, or will never be.  In any thread."""

    def damaged(self, log: L, segment: Segment) -> None:
        """Some batches that could be read were found damaged (``segment.damages``)."""

    def removing(self, log: L, segments: Sequence[Segment]) -> None:
        """These segments, a head of the log, are about to leave it; they can still be read."""

    def removed(self, log: L, segment: Segment) -> None:
        """The files of a segment that had left the log are gone."""

    def swapping(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """``new`` is about to replace ``old``; both can be read."""

    def swapped(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """``new`` has replaced ``old``, which can be read until it is removed.

        Of another process's log ``old`` may not have been read to its end: a segment's
        ``next_offset`` is before the next one's base then, and ``new`` has the rest of it.
        """

    def log_start_moved(self, log: L) -> None:
        """The log start has moved up inside a segment: records before it are no longer shown."""

    def retired(self, log: L) -> None:
        """The topic was deleted: the log takes no appends, and can be read for a while."""

    def truncated(
        self, log: L, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        """Another process, whose log this is, has cut it back and perhaps gone on elsewhere.

        ``new``, the last segments now, have replaced ``old``.  What the first one of ``old`` holds
        below ``offset`` is in the first one of ``new`` too; the rest of ``old`` is lost, and
        reading it may find anything.
        """
