"""The history of a partition's shown text, so that a returning reader gets no wrong bytes.

A partition directory holds one small text file, `kafkafs.history` (Kafka ignores it)::

    version 0
    nonce 9c0f…          16 hex digits, new whenever the shown bytes may have changed
    follow 1e77…         16 hex digits, new when absolute positions are restarted
    first 0              base offset of the first segment that is shown: it holds the log start
    start 17             log start offset
    stable 31            last stable offset: committed records below it were shown
    sealed 3 1a2b3c4d    count of the sealed segments from there on, CRC-32C over bases and sizes
    last 4096 88 5e6f… flushed
                         the last batch then: segment base, position, CRC of the batch, and whether
                         it was flushed (else `unflushed`)
    base values 0 0 3 1a2b3c4d 2 5e6f7a8b
                         per view: an offset that starts a segment, its absolute position in bytes,
                         `sealed` of the segments from there on, and the same of the flushed ones
    passed values 0 0    per view: starts of segments that were deleted or rewritten, ascending
    boot 6d5c…           the boot of the machine in which it was last opened for writing
    mount 100000f3       the mount of the data's file system then (`Files.mount_id`)
    shown-above 1234 1240
                         `.follow` has shown records above the first offset, which was the recovery
                         point, at least up to the second one, which was the log end
    batches 77aa…        once a segment was repacked: a part of the nonce of files of stored bytes
    repacked-below 31 8  each segment below this offset was repacked, or needs it not; those with
                         the base offsets after it had no room
    unchanged-from 62    the segments from this base offset on were never cleaned or truncated
    repacked 0 900 300   a segment's base offset, and its bytes before and after it was repacked;
                         it stays while the log has a segment with this base offset

Most of it is a fingerprint of the segments. A log only grows at its end, so the fingerprint still
matches a longer log. If it does not match, a broker or an offline tool has rewritten something, or
a crash took bytes that may have been shown. Then a new nonce is drawn, and no inode number of the
old history is ever used for the new one. The same happens if the last stable offset is lower than
before: a transaction whose marker a cleaner has removed counts as open if no producer snapshot has
its end.

**Bytes that were shown and not flushed** may be lost when the machine stops, or when the file
system is mounted again after its device has lost writes. So the line `shown-above` is durable
before `.follow` shows the first byte above the recovery point. It stays while such bytes are shown,
and is removed when all shown bytes are flushed. After a stop that was not clean, in another boot or
on another mount, the next start draws a new follow nonce if the line exists. Without it, no bytes
that `.follow` has shown are lost, even if recovery has truncated the log: the base is valid as long
as the flushed segments are the same.

**The base** is the origin of absolute positions: from that segment on every byte is unchanged since
it was first shown, at the same position; earlier segments were rewritten or deleted. So a rewrite
of the log's head has to move the base after the rewritten part. A second line of the same view
names a later segment of the same numbering, in case another program deletes the first. The base
survives a new nonce: it is valid as long as the segments from there on are the same.

**A repacked segment** has the same records in other batches (`storage.compaction.repack`), so it is
no change of the past. In fingerprints it counts with its former size: the line `repacked`, which is
durable before the swap, has both. A process that follows the directory reads the line, too, and so
knows that a new file has the same records. If it has read the old file in part, it also needs
`unchanged-from`: a cleaner may have rewritten the file before.

For a read-only directory the file is kept *aside*, in a directory of the reader's own. It is a
cache there: if it cannot be written, the next reader draws another nonce.

Invariants: the file is replaced atomically; a change that rewrites history is recorded before it is
carried out. After a kill between the two, the nonce is new, and the base is still valid.

Not here: the content of an inode (`kafkafs.tree.partition.generations`), measuring text.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from storage.bad_file import set_aside
from storage.errors import CorruptCheckpoint, UnusableFile
from storage.files import Files
from storage.record.header import BatchHeader
from storage.segment.reader import SegmentReader
from storage.state.history_file import (
    REPACKED,
    SHOWN_ABOVE,
    BaseLine,
    HistoryContent,
    Sizes,
    count_and_crc,
    flushed_of,
    has_segment,
    head,
    number_of,
    size_of,
    visible_from,
)
from storage.waiting import before_waiting

if TYPE_CHECKING:
    from storage.segment.segment import Segment

_log = logging.getLogger(__name__)

FILE_NAME = "kafkafs.history"
PASSED = 64
"""Deleted segments of each view that are remembered."""


def boot_id() -> str:
    """Return the kernel's name for this run of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip().replace("-", "")


Places = tuple[tuple[int, int], ...]
"""(base offset of a segment, its absolute position in bytes), rising."""


LastBatch = tuple[int, BatchHeader] | None
"""The position of a log's last batch in its segment, and its header; None if that is empty."""


class Shift(NamedTuple):
    """The content of the file: the present state, or before a change is carried out, the next one.

    `log_start`: the log start offset, at least the first segment's. `bases`: by view, replaced as a
    whole, as is `passed`: the starts of segments that were deleted or rewritten.
    """

    nonce: int = 0
    follow_nonce: int = 0
    log_start: int = 0
    bases: Mapping[str, Places] = MappingProxyType({})
    passed: Mapping[str, Places] = MappingProxyType({})

    def moved(self, nonce: int, log_start: int, places: Mapping[str, Places]) -> Shift:
        """Return the history after a change, with a new nonce.

        `places`: by view whose base has to move, the starts of the segments from the old base to
        the new one, the last.
        """
        bases, passed = dict(self.bases), dict(self.passed)
        for view, passing in places.items():
            if passing:
                bases[view] = passing[-1:]
                passed[view] = (*passed.get(view, ()), *passing[:-1])[-PASSED:]
        return Shift(nonce, self.follow_nonce, log_start, bases, passed)


def new_shift(log_start: int) -> Shift:
    """Return a history without the former absolute positions."""
    return Shift(new_nonce(), new_nonce(), log_start)


def new_nonce() -> int:
    """Return a number that no inode has had."""
    return int.from_bytes(os.urandom(8), "big") or 1


def recorded_start(files: Files, directory: str) -> int | None:
    """Return the log start offset in a partition's history file, or None.

    It is never below the last shown one. Errors: CorruptCheckpoint, OSError.
    """
    recorded = read(files, directory)
    return recorded.log_start if recorded.facts else None


def read(files: Files, directory: str) -> HistoryContent:
    """Return a partition's history file, empty without one. Errors: CorruptCheckpoint, OSError."""
    path = os.path.join(directory, FILE_NAME)
    try:
        return HistoryContent.parse(files.read_whole(path).decode())
    except FileNotFoundError:
        return HistoryContent()
    except UnusableFile as error:
        raise CorruptCheckpoint(str(error.strerror), path=path) from None
    except (ValueError, KeyError, IndexError):
        raise CorruptCheckpoint("not a history file", path=path) from None


def writers_history(files: Files, directory: str) -> HistoryContent:
    """Return the history that a partition's writer has recorded; empty if it cannot be read."""
    with contextlib.suppress(CorruptCheckpoint, OSError):
        # (A broker's directory has no history.)
        if files.exists(os.path.join(directory, FILE_NAME)):
            return read(files, directory)
    return HistoryContent()


class History:
    """The nonces and the absolute bases of one partition: the present state is `now`.

    A caller changes `now` under the lock under which readers are shown history. `save` is
    thread-safe. `version` counts the saves.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        writable: bool,
        writer_directory: str | None = None,
        flushed_end: Callable[[], int] = lambda: 0,
        stable_end: Callable[[], int] = lambda: 0,
    ) -> None:
        """`writer_directory`: where the log's writer keeps its history, if this one is kept aside.
        `flushed_end`: returns the log's recovery point; `stable_end`: its last stable offset.
        """
        self._files = files
        self._directory = directory
        self._writable = writable
        self._writer_directory = writer_directory
        self._flushed_end = flushed_end
        self._stable_end = stable_end
        # Held while the file is written.
        self._lock = threading.Lock()
        # The lines of `HistoryContent.text`.
        self._lines = ""
        # Held for an instant, for comparisons of the next three.
        self._shown_lock = threading.Lock()
        # The log end when `.follow` last showed unflushed records.
        self._shown_end = 0
        # Whether the file has the line `shown-above`, durably; and whether it may have it.
        self._is_marked = False
        self._may_be_marked = False
        self.now = Shift()
        # The bases in the file, and those before a change that it has ahead.
        self._saved_bases: tuple[Mapping[str, Places], ...] = ({},)
        # The state when the file was written ahead of a change; None: nothing is ahead.
        self._ahead_of: Shift | None = None
        self.version = 0
        # The number of segments at the last save; 0 if the file has a state that is given up.
        self.counted = 0
        # See `HistoryContent`.
        self._batches_nonce = 0
        self.repacked_below = 0
        self._repack_postponed: frozenset[int] = frozenset()
        self.unchanged_from = 0
        # The lines `repacked`: the sizes that count in fingerprints.
        self._repacked: Sizes = {}
        # While a segment is being repacked: the new part of the nonce, and the number of announced
        # changes when it was written.
        self._repacking: tuple[int, int] | None = None
        self._announced = 0

    @classmethod
    def load(
        cls,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        *,
        writable: bool,
        clean: bool,
        cut: bool,
        lost_end: bool = False,
        log_start: int = 0,
        aside: str | None = None,
        flushed_end: Callable[[], int] = lambda: 0,
        stable_end: Callable[[], int] = lambda: 0,
    ) -> History:
        """Read the file and compare it with the segments, which are shown from `log_start` on.

        `clean`: the last writer closed the directory cleanly; `cut`: recovery has set bytes aside;
        `lost_end`: recovery found that flushed records are missing at the end. `aside`: the file's
        directory if the partition's is read-only. `flushed_end`: returns the log's recovery point,
        `stable_end` its last stable offset. A writable history is durable when this returns.
        """
        history = cls(
            files, directory, writable=writable, flushed_end=flushed_end, stable_end=stable_end
        )
        if aside is None:
            recorded = history._read()
        else:
            history = cls(
                files, aside, writable=True, writer_directory=directory, stable_end=stable_end
            )
            recorded = history._read_aside(directory, segments)
            # Apparent damage may be a batch that is being written.
            writable, cut = True, False
        history._lines = recorded.text
        history._repacked = recorded.repacked
        history._batches_nonce = recorded.batches_nonce
        history.repacked_below = recorded.repacked_below
        history._repack_postponed = recorded.repack_postponed
        history.unchanged_from = recorded.unchanged_from
        here = history._place()
        moved = {name for name, value in here.items() if recorded.facts.get(name) != [value]}
        is_rebooted = not clean and "boot" in moved
        is_remounted = not clean and bool(moved)
        if history._aside:
            # Another process flushes the log.
            is_remounted, may_have_shown_lost = is_rebooted, True
        else:
            may_have_shown_lost = SHOWN_ABOVE in recorded.facts
        if recorded.stable_end > stable_end():
            cut = True  # of committed text: a transaction that was decided counts as open again
        is_same = not cut and not is_rebooted and recorded.fits(segments, log_start)
        if recorded.shown_end > segments[-1].next_offset:
            cut = True  # although it looks like a write that was not finished
        is_follow_lost = lost_end or (may_have_shown_lost if is_remounted else cut)
        if not is_same or is_follow_lost:
            # Without a history, a clean stop shows that the active segment, which no cleaner takes,
            # is whole.
            is_active_whole = clean and not recorded.facts and not is_follow_lost
            changed_below = segments[-1].base_offset + (not is_active_whole)
            history.unchanged_from = max(recorded.unchanged_from, changed_below)
        if not is_same and not writable:
            # Nothing may be written: the nonces stay the same while the log's head does.
            nonce = int.from_bytes(head(segments), "big")
            history.now = Shift(nonce, nonce, log_start)
            return history
        nonce = recorded.nonce if is_same else new_nonce()
        if is_follow_lost or not recorded.facts or not (is_same or is_remounted or recorded.bases):
            history.now = new_shift(log_start)._replace(nonce=nonce)
        else:

            def holds(line: BaseLine) -> bool:
                if is_same:
                    return has_segment(segments, line.offset)
                return recorded.still_holds(line, segments, only_flushed=is_remounted)

            history.now = _holding(recorded, nonce, log_start, holds)
            if SHOWN_ABOVE in recorded.facts and not history._aside:
                history._shown_end = segments[-1].next_offset
                history._is_marked = history._may_be_marked = True
        # (After a change of the mount alone, the next periodic save is soon enough.)
        if writable and (history._aside or not is_same or is_follow_lost or "boot" in moved):
            history.save(segments)
        return history

    def _place(self) -> dict[str, str]:
        """Return the boot, and the mount of the file system, in which the log is open."""
        if self._aside or not self._writable:
            return {"boot": boot_id()}
        return {"boot": boot_id(), "mount": self._files.mount_id(self._directory)}

    @property
    def _aside(self) -> bool:
        return self._writer_directory is not None

    @property
    def nonce(self) -> int:
        return self.now.nonce

    @property
    def batches_nonce(self) -> int:
        """The nonce of files that show stored bytes: it changes, too, if a segment is repacked."""
        return self.now.nonce ^ self._batches_nonce

    @property
    def follow_nonce(self) -> int:
        return self.now.follow_nonce

    def base(self, view: str) -> tuple[int, int]:
        """Return (base offset of a segment, absolute position of its start), or (-1, 0)."""
        places = self.now.bases.get(view)
        return places[0] if places else (-1, 0)

    def set_base(self, view: str, base_offset: int, position: int) -> None:
        """Set the absolute position (bytes, signed) of the segment that starts at `base_offset`:
        from there on all bytes are unchanged since they were first shown.
        """
        bases = {**self.now.bases, view: ((base_offset, position),)}
        self.now = self.now._replace(bases=bases)

    def set_when_known(self, view: str, base_offset: int, position: int) -> None:
        """Set the position of a later segment, in case another program deletes the first one."""
        places = self.now.bases.get(view)
        if places and base_offset > places[0][0]:
            bases = {**self.now.bases, view: (places[0], (base_offset, position))}
            self.now = self.now._replace(bases=bases)

    def restart(self, segments: Sequence[Segment], log_start: int) -> None:
        """Drop the past: no inode of it is used again. The segments may be changed in any way."""
        self.now = new_shift(log_start)
        self.unchanged_from = segments[-1].base_offset + 1

    def truncate(self, segments: Sequence[Segment], log_start: int, end: int) -> None:
        """Drop the past, and all facts about records from the offset `end` on: before and after
        their removal.
        """
        unchanged_from = self.unchanged_from
        self.restart(segments, log_start)
        self.unchanged_from = max(self.unchanged_from, unchanged_from)
        # The last segment that stays gets other records.
        last = max((each.base_offset for each in segments if each.base_offset < end), default=end)
        self.repacked_below = min(self.repacked_below, last)
        self._repack_postponed = frozenset(each for each in self._repack_postponed if each < end)
        stay = {each.base_offset for each in segments if each.next_offset <= end}
        self._repacked = {key: size for key, size in self._repacked.items() if key[0] in stay}
        with self._shown_lock:
            self._shown_end = min(self._shown_end, end)

    def restart_positions(self) -> None:
        """Drop the absolute positions: no inode that shows them is used any longer."""
        self.now = new_shift(self.now.log_start)._replace(nonce=self.nonce)

    def is_durable(self, view: str) -> bool:
        """Return whether the view's base is in the file, or never will be."""
        if not self._writable:
            return True
        base = self.now.bases.get(view, ())[:1]
        return any(saved.get(view, ())[:1] == base for saved in self._saved_bases)

    def note_shown(self, end: int) -> bool:
        """Note that `.follow` is about to show records below the offset `end`. Thread-safe.

        If they are not flushed, `shown-above` is in the file, durably, when this returns: the first
        call writes it, and waits. Return whether it did. Errors: OSError, BlockingIOError; nothing
        may be shown.
        """
        if self._is_marked and end <= self._shown_end:
            return False  # where the mark is just being removed, all of this is flushed
        if end <= self._flushed_end() or not self._writable or self._aside:
            return False
        with self._shown_lock:
            self._shown_end = max(self._shown_end, end)
            if self._is_marked:
                return False
        before_waiting()
        with self._lock:
            if not self._is_marked:
                self._store()
        return True

    @property
    def is_marked(self) -> bool:
        """Whether the file may have the line `shown-above`."""
        return self._may_be_marked

    @property
    def is_mark_outdated(self) -> bool:
        """Whether it may, although all shown records are flushed: `save` removes the line."""
        return self._may_be_marked and self._shown_end <= self._flushed_end()

    def save(self, segments: Sequence[Segment], log_start: int | None = None) -> None:
        """Write the present state, and the fingerprint of `segments` (all of the log), durably.

        `log_start`: the log start offset, if it has moved since. A history that is kept aside is
        written if the disk accepts it, and not durably. While the history is written ahead of a
        change (`is_ahead`) the file stays: a start may carry the change out.
        """
        with self._lock:
            if not self.is_ahead:
                self._save_present(segments, log_start)

    def _save_present(self, segments: Sequence[Segment], log_start: int | None = None) -> None:
        # Before the read of `now`: after a change of `now`, a caller compares the version.
        self.version += 1
        now = self.now if log_start is None else self.now._replace(log_start=log_start)
        reader = SegmentReader(segments[-1])
        last = reader.look_again(reader.last_batch)
        self._save(now, segments, last)

    def save_ahead(
        self,
        before: Shift,
        past: Shift,
        segments: Sequence[Segment],
        last: LastBatch,
        version: int,
        unchanged_from: int = 0,
    ) -> bool:
        """Write the state after a change to these segments, and make the version the next one.

        `unchanged_from`: where the segments begin that a cleaner does not rewrite.
        Return False, and write nothing, if something was saved since `version`, or if `before`,
        which `past` was made from, is not the present state. If the change is not carried out, call
        `give_up_ahead`.
        """
        with self._lock:
            if self.version != version or self.now is not before:
                return False
            self.version += 1
            self._announced += 1
            self.unchanged_from = max(self.unchanged_from, unchanged_from)
            self._save(past, segments, last, before)
            return True

    # -- repacking -----------------------------------------------------------------------------

    def begin_repack(self, segments: Sequence[Segment], old: Segment, new: Segment) -> None:
        """Write that `new` is about to replace `old`, one of all `segments`, durably.

        Call `end_repack` afterwards, unless a restart may carry it out. Errors: OSError,
        BlockingIOError while the history is written ahead of a change.
        """
        assert self._writable
        with self._lock:
            if self.is_ahead or self._repacking is not None:
                raise BlockingIOError(errno.EAGAIN, "a change of the log is being carried out")
            known = {**self._repacked}
            known[old.base_offset, new.size] = size_of(old, known)
            bases = {segment.base_offset for segment in segments}
            self._repacked = {key: size for key, size in known.items() if key[0] in bases}
            self._repacking = (new_nonce(), self._announced)
            try:
                self._save_present(segments)
            except BaseException:
                self._repacking = None
                raise

    def is_repack_due(self, base_offset: int) -> bool:
        """Return whether nobody has tried to repack this segment, or it had no room."""
        return base_offset >= self.repacked_below or base_offset in self._repack_postponed

    def note_repacked(self, base_offset: int, *, is_postponed: bool = False) -> None:
        """Note that this segment and those before it need no repacking. Runs on a worker thread.

        `is_postponed`: this one does.
        """
        with self._lock:
            self.repacked_below = max(self.repacked_below, base_offset + 1)
            others = self._repack_postponed - {base_offset}
            self._repack_postponed = others | {base_offset} if is_postponed else others
            # The next periodic save writes it.
            self.counted = 0

    def check_repack(self) -> None:
        """Check that no change was announced since `begin_repack`. Errors: BlockingIOError."""
        assert self._repacking is not None
        if self._repacking[-1] != self._announced:
            raise BlockingIOError(errno.EAGAIN, "a change of the log is being carried out")

    def end_repack(self, *, is_done: bool) -> None:
        """Note that the log has the new segment, or will not get it. Does not wait."""
        if self._repacking is not None and is_done:
            self._batches_nonce = self._repacking[0]
        self._repacking = None

    def begin_repacked(self, sizes: Sizes) -> None:
        """Note that the log is about to take segments that another process has repacked. Call
        `end_repack` afterwards. Does not wait.

        `sizes`: those that the process has recorded.
        """
        self._repacked = {**self._repacked, **sizes}
        self._repacking = new_nonce(), self._announced
        # The next periodic save writes it.
        self.counted = 0

    @property
    def is_ahead(self) -> bool:
        """Whether the file has the state after a change that was not carried out yet."""
        return self._ahead_of is self.now

    def give_up_ahead(self) -> None:
        """Forget an announced change that will not happen: the next save writes the present state.

        Does not wait.
        """
        if self.is_ahead:
            self.counted = 0
        self._ahead_of = None

    def _save(
        self,
        past: Shift,
        segments: Sequence[Segment],
        last: LastBatch,
        before: Shift | None = None,
    ) -> None:
        """`before`: the present state, if `past` is not yet."""
        if self._aside:
            with contextlib.suppress(OSError):
                self._write(past, segments, last, before)
        elif self._writable:
            self._write(past, segments, last, before)
        # After a failure it is tried again.
        self.counted = len(segments)

    def _write(
        self, past: Shift, segments: Sequence[Segment], last: LastBatch, before: Shift | None
    ) -> None:
        shown = segments[visible_from(segments, past.log_start) :]
        flushed_end = self._flushed_end()
        if self._writer_directory is not None:
            # Only of the segments that the log has taken: the next reader compares them.
            here = {(segment.base_offset, segment.size) for segment in segments}
            recorded = writers_history(self._files, self._writer_directory)
            known = {**self._repacked, **recorded.repacked}
            self._repacked = {key: size for key, size in known.items() if key in here}
        sizes, bases = self._repacked, {segment.base_offset for segment in segments}
        self._repack_postponed &= bases
        lines = [
            "version 0",
            f"nonce {past.nonce:016x}",
            f"follow {past.follow_nonce:016x}",
            f"first {shown[0].base_offset}",
            f"start {max(past.log_start, shown[0].base_offset)}",
            f"stable {self._stable_end()}",
            f"sealed {count_and_crc(shown[:-1], sizes)}",
        ]
        if last is not None:
            position, header = last
            state = "flushed" if header.last_offset < flushed_end else "unflushed"
            lines.append(f"last {segments[-1].base_offset} {position} {header.crc:08x} {state}")
        for view, places in past.bases.items():
            for offset, at in places:
                sealed = segments[number_of(segments, offset) : -1]
                flushed = flushed_of(sealed, flushed_end)
                fingerprints = f"{count_and_crc(sealed, sizes)} {count_and_crc(flushed, sizes)}"
                lines.append(f"base {view} {offset} {at} {fingerprints}")
        for view, places in past.passed.items():
            lines += [f"passed {view} {offset} {at}" for offset, at in places]
        # (By base offset, since the segments may have the old one or the new one.)
        lines += [
            f"{REPACKED} {base} {size_before} {size_after}"
            for (base, size_after), size_before in sizes.items()
            if base in bases
        ]
        self._lines = "".join(f"{line}\n" for line in lines)
        self._store()
        self._saved_bases = (past.bases,) if before is None else (before.bases, past.bases)
        self._ahead_of = before

    def _store(self) -> None:
        """Write the file's lines, and `shown-above` if it is needed. Under the lock."""
        flushed_end = self._flushed_end()
        with self._shown_lock:
            shown_end = self._shown_end
            is_marked = shown_end > flushed_end
            if not is_marked:
                # First: from now on a thread that shows more waits for the lock, and writes the
                # line.
                self._is_marked = False
        self._may_be_marked = self._may_be_marked or is_marked
        lines = self._lines + "".join(f"{name} {value}\n" for name, value in self._place().items())
        repacking = self._repacking
        batches_nonce = self._batches_nonce if repacking is None else repacking[0]
        if batches_nonce:
            lines += f"batches {batches_nonce:016x}\n"
        if self.repacked_below:
            below = [self.repacked_below, *sorted(self._repack_postponed)]
            lines += f"repacked-below {' '.join(map(str, below))}\n"
        if self.unchanged_from:
            lines += f"unchanged-from {self.unchanged_from}\n"
        if is_marked:
            lines += f"{SHOWN_ABOVE} {flushed_end} {shown_end}\n"
        path, data = os.path.join(self._directory, FILE_NAME), lines.encode()
        if not (self._aside and self._has_content(path, data)):
            self._files.replace_atomically(path, data, sync=not self._aside)
        self._is_marked = self._may_be_marked = is_marked

    def _has_content(self, path: str, data: bytes) -> bool:
        """Whether a file has these bytes. (On ext4, a rename that replaces a file may wait for the
        disk, and so would each `kafkafs grep`.)
        """
        with contextlib.suppress(OSError):
            return self._files.read_whole(path) == data
        return False

    def relocate(self, directory: str) -> None:
        """Note that the partition's directory was renamed."""
        if self._writer_directory is not None:
            self._writer_directory = directory
        else:
            self._directory = directory

    def _read(self) -> HistoryContent:
        """Read the file; an unreadable one is renamed, if it may be: readers start over."""
        try:
            recorded = read(self._files, self._directory)
        except CorruptCheckpoint as error:
            kept = ""
            if self._writable:
                name = set_aside(self._files, os.path.join(self._directory, FILE_NAME))
                kept = f"; kept as {name}"
            _log.warning(
                "%s: readers start again at the first record, with new inodes%s", error, kept
            )
            return HistoryContent()
        self._saved_bases = (
            {view: tuple(line[:2] for line in lines) for view, lines in recorded.bases.items()},
        )
        return recorded

    def _read_aside(self, directory: str, segments: Sequence[Segment]) -> HistoryContent:
        """Return the history that is kept aside, else that of the log's writer in `directory`."""
        recorded = HistoryContent()
        with contextlib.suppress(OSError):
            recorded = self._read()
        if not recorded.facts:
            recorded = History(self._files, directory, writable=False)._read()
            if recorded.facts and not recorded.bases:
                # The positions of this one begin now, those of the writer when somebody reads them.
                recorded.facts["follow"] = [f"{new_nonce():016x}"]
            return recorded
        known = recorded.repacked
        recorded.repacked = {**known, **writers_history(self._files, directory).repacked}
        repacked = recorded.repacked.keys() - known.keys()
        if any((segment.base_offset, segment.size) in repacked for segment in segments):
            recorded.facts["batches"] = [f"{new_nonce():x}"]
        return recorded


def _holding(
    recorded: HistoryContent, nonce: int, log_start: int, holds: Callable[[BaseLine], bool]
) -> Shift:
    """Return the recorded history with the first valid base of each view; without any, positions
    are restarted.
    """
    bases: dict[str, Places] = {}
    passed: dict[str, Places] = {}
    for view, lines in recorded.bases.items():
        found = next((line for line in lines if holds(line)), None)
        if found is None:
            return new_shift(log_start)._replace(nonce=nonce)
        places = (*recorded.passed.get(view, ()), *(line[:2] for line in lines))
        bases[view] = (found[:2],)
        passed[view] = tuple(place for place in places if place[1] < found[1])[-PASSED:]
    return Shift(nonce, recorded.follow_nonce, log_start, bases, passed)
