"""Cuts a range of a log's offsets into pieces that others read, in other processes.

Whoever plans has the log open (``plan_splits``); whoever reads has the directory and a ``Split``
(``read_split``), nothing else.  Planning reads indexes only, a few entries a split: a
piece ends with a batch that the offset index names, so it begins where that batch ends, and
``position`` is where that batch lies, some bytes before.  A segment whose index is missing or
cannot be right is not cut; one of Kafka 0.7, which has none, neither.  A piece may go on in the
next segments, where those are small.

Not here: reading (``split_reader``), which range is wanted, how Spark is told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from storage.errors import OffsetOutOfRange
from storage.index.txn_index import TxnEntry
from storage.log.log import Log
from storage.log.read import Isolation
from storage.segment.segment import Segment
from storage.split.split_finder import AbortedSpan, Lost, Split
from storage.split.split_reader import CHUNK_BYTES, Wanted, read_split

__all__ = ["CHUNK_BYTES", "AbortedSpan", "Split", "Wanted", "plan_splits", "read_split"]


class _Piece(NamedTuple):
    """What a segment has between two cuts: its bytes from ``position`` on, before offset ``end``.

    ``is_cut``: the next piece begins in the same segment.
    """

    segment: Segment
    position: int
    size: int
    start: int
    end: int
    is_cut: bool


def plan_splits(
    log: Log, from_offset: int, to_offset: int, *, target_bytes: int, isolation: Isolation
) -> list[Split]:
    """Pieces of about ``target_bytes`` of log, which together are the range; in order.

    OffsetOutOfRange where the range is not within log start and what ``isolation`` shows; OSError.
    """
    bound = log.last_stable_offset if isolation == "read_committed" else log.high_watermark
    for offset in (from_offset, to_offset):
        if not log.log_start_offset <= offset <= bound:
            raise OffsetOutOfRange(offset, log.log_start_offset, bound, path=log.directory)
    if from_offset >= to_offset:
        return []
    aborted = log.transactions.aborted() if isolation == "read_committed" else []
    aborted.sort(key=lambda entry: entry.last_offset)
    splits: list[Split] = []
    open_pieces: list[_Piece] = []

    def close() -> None:
        size = sum(piece.size for piece in open_pieces)
        if size:
            first, last = open_pieces[0], open_pieces[-1]
            bases = [piece.segment.base_offset for piece in open_pieces]
            found = (_lost(piece.segment, first.start, last.end) for piece in open_pieces)
            splits.append(
                Split(
                    topic=log.topic,
                    partition=log.partition,
                    directory=log.directory,
                    base_offset=first.segment.base_offset,
                    position=first.position,
                    size=size,
                    from_offset=first.start,
                    to_offset=last.end,
                    aborted=tuple(_touching(aborted, first.start, last.end)),
                    topic_id=log.topic_id,
                    segments=() if log.may_be_cleaned else tuple(bases),
                    lost=next(filter(None, found), None),
                )
            )
        open_pieces.clear()

    room = target_bytes
    for segment, start, end, is_whole in _ranges(log.segments, from_offset, to_offset):
        for piece in _pieces(segment, start, end, is_whole, room, target_bytes):
            open_pieces.append(piece)
            room -= piece.size
            if piece.is_cut or room <= 0:
                close()
                room = target_bytes
    close()
    return splits


def _lost(segment: Segment, start: int, end: int) -> Lost | None:
    """What of these offsets a segment lacks, all of it or its end."""
    if not segment.files.is_missing and not segment.lacking:
        return None
    place = segment.damages[-1]
    if place.next_offset <= start or place.first_offset >= end:
        return None
    return Lost(place.first_offset, segment.log_path, place.start, place.message)


def _ranges(
    segments: Sequence[Segment], from_offset: int, to_offset: int
) -> Iterator[tuple[Segment, int, int, bool]]:
    """Each segment that the range touches, and the part of the range that is its own.

    And whether that goes to the segment's end.
    """
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        following = segment.next_offset if last else segments[number + 1].base_offset
        start, end = max(from_offset, segment.base_offset), min(to_offset, following)
        if start < end:
            yield segment, start, end, end == following


def _pieces(
    segment: Segment, start: int, end: int, is_whole: bool, room: int, target: int
) -> Iterator[_Piece]:
    """Cut a segment's range: a piece of ``room`` bytes, the others of ``target``.

    ``is_whole``: it goes to the segment's end.
    """
    if not segment.holds_batches:
        # Its offsets are positions.
        yield _Piece(segment, 0, end - start, start, end, False)
        return
    if start == segment.base_offset and is_whole and segment.size <= room + target // 4:
        yield _Piece(segment, 0, segment.size, start, end, False)
        return
    was_open = segment.files.is_open
    try:
        yield from _by_index(segment, start, end, room, target)
    finally:
        # A log may have thousands.
        if segment.files.sealed and not was_open:
            segment.files.close_descriptors()


def _by_index(segment: Segment, start: int, end: int, room: int, target: int) -> Iterator[_Piece]:
    index = segment.files.offset_index
    if not index.count or index.sanity() is not None:
        yield _Piece(segment, 0, segment.size, start, end, False)
        return
    position = index.lookup(start)[1]
    stop = segment.size
    after = index.upper_bound(index.lookup(end - 1)[1], 1)
    if after is not None:
        stop = min(stop, index.lookup(after)[1])
    while stop - position > room + target // 4:
        last = index.upper_bound(position, max(room, 1))
        if last is None or not start <= last < end - 1:
            break
        at = index.lookup(last)[1]
        if not position < at < stop:
            break
        yield _Piece(segment, position, at - position, start, last + 1, True)
        position, start, room = at, last + 1, target
    yield _Piece(segment, position, max(stop - position, 0), start, end, False)


def _touching(aborted: Sequence[TxnEntry], start: int, end: int) -> Iterator[AbortedSpan]:
    """The aborted transactions with any part between two offsets; ``aborted``: by their markers."""
    first = bisect_left(aborted, start, key=lambda entry: entry.last_offset)
    for entry in islice(aborted, first, None):
        if entry.first_offset < end:
            yield AbortedSpan(entry.producer_id, entry.first_offset, entry.last_offset)
        if entry.last_stable_offset >= end:
            break
