"""The owner's part of a round that another process has cleaned: check it and swap it in.

Runs on a worker thread; only `task.on_log_thread` parts touch the log. In this order:

1. The source segments must still be the log's first ones, and the dirty part must still be dirty;
   no cleaner is running on the log meanwhile.
2. The new segments are read: each batch's CRC, offsets that rise within their range, indexes that
   match the log, aborted transactions that the log knows.
3. The history of shown text is written. The log is flushed (`LogCleaner`).
4. The files are renamed to `.cleaned`. From there on it is a cleaning of our own (`replacing`): a
   crash leaves the old segments or the new ones.

A request that is refused or fails leaves the log unchanged, and no staged file. A cancelled one
leaves the staged files, for a request to the next owner. A repeated request gets the same answer
again: its author may not have received the first one.

Not here: whether the right records were kept. The author of the request is trusted in that, like
every user who may write to the partition's directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from storage import paths
from storage.compaction.cleanable import CleanableRange
from storage.compaction.cleaner import Cleaned
from storage.compaction.replacing import prepare, publish
from storage.compaction.swap_request import NewSegment, SourceSegment, SwapRequest
from storage.errors import SwapRefused, TaskCancelled
from storage.files import Files
from storage.log.log import Log
from storage.record._batch import Rebuild
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.segment.walk import feed, sealed_times
from storage.task import Task


def old_segments(
    log: Log, plan: CleanableRange, request: SwapRequest
) -> tuple[Segment, ...] | None:
    """Return the segments that a request replaces; None if it was carried out before.

    `plan`: the range of the log that can be cleaned now. No other thread removes records meanwhile.
    Errors: SwapRefused, OSError.
    """
    if not log.config.is_compacted:
        raise _refused(request, "its cleanup.policy does not include compact")
    if not log.config.may_be_cleaned:
        raise _refused(request, f"the values of {', '.join(log.config.unknown)} are unknown")
    new = [(each.base_offset, each.size, each.inode) for each in request.new]
    if new and _are_first(log, new, request.end_offset):
        return None
    if not _are_first(log, request.sources, request.end_offset):
        raise _refused(request, "its segments have changed since they were read: compact it again")
    if not new and plan.first_dirty_offset >= request.clean_up_to:
        return None
    if plan.first_dirty_offset != request.first_dirty_offset:
        raise _refused(
            request,
            f"it is compacted up to offset {plan.first_dirty_offset}, but was up to "
            f"{request.first_dirty_offset} when it was read: compact it again",
        )
    if plan.first_uncleanable_offset < request.end_offset:
        raise _refused(
            request, f"it can be compacted only up to offset {plan.first_uncleanable_offset}"
        )
    return log.segments[: len(request.sources)]


def _are_first(log: Log, sources: Sequence[tuple[int, ...]], end_offset: int) -> bool:
    """Return whether these are the first segments of the log, up to `end_offset`.

    Each is identified by the first fields of a `SourceSegment`.
    """
    segments = log.segments
    count = len(sources)
    if count >= len(segments) or segments[count].base_offset != end_offset:
        return False
    return all(
        (segment.base_offset, segment.size) == source[:2]
        and source_of(log.files, segment)[: len(source)] == source
        for segment, source in zip(segments, sources, strict=False)
    )


def source_of(files: Files, segment: Segment) -> SourceSegment:
    """Return the facts that identify a segment's file. Errors: OSError."""
    stat = files.file_stat(segment.log_path)
    return SourceSegment(segment.base_offset, stat.st_size, stat.st_ino, stat.st_mtime_ns)


def swap_in(log: Log, old: tuple[Segment, ...], request: SwapRequest, task: Task) -> None:
    """Let the new segments of a request take the place of `old`. Errors: SwapRefused,
    TaskCancelled, OSError, StorageError; nothing has changed.
    """
    new: list[Segment] = []
    try:
        known = set(log.transactions.aborted())
        task.begin("checking", sum(each.size for each in request.new))
        for each in request.new:
            new.append(_named(log, each))
            _check(log, new[-1], each, request, task)
            if not known.issuperset(new[-1].aborted):
                raise _refused(
                    request, f"{each.name} lists aborted transactions that the log does not have"
                )
        prepare(log, old, new, task)
        for segment, each in zip(new, request.new, strict=True):
            _take(log, segment, request)
            segment.set_mtime(each.mtime_ns)
            task.check()
        log.files.sync_directory(log.directory)
    except BaseException as error:
        log.end_change(old, new)
        is_renamed = any(segment.log_path.endswith(paths.CLEANED) for segment in new)
        if is_renamed or not isinstance(error, TaskCancelled):
            for segment in new:
                with contextlib.suppress(OSError):
                    segment.discard()
        raise
    publish(log, old, new, task)


def discard(log: Log, request: SwapRequest) -> None:
    """Remove the remaining staged files of a request."""
    for each in request.new:
        with contextlib.suppress(OSError):
            _named(log, each).discard()


def cleaned_of(request: SwapRequest) -> Cleaned:
    """Return the outcome of a request, in the form that a cleaning by this process returns."""
    before = sum(source.size for source in request.sources)
    figures = dict(request.figures)
    return Cleaned(
        start_offset=request.sources[0].base_offset,
        first_dirty_offset=request.first_dirty_offset,
        end_offset=request.clean_up_to,
        segments_before=len(request.sources),
        segments_after=len(request.new) or len(request.sources),
        bytes_before=before,
        bytes_after=sum(each.size for each in request.new) if request.new else before,
        map_full=bool(figures.pop("map_full")),
        **figures,
    )


def _named(log: Log, each: NewSegment) -> Segment:
    return Segment(
        *(log.files, log.directory, each.base_offset, log.config),
        writable=True,
        sealed=True,
        suffix=each.suffix,
    )


def _check(log: Log, segment: Segment, said: NewSegment, request: SwapRequest, task: Task) -> None:
    """Read and check a new segment, and set its facts for the log."""
    files = log.files
    try:
        stat = files.file_stat(segment.log_path)
    except FileNotFoundError:
        raise _refused(request, f"{said.name} does not exist") from None
    if (stat.st_size, stat.st_ino) != (said.size, said.inode):
        raise _refused(request, f"{said.name} is not the file that was written")
    rebuild = Rebuild(said.base_offset, log.config.index_interval_bytes)
    with files.held_open(segment.log_path) as fd:
        for _, size, _ in feed(files, fd, said.size, rebuild):
            rebuild.producers.clear()
            task.advance(size)
    if rebuild.position != said.size:
        reason = rebuild.fault or "a batch is truncated"
        raise _refused(request, f"{said.name}: position {rebuild.position}: {reason}")
    if rebuild.next_offset > said.next_offset:
        raise _refused(request, f"{said.name} contains offsets beyond {said.next_offset}")
    expected = bytes(rebuild.offset_entries), sealed_times(rebuild)
    if (segment.offset_index.data(), segment.time_index.data()) != expected:
        raise _refused(request, f"{said.name}: its indexes do not match its batches")
    found = SegmentSummary.of(rebuild, said.size, said.mtime_ns)
    segment.restore(found._replace(next_offset=said.next_offset), sealed=True)
    segment.close_descriptors()


def _take(log: Log, segment: Segment, request: SwapRequest) -> None:
    """Rename a new segment's files, and check that none was removed: from now on no other process
    removes any.
    """
    try:
        segment.set_suffix(paths.CLEANED)
    except FileNotFoundError:
        raise _refused(request, f"{segment.log_path} no longer exists") from None
    kinds = [paths.LOG, paths.INDEX, paths.TIMEINDEX]
    if segment.aborted:
        kinds.append(paths.TXNINDEX)
    for kind in kinds:
        path = segment.file_path(kind)
        if not log.files.exists(path):
            raise _refused(request, f"{path} no longer exists")


def _refused(request: SwapRequest, reason: str) -> SwapRefused:
    return SwapRefused(
        f"{request.topic}-{request.partition}: the compacted segments were not swapped in: {reason}"
    )
