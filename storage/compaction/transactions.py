"""Transactions as a cleaner meets them (``CleanedTransactionMetadata.java``).

Records of an aborted transaction can go at once.  A marker has to stay as long as there is a batch
of its transaction, also an empty one, in what is being cleaned.  Where there is none it *can* go,
and the caller lets it go a delete.retention.ms later.  An aborted transaction whose marker stays
because of batches keeps its entry in the transaction index of the segment that the marker is in.

A pass over a whole log, in order, has one ``CleanedTransactions``.  Where groups of segments are
cleaned in any order, a first pass tells what it ``Met`` in each part of the log, from which the
second pass gets an ``OpenAtStart`` for each group.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT, COMMIT, Marker
from storage.record.header import BatchHeader


class OpenAtStart(NamedTuple):
    """The transactions that are open where a part of a log begins, and have a batch before it.

    ``aborted``: those that end in an ABORT marker; ``committed``: the producers of all others.
    """

    committed: frozenset[int] = frozenset()
    aborted: tuple[TxnEntry, ...] = ()


@dataclass(slots=True)
class Met:
    """What the first pass has met of transactions in one part of a log.

    ``committed``: the producers of transactions that were not aborted and are open at the part's
    end; ``ended``: the producers of COMMIT markers in the part; ``aborted``: for each producer the
    last offset of its last batch in an aborted transaction.
    """

    committed: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    aborted: dict[int, int] = field(default_factory=dict)


def aborted_within(aborted: Sequence[TxnEntry], start: int, end: int) -> list[TxnEntry]:
    """Those of all aborted transactions, in the order of their markers, that begin before ``end``
    and end at ``start`` or later (``UnifiedLog.collectAbortedTransactions``).
    """
    first = bisect_left(aborted, start, key=lambda entry: entry.last_offset)
    found = []
    for entry in islice(aborted, first, None):
        if entry.first_offset < end:
            found.append(entry)
        if entry.last_stable_offset >= end:
            break  # what ended later began later, too
    return found


def openings(
    groups: Iterable[tuple[int, Iterable[Met]]], aborted: Sequence[TxnEntry]
) -> Iterator[OpenAtStart]:
    """Yields, for each group of a log, the transactions that are open where the group begins.

    ``groups``: first offset, and what the first pass has met in each part of the group.
    ``aborted``: all aborted transactions, in the order of their markers.
    """
    committed: set[int] = set()
    met: dict[int, int] = {}
    for first_offset, parts in groups:
        open_ones = [
            entry
            for entry in aborted_within(aborted, first_offset, first_offset)
            if entry.first_offset <= met.get(entry.producer_id, -1)
        ]
        yield OpenAtStart(frozenset(committed), tuple(open_ones))
        for part in parts:
            committed -= part.ended
            committed |= part.committed
            met.update(part.aborted)


class CleanedTransactions:
    """See the module.  ``index``: the entries of transaction indexes that stay."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, TxnEntry]] = []  # a heap
        # The transactions that are open at this place of the log, by producer: those that were
        # aborted, and whether a batch of theirs was met; and those that were not.
        self._aborted: dict[int, tuple[TxnEntry, bool]] = {}
        self._committed: set[int] = set()
        self.index: list[TxnEntry] = []

    @classmethod
    def resumed(cls, opening: OpenAtStart) -> CleanedTransactions:
        """For a pass that begins in the midst of a log."""
        made = cls()
        made._committed = set(opening.committed)
        made._aborted = {entry.producer_id: (entry, True) for entry in opening.aborted}
        return made

    def add_aborted(self, entries: Iterable[TxnEntry]) -> None:
        """Add the aborted transactions that overlap what the pass reads next."""
        for entry in entries:
            heapq.heappush(self._coming, (entry.first_offset, entry))

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            _, entry = heapq.heappop(self._coming)
            self._aborted.setdefault(entry.producer_id, (entry, False))

    def is_aborted(self, batch: BatchHeader) -> bool:
        """Whether a batch of data, which comes next, belongs to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        open_one = self._aborted.get(batch.producer_id)
        if open_one is None:
            self._committed.add(batch.producer_id)
            return False
        self._aborted[batch.producer_id] = open_one[0], True
        return True

    def can_go(self, batch: BatchHeader, marker: Marker | None) -> bool:
        """Whether nothing is left of the transaction that a control batch, which comes next, ended.

        ``marker``: None where the batch is empty or ends no transaction.
        """
        self._begin_up_to(batch.last_offset)
        if batch.records_count == 0:
            return True
        if marker is not None and marker.type == ABORT:
            open_one = self._aborted.pop(batch.producer_id, None)
            if open_one is None or not open_one[1]:
                return True
            self.index.append(open_one[0])
            return False
        if marker is not None and marker.type == COMMIT:
            if batch.producer_id in self._committed:
                self._committed.remove(batch.producer_id)
                return False
            return True
        return False

    def take_index(self) -> list[TxnEntry]:
        """Return the entries of ``index`` and empty it."""
        entries, self.index = self.index, []
        return entries
