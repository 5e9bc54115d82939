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


def m(time_ms: int, epoch: int = 0, kind: int = COMMIT) -> Marker:
    return Marker(0, 0, epoch, kind, time_ms)


@pytest.mark.parametrize(
    ("found", "cut"),
    [
        # Each pair: the last marker below the end, the first transaction above it.
        ({A: (m(5000), None)}, None),
        ({A: (m(5000), None), B: (m(5001), None)}, None),
        ({A: (None, m(5000)), B: (None, m(5001))}, None),
        ({A: (m(5000), None), B: (None, m(5002))}, B),
        ({A: (m(5002), None), B: (None, m(5000))}, B),
        ({A: (m(5000), None), B: (None, m(5002, kind=ABORT))}, None),
        # It is open in our log: no marker has come, which may be of either kind.
        ({A: (m(5000), None), B: (None, m(5050, kind=OPEN))}, B),
        ({A: (m(5000), None), B: (None, m(15001, kind=OPEN))}, B),
        # Two transactions in the same partition.
        ({A: (m(5000), m(5002))}, None),
        ({A: (m(5000), m(5002)), B: (m(4999), None)}, None),
        # With earlier transactions, the times tell which ones belong together.
        ({A: (m(5001), m(5100)), B: (m(5000), m(5102))}, None),
        ({A: (m(5100), m(5200)), B: (m(5000), m(5102))}, B),
        ({A: (m(5100), m(5200)), B: (m(5000), m(6100))}, B),
        ({A: (m(5001), None), B: (m(5000), m(5050, kind=OPEN))}, None),
        ({A: (m(5000), None), B: (m(5002), None), C: (m(4000), m(5003))}, C),
        # Since Kafka 4, each transaction has an epoch.
        ({A: (m(5000, 7), None), B: (None, m(5000, 8))}, None),
        ({A: (m(5000, 7), None), B: (m(4000, 6), m(9000, 7))}, B),
        ({A: (m(90000, 9), None), B: (m(4000, 6), m(5000, 7))}, B),
        ({A: (m(5000, 7), None), B: (None, m(90000, 6, OPEN))}, B),
    ],
)
def test_a_transaction_is_cut(
    found: dict[TopicPartition, tuple[Marker | None, Marker | None]], cut: TopicPartition | None
) -> None:
    assert cut_partition({each: Sides(*sides) for each, sides in found.items()}) == cut


def noted(first: int, last: int, producer_id: int, kind: int = -1) -> ProducerBatch:
    bits = TRANSACTIONAL_BIT | (CONTROL_BIT if kind >= 0 else 0)
    return ProducerBatch(first, last, producer_id, 0, 0, bits, 0, 0, kind, 0)


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
        sides = markers.sides(2, 0)[1]
        ended = Marker(0, 3, 0, COMMIT, 0)
    assert sides == (Sides(ended, None) if below else Sides(None, ended))


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
