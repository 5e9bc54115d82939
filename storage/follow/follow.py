"""Follows a partition that another process writes: a broker's, while it runs.

The follower writes nothing and takes no lock. It derives the writer's changes from names and sizes,
and reports them to the listeners like a log of our own:

    appended, rolled     whole batches with a correct CRC, in any segment
    removing             segments were deleted from the head (retention)
    swapping, swapped    a cleaner has replaced segments of the head
    repacking, repacked  a segment has the same records in another file
    truncated            the last batch that was read is no longer at its place

A look costs two stats if nothing has changed. The directory's mtime shows changes of names, the
active log's size and mtime changes of bytes. An mtime that is younger than `FRESH_NS` may hide
another change at the same moment: the next look looks again.

After a change of names, the directory is loaded by the functions that open a partition
(`LogLoader`), also the manifest. A segment whose log has the same inode, size and mtime is not
loaded again, and the active segment is read on from its known end. A cleaner's decided swap counts
as finished, whether the writer is finishing it or was stopped. If names change during the load,
it begins again; if that does not help, the next look loads.

The follower first takes repacked segments, which have the same records, then reads appended
batches, then changes of the head. A cleaner takes only decided records. The markers that decide
them are in the files before that, and later rounds remove them. While the follower may not show
those records yet (above `limit`), it keeps the replaced segments in the log: nothing leaves the log
before it could be shown, as long as its files can be read. They cannot be read if a cleaner has
twice rewritten a part that the follower had not read, or only in part. Then the log continues by
offset, as a consumer does: the follower swaps in the remaining segments before listeners are
informed of later ones (`_add_after_unread`). It also does that if the marker of an open transaction
may have been removed unread: the next marker of the same producer ends another transaction. The
writer removes or cleans only below its high watermark, even if it last recorded a lower one.

A daemon that repacks a segment first records both sizes in its history (`storage.state.history`).
By these the follower recognizes the new file. If the old file was deleted before all of it was
read, the new one has the rest, unless the history says that records of it may have been removed
meanwhile. Then the file counts as cleaned.

Segments that have left the log are in `Log.retired`, as in a log of our own: readers continue until
file.delete.delay.ms is over, through a descriptor or the name `.deleted`.

Not here: reading at the end (`follow_tail`), the list of partitions (`follow_directory`).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Callable, Sequence

from storage import paths
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.follow.follow_tail import FileReplaced, LogTail, is_of
from storage.log.log import Log
from storage.record.scan import batches
from storage.recovery.partition import LogLoader
from storage.recovery.segment import reaches
from storage.segment.cut import cut_files
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.history import writers_history
from storage.state.producer_state import ProducerState

# An mtime younger than this, in ns, may also be that of a later change.
FRESH_NS = 100_000_000
# The kernel lists a directory of more names in several calls: a name that changes between two may
# be in none of them, or in both.
_LISTED_AT_ONCE = 200
# Attempts of a look.
_TRIES = 4

_log = logging.getLogger(__name__)


class LogFollower:
    """Keeps one log equal to its files. `look` runs on the log thread; `intact` is thread-safe.

    `limit`: the log ends before this offset (the high watermark); None: it ends where its files do.
    """

    def __init__(
        self, log: Log, clock_ns: Callable[[], int], limit: Callable[[], int] | None = None
    ) -> None:
        assert log.read_only
        self.log = log
        # Device and inode of the log's directory. Another directory may get its name.
        self.directory = self._directory()[0]
        self._clock_ns = clock_ns
        self._tail = LogTail(log, clock_ns, limit)
        self._limit_seen = -1
        self._names_seen: int | None = None
        # The loaded segments of the last listing, until the log has taken all changes.
        self._not_taken: dict[int, Segment] = {}
        # Whether the segment before the active one has records that were not read. The segment that
        # has them must be taken first.
        self._has_unread = False
        if limit is not None:
            start = log.log_start_offset
            visible, producers = self._tail.below_limit(limit(), log.segments, start, log.producers)
            end = max(visible[-1].next_offset, start)
            log.take_segments(visible, (), log_end=end, producers=producers)
        self._tail.mark_last()

    def intact(self) -> bool:
        """Return whether the last batch that was read is unchanged (`LogTail`). Thread-safe."""
        return self._tail.intact()

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> bool:
        """Read the writer's changes; return whether there were any. Errors: CorruptRecord if the
        log is damaged, OSError; earlier changes stay.
        """
        if self.log.closed or not self.log.active.holds_batches:
            return False
        segments, end = self.log.segments, self.log.log_end_offset
        is_done = False
        for _ in range(_TRIES):
            try:
                is_done = self._look()
                break
            except (FileNotFoundError, SegmentGone, FileReplaced):
                self._names_seen = None
        if not is_done:
            self._keep_readable()
        return self.log.segments is not segments or self.log.log_end_offset != end

    def _look(self) -> bool:
        """Look once; return False if the log could not take all changes of the files."""
        directory, stamp = self._directory()
        if directory != self.directory:
            # Another partition has the name: this log stays as it is.
            return True
        if self._tail.limit is not None and (limit := self._tail.limit()) != self._limit_seen:
            self._limit_seen = limit
            self._tail.seen = None
        try:
            is_done = stamp == self._names_seen or self._look_at_names(stamp)
        except (FileNotFoundError, SegmentGone):
            raise
        except (OSError, StorageError):
            # A segment of the head cannot be read.
            with contextlib.suppress(OSError, StorageError):
                self._look_past_head()
            self._keep_readable()
            raise
        self._look_at_tail()
        return is_done

    def _directory(self) -> tuple[tuple[int, int], int]:
        """Return device and inode, and the mtime, of the directory that has the log's name."""
        found = self.log.files.file_stat(self.log.directory)
        return (found.st_dev, found.st_ino), found.st_mtime_ns

    def _check_directory(self) -> None:
        """Check that what was just loaded by its name is this log's. Errors: FileReplaced."""
        if self._directory()[0] != self.directory:
            raise FileReplaced

    def _look_at_names(self, stamp: int) -> bool:
        """Let the log have the segments of its directory; return False if that has to wait.

        `stamp`: the directory's mtime.
        """
        found = self._load(self.log.active.base_offset + 1)
        if any(each.lost and each not in self.log.segments for each in found.values()):
            # The writer withdraws an entry of its manifest before it removes anything.
            later = self.log.files.file_stat(self.log.directory).st_mtime_ns
            if later != stamp or later + FRESH_NS >= self._clock_ns():
                raise FileReplaced
        is_done = self._compare(found)
        if is_done:
            self._not_taken = {}
        if is_done and stamp + FRESH_NS < self._clock_ns():
            self._names_seen = stamp
        return is_done

    def _look_past_head(self) -> None:
        """Read what the writer has appended, although the head cannot be changed.

        A hidden part that can no longer be read comes first, from its cleaned segments. Errors:
        OSError.
        """
        hidden = [each for each in self.log.segments if _has_hidden_bytes([each])]
        if self._can_hold([each for each in hidden if not self._leads_to(each)]):
            for look in self._look_at_rolls, self._look_at_tail:
                with contextlib.suppress(FileReplaced, OSError, StorageError):
                    look()

    def _look_at_rolls(self) -> None:
        """Begin the segments that the writer has begun. All others of the log stay as they are."""
        log, not_taken = self.log, self._not_taken
        if self._has_unread:
            return
        try:
            found = self._load(log.segments[0].base_offset)
        finally:
            # Nothing was loaded.
            self._not_taken = not_taken
        if not self._is_kept(log.active, found):
            return
        active = log.active.base_offset
        later = [each for each in found.values() if each.base_offset > active]
        for each in later:
            if not each.lost and not self._roll(each):
                return

    def _keep_readable(self) -> None:
        """Open the segments that the writer has renamed, before it removes them: the log still has
        them, because their records cannot be shown yet, or the writer is not ready.
        """
        for segment in self.log.segments:
            if segment.fd >= 0:
                # Keeps it open.
                segment.recently_used = True
            elif not self._leads_to(segment):
                with contextlib.suppress(SegmentGone, OSError):
                    segment.open_log()

    def _leads_to(self, segment: Segment) -> bool:
        """Return whether a segment's name still belongs to its file."""
        with contextlib.suppress(FileNotFoundError, FileReplaced):
            self._stat_of(segment)
            return True
        return False

    def _load(self, end: int) -> dict[int, Segment]:
        """Return the directory's segments by base offset, ascending: unchanged ones of the log,
        loaded ones below `end`, and later ones, which are neither read nor sealed.

        Errors: FileReplaced if names of the log's segments change meanwhile.
        """
        active = self.log.active
        known = {segment.base_offset: segment for segment in self.log.segments}

        def find(base: int) -> Segment | None:
            listed = loader.partition.segment(base)
            path = listed.log_path
            waiting = self._not_taken.get(base) if base < end else None
            for segment in (known.get(base), waiting):
                if segment and not segment.lost and self._is_unchanged(segment, path):
                    if segment.log_path != path:
                        # The writer has finished its swap, or given up a deletion.
                        segment.note_renamed_to(listed.suffix)
                        segment.forget_indexes()
                    return segment
            return None if base < end else self._identified(listed, path)

        names = self._names()
        loader = LogLoader(self._tail.files_of_log(self.log.log_start_offset), 0, find)
        segments = {each.base_offset: each for each in loader.load_segments(names)}
        self._check_directory()
        for base, segment in segments.items():
            old = known.get(base)
            if segment is not old and segment.sealed:
                # While the index has the listed name.
                _ = segment.txn_index
            if old is not None and _is_same(old, segment):
                segments[base] = old
        is_kept = segments.get(active.base_offset) is active
        for name in {*names}.symmetric_difference(self._names()):
            base_offset = paths.base_offset_of(name)
            if base_offset is not None and (base_offset <= active.base_offset or not is_kept):
                raise FileReplaced
        self._not_taken = {base: each for base, each in segments.items() if each.sealed}
        return segments

    def _names(self) -> list[str]:
        """Return all file names at one moment, sorted. Errors: FileReplaced if they are in flux."""

        def files() -> list[str]:
            found = self.log.files.listing(self.log.directory)
            return sorted(name for name, kind in found if kind != "directory")

        names = files()
        if len(names) > _LISTED_AT_ONCE and files() != names:
            raise FileReplaced
        return names

    def _is_unchanged(self, segment: Segment, path: str) -> bool:
        """Return whether a segment's log is at `path`, and unchanged; the active one may be
        longer.
        """
        if segment.identity is None and not segment.sealed and not segment.size:
            # When the log was opened, the writer had made the directory but not the segment.
            self._identified(segment, path)
        now = self.log.files.file_stat(path)
        if not is_of(segment, now, self.log.files, path):
            return False
        return not segment.sealed or (now.st_size, now.st_mtime_ns) == _facts(segment)

    def _identified(self, segment: Segment, path: str) -> Segment:
        """Give a segment that is not read yet the identity and mtime of its log at `path`."""
        segment.identity = self.log.files.identity(path)
        segment.mtime_ns = self.log.files.file_stat(path).st_mtime_ns
        return segment

    # -- comparing -----------------------------------------------------------------------------

    def _compare(self, found: dict[int, Segment]) -> bool:
        """Let the log have the segments of a listing; return False if that has to be repeated."""
        if not found:
            return True
        self._update_visible_end(found)
        if self._has_unread and not self._is_written_over(found):
            self._take_unread(found)
        # (An unread part that was written over is left to the truncation, too.)
        if (self._has_unread or not self._is_kept(self.log.active, found)) and (
            self._is_written_over(found) or not self._continue_past_deleted_active(found)
        ):
            # Before the truncation: their text stays where it is.
            self._take_repacked(found)
            self._take_over()
            return True
        self._take_repacked(found)
        changed = self._changed(found)
        if _has_hidden_bytes(changed) and not self._can_hold(changed):
            # Before listeners are informed of anything after the hidden part.
            self._change_head(found)
        try:
            self._read_on()
            active = self.log.active.base_offset
            later = [each for each in found.values() if each.base_offset > active]
            is_read = all(self._roll(each) for each in later if not each.lost)
        except CorruptRecord:
            self._change_head(found)
            raise
        return self._change_head(found) and is_read

    @staticmethod
    def _is_kept(segment: Segment, found: dict[int, Segment]) -> bool:
        """Return whether the log keeps a segment."""
        return found.get(segment.base_offset) is segment

    def _changed(self, found: dict[int, Segment]) -> list[Segment]:
        """Return the log's segments that were replaced or removed."""
        return [each for each in self.log.segments if not self._is_kept(each, found)]

    def _update_visible_end(self, found: dict[int, Segment]) -> None:
        """Raise the limit if segments were replaced or removed.

        The writer removes or cleans only below the high watermark, which it records now and then.
        Except for a truncation, there is no other reason for a new file, even if all of it is
        hidden.
        """
        if self._tail.limit is None or self._is_written_over(found):
            return
        for segment in self._changed(found):
            end = next((base for base in found if base > segment.base_offset), 0)
            if end > self._tail.decided:
                self._tail.decided = end
                self._tail.seen = None

    def _change_head(self, found: dict[int, Segment]) -> bool:
        """Replace the segments that differ from a listing; return False if it has to wait."""
        segments = self.log.segments
        count = len(segments)
        bases = [base for base in found if base <= segments[-1].base_offset]
        while count and bases and found[bases[-1]] is segments[count - 1]:
            count -= 1
            bases.pop()
        changed = [each for each in segments[:count] if not self._is_kept(each, found)]
        if bases and _has_hidden_bytes(changed) and self._can_hold(changed):
            return False
        if bases or count:
            self._replace_head(count, self._head(segments[count].base_offset, found))
        return True

    def _take_repacked(
        self, found: dict[int, Segment], producers: ProducerState | None = None
    ) -> None:
        """Let the log have the sealed segments of a listing that its writer has repacked.

        `producers`: as for `_replace_head`.
        """
        log = self.log
        # (If the active one was replaced, the log was truncated.)
        changed = [
            each
            for each in self._changed(found)
            if each.base_offset in found and each is not log.active
        ]
        if not changed:
            return
        recorded = writers_history(log.files, log.directory)
        if recorded.repacked:
            self._head(log.active.base_offset, found)
        repacked: list[tuple[Segment, Segment]] = []
        for old in changed:
            new = found.get(old.base_offset, old)
            is_whole = new.sealed and not (new.lost or new.lost_bytes or old.lost or old.damages)
            if is_whole and new.identity != old.identity and recorded.is_repacked(old, new):
                repacked.append((old, new))
        if repacked:
            before, after = zip(*repacked, strict=True)
            for old in before:
                self._leave(old)
            log.take_repacked(before, after, recorded.repacked, producers)

    def _head(self, end: int, found: dict[int, Segment]) -> list[Segment]:
        """Return the segments of a listing below `end`; read those that were not read."""
        head = {base: each for base, each in found.items() if base < end}
        if not all(each.sealed for each in head.values()):
            head = {base: each for base, each in self._load(end).items() if base < end}
            later = {base: each for base, each in found.items() if base >= end}
            found.clear()
            found.update(head | later)
        return list(head.values())

    def _can_hold(self, changed: Sequence[Segment]) -> bool:
        """Return whether replaced segments can still be read."""
        try:
            for segment in changed:
                self._hold(segment)
        except (FileNotFoundError, SegmentGone):
            return False
        return True

    def _hold(self, segment: Segment) -> None:
        """Open a segment that was replaced or removed. Errors: SegmentGone, OSError."""
        if not self._leads_to(segment):
            segment.note_renamed_to(paths.DELETED)
        segment.open_log()

    # -- the end of the log --------------------------------------------------------------------

    def _look_at_tail(self) -> None:
        if self._has_unread:
            return
        active = self.log.active
        found = self._stat_of(active)
        tail = (found.st_size, found.st_mtime_ns)
        if tail == self._tail.seen:
            return
        if self._tail.is_cut(active, found):
            self._take_over()
            return
        self._tail.drain()
        if found.st_mtime_ns + FRESH_NS < self._clock_ns() and self.log.active is active:
            self._tail.seen = tail

    def _stat_of(self, segment: Segment) -> os.stat_result:
        """Return the stat of a segment's log. Errors: FileReplaced if its name has another file."""
        found = self.log.files.file_stat(segment.log_path)
        if not is_of(segment, found, self.log.files):
            raise FileReplaced
        return found

    def _read_on(self) -> None:
        """Read the new bytes of the active segment. Errors: FileReplaced if it was truncated."""
        active = self.log.active
        if self._tail.is_cut(active, self._stat_of(active)):
            self._take_over()
            raise FileReplaced
        self._tail.drain()

    def _roll(self, following: Segment) -> bool:
        """Begin a segment; return False if the previous one is not read to its end yet."""
        log, active, base = self.log, self.log.active, following.base_offset
        self._read_on()
        now = self._stat_of(active)
        if active.size != now.st_size:
            self._tail.raise_if_corrupt(active)
            return False
        if base < active.next_offset:
            raise FileReplaced
        if base > active.next_offset and not (log.files.in_order or log.may_have_gaps):
            return False  # the records between have not appeared yet
        active.mtime_ns = now.st_mtime_ns
        self._begin(following)
        active.forget_indexes()
        return True

    def _begin(self, following: Segment) -> None:
        """Seal the active segment, and make `following` the active one; it is not read yet."""
        log, active = self.log, self.log.active
        active.next_offset = following.base_offset
        active.sealed = True
        segments = (*log.segments, following)
        log.sync_with_writer(segments=segments, log_end=following.base_offset)
        self._tail.begin_segment()
        for listener in log.listeners:
            listener.rolled(log, active, following)

    # -- changes of the past ---------------------------------------------------------------------

    def _is_written_over(self, found: dict[int, Segment]) -> bool:
        """Return whether a segment's file has other bytes, or was set aside, as only a truncation
        does.
        """
        log, changed = self.log, self._changed(found)
        aside = cut_files(log.files, log.directory, paths.DIVERGED) if changed else ()
        identities = {log.files.identity(path) for path in aside}
        for each in changed:
            now = found.get(each.base_offset)
            has_file = now is not None and now.identity == each.identity and not now.lost
            if each.identity is not None and (has_file or each.identity in identities):
                return True
        return False

    def _continue_past_deleted_active(self, found: dict[int, Segment]) -> bool:
        """Continue after an active segment that the writer has rolled, and then deleted or cleaned.

        The follower reads the segment's last batches, and segments that were added and removed
        since, from the files that wait for deletion; without those, from a cleaner's output. Return
        False if no segment follows it, so that the log was truncated.

        While a transaction is open, a gap of offsets may have had the marker that ended it. Then
        the cleaned segments also replace the records that the follower has read. Errors:
        FileReplaced while such a gap lies above the limit.
        """
        log = self.log
        while not self._is_kept(log.active, found):
            active = log.active
            at = max(active.next_offset, active.base_offset + 1)
            if max(found) < at:
                return False
            with contextlib.suppress(FileNotFoundError, SegmentGone):
                self._hold(active)
                if self._tail.is_cut(active, active.log_stat()):
                    return False
                self._tail.drain()
                active.mtime_ns = active.log_stat().st_mtime_ns
                if self._tail.limit is not None and active.size < active.log_stat().st_size:
                    raise FileReplaced
            at = max(active.next_offset, active.base_offset + 1)
            is_open = log.producers.first_undecided_offset is not None
            if (path := self._path_of_deleted(at, found)) is not None:
                deleted = Segment(log.files, log.directory, at, log.config, writable=False)
                self._identified(deleted, path)
                self._check_directory()
                with contextlib.ExitStack() as unless_begun:
                    unless_begun.callback(deleted.close_descriptors)
                    if not (is_open and _has_gaps(deleted)):
                        # The file may have lost its name: it stays open.
                        unless_begun.pop_all()
                        self._begin(deleted)
                        continue
            later = [each for each in found.values() if each.base_offset >= at and not each.lost]
            if not later:
                return False
            is_cleaned = self._is_cleaned(active.next_offset, later[0].base_offset, found)
            base = _end_of_gaps(active.next_offset, later) if is_open or is_cleaned else None
            if base is not None and self._tail.limit is not None and base > self._tail.limit():
                # A replica also has its leader's gaps: they do not show that the limit is old.
                if is_open:
                    raise FileReplaced
                base = later[0].base_offset
            if base is None:
                self._begin(later[0])
            else:
                self._add_after_unread(base, found)
        return True

    def _path_of_deleted(self, base: int, found: dict[int, Segment]) -> str | None:
        """Return the path of a segment's log that waits for deletion, or that a swap replaces."""
        listed = found.get(base)
        path = os.path.join(self.log.directory, paths.file_name(base, paths.LOG))
        for each in (path + paths.DELETED, path):
            if (listed is None or listed.log_path != each) and self.log.files.exists(each):
                return each
        return None

    def _add_after_unread(self, base: int, found: dict[int, Segment]) -> None:
        """Begin the segment `base`, while those before it have, or have had, unread records.

        Those of the listing replace the old ones before listeners are informed of later ones.
        """
        active = self.log.active
        self._head(base, found)
        read_to = active.next_offset
        self._begin(found[base])
        # Tells listeners the end of the part that was read.
        active.next_offset = read_to
        self._has_unread = True
        self._take_unread(found)

    def _take_unread(self, found: dict[int, Segment]) -> None:
        """Let the log have the segments of a listing before the active one, which is not read yet.

        Errors: CorruptRecord, SegmentGone, OSError; the next look has to call it again.
        """
        log = self.log
        new = self._head(log.active.base_offset, found)
        # (The writer may have deleted all of them.)
        producers = self._tail.producers_of(new or log.segments[-1:])
        self._check_directory()
        self._take_repacked(found, producers)
        count = len(log.segments) - 1
        while count and new and new[-1] is log.segments[count - 1]:
            count -= 1
            new.pop()
        if count or new:
            self._replace_head(count, new, producers)
        self._has_unread = False

    def _is_cleaned(self, start: int, end: int, found: dict[int, Segment]) -> bool:
        """Return whether a cleaned segment may have some of the offsets from `start` to below
        `end`.

        They were not read: a reader that continued at `end` would miss them.
        """
        there = (base for base in found if base < end and not found[base].is_lost)
        before = max(there, default=None)
        return before is not None and start < end and reaches(found[before], start)

    def _replace_head(
        self, count: int, new: Sequence[Segment], producers: ProducerState | None = None
    ) -> None:
        """Replace the first `count` segments by `new`; without any, they were deleted.

        `producers`: as of the log end, if not all of `new` was read before.
        """
        log = self.log
        old = log.segments[:count]
        lost = [segment for segment in old if segment not in new]
        for segment in lost:
            self._leave(segment)
        for listener in log.listeners:
            if new:
                listener.swapping(log, old, new)
            else:
                listener.removing(log, old)
        first = log.segments[0].base_offset
        segments = (*new, *log.segments[count:])
        start = max(log.log_start_offset, segments[0].base_offset)
        log.take_segments(segments, lost, log_start=start, producers=producers)
        if new and new[0].base_offset < first == log.log_start_offset:
            # It was loaded while a cleaner swapped its first segments.
            log.sync_with_writer(log_start=new[0].base_offset)
        for segment in new:
            if segment.lost and segment not in old:
                _log.warning("%s", segment.loss)
        if new:
            for listener in log.listeners:
                listener.swapped(log, old, new)
        for before, after in itertools.pairwise(log.segments):
            if after.lost:
                # It was missing before `before` was seen to end.
                before.next_offset = min(before.next_offset, after.base_offset)
            elif before in new and not before.damages:
                # A swap was seen in its middle, when a segment between them still had its name.
                before.next_offset = after.base_offset

    def _leave(self, segment: Segment) -> None:
        """Release a segment for deletion, unless its file was overwritten or has a new inode."""
        if self._leads_to(segment):
            # If the writer was killed in a swap, it removes it as soon as it starts again.
            with contextlib.suppress(SegmentGone, OSError):
                self._hold(segment)
        seen: list[os.stat_result] = []
        if segment.is_open and not segment.is_lost:
            with contextlib.suppress(FileNotFoundError, SegmentGone):
                seen.append(segment.log_stat())
        for suffix in ("", paths.DELETED):
            with contextlib.suppress(FileNotFoundError):
                seen.append(self.log.files.file_stat(segment.log_path + suffix))
        for now in seen:
            same = (segment.identity or (0, 0, 0))[:2] == (now.st_dev, now.st_ino)
            if same and (now.st_size, now.st_mtime_ns) != _facts(segment):
                _give_up(segment)
        segment.note_renamed_to(paths.DELETED)

    def _take_over(self) -> None:
        """Load the end of the log again, as far as it has changed."""
        log = self.log
        names = self._names()
        loader = LogLoader(self._tail.files_of_log(), 0)
        recovered = loader.load()
        self._check_directory()
        fresh = recovered.segments
        # (The writer may drop everything before it makes a new first segment.)
        if not loader.bases or self._names() != names:
            raise FileReplaced
        old = log.segments
        same = 0
        while same < min(len(old), len(fresh)) - 1 and _is_same(old[same], fresh[same]):
            same += 1
        offset, size = self._tail.end_of_same(old[same], fresh[same])
        self._tail.decided = min(self._tail.decided, offset)
        undecided = self._tail.first_undecided_at(offset, size, [*old[:same], fresh[same]])
        if undecided is not None and undecided < min(offset, log.last_stable_offset):
            # The truncation has removed the marker by which its records were shown or hidden.
            while same and old[same].base_offset > undecided:
                same -= 1
            offset = max(undecided, old[same].base_offset)
            size = SegmentReader(fresh[same]).position_of(offset) or 0
        new = (*old[:same], *fresh[same:])
        for segment in old[same:]:
            if not self._leads_to(segment):
                segment.note_renamed_to(paths.DELETED)
        end = new[-1].next_offset
        # The log start falls only if the log was truncated below it. Then no file of it stays.
        start = new[0].base_offset
        if not {each.identity for each in old}.isdisjoint(each.identity for each in new):
            start = min(max(log.log_start_offset, start), end)
        visible: Sequence[Segment] = new
        producers = recovered.producers
        if self._tail.limit is not None:
            limit = self._tail.limit()
            visible, producers = self._tail.below_limit(limit, visible, start, producers)
            self._check_directory()
        end = visible[-1].next_offset
        left = [*(each for _, each in log.retired), *old[same:]]
        for segment in left:
            # The first access reads the file, which may fail while nothing has changed.
            _ = segment.txn_index
        for listener in log.listeners:
            listener.truncating(log)
        log.take_segments(visible, (), log_start=start, log_end=end, producers=producers)
        self._has_unread = False
        log.counters.truncations += 1
        old[same].size = size
        old[same].stable_size = min(old[same].stable_size, size)
        for _, segment in log.retired:
            if segment.identity == old[same].identity and segment.size > size:
                # This truncation took the rest of an earlier one.
                _give_up(segment)
        log.transactions.forget_from(left, offset)
        log.release_later(old[same:], log.monotonic_ms())
        self._tail.mark_last()
        for listener in log.listeners:
            listener.truncated(log, old[same:], log.segments[same:], offset)


def _facts(segment: Segment) -> tuple[int, int]:
    """Return the size and mtime of a sealed segment's log."""
    return segment.size - segment.lost_bytes, segment.mtime_ns


def _is_same(old: Segment, new: Segment) -> bool:
    """Return whether two sealed segments have the same file, and lack the same bytes of it."""
    is_same = (old.base_offset, old.identity) == (new.base_offset, new.identity)
    return is_same and _facts(old) == _facts(new) and old.lost_bytes == new.lost_bytes


def _has_hidden_bytes(changed: Sequence[Segment]) -> bool:
    """Return whether a replaced segment has bytes that are not stable yet.

    Readers were not shown those bytes; they get them from the old segment after the transactions
    are decided.
    """
    return any(segment.stable_size < segment.size for segment in changed)


def _end_of_gaps(offset: int, segments: Sequence[Segment]) -> int | None:
    """Return the base offset of the first of these segments, the last ones of a log, after which no
    offset is missing; None if none from `offset` on is missing.

    A cleaner leaves such gaps, but never in the last segment. Errors: SegmentGone, OSError.
    """
    for segment, following in reversed(list(itertools.pairwise(segments))):
        try:
            if _has_gaps(segment, following.base_offset):
                return following.base_offset
        finally:
            segment.close_descriptors()
    return segments[0].base_offset if segments[0].base_offset > offset else None


def _has_gaps(segment: Segment, end: int | None = None) -> bool:
    """Return whether offsets are known to be missing in a segment that was not read.

    `end`: the offset after it. A file that the disk cannot read has none: the segments before it
    are not to wait for it. Errors: SegmentGone, OSError.
    """
    offset = segment.base_offset
    try:
        for _, header in batches(segment.source(), 0):
            if header.base_offset > offset:
                return True
            offset = header.last_offset + 1
    except CorruptRecord:
        return False
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EIO):
            raise
        return False
    return end is not None and offset < end


def _give_up(segment: Segment) -> None:
    """Read a segment no more: its bytes were deleted, though a file has its inode."""
    segment.identity = (0, 0, 0)
    segment.close_descriptors()
