"""Truncates a writable log, and lets a log without records begin at another offset.

A leader that was elected uncleanly has other records than the log from some offset on. `truncate`
removes the batches that reach this offset, and keeps them as `*.diverged` beside the log, where
salvage does not look:

1. All is flushed. The history gets new nonces, as shown bytes are about to be removed.
2. The manifest loses its entries of the segments that change, and the checkpoints get the lower
   recovery point. A start would otherwise take the removed records for lost ones. Files that a
   recovery has cut off become `*.diverged`, too: salvage would append them to the new end.
3. The end of the segment that stays is copied. The later segments are renamed, the last one first,
   and each name is synced: what is left is always the log up to some batch. If no record stays,
   the segments below the log start are renamed before, as retention does.
4. The copied bytes are cut off. Files of text beside the segment are removed before. If there are
   no such bytes, the segment gets another mtime before step 3, which tells followers.
5. If no record stays, the checkpoints get the lower log start.
6. The end of the log is loaded again as at a start (`LogLoader`), which corrects its indexes,
   snapshots and producers. A flush writes the epochs that are left.

After a kill the log ends at the offset, or at a later batch, or it is empty at its log start. Its
leader then reports the same divergence again, and a second call removes the rest.

Meanwhile nothing else uses the partition's files: no append, flush or checkpoint, no save of the
history, no build of words or line indexes, no retention that was prepared, no deletion of the
topic.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable

from storage import paths
from storage.log.log import Log
from storage.recovery.partition import LogLoader
from storage.recovery.promises import PartitionFiles, Promises
from storage.segment.cut import Cut, copy_tail, cut_end, mark_diverged
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment

# The resolution of times is not better in all file systems.
_TOUCH_NS = 1000
_REASON = "the leader has other records from offset {} on"

_log = logging.getLogger(__name__)


def truncate(
    log: Log, offset: int, now_ms: int, write_checkpoints: Callable[[int], None]
) -> list[Cut]:
    """Remove the batches that reach `offset`; return what was kept of them. Durable.

    The log then ends after its last batch. If no record stays, it ends, and begins, at `offset` or
    the log start, whichever is lower. `write_checkpoints`: called with the new log end. Errors:
    those of `check_writable`; OSError, CorruptRecord: a part may be removed; call it again before
    any append, unless the log is closed.
    """
    check_not_compacted(log)
    log.flush()
    if offset >= log.log_end_offset:
        return []
    count, size, end = _stays(log, offset)
    leaving = log.segments[max(count - 1, 0) :]
    for listener in log.listeners:
        listener.truncating(log)
    log.begin_truncation(end, is_empty=not count)
    try:
        log.manifest.withdraw(leaving)
        write_checkpoints(end)
        mark_diverged(log.files, log.directory)
        removed = _remove(log, count, size, _REASON.format(offset))
        if end < log.log_start_offset:
            log.lower_log_start(end, write_checkpoints)
    finally:
        try:
            _load_again(log, log.log_start_offset, now_ms)
        finally:
            log.manifest.reinstate(leaving)
    log.counters.truncations += 1
    log.save_history()
    log.flush()
    return removed


def check_not_compacted(log: Log) -> None:
    """Check that the segments of a log are not being replaced. Errors: OSError (EBUSY)."""
    if log.cleaning or log.replacement is not None:
        raise OSError(errno.EBUSY, "it is being compacted", log.directory)


def start_at(log: Log, offset: int, now_ms: int) -> None:
    """Let the first segment of a log without records begin at `offset`
    (`UnifiedLog.truncateFullyAndStartAt`).

    If that is above the log start, both log start and log end move there. Else they stay, and the
    first batch contains them. Errors: those of `check_writable`; OSError: the log is closed.
    """
    log.check_writable()
    assert not log.size
    try:
        for segment in log.segments:
            segment.discard()
    except BaseException:
        log.abandon()
        raise
    _load_again(log, offset, now_ms)


def _stays(log: Log, offset: int) -> tuple[int, int, int]:
    """Return how many segments stay, how many bytes of the last of them, and the new log end."""
    for number, segment in reversed([*enumerate(log.segments, 1)]):
        if segment.base_offset < offset and segment.size:
            size, end = _end_before(segment, offset)
            if size and end > log.log_start_offset:
                return number, size, end
    return 0, 0, min(offset, log.log_start_offset)


def _end_before(segment: Segment, offset: int) -> tuple[int, int]:
    """Return position and offset after the last batch that does not reach `offset`; 0: none."""
    _, indexed = segment.offset_index.lookup(offset - 1)
    # An index of another writer may have a batch that reaches it.
    for start in (indexed, 0):
        size = end = 0
        for position, header in SegmentReader(segment).batches(start):
            if header.last_offset >= offset:
                break
            size, end = position + header.size, header.last_offset + 1
        if size:
            return size, end
    return 0, 0


def _remove(log: Log, count: int, size: int, reason: str) -> list[Cut]:
    """Remove all but `count` segments, and all but `size` bytes of the last of these."""
    files = log.files
    removed: list[Cut] = []
    with contextlib.ExitStack() as stack:
        last = log.segments[count - 1] if count else None
        if last is not None and size < last.size:
            path = last.log_path
            fd = stack.enter_context(files.held_open(path, os.O_RDWR))
            kept = copy_tail(files, fd, path, size, last.size, paths.DIVERGED)
            removed.append(Cut(path, size, last.size - size, reason, kept))
        elif last is not None:
            # A process that follows the log would take the others for deleted by retention.
            with contextlib.suppress(PermissionError):  # only a file's owner may set its time
                files.utime_ns(last.log_path, last.mtime_ns + _TOUCH_NS)
        for segment in _order_of_removal(log, count):
            path = segment.log_path
            if segment.size:
                segment.leave(paths.DIVERGED)
                removed.append(Cut(path, 0, segment.size, reason, segment.log_path))
            else:
                segment.discard()
            files.sync_directory(log.directory)
        if last is not None and size < last.size:
            for suffix in (*paths.LINES_SUFFIXES, paths.WORDS):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(last.file_path(suffix))
            files.sync_directory(log.directory)
            cut_end(files, fd, last.log_path, size)
            files.fsync(fd)
    return removed


def _order_of_removal(log: Log, count: int) -> list[Segment]:
    """Return the segments after the first `count`, the last one first. If none stays, those below
    the log start come before, so that what is left never ends below it.
    """
    doomed = log.segments[count:]
    following = () if count else doomed[1:]
    deleted = sum(segment.base_offset <= log.log_start_offset for segment in following)
    return [*doomed[:deleted], *reversed(doomed[deleted:])]


def _load_again(log: Log, first: int, now_ms: int) -> None:
    """Load the end of the log again. A log without segments begins at the offset `first`."""
    removed = [segment for segment in log.segments if segment.deleted]
    left = [segment for segment in log.segments if not segment.deleted]
    known = {segment.base_offset: segment for segment in left[:-1]}
    promises = Promises(
        clean=True,
        log_start=first,
        manifest_below=paths.MAX_OFFSET if log.has_manifest else None,
        gaps_below=paths.MAX_OFFSET,
        may_have_gaps=True,
    )
    place = PartitionFiles(log.files, log.directory, log.config, promises, writable=True)
    try:
        loader = LogLoader(place, now_ms, known.get, is_open=True)
        recovered = log.files.with_reserve(loader.load)
        log.take_over(recovered)
    except BaseException:
        log.abandon()
        raise
    for line in (*recovered.cuts, *recovered.faults):
        _log.warning("%s", line)
    old, new = (*left[-1:], *removed), log.segments[len(known) :]
    # The listeners read the rest of the segment whose end was cut off.
    old[0].size = min(old[0].size, new[0].size)
    old[0].stable_size = min(old[0].stable_size, old[0].size)
    try:
        for listener in log.listeners:
            listener.truncated(log, old, new, log.log_end_offset)
    finally:
        for segment in old:
            segment.end_reading()
