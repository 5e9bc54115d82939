"""Whether the ends of a restore point cut a transaction."""

from __future__ import annotations

import pytest

from kafka_client.cluster import TopicPartition
from kafkafs.mirror.cuts import OPEN, Marker, Sides, cut_partition
from storage.record.control import ABORT, COMMIT

A, B, C = (TopicPartition(name, 0) for name in "abc")


def m(time_ms: int, epoch: int = 0, kind: int = COMMIT) -> Marker:
    return Marker(0, epoch, kind, time_ms)


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
        ({A: (m(5000), None), B: (None, m(15001, kind=OPEN))}, None),
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
