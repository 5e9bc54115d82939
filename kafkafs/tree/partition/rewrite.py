"""A change of a partition's past, written into the history before the log carries it out.

Segments leave the head of the log, cleaned ones replace them, or the log start moves up. The change
draws a new nonce, and moves the *base* (`state.history`) past the changed text: to the first
segment that was not cleaned, or that holds the log start. To find its position, `write` measures
the text between the old base and the new one.

The owner's thread makes a `Rewrite`, and reads the log's last batch for it; `write` waits for the
disk, in any thread.

Invariant: when the change is carried out with `is_right`, the history is true. Until then the
change may be given up; a process that dies before leaves a base that still holds.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kafkafs.line_index import NEVER
from kafkafs.tree.partition.layout import Layout, Lock
from kafkafs.views.values import Values
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.state.history import LastBatch, Past, Places, anew, last_batch, new_nonce
from storage.state.history_file import visible_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkafs.tree.context import MountContext
    from kafkafs.tree.partition.partition_view import PartitionView
    from storage.log.log import Log
    from storage.segment.segment import Segment

_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that a later try may not meet."""


class Follower(Protocol):
    """An open handle of `.follow`."""

    def note_offset(self, end: int) -> None:
        """All records before the offset `end` are about to be deleted. In any thread; waits."""
        ...


class RewrittenPartition(Protocol):
    """What a `Rewrite` needs of a partition."""

    @property
    def mount(self) -> MountContext: ...

    @property
    def log(self) -> Log: ...

    @property
    def lock(self) -> Lock: ...

    @property
    def views(self) -> Mapping[str, PartitionView]: ...

    @property
    def followers(self) -> Mapping[Follower, None]: ...

    def nonce(self) -> int:
        """The history's nonce; the first call reads it from the disk, and waits."""
        ...


class Rewrite:
    """See the module. `segments`: the log's segments after the change; it removes the first
    `count` segments. `past`: what `write` has written, None before.
    """

    def __init__(
        self,
        partition: RewrittenPartition,
        old: Sequence[Segment],
        new: Sequence[Segment],
        log_start: int,
        patience_s: float = NEVER,
    ) -> None:
        """`patience_s`: the longest to measure, in seconds; then positions begin anew."""
        log = partition.log
        first = log.segments.index(old[0]) if old else 0
        self.count = first + len(old)
        self.old = tuple(old)
        self.new = tuple(new)
        self.segments = (*log.segments[:first], *new, *log.segments[self.count :])
        self.log_start = max(log_start, self.segments[0].base_offset)
        self.past: Past | None = None
        self._partition = partition
        self._patience_s = patience_s
        self._last = _last_batch(self.segments)
        changed = first + len(new) if old else 0
        visible = visible_from(self.segments, self.log_start)
        self._end = self.segments[max(changed, visible)].base_offset
        self._layouts = {name: view.layout for name, view in partition.views.items()}
        # What was true when `write` measured.
        self._before: Past | None = None
        self._places: dict[str, Places] = {}
        self._version = -1
        # Whether another process has rewritten records that no reader could read yet: the new
        # positions are unknown until the rest is measured.
        self._is_unread = (
            bool(new)
            and log.read_only
            and any(
                segment.next_offset < following.base_offset or segment.stable_size < segment.size
                for segment, following in itertools.pairwise(log.segments[: self.count + 1])
            )
        )

    def is_of(self, old: Sequence[Segment], new: Sequence[Segment], log_start: int) -> bool:
        """Whether this is the change from `old` to `new` with this log start."""
        return (self.old, self.new) == (tuple(old), tuple(new)) and self.log_start == max(
            log_start, self.segments[0].base_offset
        )

    def write(self, *, is_done: bool = False) -> None:
        """Measure, and write the new nonce and base into the history. OSError.

        `is_done`: the log has changed already; an OSError is then only a line in the event log.
        """
        partition = self._partition
        partition.nonce()
        for follower in list(partition.followers):
            follower.note_offset(self._end)
        try:
            self._write()
        except OSError as error:
            if not is_done:
                raise
            log = partition.log
            partition.mount.events(f"{log.topic}/{log.partition}: its history: {error.strerror}")
            if self.past is None:
                self.past = anew(self.log_start)

    def _write(self) -> None:
        history = self._partition.log.history
        until = time.monotonic() + self._patience_s
        while True:
            version = history.version
            self.past = self._work_out(until)
            self._version = history.save_ahead(self.past, self.segments, self._last, version)
            if self._version == version + 1:
                return

    def _work_out(self, until: float) -> Past:
        """The history after the change."""
        log = self._partition.log
        while True:
            before = self._before = log.history.now
            try:
                self._places = {view: self._passing(view, until) for view in before.bases}
                return before.moved(new_nonce(), self.log_start, self._places)
            except (StorageError, OSError) as error:
                if not self.is_current:
                    # Another change has removed the text that this was measuring.
                    continue
                if isinstance(error, OSError) and error.errno in _TRANSIENT:
                    raise
                self._partition.mount.events(
                    f"{log.topic}/.follow/{log.partition}: positions begin anew, since what is "
                    f"deleted or rewritten now cannot be measured: {error}"
                )
                return anew(self.log_start)

    def _passing(self, view: str, until: float) -> Places:
        log = self._partition.log
        if self._is_unread:
            reason = "its writer has rewritten it before all of it was read"
            raise CorruptRecord(reason, path=log.directory)
        layout = self._layouts.get(view)
        if layout is None:
            layout = self._layouts[view] = self._layout_of(view)
        return layout.passing(self._end, until)

    def _layout_of(self, name: str) -> Layout:
        """The layout of a view that no reader uses, or that this mount does not show."""
        mount, log = self._partition.mount, self._partition.log
        view = next((view for view in mount.views if view.name == name), None)
        if view is None:
            view = Values(committed=name == Values().name)
            if view.name != name:
                raise CorruptRecord(f"positions of an unknown view, {name!r}", path=log.directory)
        cache = mount.cache_directory(log)
        return Layout(log, view, mount.store, cache, self._partition.lock, keeps_base=True)

    # -- carrying out ----------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether no base has been set since. Under the lock."""
        return self._partition.log.history.now is self._before

    @property
    def is_right(self) -> bool:
        """Whether the written history is still true, and the last one written."""
        if self.past is None or not self.is_written or not self.is_current:
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
        """Whether the history was not written since."""
        return self._partition.log.history.version == self._version


def _last_batch(segments: Sequence[Segment]) -> LastBatch:
    try:
        return last_batch(segments)
    except (CorruptRecord, SegmentGone):
        # A damaged batch cannot identify a log.
        return None
