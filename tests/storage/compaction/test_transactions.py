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


def test_aborted_data_goes_and_its_marker_stays_as_long_as_there_was_any() -> None:
    entry = TxnEntry(7, 10, 12, 13)
    first = CleanedTransactions()
    first.add_aborted([entry])
    assert first.is_aborted(header(10))
    assert first.is_aborted(header(11))
    assert not first.is_aborted(header(11, 8))
    assert not first.is_aborted(header(11, attributes=0))
    assert not first.may_be_dropped(control(12), ABORTS)
    assert first.take_index() == [entry]
    assert first.take_index() == []
    # The same producer's next transaction is another one.
    assert not first.is_aborted(header(13))

    again = CleanedTransactions()
    again.add_aborted([entry])
    assert again.may_be_dropped(control(12), ABORTS)
    assert again.take_index() == []


def test_a_commit_goes_when_nothing_of_it_was_met() -> None:
    pass_ = CleanedTransactions()
    assert not pass_.is_aborted(header(1))
    assert not pass_.may_be_dropped(control(2), COMMITS)
    assert pass_.may_be_dropped(control(3), COMMITS)
    assert pass_.may_be_dropped(control(4, 9), COMMITS)


def test_empty_control_batches_can_go_and_other_kinds_cannot() -> None:
    pass_ = CleanedTransactions()
    assert pass_.may_be_dropped(control(1, records=0), None)
    assert not pass_.may_be_dropped(control(2), None)


def test_transactions_of_several_producers_and_times() -> None:
    """A later transaction of a producer begins when its first offset is reached, not before."""
    pass_ = CleanedTransactions()
    pass_.add_aborted([TxnEntry(7, 30, 32, 33), TxnEntry(7, 10, 20, 21), TxnEntry(8, 15, 25, 26)])
    assert not pass_.is_aborted(header(9))
    assert not pass_.may_be_dropped(control(9), COMMITS)
    assert pass_.is_aborted(header(10))
    assert pass_.is_aborted(header(16, 8))
    assert not pass_.may_be_dropped(control(20), ABORTS)
    assert not pass_.is_aborted(header(22))
    assert not pass_.may_be_dropped(control(24), COMMITS)
    assert not pass_.may_be_dropped(control(25, 8), ABORTS)
    assert pass_.may_be_dropped(control(32), ABORTS)
    assert [entry.last_offset for entry in pass_.index] == [20, 25]


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
