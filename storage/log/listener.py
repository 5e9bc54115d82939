"""The calls of a log to its listeners.

A log knows nothing of views, indexes of text or mounts, but calls these methods, synchronously, on
the thread that changed it. State that must be durable before records are removed or replaced
(`removing`, `swapping`) is durable when the method returns; after `preparing` another thread has
in most cases written it before.

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
        """Whole batches are in `segment` from byte `position`, and the log end has moved.

        `data` is valid during the call only.
        """

    def stabilized(self, log: L) -> None:
        """The last stable offset has passed records of a transaction that has ended.

        Comes after `appended` of the marker that ended it.
        """

    def rolled(self, log: L, sealed: Segment, active: Segment) -> None:
        """`sealed` gets no more appends; `active`, empty, is now the last segment."""

    def preparing(
        self, log: L, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None] | None:
        """`old`, a head of the log, is about to be removed, or replaced by `new`; both can be read.
        The log start will be `log_start`; if `old` is empty, only that changes.

        Return a function for another thread that waits for the disk, so that `removing`, `swapping`
        or `log_start_moved` wait for as little as possible; or None. It raises StorageError or
        OSError if the change must not happen.
        """
        return None

    def change_ended(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """The change announced by `preparing` was carried out, or will never be. Thread-safe."""

    def damaged(self, log: L, segment: Segment) -> None:
        """Some batches that could be read were found damaged (`segment.damages`)."""

    def removing(self, log: L, segments: Sequence[Segment]) -> None:
        """These segments, a head of the log, are about to leave it; they can still be read."""

    def removed(self, log: L, segment: Segment) -> None:
        """The files of a removed segment were deleted."""

    def swapping(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """`new` is about to replace `old`; both can be read."""

    def swapped(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """`new` has replaced `old`, which can be read until it is removed.

        In another process's log `old` may not have been read to its end: a segment's `next_offset`
        is then before the next one's base, and `new` has the rest of it.
        """

    def preparing_repack(self, log: L, old: Segment, new: Segment) -> Callable[[], None] | None:
        """`new`, the same records in other batches, is about to replace `old`; both can be read.

        Return a function for another thread that waits for the disk, or None. It raises
        StorageError or OSError if the change must not happen.
        """
        return None

    def repacking(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Each of `new`, the same records in other batches, replaces one of `old` when this
        returns: several if another process, whose log this is, has repacked them.

        Errors: StorageError, OSError; nothing has changed, and the change must not happen now.
        """

    def repacked(self, log: L, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Each of `new` has replaced one of `old`, which can be read until they are removed.

        In another process's log, the last one may not have been read to its end, as with `swapped`.
        """

    def repack_ended(self, log: L) -> None:
        """The change announced by `preparing_repack` was carried out, or will never be.
        Thread-safe.
        """

    def moving_log_start(self, log: L, log_start: int) -> None:
        """The log start is about to move up to `log_start`.

        Errors: BlockingIOError; nothing has changed, and it must not move before `preparing`.
        """

    def log_start_moved(self, log: L) -> None:
        """The log start has moved up inside a segment: records before it are no longer shown."""

    def retired(self, log: L) -> None:
        """The topic was deleted: the log takes no appends, and can be read for a while."""

    def truncating(self, log: L) -> None:
        """The log is about to be truncated. If this process does it, no other thread may use the
        log's files until `truncated`.
        """

    def truncated(
        self, log: L, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        """The log was truncated, also by another process, whose log this is; that may have appended
        other records.

        `new`, the last segments now, have replaced `old`. The records of the first one of `old`
        below `offset` are in the first one of `new` too; the rest of `old` is lost, and reading it
        may return any bytes.
        """
