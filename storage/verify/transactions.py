"""Checks whether a segment's `.txnindex` matches the transactions in its log.

Each entry has an ABORT marker of its producer in this segment, and each marker that ended a
transaction has an entry.

Segments are read independently, in any order, perhaps in other processes: `SegmentTransactions` has
the facts of one segment. `OpenTransactions` then visits the segments of a log in order, tracks the
open transactions, and checks each segment.

Pure. Not here: building the entries of a transaction index (`producer_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT
from storage.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from storage.verify.verify_index import Finding


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """The transactions of one segment. `entries`: those of its `.txnindex`.

    `aborts`: by the offset of each ABORT marker, the producer and the offset at which its
    transaction begins in this segment, or None. `first_markers`: by producer, the offset of its
    first marker, which ends the transaction that was open before. `open`: by producer, the first
    offset in this segment of the transaction that is open at its end.
    """

    entries: tuple[TxnEntry, ...] = ()
    aborts: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    first_markers: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, producers: Iterable[tuple[int, ...]], entries: tuple[TxnEntry, ...]
    ) -> SegmentTransactions:
        """`producers`: the batches that `Rebuild` collected, in order."""
        seen = cls(entries)
        for base, last, producer_id, _, _, attributes, _, _, marker, _ in producers:
            if attributes & CONTROL_BIT:
                began = seen.open.pop(producer_id, None)
                seen.first_markers.setdefault(producer_id, last)
                if marker == ABORT:
                    seen.aborts[last] = (producer_id, began)
            elif attributes & TRANSACTIONAL_BIT:
                seen.open.setdefault(producer_id, base)
        return seen


class OpenTransactions:
    """The transactions of a log that are open where its next segment begins.

    `log_start`: of a transaction that ended below it a cleaner keeps the batches, but no entry
    and in the end no marker (`LocalLog.collectAbortedTransactions`).
    """

    def __init__(self, log_start: int = 0) -> None:
        self._log_start = log_start
        # The first offset by producer.
        self._open: dict[int, int] = {}

    def faults(self, seen: SegmentTransactions) -> Iterator[Finding]:
        """Yield the faults of the next segment's `.txnindex`."""
        markers = dict(seen.aborts)
        for producer_id, offset in seen.first_markers.items():
            if producer_id in self._open and offset in markers:
                markers[offset] = producer_id, self._open[producer_id]
        last = -1
        for entry in seen.entries:
            producer_id, began = markers.pop(entry.last_offset, (-1, None))
            if entry.last_offset <= last:
                yield f"the entry follows one of offset {last}", None, entry.last_offset
            elif producer_id != entry.producer_id:
                reason = f"there is no ABORT marker of producer {entry.producer_id}"
                yield reason, None, entry.last_offset
            elif entry.first_offset > entry.last_offset or (
                began is not None and self._log_start <= began < entry.first_offset
            ):
                yield (
                    "the transaction begins before the offset of the entry",
                    None,
                    entry.first_offset,
                )
            last = entry.last_offset
        for offset, (producer_id, began) in markers.items():
            if began is not None and offset >= self._log_start:
                reason = f"the aborted transaction of producer {producer_id} has no entry"
                yield reason, None, offset

    def pass_over(self, seen: SegmentTransactions) -> None:
        """Apply a segment without checking it."""
        for producer_id in seen.first_markers:
            self._open.pop(producer_id, None)
        self._open = seen.open | self._open
