"""A round of cleaning by a process that does not own the log, into staged files.

`plan` takes the input of the round from a read-only log, as a value for any process. `clean` runs
the cleaner (`cleaner`) and returns the request to the log's owner to swap the new segments in
(`swap_in`). The result is byte for byte the one of the owner's cleaner at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from storage import paths
from storage.compaction import cleaner
from storage.compaction._offset_map import OffsetMap
from storage.compaction.cleanable import CleanableRange
from storage.compaction.cleaner import Cleaned
from storage.compaction.passes import ProducerRecord
from storage.compaction.sources import Sources
from storage.compaction.swap_in import source_of
from storage.compaction.swap_request import (
    FIGURES,
    NewSegment,
    SourceSegment,
    SwapRequest,
    staged_suffix,
)
from storage.errors import ReadOnlyFormat, SwapRefused
from storage.files import Files
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.settings.config import BrokerConfig, LogConfig
from storage.task import Task


class StagedRound(NamedTuple):
    """The input of a round.

    `now_ms`: wall time, for delete horizons. `map_bytes`, `map_load_factor`: the limit of the
    offset map, and the part of it that keys may fill.
    """

    topic: str
    partition: int
    directory: str
    config: LogConfig
    cleanable: CleanableRange
    now_ms: int
    map_bytes: int
    map_load_factor: float
    segments: tuple[SourceSegment, ...]
    producers: Mapping[int, ProducerRecord]
    aborted: tuple[TxnEntry, ...]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)


def plan(
    log: Log, cleanable: CleanableRange, broker: BrokerConfig, now_ms: int
) -> StagedRound | None:
    """Plan a round of a log, of the range from `LogCleaner.plan`; None: nothing can be cleaned.
    Errors: ReadOnlyFormat, SwapRefused, OSError.
    """
    sources = Sources.below(log, cleanable.first_uncleanable_offset)
    if not sources.segments or not log.may_be_cleaned:
        return None
    if not log.active.holds_batches:
        raise ReadOnlyFormat(
            "segments of Kafka 0.7 must be converted before compaction: kafkafs convert"
        )
    sources.read_aborted(log)
    found = tuple(source_of(log.files, segment) for segment in sources.segments)
    for segment, source in zip(sources.segments, found, strict=True):
        # (The files of a swap that is not finished have other names.)
        if segment.size != source.size or segment.suffix:
            raise SwapRefused(
                f"{segment.log_path} is being replaced: try again. If no process has the directory "
                "open: mount it, or start the broker"
            )
    return StagedRound(
        log.topic,
        log.partition,
        log.directory,
        log.config,
        cleanable,
        now_ms,
        broker.log_cleaner_dedupe_buffer_size,
        broker.log_cleaner_io_buffer_load_factor,
        found,
        sources.producers,
        tuple(sources.aborted),
    )


def preview(planned: StagedRound, files: Files, task: Task) -> Cleaned:
    """Return the result that `clean` would have; write nothing. Errors: those of `clean`."""
    with _sources(planned, files) as sources:
        return cleaner.run(sources, planned.cleanable, task, planned.now_ms, _new_map(planned))


def clean(
    planned: StagedRound, files: Files, task: Task, *, job: str, attempt: int
) -> tuple[Cleaned, SwapRequest]:
    """Write the kept records, as far as the map reaches, and return the request to the owner.

    `attempt`: the number of this try of a job's round. If nothing changes, the request has no new
    segments. Errors: CorruptRecord, InvalidRecord, OSError, TaskCancelled; no file is left.
    """
    suffix = staged_suffix(job, attempt)
    with _sources(planned, files) as sources:
        cleaned, new = cleaner.write(
            *(files, planned.directory, sources, planned.cleanable, task),
            now_ms=planned.now_ms,
            offset_map=_new_map(planned),
            suffix=suffix,
        )
    files.sync_directory(planned.directory)
    count = cleaned.segments_before
    request = SwapRequest(
        *(planned.topic, planned.partition, job, cleaned.first_dirty_offset, cleaned.end_offset),
        sources.next_offset(count - 1),
        planned.segments[:count],
        tuple(_described(new, files, suffix)),
        {name: int(getattr(cleaned, name)) for name in FIGURES},
    )
    return cleaned, request


def _new_map(planned: StagedRound) -> OffsetMap:
    most = planned.cleanable.most_keys
    return OffsetMap(planned.map_bytes, planned.map_load_factor, most=most)


@contextlib.contextmanager
def _sources(planned: StagedRound, files: Files) -> Iterator[Sources]:
    """Yield the planned segments, with leases on them."""
    end = planned.cleanable.first_uncleanable_offset
    bases = [*(each.base_offset for each in planned.segments), end]
    segments = []
    for source, next_offset in zip(planned.segments, bases[1:], strict=True):
        base = source.base_offset
        segment = Segment(files, planned.directory, base, planned.config, writable=False)
        segment.restore(SegmentSummary(source.size, next_offset, source.mtime_ns), sealed=True)
        segment.lease()
        segments.append(segment)
    aborted = list(planned.aborted)
    try:
        yield Sources(tuple(segments), end, planned.config, dict(planned.producers), aborted)
    finally:
        for segment in segments:
            segment.release()
            segment.close_descriptors()


def _described(new: Sequence[Segment], files: Files, suffix: str) -> Iterator[NewSegment]:
    for segment in new:
        inode = files.file_stat(segment.file_path(paths.LOG)).st_ino
        base, size, mtime_ns = segment.base_offset, segment.size, segment.mtime_ns
        yield NewSegment(base, segment.next_offset, size, inode, mtime_ns, suffix)
