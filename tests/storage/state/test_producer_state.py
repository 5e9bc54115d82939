"""The state of producers, and its snapshots: Kafka's bytes; any other content is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.index.txn_index import TxnEntry
from storage.record.control import ABORT, COMMIT
from storage.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from storage.state.producer_state import (
    BATCHES_KEPT,
    EMPTY_SNAPSHOT,
    MAX_SEQUENCE,
    Producer,
    ProducerBatch,
    ProducerEntry,
    ProducerState,
    ProducerUpdate,
    decode,
    encode,
    sequence_after,
)
from tests.oracle import crc32c

ONE = bytes.fromhex(
    "00015b5ba59a0000000100000000000003e8000300000004000000000000000e000000040000018bcfe568000000"
    "0007ffffffffffffffff"
)
ENTRY = ProducerEntry(1000, 3, 4, 14, 4, 1_700_000_000_000, 7, -1)


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


entries = st.builds(
    ProducerEntry,
    *(_signed(bits) for bits in (64, 16, 32, 64, 32, 64, 32, 64)),
)


def test_known_bytes() -> None:
    assert bytes.fromhex("000148674bc700000000") == EMPTY_SNAPSHOT
    assert encode([ENTRY]) == ONE
    assert decode(ONE, path="f") == [ENTRY]
    assert decode(EMPTY_SNAPSHOT, path="f") == []


@given(st.lists(entries, max_size=4))
def test_round_trip(producers: list[ProducerEntry]) -> None:
    assert decode(encode(producers), path="f") == producers


@given(st.data())
def test_any_damaged_byte_is_found(data: st.DataObject) -> None:
    damaged = bytearray(ONE)
    at = data.draw(st.integers(0, len(ONE) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptCheckpoint):
        decode(bytes(damaged), path="f")


@given(st.integers(0, len(ONE) - 1))
def test_any_cut_is_found(size: int) -> None:
    with pytest.raises(CorruptCheckpoint) as e:
        decode(ONE[:size], path="some.snapshot")
    assert e.value.path == "some.snapshot"


@pytest.mark.parametrize(("count", "producers"), [(2, 1), (0, 1), (-1, 0)])
def test_a_count_that_does_not_fit_is_found(count: int, producers: int) -> None:
    body = count.to_bytes(4, "big", signed=True) + encode([ENTRY] * producers)[10:]
    data = ONE[:2] + crc32c(body).to_bytes(4, "big") + body
    with pytest.raises(CorruptCheckpoint, match=f"{count} producers"):
        decode(data, path="f")


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(CorruptCheckpoint, match="version 2"):
        decode(b"\0\2" + ONE[2:], path="f")


# -- what may come next --------------------------------------------------------------------------


def stored(
    base: int,
    count: int,
    sequence: int,
    *,
    producer: int = 7,
    epoch: int = 0,
    transactional: bool = False,
) -> ProducerBatch:
    attributes = TRANSACTIONAL_BIT if transactional else 0
    return ProducerBatch(
        base, base + count - 1, producer, epoch, sequence, attributes, base * 10, 0
    )


def ended(offset: int, kind: int, *, producer: int = 7, epoch: int = 0) -> ProducerBatch:
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    return ProducerBatch(offset, offset, producer, epoch, -1, attributes, offset * 10, 0, kind, 5)


def test_sequences_go_round() -> None:
    assert sequence_after(-1, 1) == 0
    assert sequence_after(MAX_SEQUENCE, 1) == 0
    assert sequence_after(MAX_SEQUENCE - 1, 4) == 2
    assert sequence_after(2, -4) == MAX_SEQUENCE - 1


def test_the_last_five_batches_are_known() -> None:
    state = ProducerState()
    for n in range(7):
        state.apply(stored(2 * n, 2, 2 * n))
    producer = state.by_id[7]
    assert len(producer.batches) == BATCHES_KEPT
    assert [producer.duplicate(stored(99, 2, 2 * n)) is not None for n in range(7)] == (
        [False] * 2 + [True] * 5
    )
    assert producer.duplicate(stored(99, 1, 12)) is None, "another last sequence"
    assert producer.duplicate(stored(99, 2, 12, epoch=1)) is None, "another epoch"
    assert (producer.last_sequence, producer.last_offset, producer.timestamp) == (13, 13, 120)


def test_a_new_epoch_forgets_the_batches_and_not_the_coordinator() -> None:
    state = ProducerState()
    state.apply(stored(0, 1, 0, transactional=True))
    state.apply(ended(1, COMMIT))
    state.apply(stored(2, 1, 0, epoch=1))
    producer = state.by_id[7]
    assert (producer.epoch, len(producer.batches), producer.coordinator_epoch) == (1, 1, 5)
    state.apply(ended(3, COMMIT, epoch=2))
    assert (state.by_id[7].batches, state.by_id[7].epoch) == ((), 2)


def test_batches_of_a_coordinator_have_no_sequence() -> None:
    state = ProducerState()
    for n in range(3):
        batch = stored(n, 1, -1, transactional=True)
        if n:
            assert state.by_id[7].duplicate(batch) is None
            state.by_id[7].check(batch, follows=False)
        state.apply(batch)
    assert state.by_id[7].last_sequence == -1
    assert state.first_undecided_offset == 0


def test_batches_of_an_update_change_nothing_until_they_are_in_the_log() -> None:
    state = ProducerState([Producer(1, 0, transaction_first_offset=3)])
    update = ProducerUpdate(state)
    update.add(stored(10, 1, 0, producer=2, transactional=True))
    update.add(ended(11, ABORT, producer=1))
    update.add(stored(12, 1, 0, producer=1, transactional=True))
    update.add(ended(13, ABORT, producer=2))
    assert update.aborted == [TxnEntry(1, 3, 11, 10), TxnEntry(2, 10, 13, 12)]
    assert (set(state.by_id), state.first_undecided_offset) == ({1}, 3)
    update.commit()
    assert (set(state.by_id), state.first_undecided_offset) == ({1, 2}, 12)


def test_control_batches_that_are_no_markers_say_nothing() -> None:
    state = ProducerState()
    state.apply(ended(0, -1))
    state.apply(ended(1, -1, producer=-1))
    assert len(state.by_id) == 0


def test_expiry() -> None:
    state = ProducerState()
    state.apply(stored(100, 1, 0, producer=1))
    state.apply(stored(100, 1, 0, producer=2, transactional=True))
    state.apply(stored(200, 1, 0, producer=3))
    state.expire(1500, 500)
    assert set(state.by_id) == {2, 3}
