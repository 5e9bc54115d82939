"""A partition as the tree sees it: a log, its views, and the inodes of it that the kernel knows.

It passes the log's events on to the views and tells the kernel: before an append is answered the
attributes of every inode of the partition but the written one are dropped; a new history drops the
entries that lead to the old inodes.

Invariant: `mtime_ns` rises with each append.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafkafs.line_index import NEVER
from kafkafs.tree.partition_view import LOOK_S, PartitionView
from kafkafs.views import View
from storage import paths
from storage.errors import StorageError
from storage.flush import FlushPlan
from storage.log import Log
from storage.segment import Segment

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from kafkafs.tree.inodes import Node
    from kafkafs.tree.start_file import StartFile

_BLOCK = 512
_PAGE = 4096


class Partition:
    """See the module. `known`: inode -> node, of those whose attributes the kernel keeps.
    `ranges`: the open files that have an end of their own.
    """

    __slots__ = (
        "_history_lock",
        "_history_read",
        "_owner",
        "_refused",
        "_sealed_blocks",
        "_unfinished",
        "fs",
        "known",
        "log",
        "mtime_ns",
        "name",
        "ranges",
        "views",
        "writer",
    )

    def __init__(self, fs: FileSystem, log: Log) -> None:
        self.fs = fs
        self.log = log
        self.name = str(log.partition)
        self.views: dict[str, PartitionView] = {}
        self.known: dict[int, Node] = {}
        self.ranges: dict[StartFile, None] = {}
        self.mtime_ns = log.active.mtime_ns
        # The inode that is being written: it is told of its own size by who writes.
        self.writer = 0
        self._history_read = False
        self._history_lock = threading.Lock()
        self._owner: tuple[int, int, int] | None = None
        self._refused = ""
        self._sealed_blocks: int | None = None
        self._unfinished = 0

    def view(self, view: View) -> PartitionView:
        """Its part in a view, made when first asked for: before the log can tell of a change.

        So that must be on the owner's thread, or before anybody else knows the partition.
        """
        found = self.views.get(view.name)
        if found is None:
            found = PartitionView(
                self.log,
                view,
                self.fs.store,
                self.fs.cache_directory(self.log),
                keeps_base=view is self.fs.views[0],
            )
            # Replaced as a whole, for who walks over it in another thread.
            self.views = {**self.views, view.name: found}
        return found

    def nonce(self, wait: bool) -> int:
        """The history's; reading it for the first time waits (and may write it)."""
        if not self._history_read:
            if not wait:
                raise BlockingIOError
            active = self.log.active
            active.lease()
            try:
                with self._history_lock:
                    assert self.log.history is not None
            finally:
                active.release()
            self._history_read = True
        return self.log.history.nonce

    @property
    def owner(self) -> tuple[int, int, int]:
        """(mode of a file, uid, gid)"""
        owner = self._owner
        if owner is None:
            owner = self._owner = self.fs.partition_owner(self.log)
        return owner

    @property
    def attr_timeout(self) -> float:
        """How long the kernel may keep the attributes of this partition's files, in seconds.

        Not at all while a handle holds an unfinished line: close(2) does not wait for the release
        that makes it a record, and stat shall not overtake that.
        """
        return 0.0 if self._unfinished else self.fs.attr_timeout

    def rising(self, now_ns: int) -> int:
        """The time of an append: the time of modification rises even where the clock does not."""
        return max(now_ns, self.mtime_ns + 1)

    def line_begun(self, writer: int) -> None:
        """A handle holds an unfinished line. Who writes the inode `writer` tells of that itself."""
        self._unfinished += 1
        if self._unfinished == 1:
            for inode in self.known:
                if inode != writer:
                    self.fs.notices.attributes_changed(inode)

    def line_ended(self) -> None:
        """It has become a record, or was dropped."""
        self._unfinished -= 1

    def owner_changed(self) -> None:
        """chmod or chown, of it or of its topic."""
        self._owner = None
        for inode in list(self.known):
            self.fs.notices.attributes_changed(inode)

    def blocks(self, wait: bool) -> int:
        """Blocks of 512 bytes that its segments take up on the disk.

        Of sealed segments as the disk has it; the active one's log by its size, its pre-sized
        indexes not at all.
        """
        sealed = self._sealed_blocks
        if sealed is None:
            segments = self.log.segments
            if not wait and len(segments) > 1:
                raise BlockingIOError
            sealed = sum(self._disk_blocks(segment) for segment in segments[:-1])
            if segments is self.log.segments:
                self._sealed_blocks = sealed
        return sealed + (self.log.segments[-1].size + _PAGE - 1) // _PAGE * (_PAGE // _BLOCK)

    def _disk_blocks(self, segment: Segment) -> int:
        blocks = 0
        for suffix in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            try:
                blocks += self.log.files.file_stat(segment.file_path(suffix)).st_blocks
            except FileNotFoundError:
                continue
        return blocks

    def flush_plan(self) -> FlushPlan | None:
        """What fsync of any of its files has to do; None where all is on the disk."""
        log = self.log
        if log.read_only or log.closed:
            return None
        if log.recovery_point == log.log_end_offset and not log.directory_dirty:
            return None
        return log.start_flush()

    def follow(self) -> None:
        """See what the process that writes the data directory has done."""
        follower = self.fs.follower
        if follower is None or not self.fs.follows:
            return
        try:
            follower.look(self.log)
        except (StorageError, OSError) as error:
            # Not again at every stat.
            if str(error) != self._refused:
                self._refused = str(error)
                log = self.log
                self.fs.events(f"{log.topic}/{log.partition}: cannot be followed: {error}")

    def last_look(self) -> None:
        """Before the log is closed, which writes down how its history ends."""
        if self._history_read:
            self.follow()

    def intact(self) -> bool:
        """Whether what was read until now was still the log when it was read."""
        follower = self.fs.follower
        return follower is None or follower.intact(self.log)

    # -- what the log tells --------------------------------------------------------------------

    def appended(
        self, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        """The log has grown."""
        for view in self.views.values():
            view.appended(position, data)
        mtime_ns = segment.mtime_ns
        self.mtime_ns = mtime_ns if mtime_ns > self.mtime_ns else self.mtime_ns + 1
        writer = self.writer
        for inode in self.known:
            if inode != writer:
                self.fs.notices.attributes_changed(inode)

    def stabilized(self) -> None:
        """The last stable offset has passed what was held back; the kernel knows of the append."""
        for view in self.views.values():
            view.stabilized()

    def rolled(self, sealed: Segment, active: Segment) -> None:
        """A new segment has begun."""
        if self._sealed_blocks is not None:
            self._sealed_blocks += self._disk_blocks(sealed)
        for view in self.views.values():
            view.rolled(active)

    def removing(self, segments: Sequence[Segment]) -> None:
        """The log is about to lose its head: a new history, which is written down first."""
        self._hold(segments)
        self._catch_up()
        self._prepare_bases(segments)
        for view in self.views.values():
            view.removing(len(segments))
        remaining = self.log.segments[len(segments) :]
        self._sealed_blocks = None
        self._new_history(remaining, self.views.values())

    def swapping(self, old: Sequence[Segment]) -> None:
        """Segments are about to be replaced by cleaned ones: a new history."""
        self._hold(old)
        self._catch_up()
        self._prepare_bases(old)
        self._new_history(self.log.segments)

    def swapped(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Now the log has the new segments."""
        segments = self.log.segments
        # All before the first segment that was not cleaned counts as replaced.
        count = segments.index(new[-1]) + 1
        for view in self.views.values():
            view.swapped(count - len(new) + len(old), segments[:count])
        self._sealed_blocks = None
        if self._keeps_history:
            self.log.history.save(segments)

    def truncated(self, old: Sequence[Segment], offset: int) -> None:
        """Another process has cut the log: a new history."""
        segments = self.log.segments
        self._end_ranges(offset)
        for view in self.views.values():
            view.truncated(old[0], segments, offset)
        self._sealed_blocks = None
        self._new_history(segments, self.views.values())

    def removed(self, segment: Segment) -> None:
        """The files of a segment are gone."""
        for view in self.views.values():
            view.removed(segment)

    def log_start_moved(self) -> None:
        """The log start has moved within a segment: another history for who opens it anew."""
        self._catch_up()
        for view in self.views.values():
            view.removing(0)
        self._new_history(self.log.segments, self.views.values())

    def _hold(self, segments: Sequence[Segment]) -> None:
        """Where somebody may read on in segments that another process deletes when it likes, have
        them open.
        """
        if self.fs.follows and any(view.open for view in self.views.values()):
            for segment in segments:
                with contextlib.suppress(StorageError, OSError):
                    segment.open_log()

    def _catch_up(self) -> None:
        """Before the past changes all of its text must have been measured. That can wait for the
        disk, but little: only what was appended within the last second can be left.
        """
        for view in self.views.values():
            with contextlib.suppress(StorageError, OSError):
                view.catch_up(True)
        self._end_ranges()

    def _end_ranges(self, limit: int | None = None) -> None:
        """What ends before the log does shall end there in the history that it shows."""
        for file in list(self.ranges):
            file.history_ends(limit)

    def _prepare_bases(self, segments: Sequence[Segment]) -> None:
        """Where what a view's positions hang on goes with these segments, the text up to the next
        is needed.

        That can wait for the disk, but little: what is written down was measured once.
        """
        if not self._keeps_history:
            return
        self.nonce(wait=True)
        if self.log.history.base(self.fs.views[0].name)[0] >= 0:
            self.view(self.fs.views[0])
        bases = {segment.base_offset for segment in segments}
        for view in self.views.values():
            anchor = view.anchor()
            if anchor in bases:
                # What another process has written meanwhile may take hours to measure.
                until = time.monotonic() + LOOK_S if self.fs.follows else NEVER
                try:
                    view.prepare(True, until, anchor)
                except (StorageError, OSError):
                    # Not measured in time, or removed before anybody could look into them:
                    # positions begin anew.
                    if not self.fs.follows:
                        raise

    @property
    def _keeps_history(self) -> bool:
        """Of what others write only where somebody has looked: there is no inode to replace."""
        return self._history_read or not self.fs.follows

    def _new_history(
        self, segments: Sequence[Segment], changed: Iterable[PartitionView] = ()
    ) -> None:
        """Draw a new nonce, write it down, and drop the entries that lead to the old inodes.

        `changed`: those views that show the new history already.
        """
        if not self._keeps_history:
            return
        history = self.log.history
        history.new_nonce()
        history.log_start = self.log.log_start_offset
        history.save(segments)
        for view in changed:
            view.history_changed()
        for node in list(self.known.values()):
            parent = node.history_entry()
            if parent is not None:
                self.fs.notices.entry_changed(parent, self.name)
