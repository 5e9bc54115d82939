"""How a round of cleaning is shared out: what everyone is told, and what is done at a time.

Ranges are what is scanned at a time: whole batches of segments that follow each other.  Groups are
what is written at a time, as ``grouping`` has them.  Keys are dealt out to buckets.

Not here: the work (``round``), which part of a log can be cleaned (``cleanable``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from storage.compaction.cleanable import CleanableRange
from storage.compaction.passes import ProducerRecord
from storage.compaction.shared.swap_in import source_of
from storage.compaction.shared.swap_request import SourceSegment
from storage.compaction.sources import Sources, aborted_of
from storage.errors import CorruptRecord, ReadOnlyFormat, SwapRefused
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.settings.config import LogConfig

# Less than that is not worth a range, or a bucket, of its own.
_LEAST_RANGE_BYTES = 8 << 20
_LEAST_BUCKET_KEYS = 100_000
# No record has less, as long as it is not compressed well.
_SMALLEST_RECORD = 8


class SegmentPart(NamedTuple):
    """Part of a segment, from ``position`` to ``end``: whole batches, of offsets from
    ``from_offset`` to below ``to_offset``.
    """

    segment: int
    group: int
    position: int
    end: int
    from_offset: int
    to_offset: int


class SharedRound(NamedTuple):
    """What everyone knows of a round.  ``firsts``: the number of each group's first segment.

    ``ranges``: what is scanned at a time; ``buckets``: how many of keys there are; ``secret``: of
    all maps.
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
        """Bytes of all that is read, once."""
        return sum(segment.size for segment in self.segments)

    @property
    def group_bounds(self) -> list[int]:
        """The first offsets of the groups, and where the last one ends."""
        return [*(self.segments[first].base_offset for first in self.firsts), self.end_offset]

    def offsets_of(self, group: int) -> range:
        """Those of a group's segments."""
        bounds = self.group_bounds
        return range(bounds[group], bounds[group + 1])

    def members(self, group: int) -> range:
        """The numbers of a group's segments."""
        firsts = [*self.firsts, len(self.segments)]
        return range(firsts[group], firsts[group + 1])

    def aborted_within(self, start: int, end: int) -> list[TxnEntry]:
        """As of ``Sources``."""
        sources = Sources((), end, self.config, {}, list(self.aborted))
        return sources.aborted_within(start, end)


class Limits(NamedTuple):
    """How finely a round is shared out: bytes and offsets of a range, keys of a bucket.

    Some 100 bytes of memory go with each key of a range or bucket.  ``parallel``: how many are at
    work at a time.
    """

    range_bytes: int = 512 << 20
    range_offsets: int = 4_000_000
    bucket_keys: int = 2_000_000
    parallel: int = 1


def plan(
    log: Log, cleanable: CleanableRange, *, now_ms: int, secret: bytes, limits: Limits
) -> SharedRound | None:
    """A round of a log, or None where nothing of it can be cleaned; reads its indexes.

    ``cleanable``: what ``LogCleaner.plan`` says.  ReadOnlyFormat, SwapRefused, OSError.
    """
    end = cleanable.first_uncleanable_offset
    segments = tuple(each for each in log.segments[:-1] if each.base_offset < end)
    if not segments or not log.config.may_be_cleaned:
        return None
    if not log.active.holds_batches:
        raise ReadOnlyFormat("segments of Kafka 0.7 are converted before they are cleaned")
    producers = {
        each.producer_id: ProducerRecord(each.last_offset, each.epoch) for each in log.producers
    }
    sources = Sources(segments, end, log.config, producers, aborted_of(log))
    found = tuple(source_of(log.files, segment) for segment in segments)
    for segment, source in zip(segments, found, strict=True):
        if segment.size != source.size:
            raise SwapRefused(f"{segment.log_path} is being replaced: try again")
    firsts = []
    first = 0
    for count in sources.groups(len(segments)):
        firsts.append(first)
        first += count
    pieces = list(_pieces(sources, firsts, limits))
    records = sum(_most_records(piece) for piece in pieces)
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
        tuple(firsts),
        producers,
        tuple(sources.aborted),
        tuple(_ranges(pieces, sources, limits)),
        max(few, min(limits.parallel, -(-records // _LEAST_BUCKET_KEYS)), 1),
    )


def _most_records(piece: SegmentPart) -> int:
    return min(
        piece.to_offset - piece.from_offset, (piece.end - piece.position) // _SMALLEST_RECORD + 1
    )


def _pieces(sources: Sources, firsts: Sequence[int], limits: Limits) -> Iterator[SegmentPart]:
    """All of the segments, those that are larger than a range cut where their indexes allow."""
    group = -1
    for number, segment in enumerate(sources.segments):
        if group + 1 < len(firsts) and firsts[group + 1] == number:
            group += 1
        cuts = [(0, segment.base_offset)]
        if segment.size > limits.range_bytes:
            cuts += _cuts(segment, limits.range_bytes)
        cuts.append((segment.size, sources.next_offset(number)))
        for (position, offset), (end, end_offset) in pairwise(cuts):
            yield SegmentPart(number, group, position, end, offset, end_offset)
        segment.files.close_descriptors()


def _cuts(segment: Segment, range_bytes: int) -> list[tuple[int, int]]:
    """(position, base offset) of batches that lie about so far apart."""
    cuts: list[tuple[int, int]] = []
    position = 0
    while segment.size - position > range_bytes:
        indexed = segment.files.offset_index.upper_bound(position, range_bytes)
        if indexed is None:
            break
        _, position = segment.files.offset_index.lookup(indexed)
        try:
            _, header = next(segment.batches(position))
        except (CorruptRecord, StopIteration):
            break  # whoever reads it finds out
        cuts.append((position, header.base_offset))
    return cuts


def _ranges(
    pieces: Sequence[SegmentPart], sources: Sources, limits: Limits
) -> Iterator[tuple[SegmentPart, ...]]:
    """As many pieces at a time as a range may have."""
    some: list[SegmentPart] = []
    size = offsets = 0
    whole = sum(piece.end - piece.position for piece in pieces)
    # As many ranges as keep all hands busy to the end, but none so small that starting on it is
    # most of the work.
    count = -(-max(whole, 1) // limits.range_bytes)
    count = -(-count // limits.parallel) * limits.parallel
    most = max(-(-whole // count), min(limits.range_bytes, _LEAST_RANGE_BYTES))
    for piece in pieces:
        piece_size, piece_offsets = piece.end - piece.position, _most_records(piece)
        if some and (
            size + piece_size // 2 > most or offsets + piece_offsets > limits.range_offsets
        ):
            yield tuple(some)
            some = []
            size = offsets = 0
        some.append(piece)
        size += piece_size
        offsets += piece_offsets
    yield tuple(some)
