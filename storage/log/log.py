"""One partition: appends, reads, flushes, follows, lets go of its past.

A log is a tuple of segments in order of base offset; the last one is active.  The tuple is replaced
as a whole (copy-on-write), so that whoever reads from another thread keeps a consistent one.

Invariants: log start ≤ last stable ≤ high watermark ≤ log end; recovery point ≤ log end.

One thread owns a log.  Only ``FlushPlan.run`` and reads that hold a segment's lease may run
elsewhere.

Its parts have modules of their own, each a base of the next: ``transactions``, ``read``,
``append``.  Not here: what is deleted or cleaned (``retention``, ``compaction``), what a crash left
behind (``recovery``), the other partitions (``manager``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from storage import clock, paths
from storage.counters import LogCounters
from storage.errors import CorruptRecord
from storage.files import Files
from storage.log.append import Appended, AppendingLog
from storage.log.book import Book
from storage.log.flush import FlushPlan
from storage.log.listener import LogListener
from storage.recovery.recovery import Recovered
from storage.segment.damage import Damage, merged, report
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.state.history import History
from storage.state.producer_state import ProducerBatch, ProducerState
from storage.task import ByOwner, call

__all__ = ["Appended", "Log"]

_log = logging.getLogger(__name__)

# Segments whose files are renamed in one turn of the owner's, some 50 µs each.
RENAMED_AT_ONCE = 32


def in_turns(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """As many at a time as may be renamed while nobody else gets a turn."""
    for at in range(0, len(segments), RENAMED_AT_ONCE):
        yield segments[at : at + RENAMED_AT_ONCE]


class Log(AppendingLog):
    """One partition's log.  Offsets count records, sizes are in bytes, times in ms since 1970."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic: str,
        partition: int,
        topic_id: str,
        config: LogConfig,
        recovered: Recovered,
        *,
        log_start: int,
        recovery_point: int,
        epochs: list[tuple[int, int]],
        clean: bool,
        read_only: bool,
        may_be_cleaned: bool = False,
        point_counts: bool = True,
        dirty: set[Log] | None = None,
        retiring: set[Log] | None = None,
        counters: LogCounters | None = None,
        monotonic_ms: Callable[[], int] = clock.monotonic_ms,
    ) -> None:
        super().__init__(config)
        self.monotonic_ms = monotonic_ms
        self.counters = counters or LogCounters()
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.read_only = read_only
        self.may_be_cleaned = may_be_cleaned or config.is_compacted
        self.closed = False
        # Whether a cleaner is at it: what it may replace stays until it has done so.
        self.cleaning = False
        # Why its files cannot be trusted to be on the disk (``rescue``).
        self.flush_error: OSError | None = None
        self.listeners: list[LogListener] = []
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        self._retiring = retiring if retiring is not None else set()
        self._retired: list[tuple[int, Segment]] = []
        self.log_start_offset = max(log_start, self.segments[0].base_offset)
        # Where the log start is about to be moved to.
        self.intended_log_starts: list[int] = []
        self.log_end_offset = self.segments[-1].next_offset
        self.recovery_point = min(max(recovery_point, self.log_start_offset), self.log_end_offset)
        # Whether a checkpoint may name it.  By its line a gap between segments behind it is a loss;
        # of a log that came without one, or that all of is checked, it is a cleaner's, until all
        # of it has been flushed here.
        self.point_counts = point_counts or self.recovery_point == self.log_end_offset
        self.producers = recovered.producers
        self.snapshot_offset = recovered.snapshot_offset
        self.epochs = epochs
        self.epochs_dirty = False
        self.epochs_lock = threading.Lock()
        self.directory_dirty = False
        self.dirty_since_ms: int | None = None
        self._active_since_ms = monotonic_ms()
        self._dirty = dirty if dirty is not None else set()
        self._recovered_clean = clean
        # What a kill has left half written was never shown.
        self._was_cut = recovered.damaged and not recovered.torn
        # Whether there is a book in which it is written down what this log must hold.
        self.is_booked = recovered.book is not None
        self.book = Book(self, recovered.book)
        self._history: History | None = None
        # Where the history of a log that is read-only is kept instead.
        self.history_directory: str | None = None
        if self.producers.first_undecided_offset is not None:
            self.stabilize()
        if self.recovery_point < self.log_end_offset and not read_only:
            self._mark_dirty()

    # -- facts ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """As a mount shows it."""
        return f"{self.topic}/{self.partition}"

    @property
    def size(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self.segments)

    @property
    def history(self) -> History:
        """The partition's history, read when first asked for."""
        if self._history is None:
            self._history = History.load(
                self.files,
                self.directory,
                self.segments,
                writable=not self.read_only,
                clean=self._recovered_clean,
                cut=self._was_cut,
                log_start=self.log_start_offset,
                aside=self.history_directory,
            )
        return self._history

    @property
    def retired(self) -> list[tuple[int, Segment]]:
        """Segments that have left the log, and until when (monotonic) readers are left to them."""
        return self._retired

    @retired.setter
    def retired(self, retired: list[tuple[int, Segment]]) -> None:
        self._retired = retired
        if retired and not self.closed:
            self._retiring.add(self)
        else:
            self._retiring.discard(self)

    def __repr__(self) -> str:
        return f"<Log {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>"

    # -- flushing ------------------------------------------------------------------------------

    def _mark_dirty(self) -> None:
        self.dirty_since_ms = self.monotonic_ms()
        self._dirty.add(self)

    def start_flush(self) -> FlushPlan:
        """Plan the flush of everything appended so far.  The caller must ``finish`` it."""
        self._check_writable()
        since = [
            segment
            # Also the one that ends there: it may have been sealed since.
            for segment in self._segments_from(max(self.recovery_point - 1, 0))
            if segment.next_offset >= self.recovery_point or segment is self.segments[-1]
        ]
        if since[-1] is self.active:
            self.active.open_all()
        return FlushPlan(self, since, self.files)

    def flush(self, by_owner: ByOwner = call) -> None:
        """fsync what lies behind the recovery point, and move it to the log end.

        In a worker thread with ``by_owner``.
        """
        plan = by_owner(self.start_flush)
        try:
            plan.run()
        finally:
            by_owner(plan.finish)

    def flush_failed(self) -> None:
        """There is something to flush, whether anything was appended or not."""
        if self.dirty_since_ms is None and not self.closed:
            self._mark_dirty()

    def mark_distrusted(self, error: OSError) -> None:
        """Its files are not what was written to them; the next start is told so too.  Any thread;
        ``flush_failed`` is to follow.
        """
        self.flush_error = error
        path = os.path.join(self.directory, paths.UNSYNCED)
        with contextlib.suppress(OSError):
            self.files.close(self.files.open(path, os.O_WRONLY | os.O_CREAT))

    def distrust(self, error: OSError) -> None:
        """See the base."""
        self.mark_distrusted(error)
        self.flush_failed()

    def distrust_as_before(self) -> None:
        """An fsync had failed before the last start, and nothing has been done about it."""
        reason = "an fsync that failed before the last start"
        self.flush_error = OSError(errno.EIO, reason, self.directory)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.flush_failed()

    def flushed_to(self, offset: int, *, directory: bool, epochs: bool) -> None:
        """A flush has made everything below ``offset`` durable."""
        assert offset <= self.log_end_offset
        self.recovery_point = max(self.recovery_point, offset)
        self.point_counts = True
        if directory:
            self.directory_dirty = False
        if epochs:
            self.epochs_dirty = False
        if self.recovery_point == self.log_end_offset:
            self.dirty_since_ms = None
            self._dirty.discard(self)

    @property
    def flushed_end(self) -> int | None:
        """What the checkpoint of recovery points has to say, also where that is lost; None: it has
        nothing to say.
        """
        if not self.point_counts and not self.lost_end:
            return None
        return max(self.recovery_point, self.lost_end)

    def note_lost_end(self, flushed_end: int) -> None:
        """It was flushed up to there, and ends before: it takes nothing until that is settled."""
        assert flushed_end > self.log_end_offset
        self.lost_end = flushed_end
        self._was_cut = True

    @property
    def _lacking(self) -> list[Segment]:
        """The sealed segments that lack their end, or all, of what they had."""
        return [each for each in self.segments[:-1] if each.is_missing or each.lacking]

    @property
    def losses(self) -> list[str]:
        """What is gone of what the log had, and was not deleted: a line for each place."""
        lines = [segment.loss for segment in self._lacking]
        return [*lines, self.what_is_lost] if self.lost_end else lines

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """First and last offset of each of these places."""
        ranges = [
            (segment.damages[-1].first_offset, segment.next_offset - 1) for segment in self._lacking
        ]
        return [*ranges, (self.log_end_offset, self.lost_end - 1)] if self.lost_end else ranges

    def accept_loss(self) -> None:
        """What was lost is given up: the offsets of the log's end are given out again, and between
        segments and at the head there is a gap as any other.
        """
        self.lost_end = 0
        for segment in self._lacking:
            if not segment.is_missing:
                segment.accept_size()
        self.segments = tuple(each for each in self.segments if not each.is_missing)
        if self.log_start_offset < self.segments[0].base_offset:
            self._start_at(self.segments[0].base_offset)

    # -- another process's log -----------------------------------------------------------------

    def observe(
        self, segment: Segment, position: int, data: bytes, producers: Sequence[ProducerBatch]
    ) -> None:
        """The process whose log this is has appended ``data``, whole batches, to ``segment``.

        ``producers``: those of the batches that have one, with positions in the segment's file.
        """
        assert self.read_only
        undecided = self.producers.first_undecided_offset
        if producers:
            staged = self.producers.stage()
            for facts in producers:
                staged.add(facts)
            for aborted in staged.aborted:
                segment.txn_index.observe(aborted)
            self._take_over(segment, 0, staged, producers)
        if undecided is None and self.producers.first_undecided_offset is None:
            segment.stable_size = segment.size
        log_end, self.log_end_offset = self.log_end_offset, segment.next_offset
        stabilized = bool(producers) and self._settle(undecided, log_end)
        for listener in self.listeners:
            listener.appended(self, segment, position, data)
        if stabilized:
            for listener in self.listeners:
                listener.stabilized(self)

    def follow_log_start(self, offset: int) -> None:
        """The process whose log this is has deleted the records below ``offset``."""
        assert self.read_only
        self.log_start_offset = offset
        self._tell_log_start()

    def replace_head(
        self,
        count: int,
        segments: Sequence[Segment],
        retired: Sequence[Segment],
        due_ms: int,
        producers: ProducerState | None = None,
    ) -> None:
        """``segments`` are there instead of the first ``count``; ``retired`` go at ``due_ms``.

        ``producers``: as of the log end, where not all of ``segments`` had been read before.
        """
        assert self.read_only
        self.retired = [*self.retired, *((due_ms, segment) for segment in retired)]
        self.segments = (*segments, *self.segments[count:])
        self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        if producers is not None:
            self._replace_producers(producers)
        elif self.producers.first_undecided_offset is not None:
            self.stabilize()

    def replace_end(self, segments: tuple[Segment, ...], recovered: Recovered) -> None:
        """The process whose log this is has cut it: ``segments`` are as they were loaded anew."""
        assert self.read_only
        self.segments = segments
        self.log_end_offset = self.active.next_offset
        self.counters.truncations += 1
        self._replace_producers(recovered.producers)

    def _replace_producers(self, producers: ProducerState) -> None:
        self.producers = producers
        self._undecided.clear()
        self.stabilize(known=False)

    # -- what the past loses -------------------------------------------------------------------

    @property
    def remembered_log_start(self) -> int | None:
        """What the checkpoint of log starts has to say; None: what the first segment says will do.

        It will not while the log start lies inside a segment, or is about to move
        (``intended_log_starts``), or while a crash could bring segments below it back.
        """
        start = max([self.log_start_offset, *self.intended_log_starts])
        certain = not self.retired and not self.directory_dirty
        return None if start == self.segments[0].base_offset and certain else start or None

    def raise_log_start(self, offset: int) -> None:
        """Records below ``offset`` are deleted (``UnifiedLog.maybeIncrementLogStartOffset``).

        Segments that hold nothing else stay until retention removes them.
        """
        self._check_writable()
        assert self.log_start_offset < offset <= self.high_watermark
        self._start_at(offset)
        self._tell_log_start()

    def _tell_log_start(self) -> None:
        """The log start lies inside a segment, and maybe inside a transaction that is open: what
        comes before it in that counts as stable, as nobody is shown it.
        """
        if self.producers.first_undecided_offset is not None:
            self.stabilize()
            for listener in self.listeners:
                listener.stabilized(self)
        for listener in self.listeners:
            listener.log_start_moved(self)

    def _start_at(self, offset: int) -> None:
        """The log starts there now; nothing that lies below is asked for any more."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.recovery_point = max(self.recovery_point, self.log_start_offset)
        # (``LeaderEpochFileCache.truncateFromStart``)
        past = [epoch for epoch, start in self.epochs if start <= self.log_start_offset]
        first = [(past[-1], self.log_start_offset)] if past else []
        if self.epochs[: len(past)] != first:
            self.epochs = [*first, *self.epochs[len(past) :]]
            self.epochs_dirty = True

    def remove_head(self, count: int, now_ms: int) -> None:
        """Delete the first ``count`` segments (never the active one); the log start moves.

        Their files are renamed at once; ``release_retired`` lets go of them when
        file.delete.delay.ms is over, by the monotonic clock, as is ``now_ms``.
        """
        self.mark_detached(self.detach_head(count, now_ms))

    def detach_head(self, count: int, now_ms: int) -> tuple[Segment, ...]:
        """The same, but for the renaming: the caller soon has that done by ``mark_detached``."""
        self._check_writable()
        assert 0 < count < len(self.segments)
        removed = self.segments[:count]
        for listener in self.listeners:
            listener.removing(self, removed)
        self.book.let_go(self, removed)
        due_ms = now_ms + self.config.file_delete_delay_ms
        # In this order: whoever asks in another thread for an aborted transaction finds it.
        self.retired = [*self.retired, *((due_ms, segment) for segment in removed)]
        self.segments = self.segments[count:]
        self.book.keep(removed)
        self._start_at(self.segments[0].base_offset)
        self.counters.retentions += 1
        self.counters.segments_deleted += count
        self.counters.bytes_deleted += sum(segment.size for segment in removed)
        if self.producers.first_undecided_offset is not None:
            self.stabilize()
        return removed

    def mark_detached(self, segments: Iterable[Segment]) -> None:
        """Rename the files of segments that have left the log, unless they are gone already."""
        self.directory_dirty = True
        if self.dirty_since_ms is None and not self.closed:
            # The next flush makes it durable.
            self._mark_dirty()
        for segment in segments:
            segment.mark_deleted()

    def stage_replacement(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Decide that ``new``, durable ``.cleaned`` segments, replace ``old``, all in their range.

        After a crash the next start carries it out (``swap``); who stages must ``replace`` or
        ``unstage``.  Any thread; waits for the disk.  OSError: nothing is decided then.
        """
        try:
            self.book.let_go(self, old)
            # As long as one is in sight under its old name nothing is decided; and the lowest one
            # decides: its new name is in sight when the others have theirs.
            self.files.sync_directory(self.directory)
            for segment in reversed(new[1:]):
                segment.set_suffix(paths.SWAP)
            self.files.sync_directory(self.directory)
            new[0].set_suffix(paths.SWAP)
            self.files.sync_directory(self.directory)
        except OSError:
            self.unstage(old, new)
            raise

    def unstage(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Take back ``stage_replacement``, and remove the files.  Any thread; waits for the disk.

        The lowest one becomes ``.cleaned`` again first: with that a crash removes all of them.
        """
        new[0].set_suffix(paths.CLEANED)
        self.files.sync_directory(self.directory)
        for segment in new[1:]:
            segment.discard()
        self.files.sync_directory(self.directory)
        new[0].discard()
        self.book.keep(old)
        with contextlib.suppress(OSError):
            self.book.save(self)

    def replace(self, old: Sequence[Segment], new: Sequence[Segment], now_ms: int) -> None:
        """Staged segments take the place of ``old``, sealed ones one behind the other.

        What reads the old ones may go on until file.delete.delay.ms after ``now_ms``, which is by
        the monotonic clock.  Their files are to
        be renamed by ``mark_detached``; ``new`` keep their suffix until ``finish_replacement``,
        before which that has to be durable.
        """
        self._check_writable()
        first = self.segments.index(old[0])
        end = first + len(old)
        assert self.segments[first:end] == tuple(old)
        assert end < len(self.segments), "the active segment stays"
        for listener in self.listeners:
            listener.swapping(self, old, new)
        due_ms = now_ms + self.config.file_delete_delay_ms
        # In this order: whoever asks in another thread for an aborted transaction finds it.
        self.retired = [*self.retired, *((due_ms, segment) for segment in old)]
        self.segments = (*self.segments[:first], *new, *self.segments[end:])
        self.book.keep(old)
        self.may_be_cleaned = True
        for listener in self.listeners:
            listener.swapped(self, old, new)

    def finish_replacement(self, new: Segment) -> None:
        """Give a segment of a swap its name; the old ones' renaming is durable by now."""
        if not new.deleted:
            new.set_suffix("")
        self.directory_dirty = True

    def release_retired(self, now_ms: int, most: int | None = None) -> list[str]:
        """Let go of retired segments whose delay is over; the paths that can be removed now.

        ``most``: of no more segments than that.
        """
        doomed: list[str] = []
        left = len(self.retired) if most is None else most
        waiting: list[tuple[int, Segment]] = []
        bases = {segment.base_offset for segment in self.segments}
        for due_ms, segment in self.retired:
            # One that was replaced and still has its name: the new one is about to get that.
            has_others_name = not segment.deleted and segment.base_offset in bases
            if not left or due_ms > now_ms or segment.leased or has_others_name:
                waiting.append((due_ms, segment))
                continue
            left -= 1
            for listener in self.listeners:
                listener.removed(self, segment)
            doomed += segment.vanish()
            if segment.base_offset not in bases:
                # A cleaned segment and the one that it took the place of have the same base.
                bases.add(segment.base_offset)
                snapshot = self.snapshot_path(segment.base_offset)
                if self.files.exists(snapshot):
                    doomed.append(snapshot)
        self.retired = waiting
        return doomed

    def age_descriptors(self) -> bool:
        """Close the files of segments that were not used since the last call; whether any stay
        open.
        """
        stay = False
        for segment in self.segments:
            if segment.is_open:
                if segment.recently_used:
                    segment.recently_used = False
                    stay = True
                elif not segment.close_descriptors():
                    stay = True
        return stay

    # -- settings, end -------------------------------------------------------------------------

    def set_config(self, config: LogConfig) -> None:
        """New settings of the topic, valid from the next append on."""
        self._configure(config)
        for segment in self.segments:
            segment.set_config(config)

    def relocate(self, directory: str) -> None:
        """The partition's directory was renamed (topic deletion)."""
        self.directory = directory
        for segment in (*self.segments, *(segment for _, segment in self.retired)):
            segment.relocate(directory)
        if self._history is not None:
            self._history.relocate(directory)

    def retire(self, due_ms: int) -> None:
        """The topic was deleted: no more appends; reading ends when the files go at ``due_ms``."""
        self.closed = True
        self.retired = [*self.retired, *((due_ms, segment) for segment in self.segments)]

    def release_all(self, most: int | None = None) -> bool:
        """Let go of every file of a deleted partition; of no more segments than ``most``.

        False while some are left, or somebody reads one.
        """
        left = [segment for _, segment in self.retired]
        if any(segment.leased for segment in left):
            return False
        for segment in left[:most]:
            for listener in self.listeners:
                listener.removed(self, segment)
            segment.let_go()
        self.retired = self.retired[len(left[:most]) :]
        return not self.retired

    def close(self) -> None:
        """Flush, trim the files, write the last snapshot, release everything (clean stop)."""
        if self.closed:
            return
        if not self.read_only and not self.lost_end:
            self.active.trim()
            self._write_snapshot(self.log_end_offset)
            self.snapshot_offset = self.log_end_offset
            self._drop_old_snapshots()
            self.directory_dirty = True
            with contextlib.suppress(CorruptRecord):
                # A sealed segment is gone, which the book tells the next start.
                self.flush()
            self.book.save(self)
        if self._history is not None:
            self._history.log_start = self.log_start_offset
            self._history.save(self.segments)
        self.abandon()

    def abandon(self) -> None:
        """Release everything and write nothing, as a crash would."""
        self.closed = True
        for _, segment in self.retired:
            # Its files may be gone, with whatever their directory held.
            segment.let_go()
        for segment in self.segments:
            segment.close()

    def _drop_old_snapshots(self) -> None:
        keep = {segment.base_offset for segment in self.segments} | {self.log_end_offset}
        for name, is_directory in self.files.scan(self.directory):
            if name.endswith(paths.SNAPSHOT) and not is_directory:
                offset = paths.base_offset_of(name)
                if offset is not None and offset not in keep:
                    self.files.unlink(os.path.join(self.directory, name))

    # -- faults --------------------------------------------------------------------------------

    def note_damage(self, segment: Segment, found: Iterable[Damage], now_ms: int) -> int:
        """Places of ``segment`` were found damaged: how many of them are news.

        Reading them fails from now on, and nothing is appended behind them: an active segment is
        closed.  OSError where no new one can be made: call it again.
        """
        if self.closed:
            return 0
        places = merged(segment.damages, found)
        report(segment.log_path, [place for place in places if place not in segment.damages])
        segment.damages = places
        news = sum(place not in segment.told_damages for place in places)
        if news:
            segment.told_damages = places
            self.counters.damages += news
            for listener in self.listeners:
                listener.damaged(self, segment)
        is_written = not self.read_only and not self.lost_end
        if segment.damages and segment is self.active and is_written:
            self.roll(now_ms)
        return news
