"""The line index of one segment in one view: measures it, saves it, and looks positions up.

The entries since the last save are in memory; a save moves them to the file. `records.py` finds
single records by it, `readers.py` begins to render at a byte. `lines_file.py` has the format of the
file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from kafkafs.line_index import lines_file
from kafkafs.line_index.encoded import AbortedAcross, IsAborted, show_batch, takes_long
from kafkafs.line_index.lines_file import CHECKED, Saved, file_suffix
from kafkafs.line_index.store import NEVER, LineStore
from kafkafs.views import TextView
from kafkafs.views._measure import ENTRY_SIZE, Measure, find_batch, find_entry
from storage import paths
from storage.errors import CorruptRecord, StorageError
from storage.record.batch import Record, encode
from storage.record.crc import crc32c
from storage.record.header import (
    CODEC_BITS,
    CONTROL_BIT,
    FLAGS_POSITION,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    Buffer,
    size_at,
)
from storage.segment.damage import Damage, Damages
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.waiting import at_once, before_waiting, may_wait

CHUNK = 1 << 20
"""Bytes of log that are measured at a time."""
NO_ENTRIES = 1 << 62
"""A granularity at which no entries are made but the first."""
SAVING = "saving of line indexes"
"""The duty."""

_ENTRY = struct.Struct("<QIIII")
_OUTCOME = struct.Struct("<qq")


_STAND_IN = encode([Record(0, 0, 0, b"", b"")])


class Gap(NamedTuple):
    """The unreadable text `start` to `end`: records `first` to (exclusive) `last`, in `place`."""

    start: int
    end: int
    first: int
    last: int
    place: Damage


class SegmentLines:
    """See the module. The owner's thread appends and saves; `measure` and `find` run in any thread.

    `text_length` and `records` count what is measured: all that the view shows of the segment when
    `complete`. A view of committed records ends at the last stable offset.

    A thread holds `_lock` while it measures or saves, also over reads of the disk. No thread waits
    for it inside of `at_once` or at an append: the thread that holds it then measures, and saves,
    what the other one would have.
    """

    __slots__ = (
        "_aborted_across",
        "_aside",
        "_cache",
        "_from",
        "_from_log_directory",
        "_held",
        "_lock",
        "_may_be_saved",
        "_state",
        "_store",
        "covered",
        "gaps",
        "is_aborted",
        "is_guessed",
        "loaded",
        "reader",
        "records",
        "segment",
        "text_length",
        "used",
        "view",
    )

    def __init__(
        self,
        store: LineStore,
        segment: Segment,
        view: TextView,
        is_aborted: IsAborted | None = None,
        cache: str | None = None,
        *,
        aborted_across: AbortedAcross | None = None,
    ) -> None:
        """`is_aborted` None: the view shows aborted transactions. `aborted_across`: for the view of
        a log whose markers may lie in later segments.

        `cache`: the directory to save in, instead of the segment's own, where another process may
        have saved an index.
        """
        self._store = store
        self.segment = segment
        self.reader = SegmentReader(segment)
        self.view = view
        self.is_aborted = is_aborted
        self._aborted_across = aborted_across
        self._cache = cache
        # Its path in a cache directory once its segment has left the log.
        self._aside: str | None = None
        # Whether the entries of the saved part are in the segment's directory, not in the cache.
        self._from_log_directory = False
        self._lock = threading.Lock()
        # The saved part, and the measure that goes on after it.
        self._state: tuple[Saved, Measure | None] = self._begun(Saved())
        # (entries, count) of the saved part, while they stay in memory.
        self._held: tuple[bytes, int] | None = None
        # Not if the log shows less than was measured, nor if damage was measured: the file may be
        # replaced by a good copy, whose text has another length.
        self._may_be_saved = True
        # While `measure` has not come to the end: (covered, text_length, records) as it began.
        self._from: tuple[int, int, int] | None = None
        # The gaps, and the damages that they were found for (`records.py`).
        self.gaps: tuple[Damages, tuple[Gap, ...]] = ((), ())
        self.used = False
        self.covered = 0
        self.text_length = 0
        self.records = 0
        # Whether a damaged place was measured whose length of text nobody can know.
        self.is_guessed = False
        self.loaded = segment.size == 0

    @property
    def path(self) -> str:
        """The path of its `.lines` file."""
        if self._aside is not None:
            return self._aside
        if self._cache is None:
            return self._path_beside_log
        name = paths.file_name(self.segment.base_offset, file_suffix(self.view.name))
        return os.path.join(self._cache, name)

    @property
    def _path_beside_log(self) -> str:
        return self.segment.file_path(file_suffix(self.view.name))

    @property
    def end(self) -> int:
        """Bytes of the segment's log that the view shows."""
        return self.segment.stable_size if self.view.committed else self.segment.size

    @property
    def complete(self) -> bool:
        """Whether all that the view shows is measured."""
        return self.covered == self.end and self.loaded

    @property
    def unsaved(self) -> int:
        """Bytes of log whose entries no file has."""
        return self.covered - self._state[0].covered

    @property
    def is_saved(self) -> bool:
        """Whether a file has all that the view shows."""
        saved = self._state[0]
        is_written = saved.count > 0 or not saved.records
        return self.complete and not self.unsaved and is_written

    # -- measuring -----------------------------------------------------------------------------

    def append(self, position: int, data: bytes | bytearray | memoryview) -> bool:
        """Measure `data`, whole batches that the log has appended at `position`.

        False where `measure` has to do that: the log before them is not measured, another thread
        measures, they take long to decode, or this fails. It raises nothing, since they are in the
        log.
        """
        size, end = len(data), self.end
        if position >= end:
            return True  # the view does not show them yet
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if position != self.covered or not self.loaded or position + size > end:
                return False
            at_once(self._feed, data, size)
        except (OSError, StorageError):
            return False
        finally:
            self._lock.release()
        return True

    def _feed(self, data: Buffer, size: int) -> int:
        """Measure `data[:size]`, the log from `covered` on; returns as `_run`."""
        tail = self._tail()
        try:
            return self._run(tail, data, size)
        finally:
            self._count(tail)

    def _begun(self, saved: Saved) -> tuple[Saved, Measure]:
        """`saved`, and a measure that goes on after it."""
        return saved, Measure(self._store.granularity, *saved[:3])

    def _tail(self) -> Measure:
        saved, tail = self._state
        if tail is None:
            saved, tail = self._state = self._begun(saved)
        return tail

    def _count(self, tail: Measure) -> None:
        self.text_length, self.records = tail.text_length, tail.records
        # Last, since whoever finds it complete takes the length.
        self.covered = tail.position

    def _run(self, state: Measure, data: Buffer, size: int) -> int:
        """Measure `data[:size]`, the log from the state's position on.

        Returns how many bytes of the next batch or record it needs to go on, or 0.
        """
        segment, start = self.segment, state.position
        may_decode = not segment.holds_batches or may_wait()
        while True:
            if segment.holds_batches:
                try:
                    self.view.measure(data, start, size, state)
                except StorageError as error:
                    error.path = segment.log_path
                    raise
                if not state.encoded:
                    return state.needed
            elif state.position == start + size:
                return 0
            at = state.position - start
            if not may_decode and takes_long(memoryview(data)[at:size]):
                raise BlockingIOError
            may_decode = True
            shown = show_batch(self.reader, self.is_aborted, data, at, size, state.position)
            if not shown.whole:
                return shown.size
            if shown.size > self.end - state.position:
                raise self._ends_inside_a_batch(state.position)
            if shown.hidden:
                state.step_over(shown.size)
            elif shown.plain is None:
                state.step_into(shown.size, memoryview(data)[at:size])
            else:
                state.add(self.view.measure, shown.plain, shown.size)
            del shown
            if state.position >= start + size:
                return 0

    def measure(self, until: float = NEVER) -> None:
        """Load the saved part, and measure the rest of what the view shows from the log.

        BlockingIOError where it would wait and may not, or when `time.monotonic()` reaches `until`:
        what is measured is kept. CorruptRecord, SegmentGone, OSError.
        """
        timeout = -1.0 if until == NEVER else max(until - time.monotonic(), 0)
        if not (self._lock.acquire(timeout=timeout) if may_wait() else self._lock.acquire(False)):
            raise BlockingIOError(errno.EAGAIN, "another thread is indexing it", self.path)
        try:
            if not self.loaded:
                self._load()
            if self._from is None:
                self._from = self.covered, self.text_length, self.records
            # Bytes may have changed since they were checked.
            for start in self._from, (0, 0, 0):
                try:
                    self._measure_log(until)
                    break
                except CorruptRecord:
                    if not self._go_back(start):
                        raise
            else:
                self._measure_log(until)
            self._from = None
        finally:
            self._lock.release()
        if self.segment.sealed and self._state[1] is not None:
            self.seal()

    def take_totals(self, text_length: int, records: int) -> None:
        """Take the totals of another segment with the same records, instead of measuring. The
        entries are measured when they are needed, or by `save_taken`.
        """
        self._state = Saved(self.segment.size, text_length, records), None
        self.text_length, self.records, self.covered = text_length, records, self.segment.size
        self.loaded = True

    def save_taken(self) -> None:
        """Measure and save the entries after `take_totals`. Waits. Errors: CorruptRecord,
        SegmentGone, OSError.
        """
        with self.segment.leased():
            if not self._state[0].count:
                self._read_entries()

    def _measure_log(self, until: float) -> None:
        buffer = memoryview(bytearray(max(min(CHUNK, self.end - self.covered), 0)))
        while (position := self.covered) < (end := self.end):
            if time.monotonic() >= until:
                reason = f"indexed {position} of {end} bytes of the segment so far"
                raise BlockingIOError(errno.EAGAIN, reason, self.segment.log_path)
            size = min(len(buffer), end - position)
            damages = self.segment.damages
            if damages:
                size = self._sound_size(position, size)
                if not size:
                    continue
            try:
                read_whole(self.reader, buffer[:size], position)
            except CorruptRecord:
                if self.segment.damages is damages:
                    raise
                # This read has found the damage.
                continue
            needed = self._feed(buffer, size)
            if self.covered == position:
                self._check_room(position, needed, size, end)
            if needed > len(buffer):
                buffer = memoryview(bytearray(needed))
        tail = self._state[1]
        if position > end or (tail is not None and tail.batch_end):
            # A value lies beyond the end, or a record ends there inside of its batch.
            raise self._ends_inside_a_batch(end)

    def _go_back(self, start: tuple[int, int, int]) -> bool:
        """Check what cannot be measured again, and go back to `start` (as `_from`), which is before
        it. False where nothing is damaged.
        """
        self.reader.check_again(start[0], self.end)
        if not self.segment.damages:
            return False
        tail = self._tail()
        if start[0] < self._state[0].covered:
            _, tail = self._state = self._begun(Saved())
            self._drop_held()
            self.gaps = ((), ())
            self.is_guessed = False
        else:
            tail.go_back(*start)
        self._count(tail)
        return True

    def measured(self, state: Measure, end: int) -> Measure:
        """Measure the log from the state's position to `end`, where a batch or a record ends;
        return the state. The index is not changed. Waits; CorruptRecord, SegmentGone, OSError.
        """
        buffer = memoryview(bytearray(min(CHUNK, end - state.position)))
        while (position := state.position) < end:
            size = min(len(buffer), end - position)
            read_whole(self.reader, buffer[:size], position)
            needed = self._run(state, buffer, size)
            if state.position == position:
                self._check_room(position, needed, size, end)
                buffer = memoryview(bytearray(needed))
        return state

    def _sound_size(self, position: int, size: int) -> int:
        """How many of `size` bytes at `position` are sound. 0: it has measured a damaged place."""
        for place in self.segment.damages:
            if position < place.start:
                return min(size, place.start - position)
            if position < place.end:
                tail = self._tail()
                if tail.batch_end:
                    # The batch was sound as its measuring began.
                    raise place.error(self.segment.log_path)
                self._measure_damaged(tail, place, min(place.end, self.end))
                self._count(tail)
                return 0
        return size

    def _measure_damaged(self, state: Measure, place: Damage, end: int) -> None:
        """Measure a damaged place from the state's position on to file position `end`.

        A damaged batch whose records can be parsed counts with their text, which mostly is the
        right length. Any other counts as one empty record, so that a reader who comes from before
        it meets the damage.
        """
        position = self.covered
        if place.is_empty:
            state.step_over(end - position)
            return
        self._may_be_saved = False
        while position < end and not self.segment.is_lost:
            head = bytearray(HEADER_SIZE)
            read = self.reader.raw(head, position)
            size = size_at(head, 0) if read == HEADER_SIZE and head[MAGIC_POSITION] == MAGIC else 0
            attributes = head[FLAGS_POSITION] if size else CODEC_BITS
            if not attributes & CODEC_BITS and HEADER_SIZE <= size <= end - position:
                try:
                    if attributes & CONTROL_BIT:
                        state.step_over(size)
                    else:
                        data = bytearray(size)
                        self.reader.raw(data, position)
                        state.add(self.view.measure, data, size)
                    position += size
                    continue
                except CorruptRecord:
                    pass
            break
        if position < end:
            state.add(self.view.measure, _STAND_IN, end - position)
            self.is_guessed = True

    def _check_room(self, position: int, needed: int, size: int, end: int) -> None:
        """CorruptRecord unless the bytes up to `end` can hold a batch that `size` bytes do not."""
        if not size < needed <= end - position:
            raise self._ends_inside_a_batch(position)

    def _ends_inside_a_batch(self, position: int) -> CorruptRecord:
        path = self.segment.log_path
        return CorruptRecord("the log ends inside a batch", path=path, position=position)

    # -- entries that are saved -----------------------------------------------------------------

    def evict(self) -> None:
        """Drop the entries from memory, to make room; a thread that reads them keeps them."""
        self._held = None

    def _read_entries(self) -> tuple[bytes, int]:
        """(entries, count) of the saved part, from the file, or measured again. Waits."""
        before_waiting()
        saved = self._state[0]
        try:
            entries = self._entries_of(saved)
        except (OSError, ValueError):
            return self._measure_again(saved)
        held = (entries, saved.count)
        self._held = held
        if self._state[0] is saved:
            self.used = True
            self._store.memory.admit(self, len(entries))
        else:
            # Saved meanwhile: these are not all entries.
            self._held = None
        return held

    def _entries_of(self, saved: Saved) -> bytes:
        """Read the entries of the saved part from its file. Errors: OSError, ValueError."""
        path = self._path_beside_log if self._from_log_directory else self.path
        return lines_file.read_entries(self._store.files, path, saved)

    def _measure_again(self, saved: Saved) -> tuple[bytes, int]:
        """Measure the saved part again, whose file is lost or was never written. Waits."""
        while True:
            damages = self.segment.damages
            try:
                entries = self._entries_around(damages, saved)
                break
            except CorruptRecord:
                if self.segment.damages is damages:
                    raise
        held = (entries, len(entries) // ENTRY_SIZE)
        now = saved._replace(count=held[1], entries_crc=crc32c(entries))
        with self._lock:
            if self._state[0] is saved:
                if not self._write(now, entries, 0):
                    now = now._replace(count=0)
                self._from_log_directory = False
                self._state = (now, self._state[1])
                self._held = held
                self.used = True
                self._store.memory.admit(self, len(entries))
        if self.segment.sealed and self._state[1] is not None:
            self.seal()
        return held

    def _entries_around(self, damages: Damages, saved: Saved) -> bytes:
        """Return the entries of the saved part without its damaged places, which have the rest of
        the text. Waits. Errors: CorruptRecord, also for new damage.
        """
        damages = tuple(place for place in damages if place.start < saved.covered)
        start = end = saved.covered
        if damages:
            start, end = damages[0].start, min(damages[-1].end, saved.covered)
        granularity = self._store.granularity
        before = self.measured(Measure(granularity), start)
        after = self.measured(Measure(NO_ENTRIES, end), saved.covered)
        text_length = saved.text_length - after.text_length
        records = saved.records - after.records
        if damages:
            is_same = text_length >= before.text_length
        else:
            is_same = (before.position, before.text_length, before.records) == saved[:3]
        if after.position != saved.covered or not is_same:
            raise CorruptRecord(
                "the log has changed since it was indexed", path=self.segment.log_path
            )
        if not damages:
            return bytes(before.entries)
        damaged = _ENTRY.pack(before.text_length, start, start, 0, before.records)
        after = self.measured(Measure(granularity, end, text_length, records), saved.covered)
        return bytes(before.entries) + damaged + bytes(after.entries)

    # -- saving --------------------------------------------------------------------------------

    def leave(self) -> None:
        """Rename the file in a cache directory: its segment has left the log, and another one may
        take the name. Beside the log it is renamed with the segment's other files.
        """
        if self._cache is None or self._aside is not None:
            return
        path = self.path
        self._aside = f"{path}.{os.urandom(4).hex()}{paths.DELETED}"
        with contextlib.suppress(OSError):
            self._store.files.rename(path, self._aside)

    def vanish(self) -> None:
        """Delete the file in a cache directory: the segment's files are deleted."""
        self._drop_held()
        if self._aside is not None:
            with contextlib.suppress(OSError):
                self._store.files.unlink(self._aside)

    def seal(self) -> None:
        """Save, and keep only the totals: the segment does not grow any more.

        Does nothing where another thread measures and this may not wait: that one seals it.
        """
        if not self._lock.acquire(blocking=may_wait()):
            return
        try:
            if self.covered < self.segment.size or not self.loaded:
                return
            self._save()
            saved = self._state[0]
            if saved.covered < self.covered:
                if not self._may_be_saved or self._is_unreadable():
                    # Only these entries know how much text there was: save them later.
                    return
                # The disk refuses the file: the entries are measured again when they are needed.
                saved = Saved(self.covered, self.text_length, self.records)
                self._drop_held()
            self._state = (saved, None)
        finally:
            self._lock.release()

    def save(self) -> bool:
        """Write what is not saved yet. False where it cannot be written now."""
        if not self._lock.acquire(blocking=may_wait()):
            return False
        try:
            return self._save()
        finally:
            self._lock.release()

    def discard(self) -> None:
        """Have the next mount measure the log again, which shows less than was measured: make the
        file invalid, and write no other. If the index is that of another process, an invalid file
        in the cache replaces it. Waits.
        """
        before_waiting()
        with self._lock:
            self._may_be_saved = False
            with contextlib.suppress(OSError):
                lines_file.invalidate(
                    self._store.files, self.path, creates=self._from_log_directory
                )

    def _save(self) -> bool:
        saved, tail = self._state
        if self.covered == saved.covered:
            return True
        if not self.loaded or tail is None or tail.batch_end or not self._may_be_saved:
            return False
        if self.segment.is_lost or (saved.covered and not saved.count):
            # Without the log's CRC nobody could tell which log it belongs to; and entries are added
            # to those before them.
            return False
        entries = bytes(tail.entries)
        now = Saved(
            self.covered,
            self.text_length,
            self.records,
            saved.count + len(entries) // ENTRY_SIZE,
            crc32c(entries, saved.entries_crc),
        )
        before = saved.count
        if before and self._from_log_directory:
            # The cache gets all entries.
            try:
                entries, before = self._entries_of(saved) + entries, 0
            except (OSError, ValueError):
                return False
        if not self._write(now, entries, before):
            return False
        self._from_log_directory = False
        self._state = self._begun(now)
        self._drop_held()
        return True

    def _drop_held(self) -> None:
        self._held = None
        self._store.memory.dropped(self)

    def _write(self, now: Saved, entries: bytes, before: int) -> bool:
        files, path = self._store.files, self.path
        try:
            # An index can be measured again: it must not take the reserve's room from deletions.
            files.check_room()
            if self._cache is not None and not files.exists(self._cache):
                os.makedirs(self._cache, mode=0o700, exist_ok=True)
            lines_file.write(
                files,
                path,
                self.view.name,
                self.segment.base_offset,
                now,
                entries=entries,
                before=before,
                log_crc=self._log_crc(now.covered),
                outcomes=self._outcomes(now.covered),
                granularity=self._store.granularity,
            )
            if path != self.path:
                # The segment has left the log meanwhile.
                files.rename(path, self.path)
        except BlockingIOError:
            return False
        except (OSError, StorageError) as error:
            self._store.duties.failed(SAVING, error, self._of)
            return False
        self._store.duties.succeeded(SAVING, self._of)
        return True

    @property
    def _of(self) -> str:
        """Its name in the event log, the same for all segments of a partition."""
        directory, name = os.path.split(self.path)
        return os.path.basename(directory) + name[name.index(".") :]

    def _log_crc(self, covered: int) -> int:
        """The CRC of the last covered bytes: another log has other batches there."""
        buffer = memoryview(bytearray(min(CHECKED, covered)))
        done = 0
        while done < len(buffer):
            got = self.reader.raw(buffer[done:], covered - len(buffer) + done)
            if not got:
                raise CorruptRecord("shorter than it was", path=self.segment.log_path)
            done += got
        return crc32c(buffer)

    def _outcomes(self, covered: int) -> int:
        """The CRC of outcomes: of the aborted transactions that begin in the first covered bytes,
        or before them, and have their marker after them.
        """
        if self._aborted_across is None:
            return 0
        offset = self.segment.next_offset
        if covered < self.segment.size:
            base_offset = bytearray(8)
            self.reader.raw(base_offset, covered)
            offset = int.from_bytes(base_offset, "big", signed=True)
        found = self._aborted_across(offset)
        return crc32c(b"".join(_OUTCOME.pack(each.producer_id, each.last_offset) for each in found))

    def _is_unreadable(self) -> bool:
        """Whether the log is shorter than what is measured, or cannot be read at its end."""
        try:
            self._log_crc(self.covered)
        except BlockingIOError:
            return False
        except (OSError, StorageError):
            return True
        return False

    def _is_of_log(self, covered: int, log_crc: int) -> bool:
        """Whether a file that covers `covered` bytes of log is of this log."""
        try:
            if self._log_crc(covered) == log_crc:
                return True
        except CorruptRecord:
            pass  # the log is shorter than it was, or gone
        # Damage may have changed them: the index still fits the log.
        start = max(covered - CHECKED, 0)
        self.reader.check(start, covered)
        return any(place.start < covered and start < place.end for place in self.segment.damages)

    def _load(self) -> None:
        """Load the saved index that fits the segment and covers the most. Waits."""
        before_waiting()
        saved = Saved()
        for path in dict.fromkeys((self.path, self._path_beside_log)):
            try:
                found, log_crc, outcomes = lines_file.read_header(
                    self._store.files, path, self.view.name, self.segment.base_offset
                )
                is_longer = saved.covered < found.covered <= self.end
                is_longer = is_longer and outcomes == self._outcomes(found.covered)
                if is_longer and self._is_of_log(found.covered, log_crc):
                    saved, self._from_log_directory = found, path != self.path
            except ValueError:
                # A reader may have found that the index beside the log is wrong: see `discard`.
                break
            except (OSError, StorageError):
                pass  # as a missing file
        finished = self.segment.sealed and saved.covered == self.segment.size
        self._state = (saved, None) if finished else self._begun(saved)
        self.text_length, self.records = saved.text_length, saved.records
        self.covered = saved.covered
        self.loaded = True

    # -- looking up ----------------------------------------------------------------------------

    def find(self, text: int) -> tuple[int, int, int, int, int]:
        """The last indexed record that begins at or before byte `text` (< `text_length`) of text:

        (bytes of text before it, its batch's file position, its own, its batch's end, records
        before it). The end is 0 where a batch begins at the record's position. BlockingIOError
        where the entries are not in memory and this may not wait.
        """
        if text >= self.text_length:
            # It replaces a segment that was not read to its end.
            before_waiting()
            self.measure()
        saved, tail = self._state
        if text < saved.text_length:
            held = self._held or self._read_entries()
            self.used = True
            return find_entry(held[0], held[1], text)
        assert tail is not None
        entries = tail.entries
        return find_entry(entries, len(entries) // ENTRY_SIZE, text)

    def entry_before(self, is_after: Callable[[int, int], bool]) -> tuple[int, int, int, int]:
        """The last entry for which `is_after(batch's position, records before it)` is false, or the
        first one:

        (bytes of text before its record, its batch's position, its record's, records before it).
        Waits.
        """
        saved, tail = self._state
        entries: Buffer
        if saved.covered and (tail is None or is_after(saved.covered, saved.records)):
            entries, count = self._held or self._read_entries()
        elif tail is None:
            return 0, 0, 0, 0  # sealed, and compaction has left no record in it
        else:
            entries, count = tail.entries, len(tail.entries) // ENTRY_SIZE

        def after(number: int) -> bool:
            _, batch, _, _, ordinal = _ENTRY.unpack_from(entries, number * ENTRY_SIZE)
            return is_after(batch, ordinal)

        number = bisect_left(range(1, count), True, key=after)
        return _entry_at(entries, number)

    def entry_from(self, position: int) -> tuple[int, int, int, int] | None:
        """The first entry whose batch begins at or after `position`, as `entry_before`. Waits."""
        saved, tail = self._state
        if position < saved.covered:
            held = self._held or self._read_entries()
            number = find_batch(held[0], held[1], position)
            if number < held[1]:
                return _entry_at(held[0], number)
        if tail is None:
            return None
        entries, count = tail.entries, len(tail.entries) // ENTRY_SIZE
        number = find_batch(entries, count, position)
        return _entry_at(entries, number) if number < count else None


def _entry_at(entries: Buffer, number: int) -> tuple[int, int, int, int]:
    text, batch, record, _, ordinal = _ENTRY.unpack_from(entries, number * ENTRY_SIZE)
    return text, batch, record, ordinal


def read_whole(reader: SegmentReader, buffer: memoryview, position: int) -> None:
    """Fill `buffer` from byte `position` of the log. BlockingIOError, CorruptRecord, as `fill`."""
    done = 0
    while done < len(buffer):
        with buffer[done:] as rest:
            got = reader.window(rest, position + done)
        if not got:
            raise shorter(reader.segment, position + done)
        done += got


def shorter(segment: Segment, position: int) -> Exception:
    """The error for a read of no bytes: without waiting, the page cache just may not have more."""
    if not may_wait():
        return BlockingIOError()
    return CorruptRecord("the log is shorter than it was", path=segment.log_path, position=position)
