"""Follows a partition that another process writes: a broker's, while it runs.

Nothing is written, no lock is taken.  What the writer has done is found by looking at names and
sizes, and is told to the listeners as a log of our own tells of it, so that whoever keeps up with
a log keeps up with this one:

    appended, rolled     whole batches with a right CRC, in whatever segment they lie
    removing             segments are gone from the head (retention)
    swapping, swapped    segments of the head have become others (a cleaner)
    truncated            the last batch that we had read stands there no longer

A look costs two stats where nothing has changed.  The directory's time says whether names have
changed, the active log's size and time whether bytes have; a time that is younger than
``FRESH_NS`` may hide another change at the same moment, and is looked behind again.  A segment is
the same as long as its log has the inode, size and time that it had.

The writer renames files between our looking at names and opening them: then the look begins again,
and is left for the next time where that does not help.  While a cleaner's ``.swap`` files are
there, old and new segments are mixed, and only what follows the active one is looked at; unless the
old ones can be read no longer, as the writer was stopped there: then it counts as finished.

What the writer has appended comes before what it has done to the head since: a cleaner takes only
what is decided, so what decides it is in the log by then.  Where that cannot be seen yet (beyond
``limit``), replaced segments stay until it is: nothing leaves the log before it could be shown, for
as long as its files can be read.  Where they cannot, as a cleaner has rewritten twice what was read
in part or not at all, the log goes on like a consumer, who asks by offset: with what is left of it,
swapped in before anything behind it is told (``_begin_behind_unread``).  What was removed or
cleaned was below the limit, whatever that was when it was last written down.

Segments that have left the log are in ``Log.retired``, like those of a log of our own: who reads
them goes on until file.delete.delay.ms is over, through a descriptor or the name ``.deleted``.

Not here: what is read at the end (``follow_tail``), which partitions there are
(``follow_directory``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable

from storage import paths
from storage.errors import CorruptCheckpoint, CorruptRecord, SegmentGone
from storage.follow import followed_log
from storage.follow.follow_tail import LogTail, Moved, is_of
from storage.log.log import Log
from storage.recovery.loading import Loaded, Origin, load, missing_segment
from storage.recovery.recovery import recover
from storage.recovery.replay import replay
from storage.recovery.swap import as_if_finished, replaced_range
from storage.segment.segment import Segment
from storage.segment.segment_files import Identity
from storage.state import book_file
from storage.state.book_file import Claim
from storage.state.producer_state import ProducerState

# A time of change so young, in ns, may be that of a later change too.
FRESH_NS = 100_000_000
# The kernel gives a directory of more names in pieces: what is renamed between two may be in none
# of them, or in both.
_LISTED_AT_ONCE = 200
# How often a look begins again.
_TRIES = 4

_log = logging.getLogger(__name__)

_Found = dict[int, os.stat_result]


class LogFollower:
    """Keeps one log like its files.  The owner's thread looks; any may ask ``intact``.

    ``limit``: the log ends before this offset (the high watermark); None: it ends where it ends.
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
        # Segments whose files' names still end in ``.swap``, though they are taken for swapped.
        self._swapped: frozenset[int] = frozenset()
        # The offsets of what a cleaner is just swapping in: from, and up to before.
        self._replaced = 0, 0
        # What the book has of segments that are gone or shorter than they were, by base offset.
        self._claims: dict[int, Claim] = {}
        if log.losses:
            self._claims = self._claimed()
        if limit is not None:
            self._tail.hide_from(max(limit(), log.log_start_offset))
        self._tail.mark_last()

    def intact(self) -> bool:
        """``LogTail.intact``: whether what was read last is still there.  Any thread."""
        return self._tail.intact()

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> bool:
        """See what the writer has done; whether there was anything.

        CorruptRecord where the log is damaged, OSError; what was found before that counts.
        """
        if self.log.closed or not self.log.active.holds_batches:
            return False
        segments, end = self.log.segments, self.log.log_end_offset
        is_done = False
        for _ in range(_TRIES):
            try:
                is_done = self._look()
                break
            except (FileNotFoundError, SegmentGone, Moved):
                self._names_seen = None
        if not is_done:
            self._keep_readable()
        return self.log.segments is not segments or self.log.log_end_offset != end

    def _look(self) -> bool:
        """Whether the log is now as its files were."""
        log = self.log
        if self._tail.limit is not None and (limit := self._tail.limit()) != self._limit_seen:
            self._limit_seen = limit
            self._tail.seen = None
        stamp = log.files.file_stat(log.directory).st_mtime_ns
        is_done = True
        if stamp != self._names_seen:
            found, deleted, is_mixed = self._find()
            self._swapped = frozenset()
            self._replaced = self._decide_swaps() if is_mixed else (0, 0)
            if not is_mixed:
                self._strip_swap()
                self._claims = self._lacking(found, stamp)
                is_done = self._compare(found, deleted)
            else:
                all_can = self._keep_readable(*self._replaced)
                if not all_can or not self._go_on_while_mixed(found, deleted):
                    self._compare(self._find_as_if_finished(), deleted)
                is_done = False
            if is_done and stamp + FRESH_NS < self._clock_ns():
                self._names_seen = stamp
        self._look_at_tail()
        return is_done

    def _keep_readable(self, low: int = 0, high: int = 0) -> bool:
        """Open what the writer has put aside already, before it removes it: the log still has it,
        as what comes before it cannot be seen yet, or the writer is not ready.  And what begins
        from ``low`` on and before ``high``.

        Whether all of the log can be read.
        """
        all_can = True
        for segment in self.log.segments:
            if segment.files.is_log_open:
                # So that it stays.
                segment.files.recently_used = True
            elif low <= segment.base_offset < high or not self._leads_to(segment):
                try:
                    segment.open_log()
                except (SegmentGone, OSError):
                    all_can = False
        return all_can

    def _leads_to(self, segment: Segment) -> bool:
        """Whether its name still leads to its file."""
        try:
            found = self.log.files.file_stat(segment.log_path)
        except FileNotFoundError:
            return False
        return is_of(segment, found, self.log.files)

    def _find(self) -> tuple[_Found, _Found, bool]:
        """Every log by its base offset, rising; those that wait for deletion; and whether a cleaner
        is just swapping some.

        They are looked at in that order: where a cleaner has made one of several meanwhile, that
        has the first one's name, and those behind it are not there any more (FileNotFoundError).
        """
        files, directory = self.log.files, self.log.directory
        found: _Found = {}
        deleted: _Found = {}
        names = self._names()
        for name in names:
            base = paths.base_offset_of(name)
            if base is None:
                continue
            path = os.path.join(directory, name)
            if name.endswith(paths.LOG):
                found[base] = files.file_stat(path)
            elif name == paths.file_name(base, paths.LOG + paths.DELETED):
                with contextlib.suppress(FileNotFoundError):
                    deleted[base] = files.file_stat(path)
        return found, deleted, any(name.endswith(paths.LOG + paths.SWAP) for name in names)

    def _names(self) -> list[str]:
        """Of all files, as they were at one moment; Moved where that cannot be known."""
        scan, directory = self.log.files.scan, self.log.directory
        names = sorted(name for name, is_directory in scan(directory) if not is_directory)
        if len(names) > _LISTED_AT_ONCE:
            again = sorted(name for name, is_directory in scan(directory) if not is_directory)
            if again != names:
                raise Moved
        return names

    def _find_unmixed(self) -> _Found:
        """The logs, where no cleaner is swapping any; Moved where one is."""
        found, _, is_mixed = self._find()
        if is_mixed or not found:
            raise Moved
        return found

    def _find_as_if_finished(self) -> _Found:
        """The same as they will be when the writer has finished the swap: it was stopped in the
        middle, and what it replaces is gone already.
        """
        files, directory = self.log.files, self.log.directory
        names, self._swapped = as_if_finished(files, directory, self._names())
        found: _Found = {}
        for name in sorted(names):
            base = paths.base_offset_of(name)
            if base is not None and name.endswith(paths.LOG):
                suffix = paths.SWAP if base in self._swapped else ""
                found[base] = files.file_stat(os.path.join(directory, name + suffix))
        return found

    def _decide_swaps(self) -> tuple[int, int]:
        """The offsets whose segments are being replaced: a writer that is killed now removes these
        as soon as it starts again.  So what is unread of them is read now: it is below the limit.
        """
        names = [name for name in self._names() if name.endswith(paths.LOG + paths.SWAP)]
        low, high = replaced_range(self.log.files, self.log.directory, names)
        self._decide_below(high)
        return low, high

    # -- what the writer did not do ------------------------------------------------------------

    def _lacking(self, found: _Found, stamp: int) -> dict[int, Claim]:
        """What the book has of segments of which these names lead to nothing, or to less.

        Its writer takes back what it says before it does anything, and is heard after the names:
        Moved where these may be others by then.
        """
        log = self.log
        known = [
            segment for segment in log.segments[:-1] if segment.base_offset < max(found, default=0)
        ]
        suspect = [each for each in known if each.lacking or not self._is_long_enough(each, found)]
        if not suspect or not log.is_booked:
            return {}
        claimed = self._claimed()
        sizes = {base: stat.st_size for base, stat in found.items()}
        claims = {
            segment.base_offset: claimed[segment.base_offset]
            for segment in suspect
            if segment.base_offset in claimed
            and claimed[segment.base_offset].size > sizes.get(segment.base_offset, 0)
            and claimed[segment.base_offset].next_offset > log.log_start_offset
        }
        if claims:
            now = log.files.file_stat(log.directory).st_mtime_ns
            if now != stamp or now + FRESH_NS >= self._clock_ns():
                raise Moved
        return claims if book_file.fits(list(claims.values()), sizes) else {}

    @staticmethod
    def _is_long_enough(segment: Segment, found: _Found) -> bool:
        now = found.get(segment.base_offset)
        return now is not None and now.st_size >= segment.size

    def _claimed(self) -> dict[int, Claim]:
        """What the book has, by base offset; nothing where a broker has come to the directory."""
        files, directory = self.log.files, self.log.directory
        if files.exists(os.path.join(os.path.dirname(directory), paths.META_PROPERTIES)):
            return {}
        try:
            return {claim.base_offset: claim for claim in book_file.read(files, directory).claims}
        except CorruptCheckpoint:
            return {}

    def _identity(self, path: str, found: os.stat_result) -> Identity:
        return found.st_dev, found.st_ino, self.log.files.born_ns(path)

    def _bases(self, found: _Found) -> list[int]:
        """Of the log's segments, also of those whose files are gone."""
        return sorted({*found, *self._claims})

    def _strip_swap(self) -> None:
        """Where the writer was stopped in a swap it has finished that by now."""
        for segment in self.log.segments:
            if segment.log_path.endswith(paths.SWAP):
                segment.files.is_called("")

    def _first_kept(self, found: _Found) -> int:
        """From which segment on all are as they were, and no other is among them; how many there
        are where the last is not.
        """
        segments = self.log.segments
        kept = len(segments)
        bases = [base for base in self._bases(found) if base <= segments[-1].base_offset]
        while kept and bases and bases.pop() == segments[kept - 1].base_offset:
            if not self._is_kept(segments[kept - 1], found):
                break
            kept -= 1
        return kept

    def _go_on_while_mixed(self, found: _Found, deleted: _Found) -> bool:
        """Take what follows the active segment, which is as it is: it is never cleaned.

        False where some of that came and went unread.
        """
        kept = self._first_kept(found)
        self._learn_limit(kept, found)
        if kept == len(self.log.segments):
            if self._is_written_over(found):
                return True
            if not self._outlive(found, deleted, may_swap=False):
                return all(base <= self.log.active.base_offset for base in found)
        self._roll_all(found)
        return True

    def _compare(self, found: _Found, deleted: _Found) -> bool:
        """Make the log's segments those of these names; False where it has to be done again."""
        segments = self.log.segments
        kept = self._first_kept(found)
        self._learn_limit(kept, found)
        if kept == len(segments):
            if not found:
                return True
            is_cut = self._is_written_over(found)
            if is_cut or not self._outlive(found, deleted, may_swap=True):
                self._take_over(found)
                return True
            kept = self._first_kept(found)
        if not self._can_hold(self.log.segments[:kept], found):
            # Before anything is told that lies behind what is not shown yet.
            self._change_head(kept, found)
            kept = 0
        try:
            self._read_on()
            is_read = self._roll_all(found)
        except CorruptRecord:
            self._change_head(kept, found)
            raise
        return self._change_head(kept, found) and is_read

    def _learn_limit(self, count: int, found: _Found) -> None:
        """Some of the first ``count`` segments are not those of these names any more.

        What its writer removes or cleans lies below the high watermark, which it writes down now
        and then only.  A file of which something was below it becomes another for no other reason.
        """
        if self._tail.limit is None or not count or self._is_written_over(found):
            return
        for segment in self.log.segments[:count]:
            if segment.size and not self._is_kept(segment, found):
                self._decide_below(next((base for base in found if base > segment.base_offset), 0))

    def _decide_below(self, offset: int) -> None:
        """Its writer has removed or cleaned what is below ``offset``, or is about to."""
        if offset > self._tail.decided:
            self._tail.decided = offset
            self._tail.seen = None

    def _change_head(self, count: int, found: _Found) -> bool:
        """Make the first ``count`` segments those of these names; False where that has to wait."""
        segments = self.log.segments
        head = [base for base in self._bases(found) if base < segments[count].base_offset]
        if head:
            if self._is_held(segments[:count], found) and self._can_hold(segments[:count], found):
                return False
            self._swap(count, self._load_head(head, segments[count].base_offset, found, segments))
        elif count:
            self._remove(count)
        return True

    def _is_held(self, segments: tuple[Segment, ...], found: _Found) -> bool:
        """Whether not all of what is replaced is stable by what is seen.

        Who reads that has not been shown the rest, and finds it there when it is decided.
        """
        return any(
            segment.stable_size < segment.size and not self._is_kept(segment, found)
            for segment in segments
        )

    def _can_hold(self, segments: tuple[Segment, ...], found: _Found) -> bool:
        """Whether what is held back of replaced segments can be read in them, if anything is."""
        if not self._is_held(segments, found):
            return True
        for segment in segments:
            if self._is_kept(segment, found):
                continue
            if not segment.files.deleted:
                segment.files.is_called(paths.DELETED)
            try:
                segment.open_log()
            except (FileNotFoundError, SegmentGone):
                return False
        return True

    def _roll_all(self, found: _Found) -> bool:
        """Take what segments follow the active one; False where it is not read to its end yet."""
        active = self.log.active.base_offset
        return all(self._roll(base, found) for base in found if base > active)

    def _is_kept(self, segment: Segment, found: _Found) -> bool:
        """Whether this segment's log is the one that it was; the active one may be longer."""
        now = found.get(segment.base_offset)
        is_claimed = segment.base_offset in self._claims
        if now is None:
            return segment.files.is_missing and is_claimed
        if (segment.lacking > 0) != is_claimed:
            return False
        if segment.files.identity is None and not segment.files.sealed and not segment.size:
            # It was made after the partition's directory, in which we looked between the two.
            segment.files.identity = self._identity(segment.log_path, now)
        if not is_of(segment, now, self.log.files):
            return False
        facts = (now.st_size, now.st_mtime_ns)
        return not segment.files.sealed or facts == (
            segment.size - segment.lacking,
            segment.mtime_ns,
        )

    # -- the end of the log --------------------------------------------------------------------

    def _look_at_tail(self) -> None:
        active = self.log.active
        found = self._stat_of(active)
        tail = (found.st_size, found.st_mtime_ns)
        if tail == self._tail.seen:
            return
        if self._tail.is_cut(active, found):
            self._take_over(self._find_unmixed())
            return
        self._tail.drain()
        if found.st_mtime_ns + FRESH_NS < self._clock_ns() and self.log.active is active:
            self._tail.seen = tail

    def _stat_of(self, active: Segment) -> os.stat_result:
        """What its name leads to; Moved where that is another file, which says nothing of it."""
        found = self.log.files.file_stat(active.log_path)
        if not is_of(active, found, self.log.files):
            raise Moved
        return found

    def _read_on(self) -> None:
        """Take what the active segment has by now; Moved where it was cut."""
        active = self.log.active
        if self._tail.is_cut(active, self._stat_of(active)):
            self._take_over(self._find_unmixed())
            raise Moved
        self._tail.drain()

    def _roll(self, base: int, found: _Found) -> bool:
        """The writer has begun the segment ``base``; False where the one before is not read."""
        log, active = self.log, self.log.active
        self._read_on()
        now = self._stat_of(active)
        if active.size != now.st_size:
            self._tail.complain(active)
            return False
        if base < active.next_offset:
            raise Moved
        if base > active.next_offset and not (log.files.in_order or log.may_be_cleaned):
            return False  # what lies between is still to appear
        active.mtime_ns = now.st_mtime_ns
        self._begin(base, found)
        active.files.refresh_indexes()
        return True

    def _begin(self, base: int, found: _Found, suffix: str = "") -> None:
        """The active segment ends, and ``base``, as yet unread, is the new one.

        ``suffix``: what the name of its log ends in.
        """
        log, active = self.log, self.log.active
        following = Segment(
            log.files,
            log.directory,
            base,
            log.config,
            writable=False,
        )
        if base in self._swapped:
            following.files.is_called(paths.SWAP)
        following.files.identity = self._identity(following.log_path + suffix, found[base])
        following.mtime_ns = found[base].st_mtime_ns
        active.next_offset = base
        active.files.sealed = True
        log.segments = (*log.segments, following)
        log.log_end_offset = base
        self._tail.begin_segment()
        for listener in log.listeners:
            listener.rolled(log, active, following)

    # -- what the past has lost ----------------------------------------------------------------

    def _remove(self, count: int) -> None:
        """The first segments have been deleted."""
        log = self.log
        removed = log.segments[:count]
        for segment in removed:
            self._lose(segment)
        for listener in log.listeners:
            listener.removing(log, removed)
        followed_log.replace_head(log, count, (), removed, self._due_ms())

    def _is_written_over(self, found: _Found) -> bool:
        """Whether a sealed segment's file is the same and holds something else: only cuts do so."""
        for segment in self.log.segments:
            now = found.get(segment.base_offset)
            if (
                now is not None
                and is_of(segment, now, self.log.files)
                and not self._is_kept(segment, found)
            ):
                return True
        return False

    def _outlive(self, found: _Found, deleted: _Found, *, may_swap: bool) -> bool:
        """The active segment is deleted or cleaned: others have followed it before that.

        What it got at last, and what was in others that have come and gone, is taken from where it
        waits for deletion; where it is there no longer, from what a cleaner has left of it.  False
        where nothing follows it, so that the log was cut, or where ``may_swap`` would be needed.
        """
        log = self.log
        while not self._is_kept(log.active, found):
            active = log.active
            if not any(base >= active.next_offset and base > active.base_offset for base in found):
                now = found.get(active.base_offset)
                if now and not os.path.samestat(now, log.files.file_stat(active.log_path)):
                    # It was its file when the names were looked at: what follows it came since.
                    raise Moved
                return False
            active.files.is_called(paths.DELETED)
            with contextlib.suppress(FileNotFoundError, SegmentGone):
                if self._tail.is_cut(active, active.log_stat()):
                    return False
                self._tail.drain()
                active.mtime_ns = active.log_stat().st_mtime_ns
                if self._tail.limit is not None and active.size < active.log_stat().st_size:
                    raise Moved
            at = max(active.next_offset, active.base_offset + 1)
            if at in deleted:
                self._begin(at, deleted, paths.DELETED)
                log.active.files.is_called(paths.DELETED)
                continue
            base = next((base for base in found if base >= at), None)
            if base is None:
                return False
            if not self._is_cleaned(active.next_offset, base, found):
                self._begin(base, found)
            elif may_swap:
                self._begin_behind_unread(base, found)
            else:
                return False
        return True

    def _begin_behind_unread(self, base: int, found: _Found) -> None:
        """The segment ``base`` is begun, and cleaned ones before it have what was not read yet.

        They take the place of what was read of them before anything is told that lies behind.
        """
        log, active = self.log, self.log.active
        new = self._load_head(
            [each for each in self._bases(found) if each < base], base, found, log.segments
        )
        names = {name for name, _ in log.files.scan(log.directory)}
        producers, _ = replay(
            followed_log.origin_of(self.log, self._clock_ns()),
            [Loaded(each) for each in new],
            names,
        )
        count, read_to = len(log.segments), active.next_offset
        self._begin(base, found)
        # So that all are told from where on it was not read.
        active.next_offset = read_to
        self._swap(count, new, producers)

    def _is_cleaned(self, start: int, end: int, found: _Found) -> bool:
        """Whether of these offsets, which came and went unread, a cleaned segment holds some.

        Who reads on from ``end`` would pass them over.
        """
        if start == end:
            return False
        low, high = self._replaced
        if low <= start < high:
            return True
        before = [base for base in found if base < end]
        if not before:
            return False
        suffix = paths.SWAP if before[-1] in self._swapped else ""
        name = paths.file_name(before[-1], paths.LOG) + suffix
        _, following = replaced_range(self.log.files, self.log.directory, [name])
        return following > start

    def _swap(self, count: int, new: list[Segment], producers: ProducerState | None = None) -> None:
        """Put ``new`` where the first ``count`` were; ``producers``: see ``replace_head``."""
        log = self.log
        old = log.segments[:count]
        lost = [segment for segment in old if segment not in new]
        for segment in lost:
            self._lose(segment)
        for listener in log.listeners:
            listener.swapping(log, old, new)
        first = log.segments[0].base_offset
        followed_log.replace_head(log, count, new, lost, self._due_ms(), producers)
        if new[0].base_offset < first == log.log_start_offset:
            # It was loaded while a cleaner swapped its first segments.
            log.log_start_offset = new[0].base_offset
        for listener in log.listeners:
            listener.swapped(log, old, new)

    def _lose(self, segment: Segment) -> None:
        """It waits for deletion, unless its file was written over or its inode given to another."""
        seen: list[os.stat_result] = []
        if segment.files.is_open and not segment.files.is_missing:
            with contextlib.suppress(FileNotFoundError, SegmentGone):
                seen.append(segment.log_stat())
        for suffix in ("", paths.DELETED):
            with contextlib.suppress(FileNotFoundError):
                seen.append(self.log.files.file_stat(segment.log_path + suffix))
        facts = (segment.size - segment.lacking, segment.mtime_ns)
        for now in seen:
            same = (segment.files.identity or (0, 0, 0))[:2] == (now.st_dev, now.st_ino)
            if same and (now.st_size, now.st_mtime_ns) != facts:
                self._give_up(segment)
        segment.files.is_called(paths.DELETED)

    @staticmethod
    def _give_up(segment: Segment) -> None:
        """Its bytes are gone, though there is a file of its inode."""
        segment.files.identity = (0, 0, 0)
        segment.files.close_descriptors()

    def _load_head(
        self, bases: list[int], end: int, found: _Found, old: tuple[Segment, ...]
    ) -> list[Segment]:
        known = {segment.base_offset: segment for segment in old}
        present = {
            name.removesuffix(paths.SWAP) if paths.base_offset_of(name) in self._swapped else name
            for name, _ in self.log.files.scan(self.log.directory)
        }
        origin = dataclasses.replace(
            followed_log.origin_of(self.log, self._clock_ns()), swapped=self._swapped
        )
        new: list[Segment] = []
        for base, following in zip(bases, [*bases[1:], end], strict=True):
            segment = known.get(base)
            if segment is None or not self._is_kept(segment, found):
                segment = self._load(origin, base, following, present, found)
                if not self._is_kept(segment, found):
                    raise Moved
            new.append(segment)
        return new

    def _load(
        self, origin: Origin, base: int, following: int, present: set[str], found: _Found
    ) -> Segment:
        """Load a segment, which by the book may have had more than there is."""
        log = self.log
        claim = self._claims.get(base)
        segment: Segment
        if claim is not None and base not in found:
            segment = missing_segment(log.files, log.directory, claim, log.config)
        else:
            segment = load(origin, base, following, present).segment
            if claim is not None and segment.size < claim.size:
                segment.expect(claim.size)
        if segment.lacking or segment.files.is_missing:
            _log.warning("%s", segment.loss)
        return segment

    def _take_over(self, found: _Found) -> None:
        """The end of the log is not the one that was read: load it anew, as far as it differs."""
        log = self.log
        recovered = recover(followed_log.origin_of(self.log, self._clock_ns()))
        fresh = recovered.segments
        if not all(self._is_kept(segment, found) for segment in fresh):
            raise Moved
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
            now = found.get(segment.base_offset)
            if now is None or not is_of(segment, now, self.log.files):
                segment.files.is_called(paths.DELETED)
        old[same].size = size
        old[same].stable_size = min(old[same].stable_size, size)
        followed_log.replace_end(log, new, recovered)
        # It only falls where the log is cut below it.
        if new[0].base_offset == old[0].base_offset:
            log.log_start_offset = min(log.log_start_offset, log.log_end_offset)
        else:
            log.log_start_offset = new[0].base_offset
        if self._tail.limit is not None:
            self._tail.hide_from(max(self._tail.limit(), log.log_start_offset))
        for _, segment in log.retired:
            if segment.files.identity == old[same].files.identity and segment.size > size:
                # What an earlier cut had left is cut now.
                self._give_up(segment)
        due_ms = self._due_ms()
        for segment in old[same:]:
            # Others may have these offsets now.
            index = segment.files.txn_index
            index.entries = tuple(entry for entry in index.entries if entry.last_offset < offset)
        log.retired = [*log.retired, *((due_ms, segment) for segment in old[same:])]
        self._tail.mark_last()
        for listener in log.listeners:
            listener.truncated(log, old[same:], log.segments[same:], offset)

    def _due_ms(self) -> int:
        """Until when what leaves the log now can be read."""
        return self.log.monotonic_ms() + self.log.config.file_delete_delay_ms
