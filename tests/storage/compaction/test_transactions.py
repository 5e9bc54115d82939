"""Transactions as a cleaner meets them."""

from __future__ import annotations

from storage.compaction.transactions import CleanedTransactions
from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT, COMMIT, Marker
from storage.record.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


def header(
    offset: int, producer: int = 7, attributes: int = TRANSACTIONAL_BIT, records: int = 1
) -> BatchHeader:
    return BatchHeader(offset, 49, 0, 2, 0, attributes, 0, 0, 0, producer, 0, 0, records)


def control(offset: int, producer: int = 7, records: int = 1) -> BatchHeader:
    return header(offset, producer, TRANSACTIONAL_BIT | CONTROL_BIT, records)


COMMITS, ABORTS = Marker(COMMIT, 0), Marker(ABORT, 0)


def test_an_aborted_transaction_ends_at_its_offset_where_its_marker_is_missing() -> None:
    """The cleaners of older brokers removed a marker if a later record had the same key."""
    first, second = TxnEntry(7, 10, 12, 13), TxnEntry(7, 15, 17, 18)
    pass_ = CleanedTransactions()
    pass_.add_aborted([first, second])
    assert pass_.is_aborted(header(10))
    assert not pass_.is_aborted(header(13))
    assert not pass_.may_be_dropped(control(14), COMMITS)
    assert pass_.is_aborted(header(15))
    assert not pass_.may_be_dropped(control(17), ABORTS)
    assert pass_.take_index() == [second]

    pass_.add_aborted([TxnEntry(7, 20, 22, 23)])
    assert pass_.is_aborted(header(20))
    assert pass_.may_be_dropped(control(25), ABORTS), "the marker is another transaction's"
    assert pass_.take_index() == []
