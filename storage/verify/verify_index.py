"""Whether a segment's index files fit its log, whoever wrote them.

What our own log writes, and brokers from 4.1 on while they run, equals what a rebuild makes: that
is one comparison.  Otherwise each entry is judged by what a reader relies on, because brokers
index by the append (the oldest by its first offset, later ones by its last), and begin to count
anew when they open a segment:

``.index``
    offsets and positions strictly rise; a position is a batch's start; the entry's offset is above
    those of all batches before that one, and in the segment.
``.timeindex``
    timestamps strictly rise, offsets do not fall; no record up to the batch that holds the offset
    has a larger timestamp, and one has this, unless none has any; in a sealed segment the last one
    is the largest.
``.txnindex``
    each entry names an ABORT marker of its producer in this segment, and each marker that ended a
    transaction has an entry.

Pure decisions over bytes that were read; nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct

from storage.index.txn_index import TxnEntry
from storage.record.batch import BatchHeader

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_NO_BATCH = "no batch begins where the entry points"

# (reason, position in the log or None, offset or None)
Finding = tuple[str, int | None, int | None]
Batches = Callable[[], Iterable[tuple[int, BatchHeader]]]


def without_zero_tail(data: bytes, entry_size: int) -> bytes:
    """The whole entries of an index that may have been pre-sized and not been trimmed."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry_size) * entry_size]


def offset_index_faults(
    data: bytes, rebuilt: bytes, base: int, end: int, batches: Batches
) -> Iterator[Finding]:
    """The faults of an ``.index``; ``end`` is the segment's next offset."""
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
                yield f"the batch before the entry's goes to offset {before}", position, offset
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
    """The faults of a ``.timeindex``.

    ``expected``: what it may equal without a further look; ``largest``: the timestamp that its
    last entry must have, None where it need not.
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
                yield f"timestamp {timestamp} where {newest} is the largest", position, offset
            number += 1
        if number == len(entries):
            break
    for _, offset in entries[number:]:
        yield "the log ends before the entry's offset", None, offset
    if largest is not None and largest > last[0]:
        yield f"its last timestamp is not {largest}, the segment's largest", None, last[1]


class Transactions:
    """The transactions of a partition, followed batch by batch from its first segment on.

    ``log_start``: of those that ended below it a cleaner keeps no entry
    (``LocalLog.collectAbortedTransactions``).
    """

    def __init__(self, log_start: int = 0) -> None:
        self._log_start = log_start
        self._open: dict[int, int] = {}
        self._markers: dict[int, tuple[int, int | None]] = {}

    def begin(self, started: Mapping[int, int]) -> None:
        """These are open where the first segment begins: by producer id their first offsets."""
        self._open = dict(started)

    def copy(self) -> Transactions:
        """As it is now, to come back to where a segment is read again."""
        other = Transactions(self._log_start)
        other.begin(self._open)
        return other

    def become(self, other: Transactions) -> None:
        """Take over what a copy has seen."""
        self._open = other._open

    def then(self, alone: SeenAlone) -> Iterator[Finding]:
        """Go on over a segment that was seen alone; the faults of its ``.txnindex``."""
        self._markers = dict(alone._markers)
        for producer_id, marker in alone.first_markers.items():
            began = self._open.pop(producer_id, None)
            if began is not None and marker in self._markers:
                # It was open before the segment began.
                self._markers[marker] = (producer_id, began)
        for producer_id, base in alone._open.items():
            self._open.setdefault(producer_id, base)
        yield from self.faults(alone.entries)

    def see(self, producers: Iterable[tuple[int, ...]]) -> None:
        """Take the batches of producers that ``Rebuild`` collected, in order."""
        for base, last, producer_id, _, _, attributes, _, _, marker, _ in producers:
            if attributes & 0x20:
                began = self._open.pop(producer_id, None)
                if marker == 0:
                    self._markers[last] = (producer_id, began)
            elif attributes & 0x10:
                self._open.setdefault(producer_id, base)

    def faults(self, entries: tuple[TxnEntry, ...]) -> Iterator[Finding]:
        """The faults of a ``.txnindex``, when its segment has been seen; begins the next one."""
        markers, self._markers = self._markers, {}
        last = -1
        for entry in entries:
            producer_id, began = markers.pop(entry.last_offset, (None, None))
            if entry.last_offset <= last:
                yield f"the entry follows one of offset {last}", None, entry.last_offset
            elif producer_id != entry.producer_id:
                reason = f"no ABORT marker of producer {entry.producer_id} is there"
                yield reason, None, entry.last_offset
            elif entry.first_offset > (entry.last_offset if began is None else began):
                yield "the transaction begins before the entry says", None, entry.first_offset
            last = entry.last_offset
        for offset, (producer_id, began) in markers.items():
            if began is not None and offset >= self._log_start:
                reason = f"the aborted transaction of producer {producer_id} has no entry"
                yield reason, None, offset


class SeenAlone(Transactions):
    """The transactions of one segment, seen without those that are open where it begins.

    In place of ``Transactions`` where segments are read in any order, also in another process;
    ``Transactions.then`` puts it in its place and tells the faults.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_markers: dict[int, int] = {}
        """By producer id the offset of its first marker: what ends what was open before."""
        self.entries: tuple[TxnEntry, ...] = ()

    def see(self, producers: Iterable[tuple[int, ...]]) -> None:
        producers = list(producers)
        for _, last, producer_id, _, _, attributes, *_ in producers:
            if attributes & 0x20:
                self.first_markers.setdefault(producer_id, last)
        super().see(producers)

    def faults(self, entries: tuple[TxnEntry, ...]) -> Iterator[Finding]:
        """None yet."""
        self.entries = entries
        return iter(())
