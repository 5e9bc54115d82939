"""Checks whether a segment's `.index` and `.timeindex` match its log, ours or a broker's.

Indexes of our own log, and of brokers from 4.1 on while they run, equal a rebuild: that is one
comparison. Otherwise each entry is checked for the properties that a reader relies on, because
brokers index by the append (the oldest by its first offset, later ones by its last), and restart
their count when they open a segment:

`.index`
    offsets and positions strictly rise; a position is a batch's start; the entry's offset is above
    those of all batches before that one, and in the segment.
`.timeindex`
    timestamps strictly rise, offsets do not fall; no record up to the batch that holds the offset
    has a larger timestamp, and one has this, unless none has any; in a sealed segment the last one
    is the largest.

Pure: the bytes are read before. Not here: the `.txnindex` (`transactions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

from storage.record._batch import Rebuild
from storage.record.header import BatchHeader
from storage.segment.walk import sealed_times

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_NO_BATCH = "the entry does not point to the start of a batch"

# (reason, position in the log or None, offset or None)
Finding = tuple[str, int | None, int | None]
Batches = Callable[[], Iterable[tuple[int, BatchHeader]]]


def without_zero_tail(data: bytes, entry_size: int) -> bytes:
    """Return the whole entries of an index that may be preallocated and not trimmed."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry_size) * entry_size]


def rebuilt_times(rebuild: Rebuild, may_be_open: bool) -> tuple[bytes, ...]:
    """Return the entries of a rebuilt time index: of a sealed segment and, with `may_be_open`, of
    an active one.
    """
    sealed = sealed_times(rebuild)
    return (sealed, bytes(rebuild.time_entries)) if may_be_open else (sealed,)


def offset_index_faults(
    data: bytes, rebuilt: bytes, base: int, end: int, batches: Batches
) -> Iterator[Finding]:
    """Yield the faults of an `.index`; `end` is the segment's next offset."""
    if data == rebuilt:
        return
    entries = [(base + offset, position) for offset, position in _OFFSET_ENTRY.iter_unpack(data)]
    last = (base - 1, -1)
    for entry in entries:
        if entry[0] <= last[0] or entry[1] <= last[1]:
            yield f"the entry follows one of offset {last[0]}", entry[1], entry[0]
            return
        last = entry
    number, before = 0, base - 1
    for start, header in batches() if entries else ():
        while number < len(entries) and entries[number][1] <= start:
            offset, position = entries[number]
            if position < start:
                yield _NO_BATCH, position, offset
            elif offset <= before:
                yield f"the previous batch ends at offset {before}", position, offset
            elif offset >= end:
                yield f"the log ends at offset {end}", position, offset
            number += 1
        if number == len(entries):
            return
        before = header.last_offset
    for offset, position in entries[number:]:
        yield _NO_BATCH, position, offset


def time_index_faults(
    data: bytes, expected: tuple[bytes, ...], base: int, largest: int | None, batches: Batches
) -> Iterator[Finding]:
    """Yield the faults of a `.timeindex`.

    `expected`: contents that are correct without a further check; `largest`: the timestamp that its
    last entry must have; None: any.
    """
    if data in expected:
        return
    entries = [(timestamp, base + offset) for timestamp, offset in _TIME_ENTRY.iter_unpack(data)]
    last = (-1, base)
    for timestamp, offset in entries:
        if timestamp <= last[0] or offset < last[1]:
            yield f"timestamp {timestamp} follows {last[0]} of offset {last[1]}", None, offset
            return
        last = (timestamp, offset)
    number, newest = 0, -1
    for position, header in batches() if entries else ():
        newest = max(newest, header.max_timestamp)
        while number < len(entries) and entries[number][1] <= header.last_offset:
            timestamp, offset = entries[number]
            # A broker that stores v0 for a producer of v1 indexes timestamps that it drops.
            if timestamp != newest and newest >= 0:
                yield f"timestamp {timestamp}, but the largest is {newest}", position, offset
            number += 1
        if number == len(entries):
            break
    for _, offset in entries[number:]:
        yield "the log ends before the offset of the entry", None, offset
    if largest is not None and largest > last[0]:
        yield f"its last timestamp is not {largest}, the largest of the segment", None, last[1]
