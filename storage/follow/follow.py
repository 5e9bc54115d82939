"""Follows a partition that another process writes: a broker's, while it runs.

The follower writes nothing and takes no lock. It derives the writer's changes from names and sizes,
and reports them to the listeners like a log of our own:

    appended, rolled     whole batches with a correct CRC, in any segment
    removing             segments were deleted from the head (retention)
    swapping, swapped    a cleaner has replaced segments of the head
    truncated            the last batch that was read is no longer at its place

A look costs two stats if nothing has changed. The directory's mtime shows changes of names, the
active log's size and mtime changes of bytes. An mtime that is younger than `FRESH_NS` may hide
another change at the same moment: the next look looks again. A segment is unchanged if its log has
the same inode, size and mtime.

The writer may rename files after the follower has listed names and before it opens them. Then the
look begins again; if that does not help, the next one does. While a cleaner's `.swap` files exist,
old and new segments are mixed, and the look takes only segments after the active one. If the old
segments cannot be read any more, the writer was stopped in the middle: then its swap counts as
finished.

The follower first reads appended batches, then changes of the head. A cleaner takes only decided
records, and the markers that decide them are in the files before that. While the follower may not
show those yet (above `limit`), it keeps the replaced segments in the log: nothing leaves the log
before it could be shown, as long as its files can be read. They cannot be read if a cleaner has
twice rewritten a part that the follower had not read, or only in part. Then the log continues by
offset, as a consumer does: the follower swaps in the remaining segments before listeners are
informed of later ones (`_add_after_unread`). The writer removes or cleans only below its high
watermark, even if it last recorded a lower one.

Segments that have left the log are in `Log.retired`, as in a log of our own: readers continue until
file.delete.delay.ms is over, through a descriptor or the name `.deleted`.

Not here: reading at the end (`follow_tail`), the list of partitions (`follow_directory`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptCheckpoint, CorruptRecord, SegmentGone
from storage.files import Identity
from storage.follow.follow_tail import FileReplaced, LogTail, is_of
from storage.log.log import Log
from storage.recovery.partition import LogLoader
from storage.recovery.segment import SegmentLoader, missing_segment
from storage.recovery.swap import as_if_finished, replaced_range
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state import manifest_file
from storage.state.manifest_file import ManifestEntry
from storage.state.producer_state import ProducerState

# An mtime younger than this, in ns, may also be that of a later change.
FRESH_NS = 100_000_000
# The kernel lists a directory of more names in several calls: a name that changes between two may
# be in none of them, or in both.
_LISTED_AT_ONCE = 200
# Attempts of a look.
_TRIES = 4

_log = logging.getLogger(__name__)


class Listing(NamedTuple):
    """The logs of a partition's directory, by base offset, ascending.

    `deleted`: those that wait for deletion. `is_mixed`: a cleaner is swapping some. `swapped`:
    those whose files' names still end in `.swap`, though they count as swapped.
    """

    logs: Mapping[int, os.stat_result]
    deleted: Mapping[int, os.stat_result]
    is_mixed: bool
    swapped: frozenset[int]


class LogFollower:
    """Keeps one log equal to its files. `look` runs on the log thread; `intact` is thread-safe.

    `limit`: the log ends before this offset (the high watermark); None: it ends where its files do.
    """

    def __init__(
        self, log: Log, clock_ns: Callable[[], int], limit: Callable[[], int] | None = None
    ) -> None:
        assert log.read_only
        self.log = log
        self._clock_ns = clock_ns
        self._tail = LogTail(log, clock_ns, limit)
        self._limit_seen = -1
        self._names_seen: int | None = None
        # The offsets that a cleaner is replacing now: from the first to below the second.
        self._replaced = 0, 0
        # The manifest's entries of segments that are missing or truncated, by base offset.
        self._entries: dict[int, ManifestEntry] = {}
        if log.losses:
            self._entries = self._manifest_entries()
        if limit is not None:
            self._tail.truncate_view(limit())
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
        log = self.log
        if self._tail.limit is not None and (limit := self._tail.limit()) != self._limit_seen:
            self._limit_seen = limit
            self._tail.seen = None
        stamp = log.files.file_stat(log.directory).st_mtime_ns
        is_done = stamp == self._names_seen or self._look_at_names(stamp)
        self._look_at_tail()
        return is_done

    def _look_at_names(self, stamp: int) -> bool:
        """Let the log have the segments of its directory; return False if that has to wait.

        `stamp`: the directory's mtime.
        """
        found = self._list(self._names())
        self._replaced = 0, 0
        if found.is_mixed:
            # Segments that a cleaner replaces are below the limit. A writer that is killed now
            # removes them as soon as it starts again: so unread parts are read now.
            new = [name for name in self._names() if name.endswith(paths.LOG + paths.SWAP)]
            self._replaced = replaced_range(self.log.files, self.log.directory, new)
            self._decide_below(self._replaced[1])
            all_can = self._keep_readable(*self._replaced)
            if not all_can or not self._go_on_while_mixed(found):
                self._compare(self._list_as_if_finished(found))
            return False
        for segment in self.log.segments:
            if segment.log_path.endswith(paths.SWAP):
                # The writer was stopped in a swap, and has finished it now.
                segment.note_renamed_to("")
        self._entries = self._lost_entries(found, stamp)
        is_done = self._compare(found)
        if is_done and stamp + FRESH_NS < self._clock_ns():
            self._names_seen = stamp
        return is_done

    def _keep_readable(self, low: int = 0, high: int = 0) -> bool:
        """Open the segments that the writer has renamed, before it removes them: the log still has
        them, because their records cannot be shown yet, or the writer is not ready. Open also those
        from `low` to below `high`.

        Return whether all of the log can be read.
        """
        all_can = True
        for segment in self.log.segments:
            if segment.fd >= 0:
                # Keeps it open.
                segment.recently_used = True
            elif low <= segment.base_offset < high or not self._leads_to(segment):
                try:
                    segment.open_log()
                except (SegmentGone, OSError):
                    all_can = False
        return all_can

    def _leads_to(self, segment: Segment) -> bool:
        """Return whether a segment's name still belongs to its file."""
        with contextlib.suppress(FileNotFoundError, FileReplaced):
            self._stat_of(segment)
            return True
        return False

    def _list(self, names: Iterable[str], swapped: frozenset[int] = frozenset()) -> Listing:
        """Stat the logs among these names. Errors: FileNotFoundError if a cleaner has merged
        several meanwhile; the merged one has the name of the first.
        """
        files, directory = self.log.files, self.log.directory
        logs: dict[int, os.stat_result] = {}
        deleted: dict[int, os.stat_result] = {}
        is_mixed = False
        for name in names:
            base = paths.base_offset_of(name)
            if base is None:
                continue
            path = os.path.join(directory, name)
            if name.endswith(paths.LOG):
                logs[base] = files.file_stat(path + paths.SWAP if base in swapped else path)
            elif name == paths.file_name(base, paths.LOG + paths.DELETED):
                with contextlib.suppress(FileNotFoundError):
                    deleted[base] = files.file_stat(path)
            is_mixed |= name.endswith(paths.LOG + paths.SWAP)
        return Listing(logs, deleted, is_mixed, swapped)

    def _names(self) -> list[str]:
        """Return all file names at one moment, sorted. Errors: FileReplaced if they are in flux."""
        scan, directory = self.log.files.scan, self.log.directory
        names = sorted(name for name, is_directory in scan(directory) if not is_directory)
        if len(names) > _LISTED_AT_ONCE:
            again = sorted(name for name, is_directory in scan(directory) if not is_directory)
            if again != names:
                raise FileReplaced
        return names

    def _list_unmixed(self) -> Listing:
        """Return the listing while no cleaner swaps. Errors: FileReplaced during a swap."""
        found = self._list(self._names())
        if found.is_mixed or not found.logs:
            raise FileReplaced
        return found

    def _list_as_if_finished(self, found: Listing) -> Listing:
        """Return the listing as if the writer, which was stopped in a swap, had finished it: the
        replaced segments are removed already.
        """
        names, swapped = as_if_finished(self.log.files, self.log.directory, self._names())
        return self._list(sorted(names), swapped)._replace(deleted=found.deleted)

    # -- segments that the manifest lists and that are missing -----------------------------------

    def _lost_entries(self, found: Listing, stamp: int) -> dict[int, ManifestEntry]:
        """Return the manifest's entries of segments that are missing or truncated.

        The writer withdraws an entry before it removes anything, and the manifest is read after the
        names. Errors: FileReplaced if these may have changed since.
        """
        log = self.log
        suspect = [
            each
            for each in log.segments[:-1]
            if each.base_offset < max(found.logs, default=0)
            and (
                each.lost
                or (now := found.logs.get(each.base_offset)) is None
                or now.st_size < each.size
            )
        ]
        if not suspect or not log.has_manifest:
            return {}
        listed = self._manifest_entries()
        sizes = {base: stat.st_size for base, stat in found.logs.items()}
        entries = {
            segment.base_offset: entry
            for segment in suspect
            if (entry := listed.get(segment.base_offset)) is not None
            and entry.size > sizes.get(segment.base_offset, 0)
            and entry.next_offset > log.log_start_offset
        }
        if entries:
            later = log.files.file_stat(log.directory).st_mtime_ns
            if later != stamp or later + FRESH_NS >= self._clock_ns():
                raise FileReplaced
        return entries if manifest_file.fits(list(entries.values()), sizes) else {}

    def _manifest_entries(self) -> dict[int, ManifestEntry]:
        """Return the manifest's entries, by base offset; none if a broker has the directory now."""
        files, directory = self.log.files, self.log.directory
        if files.exists(os.path.join(os.path.dirname(directory), paths.META_PROPERTIES)):
            return {}
        try:
            return {
                entry.base_offset: entry for entry in manifest_file.read(files, directory).entries
            }
        except CorruptCheckpoint:
            return {}

    def _bases(self, found: Listing) -> list[int]:
        """Return the base offsets of the log's segments, including missing ones."""
        return sorted({*found.logs, *self._entries})

    # -- comparing -----------------------------------------------------------------------------

    def _first_kept(self, found: Listing) -> int:
        """Return the number of the segment from which on all are unchanged, with no other among
        them; the number of segments if the last one has changed.
        """
        segments = self.log.segments
        kept = len(segments)
        bases = [base for base in self._bases(found) if base <= segments[-1].base_offset]
        while kept and bases and bases.pop() == segments[kept - 1].base_offset:
            if not self._is_kept(segments[kept - 1], found):
                break
            kept -= 1
        return kept

    def _go_on_while_mixed(self, found: Listing) -> bool:
        """Take the segments after the active one, which no cleaner touches.

        Return False if some of these were added and removed unread.
        """
        kept = self._first_kept(found)
        self._update_visible_end(kept, found)
        if kept == len(self.log.segments):
            if self._is_written_over(found):
                return True
            if not self._continue_past_deleted_active(found, may_swap=False):
                return all(base <= self.log.active.base_offset for base in found.logs)
        self._roll_all(found)
        return True

    def _compare(self, found: Listing) -> bool:
        """Let the log have the segments of a listing; return False if that has to be repeated."""
        segments = self.log.segments
        kept = self._first_kept(found)
        self._update_visible_end(kept, found)
        if kept == len(segments):
            if not found.logs:
                return True
            if self._is_written_over(found) or not self._continue_past_deleted_active(
                found, may_swap=True
            ):
                self._take_over(found)
                return True
            kept = self._first_kept(found)
        if not self._can_hold(self.log.segments[:kept], found):
            # Before listeners are informed of anything after the hidden part.
            self._change_head(kept, found)
            kept = 0
        try:
            self._read_on()
            is_read = self._roll_all(found)
        except CorruptRecord:
            self._change_head(kept, found)
            raise
        return self._change_head(kept, found) and is_read

    def _update_visible_end(self, count: int, found: Listing) -> None:
        """Raise the limit if some of the first `count` segments were replaced or removed.

        The writer removes or cleans only below the high watermark, which it records now and then.
        Except for a truncation, there is no other reason for a new file, even if all of it is
        hidden.
        """
        if self._tail.limit is None or not count or self._is_written_over(found):
            return
        for segment in self.log.segments[:count]:
            if not self._is_kept(segment, found):
                following = (base for base in found.logs if base > segment.base_offset)
                self._decide_below(next(following, 0))

    def _decide_below(self, offset: int) -> None:
        """Note that the writer has removed or cleaned a part below `offset`, or is about to."""
        if offset > self._tail.decided:
            self._tail.decided = offset
            self._tail.seen = None

    def _change_head(self, count: int, found: Listing) -> bool:
        """Replace the first `count` segments by those of a listing; return False if it has to
        wait.
        """
        segments = self.log.segments
        head = [base for base in self._bases(found) if base < segments[count].base_offset]
        old = segments[:count]
        if head and self._has_hidden_bytes(old, found) and self._can_hold(old, found):
            return False
        if head or count:
            end = segments[count].base_offset
            self._replace_head(count, self._load_head(head, end, found, segments))
        return True

    def _has_hidden_bytes(self, segments: Sequence[Segment], found: Listing) -> bool:
        """Return whether a replaced segment has bytes that are not stable yet.

        Readers were not shown those bytes; they get them from the old segment after the
        transactions are decided.
        """
        return any(
            segment.stable_size < segment.size and not self._is_kept(segment, found)
            for segment in segments
        )

    def _can_hold(self, segments: Sequence[Segment], found: Listing) -> bool:
        """Return whether replaced segments have no hidden bytes, or can still be read."""
        if not self._has_hidden_bytes(segments, found):
            return True
        for segment in segments:
            if self._is_kept(segment, found):
                continue
            if not segment.deleted:
                segment.note_renamed_to(paths.DELETED)
            try:
                segment.open_log()
            except (FileNotFoundError, SegmentGone):
                return False
        return True

    def _is_kept(self, segment: Segment, found: Listing) -> bool:
        """Return whether this segment's log is unchanged; the active one may be longer."""
        now = found.logs.get(segment.base_offset)
        is_listed = segment.base_offset in self._entries
        if now is None:
            return segment.is_lost and is_listed
        if (segment.lost is not None) != is_listed:
            return False
        if segment.identity is None and not segment.sealed and not segment.size:
            # When the log was opened, the writer had made the directory but not the segment.
            segment.identity = self._identity(segment.log_path, now)
        if not is_of(segment, now, self.log.files):
            return False
        facts = (now.st_size, now.st_mtime_ns)
        return not segment.sealed or facts == _facts(segment)

    def _identity(self, path: str, found: os.stat_result) -> Identity:
        return found.st_dev, found.st_ino, self.log.files.born_ns(path)

    # -- the end of the log --------------------------------------------------------------------

    def _look_at_tail(self) -> None:
        active = self.log.active
        found = self._stat_of(active)
        tail = (found.st_size, found.st_mtime_ns)
        if tail == self._tail.seen:
            return
        if self._tail.is_cut(active, found):
            self._take_over(self._list_unmixed())
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
            self._take_over(self._list_unmixed())
            raise FileReplaced
        self._tail.drain()

    def _roll_all(self, found: Listing) -> bool:
        """Add the segments after the active one; return False if that has unread bytes."""
        active = self.log.active.base_offset
        return all(self._roll(base, found) for base in found.logs if base > active)

    def _roll(self, base: int, found: Listing) -> bool:
        """Begin the segment `base`; return False if the previous one is not read to its end yet."""
        log, active = self.log, self.log.active
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
        self._begin(base, found)
        active.forget_indexes()
        return True

    def _begin(self, base: int, found: Listing, *, is_deleted: bool = False) -> None:
        """Seal the active segment, and make the segment `base` the active one; it is not read yet.

        `is_deleted`: its files wait for their deletion already.
        """
        log, active = self.log, self.log.active
        following = Segment(log.files, log.directory, base, log.config, writable=False)
        if base in found.swapped and not is_deleted:
            following.note_renamed_to(paths.SWAP)
        path = following.log_path + (paths.DELETED if is_deleted else "")
        now = (found.deleted if is_deleted else found.logs)[base]
        following.identity = self._identity(path, now)
        following.mtime_ns = now.st_mtime_ns
        active.next_offset = base
        active.sealed = True
        log.sync_with_writer(segments=(*log.segments, following), log_end=base)
        self._tail.begin_segment()
        for listener in log.listeners:
            listener.rolled(log, active, following)
        if is_deleted:
            following.note_renamed_to(paths.DELETED)

    # -- changes of the past ---------------------------------------------------------------------

    def _is_written_over(self, found: Listing) -> bool:
        """Return whether a sealed segment's file has other bytes, as only a truncation does."""
        return any(
            (now := found.logs.get(segment.base_offset)) is not None
            and is_of(segment, now, self.log.files)
            and not self._is_kept(segment, found)
            for segment in self.log.segments
        )

    def _continue_past_deleted_active(self, found: Listing, *, may_swap: bool) -> bool:
        """Continue after an active segment that the writer has rolled, and then deleted or cleaned.

        The follower reads the segment's last batches, and segments that were added and removed
        since, from the files that wait for deletion; without those, from a cleaner's output. Return
        False if no segment follows it, so that the log was truncated, or if `may_swap` would be
        needed.
        """
        log = self.log
        while not self._is_kept(log.active, found):
            active = log.active
            at = max(active.next_offset, active.base_offset + 1)
            if max(found.logs, default=-1) < at:
                now = found.logs.get(active.base_offset)
                if now and not os.path.samestat(now, log.files.file_stat(active.log_path)):
                    # It had its file when the names were listed: the next segments were added
                    # since.
                    raise FileReplaced
                return False
            active.note_renamed_to(paths.DELETED)
            with contextlib.suppress(FileNotFoundError, SegmentGone):
                if self._tail.is_cut(active, active.log_stat()):
                    return False
                self._tail.drain()
                active.mtime_ns = active.log_stat().st_mtime_ns
                if self._tail.limit is not None and active.size < active.log_stat().st_size:
                    raise FileReplaced
            at = max(active.next_offset, active.base_offset + 1)
            if at in found.deleted:
                self._begin(at, found, is_deleted=True)
                continue
            base = next((base for base in found.logs if base >= at), None)
            if base is None:
                return False
            if not self._is_cleaned(active.next_offset, base, found):
                self._begin(base, found)
            elif may_swap:
                self._add_after_unread(base, found)
            else:
                return False
        return True

    def _add_after_unread(self, base: int, found: Listing) -> None:
        """Begin the segment `base`, while cleaned segments before it have unread records.

        The cleaned segments replace the old ones before listeners are informed of later ones.
        """
        log, active = self.log, self.log.active
        bases = [each for each in self._bases(found) if each < base]
        new = self._load_head(bases, base, found, log.segments)
        producers = self._tail.producers_of(new)
        count, read_to = len(log.segments), active.next_offset
        self._begin(base, found)
        # Tells listeners the end of the part that was read.
        active.next_offset = read_to
        self._replace_head(count, new, producers)

    def _is_cleaned(self, start: int, end: int, found: Listing) -> bool:
        """Return whether a cleaned segment may have some of the offsets from `start` to below
        `end`.

        They were not read: a reader that continued at `end` would miss them.
        """
        if start == end:
            return False
        low, high = self._replaced
        if low <= start < high:
            return True
        before = max((base for base in found.logs if base < end), default=None)
        if before is None:
            return False
        name = paths.file_name(before, paths.LOG)
        if before in found.swapped:
            name += paths.SWAP
        _, following = replaced_range(self.log.files, self.log.directory, [name])
        return following > start

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
            self._lose(segment)
        for listener in log.listeners:
            if new:
                listener.swapping(log, old, new)
            else:
                listener.removing(log, old)
        first = log.segments[0].base_offset
        # In this order another thread finds every aborted transaction at any moment.
        log.release_later(lost, log.monotonic_ms())
        segments = (*new, *log.segments[count:])
        start = max(log.log_start_offset, segments[0].base_offset)
        log.sync_with_writer(segments=segments, log_start=start, producers=producers)
        if producers is not None:
            log.transactions.producers_replaced()
        elif log.producers.first_undecided_offset is not None:
            log.transactions.stabilize()
        if new and new[0].base_offset < first == log.log_start_offset:
            # It was loaded while a cleaner swapped its first segments.
            log.sync_with_writer(log_start=new[0].base_offset)
        if new:
            for listener in log.listeners:
                listener.swapped(log, old, new)

    def _lose(self, segment: Segment) -> None:
        """Release a segment for deletion, unless its file was overwritten or has a new inode."""
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

    def _load_head(
        self, bases: list[int], end: int, found: Listing, old: Sequence[Segment]
    ) -> list[Segment]:
        """Return the segments `bases`, up to `end`: unchanged ones from `old`, others loaded."""
        if not bases:
            return []
        known = {segment.base_offset: segment for segment in old}
        present = {
            name.removesuffix(paths.SWAP) if paths.base_offset_of(name) in found.swapped else name
            for name, _ in self.log.files.scan(self.log.directory)
        }
        new: list[Segment] = []
        for base, following in zip(bases, [*bases[1:], end], strict=True):
            segment = known.get(base)
            if segment is None or not self._is_kept(segment, found):
                segment = self._load(base, following, present, found)
                if not self._is_kept(segment, found):
                    raise FileReplaced
            new.append(segment)
        return new

    def _load(self, base: int, following: int, present: set[str], found: Listing) -> Segment:
        """Load a segment, which may be shorter than its entry in the manifest."""
        files = self._tail.files_of_log(found.swapped)
        entry = self._entries.get(base)
        segment: Segment
        if entry is not None and base not in found.logs:
            segment = missing_segment(files, entry)
        else:
            segment = SegmentLoader(files, base, following, present).load().segment
            if entry is not None and segment.size < entry.size:
                SegmentReader(segment).mark_end_missing(entry.size)
        if segment.lost:
            _log.warning("%s", segment.loss)
        return segment

    def _take_over(self, found: Listing) -> None:
        """Load the end of the log again, as far as it has changed."""
        log = self.log
        recovered = LogLoader(self._tail.files_of_log(), 0).load()
        fresh = recovered.segments
        if not all(self._is_kept(segment, found) for segment in fresh):
            raise FileReplaced
        old = log.segments
        same = 0
        while (
            same < min(len(old), len(fresh)) - 1
            and old[same].base_offset == fresh[same].base_offset
            and self._is_kept(old[same], found)
        ):
            same += 1
        offset, size = self._tail.end_of_same(old[same], fresh[same])
        self._tail.decided = min(self._tail.decided, offset)
        new = (*old[:same], *fresh[same:])
        for segment in old[same:]:
            now = found.logs.get(segment.base_offset)
            if now is None or not is_of(segment, now, self.log.files):
                segment.note_renamed_to(paths.DELETED)
        old[same].size = size
        old[same].stable_size = min(old[same].stable_size, size)
        end = new[-1].next_offset
        log.sync_with_writer(segments=new, log_end=end, producers=recovered.producers)
        log.counters.truncations += 1
        log.transactions.producers_replaced()
        # The log start falls only if the log was truncated below it.
        is_same = new[0].base_offset == old[0].base_offset
        start = min(log.log_start_offset, end) if is_same else new[0].base_offset
        log.sync_with_writer(log_start=start)
        if self._tail.limit is not None:
            self._tail.truncate_view(self._tail.limit())
        for _, segment in log.retired:
            if segment.identity == old[same].identity and segment.size > size:
                # This truncation took the rest of an earlier one.
                _give_up(segment)
        for segment in old[same:]:
            # Other batches may have these offsets now.
            index = segment.txn_index
            index.entries = tuple(entry for entry in index.entries if entry.last_offset < offset)
        log.release_later(old[same:], log.monotonic_ms())
        self._tail.mark_last()
        for listener in log.listeners:
            listener.truncated(log, old[same:], log.segments[same:], offset)


def _facts(segment: Segment) -> tuple[int, int]:
    """Return the size and mtime of a sealed segment's log."""
    return segment.size - segment.lost_bytes, segment.mtime_ns


def _give_up(segment: Segment) -> None:
    """Read a segment no more: its bytes were deleted, though a file has its inode."""
    segment.identity = (0, 0, 0)
    segment.close_descriptors()
