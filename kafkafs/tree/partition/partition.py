"""A partition as the tree sees it: a log, its views, and the inodes of it that the kernel knows.

It passes the log's events to the views and sends notices to the kernel. Before the views learn of
an append, the kernel drops the attributes of every inode of the partition, and keeps none until
nothing has been appended for a while. A change of the past drops the names of the old inodes.

The inode that the kernel writes through keeps its attributes. When the kernel takes the answer to
the write it drops the size by itself and keeps mode and owner, which saves the next open a request.
Until it has taken the answer, only a process that asks this daemon can learn the new size: before
the daemon answers, it drops that inode's attributes, too.

Invariants: `mtime_ns` rises with each append, and never falls. While the partition is `_growing`,
the kernel keeps attributes of the inode `_kept` at most; not even of that once a process was shown
a size from an append whose answer the kernel may not have taken (`writing`).
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVarTuple

from kafkafs.line_index import NEVER
from kafkafs.metrics import Traffic
from kafkafs.tree.notices import Waiter
from kafkafs.tree.partition.partition_text import LOOK_S, PartitionText
from kafkafs.tree.partition.rewrite import Rewrite
from kafkafs.views import View, values_view
from storage import paths
from storage.errors import CorruptRecord, StorageError
from storage.follow.directory_watches import DirectoryWatches
from storage.log.flush import FlushPlan
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.state.history import Shift, new_shift
from storage.state.history_file import visible_from
from storage.waiting import anyway, at_once, before_waiting, may_wait

if TYPE_CHECKING:
    from kafkafs.tree.context import MountContext
    from kafkafs.tree.inodes import Change, Node

Ts = TypeVarTuple("Ts")

FOLLOW_TURNS = 60
"""Turns for which a partition that another process writes is followed after its last reader."""

_BLOCK = 512
_PAGE = 4096


class PeriodicWork:
    """The partitions that the periodic work looks at (`partitions.py`)."""

    def __init__(self, watches: DirectoryWatches[Partition]) -> None:
        self.growing: set[Partition] = set()
        """Those whose sizes the kernel may not keep at present."""
        # Those that the next `tick`, and the next `housekeeping`, look at. Any thread adds some.
        self.changed: set[Partition] = set()
        self.untidy: set[Partition] = set()
        # Those that each turn follows, and for how many more turns without a reader.
        self.followed: dict[Partition, int] = {}
        self.watches = watches


class Writer:
    """An open file that appends through an inode. `position`: where its next write begins."""

    __slots__ = ("inode", "position")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.position = 0


class Partition:
    """See the module. `known`: inode -> node, of the files that the kernel knows and that an append
    changes; `owned`: the inodes of what else has its owner and mode. `writing`: the open file of
    the last append, while the kernel may not have taken the answer. `first_writer`: the one that
    writes it from its beginning.
    """

    def __init__(self, mount: MountContext, log: Log, work: PeriodicWork) -> None:
        self.mount = mount
        self._work = work
        self.log = log
        self.name = str(log.partition)
        # Held while what is shown of the past changes, together with the history; never while the
        # disk is read.
        self.lock = threading.RLock()
        self.texts: dict[str, PartitionText] = {}
        self.raw_traffic = Traffic()
        self.known: dict[int, Node] = {}
        self.owned: set[int] = set()
        # By open file: its text, and the calls before the past of that changes.
        self.ranges: dict[object, tuple[PartitionText, Callable[[int | None], None]]] = {}
        self._follow_readers: dict[object, Callable[[int], None]] = {}
        # The open files that a process has polled, and who waits for more of them.
        self._waiters: dict[object, Waiter | None] = {}
        # The last time that a process was shown.
        self._shown_ns = 0
        self._growing = False
        # Whether it has grown since `rest` was called.
        self._grown = False
        # While it grows: the inode whose attributes the kernel may keep, or 0.
        self._kept = 0
        self.writing: Writer | None = None
        # The file of the append that is being made.
        self._writer: Writer | None = None
        self.first_writer: Writer | None = None
        self._history_read = False
        # Held by the thread that reads the history from the disk.
        self._loading = threading.Lock()
        # Changes of the past before the history was read.
        self._unread_changes = 0
        self._owner: tuple[int, int, int] | None = None
        self._refused = ""
        self._sealed_blocks: int | None = None
        self._unfinished = 0
        # The changes that are written into the history and that the log has not made; and, from
        # `swapping` to `swapped`, the change that the log is making.
        self._prepared: tuple[Rewrite, ...] = ()
        self._rewrite: Rewrite | None = None

    def text(self, view: View) -> PartitionText:
        """Its text in a view, made at first use: on the owner's thread, or before another thread
        knows the partition, so that no event of the log is missed.
        """
        found = self.texts.get(view.name)
        if found is None:
            found = self._make_text(view)
            # Replaced as a whole, since another thread may iterate over it.
            self.texts = {**self.texts, view.name: found}
        return found

    def _make_text(self, view: View) -> PartitionText:
        cache = self.mount.cache_directory(self.log)
        return PartitionText(self.log, view, self.mount.store, cache, self.lock, self.note_change)

    def nonce(self) -> int:
        """The history's nonce; the first call reads the history, may write it, and waits."""
        if not self._history_read:
            before_waiting()
            active = self.log.active
            active.lease()
            try:
                with self._loading:
                    self._load_history()
            finally:
                active.release()
        return self.log.history.nonce

    def _load_history(self) -> None:
        if self._history_read:
            return
        changes = self._unread_changes
        history = self.log.load_history()
        with self.lock:
            if self._unread_changes != changes:
                # Another process has rewritten the log that it was held against.
                history.restart(self.log.segments, history.now.log_start)
            self._history_read = True
        self.note_change()

    def save_history(self) -> None:
        """Write the history. In any thread; waits. OSError.

        Where a start may carry a change out that was prepared, the file stays ahead of it.
        """
        active = self.log.active
        active.lease()
        try:
            prepared, history = self._prepared, self.log.history
            if prepared and not history.is_ahead:
                # A base was set since.
                self._write(prepared[-1])
                if prepared[-1] not in self._prepared:
                    # It has ended meanwhile.
                    history.give_up_ahead()
                    self.note_change()
            else:
                segments = None
                # The log may change before the history takes these.
                while segments is not self.log.segments:
                    segments = self.log.segments
                    history.save(segments)
        finally:
            active.release()

    def note_change(self) -> None:
        """Have the next turn of periodic work look at it. In any thread."""
        self._work.changed.add(self)
        self._work.untidy.add(self)

    def keep_house(self, until: float) -> None:
        """Do the periodic work that waits for the disk, until about `until` (time.monotonic); the
        next turn does the rest. In a worker thread.
        """
        with self.mount.manager.duties.attempt("saving of the history", self.log.name):
            if not self._is_counted or (self._is_marked and self.log.history.is_mark_outdated):
                self.save_history()
        for text in self.texts.values():
            with contextlib.suppress(StorageError, OSError):
                text.keep_pending()
                text.catch_up(until)
                text.save_taken(until)
        settled = all(text.is_settled for text in self.texts.values())
        if not self.log.closed and not (settled and self._is_counted and not self._is_marked):
            self.note_change()

    @property
    def _is_counted(self) -> bool:
        """Whether the history's fingerprint counts all sealed segments."""
        log = self.log
        return not self._history_read or log.closed or len(log.segments) <= log.history.counted

    @property
    def _is_marked(self) -> bool:
        """Whether the history says that `.follow` has shown what was not flushed."""
        return self._history_read and not self.log.closed and self.log.history.is_marked

    def showing_followed(self) -> None:
        """A process is about to be shown the size or bytes of `.follow`. In any thread.

        Errors: OSError, and BlockingIOError where this has to wait; nothing may be shown then.
        """
        log = self.log
        if log.history.note_shown(log.log_end_offset):
            # The next turn after the flush takes the line back.
            self.note_change()

    @property
    def owner(self) -> tuple[int, int, int]:
        """(mode of a file, uid, gid)"""
        owner = self._owner
        # The process that writes the directory may have changed it.
        if owner is None or (self.mount.follows and not self.log.closed):
            owner = self._owner = self.mount.permissions.partition(self.log)
        return owner

    def keep_s(self, inode: int) -> float:
        """How long the kernel may keep the attributes of a file of this partition, in seconds.

        0 while it grows: the kernel marks attributes as valid before it has stored their size, and
        of two answers on their way it may drop the newer one, so a process could see a smaller size
        than another one before. The file that was written last is an exception once the kernel has
        taken the answer: it has stored that size, and drops each answer to an earlier request. 0,
        too, while a handle holds an unfinished line: close(2) does not wait for the release that
        makes it a record, and stat must not overtake the release.
        """
        if self._unfinished:
            return 0.0
        if self._growing and (inode != self._kept or self.writing is not None):
            return 0.0
        return self.mount.attr_timeout

    def append_through(
        self, writer: Writer, append: Callable[[*Ts], object], *arguments: *Ts
    ) -> None:
        """Call `append`, which appends what is written through an open file."""
        self._writer = writer
        try:
            append(*arguments)
        finally:
            self._writer = None

    def is_first_writer(self, writer: Writer) -> bool:
        """Whether this open file writes the partition from its beginning: the first that tries."""
        if self.first_writer is None and self.log.is_new:
            self.first_writer = writer
        return self.first_writer is writer

    def drop_sizes(self) -> None:
        """Before an append: have the kernel drop all sizes but the written file's, and keep none
        until `rest` finds that nothing has grown for a while.
        """
        writer = self._writer
        written = 0 if writer is None else writer.inode
        self._grown = True
        if not self._growing:
            self._growing = True
            self._work.growing.add(self)
            self._drop_sizes_but(written)
            self._kept = written
        elif self._kept != written:
            self._drop_kept()
        self.writing = writer

    def showing_size(self) -> None:
        """A process is about to be shown a file's size or its last bytes. In any thread."""
        if self.writing is not None and self._kept:
            if may_wait():
                # Only the owner's thread changes `_kept`.
                self.mount.notices.attributes_changed(self._kept)
            else:
                self._drop_kept()

    def released(self, writer: Writer) -> None:
        """The open file is closed: the kernel has taken the answers to its writes."""
        if self.writing is writer:
            self.writing = None
            self._kept = writer.inode
        if self.first_writer is writer:
            self.first_writer = None

    def rest(self) -> None:
        """Once a second or so: find out whether it still grows."""
        if self._grown:
            self._grown = False
        else:
            self._growing = False
            self._kept = 0
            self.writing = None
            self._work.growing.discard(self)

    def remember(self, node: Node, *, grows: bool = True) -> None:
        """The kernel knows a node from now on. `grows`: an append changes its attributes; else
        only chmod and chown do.
        """
        if grows:
            self.known[node.inode] = node
        else:
            self.owned.add(node.inode)

    def forget(self, node: Node) -> None:
        """The kernel has forgotten a node."""
        self.known.pop(node.inode, None)
        self.owned.discard(node.inode)

    def _drop_attributes(self) -> None:
        for inode in list(self.known):
            self.mount.notices.attributes_changed(inode)

    def _drop_sizes_but(self, spared: int) -> None:
        for inode, node in list(self.known.items()):
            if inode != spared and not node.is_fixed:
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
        """The line has become a record, or was dropped."""
        self._unfinished -= 1

    def owner_changed(self) -> None:
        """Its owner or mode is another one now."""
        self._owner = None
        self._drop_attributes()
        for inode in list(self.owned):
            self.mount.notices.attributes_changed(inode)

    @property
    def mtime_ns(self) -> int:
        """The time of the last append, in ns, which the log's file on the disk keeps.

        Later than what was shown before that append, where this process has made it.
        """
        segment = self.log.last_written
        shown = self._shown_ns
        if not (segment.is_dated and segment.mtime_ns == shown):
            is_same = segment.is_dated or self.log.read_only
            self._shown_ns = shown = segment.date(shown if is_same else shown + 1)
        return shown

    def change_owner(self, change: Change) -> None:
        """chmod and chown; durable."""
        if not change.is_content:
            self.mount.permissions.change_partition(self.log, change)
            self.owner_changed()

    def blocks(self) -> int:
        """Blocks of 512 bytes that its segments take up on the disk.

        The active segment counts by its log's size, without its pre-sized indexes.
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
                blocks += self.log.files.file_stat(segment.file_path(suffix)).st_blocks
            except FileNotFoundError:
                continue
        return blocks

    def flush_plans(self) -> list[FlushPlan]:
        """The plan for fsync of any of its files; empty if all of it is flushed.

        OSError after a failed fsync; MustQueue.
        """
        log = self.log
        durability = log.durability
        if log.read_only or log.closed:
            return []
        log.append_queue.check_may_append()
        is_flushed = durability.recovery_point == log.log_end_offset
        if is_flushed and log.flush_error is None and not durability.directory_unsynced:
            return []
        return [durability.start_flush()]

    def follow(self) -> None:
        """Look at what the process that writes the data directory has done, for a request."""
        if self.mount.follows:
            self._work.followed[self] = FOLLOW_TURNS
            self.look()

    def look(self) -> None:
        """Look at what the process that writes the data directory has done."""
        follower = self.mount.follower
        if follower is None:
            return
        try:
            anyway(follower.look, self.log)
        except (StorageError, OSError) as error:
            # One line for an error, not one for every stat.
            if str(error) != self._refused:
                self._refused = str(error)
                self.mount.events(
                    f"{self.log.name}: cannot read the changes of the writer: {error}"
                )

    @property
    def is_open(self) -> bool:
        """Whether an open file or a known inode may still read it."""
        return bool(self._follow_readers or self.ranges or self._waiters) or any(
            text.timeline.open for text in self.texts.values()
        )

    @property
    def is_replaced(self) -> bool:
        """Whether its topic was deleted and undeleted: another partition has its name and id."""
        log = self.log
        topic = self.mount.manager.topics.get(log.topic) if log.closed else None
        if topic is None or topic.id != log.topic_id:
            return False
        return topic.partitions.get(log.partition, log) is not log

    # -- open files ----------------------------------------------------------------------------

    def add_range(
        self, file: object, text: PartitionText, fix_end: Callable[[int | None], None]
    ) -> None:
        """Have an open file with an end of its own, or one that shows nothing yet, find that end
        before the past changes. It is called with an offset if the records from there on are lost.
        """
        self.ranges[file] = text, fix_end

    def add_follow_reader(self, file: object, note_offset: Callable[[int], None]) -> None:
        """Call `note_offset` before all records below an offset are deleted.

        A worker thread calls it when it prepares the change, and the log's thread may call it again
        with `at_once`. A change of another process is not prepared: the log's thread waits.
        """
        self._follow_readers[file] = note_offset

    def polled(self, file: object, waiter: Waiter) -> None:
        """A process polls an open file: wake it once, when there may be more to read."""
        was_polled = self.is_polled
        self._waiters[file] = waiter
        if not was_polled:
            self.watch()

    def file_closed(self, file: object) -> None:
        """Forget an open file: call none of its functions, and wake nobody for it."""
        self.ranges.pop(file, None)
        self._follow_readers.pop(file, None)
        if file in self._waiters:
            # A file that was polled is closed by the thread of the loop.
            del self._waiters[file]
            if not self.is_polled:
                self._work.watches.forget(self)

    def watch(self) -> None:
        """Watch the log's directory, if another process writes it: a process waits in poll(2)."""
        if self.mount.follows:
            self._work.watches.watch(self, self.log.directory)

    @property
    def is_polled(self) -> bool:
        """Whether a process has polled a file that is still open."""
        return bool(self._waiters)

    @property
    def is_awaited(self) -> bool:
        """Whether anybody is to be woken by an append."""
        return any(waiter is not None for waiter in list(self._waiters.values()))

    def wake(self) -> None:
        """There may be more to read. In the thread that has changed the log."""
        for file, waiter in list(self._waiters.items()):
            if waiter is not None:
                self._waiters[file] = None
                self.mount.notices.wake(waiter)

    def last_look(self) -> None:
        """Before the log is closed, which writes the history: look once more."""
        if self._history_read:
            self.follow()
            for text in self.texts.values():
                if text.keeps_base:
                    with self.lock:
                        text.name_later_base()

    def intact(self) -> bool:
        """Whether the log was not cut before the bytes that were read until now."""
        follower = self.mount.follower
        return follower is None or follower.intact(self.log)

    # -- events of the log ---------------------------------------------------------------------

    def appended(
        self, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        """The log has grown."""
        self.drop_sizes()
        for text in self.texts.values():
            text.appended(position, data)
        self.wake()

    def stabilized(self) -> None:
        """The last stable offset has risen."""
        self.drop_sizes()
        for text in self.texts.values():
            text.stabilized()
        self.wake()

    def rolled(self, sealed: Segment, active: Segment) -> None:
        """The log has sealed a segment, whose indexes are smaller now, and begun a new one."""
        self.note_change()
        self._drop_attributes()
        if self._sealed_blocks is not None:
            try:
                self._sealed_blocks += self._disk_blocks(sealed)
            except OSError:
                self._sealed_blocks = None  # `blocks` counts them again
        for text in self.texts.values():
            text.rolled(active)

    def preparing(
        self, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None] | None:
        """The work, for a worker thread, that waits for the disk before the past changes.

        A deletion of records of an open transaction is only measured: the end of the transaction
        would move the text after them. The log's thread writes it down when it carries it out.
        """
        if not self._keeps_history or self._is_hidden(old, new, log_start):
            return self._measure_shown
        rewrite = Rewrite(self.log, old, new, log_start, self._text_of)
        # A restart completes a swap, so its base must be on the disk before. A restart deletes
        # nothing from the old base on.
        is_early = bool(new) or rewrite.is_stable
        # The views that may have a base. Their texts stay, so that `_measure_passed` limits how
        # much the log's thread measures after the transaction has ended.
        views = () if is_early else (values_view(True), values_view(False))
        texts = [self.text(view) for view in views]

        def write() -> None:
            self.nonce()
            end = self._end_of(rewrite)
            self._note_offsets(end)
            if is_early:
                self._write(rewrite)
                with self.lock:
                    self._prepared = (*self._prepared, rewrite)
            for text in texts:
                with contextlib.suppress(StorageError, OSError):
                    text.passing(end)
            self._measure_shown()

        return write

    def _measure_shown(self) -> None:
        """Measure all text that the views show. Runs on a worker thread."""
        for text in list(self.texts.values()):
            with contextlib.suppress(StorageError, OSError):
                text.catch_up()

    def change_ended(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """A prepared change is carried out, or given up. In any thread."""
        self._end_prepared(old, new)
        # A history that nobody has read is ahead of nothing.
        if self._history_read:
            # Where another one is prepared, the next save writes that.
            self.log.history.give_up_ahead()
        self.note_change()

    def _end_prepared(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        with self.lock:
            changes = (tuple(old), tuple(new))
            self._prepared = tuple(
                each for each in self._prepared if (each.old, each.new) != changes
            )

    def removing(self, segments: Sequence[Segment]) -> None:
        """The first segments are about to leave the log: change the history first.

        Errors: OSError; nothing has changed.
        """
        self.note_change()
        count = len(segments)
        self._hold(segments)
        self._catch_up()
        self._measure_passed(self.log.segments[count].base_offset)
        self._end_ranges()
        if self._is_hidden(segments, (), self.log.log_start_offset):
            with self.lock:
                self._change_views(lambda text: text.removing(count), None)
            self._keep_text()
        else:
            self._carry_out(self._written_down(segments, ()), lambda text: text.removing(count))

    def swapping(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Cleaned segments are about to replace others: write the change into the history.

        Errors: OSError; nothing has changed.
        """
        self.note_change()
        self._hold(old)
        self._catch_up()
        self._end_ranges()
        for text in self.texts.values():
            text.note_bound()
        self._rewrite = self._written_down(old, new)

    def swapped(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """The log has the new segments: carry the change out."""
        segments = self.log.segments
        # All segments before the first one that was not cleaned count as replaced.
        count = segments.index(new[-1]) + 1
        before = count - len(new) + len(old)
        rewrite, self._rewrite = self._rewrite, None
        self._carry_out(
            rewrite,
            lambda text: text.swapped(before, segments[:count]),
            is_done=True,
        )

    def preparing_repack(self, old: Segment, new: Segment) -> Callable[[], None]:
        """The work, for a worker thread, before `new` replaces `old` with the same records."""
        # The main view's line index is saved beside the new segment in any case.
        self.text(self.mount.views[0])
        texts = tuple(self.texts.values())

        def write() -> None:
            self.nonce()
            if self._prepared:
                raise BlockingIOError(errno.EAGAIN, "a change of the log is being carried out")
            for text in texts:
                text.measure_repacked(new)

        return write

    def repacking(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Each of `new` replaces one of `old` when this returns. Errors: StorageError, OSError; it
        must not.
        """
        self._hold(old)
        for text in self.texts.values():
            if self.log.read_only:
                text.note_bound()
            else:
                for before, after in zip(old, new, strict=True):
                    text.check_repacked(before, after)
        self._end_ranges(only_bytes=True)

    def repacked(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """The log has the new segments, which are smaller."""
        self.note_change()
        self._drop_attributes()
        with self.lock:
            self._sealed_blocks = None
            for text in self.texts.values():
                text.repacked(old, new)
            # Last: a thread that finds the new nonce finds views that show the new bytes.
            if self._history_read:
                self.log.history.end_repack(is_done=True)
            else:
                self._unread_changes += 1
        self._keep_text()
        self._drop_names()
        # The new segments may have more.
        self.wake()

    def repack_ended(self) -> None:
        """The repacking was carried out, or given up. In any thread."""
        for text in tuple(self.texts.values()):
            text.repack_ended()

    def moving_log_start(self, log_start: int) -> None:
        """The log start is about to move up. BlockingIOError as in `_measure_passed`."""
        segments = self.log.segments
        self._measure_passed(segments[visible_from(segments, log_start)].base_offset)

    def log_start_moved(self) -> None:
        """The log start has moved within a segment: later opens see another past."""
        self.note_change()
        with contextlib.suppress(BlockingIOError):
            # No text leaves the log, so the rest can be measured later.
            self._catch_up()
        self._end_ranges()
        rewrite = self._written_down((), (), is_done=True)
        self._carry_out(rewrite, lambda text: text.removing(0), is_done=True)

    def truncating(self) -> None:
        """The log is about to be truncated, or to take the segments after a truncation."""
        for text in self.texts.values():
            text.note_bound()

    def truncated(self, old: Sequence[Segment], offset: int) -> None:
        """The log was truncated, also by another process: the nonce and the positions restart."""
        self.note_change()
        self._drop_attributes()
        log, segments = self.log, self.log.segments
        self._end_ranges(offset)
        kept = {
            text: text.text_that_stays(old[0], segments, offset) for text in self.texts.values()
        }
        with self.lock:
            self._change_views(
                lambda text: text.truncated(old[0], segments, offset, kept[text]),
                new_shift(log.log_start_offset),
            )
        if self._history_read:
            self._try_to_save(segments)
            self._drop_names()
        self.wake()

    def removed(self, segment: Segment) -> None:
        """The files of a segment are deleted."""
        for text in self.texts.values():
            text.removed(segment)

    def vanish(self) -> None:
        """The topic is deleted, and with it the files of all segments."""
        for text in self.texts.values():
            text.vanish()

    def _hold(self, segments: Sequence[Segment]) -> None:
        """Open the logs of segments that readers may still need: another process deletes them."""
        if self.mount.follows and any(text.timeline.open for text in self.texts.values()):
            for segment in segments:
                with contextlib.suppress(StorageError, OSError):
                    segment.open_log()

    def _catch_up(self) -> None:
        """Measure all shown text before the past changes; `preparing` has measured most of it.

        BlockingIOError if that takes more than `LOOK_S`, for example because a large transaction
        has just ended. If another process has changed the log, it waits until all is measured.
        """
        until = NEVER if self.mount.follows else time.monotonic() + LOOK_S
        self._measure_each(lambda text: text.catch_up(until))

    def _measure_passed(self, end: int) -> None:
        """Measure the text between the base and `end`, as `Rewrite` needs it: as `_catch_up`. If
        another process has changed the log, `Rewrite` limits it.
        """
        if not self.mount.follows:
            until = time.monotonic() + LOOK_S
            self._measure_each(lambda text: text.passing(end, until))

    def _measure_each(self, measure: Callable[[PartitionText], object]) -> None:
        for text in self.texts.values():
            try:
                measure(text)
            except BlockingIOError:
                raise
            except (StorageError, OSError):
                pass  # a reader of this text gets the same error

    def _end_ranges(self, limit: int | None = None, *, only_bytes: bool = False) -> None:
        """Have files with an end of their own find it in the text that they show now.

        `only_bytes`: only files of stored bytes, because no other text changes.
        """
        for text, fix_end in list(self.ranges.values()):
            if not (only_bytes and text.view.is_text):
                fix_end(limit)

    @property
    def _keeps_history(self) -> bool:
        """Whether changes are written into the history: of logs that others write only once a
        process has looked at them, since before there is no inode to replace.
        """
        return self._history_read or not self.mount.follows

    def _is_hidden(self, old: Sequence[Segment], new: Sequence[Segment], log_start: int) -> bool:
        """Whether the change only removes segments that no file shows.

        They lie below the log start and before every base.
        """
        log = self.log
        if new or not old or log_start != log.log_start_offset:
            return False
        first = log.segments[len(old)].base_offset
        if first > log_start:
            return False
        return not self._history_read or all(
            log.history.base(view)[0] >= first for view in log.history.now.bases
        )

    def _written_down(
        self, old: Sequence[Segment], new: Sequence[Segment], *, is_done: bool = False
    ) -> Rewrite | None:
        """The change of the past, written into the history; None where no process has looked."""
        if not self._keeps_history:
            return None
        log_start = self.log.log_start_offset
        for prepared in self._prepared:
            if prepared.is_of(old, new, log_start) and prepared.is_right:
                return prepared
        # The text that another process has written meanwhile may take hours to measure.
        patience_s = LOOK_S if self.mount.follows else NEVER
        rewrite = Rewrite(self.log, old, new, log_start, self._text_of, patience_s)
        if self.mount.follows:
            self._note_offsets(self._end_of(rewrite))
        else:
            # A worker thread has noted them when it prepared the change.
            at_once(self._note_offsets, self._end_of(rewrite))
        self._write(rewrite, is_done=is_done)
        return rewrite

    def _end_of(self, rewrite: Rewrite) -> int:
        """Return the offset to which this change moves the base, also past each prepared change: a
        restart may carry that out.
        """
        return max([rewrite.end, *(each.end for each in self._prepared)])

    def _note_offsets(self, end: int) -> None:
        for note_offset in list(self._follow_readers.values()):
            note_offset(end)

    def _write(self, rewrite: Rewrite, *, is_done: bool = False) -> None:
        """Write a change of the past into the history. OSError, which where `is_done` (the log has
        changed already) is only a line in the event log.
        """
        self.nonce()
        rewrite.end = self._end_of(rewrite)
        log = self.log
        try:
            reason = rewrite.write()
        except OSError as error:
            if not is_done:
                raise
            self.mount.events(f"{log.name}: cannot save its history: {error.strerror}")
        else:
            if reason:
                name = f"{log.topic}/.follow/{log.partition}"
                self.mount.events(f"{name}: positions restart, because {reason}")

    def _text_of(self, name: str) -> PartitionText:
        """The text of a view that has a base, also of one that no reader uses, or that this mount
        does not show. In any thread. CorruptRecord where there is no such view.
        """
        known = self.texts.get(name)
        if known is not None:
            return known
        committed, uncommitted = values_view(True), values_view(False)
        view = committed if name == committed.name else uncommitted
        if view.name != name:
            reason = f"positions of an unknown view, {name!r}"
            raise CorruptRecord(reason, path=self.log.directory)
        return self._make_text(view)

    def _carry_out(
        self,
        rewrite: Rewrite | None,
        change: Callable[[PartitionText], None],
        *,
        is_done: bool = False,
    ) -> None:
        """Change the views and the history together.

        `is_done`: the log has changed already.
        """
        while True:
            with self.lock:
                if rewrite is None or (rewrite.is_current and (is_done or rewrite.is_written)):
                    past = new_shift(self.log.log_start_offset) if rewrite is None else rewrite.past
                    self._change_views(change, past)
                    break
            # A thread has set the base meanwhile.
            self._write(rewrite, is_done=is_done)
        if rewrite is not None:
            self._end_prepared(rewrite.old, rewrite.new)
        if rewrite is not None and not rewrite.is_written:
            self._try_to_save(rewrite.segments)
        self._keep_text()
        self._drop_names()

    def _try_to_save(self, segments: Sequence[Segment]) -> None:
        """Write the history; if that fails, the periodic work does it."""
        try:
            self.log.history.save(segments)
        except (StorageError, OSError):
            self.log.history.counted = 0
            self.note_change()

    def _change_views(self, change: Callable[[PartitionText], None], past: Shift | None) -> None:
        """Change what is shown of the past; under the lock.

        `past`: what is true from now on, if that changes. Nothing is, while nobody has read the
        history.
        """
        self._sealed_blocks = None
        for text in self.texts.values():
            change(text)
        if past is not None and self._history_read:
            # Last: a thread that finds the new nonce finds views that show it.
            self.log.history.now = past
        elif past is not None:
            self._unread_changes += 1

    def _keep_text(self) -> None:
        """Read the text before a change that is in the page cache; `keep_house` reads the rest."""
        for text in self.texts.values():
            with contextlib.suppress(BlockingIOError):
                at_once(text.keep_pending)

    def _drop_names(self) -> None:
        """Have the kernel drop its names, if any of them leads to an old inode, and the attributes
        of those: their link count is 0 now.
        """
        old = [inode for inode, node in list(self.known.items()) if node.has_lost_name()]
        for inode in old:
            self.mount.notices.attributes_changed(inode)
        if old:
            self.mount.notices.names_changed()
