"""Reads logs back while they are in use, to find damage before a reader needs the data.

Every kafkafs.check.interval.ms it reads the *newest* segments: the bytes that were appended since
the last check, also to a segment that was sealed meanwhile, at `NEWEST_BYTES_PER_SECOND`. It also
reads all *sealed* segments, again and again, at `SEALED_BYTES_PER_SECOND` for all logs together. A
pass begins at a random segment, since one over a large directory takes longer than some processes
live.

Damage is reported to the log (`Log.note_damage`), which closes a damaged active segment and fails
reads there, and to the log of events. Only `kafkafs repair` removes anything.

All reads bypass the page cache (`direct_io`). Recent bytes are still correct in the cache even if
the disk is wrong, and sealed segments would push other processes' data out of it.

Threads: `run_newest` and `run_sealed` each run on a worker thread, one of each at a time. They read
a log's tuple of segments and their sizes, which is thread-safe; damage is reported on the log
thread.

Not here: the check of a batch (`batch_check`), the schedule, other processes' logs, a verification
on demand, also of records and indexes (`verify_log`).
"""

from __future__ import annotations

import functools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from storage import paths
from storage.background import Duties
from storage.errors import SegmentGone, StorageError
from storage.log.log import Log
from storage.segment.batch_check import Part, check_file
from storage.segment.damage import Damage
from storage.segment.segment import Segment
from storage.task import Task

#: Too slow to disturb other readers of the disk, but faster than most logs grow.
NEWEST_BYTES_PER_SECOND = 128 << 20
#: Enough for 350 GB a day, and a twentieth of the speed of a plain disk.
SEALED_BYTES_PER_SECOND = 4 << 20

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A place in a log: the position of a batch in a segment, and the offset that is next."""

    segment: Segment
    position: int
    next_offset: int


class LogChecker:
    """Checks the `logs` of one data directory. Its facts are thread-safe."""

    def __init__(
        self,
        logs: Callable[[], Iterable[Log]],
        clock_ms: Callable[[], int],
        duties: Duties | None = None,
    ) -> None:
        self._logs = logs
        self._clock_ms = clock_ms
        self._duties = duties or Duties()
        # The place up to which the newest segments of a log are checked.
        self._newest: dict[Log, Place] = {}
        self._checked_ms: dict[Log, int] = {}
        # Bytes read, of each log and of all, including deleted ones; one writer thread each.
        self._all_newest = self._all_sealed = 0
        self._bytes_newest: Counter[Log] = Counter()
        self._bytes_sealed: Counter[Log] = Counter()

    # -- facts ---------------------------------------------------------------------------------

    def checked_ms(self, log: Log) -> int:
        """Return when the newest segment was last checked; -1: not yet."""
        return self._checked_ms.get(log, -1)

    def bytes_checked(self, log: Log) -> int:
        """Return the bytes read since the directory was opened; repeated reads count again."""
        return self._bytes_newest[log] + self._bytes_sealed[log]

    @property
    def all_bytes_checked(self) -> int:
        """`bytes_checked` of all logs, including deleted ones."""
        return self._all_newest + self._all_sealed

    # -- the newest ----------------------------------------------------------------------------

    def run_newest(self, task: Task) -> None:
        """Check the bytes appended to every log since the last call. Errors: TaskCancelled."""
        logs = list(self._logs())
        task.begin("reading back appended records", 0)
        for log in logs:
            task.check()
            with self._duties.attempt("check of newest segments", log.name):
                self._check_newest(log, task)
        for gone in set(self._newest).difference(logs):
            del self._newest[gone], self._checked_ms[gone]
            self._bytes_newest.pop(gone, None)
            self._bytes_sealed.pop(gone, None)

    def _check_newest(self, log: Log, task: Task) -> None:
        for segment in log.segments:
            if segment.damages is not segment.reported_damages or (
                segment.damages and segment is log.active
            ):
                # A reader found it, or the log could not roll.
                task.on_log_thread(functools.partial(self._note, log, segment, ()))
        segments = log.segments
        newest = self._newest.get(log)
        if newest is None or newest.segment not in segments:
            # It is the first call, or a cleaner or retention has removed the former active segment.
            newest = Place(segments[-1], 0, segments[-1].base_offset)
        for segment in segments[segments.index(newest.segment) :]:
            if segment is not newest.segment:
                newest = Place(segment, 0, segment.base_offset)
            end = segment.size
            if end > newest.position:
                next_offset = self._check(log, newest, end, paths.MAX_OFFSET, task)
                if next_offset < 0:
                    return
                self._bytes_newest[log] += end - newest.position
                self._all_newest += end - newest.position
                newest = Place(segment, end, next_offset)
        self._newest[log] = newest
        self._checked_ms[log] = self._clock_ms()

    # -- the sealed ----------------------------------------------------------------------------

    def run_sealed(self, task: Task) -> None:
        """Check every sealed segment once, at the rate of `task`. Errors: TaskCancelled."""
        logs = _from_anywhere(list(self._logs()))
        task.begin(
            "reading back sealed segments",
            sum(segment.size for log in logs for segment in log.segments[:-1]),
        )
        for log in logs:
            with self._duties.attempt("check of sealed segments", log.name):
                self._check_sealed(log, task)

    def _check_sealed(self, log: Log, task: Task) -> None:
        """Check the sealed segments of one log; the OSError of one is raised after the others."""
        failure: OSError | None = None
        for segment in _from_anywhere(log.segments[:-1]):
            size, start = segment.size, Place(segment, 0, segment.base_offset)
            try:
                if self._check(log, start, size, segment.next_offset, task) >= 0:
                    self._bytes_sealed[log] += size
                    self._all_sealed += size
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # -- both ----------------------------------------------------------------------------------

    def _check(self, log: Log, start: Place, end: int, limit: int, task: Task) -> int:
        """Check a segment from `start` to position `end`, with offsets below `limit`; return the
        next offset, -1: removed. Errors: OSError.
        """
        segment, position, next_offset = start
        if log.closed or segment.deleted:
            return -1
        if segment.is_lost:
            return segment.next_offset
        try:
            segment.lease()
        except SegmentGone:
            return -1
        try:
            base, largest = segment.base_offset, log.config.max_message_bytes
            named = segment.offset_index.position_after
            part = Part(base, position, next_offset, end, largest, limit, named)
            checked = check_file(log.files, segment.log_path, part, task)
            if checked.damages:
                task.on_log_thread(lambda: self._note(log, segment, checked.damages))
            return checked.next_offset
        except FileNotFoundError:
            # It was removed from the log, renamed a moment ago; or its file was deleted.
            return -1 if segment.open_log() else segment.next_offset
        finally:
            segment.release()

    def _note(self, log: Log, segment: Segment, damages: Sequence[Damage]) -> None:
        """Report damage to the log; on the log thread."""
        if segment not in log.segments:
            return
        try:
            log.note_damage(segment, damages, self._clock_ms())
        except (OSError, StorageError) as error:
            where = f"{log.topic}/{log.partition}"
            _log.warning("%s: cannot begin a new segment after damage: %s", where, error)


def _from_anywhere(items: Sequence[T]) -> list[T]:
    """Return all items, beginning at a random one."""
    first = random.randrange(len(items)) if items else 0
    return [*items[first:], *items[:first]]


def checker_facts(checker: LogChecker, logs: Sequence[Log]) -> list[tuple[str, object]]:
    """Return the checker's facts about these logs, as names and values.

    `checked`: when, in ms, all of their newest segments had been checked; -1: not yet.
    """
    damages = [
        f"{log.partition}: {place.error(segment.log_path)}"
        for log in logs
        for segment in log.segments
        for place in segment.damages
    ]
    return [
        ("checked", min((checker.checked_ms(log) for log in logs), default=-1)),
        ("checked_bytes", sum(checker.bytes_checked(log) for log in logs)),
        ("damages", len(damages)),
        *(("damage", damage) for damage in damages),
    ]
