"""Transaction indexes are judged the same however the segments were read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT
from storage.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from storage.state.producer_state import ProducerBatch, ProducerState
from storage.verify.transactions import OpenTransactions, SegmentTransactions

COMMIT = 1

# (producer, what it writes at the next offset), and where a segment ends
Event = tuple[int, str]
EVENTS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["data", "plain", "abort", "commit", "roll"])),
    max_size=30,
)


def batch(offset: int, producer: int, what: str) -> ProducerBatch:
    marker = {"abort": ABORT, "commit": COMMIT}.get(what, -1)
    attributes = 0 if what == "plain" else TRANSACTIONAL_BIT
    if marker >= 0:
        attributes |= CONTROL_BIT
    return ProducerBatch(offset, offset, producer, 0, -1, attributes, 0, 0, marker, 0)


def segments(events: Sequence[Event]) -> list[tuple[list[ProducerBatch], list[TxnEntry]]]:
    """The batches of each segment, and what its transaction index has."""
    state = ProducerState()
    made: list[tuple[list[ProducerBatch], list[TxnEntry]]] = [([], [])]
    for offset, (producer, what) in enumerate(events):
        if what == "roll":
            made.append(([], []))
            continue
        batches, entries = made[-1]
        batches.append(batch(offset, producer, what))
        if (entry := state.apply(batches[-1])) is not None:
            entries.append(entry)
    return made


def faults(
    log: Sequence[tuple[Sequence[ProducerBatch], Sequence[TxnEntry]]], log_start: int = 0
) -> list[str]:
    """Of all segments, seen in any order and judged in theirs."""
    seen = [SegmentTransactions.of(batches, tuple(entries)) for batches, entries in reversed(log)]
    transactions = OpenTransactions(log_start)
    found = []
    for each in reversed(seen):
        told = list(transactions.faults(each))
        assert list(transactions.faults(each)) == told, "it may be read again first"
        found += [reason for reason, _, _ in told]
        transactions.pass_over(each)
    return found


@given(EVENTS)
def test_what_a_log_writes_is_right(events: list[Event]) -> None:
    assert faults(segments(events)) == []


@given(EVENTS, st.data())
def test_an_entry_that_is_missing(events: list[Event], data: st.DataObject) -> None:
    log = segments(events)
    entries = [(number, at) for number, (_, some) in enumerate(log) for at in range(len(some))]
    if entries:
        number, at = data.draw(st.sampled_from(entries))
        gone = log[number][1].pop(at)
        reason = f"the aborted transaction of producer {gone.producer_id} has no entry"
        assert faults(log) == [reason]
        assert faults(log, log_start=gone.last_offset + 1) == [], "a cleaner keeps none"


@given(EVENTS, st.data())
def test_an_entry_that_is_wrong(events: list[Event], data: st.DataObject) -> None:
    log = segments(events)
    entries = [(number, at) for number, (_, some) in enumerate(log) for at in range(len(some))]
    if entries:
        number, at = data.draw(st.sampled_from(entries))
        entry = log[number][1][at]
        log[number][1][at] = entry._replace(first_offset=entry.first_offset + 1)
        assert faults(log) == ["the transaction begins before the offset of the entry"]
        log[number][1][at] = entry._replace(producer_id=9)
        assert "there is no ABORT marker of producer 9" in faults(log)


def test_a_transaction_begins_at_its_first_batch() -> None:
    log = segments([(1, "data"), (1, "data"), (1, "abort")])
    log[0][1][0] = log[0][1][0]._replace(first_offset=1)
    assert faults(log) == ["the transaction begins before the offset of the entry"]


def test_an_entry_may_know_more_than_the_log_does() -> None:
    """Its transaction's batches may be gone."""
    log = segments([(1, "data"), (1, "abort")])
    log[0][0].pop(0)
    assert faults(log) == []


def test_a_transaction_that_was_aborted_below_the_log_start_has_no_marker_left() -> None:
    """A cleaner keeps its batches, but neither its entry nor, in the end, its marker."""
    log = segments([(1, "data"), (1, "abort"), (0, "roll"), (1, "data"), (1, "abort")])
    log[0] = (log[0][0][:1], [])
    assert faults(log, log_start=2) == []
    assert faults(log) == ["the transaction begins before the offset of the entry"]


def test_entries_that_do_not_rise() -> None:
    log = segments([(1, "data"), (2, "data"), (1, "abort"), (2, "abort")])
    log[0][1].reverse()
    assert faults(log) == ["the entry follows one of offset 3"]


@pytest.mark.parametrize("between", ["commit", "abort"])
def test_only_the_first_marker_ends_what_was_open_before(between: str) -> None:
    events = [(1, "data"), (0, "roll"), (1, between), (1, "data"), (1, "abort")]
    log = segments(events)
    assert log[1][1][-1].first_offset == 3
    assert faults(log) == []
    log[1][1][-1] = log[1][1][-1]._replace(first_offset=4)
    assert faults(log) == ["the transaction begins before the offset of the entry"]
