"""Whether the ends of a restore point cut a transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_client.cluster import TopicPartition
from kafkafs.mirror import cuts
from kafkafs.mirror.cuts import OPEN, Marker, Markers, Sides, cut_partition
from storage import paths
from storage.record.control import ABORT, COMMIT
from storage.record.header import CONTROL_BIT, TRANSACTIONAL_BIT
from storage.state.producer_state import ProducerBatch
from tests.storage.logs import opened
from tests.storage.transactions import Client, new_log

A, B, C = (TopicPartition(name, 0) for name in "abc")


def m(epoch: int) -> Marker:
    return Marker(0, 1, epoch, COMMIT)


@pytest.mark.parametrize(
    ("found", "cut"),
    [
        # Each pair: the epochs of the last transaction below the end, of the first one above it.
        ({A: (0, None), B: (0, None)}, None),
        ({A: (None, 0), B: (None, 0)}, None),
        ({A: (0, None), B: (None, 0)}, B),
        # Two transactions in the same partition.
        ({A: (0, 0)}, None),
        ({A: (0, 0), B: (None, 0)}, B),
        ({A: (0, 0), B: (None, None)}, None),
        # Without an epoch each, nothing shows which ones belong together.
        ({A: (0, 0), B: (0, 0)}, A),
        ({A: (0, None), B: (0, 0)}, B),
        # Since Kafka 4, each transaction has one.
        ({A: (7, None), B: (None, 8)}, None),
        ({A: (7, 8), B: (7, 8), C: (6, 8)}, None),
        ({A: (7, None), B: (6, 7)}, B),
        ({A: (9, None), B: (6, 7)}, B),
        ({A: (7, None), B: (None, 6)}, B),
    ],
)
def test_a_transaction_is_cut(
    found: dict[TopicPartition, tuple[int | None, int | None]], cut: TopicPartition | None
) -> None:
    sides = {
        each: Sides(*(None if epoch is None else m(epoch) for epoch in epochs))
        for each, epochs in found.items()
    }
    assert cut_partition(sides) == cut


def noted(first: int, last: int, producer_id: int, kind: int = -1, epoch: int = 0) -> ProducerBatch:
    bits = TRANSACTIONAL_BIT | (CONTROL_BIT if kind >= 0 else 0)
    return ProducerBatch(first, last, producer_id, epoch, 0, bits, 0, 0, kind, 0)


def test_a_transaction_with_records_on_both_sides_of_an_end(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        Client(log, 1).send(b"0", b"1")
        markers = Markers(log)
        assert [markers.divided_at(end) for end in range(3)] == [None, 1, None]
        markers.note([noted(2, 2, 2), noted(3, 3, 1), noted(4, 4, 1, COMMIT), noted(5, 5, 2)])
        markers.note([noted(6, 6, 1), noted(7, 7, 1, ABORT), noted(8, 8, 2, COMMIT)])
        found = [markers.divided_at(end) for end in range(9)]
    assert found == [None, 1, 1, 1, 2, 2, None, None, None]


@pytest.mark.parametrize(("topic", "below"), [("t", True), (paths.CONSUMER_OFFSETS, False)])
def test_a_transaction_that_ends_above_another_one_that_is_open(
    tmp_path: Path, topic: str, below: bool
) -> None:
    """It is below the last stable offset, unlike its marker."""
    with opened(tmp_path) as manager:
        manager.create_mirrored_topic(topic, None, 1, {})
        markers = Markers(manager.log(topic, 0))
        markers.note([noted(0, 1, 1), noted(2, 2, 2), noted(3, 3, 1, COMMIT)])
        sides = markers.sides(2, 9)[1]
        ended = Marker(0, 3, 0, COMMIT)
    assert sides == (Sides(ended, None) if below else Sides(None, ended))


def test_the_first_transaction_above_an_end(tmp_path: Path) -> None:
    """Its epoch is that of its records; it began before the log end."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        markers = Markers(log)
        markers.note([noted(0, 0, 1, epoch=3), noted(1, 1, 1, COMMIT, epoch=4)])
        markers.note([noted(2, 2, 2), noted(3, 3, 2, ABORT), noted(4, 4, 3, COMMIT, epoch=9)])
        for producer_id in (4, 5):
            Client(log, producer_id).send(b"")
        found = [
            {each: sides.above for each, sides in markers.sides(0, log_end).items()}
            for log_end in (1, 3)
        ]
    # The log has no records of the third one.
    early = {1: Marker(0, 1, 3, COMMIT), 3: Marker(4, 4, 8, COMMIT), 4: Marker(0, 0, 0, OPEN)}
    late = {2: Marker(2, 3, 0, ABORT), 5: Marker(1, 1, 0, OPEN)}
    assert found == [early, {**early, **late}]


def test_transactions_that_ended_before_the_start(tmp_path: Path) -> None:
    """Only the last one of each producer is known."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        assert Markers(log).is_known(0)
        client = Client(log, 1)
        client.send(b"0", transactional=False)
        assert Markers(log).is_known(0)
        client.send(b"1")
        known = [Markers(log).is_known(end) for end in range(3)]
        client.commit()
        markers = Markers(log)
        known += [markers.is_known(end) for end in range(4)]
    assert known == [False, False, True, False, False, False, True]


def test_markers_that_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "_MARKERS", 2)
    with opened(tmp_path) as manager:
        log = new_log(manager)
        markers = Markers(log)
        Client(log, 1).send(b"0")
        markers.note([noted(each, each, 1, COMMIT) for each in range(1, 4)])
        assert [markers.is_known(end) for end in range(3)] == [False, False, True]
