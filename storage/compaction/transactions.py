"""Transactions as a cleaner meets them (``CleanedTransactionMetadata.java``).

Records of an aborted transaction can go at once.  A marker has to stay as long as there is a batch
of its transaction, also an empty one, in what is being cleaned; when it met none it *can* go, and
goes a delete.retention.ms later (the caller's business).  An aborted transaction whose marker stays
because of batches keeps its entry in the transaction index of the segment that the marker is in.

One pass over the log, in order, is one ``CleanedTransactions``.  What is cleaned part by part, in
any order, tells of each part what was ``Met`` there, and gets for each an ``OpenAtStart``.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT, COMMIT, Marker
from storage.record.header import BatchHeader


class OpenAtStart(NamedTuple):
    """What a pass over a log knows by some place of it, of transactions that reach beyond.

    ``aborted``: those that were aborted and of which a batch was met; ``committed``: the producers
    of the others.
    """

    committed: frozenset[int] = frozenset()
    aborted: tuple[TxnEntry, ...] = ()


class Met(NamedTuple):
    """What of transactions was met in a part of a log.

    ``committed``: the producers of those that were not aborted and had not ended by its end;
    ``ended``: the producers whose last transactional batch or COMMIT there was the latter;
    ``aborted``: by producer, the last offset of its last batch that was aborted.
    """

    committed: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    aborted: tuple[tuple[int, int], ...] = ()


def openings(
    parts: Iterable[tuple[int, Met]], aborted: Sequence[TxnEntry]
) -> Iterator[OpenAtStart]:
    """Before each part of a log, (first offset, what was met there), what is known by then.

    ``aborted``: all aborted transactions, in the order of their markers.
    """
    committed: set[int] = set()
    met: dict[int, int] = {}
    for first_offset, part in parts:
        open_ones = []
        number = bisect_left(aborted, first_offset, key=lambda entry: entry.last_offset)
        for entry in islice(aborted, number, None):
            if entry.first_offset <= met.get(entry.producer_id, -1):
                open_ones.append(entry)
            if entry.last_stable_offset >= first_offset:
                break  # what ended later began later, too
        yield OpenAtStart(frozenset(committed), tuple(open_ones))
        committed -= part.ended
        committed |= part.committed
        met.update(part.aborted)


class CleanedTransactions:
    """See the module.  ``index``: the entries to be kept since they were last taken."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, TxnEntry]] = []  # a heap
        # The transactions that are open at this place of the log, by producer: those that were
        # aborted, and whether a batch of theirs was met; and those that were not.
        self._aborted: dict[int, tuple[TxnEntry, bool]] = {}
        self._committed: set[int] = set()
        self.index: list[TxnEntry] = []

    @classmethod
    def resumed(cls, opening: OpenAtStart) -> CleanedTransactions:
        """A pass that begins in the midst of a log."""
        made = cls()
        made._committed = set(opening.committed)
        made._aborted = {entry.producer_id: (entry, True) for entry in opening.aborted}
        return made

    def add_aborted(self, entries: Iterable[TxnEntry]) -> None:
        """Aborted transactions that lie, with any part of theirs, in what comes next."""
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
        """Whether nothing is left of what a control batch, which comes next, has ended.

        ``marker`` is None where it is empty or ends no transaction.
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
        """The entries of ``index``, which begins anew."""
        entries, self.index = self.index, []
        return entries
