"""Tracks the transactions of a cleaned log (`CleanedTransactionMetadata.java`).

Records of an aborted transaction can be dropped at once. A marker has to stay as long as the
cleaned part has a batch of its transaction, even an empty one. Without such a batch it *may* be
dropped, and the caller drops it a delete.retention.ms later. If the marker of an aborted
transaction stays because of batches, its entry stays in the transaction index of the marker's
segment.

An aborted transaction ends at the last offset of its entry, even if its marker is missing: the
cleaners of older brokers removed a marker if a later record had the same key (KAFKA-14055). Here
the cleaner differs from Kafka's, which deletes the producer's records up to its next ABORT marker.

Each pass over a log has one `CleanedTransactions`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT, COMMIT, Marker
from storage.record.header import BatchHeader


class CleanedTransactions:
    """The transactions of one pass. `index`: the entries of transaction indexes that stay."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, TxnEntry]] = []  # a heap
        # The transactions that are open at this place of the log, by producer: the aborted ones,
        # and whether the pass has met a batch of them; and the others.
        self._aborted: dict[int, tuple[TxnEntry, bool]] = {}
        self._committed: set[int] = set()
        self.index: list[TxnEntry] = []

    def add_aborted(self, entries: Iterable[TxnEntry]) -> None:
        """Add the aborted transactions that overlap the part that the pass reads next."""
        for entry in entries:
            heapq.heappush(self._coming, (entry.first_offset, entry))

    def _aborted_at(self, batch: BatchHeader) -> tuple[TxnEntry, bool] | None:
        """Return the aborted transaction of the next batch, if there is one."""
        while self._coming and self._coming[0][0] <= batch.last_offset:
            _, entry = heapq.heappop(self._coming)
            open_one = self._aborted.get(entry.producer_id)
            if open_one is None or open_one[0].last_offset < entry.first_offset:
                self._aborted[entry.producer_id] = entry, False
        open_one = self._aborted.get(batch.producer_id)
        if open_one is None or open_one[0].last_offset < batch.base_offset:
            return None
        return open_one

    def is_aborted(self, batch: BatchHeader) -> bool:
        """Return whether the next batch, of data, belongs to an aborted transaction."""
        open_one = self._aborted_at(batch)
        if not batch.is_transactional:
            return False
        if open_one is None:
            self._committed.add(batch.producer_id)
            return False
        self._aborted[batch.producer_id] = open_one[0], True
        return True

    def may_be_dropped(self, batch: BatchHeader, marker: Marker | None) -> bool:
        """Return whether no batch is left of the transaction that the next batch, a control batch,
        ended.

        `marker`: None if the batch is empty or ends no transaction.
        """
        open_one = self._aborted_at(batch)
        if batch.records_count == 0:
            return True
        if marker is not None and marker.type == ABORT:
            self._aborted.pop(batch.producer_id, None)
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
        """Return the entries of `index` and empty it."""
        entries, self.index = self.index, []
        return entries
