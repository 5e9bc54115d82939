"""Builds the `.words` files of a log's sealed segments, and removes those that belong to none.

A file lies beside its segment, or in a cache directory if the log's directory is not ours. It is
built on a worker thread, under a lease. The segment may be deleted or replaced meanwhile. So when
the file has its name, the log thread looks whether the segment's files still have theirs; if they
do not, the new file is removed.

A process that does not own the log does the same, and compares the `.log` with the one that it has
read. If the owner renames the segment's files at that moment, it may miss the new file, but removes
it together with the segment (`Log.release_retired`). A file that is left beside another segment is
not valid for it, and is deleted with it.

Not here: the words (`storage.words`), the choice of logs and times.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from storage import paths
from storage.errors import CorruptRecord, SegmentGone, StorageError, TaskCancelled
from storage.files import ABANDONED_S, is_temporary
from storage.log.log import Log
from storage.room import FULL
from storage.segment.segment import Segment
from storage.task import Task
from storage.words.build import build
from storage.words.words import Words, check

_log = logging.getLogger(__name__)

_MISSING = -1
"""The size of the file of a segment that has none yet."""
_AGAIN_MS = 600_000
"""After this time, the files are looked for again: a full disk may have taken some."""


class _Seen(NamedTuple):
    """The segments of a log when each had its file, and when these were looked for (monotonic)."""

    segments: tuple[Segment, ...]
    looked_ms: int

    def is_old(self, log: Log) -> bool:
        return log.monotonic_ms() - self.looked_ms >= _AGAIN_MS


class WordFiles:
    """The `.words` files that a process builds. `elapsed_s`: the time that this took. `count`:
    the number of files that were built.

    Its methods run on any thread, `build_missing` on one worker thread at a time.
    """

    def __init__(self, *, checks_pages: bool = False) -> None:
        """`checks_pages`: read existing files from end to end, and replace damaged ones."""
        self.elapsed_s = 0.0
        self.count = 0
        self._checks_pages = checks_pages
        # Sizes of files, by segment; 0 for a segment that can have none.
        self._sizes: WeakKeyDictionary[Log, dict[Segment, int]] = WeakKeyDictionary()
        self._seen: WeakKeyDictionary[Log, _Seen] = WeakKeyDictionary()

    def totals(self, log: Log) -> tuple[int, int]:
        """Return the bytes of a log's files, and the number of sealed segments without one; zeros
        if none were looked for.
        """
        sizes = self._sizes.get(log)
        if sizes is None:
            return 0, 0
        found = [sizes.get(segment, _MISSING) for segment in log.segments[:-1]]
        return sum(size for size in found if size > 0), sum(size <= 0 for size in found)

    def is_due(self, log: Log) -> bool:
        """Return whether `build_missing` may have work."""
        seen = self._seen.get(log)
        return seen is None or seen.segments is not log.segments or seen.is_old(log)

    def build_missing(self, log: Log, task: Task, cache: str | None = None) -> list[Segment]:
        """Build the files of a log that are missing or not valid, the newest first; return their
        segments. A segment with damage gets none.

        `cache`: the directory of the files, if not that of the log. Errors: TaskCancelled, also if
        the topic is deleted; StorageError; OSError: the first one. If the disk is full or
        read-only, no other segment is tried. Try again later.
        """
        segments = task.on_log_thread(lambda: log.segments)
        known, seen = self._sizes.get(log, {}), self._seen.get(log)
        sizes = {segment: known[segment] for segment in segments[:-1] if segment in known}
        if seen is None or seen.is_old(log):
            names = _names(log, cache)
            for segment, size in list(sizes.items()):
                if size and paths.file_name(segment.base_offset, paths.WORDS) not in names:
                    del sizes[segment]
            seen = _Seen((), log.monotonic_ms())
        self._sizes[log] = sizes
        built = []
        failure: OSError | None = None
        for segment in reversed(segments[:-1]):
            # The names of a segment that is being swapped in are not final.
            if segment in sizes or segment.suffix:
                continue
            task.check()
            if log.closed:
                raise TaskCancelled("the topic has been deleted")
            try:
                with segment.leased():
                    size = self._valid_size(segment, path_of(segment, cache))
                    if size == _MISSING and not segment.damages:
                        size = self._build(log, segment, task, cache)
                        if size:
                            self.count += 1
                            built.append(segment)
            except SegmentGone:
                continue
            except OSError as error:
                if error.errno in FULL or error.errno == errno.EROFS:
                    raise
                failure = failure or error
                continue
            sizes[segment] = max(size, 0)
        if all(segment in sizes for segment in segments[:-1]):
            self._seen[log] = seen._replace(segments=segments)
        if failure is not None:
            raise failure
        return built

    def _valid_size(self, segment: Segment, path: str) -> int:
        """Return the size of a segment's file if it is valid."""
        with contextlib.suppress(FileNotFoundError):
            if self._checks_pages and check(segment, path) is not None:
                return _MISSING
            words = Words.open(segment, path)
            if words is not None:
                words.close()
                return segment.disk.file_stat(path).st_size
        return _MISSING

    def _build(self, log: Log, segment: Segment, task: Task, cache: str | None) -> int:
        """Build the file of a leased segment; return its size, or 0 for a damaged segment. Errors:
        SegmentGone if the segment has left the log; see `build_missing`.
        """
        path = path_of(segment, cache)
        begin = time.monotonic()
        try:
            file_size = segment.disk.size(segment.log_fd())
            log.files.check_free(cache or log.directory, segment.size)
            if cache is None:
                log.files.check_room()
            size = build(segment, path, task)
        except (OSError, CorruptRecord) as error:
            # A log that is loaded again removes temporary files, and the owner may rename the
            # directory of a log that another process reads.
            is_removed = isinstance(error, FileNotFoundError) and (
                (cache is None and log.read_only) or os.path.isdir(cache or log.directory)
            )
            if is_removed or task.on_log_thread(lambda: log.closed or segment.deleted):
                raise SegmentGone("the segment was deleted meanwhile", path=path) from error
            if isinstance(error, OSError):
                raise
            _log.warning("%s: no words are built for a segment: %s", log.name, error)
            return 0
        finally:
            self.elapsed_s += time.monotonic() - begin
        if not task.on_log_thread(partial(_is_current, log, segment, file_size)):
            with contextlib.suppress(FileNotFoundError):
                log.files.unlink(path)
            raise SegmentGone("the segment was deleted or replaced meanwhile", path=path)
        return size


def path_of(segment: Segment, cache: str | None = None) -> str:
    """Return the path of a segment's `.words` file, beside it or in a cache directory."""
    if cache is None:
        return segment.file_path(paths.WORDS)
    return os.path.join(cache, paths.file_name(segment.base_offset, paths.WORDS))


def remove_all(log: Log, cache: str | None = None) -> int:
    """Remove the `.words` files of a log, also unfinished ones; return their number. Errors:
    OSError.
    """
    names = _names(log, cache)
    return _remove(log, cache, [n for n in names if _is_finished(n) or _is_unfinished(n)])


def remove_stale(log: Log, cache: str | None = None) -> int:
    """Remove the `.words` files whose segment does not exist, and those that a process has not
    finished; return their number. Errors: OSError.
    """
    names = _names(log, cache)
    # After the names: the owner may have made a segment with its file meanwhile.
    bases = _bases(log)
    stale = [n for n in names if _is_finished(n) and paths.base_offset_of(n) not in bases]
    before = time.time() - ABANDONED_S
    for name in filter(_is_unfinished, names):
        with contextlib.suppress(FileNotFoundError):
            path = os.path.join(cache or log.directory, name)
            if log.files.file_stat(path).st_mtime < before:
                stale.append(name)
    return _remove(log, cache, stale)


def _is_finished(name: str) -> bool:
    return name.endswith(paths.WORDS) and paths.base_offset_of(name) is not None


def _is_unfinished(name: str) -> bool:
    return is_temporary(name) and name.endswith(f"{paths.WORDS}.tmp")


def _remove(log: Log, cache: str | None, names: list[str]) -> int:
    count = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            log.files.unlink(os.path.join(cache or log.directory, name))
            count += 1
    return count


def _bases(log: Log) -> set[int | None]:
    """Return the base offsets of the logs in the directory."""
    names = [name.removesuffix(paths.SWAP) for name in _names(log, None)]
    return {
        paths.base_offset_of(name) if name.endswith(paths.LOG) else paths.old_base_offset_of(name)
        for name in names
        if paths.is_log(name)
    }


def _names(log: Log, cache: str | None) -> set[str]:
    try:
        return set(log.files.names(cache or log.directory))
    except FileNotFoundError:
        return set()


def _is_current(log: Log, segment: Segment, file_size: int) -> bool:
    """Return whether the segment's files have their names, and the log still has this size. On the
    log thread.

    If the log thread renames them later, it renames the file of the words, too.
    """
    if log.closed or segment.deleted:
        return False
    files = log.files
    try:
        return not log.read_only or (
            files.identity(segment.log_path) == files.identity(segment.log_fd())
            and files.size(segment.log_fd()) == file_size
        )
    except (OSError, StorageError):
        return False
