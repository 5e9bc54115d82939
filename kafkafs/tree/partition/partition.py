"""A partition as the tree sees it: a log, its views, and the inodes of it that the kernel knows.

It passes the log's events on to the views and tells the kernel: before the views learn of an append
the attributes of every inode of the partition are dropped, and none is kept until nothing has been
appended for a while; a new history has the names looked up again that lead to the old inodes.

The one inode that is written is spared. The kernel drops its size by itself, when it takes the
answer to the write, and keeps its mode and owner, so that who opens it next need not ask for them.
Until then nobody knows what the append has made, unless he asks us: before he is told, that inode's
attributes are dropped too.

Invariants: `mtime_ns` rises with each append; while the partition is `_growing` the kernel keeps
attributes of the inode `_kept` at most; and not even of that once anybody has been told a size that
an append has made whose answer the kernel may not have taken (`_writing`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from kafkafs.line_index import NEVER
from kafkafs.tree.partition.layout import LOOK_S, Layout
from kafkafs.tree.partition.partition_view import PartitionView
from kafkafs.tree.partition.rewrite import Follower, Rewrite
from kafkafs.views import View
from storage import paths
from storage.errors import StorageError
from storage.log.flush import FlushPlan
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.state.history import new_nonce
from storage.waiting import anyway, before_waiting, may_wait

if TYPE_CHECKING:
    from kafkafs.tree.context import MountContext
    from kafkafs.tree.inodes import Change, Node

_BLOCK = 512
_PAGE = 4096


class PeriodicWork(Protocol):
    """What partitions tell those who look after them by the clock."""

    growing: set[Partition]
    """Those of which the kernel keeps no sizes at present."""

    def partition_changed(self, partition: Partition) -> None:
        """Something has happened that periodic work looks at. In any thread."""
        ...

    def followed(self, partition: Partition) -> None:
        """Somebody has looked at a partition that another process writes."""
        ...


class Range(Protocol):
    """An open file that has an end of its own, or shows nothing yet."""

    def history_ends(self, limit: int | None = None) -> None:
        """The past is about to change: find the end now. `limit`: records from there on go."""
        ...


class Writer(Protocol):
    """Through which file the kernel appends."""

    @property
    def inode(self) -> int: ...


class Partition:
    """See the module. `known`: inode -> node, of those whose attributes the kernel keeps.
    `ranges`: the open files that have an end of their own, or show nothing yet; `followers`: the
    open handles of `.follow`. `writer`: through which the kernel has an append made just now.
    """

    __slots__ = (
        "_growing",
        "_grown",
        "_history_lock",
        "_history_read",
        "_kept",
        "_owner",
        "_periodic",
        "_prepared",
        "_refused",
        "_rewrite",
        "_sealed_blocks",
        "_unfinished",
        "_writing",
        "followers",
        "known",
        "log",
        "mount",
        "mtime_ns",
        "name",
        "ranges",
        "views",
        "writer",
    )

    def __init__(self, mount: MountContext, log: Log, periodic: PeriodicWork) -> None:
        self.mount = mount
        self._periodic = periodic
        self.log = log
        self.name = str(log.partition)
        self.views: dict[str, PartitionView] = {}
        self.known: dict[int, Node] = {}
        self.ranges: dict[Range, None] = {}
        self.followers: dict[Follower, None] = {}
        self.mtime_ns = log.active.mtime_ns
        self._growing = False
        # Whether it has grown since `rest` was called.
        self._grown = False
        # While it grows: the inode that the kernel may keep attributes of, or 0.
        self._kept = 0
        # Through which was appended last, while the kernel may not have taken the answer.
        self._writing: Writer | None = None
        self.writer: Writer | None = None
        self._history_read = False
        self._history_lock = threading.Lock()
        self._owner: tuple[int, int, int] | None = None
        self._refused = ""
        self._sealed_blocks: int | None = None
        self._unfinished = 0
        # What is written down of a change that is still to come, and of one that is on its way.
        self._prepared: Rewrite | None = None
        self._rewrite: Rewrite | None = None

    def view(self, view: View) -> PartitionView:
        """Its part in a view, made when first asked for: before the log can tell of a change.

        So that must be on the owner's thread, or before anybody else knows the partition.
        """
        found = self.views.get(view.name)
        if found is None:
            mount, log = self.mount, self.log
            layout = Layout(
                log,
                view,
                mount.store,
                mount.cache_directory(log),
                keeps_base=view is mount.views[0],
                on_measured=self.note_change,
            )
            found = PartitionView(layout)
            # Replaced as a whole, for who walks over it in another thread.
            self.views = {**self.views, view.name: found}
        return found

    def nonce(self) -> int:
        """The history's; reading it for the first time waits (and may write it)."""
        if not self._history_read:
            before_waiting()
            active = self.log.active
            active.files.lease()
            try:
                with self._history_lock:
                    assert self.log.history is not None
                    self._history_read = True
                    self.note_change()
            finally:
                active.files.release()
        return self.log.history.nonce

    def save_history(self) -> None:
        """Write down what it has by now. In any thread; it waits. OSError."""
        active = self.log.active
        active.files.lease()
        try:
            self.log.history.save(self.log.segments)
        finally:
            active.files.release()

    def note_change(self) -> None:
        """Something has happened to it that periodic work looks at. In any thread."""
        self._periodic.partition_changed(self)

    def keep_house(self, until: float) -> None:
        """In a worker thread: what waits for the disk, until then (time.monotonic), or so. What is
        left is for the next time.
        """
        self._refresh_history()
        for view in self.views.values():
            view.keep_pending()
            with contextlib.suppress(StorageError, OSError):
                view.layout.catch_up(until)
        settled = all(view.is_settled for view in self.views.values())
        if not self.log.closed and not (settled and self._is_counted):
            self.note_change()

    @property
    def _is_counted(self) -> bool:
        """Whether the fingerprint of its history counts all that is sealed."""
        log = self.log
        return not self._history_read or log.closed or len(log.segments) <= log.history.counted

    def _refresh_history(self) -> None:
        """Have its fingerprint count what was sealed since."""
        if not self._is_counted:
            with self.mount.manager.duties.attempt("saving of the history", self.log.name):
                self.save_history()

    @property
    def owner(self) -> tuple[int, int, int]:
        """(mode of a file, uid, gid)"""
        owner = self._owner
        if owner is None:
            owner = self._owner = self.mount.permissions.partition(self.log)
        return owner

    def keep_s(self, inode: int) -> float:
        """How long the kernel may keep the attributes of a file of this partition, in seconds.

        Not at all while it grows: the kernel marks attributes as valid before it has stored the
        size that came with them, and where two answers are on their way it may drop the newer one;
        beside appends somebody would be told a smaller size than somebody before him. But of the
        file that was written last, once the kernel has taken the answer: it has stored that size,
        and drops each answer to a question from before. Not while a handle holds an unfinished line
        either: close(2) does not wait for the release that makes it a record, and stat shall not
        overtake that.
        """
        if self._unfinished:
            return 0.0
        if self._growing and (inode != self._kept or self._writing is not None):
            return 0.0
        return self.mount.attr_timeout

    def grows(self) -> None:
        """Have the kernel keep no size, before it can become wrong, but of what it writes: until
        `rest` finds that nothing has grown for a while.
        """
        writer = self.writer
        written = 0 if writer is None else writer.inode
        self._grown = True
        if not self._growing:
            self._growing = True
            self._periodic.growing.add(self)
            self._drop_attributes(written)
            self._kept = written
        elif self._kept != written:
            self._drop_kept()
        self._writing = writer

    def showing_size(self) -> None:
        """Somebody is about to be told how large a file is, or what it ends with. In any thread."""
        if self._writing is not None and self._kept:
            if may_wait():
                # `_kept` is the owner's.
                self.mount.notices.attributes_changed(self._kept)
            else:
                self._drop_kept()

    def released(self, writer: Writer) -> None:
        """Nobody has it open any more, so the kernel has taken the answers to all of its writes."""
        if self._writing is writer:
            self._writing = None
            self._kept = writer.inode

    def rest(self) -> None:
        """Once a second or so: whether it still grows."""
        if self._grown:
            self._grown = False
        else:
            self._growing = False
            self._kept = 0
            self._writing = None
            self._periodic.growing.discard(self)

    def _drop_attributes(self, spared: int = 0) -> None:
        for inode in list(self.known):
            if inode != spared:
                self.mount.notices.attributes_changed(inode)

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, 0
        if kept:
            self.mount.notices.attributes_changed(kept)

    def line_begun(self) -> None:
        """A handle holds an unfinished line."""
        self._unfinished += 1
        if self._unfinished == 1:
            self._drop_attributes()

    def line_ended(self) -> None:
        """It has become a record, or was dropped."""
        self._unfinished -= 1

    def owner_changed(self) -> None:
        """chmod or chown, of it or of its topic."""
        self._owner = None
        self._drop_attributes()

    def change_owner(self, change: Change) -> None:
        """chmod and chown; durable."""
        if not change.is_touch:
            self.mount.permissions.change_partition(self.log, change)
            self.owner_changed()

    def blocks(self) -> int:
        """Blocks of 512 bytes that its segments take up on the disk.

        Of sealed segments as the disk has it; the active one's log by its size, its pre-sized
        indexes not at all.
        """
        sealed = self._sealed_blocks
        if sealed is None:
            segments = self.log.segments
            if len(segments) > 1:
                before_waiting()
            sealed = sum(self._disk_blocks(segment) for segment in segments[:-1])
            if segments is self.log.segments:
                self._sealed_blocks = sealed
        return sealed + (self.log.segments[-1].size + _PAGE - 1) // _PAGE * (_PAGE // _BLOCK)

    def _disk_blocks(self, segment: Segment) -> int:
        blocks = 0
        for suffix in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            try:
                blocks += self.log.files.file_stat(segment.files.file_path(suffix)).st_blocks
            except FileNotFoundError:
                continue
        return blocks

    def flush_plan(self) -> FlushPlan | None:
        """What fsync of any of its files has to do; None where all is on the disk."""
        log = self.log
        if log.read_only or log.closed:
            return None
        if (
            log.durability.recovery_point == log.log_end_offset
            and not log.durability.directory_unsynced
        ):
            return None
        return log.durability.start_flush()

    def follow(self) -> None:
        """Somebody asks: see what the process that writes the data directory has done."""
        if self.mount.follows:
            self._periodic.followed(self)
            self.look()

    def look(self) -> None:
        """See what the process that writes the data directory has done."""
        follower = self.mount.follower
        if follower is None:
            return
        try:
            anyway(follower.look, self.log)
        except (StorageError, OSError) as error:
            # Not again at every stat.
            if str(error) != self._refused:
                self._refused = str(error)
                log = self.log
                self.mount.events(f"{log.topic}/{log.partition}: cannot be followed: {error}")

    @property
    def is_open(self) -> bool:
        """Whether somebody may read it on, who has not asked for long."""
        views = self.views.values()
        return bool(self.followers or self.ranges) or any(view.open for view in views)

    def last_look(self) -> None:
        """Before the log is closed, which writes down how its history ends."""
        if self._history_read:
            self.follow()
            for view in self.views.values():
                if view.layout.keeps_base:
                    view.layout.name_later_base()

    def intact(self) -> bool:
        """Whether what was read until now was still the log when it was read."""
        follower = self.mount.follower
        return follower is None or follower.intact(self.log)

    # -- what the log tells --------------------------------------------------------------------

    def appended(
        self, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        """The log has grown."""
        self.grows()
        for view in self.views.values():
            view.layout.appended(position, data)
        mtime_ns = segment.mtime_ns
        self.mtime_ns = mtime_ns if mtime_ns > self.mtime_ns else self.mtime_ns + 1

    def stabilized(self) -> None:
        """The last stable offset has passed what was held back."""
        self.grows()
        for view in self.views.values():
            view.layout.stabilized()

    def rolled(self, sealed: Segment, active: Segment) -> None:
        """A new segment has begun."""
        self.note_change()
        if self._sealed_blocks is not None:
            self._sealed_blocks += self._disk_blocks(sealed)
        for view in self.views.values():
            view.layout.rolled(active)

    def preparing(
        self, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None] | None:
        """What has to wait for the disk before the past changes, for another thread."""
        if not self._keeps_history or self._is_hidden(old, new, log_start):
            return None
        rewrite = Rewrite(self, old, new, log_start)

        def write() -> None:
            rewrite.write()
            self._prepared = rewrite

        return write

    def removing(self, segments: Sequence[Segment]) -> None:
        """The log is about to lose its head: a new history, which is written down first."""
        self.note_change()
        count = len(segments)
        self._hold(segments)
        self._catch_up()
        if self._is_hidden(segments, (), self.log.log_start_offset):
            self._sealed_blocks = None
            for view in self.views.values():
                with view.layout.lock:
                    view.removing(count, None)
            return
        self._carry_out(
            self._written_down(segments, ()), lambda view, nonce: view.removing(count, nonce)
        )

    def swapping(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Segments are about to be replaced by cleaned ones: a new history."""
        self.note_change()
        self._hold(old)
        self._catch_up()
        for view in self.views.values():
            view.layout.swapping()
        self._rewrite = self._written_down(old, new)

    def swapped(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Now the log has the new segments."""
        segments = self.log.segments
        # All before the first segment that was not cleaned counts as replaced.
        count = segments.index(new[-1]) + 1
        before = count - len(new) + len(old)
        rewrite, self._rewrite = self._rewrite, None
        self._carry_out(
            rewrite,
            lambda view, nonce: view.swapped(before, segments[:count], nonce),
            is_done=True,
        )

    def log_start_moved(self) -> None:
        """The log start has moved within a segment: another history for who opens it anew."""
        self.note_change()
        self._catch_up()
        rewrite = self._written_down((), (), is_done=True)
        self._carry_out(rewrite, lambda view, nonce: view.removing(0, nonce), is_done=True)

    def truncated(self, old: Sequence[Segment], offset: int) -> None:
        """Another process has cut the log: a new history, and other positions."""
        self.note_change()
        log, segments = self.log, self.log.segments
        self._end_ranges(offset)
        nonce = new_nonce() if self._keeps_history else None
        for view in self.views.values():
            with view.layout.lock:
                view.truncated(old[0], segments, offset, nonce)
                if nonce is not None and view.layout.keeps_base:
                    log.history.begin_anew()
        self._sealed_blocks = None
        if nonce is not None:
            log.history.begin_anew()
            log.history.log_start = log.log_start_offset
            log.history.nonce = nonce
            log.history.save(segments)
            self._drop_names()

    def removed(self, segment: Segment) -> None:
        """The files of a segment are gone."""
        for view in self.views.values():
            view.removed(segment)

    def vanish(self) -> None:
        """The files of all of them are gone, with the topic."""
        for view in self.views.values():
            view.vanish()

    def _hold(self, segments: Sequence[Segment]) -> None:
        """Where somebody may read on in segments that another process deletes when it likes, have
        them open.
        """
        if self.mount.follows and any(view.open for view in self.views.values()):
            for segment in segments:
                with contextlib.suppress(StorageError, OSError):
                    segment.open_log()

    def _catch_up(self) -> None:
        """Before the past changes all of its text must have been measured. That can wait for the
        disk, but little: only what was appended within the last second can be left.
        """
        for view in self.views.values():
            with contextlib.suppress(StorageError, OSError):
                view.layout.catch_up()
        self._end_ranges()

    def _end_ranges(self, limit: int | None = None) -> None:
        """What ends before the log does shall end there in the history that it shows."""
        for file in list(self.ranges):
            file.history_ends(limit)

    @property
    def _keeps_history(self) -> bool:
        """Of what others write only where somebody has looked: there is no inode to replace."""
        return self._history_read or not self.mount.follows

    def _is_hidden(self, old: Sequence[Segment], new: Sequence[Segment], log_start: int) -> bool:
        """Whether only segments go that nothing was shown of: a log start had moved behind them,
        and the bases with it.
        """
        log = self.log
        if new or not old or log_start != log.log_start_offset:
            return False
        first = log.segments[len(old)].base_offset
        if first > log_start:
            return False
        history = log.history if self._history_read else None
        return history is None or all(history.base(view)[0] >= first for view in history.views)

    def _written_down(
        self, old: Sequence[Segment], new: Sequence[Segment], *, is_done: bool = False
    ) -> Rewrite | None:
        """The change of the past, once it is written down; None where nobody has looked."""
        prepared, self._prepared = self._prepared, None
        if not self._keeps_history:
            return None
        log_start = self.log.log_start_offset
        if prepared is not None and prepared.is_of(old, new, log_start) and prepared.is_right:
            return prepared
        # What another process has written meanwhile may take hours to measure.
        rewrite = Rewrite(self, old, new, log_start, LOOK_S if self.mount.follows else NEVER)
        rewrite.write(is_done=is_done)
        return rewrite

    def _carry_out(
        self,
        rewrite: Rewrite | None,
        change: Callable[[PartitionView, int | None], None],
        *,
        is_done: bool = False,
    ) -> None:
        """Have the views and the history change, and drop the names that lead to old inodes.

        `is_done`: the log has changed already.
        """
        self._sealed_blocks = None
        if rewrite is None:
            self._carry_out_unseen(change)
            return
        main = self.views.get(self.mount.views[0].name)
        history = self.log.history
        is_changed = False
        while not is_changed:
            # In one step: who begins to count positions meanwhile does so before or after it.
            with contextlib.nullcontext() if main is None else main.layout.lock:
                is_changed = rewrite.is_current and (is_done or rewrite.is_written)
                if is_changed:
                    assert rewrite.past is not None
                    history.become(rewrite.past)
                    if main is not None:
                        change(main, rewrite.nonce)
            if not is_changed:
                rewrite.write(is_done=is_done)
        for view in self.views.values():
            if view is not main:
                with view.layout.lock:
                    change(view, rewrite.nonce)
        # Last: who finds it finds views that show it.
        history.nonce = rewrite.nonce
        if not rewrite.is_written:
            with contextlib.suppress(OSError):
                history.save(rewrite.segments)
        self._drop_names()

    def _carry_out_unseen(self, change: Callable[[PartitionView, int | None], None]) -> None:
        """Nobody had looked at what another process has rewritten; somebody may have by now."""
        with self._history_lock:
            nonce = new_nonce() if self._history_read else None
            for view in self.views.values():
                with view.layout.lock:
                    change(view, nonce)
                    if nonce is not None and view.layout.keeps_base:
                        self.log.history.begin_anew()
        if nonce is not None:
            self.log.history.nonce = nonce
            self._drop_names()

    def _drop_names(self) -> None:
        """Where the kernel keeps names that lead to the old inodes."""
        if any(node.loses_name() for node in list(self.known.values())):
            self.mount.notices.names_changed()
