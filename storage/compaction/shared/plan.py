"""How a round of cleaning is shared out: what all processes know, and what one does at a time.

A process scans one range at a time: whole batches of segments that follow each other.  It writes
one group of segments at a time (``sources.group``).  Each key belongs to one bucket.

Not here: the work (``round``), which part of a log can be cleaned (``cleanable``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from storage.compaction.cleanable import CleanableRange
from storage.compaction.passes import ProducerRecord
from storage.compaction.shared.swap_in import source_of
from storage.compaction.shared.swap_request import SourceSegment
from storage.compaction.sources import Sources
from storage.errors import CorruptRecord, ReadOnlyFormat, SwapRefused
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.settings.config import LogConfig

# A range or a bucket has no less, where several could share the work.
_LEAST_RANGE_BYTES = 8 << 20
_LEAST_BUCKET_KEYS = 100_000
# Bytes; only a well compressed record has less.
_SMALLEST_RECORD = 8


class SegmentPart(NamedTuple):
    """Whole batches of a segment; ``end`` and ``to_offset`` lie behind them."""

    segment: int
    group: int
    position: int
    end: int
    from_offset: int
    to_offset: int


class SharedRound(NamedTuple):
    """What all processes know of a round.  ``firsts``: the number of each group's first segment.

    ``buckets``: how many there are; ``secret``: of the hashes of keys in all maps.
    """

    topic: str
    partition: int
    directory: str
    config: LogConfig
    cleanable: CleanableRange
    now_ms: int
    secret: bytes
    segments: tuple[SourceSegment, ...]
    firsts: tuple[int, ...]
    producers: Mapping[int, ProducerRecord]
    aborted: tuple[TxnEntry, ...]
    ranges: tuple[tuple[SegmentPart, ...], ...]
    buckets: int

    @property
    def end_offset(self) -> int:
        """Where what is cleaned ends."""
        return self.cleanable.first_uncleanable_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def group_bounds(self) -> list[int]:
        """The first offsets of the groups, and where the last one ends."""
        return [*(self.segments[first].base_offset for first in self.firsts), self.end_offset]

    def offsets_of(self, group: int) -> range:
        """The offsets of a group."""
        bounds = self.group_bounds
        return range(bounds[group], bounds[group + 1])

    def members(self, group: int) -> range:
        """The numbers of a group's segments."""
        firsts = [*self.firsts, len(self.segments)]
        return range(firsts[group], firsts[group + 1])


class Limits(NamedTuple):
    """The most bytes and offsets of a range, the most keys of a bucket.

    Each key of a range or bucket takes some 100 bytes of memory.  ``parallel``: how many processes
    work at a time.
    """

    range_bytes: int = 512 << 20
    range_offsets: int = 4_000_000
    bucket_keys: int = 2_000_000
    parallel: int = 1


def plan(
    log: Log, cleanable: CleanableRange, *, now_ms: int, secret: bytes, limits: Limits
) -> SharedRound | None:
    """Plan a round of a log; None where nothing of it can be cleaned.  Reads its indexes.

    ``cleanable``: what ``LogCleaner.plan`` says.  ReadOnlyFormat, SwapRefused, OSError.
    """
    sources = Sources.below(log, cleanable.first_uncleanable_offset)
    segments = sources.segments
    if not segments or not log.may_be_cleaned:
        return None
    if not log.active.holds_batches:
        raise ReadOnlyFormat(
            "segments of Kafka 0.7 must be converted before compaction: kafkafs convert"
        )
    sources.read_aborted(log)
    found = tuple(source_of(log.files, segment) for segment in segments)
    for segment, source in zip(segments, found, strict=True):
        if segment.size != source.size:
            raise SwapRefused(f"{segment.log_path} is being replaced: try again")
    counts = sources.groups(len(segments))
    parts = list(_parts(sources, counts, limits))
    records = sum(map(_most_records, parts))
    few = -(-records // limits.bucket_keys)
    return SharedRound(
        log.topic,
        log.partition,
        log.directory,
        log.config,
        cleanable,
        now_ms,
        secret,
        found,
        tuple(accumulate(counts[:-1], initial=0)),
        sources.producers,
        tuple(sources.aborted),
        tuple(_ranges(parts, limits)),
        max(few, min(limits.parallel, -(-records // _LEAST_BUCKET_KEYS)), 1),
    )


def _most_records(part: SegmentPart) -> int:
    offsets, size = part.to_offset - part.from_offset, part.end - part.position
    return min(offsets, size // _SMALLEST_RECORD + 1)


def _parts(sources: Sources, counts: Sequence[int], limits: Limits) -> Iterator[SegmentPart]:
    """All of the segments, those larger than a range in parts that begin where their indexes say.

    ``counts``: how many segments each group has.
    """
    groups = (group for group, count in enumerate(counts) for _ in range(count))
    for number, (segment, group) in enumerate(zip(sources.segments, groups, strict=True)):
        bounds = [(0, segment.base_offset)]
        if segment.size > limits.range_bytes:
            bounds += _bounds_within(segment, limits.range_bytes)
        bounds.append((segment.size, sources.next_offset(number)))
        for (position, offset), (end, end_offset) in pairwise(bounds):
            yield SegmentPart(number, group, position, end, offset, end_offset)
        segment.files.close_descriptors()


def _bounds_within(segment: Segment, range_bytes: int) -> Iterator[tuple[int, int]]:
    """(position, base offset) of batches that lie about so far apart."""
    position = 0
    while segment.size - position > range_bytes:
        indexed = segment.files.offset_index.upper_bound(position, range_bytes)
        if indexed is None:
            break
        _, position = segment.files.offset_index.lookup(indexed)
        try:
            _, header = next(segment.batches(position))
        except (CorruptRecord, StopIteration):
            break  # its reader reports it
        yield position, header.base_offset


def _ranges(parts: Sequence[SegmentPart], limits: Limits) -> Iterator[tuple[SegmentPart, ...]]:
    """As many parts at a time as a range may have."""
    some: list[SegmentPart] = []
    size = offsets = 0
    whole = sum(part.end - part.position for part in parts)
    # As many ranges as keep all processes busy to the end, but none so small that starting on it is
    # most of the work.
    count = -(-max(whole, 1) // limits.range_bytes)
    count = -(-count // limits.parallel) * limits.parallel
    most = max(-(-whole // count), min(limits.range_bytes, _LEAST_RANGE_BYTES))
    for part in parts:
        part_size, part_offsets = part.end - part.position, _most_records(part)
        if some and (size + part_size // 2 > most or offsets + part_offsets > limits.range_offsets):
            yield tuple(some)
            some = []
            size = offsets = 0
        some.append(part)
        size += part_size
        offsets += part_offsets
    yield tuple(some)
