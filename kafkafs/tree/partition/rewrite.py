"""A change of a partition's past, written into the history before the log carries it out.

Segments leave the head of the log, cleaned ones replace them, or the log start moves up. The change
draws a new nonce, and moves the *base* (`state.history`) past the changed text: to the first
segment that was not cleaned, or that holds the log start. To find its position, `write` measures
the text between the old base and the new one.

The owner's thread makes a `Rewrite`; `write` waits for the disk, in any thread.

Invariant: when the change is carried out with `is_right`, the history is true. Until then the
change may be given up; a process that dies before leaves a base that still holds.
"""

from __future__ import annotations

import errno
import functools
import itertools
import time
from collections.abc import Callable, Sequence

from kafkafs.line_index import NEVER
from kafkafs.tree.partition.partition_text import PartitionText
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.log.log import Log
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.history import LastBatch, Places, Shift, new_nonce, new_shift
from storage.state.history_file import visible_from

_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that a later try may not meet."""


class Rewrite:
    """See the module. `segments`: the log's segments after the change. `end`: from this offset on
    nothing changes. `past`: what is true after the change; `write` works it out.
    """

    def __init__(
        self,
        log: Log,
        old: Sequence[Segment],
        new: Sequence[Segment],
        log_start: int,
        text_of: Callable[[str], PartitionText],
        patience_s: float = NEVER,
    ) -> None:
        """`text_of`: the text of a view with a base. CorruptRecord where there is none.

        `patience_s`: the longest to measure, in seconds; then positions restart.
        """
        self._log = log
        self._text_of = functools.cache(text_of)
        self._patience_s = patience_s
        first = log.segments.index(old[0]) if old else 0
        after = first + len(old)
        self.old, self.new = tuple(old), tuple(new)
        self.segments = (*log.segments[:first], *new, *log.segments[after:])
        self.log_start = max(log_start, self.segments[0].base_offset)
        changed = first + len(new) if old else 0
        visible = visible_from(self.segments, self.log_start)
        self.end = self.segments[max(changed, visible)].base_offset
        self.past = new_shift(self.log_start)
        # The state when `write` measured, where it found the bases, and the version that it wrote.
        self._before: Shift | None = None
        self._places: dict[str, Places] = {}
        self._version = -1
        # Whether another process has rewritten records that no reader could read yet: the new
        # positions are unknown until the rest is measured.
        self._is_unread = bool(new and log.read_only) and any(
            segment.next_offset < following.base_offset or segment.stable_size < segment.size
            for segment, following in itertools.pairwise(log.segments[: after + 1])
        )

    def is_of(self, old: Sequence[Segment], new: Sequence[Segment], log_start: int) -> bool:
        """Whether this is the change from `old` to `new` with this log start."""
        return (self.old, self.new) == (tuple(old), tuple(new)) and self.log_start == max(
            log_start, self.segments[0].base_offset
        )

    @property
    def is_stable(self) -> bool:
        """Whether no open transaction has begun before `end`, so that the text before it is final.

        On the log's thread.
        """
        undecided = self._log.producers.first_undecided_offset
        return undecided is None or undecided >= self.end

    def write(self) -> str:
        """Measure, and write the new nonce and base into the history, which has been read. OSError.

        Returns why positions restart, or an empty text.
        """
        if not self.new:
            # Segments may have been repacked since, and new ones begun.
            gone = self.old[-1].base_offset if self.old else -1
            self.segments = tuple(each for each in self._log.segments if each.base_offset > gone)
        history = self._log.history
        until = time.monotonic() + self._patience_s
        # The owner must not carry out what is only half worked out.
        self._version = -1
        while True:
            version = history.version
            before, reason = self._work_out(until)
            last = self._last_batch()
            unchanged_from = self.end if self.new else 0
            if history.save_ahead(before, self.past, self.segments, last, version, unchanged_from):
                self._version = version + 1
                return reason

    def _last_batch(self) -> LastBatch:
        """The batch by which the log is recognized; None where that is damaged. OSError."""
        segment = self.segments[-1]
        try:
            segment.lease()
            try:
                return SegmentReader(segment).last_batch()
            finally:
                segment.release()
        except (CorruptRecord, SegmentGone):
            return None

    def _work_out(self, until: float) -> tuple[Shift, str]:
        """Returns what is true before the change, too."""
        while True:
            before = self._before = self._log.history.now
            try:
                self._places = {view: self._passing(view, until) for view in before.bases}
                self.past = before.moved(new_nonce(), self.log_start, self._places)
                return before, ""
            except (StorageError, OSError) as error:
                if not self.is_current:
                    # Another change has removed the text that this was measuring.
                    continue
                self.past = new_shift(self.log_start)
                if isinstance(error, OSError) and error.errno in _TRANSIENT:
                    if not self.old:
                        # All text stays, so the base still holds.
                        self.past = before.moved(new_nonce(), self.log_start, {})
                    raise
                return (
                    before,
                    f"the records that are now deleted or rewritten cannot be indexed: {error}",
                )

    def _passing(self, view: str, until: float) -> Places:
        if self._is_unread:
            reason = "its writer rewrote it before all of it was read"
            raise CorruptRecord(reason, path=self._log.directory)
        return self._text_of(view).passing(self.end, until)

    # -- carrying out ----------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether no base has been set since `write` measured.

        Under the partition's lock it stays so; without it the answer may be old at once.
        """
        return self._log.history.now is self._before

    @property
    def is_right(self) -> bool:
        """Whether the written history is still true, and the last one written."""
        if not self.is_written or not self.is_current:
            return False
        try:
            # All is measured; a transaction that ended meanwhile changes the text.
            return all(
                places == self._passing(view, NEVER) for view, places in self._places.items()
            )
        except (StorageError, OSError):
            return False

    @property
    def is_written(self) -> bool:
        """Whether `write` has written the history, and nothing has written it since."""
        return self._log.history.version == self._version
